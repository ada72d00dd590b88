//! `instep guard`: what `instep run` starts to put everything back should it be killed.

use crate::args::GuardArgs;
use crate::text::Messages;
use crate::{Outcome, message};
use instep_agent::guard::{NAME, stand};
use instep_agent::run::told;
use instep_host::apply::StateDir;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// This program, also after another version of it was installed.
const THIS_PROGRAM: &str = "/proc/self/exe";

pub(crate) fn command(args: &GuardArgs) -> anyhow::Result<Outcome> {
    let state = StateDir::at(&args.state_dir);
    let Some(report) = stand(&state, args.agent)? else { return Ok(Outcome::Fine) };
    let mut lines = told(&report);
    lines[0].insert_str(0, "`instep run` ended without restoring everything; ");
    if !report.is_complete() {
        let state = state.path().display();
        lines.push(format!("`instep restore --state-dir {state}` tries again"));
    }
    // To where the run told things; nobody may be left to hear it, and this process is not to wait.
    for line in &lines {
        let _ = Messages.write_all(message(line).as_bytes());
    }
    Ok(if report.is_complete() { Outcome::Fine } else { Outcome::Finding })
}

/// The command that starts a guardian of this process, a run with this state directory.
///
/// # Errors
/// Where the directory is cannot be told.
pub(crate) fn command_of(state: &StateDir) -> io::Result<Command> {
    let state = std::path::absolute(state.path())?;
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(OsStr::from_bytes(NAME.to_bytes())).arg("guard");
    command.arg("--agent").arg(std::process::id().to_string()).arg("--state-dir").arg(state);
    Ok(command)
}
