//! `instep sim`: simulates a scenario and prints what came of it, or checks it, or many random ones.
//! Knows no model.

mod files;
mod parquet;

use crate::args::SimArgs;
use crate::{Outcome, print, print_json, tell};
use anyhow::Context;
use files::Files;
use indicatif::{ProgressBar, ProgressStyle};
use instep_lab::Stop;
use instep_sim::report;
use instep_sim::scenario::build::Plan;
use instep_sim::scenario::{Overrides, Scenario};
use instep_sim::swarm::{Sum, Swarm};
use std::path::Path;

/// Reads, simulates, prints.
pub(crate) fn command(args: &SimArgs) -> anyhow::Result<Outcome> {
    let Some(file) = &args.file else { return swarm(args) };
    let overrides = Overrides {
        seed: args.seed,
        scheduler: args.scheduler.clone(),
        placement: args.placement.clone(),
    };
    let plan = Scenario::load(file, &overrides)?;
    if args.check {
        return check(&plan);
    }
    let title = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let mut files = Files::open(args, &plan, &title)?;
    let stop = Stop::on_signals()?;
    let seeds = args.seeds.unwrap_or(1);
    let style = ProgressStyle::with_template("{bar:30} {percent} % simulated, {eta} left");
    let bar = ProgressBar::new(plan.work(seeds))
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let reports = plan.reports(seeds, &mut files, &|more| bar.inc(more), &|| stop.raised());
    bar.finish_and_clear();
    if reports.is_empty() {
        tell("interrupted: no run was finished; a shorter duration takes less time");
        return Ok(Outcome::Finding);
    }
    files.keep(&reports)?;
    match reports.as_slice() {
        [one] if args.json => print_json(one)?,
        several if args.json => print_json(&several)?,
        [one] => print(&one.table())?,
        several => print(&report::summary(several))?,
    }
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
        return Ok(Outcome::Finding);
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
    let stop = Stop::on_signals()?;
    let sum = swarm.run(&|| bar.inc(1), &|| stop.raised()).map_err(instep_sim::Error::Asked)?;
    bar.finish_and_clear();
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
    }
    let Some(first) = sum.found.first() else {
        print(&counted(&swarm, &sum))?;
        return Ok(if stop.raised() { Outcome::Finding } else { Outcome::Fine });
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
        swarm.seed, sum.runs, sum.events
    )
}

#[cfg(test)]
mod tests {
    use instep_kernel::settings::{Cosched, DEFAULT_PERIOD, Latency, PERIODS, Settings};
    use instep_sim::scenario::settings;
    use instep_sim::sched::instep::Rules;

    #[test]
    fn the_simulated_scheduler_is_told_what_the_real_one_is() {
        let (own, real) = (Rules::default().settings, Settings::default());
        let told =
            [own.slice, own.episode, own.skew, own.wake_slack, own.boost, own.pull, own.debt];
        let real_times = [
            real.slice,
            real.episode,
            real.skew,
            real.wake_slack,
            real.boost,
            real.pull,
            real.debt,
        ];
        assert_eq!(told.map(u128::from), real_times.map(|time| time.as_nanos()));
        assert_eq!(u128::from(own.period), DEFAULT_PERIOD.as_nanos());
        assert_eq!(own.host_weight, real.host_weight);
    }

    #[test]
    fn settings_of_a_vm_mean_in_a_scenario_what_they_mean_to_the_agent() {
        for cosched in [Cosched::Auto, Cosched::Never, Cosched::Relaxed, Cosched::Strict] {
            let told = settings::cosched(&cosched.to_string()).unwrap();
            assert_eq!(told as u32, cosched.raw(), "{cosched}");
        }
        assert_eq!(settings::PROMPT_US, Latency::Prompt.micros());
        let periods = PERIODS.map(|time| u64::try_from(time.as_nanos()).unwrap());
        assert_eq!(settings::PERIODS, periods);
    }
}
