//! Places and simulates random hosts for `cargo xtask bench placement`. Each line of the standard input is a job as JSON: `kind`,
//! `seed`, and `topology`, the JSON of `instep topology` as a text, or null for a random host. As each job ends, a line is
//! printed: its number `job` in the order of the input, and what was found, or `error`.
//!
//! * `time`: median microseconds of a decision for 1,000 VMs, at `first` and when it is `in_force`. It is done before all others.
//! * `gap`: what the plan of `instep` loses and what the best of all plans does (`found`, `best`, millionths of a CPU),
//!   or nothing on a host with more than `most` plans.
//! * `placements`: by scheduler where each VM is that `instep` has placed, as `before` of the next kind.
//! * `speeds`: by scheduler and rule the fair-share speed of each VM in each of `runs` runs, which differ by what is random in them;
//!   the same as the rule `before` where each VM is by the job's `before`. By how much `instep` is `above` each rule that it
//!   must not be below, and the ends of the interval of 95 %; where that does not tell, rules get twice as many runs, up to
//!   `most_runs`. By scheduler the mean after so many `changes` of what `instep` has placed, as `changed`; the host's size, and what each
//!   VM weighs and uses alone.

#![allow(missing_docs, reason = "an example")]

use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
use instep_report::stats::{self, Estimate};
use instep_sim::placing::draw::{self, Size};
use instep_sim::placing::{Alone, Contest, Placement, Rule, SCHEDULERS};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
        Some("speeds") => find_speeds(&contest(Size::Any)?, job),
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

/// How far below the best of the other rules `instep` may be.
const BELOW: f64 = -0.01;

/// A rule above a scheduler, and its runs.
struct Runs {
    scheduler: &'static str,
    rule: Option<Rule>,
    /// Where VMs are kept to be, of a policy that is gone.
    kept: Vec<Placement>,
    /// The speed of each VM in each run.
    speeds: Vec<Vec<f64>>,
}

impl Runs {
    fn name(&self) -> &'static str {
        self.rule.map_or("before", Rule::as_str)
    }

    /// Whether `instep` must not be below it.
    fn is_compared(&self) -> bool {
        ["bnn", "bind", "none", "before"].contains(&self.name())
    }

    fn means(&self) -> impl Iterator<Item = f64> + '_ {
        self.speeds.iter().map(|run| run.iter().sum::<f64>() / run.len().max(1) as f64)
    }

    /// By how much another is above it, as a part of it, in runs with the same seed. Two runs are the least that tell it.
    fn estimate(&self, other: &Runs) -> Option<Estimate> {
        let parts: Vec<f64> = other
            .means()
            .zip(self.means())
            .map(|(other, own)| other / own.max(1e-9) - 1.0)
            .collect();
        let unknown = |one| Estimate { low: f64::NEG_INFINITY, high: f64::INFINITY, ..one };
        let found = stats::estimate(&parts)?;
        Some(if parts.len() < 2 { unknown(found) } else { found })
    }
}

/// The rules of a job above each scheduler, the judged one first.
fn list_rules(job: &Value) -> Result<Vec<Vec<Runs>>, String> {
    let of = |scheduler| {
        let new = |rule, kept| Runs { scheduler, rule, kept, speeds: Vec::new() };
        let mut rules: Vec<Runs> = Rule::ALL.map(|rule| new(Some(rule), Vec::new())).into();
        let kept = &job["before"][scheduler];
        if !kept.is_null() {
            let kept = serde_json::from_value(kept.clone());
            let why = |error| format!("what is kept of an earlier policy: {error}");
            rules.push(new(None, kept.map_err(why)?));
        }
        Ok(rules)
    };
    SCHEDULERS.into_iter().map(of).collect()
}

/// Whether more runs may tell that one is 1 % below another or above it, or that it is not: the interval is not on
/// one side of both bounds, and wider than the distance between them.
fn is_open(above: &Estimate) -> bool {
    let holds = |bound: f64| above.low < bound && bound <= above.high;
    (holds(BELOW) || holds(0.0)) && above.high - above.low > -BELOW
}

/// The rules above a scheduler that are to have more runs: those of which it is open whether `instep` is below or above them, and
/// `instep`; none once it is below one.
fn list_open(rules: &[Runs]) -> Vec<usize> {
    let is_compared = |rule: &usize| rules[*rule].is_compared();
    let found = (1..rules.len()).filter(is_compared);
    let found = found.filter_map(|rule| Some((rule, rules[rule].estimate(&rules[0])?)));
    let found: Vec<(usize, Estimate)> = found.collect();
    if found.iter().any(|(_, above)| above.high < BELOW) {
        return Vec::new();
    }
    let open: Vec<usize> =
        found.iter().filter(|(_, above)| is_open(above)).map(|(rule, _)| *rule).collect();
    open.first().map(|_| 0).into_iter().chain(open).collect()
}

/// By scheduler the mean speed in so many runs after so many changes, if there are any.
fn simulate_changed(
    contest: &Contest,
    alone: &[Alone],
    changes: u64,
    runs: u64,
) -> Result<Value, String> {
    let asked = if changes > 0 { &SCHEDULERS[..] } else { &[] };
    let of = |scheduler: &&str| {
        let speeds = contest.changed(scheduler, alone, changes, runs)?.1.concat();
        let mean = speeds.iter().sum::<f64>() / speeds.len().max(1) as f64;
        Ok(((*scheduler).to_owned(), mean))
    };
    let found: Result<BTreeMap<String, f64>, String> = asked.par_iter().map(of).collect();
    Ok(json!(found?))
}

fn find_speeds(contest: &Contest, job: &Value) -> Result<Value, String> {
    let number = |key: &str| job[key].as_u64().unwrap_or(0);
    let (alone, mut rules) = (contest.alone(), list_rules(job)?);
    let simulate = |one: &Runs, run| match one.rule {
        Some(rule) => contest.speeds(rule, one.scheduler, &alone, run),
        None => contest.kept_speeds(&one.kept, one.scheduler, &alone, run),
    };
    let mut wanted: Vec<Vec<usize>> =
        rules.iter().map(|rules| (0..rules.len()).collect()).collect();
    let (mut done, mut next) = (0, number("runs").max(1));
    while done < next && wanted.iter().any(|rules| !rules.is_empty()) {
        let wanted_runs = wanted.iter().enumerate().flat_map(|(at, rules)| {
            rules.iter().flat_map(move |rule| (done..next).map(move |run| (at, *rule, run)))
        });
        let runs: Vec<(usize, usize, u64)> = wanted_runs.collect();
        let speeds: Result<Vec<Vec<f64>>, String> = runs
            .par_iter()
            .with_max_len(1)
            .map(|(at, rule, run)| simulate(&rules[*at][*rule], *run))
            .collect();
        for ((at, rule, _), speeds) in runs.iter().zip(speeds?) {
            rules[*at][*rule].speeds.push(speeds);
        }
        wanted = rules.iter().map(|rules| list_open(rules)).collect();
        (done, next) = (next, (2 * next).min(number("most_runs").max(next)));
    }
    let (mut speeds, mut above) = (json!({}), json!({}));
    for rules in &rules {
        for one in rules {
            speeds[one.scheduler][one.name()] = json!(one.speeds);
            if let Some(found) = one.estimate(&rules[0]).filter(|_| one.is_compared()) {
                above[one.scheduler][one.name()] =
                    json!({ "mean": found.mean, "low": found.low, "high": found.high });
            }
        }
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
        "speeds": speeds,
        "above": above,
        "changed": simulate_changed(contest, &alone, number("changes"), number("runs").max(1))?,
    }))
}
