//! Writes the man pages and the completions of shells of both programs into a directory: `cargo xtask man` runs it.
//!
//! They are made from the command lines themselves, so they cannot say anything else than `--help` does.

#[allow(dead_code, unused_imports)] // The options are read by the program, not here.
#[path = "../src"]
mod operator {
    pub(crate) mod args;
}

#[allow(dead_code, unused_imports)]
#[path = "../src/bin/instep-lab"]
mod laboratory {
    pub(crate) mod args;
}

use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};
use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let usage = || Error::other("usage: pages DIRECTORY");
    let directory = std::env::args_os().nth(1).map(PathBuf::from).ok_or_else(usage)?;
    let (instep, lab) = (operator::args::Cli::command(), laboratory::args::Cli::command());
    // Pages of the laboratory's commands are in its own package.
    write_pages(&directory, &instep)?;
    write_pages(&directory, &lab)?;
    // `instep sim ...` runs `instep-lab sim ...`.
    write_completions(&directory, "instep", &[&instep, &lab])?;
    write_completions(&directory, "instep-lab", &[&lab])
}

/// Each program's pages lie in a directory of their own: the packages take all that is there.
fn write_pages(directory: &Path, command: &Command) -> Result<()> {
    let man = directory.join("man").join(command.get_name());
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(command.clone(), &man)
}

/// Those of one program, for the commands that these have for users.
fn write_completions(directory: &Path, of: &'static str, programs: &[&Command]) -> Result<()> {
    let completions = directory.join("completions");
    fs::create_dir_all(&completions)?;
    let commands = programs.iter().flat_map(|program| program.get_subcommands());
    let shown = commands.filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new(of).version("").subcommands(shown);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, of, &completions)?;
    }
    // clap_complete 4.6 takes the hyphen of a program's name for the end of a command's in some places of this file.
    let bash = completions.join(format!("{of}.bash"));
    let text = fs::read_to_string(&bash)?;
    fs::write(bash, text.replace(&of.replace('-', "__subcmd__"), &of.replace('-', "__")))
}
