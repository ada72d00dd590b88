//! `instep guard`: what `instep run` starts to put everything back should it be killed.

use crate::args::{GuardArgs, Hypervisor, RunArgs};
use crate::text::Messages;
use crate::{Outcome, message};
use instep_agent::guard::{NAME, Restored, Threads, missing, stand};
use instep_agent::run::Sink;
use instep_agent::xen::Domains;
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
    let restored = match args.hypervisor {
        Hypervisor::Kvm => stand(&state, args.agent, &Threads::live())?,
        Hypervisor::Xen => stand(&state, args.agent, &Domains)?,
    };
    let Some(Restored { told: mut lines, is_complete }) = restored else {
        return Ok(Outcome::Fine);
    };
    lines[0].insert_str(0, "`instep run` ended without restoring everything; ");
    if !is_complete {
        let state = state.path().display();
        lines.push(format!("`instep restore --state-dir {state}` tries again"));
    }
    // To where the run told things; nobody may be left to hear it, and this process is not to wait.
    for line in &lines {
        let _ = Messages.write_all(message(line).as_bytes());
    }
    Ok(if is_complete { Outcome::Fine } else { Outcome::Finding })
}

/// The command that starts a guardian of this process, a run with this state directory; `None` where `args` want none or
/// it cannot be told, which the sink hears.
pub(crate) fn of_run(
    args: &RunArgs,
    state: &StateDir,
    hypervisor: Hypervisor,
    sink: &mut dyn Sink,
) -> Option<Command> {
    if args.no_guard || args.once {
        return None;
    }
    command_of(state, hypervisor).inspect_err(|error| sink.notice(&missing(error))).ok()
}

/// The command that starts a guardian of this process.
///
/// # Errors
/// Where the directory is cannot be told.
fn command_of(state: &StateDir, hypervisor: Hypervisor) -> io::Result<Command> {
    let state = std::path::absolute(state.path())?;
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(OsStr::from_bytes(NAME.to_bytes())).arg("guard");
    command.arg("--agent").arg(std::process::id().to_string()).arg("--state-dir").arg(state);
    let hypervisor = match hypervisor {
        Hypervisor::Kvm => "kvm",
        Hypervisor::Xen => "xen",
    };
    command.arg("--hypervisor").arg(hypervisor);
    Ok(command)
}
