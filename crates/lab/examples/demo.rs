//! Runs the demo with any `instep` binary: `cargo run -p instep-lab --example demo -- PATH`.

use instep_lab::demo::{self, DemoOptions, Verdict};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let Some(instep) = std::env::args_os().nth(1) else {
        anyhow::bail!("usage: demo PATH-OF-INSTEP");
    };
    let verdict = demo::run(&PathBuf::from(instep), &DemoOptions::default())?;
    Ok(if verdict == Verdict::Shown { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
