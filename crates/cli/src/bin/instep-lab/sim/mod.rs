//! `instep sim`: simulates a scenario and prints what came of it, or checks it, or many random ones.
//! Knows no model.

mod files;
mod parquet;
mod rows;
mod swarm;
mod sweep;
mod sweep_page;

use crate::args::SimArgs;
use crate::scenario_file::{Reader, built_in, hinted_name};
use crate::{Outcome, Stamped, print, print_json, tell};
use files::Files;
use indicatif::{ProgressBar, ProgressStyle};
use instep_check::ScheduleFinding;
use instep_core::policy::PolicyName;
use instep_lab::Stop;
use instep_sim::check::Checked;
use instep_sim::report;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::scenario::{Overrides, Scenario};
use instep_sim::sched::{self, Tuning};
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;
pub(crate) use swarm::SwarmJson;
pub(crate) use sweep::SweepJson;

/// Refuses names of schedulers and placements that are not known.
fn check_names(args: &SimArgs) -> anyhow::Result<()> {
    if let Some(name) = args.scheduler.as_deref().filter(|name| *name != "all") {
        let made = sched::make(name, &Tuning::new());
        made.map_err(|error| hinted_name(error, name, sched::NAMES))?;
    }
    if let Some(name) = &args.placement {
        let known = PolicyName::ALL.map(PolicyName::as_str);
        name.parse::<PolicyName>().map_err(|error| hinted_name(error, name, known))?;
    }
    Ok(())
}

