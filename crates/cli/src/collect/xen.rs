//! `instep collect` in the control domain of a Xen host: what `xl` prints, twice.

use super::CollectJson;
use crate::args::CollectArgs;
use crate::text::plural;
use crate::{Outcome, print, print_json, tell};
use instep_xen::Source;
use instep_xen::copy::{CopiedFiles, take, write};
use instep_xen::scan::{Depth, scan};

/// Copies this host.
pub(super) fn command(args: &CollectArgs, source: &Source) -> anyhow::Result<Outcome> {
    let (before, _) = take(source, false)?;
    std::thread::sleep(args.window);
    let (after, warnings) = take(source, true)?;
    let copies: [(&str, &CopiedFiles); 2] = [("before", &before), ("after", &after)];
    let files = write(&args.dir, &copies)?;
    let dir = args.dir.as_path();
    let copied = scan(&Source::Copy(dir.join("after")), Depth::Full)?;
    let vcpus = copied.domains.iter().map(|domain| domain.used_vcpus().count()).sum();
    let vms = copied.domains.len();
    if args.json {
        print_json(&CollectJson {
            schema: "instep.collect/1",
            before: dir.join("before"),
            after: dir.join("after"),
            vms,
            vcpus,
            opaque: 0,
            denied: 0,
            files,
            warnings: &warnings,
        })?;
        return Ok(Outcome::Fine);
    }
    warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
    let (domains, vcpus) = (plural(vms, "domain"), plural(vcpus, "vCPU"));
    let (files, dir) = (plural(files, "file"), dir.display());
    print(&format!(
        "Copied {domains} with {vcpus} ({files} in {dir}).\n\
         Read it with: instep plan --root {dir}/after --before {dir}/before\n"
    ))?;
    Ok(Outcome::Fine)
}
