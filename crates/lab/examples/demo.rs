//! Runs the demo with any `instep` and `instep-lab`, which are not held to be of one build:
//! `cargo run -p instep-lab --example demo -- INSTEP INSTEP-LAB`.

use instep_lab::demo::{self, DemoOptions, DemoResult};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [instep, laboratory] = paths
        .try_into()
        .map_err(|_| anyhow::anyhow!("usage: demo PATH-OF-INSTEP PATH-OF-INSTEP-LAB"))?;
    let verdict = demo::run(&DemoOptions { instep, laboratory, ..DemoOptions::default() })?;
    Ok(if verdict == DemoResult::Shown { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