/// Reads, simulates, prints.
pub(crate) fn command(args: &SimArgs) -> anyhow::Result<Outcome> {
    check_names(args)?;
    let Some(file) = &args.file else {
        return match args.swarm {
            Some(runs) => swarm::command(args, runs),
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
    if !args.sweep.is_empty() {
        return sweep::command(args, file, &overrides);
    }
    let plan = plan(file, &overrides)?;
    if let Some(words) = untuned(&plan) {
        tell(&words);
    }
    if args.check {
        return check(&plan, args.json.then_some(&*name(file)));
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
    let bar = bar(plan.work(seeds));
    let reports = plan.reports(seeds, &mut files, &|more| bar.inc(more), &|| stop.raised());
    bar.finish_and_clear();
    if reports.is_empty() {
        tell("interrupted: no run was finished; a shorter duration takes less time");
        return Ok(Outcome::Finding);
    }
    files.keep(&reports)?;
    let name = name(file);
    let stamped = |report| Stamped::new(report, Some(&name));
    match reports.as_slice() {
        // A list is asked for by --seeds, however many there come to be.
        several if args.json && args.seeds.is_some() => {
            print_json(&several.iter().map(stamped).collect::<Vec<_>>())?;
        }
        [one] if args.json => print_json(&stamped(one))?,
        [one] => print(&one.table())?,
        several => print(&report::summary(several))?,
    }
    Ok(ended(&stop))
}

/// The simulation of a file, or of a built-in scenario.
fn plan(file: &Path, overrides: &Overrides) -> Result<SimulationPlan, instep_sim::Error> {
    match built_in(file, Reader::Sim) {
        Some(text) => Scenario::plan(file, text, overrides),
        None => Scenario::load(file, overrides),
    }
}

/// A scenario's name.
fn name(file: &Path) -> Cow<'_, str> {
    file.file_stem().unwrap_or_default().to_string_lossy()
}

/// Which numbers of the scenario are not used, if there are any.
fn untuned(plan: &SimulationPlan) -> Option<String> {
    let words = plan.untuned.join(", ");
    (!plan.untuned.is_empty()).then(|| {
        format!(
            "the scenario's tuning ({words}) is of another scheduler and not used: {} runs as published",
            plan.scheduler
        )
    })
}

/// How far so many nanoseconds of simulated time are.
fn bar(work: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {percent} % simulated, {eta} left");
    ProgressBar::new(work).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// How it ended, when all that was finished has been told.
fn ended(stop: &Stop) -> Outcome {
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
        return Outcome::Finding;
    }
    Outcome::Fine
}

/// Whether a scenario's schedule keeps all rules. `in_json`: with this name of the scenario.
fn check(plan: &SimulationPlan, in_json: Option<&str>) -> anyhow::Result<Outcome> {
    let checked = plan.check(u64::MAX);
    let (text, outcome) = judged(&checked);
    match in_json {
        Some(_) => print_json(&Stamped::new(&checked_json(plan, &checked), in_json))?,
        None => print(&text)?,
    }
    Ok(outcome)
}

/// What is printed of a checked run.
fn judged(checked: &Checked) -> (String, Outcome) {
    match &checked.finding {
        None => (format!("{} events, no finding\n", checked.events), Outcome::Fine),
        Some(finding) => (format!("{finding}\n"), Outcome::Finding),
    }
}

/// The same as JSON: schema instep.sim.check/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "CheckedSimulation")]
pub(crate) struct CheckedJson<'a> {
    #[schemars(extend("const" = "instep.sim.check/1"))]
    schema: &'static str,
    seed: u64,
    scheduler: &'a str,
    events: u64,
    simulated_ns: u64,
    /// The rule that was broken first; null when all held.
    finding: Option<&'a ScheduleFinding>,
}

fn checked_json<'a>(plan: &'a SimulationPlan, checked: &'a Checked) -> CheckedJson<'a> {
    CheckedJson {
        schema: "instep.sim.check/1",
        seed: plan.setup.seed,
        scheduler: &plan.scheduler,
        events: checked.events,
        simulated_ns: checked.until,
        finding: checked.finding.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Checked, Scenario, SimulationPlan, checked_json, judged};
    use crate::Outcome;
    use instep_check::ScheduleFinding;
    use instep_kernel::settings::{
        Cosched, DEFAULT_PERIOD, HOST_WEIGHT, Latency, PERIODS, SchedulerSettings,
    };
    use instep_sim::scenario::settings;
    use instep_sim::sched::instep::InstepTuning;

    #[test]
    fn simulated_scheduler_gets_the_settings_of_the_real_one() {
        let (own, real) = (InstepTuning::default().settings, SchedulerSettings::default());
        let simulated = [own.slice, own.slot, own.wake_slack, own.lag];
        let real_times = [real.slice, real.slot, real.wake_slack, real.lag];
        assert_eq!(simulated.map(u128::from), real_times.map(|time| time.as_nanos()));
        assert_eq!(u128::from(own.period), DEFAULT_PERIOD.as_nanos());
        assert_eq!(own.host_weight, real.host_weight.unwrap_or(HOST_WEIGHT));
    }

    #[test]
    fn settings_of_vm_mean_in_scenario_what_they_mean_to_the_agent() {
        for cosched in [Cosched::Auto, Cosched::Never, Cosched::Relaxed] {
            let told = settings::cosched(&cosched.to_string()).unwrap();
            assert_eq!(told as u32, cosched.raw(), "{cosched}");
        }
        assert_eq!(settings::PROMPT_US, Latency::Prompt.micros());
        let periods = PERIODS.map(|time| u64::try_from(time.as_nanos()).unwrap());
        assert_eq!(settings::PERIODS, periods);
    }

    #[test]
    fn a_check_prints_its_finding_and_fails() {
        let finding = ScheduleFinding { rule: "wait", at: 5_000_000, what: "made up".to_owned() };
        let broken = Checked { events: 7, until: 9, finding: Some(finding.clone()) };
        assert_eq!(judged(&broken), (format!("{finding}\n"), Outcome::Finding));
        assert!(judged(&broken).0.contains("made up"));
        let text = "scheduler = \"cfs\"\nduration = \"1s\"\nseed = 4\n[host]\nmemory = \"1GiB\"\ncores = 1\n\
                    [[guest]]\nname = \"a\"\nvcpus = 1\nmemory = \"1GiB\"\nload = \"spin\"\n";
        let plan =
            SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
        let json = serde_json::to_value(checked_json(&plan, &broken)).unwrap();
        assert_eq!((&json["seed"], &json["scheduler"]), (&4.into(), &"cfs".into()));
        assert_eq!(
            (&json["finding"]["rule"], &json["finding"]["at_ns"]),
            (&"wait".into(), &5_000_000.into())
        );
        let sound = Checked { finding: None, ..broken };
        assert_eq!(judged(&sound), ("7 events, no finding\n".to_owned(), Outcome::Fine));
    }
}
