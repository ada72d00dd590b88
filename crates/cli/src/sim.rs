//! `instep sim`: simulates a scenario and prints what came of it, or checks it, or many random ones.
//! Knows no model.

use crate::args::SimArgs;
use crate::{Outcome, print, print_json};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use instep_sim::scenario::build::Plan;
use instep_sim::scenario::{Overrides, Scenario};
use instep_sim::swarm::{Sum, Swarm};
use std::path::Path;

/// Reads, simulates, prints.
pub(crate) fn command(args: &SimArgs) -> anyhow::Result<Outcome> {
    let Some(file) = &args.file else { return swarm(args) };
    let overrides = Overrides { seed: args.seed, scheduler: args.scheduler.clone() };
    let plan = Scenario::load(file, &overrides)?;
    if args.check {
        return check(&plan);
    }
    let bar = bar(0);
    let report = plan.report(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.table())?;
    }
    Ok(Outcome::Fine)
}

fn bar(runs: u64) -> ProgressBar {
    ProgressBar::new(runs).with_style(
        ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// Whether a scenario's schedule keeps all rules.
fn check(plan: &Plan) -> anyhow::Result<Outcome> {
    let checked = plan.check(u64::MAX);
    match checked.finding {
        None => {
            print(&format!("{} events, no finding\n", checked.events))?;
            Ok(Outcome::Fine)
        }
        Some(finding) => {
            print(&format!("{finding}\n"))?;
            Ok(Outcome::Finding)
        }
    }
}

/// Random scenarios with all checkers.
fn swarm(args: &SimArgs) -> anyhow::Result<Outcome> {
    let swarm = Swarm {
        runs: args.swarm.unwrap_or(1),
        seed: args.seed.unwrap_or(1),
        scheduler: args.scheduler.clone().filter(|name| name != "all"),
    };
    let bar = bar(swarm.runs);
    let sum = swarm.run(&|| bar.inc(1)).map_err(instep_sim::Error::Asked)?;
    bar.finish_and_clear();
    let Some(first) = sum.found.first() else {
        print(&counted(&swarm, &sum))?;
        return Ok(Outcome::Fine);
    };
    let mut text = first.shrink().text(swarm.seed);
    for found in &sum.found[1..] {
        text.push_str(&format!(
            "# run {}, {}: {}\n",
            found.run, found.draft.scheduler, found.finding
        ));
    }
    match &args.out {
        None => print(&text)?,
        Some(file) => write(file, &text, &counted(&swarm, &sum))?,
    }
    Ok(Outcome::Finding)
}

fn write(file: &Path, text: &str, counted: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    print(&format!("{counted}see it with: instep sim {} --check\n", file.display()))?;
    Ok(())
}

fn counted(swarm: &Swarm, sum: &Sum) -> String {
    let (findings, seconds) = (sum.found.len(), sum.simulated as f64 / 1e9);
    format!(
        "seed {}: {} runs, {} events, {seconds:.0} s simulated, {findings} findings\n",
        swarm.seed, swarm.runs, sum.events
    )
}
