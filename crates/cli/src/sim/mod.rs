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
use instep_sim::report;
use instep_sim::scenario::build::Plan;
use instep_sim::scenario::{Overrides, Scenario};
use instep_sim::swarm::{Found, Sum, Swarm};

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
    let Some(first) = sum.found.first() else {
        print(&counted(&swarm, &sum))?;
        return Ok(if stop.raised() { Outcome::Finding } else { Outcome::Fine });
    };
    if out.is_some() {
        print(&counted(&swarm, &sum))?;
        sum.found.iter().try_for_each(|found| print(&format!("{}\n", told(found))))?;
    }
    let mut text = first.shrink().text(swarm.seed);
    sum.found[1..].iter().for_each(|found| text.push_str(&format!("# {}\n", told(found))));
    match out {
        None => print(&format!("{text}# {}", counted(&swarm, &sum)))?,
        Some(out) => {
            let see = format!("see it with: instep sim {} --check", out.to.display());
            out.write(text.as_bytes(), &see)?;
        }
    }
    Ok(Outcome::Finding)
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
    use super::{Found, Swarm, told};
    use instep_kernel::settings::{Cosched, DEFAULT_PERIOD, Latency, PERIODS, Settings};
    use instep_sim::check::Finding;
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
    }
}
