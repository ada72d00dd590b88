//! Runs what CI runs, step by step, each named and timed.

use crate::tidy;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// One step: its name, the arguments of cargo, and variables of the environment.
struct Step {
    name: &'static str,
    cargo: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const BEFORE_TIDY: &[Step] = &[
    Step { name: "fmt", cargo: &["fmt", "--all", "--", "--check"], env: &[] },
    Step {
        name: "clippy",
        cargo: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: &[],
    },
];
const TEST: Step = Step { name: "test", cargo: &["test", "--workspace"], env: &[] };
const DOC: Step = Step {
    name: "doc",
    cargo: &["doc", "--workspace", "--no-deps"],
    // A link to a private item is for readers of the code, who can follow it.
    env: &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
};

/// Runs the steps, all of them whatever fails; whether all passed.
pub(crate) fn run(root: &Path, test: bool) -> Result<bool> {
    let mut results: Vec<(&str, bool, Duration)> = Vec::new();
    let mut timed = |name: &'static str, step: &dyn Fn() -> Result<bool>| -> Result<()> {
        eprintln!("==> {name}");
        let start = Instant::now();
        let passed = step()?;
        results.push((name, passed, start.elapsed()));
        Ok(())
    };
    for step in BEFORE_TIDY {
        timed(step.name, &|| cargo(root, step))?;
    }
    if test {
        timed(TEST.name, &|| cargo(root, &TEST))?;
    }
    timed("tidy", &|| tidy::run(root))?;
    timed(DOC.name, &|| cargo(root, &DOC))?;
    eprintln!();
    for (name, passed, took) in &results {
        let verdict = if *passed { "ok" } else { "FAILED" };
        eprintln!("{name:<8} {verdict:<6} {:>7.1}s", took.as_secs_f64());
    }
    if !test {
        eprintln!("test     skipped: --no-test");
    }
    Ok(results.iter().all(|(_, passed, _)| *passed))
}

fn cargo(root: &Path, step: &Step) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(step.cargo)
        .envs(step.env.iter().copied())
        .status()
        .with_context(|| format!("cannot run cargo for the step `{}`", step.name))?;
    Ok(status.success())
}
