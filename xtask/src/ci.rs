//! Runs what CI runs, step by step, each named and timed. Clippy and the tests have the feature `kernel`
//! where this machine can build it.

use crate::{bpf, built, deny, tidy};
use anyhow::{Context, Result};
use instep_madehost::skip;
use std::path::Path;
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
const TEST: Step =
    Step { name: "test", cargo: &["test", "--workspace"], env: &[("INSTEP_TEST_ALL", "1")] };
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
    let clang = bpf::clang();
    let clang = clang.inspect_err(|why| eprintln!("without the feature `kernel`: {why}")).ok();
    let clang = clang.as_deref();
    for step in BEFORE_TIDY {
        timed(step.name, &|| cargo(root, step, clang))?;
    }
    if test {
        timed(TEST.name, &|| cargo(root, &TEST, clang))?;
    }
    timed("tidy", &|| tidy::run(root))?;
    if deny::is_installed() {
        timed("deny", &|| deny::run(root))?;
    }
    timed(DOC.name, &|| cargo(root, &DOC, clang))?;
    eprintln!();
    for (name, passed, took) in &results {
        let verdict = if *passed { "ok" } else { "FAILED" };
        eprintln!("{name:<8} {verdict:<6} {:>7.1}s", took.as_secs_f64());
    }
    if let Some(reason) = deny::skipped() {
        skip::unchecked(reason);
    }
    if !test {
        eprintln!("test     skipped: --no-test");
    }
    Ok(results.iter().all(|(_, passed, _)| *passed))
}

/// Runs a step, with the feature `kernel` when there is a clang for it and the step builds anything.
fn cargo(root: &Path, step: &Step, clang: Option<&str>) -> Result<bool> {
    let mut command = built::cargo(root, &[]);
    command.envs(step.env.iter().copied());
    for argument in step.cargo {
        command.arg(argument);
        if let ("--workspace", Some(clang)) = (*argument, clang) {
            command.args(["--features", bpf::FEATURE]).env("BPF_CLANG", clang);
        }
    }
    let status = command
        .status()
        .with_context(|| format!("cannot run cargo for the step `{}`", step.name))?;
    Ok(status.success())
}
