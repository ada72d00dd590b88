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
    write(&directory, "instep", &operator::args::Cli::command())?;
    write(&directory, "instep-lab", &laboratory::args::Cli::command())
}

/// Each program's pages lie in a directory of their own: the packages take all that is there.
fn write(directory: &Path, name: &str, command: &Command) -> Result<()> {
    let (man, completions) = (directory.join("man").join(name), directory.join("completions"));
    for made in [&man, &completions] {
        fs::create_dir_all(made)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), name, &completions)?;
    }
    clap_mangen::generate_to(command.clone(), &man)
}
