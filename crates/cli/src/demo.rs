//! `instep demo`: the story of the lab's demo, told with this very binary.

use crate::args::DemoArgs;
use crate::lab::built_load;
use crate::{Outcome, writable};
use anyhow::Context as _;
use instep_lab::demo::{DemoOptions, Verdict, run};

/// Why the last act is left out of a program that was built without it.
const NO_SCHEDULER: &str = "this instep was built without the kernel scheduler; `cargo xtask bpf-clang` \
                            says what building it needs";

pub(crate) fn command(args: DemoArgs) -> anyhow::Result<Outcome> {
    let instep = std::env::current_exe().context("cannot find the path of this program")?;
    let DemoArgs { kernel, modules, here, html } = args;
    html.as_deref().map_or(Ok(()), writable)?;
    let load = built_load(&instep);
    let lacks_scheduler = (!cfg!(feature = "kernel")).then(|| NO_SCHEDULER.to_owned());
    let options = DemoOptions { kernel, modules, here, html, load, lacks_scheduler };
    Ok(match run(&instep, &options)? {
        Verdict::Shown => Outcome::Fine,
        Verdict::Failed | Verdict::Interrupted => Outcome::Finding,
    })
}
