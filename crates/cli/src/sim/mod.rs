//! `instep sim`: simulates a scenario and prints what came of it, or checks it, or many random ones.
//! Knows no model.

mod files;
mod parquet;

use crate::args::SimArgs;
use crate::pending::Pending;
use crate::{Outcome, print, print_json, tell};
use files::Files;
use indicatif::{ProgressBar, ProgressStyle};
use instep_lab::Stop;
use instep_sim::check::Finding;
use instep_sim::report;
use instep_sim::scenario::build::Plan;
use instep_sim::scenario::{Overrides, Scenario};
use instep_sim::swarm::{Found, Sum, Swarm};
use serde_json::{Value, json};

/// Reads, simulates, prints.
pub(crate) fn command(args: &SimArgs) -> anyhow::Result<Outcome> {
    let Some(file) = &args.file else {
        return match args.swarm {
            Some(runs) => swarm(args, runs),
            None => anyhow::bail!(
                "a scenario is needed (instep sim FILE), or --swarm RUNS for random ones; \
                 instep sim --help has examples"
            ),
        };
    };
    let overrides = Overrides {
        seed: args.seed,
        scheduler: args.scheduler.clone(),
        placement: args.placement.clone(),
    };
    let plan = Scenario::load(file, &overrides)?;
    if args.check {
        return check(&plan, args.json);
    }
    let seeds = args.seeds.unwrap_or(1);
    anyhow::ensure!(
        plan.setup.seed.checked_add(seeds - 1).is_some(),
        "--seed and --seeds go beyond 2^64: the first seed is {}",
        plan.setup.seed
    );
    let title = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let mut files = Files::open(args, &plan, &title)?;
    let stop = Stop::on_signals()?;
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
fn check(plan: &Plan, in_json: bool) -> anyhow::Result<Outcome> {
    let checked = plan.check(u64::MAX);
    match &checked.finding {
        _ if in_json => print_json(&json!({
            "schema": "instep.sim/1",
            "checked": true,
            "seed": plan.setup.seed,
            "scheduler": plan.scheduler,
            "events": checked.events,
            "simulated_ns": checked.until,
            "finding": checked.finding.as_ref().map(finding_json),
        }))?,
        None => print(&format!("{} events, no finding\n", checked.events))?,
        Some(finding) => print(&format!("{finding}\n"))?,
    }
    Ok(if checked.finding.is_some() { Outcome::Finding } else { Outcome::Fine })
}

/// A broken rule as every document has it.
pub(crate) fn finding_json(Finding { rule, at, what }: &Finding) -> Value {
    json!({ "rule": rule, "at_ns": at, "what": what })
}

/// Random scenarios with all checkers.
fn swarm(args: &SimArgs, runs: u64) -> anyhow::Result<Outcome> {
    let swarm = Swarm {
        runs,
        seed: args.seed.unwrap_or(1),
        scheduler: args.scheduler.clone().filter(|name| name != "all"),
    };
    // A finding is not lost to a directory that is not there.
    let out = args.out.as_deref().map(Pending::new).transpose()?;
    let bar = bar(swarm.runs);
    let stop = Stop::on_signals()?;
    let sum = swarm.run(&|| bar.inc(1), &|| stop.raised()).map_err(instep_sim::Error::Asked)?;
    bar.finish_and_clear();
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
    }
    let counts_first = out.is_some() || sum.found.is_empty();
    if counts_first && !args.json {
        print(&counted(&swarm, &sum))?;
        sum.found.iter().try_for_each(|found| print(&format!("{}\n", told(found))))?;
    }
    let small = smallest(&swarm, &sum);
    match &small {
        _ if args.json => print_json(&swarm_json(&swarm, &sum, small.as_deref()))?,
        Some(small) if !counts_first => print(&format!("{small}# {}", counted(&swarm, &sum)))?,
        _ => {}
    }
    if let Some((small, out)) = small.as_ref().zip(out) {
        let see = format!("see it with: instep sim {} --check", out.to.display());
        out.write(small.as_bytes(), &see)?;
    }
    Ok(if small.is_some() || stop.raised() { Outcome::Finding } else { Outcome::Fine })
}

/// The first finding as a small scenario, the others as comments behind it.
fn smallest(swarm: &Swarm, sum: &Sum) -> Option<String> {
    let (first, others) = sum.found.split_first()?;
    let mut text = first.shrink().text(swarm.seed);
    others.iter().for_each(|found| text.push_str(&format!("# {}\n", told(found))));
    Some(text)
}

/// `instep.swarm/1`: the findings, and the first as a small scenario.
fn swarm_json(swarm: &Swarm, sum: &Sum, small: Option<&str>) -> Value {
    let finding = |found: &Found| {
        let mut finding = finding_json(&found.finding);
        finding["run"] = found.run.into();
        finding["scheduler"] = found.draft.scheduler.clone().into();
        finding
    };
    json!({
        "schema": "instep.swarm/1",
        "seed": swarm.seed,
        "runs": sum.runs,
        "events": sum.events,
        "simulated_ns": sum.simulated,
        "findings": sum.found.iter().map(finding).collect::<Vec<_>>(),
        "scenario": small,
    })
}

/// A finding, and the run that showed it.
fn told(found: &Found) -> String {
    format!("run {}, {}: {}", found.run, found.draft.scheduler, found.finding)
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
    use super::{Finding, Found, Sum, Swarm, swarm_json, told};
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

    #[test]
    fn a_finding_is_told_with_what_repeats_it() {
        let swarm = Swarm { runs: 1, seed: 3, scheduler: Some("cfs".to_owned()) };
        let finding = Finding { rule: "wait", at: 5_000_000, what: "made".to_owned() };
        let found = Found { run: 7, draft: swarm.draft(7), finding };
        assert!(told(&found).starts_with("run 7, cfs: "), "{}", told(&found));
        assert!(told(&found).contains("wait"), "{}", told(&found));
        let sum = Sum { runs: 9, events: 5, simulated: 3, found: vec![found.clone(), found] };
        let json = swarm_json(&swarm, &sum, Some("small"));
        let first = &json["findings"][0];
        assert_eq!((first["run"].as_u64(), first["at_ns"].as_u64()), (Some(7), Some(5_000_000)));
        assert_eq!((&first["scheduler"], &first["rule"]), (&"cfs".into(), &"wait".into()));
        assert_eq!((&json["simulated_ns"], &json["scenario"]), (&3.into(), &"small".into()));
    }
}
