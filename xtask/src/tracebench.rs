//! `cargo xtask bench analyze`: `instep analyze` beside `perf sched timehist` on the same files, in turn.
//! Times are CPU time, user and system, medians of rounds.

use crate::built::{built, done};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 5;

/// `perf sched timehist` takes at least so many times the CPU time (docs/performance.md).
const LEAST: f64 = 3.0;

/// Three VMs recorded in the lab; written over and over it is as long as traces that matter.
const RECORDED: &str = "crates/trace/tests/data/three-vms/host.perf.data";
/// How often.
const TIMES: &str = "2000";

/// Measures these files, or the one that comes along, and prints a Markdown table for
/// docs/performance.md.
pub(crate) fn run(root: &Path, files: &[PathBuf]) -> Result<()> {
    if Command::new("perf").arg("--version").output().is_err() {
        bail!("this machine has no perf; install it (on Debian: apt install linux-perf)");
    }
    let instep = built(root, &["-p", "instep-cli", "--bin", "instep"], "instep")?;
    let dir = tempfile::tempdir()?;
    let mut paths: Vec<PathBuf> = files.to_vec();
    if paths.is_empty() {
        paths.push(long(root, dir.path())?);
    }
    println!(
        "| file | events | timehist | timehist -s | analyze | million events a second | timehist / analyze | timehist -s / analyze |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut slow = Vec::new();
    for path in paths {
        let (row, ratio) = measured(&instep, &path)?;
        println!("{row}");
        if ratio < LEAST {
            slow.push(format!("{} ({ratio:.1})", path.display()));
        }
    }
    if !slow.is_empty() {
        bail!("timehist / analyze is below {LEAST:.0} of {}", slow.join(", "));
    }
    Ok(())
}

/// A long file of the short one.
fn long(root: &Path, dir: &Path) -> Result<PathBuf> {
    let inflate = built(root, &["-p", "instep-trace", "--example", "inflate"], "inflate")?;
    let path = dir.join("long.perf.data");
    done(Command::new(inflate).arg(root.join(RECORDED)).arg(TIMES).arg(&path))?;
    Ok(path)
}

/// A row of the table, and timehist / analyze.
fn measured(instep: &Path, path: &Path) -> Result<(String, f64)> {
    let commands = [
        ("perf sched timehist -i \"$0\"".to_owned(), 0),
        ("perf sched timehist -s -i \"$0\"".to_owned(), 0),
        // A finding is status 1.
        (format!("'{}' analyze --json \"$0\"", instep.display()), 1),
    ];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for ((command, worst), times) in commands.iter().zip(&mut times) {
            times.push(cpu_time(command, *worst, path)?);
        }
    }
    let [timehist, sums, own] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    let told = Command::new(instep).args(["analyze", "--json"]).arg(path).output()?;
    let told: serde_json::Value = serde_json::from_slice(&told.stdout)?;
    let events = told["events"].as_u64().context("the analysis tells no events")?;
    let name = path.file_name().unwrap_or_default().display();
    let row = format!(
        "| {name} | {events} | {timehist:.2} | {sums:.2} | {own:.2} | {:.0} | {:.1} | {:.1} |",
        events as f64 / own / 1e6,
        timehist / own,
        sums / own
    );
    Ok((row, timehist / own))
}

/// CPU seconds of a shell command that reads `path`, its output thrown away; it may end with a
/// status up to `worst`.
fn cpu_time(command: &str, worst: i32, path: &Path) -> Result<f64> {
    let script = format!(
        "TIMEFORMAT='%U %S'; time {{ {command} >/dev/null 2>&1; status=$?; }}; [ $status -le {worst} ]"
    );
    let output = Command::new("bash").args(["-c", &script]).arg(path).output()?;
    if !output.status.success() {
        bail!("{command}: failed on {}", path.display());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let seconds: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let seconds = seconds.with_context(|| format!("not two times: {text}"))?;
    Ok(seconds.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_command_and_a_failure_is_one() {
        let spins = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(cpu_time(spins, 0, Path::new("x")).unwrap() > 0.0);
        assert!(cpu_time("[ \"$0\" = x ]", 0, Path::new("x")).is_ok());
        assert!(cpu_time("false", 1, Path::new("x")).is_ok());
        let error = cpu_time("false", 0, Path::new("x")).unwrap_err();
        assert_eq!(error.to_string(), "false: failed on x");
    }
}
