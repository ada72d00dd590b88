//! What is asked of crates/sim/examples/placement.rs, and taking its answers as they come.

use crate::placement::found::Found;
use crate::placement::options::Options;
use crate::placement::recorded::Machine;
use crate::simulations::run_jobs;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

/// Plans of a small host that are tried at most.
const MOST_PLANS: u64 = 20_000;
/// Hosts with guests that are drawn for each recorded machine: simulated, and compared with the best plan.
const OF_RECORDED: [u64; 2] = [2, 10];

/// A job and the name of its host.
pub(crate) struct Job {
    pub(crate) host: String,
    pub(crate) text: Value,
}

impl Job {
    fn new(kind: &str, seed: u64, machine: Option<&Machine>) -> Self {
        let host = match machine {
            Some((name, _)) => format!("{name} {seed}"),
            None => format!("random {seed}"),
        };
        let topology = machine.map(|(_, json)| json);
        let text = json!({ "kind": kind, "seed": seed, "topology": topology, "most": MOST_PLANS });
        Self { host, text }
    }

    pub(crate) fn kind(&self) -> &str {
        self.text["kind"].as_str().unwrap_or_default()
    }
}

/// The time of deciding, hosts to simulate, and small hosts.
pub(crate) fn list_jobs(options: &Options, machines: &[Machine]) -> Vec<Job> {
    let mut jobs = vec![Job::new("time", options.seed, None)];
    let [simulated, small] = OF_RECORDED;
    for (kind, random, recorded) in
        [("speeds", options.hosts, simulated), ("gap", options.gaps, small)]
    {
        let seeds = |count: u64| (options.seed..).take(count as usize);
        jobs.extend(seeds(random).map(|seed| Job::new(kind, seed, None)));
        for machine in machines {
            jobs.extend(seeds(recorded).map(|seed| Job::new(kind, seed, Some(machine))));
        }
    }
    for job in &mut jobs {
        (job.text["runs"], job.text["changes"]) = (options.runs.into(), options.changes.into());
        job.text["most_runs"] = options.most_runs.into();
    }
    jobs
}

/// Does all jobs, side by side on all CPUs.
pub(crate) fn work(root: &Path, jobs: &[Job]) -> Result<Found> {
    let lines: Vec<Value> = jobs.iter().map(|job| job.text.clone()).collect();
    let mut results = vec![Value::Null; jobs.len()];
    run_jobs(root, "placement", "bench placement", &lines, |job, result| results[job] = result)?;
    // Jobs end in any order; what was found is in theirs.
    let mut found = Found::default();
    jobs.iter().zip(&results).for_each(|(job, result)| found.take(job, result));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_options;

    #[test]
    fn recorded_machines_have_hosts_of_each_kind() {
        let options = Options { hosts: 3, gaps: 5, ..parse_options(&[]).unwrap() };
        let jobs = list_jobs(&options, &[("m".to_owned(), "{}".to_owned())]);
        let count = |kind: &str| jobs.iter().filter(|job| job.kind() == kind).count() as u64;
        assert_eq!(count("time"), 1);
        assert_eq!([count("speeds"), count("gap")], [3 + OF_RECORDED[0], 5 + OF_RECORDED[1]]);
        assert_eq!(jobs.iter().filter(|job| job.host.starts_with("m ")).count(), 12);
    }
}
