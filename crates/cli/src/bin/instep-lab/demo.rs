//! `instep demo`: the story of the lab's demo, told with the `instep` beside this program.

use crate::args::DemoArgs;
use crate::lab::built_load;
use crate::{Outcome, writable};
use instep_cli::programs;
use instep_lab::demo::{DemoOptions, DemoResult, run};

/// Why the last act is left out of a program that was built without it.
const NO_SCHEDULER: &str = "this instep was built without the kernel scheduler; `cargo xtask bpf-clang` \
                            says what building it needs";

pub(crate) fn command(args: DemoArgs) -> anyhow::Result<Outcome> {
    let (instep, laboratory) = (programs::find_instep()?, programs::own_path()?);
    let DemoArgs { kernel, modules, html } = args;
    html.as_deref().map_or(Ok(()), writable)?;
    let load = built_load(&laboratory);
    let lacks_scheduler = (!cfg!(feature = "kernel")).then(|| NO_SCHEDULER.to_owned());
    let options = DemoOptions { instep, laboratory, kernel, modules, html, load, lacks_scheduler };
    Ok(match run(&options)? {
        DemoResult::Shown => Outcome::Fine,
        DemoResult::Failed | DemoResult::Interrupted => Outcome::Finding,
    })
}
