//! Simulates cases under schedulers with crates/sim/examples/scale.rs.

use crate::scale::cases::Case;
use crate::simulations::run_jobs;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

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
    // The longest first, so that no CPU idles at the end.
    jobs.sort_by_key(|job| std::cmp::Reverse(cases[job.case].cpus * job.seeds as i64));
    let line = |job: &Job| {
        let (case, under) = (&cases[job.case], &contestants[job.scheduler]);
        json!({
            "toml": case.toml,
            "scheduler": under.scheduler,
            "without": under.without,
            "seeds": job.seeds,
        })
    };
    let lines: Vec<Value> = jobs.iter().map(line).collect();
    run_jobs(root, "scale", "bench scale", &lines, |job, result| take(jobs[job], &result))
}
