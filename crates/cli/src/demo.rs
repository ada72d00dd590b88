//! `instep demo`: the story of the lab's demo, told with this very binary.

use crate::args::DemoArgs;
use crate::{Outcome, writable};
use anyhow::Context as _;
use instep_lab::demo::{DemoOptions, Verdict, run};

pub(crate) fn command(args: DemoArgs) -> anyhow::Result<Outcome> {
    let instep = std::env::current_exe().context("cannot find the path of this program")?;
    let DemoArgs { kernel, modules, here, html } = args;
    html.as_deref().map_or(Ok(()), writable)?;
    Ok(match run(&instep, &DemoOptions { kernel, modules, here, html })? {
        Verdict::Shown => Outcome::Fine,
        Verdict::Failed | Verdict::Interrupted => Outcome::Finding,
    })
}
