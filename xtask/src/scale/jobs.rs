//! Simulates cases under schedulers, side by side on all CPUs: builds crates/sim/examples/scale.rs for
//! release, gives it all jobs, and takes the results as they come.

use crate::built::built;
use crate::scale::cases::Case;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A scheduler, and which of its mechanisms are off (those of `instep` only).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) scheduler: String,
    pub(crate) without: Vec<String>,
}

impl Contestant {
    /// With all its mechanisms.
    pub(crate) fn plain(scheduler: &str) -> Self {
        Self { scheduler: scheduler.to_owned(), without: Vec::new() }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "under {}", self.scheduler)?;
        match self.without.is_empty() {
            true => Ok(()),
            false => write!(f, " without {}", self.without.join(", ")),
        }
    }
}

/// A case under a scheduler, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) case: usize,
    pub(crate) scheduler: usize,
    pub(crate) seeds: u64,
}

/// Simulates all jobs; `take` gets each result: `reports` and `by_weight`, or `error`.
pub(crate) fn simulate(
    root: &Path,
    cases: &[Case],
    contestants: &[Contestant],
    mut jobs: Vec<Job>,
    mut take: impl FnMut(Job, &Value),
) -> Result<()> {
    let program = built(root, &["-p", "instep-sim", "--example", "scale"], "scale")?;
    // The longest first, so that no CPU idles at the end.
    jobs.sort_by_key(|job| std::cmp::Reverse(cases[job.case].cpus * job.seeds as i64));
    let begin = Instant::now();
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut input = child.stdin.take().context("the program has no standard input")?;
    for job in &jobs {
        let (case, under) = (&cases[job.case], &contestants[job.scheduler]);
        let line = json!({
            "toml": case.toml,
            "scheduler": under.scheduler,
            "without": under.without,
            "seeds": job.seeds,
        });
        writeln!(input, "{line}").context("the simulations ended early")?;
    }
    drop(input);
    let output = child.stdout.take().context("the program has no standard output")?;
    let terminal = std::io::stderr().is_terminal();
    let mut done = 0;
    for line in BufReader::new(output).lines() {
        let result: Value = serde_json::from_str(&line?).context("a result is not JSON")?;
        let number = result["job"].as_u64().and_then(|number| usize::try_from(number).ok());
        let job = number.and_then(|number| jobs.get(number)).context("a result of no job")?;
        take(*job, &result);
        done += 1;
        if terminal {
            eprint!("\rbench scale: {done} of {} simulated", jobs.len());
        }
    }
    let end = if terminal { "\n" } else { "" };
    eprintln!("{end}bench scale: {done} simulated in {} s", begin.elapsed().as_secs());
    let status = child.wait().context("the simulations cannot be waited for")?;
    if !status.success() || done < jobs.len() {
        bail!("the simulations ended after {done} of {} jobs: {status}", jobs.len());
    }
    Ok(())
}
