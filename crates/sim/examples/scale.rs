//! Simulates many scenarios for `cargo xtask bench scale`. Each line of the standard input is a job as
//! JSON: `toml` (the scenario's text), `scheduler`, `seeds` (how many, from the scenario's own on), and `without` (names of
//! mechanisms of `instep` that are off, none where it is missing). As each
//! job ends, a line is printed: its number `job` in the order of the input, `seconds` that it took by the clock, and
//! `reports` (schema `instep.sim/1`) with `by_weight` (the CPUs that each VM has by its weight), or `error`.

#![allow(missing_docs, reason = "an example")]

use instep_sim::scenario::build::SimulationPlan;
use instep_sim::scenario::{Scenario, TuningText};
use serde_json::{Value, json};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

fn main() -> ExitCode {
    let jobs: Result<Vec<Value>, _> = std::io::stdin()
        .lines()
        .map(|line| {
            line.map_err(|error| error.to_string()).and_then(|line| {
                serde_json::from_str(&line).map_err(|error| format!("not a job: {error}"))
            })
        })
        .collect();
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // One job more than threads is under way, so that no CPU idles while the last runs of a job end.
    std::thread::scope(|scope| {
        for _ in 0..=threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return };
                    print_result(number, job);
                }
            });
        }
    });
    ExitCode::SUCCESS
}

fn print_result(number: usize, job: &Value) {
    let begin = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| simulate(job)));
    let result = result.unwrap_or_else(|_| Err("the simulation panicked".to_owned()));
    let mut line = result.unwrap_or_else(|what| json!({ "error": what }));
    line["job"] = number.into();
    line["seconds"] = begin.elapsed().as_secs_f64().into();
    let mut out = std::io::stdout().lock();
    // The reader of the pipe may be gone: then nobody needs the error either.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn simulate(job: &Value) -> Result<Value, String> {
    let text = |key: &str| job[key].as_str().ok_or_else(|| format!("a job without {key}"));
    let seeds = job["seeds"].as_u64().ok_or("a job without seeds")?;
    let toml = text("toml")?;
    let mut scenario = Scenario::parse(toml)
        .map_err(|fault| format!("line {}: {}", fault.line(toml), fault.what))?;
    scenario.scheduler = toml::Spanned::new(0..0, text("scheduler")?.to_owned());
    for name in job["without"].as_array().into_iter().flatten() {
        let name = name.as_str().ok_or("a mechanism that is no text")?;
        let off = toml::Spanned::new(0..0, TuningText::Switch(true));
        scenario.tuning.insert(format!("without.{name}"), off);
    }
    let plan = SimulationPlan::new(&scenario, &|name| Err(format!("{name}: a job names no file")))
        .map_err(|fault| format!("line {}: {}", fault.line(toml), fault.what))?;
    let reports = plan.reports(seeds, &mut (), &|_| (), &|| false);
    Ok(json!({ "reports": reports, "by_weight": plan.by_weight() }))
}
