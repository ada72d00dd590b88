//! Writes the man pages and the completions of shells into a directory: `cargo xtask man` runs it.
//!
//! They are made from the command line itself, so they cannot say anything else than `--help` does.

#[allow(dead_code, unused_imports)] // The options are read by the program, not here.
#[path = "../src"]
mod program {
    pub(crate) mod args;
}

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};
use program::args::Cli;
use std::fs;
use std::io::{Error, Result};
use std::path::PathBuf;

fn main() -> Result<()> {
    let usage = || Error::other("usage: pages DIRECTORY");
    let directory = std::env::args_os().nth(1).map(PathBuf::from).ok_or_else(usage)?;
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    for made in [&man, &completions] {
        fs::create_dir_all(made)?;
    }
    let mut command = Cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "instep", &completions)?;
    }
    clap_mangen::generate_to(Cli::command(), &man)
}
