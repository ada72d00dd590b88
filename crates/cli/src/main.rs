//! The `instep` binary: reads the command line, runs the command, turns errors into messages and
//! an exit status.

mod advise;
mod analyze;
mod args;
mod collect;
mod compare;
#[cfg(test)]
#[path = "../tests/common/golden.rs"]
mod golden;
mod guard;
mod hypervisor;
mod json_documents;
mod laboratory;
mod observe;
mod plan;
mod profile;
mod record;
mod restore;
mod run;
mod serve;
mod status;
mod top;
mod topology;

use args::{Cli, Command};
use clap::Parser as _;
use instep_agent::run::{Events, survive_size_limit};
// Commands name what both programs share as if it were here.
pub(crate) use instep_cli::{
    Outcome, error_text, message, page, pending, print, print_json, tell, text,
};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = laboratory::pass_on(std::env::args_os().skip(1)) {
        return status;
    }
    let events = hold_signals();
    let mut arguments = std::env::args_os();
    if advise::numad::is_called(arguments.next().as_deref()) {
        return advise::numad::main(arguments);
    }
    let cli = Cli::parse();
    instep_cli::begin_log();
    let result = match cli.command {
        Command::Topology(args) => topology::command(&args),
        Command::Status(args) => status::command(&args),
        Command::Top(args) => top::command(&args),
        Command::Plan(args) => plan::command(&args),
        Command::Advise(args) => advise::command(&args),
        Command::Collect(args) => collect::command(&args),
        Command::Run(args) => {
            events.map_err(anyhow::Error::from).and_then(|events| run::command(args, events))
        }
        Command::Restore(args) => restore::command(&args),
        Command::Serve(args) => serve::command(&args),
        Command::Guard(args) => guard::command(&args),
        Command::Record(args) => record::command(&args),
        Command::Analyze(args) => analyze::command(&args),
        Command::Profile(args) => profile::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Schemas => json_documents::command(),
    };
    instep_cli::exit_code(result, status_of)
}

/// Takes over signals that would end this process in the middle of something, before all else. SIGHUP is
/// that of `run` alone.
fn hold_signals() -> Result<Option<Events>, instep_agent::Error> {
    let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    let events = is_run.then(Events::hold_reloads).transpose()?;
    survive_size_limit()?;
    Ok(events)
}

/// The exit status of a command that ended with this error.
pub(crate) fn status_of(error: &anyhow::Error) -> u8 {
    if is_failed_work(error) { 1 } else { 2 }
}

/// Whether work that had begun failed, rather than the command line or the environment.
fn is_failed_work(error: &anyhow::Error) -> bool {
    error.downcast_ref::<instep_agent::Error>().is_some_and(instep_agent::Error::is_failed_work)
        || error
            .downcast_ref::<instep_record::Error>()
            .is_some_and(instep_record::Error::is_failed_work)
}
