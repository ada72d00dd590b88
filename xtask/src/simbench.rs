//! `cargo xtask bench sim`: the simulator's speed by size of the host, and beside SimSo (PyPI) on the
//! nearest equal task set in the same run. Times are CPU time, medians of rounds in turn.
//!
//! SimSo knows tasks and CPUs, no VMs: both simulate periodic tasks straight on CPUs, it under global
//! EDF, Instep under CFS with what Linux does at ticks and wake-ups. It is installed into an
//! environment in the cache directory; without pip or a network that part is skipped with the reason.

use crate::built::{built, done};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is compared, and with which version the published figures were made.
const SIMSO: &str = "simso==0.8.5";
/// CPUs, tasks, simulated milliseconds.
const TASKS: [u32; 3] = [32, 56, 2000];
const ROUNDS: usize = 5;

const SCRIPT: &str = r#"
import os, sys, time
from simso.core import Model
from simso.configuration import Configuration
cpus, tasks, ms = map(int, sys.argv[1:4])
made = Configuration()
made.duration = ms * made.cycles_per_ms
for at in range(tasks):
    made.add_task(name="T%d" % at, identifier=at + 1, period=10, activation_date=at % 10, wcet=5,
                  deadline=10)
for at in range(cpus):
    made.add_processor(name="P%d" % at, identifier=at + 1)
made.scheduler_info.clas = "simso.schedulers.EDF"
made.check_all()
model = Model(made)
# Its EDF prints every choice: not what is measured.
sys.stdout = open(os.devnull, "w")
before = time.process_time()
model.run_model()
took = time.process_time() - before
sys.stdout = sys.__stdout__
jobs = sum(len(task.jobs) for task in model.results.tasks.values())
print("%d %d 0 %d %.6f" % (cpus, tasks, jobs, took))
"#;

/// A line of `speed`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    cpus: u32,
    tasks: u32,
    events: u64,
    jobs: u64,
    seconds: f64,
}

/// Measures and prints Markdown tables for docs/performance.md.
pub(crate) fn run(root: &Path) -> Result<()> {
    let speed = built(root, &["-p", "instep-sim", "--example", "speed"], "speed")?;
    println!("| CPUs | vCPUs | scheduler | events | million events a second | per event ns |");
    println!("|---:|---:|---|---:|---:|---:|");
    for scheduler in ["credit", "cfs", "eevdf", "instep"] {
        let rounds: Vec<Vec<Line>> = (0..ROUNDS)
            .map(|_| lines(Command::new(&speed).args(["engine", scheduler])))
            .collect::<Result<_>>()?;
        for at in 0..rounds.first().map_or(0, Vec::len) {
            let line = median(rounds.iter().filter_map(|round| round.get(at).copied()).collect());
            let line = line.context("speed printed nothing")?;
            let rate = line.events as f64 / line.seconds / 1e6;
            let each = line.seconds * 1e9 / line.events as f64;
            println!(
                "| {} | {} | {scheduler} | {} | {rate:.2} | {each:.0} |",
                line.cpus, line.tasks, line.events
            );
        }
    }
    println!();
    match simso() {
        Ok(python) => beside_simso(&speed, &python),
        Err(reason) => {
            println!("SimSo: skipped: {reason:#}");
            Ok(())
        }
    }
}

fn beside_simso(speed: &Path, python: &Path) -> Result<()> {
    let numbers = TASKS.map(|number| number.to_string());
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.extend(lines(Command::new(speed).arg("periodic").args(&numbers))?);
        other.extend(lines(Command::new(python).args(["-c", SCRIPT]).args(&numbers))?);
    }
    let (own, other) = median(own).zip(median(other)).context("one of them printed nothing")?;
    println!("| {} tasks on {} CPUs, {} ms | jobs | CPU seconds |", TASKS[1], TASKS[0], TASKS[2]);
    println!("|---|---:|---:|");
    println!("| SimSo, global EDF | {} | {:.3} |", other.jobs, other.seconds);
    println!("| Instep, pm (CFS) | {} | {:.4} |", own.jobs, own.seconds);
    println!("\nSimSo / Instep: {:.0}", other.seconds / own.seconds);
    Ok(())
}

/// Python with SimSo in it.
fn simso() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache"))
    });
    let dir = cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("instep/simso");
    let python = dir.join("bin/python");
    let works = || {
        let asked = Command::new(&python).args(["-c", "import simso"]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    if !works() {
        done(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
        done(Command::new(&python).args(["-m", "pip", "-q", "install", SIMSO]))?;
    }
    if works() { Ok(python) } else { bail!("{} cannot import simso", python.display()) }
}

fn lines(command: &mut Command) -> Result<Vec<Line>> {
    let text = done(command)?;
    text.lines().map(|text| parse(text).with_context(|| format!("not a result: {text}"))).collect()
}

fn parse(text: &str) -> Option<Line> {
    let mut words = text.split_whitespace();
    let line = Line {
        cpus: words.next()?.parse().ok()?,
        tasks: words.next()?.parse().ok()?,
        events: words.next()?.parse().ok()?,
        jobs: words.next()?.parse().ok()?,
        seconds: words.next()?.parse().ok().filter(|seconds| *seconds > 0.0)?,
    };
    words.next().is_none().then_some(line)
}

/// The line of median time.
fn median(mut lines: Vec<Line>) -> Option<Line> {
    lines.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    lines.get(lines.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_five_numbers_is_a_result_and_nothing_else() {
        let line = parse("32 56 0 11200 1.5").unwrap();
        assert_eq!((line.cpus, line.jobs, line.seconds), (32, 11_200, 1.5));
        for wrong in ["", "32 56 0 11200", "32 56 0 11200 0", "32 56 0 11200 1.5 x", "a b c d e"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let slower = Line { seconds: 2.0, ..line };
        let slowest = Line { seconds: 9.0, ..line };
        assert_eq!(median(vec![slowest, line, slower]), Some(slower));
    }
}
