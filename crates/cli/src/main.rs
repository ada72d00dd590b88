//! The `instep` binary: reads the command line, runs the command, turns errors into messages and
//! an exit status.

mod advise;
mod analyze;
mod args;
mod bench;
mod collect;
mod compare;
mod demo;
#[cfg(test)]
#[path = "../tests/common/golden.rs"]
mod golden;
mod guard;
mod lab;
mod observe;
mod page;
mod pending;
mod plan;
mod profile;
mod record;
mod reproduce;
mod restore;
mod run;
mod scenario_file;
mod serve;
mod sim;
mod status;
mod text;
mod top;
mod topology;

use anyhow::Context as _;
use args::{Cli, Command};
use clap::Parser as _;
use instep_agent::run::{Events, survive_size_limit};
use scenario_file::{Reader, hinted};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// How a command ended when nothing stood in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well: exit status 0.
    Fine,
    /// Something was found, or part of the work failed: exit status 1.
    Finding,
    /// What was run for the user ended with this status, which becomes ours.
    Status(u8),
}

/// The last line when this machine lacks something: what, is said before. The tests skip by it.
const LACKING: &str = "this cannot be done here; all that is missing is told by: instep lab doctor";

fn main() -> ExitCode {
    let events = hold_signals();
    let mut arguments = std::env::args_os();
    if advise::numad::is_called(arguments.next().as_deref()) {
        return advise::numad::main(arguments);
    }
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("INSTEP_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(|| text::Messages)
        .with_ansi(false)
        .without_time()
        .init();
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
        Command::Demo(args) => demo::command(args),
        Command::Record(args) => record::command(&args),
        Command::Analyze(args) => analyze::command(&args),
        Command::Profile(args) => profile::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Lab(command) => lab::command(command),
        Command::Sim(args) => sim::command(&args).map_err(|error| match &args.file {
            Some(file) => hinted(error, file, Reader::Sim),
            None => error,
        }),
        Command::Agree(args) => bench::agree::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::BenchCells(args) => bench::cells::command(&args),
        Command::Reproduce(args) => reproduce::command(&args),
    };
    match result {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Finding) => ExitCode::from(1),
        Ok(Outcome::Status(status)) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&told(&error));
            if error.downcast_ref::<instep_lab::Error>().is_some_and(instep_lab::Error::is_lacking)
            {
                tell(LACKING);
            }
            ExitCode::from(status_of(&error))
        }
    }
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

/// An error with its causes, save those that the text before repeats already.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Says something on standard error, without what would steer the terminal: messages hold the ends
/// of guests' consoles and lines of users' files. What cannot be written has nowhere else to go.
pub(crate) fn tell(said: &str) {
    let _ = io::stderr().write_all(message(said).as_bytes());
}

/// The same as text, ended.
pub(crate) fn message(said: &str) -> String {
    let lines: Vec<String> = said.split('\n').map(text::printable).collect();
    format!("instep: {}\n", lines.join("\n"))
}

/// Whether standard output's reader went away (`instep status | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints text that ends in its own line end, without what would steer the terminal.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    io::stdout().lock().write_all(text::drawable(text).as_bytes())?;
    Ok(())
}

/// Whether a file can be written that is to hold what minutes of work give; it stays as it is.
pub(crate) fn writable(file: &Path) -> anyhow::Result<()> {
    let existed = file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.with_context(|| format!("cannot write {}", file.display()))?;
    if !existed {
        // Work that fails shall not leave an empty file.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Prints a value as one JSON document, readable.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = text::escaped_json(&serde_json::to_string_pretty(value)?);
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || io::Error::other("disk on fire");
        let error = anyhow::Error::from(instep_host::Error::read("/f", cause()));
        assert_eq!(told(&error), "cannot read /f: disk on fire");
        let error = Err::<(), _>(cause()).context("cannot append").unwrap_err();
        assert_eq!(told(&error), "cannot append: disk on fire");
    }
}
