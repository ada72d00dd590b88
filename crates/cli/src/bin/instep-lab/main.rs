//! The `instep-lab` binary: reads the command line, runs the command, turns errors into messages and an exit
//! status.

mod args;
mod bench;
mod demo;
mod imitate;
mod json_documents;
mod lab;
mod reproduce;
mod scenario_file;
mod sim;

use args::{Cli, Command};
use clap::Parser as _;
// Commands name what both programs share as if it were here.
pub(crate) use instep_cli::{
    Outcome, Stamped, error_text, page, pending, print, print_json, tell, text, writable,
};
use scenario_file::{Reader, hinted};
use std::process::ExitCode;

/// The last line when this machine lacks something: what, is said before. The tests skip by it.
const LACKING: &str = "this cannot be done here; `instep lab doctor` lists all that is missing";

fn main() -> ExitCode {
    let survives = instep_agent::run::survive_size_limit();
    let cli = Cli::parse();
    instep_cli::begin_log();
    let result = survives.map_err(anyhow::Error::from).and_then(|()| match cli.command {
        Command::Demo(args) => demo::command(args),
        Command::Lab(command) => lab::command(command),
        Command::Sim(args) => sim::command(&args).map_err(|error| match &args.file {
            Some(file) => hinted(error, file, Reader::Sim),
            None => error,
        }),
        Command::Agree(args) => bench::agree::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::BenchCells(args) => bench::cells::command(&args),
        Command::Reproduce(args) => reproduce::command(&args),
        Command::Schemas => json_documents::command(),
        Command::Imitate => imitate::command(),
    });
    instep_cli::exit_code(result, end_with)
}

/// The exit status of a command that ended with this error; what more is to be said of it.
fn end_with(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<instep_lab::Error>().is_some_and(instep_lab::Error::is_lacking) {
        tell(LACKING);
    }
    2
}
