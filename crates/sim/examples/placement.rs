//! Places and simulates random hosts for `cargo xtask bench placement`. Each line of the standard input is a job as JSON: `kind`,
//! `seed`, and `topology`, the JSON of `instep topology` as a text, or null for a random host. As each job ends, a line is
//! printed: its number `job` in the order of the input, and what was found, or `error`.
//!
//! * `time`: median microseconds of a decision for 1,000 VMs, at `first` and when it is `in_force`. It is done before all others.
//! * `gap`: what the plan of `instep` loses and what the best of all plans does (`found`, `best`, millionths of a CPU),
//!   or nothing on a host with more than `most` plans.
//! * `placements`: by scheduler where each VM is that `instep` has placed, as `before` of the next kind.
//! * `speeds`: by scheduler and rule the fair-share speed of each VM in each of `runs` runs, which differ by what is random in them;
//!   the same as the rule `before` where each VM is by the job's `before`;
//!   by scheduler the mean of these of each of `drawn` placements at random; the host's size, and what each VM weighs and uses alone.

#![allow(missing_docs, reason = "an example")]

use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
use instep_sim::placing::draw::{self, Size};
use instep_sim::placing::{Alone, Contest, Placement, Rule, SCHEDULERS};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Decisions whose median time is the result.
const DECISIONS: usize = 25;

fn main() -> ExitCode {
    let read = |line: std::io::Result<String>| {
        let line = line.map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|error| format!("not a job: {error}"))
    };
    let jobs: Result<Vec<Value>, String> = std::io::stdin().lines().map(read).collect();
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let is_time = |job: &&(usize, Value)| job.1["kind"] == "time";
    let jobs: Vec<(usize, Value)> = jobs.into_iter().enumerate().collect();
    jobs.iter().filter(is_time).for_each(print_result);
    jobs.par_iter().with_max_len(1).filter(|job| !is_time(job)).for_each(print_result);
    ExitCode::SUCCESS
}

fn print_result((number, job): &(usize, Value)) {
    let begin = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| find(job)));
    let result = result.unwrap_or_else(|_| Err("the simulation panicked".to_owned()));
    let mut line = result.unwrap_or_else(|what| json!({ "error": what }));
    line["job"] = (*number).into();
    line["seconds"] = begin.elapsed().as_secs_f64().into();
    let mut out = std::io::stdout().lock();
    // The reader of the pipe may be gone: then nobody needs the error either.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn find(job: &Value) -> Result<Value, String> {
    let seed = job["seed"].as_u64().ok_or("a job without seed")?;
    let contest = |size| Contest::new(&draw::draw(seed, size, job["topology"].as_str())?);
    match job["kind"].as_str() {
        Some("time") => Ok(measure_time(&contest(Size::Thousand)?)),
        Some("gap") => {
            let most = job["most"].as_u64().ok_or("a job without most")?;
            let found = policy::against_exact(&contest(Size::Small)?.expected(), most as usize);
            Ok(json!({ "found": found.map(|pair| pair.0), "best": found.map(|pair| pair.1) }))
        }
        Some("placements") => {
            let (contest, rule) = (contest(Size::Any)?, Rule::Policy(PolicyName::Instep));
            let placed =
                SCHEDULERS.map(|name| Some((name, contest.placements(rule, name, 0).ok()?)));
            Ok(placed.into_iter().flatten().map(|(name, placed)| (name, json!(placed))).collect())
        }
        Some("speeds") => {
            let [runs, drawn] = ["runs", "drawn"].map(|key| job[key].as_u64().unwrap_or(0));
            let contest = contest(Size::Any)?;
            let alone = contest.alone();
            let mut found = find_speeds(&contest, &alone, runs.max(1), drawn)?;
            for scheduler in SCHEDULERS {
                let kept = &job["before"][scheduler];
                if !kept.is_null() {
                    found["speeds"][scheduler]["before"] =
                        find_kept(&contest, kept, scheduler, &alone, runs.max(1))?.into();
                }
            }
            Ok(found)
        }
        _ => Err("a job of no known kind".to_owned()),
    }
}

fn measure_time(contest: &Contest) -> Value {
    let settings = PolicySettings::default();
    let median = |snapshot: &Snapshot| {
        let once = |_| {
            let begin = Instant::now();
            let decided = policy::decide(snapshot, &settings).vms.len();
            (begin.elapsed().as_secs_f64() * 1e6, decided)
        };
        let mut times: Vec<(f64, usize)> = (0..DECISIONS).map(once).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        times[DECISIONS / 2].0
    };
    let (first, after) = (contest.expected(), contest.after(PolicyName::Instep));
    json!({ "vms": first.vms.len(), "first": median(&first), "in_force": median(&after) })
}

/// The speeds where VMs are kept to be, in each run.
fn find_kept(
    contest: &Contest,
    kept: &Value,
    scheduler: &str,
    alone: &[Alone],
    count: u64,
) -> Result<Vec<Vec<f64>>, String> {
    let kept: Vec<Placement> = serde_json::from_value(kept.clone())
        .map_err(|error| format!("what is kept of an earlier policy: {error}"))?;
    let runs = (0..count).collect::<Vec<u64>>().into_par_iter().with_max_len(1);
    runs.map(|run| contest.kept_speeds(&kept, scheduler, alone, run)).collect()
}

fn find_speeds(
    contest: &Contest,
    alone: &[Alone],
    count: u64,
    drawn: u64,
) -> Result<Value, String> {
    let rules = || SCHEDULERS.iter().flat_map(|name| Rule::ALL.map(|rule| (*name, rule)));
    let runs: Vec<(&str, Rule, u64)> =
        rules().flat_map(|(name, rule)| (0..count).map(move |run| (name, rule, run))).collect();
    let speeds: Result<Vec<Vec<f64>>, String> = runs
        .par_iter()
        .with_max_len(1)
        .map(|(scheduler, rule, run)| contest.speeds(*rule, scheduler, alone, *run))
        .collect();
    let mean_drawn = |scheduler: &str, seed| {
        let speeds = contest.speeds(Rule::Drawn(seed), scheduler, alone, 0)?;
        Ok(speeds.iter().sum::<f64>() / speeds.len().max(1) as f64)
    };
    let mut of_drawn = Map::new();
    for scheduler in SCHEDULERS {
        let seeds = (0..drawn).collect::<Vec<u64>>().into_par_iter().with_max_len(1);
        let means: Result<Vec<f64>, String> =
            seeds.map(|seed| mean_drawn(scheduler, seed)).collect();
        of_drawn.insert(scheduler.to_owned(), means?.into());
    }
    let mut found = Map::new();
    for ((scheduler, rule), runs) in rules().zip(speeds?.chunks(count as usize)) {
        let rules = found.entry(scheduler.to_owned()).or_insert_with(|| json!({}));
        rules[rule.as_str()] = runs.into();
    }
    let setup = &contest.plan().setup;
    let (host, vms) = (&setup.host, &setup.vms[..alone.len()]);
    Ok(json!({
        "cpus": host.cpus(),
        "nodes": host.nodes.len(),
        "caches": host.llcs.len(),
        "vms": alone.len(),
        "weights": vms.iter().map(|vm| vm.weight).collect::<Vec<u32>>(),
        "alone": alone.iter().map(|alone| alone.1).collect::<Vec<u64>>(),
        "speeds": found,
        "drawn": of_drawn,
    }))
}
