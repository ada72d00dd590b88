//! `instep guard`: what `instep run` starts to put everything back should it be killed.

use crate::args::GuardArgs;
use crate::{Outcome, tell};
use anyhow::Context as _;
use instep_agent::guard::stand;
use instep_agent::run::told;
use instep_host::apply::StateDir;
use std::process::Command;

pub(crate) fn command(args: &GuardArgs) -> anyhow::Result<Outcome> {
    let Some(report) = stand(&StateDir::at(&args.state_dir))? else { return Ok(Outcome::Fine) };
    let mut lines = told(&report);
    lines[0].insert_str(0, "`instep run` was killed; ");
    // To where the run told things; nobody may be left to hear it.
    lines.iter().for_each(|line| tell(line));
    Ok(if report.is_complete() { Outcome::Fine } else { Outcome::Finding })
}

/// The command that starts a guardian for a run with this state directory.
pub(crate) fn command_of(state: &StateDir) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let state = std::path::absolute(state.path()).context("cannot tell where the state is kept")?;
    let mut command = Command::new(program);
    command.args(["guard", "--state-dir"]).arg(state);
    Ok(command)
}
