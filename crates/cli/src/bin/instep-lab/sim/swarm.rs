//! `instep sim --swarm`: random scenarios with all checkers, what is printed of findings, and the small
//! scenario that shows the first.

use crate::args::SimArgs;
use crate::pending::Pending;
use crate::{Outcome, Stamped, print, tell};
use indicatif::{ProgressBar, ProgressStyle};
use instep_check::ScheduleFinding;
use instep_lab::Stop;
use instep_sim::swarm::{BrokenScenario, Sum, Swarm};
use schemars::JsonSchema;
use serde::Serialize;

/// Where text goes.
type Print<'a> = &'a mut dyn FnMut(&str) -> anyhow::Result<()>;

/// Runs a swarm and tells what it found.
pub(super) fn command(args: &SimArgs, runs: u64) -> anyhow::Result<Outcome> {
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
    let how = SwarmOutput { json: args.json, out };
    let outcome = say(&swarm, &sum, &BrokenScenario::shrink, how, &mut |text| print(text))?;
    Ok(if stop.raised() { Outcome::Finding } else { outcome })
}

fn bar(runs: u64) -> ProgressBar {
    ProgressBar::new(runs).with_style(
        ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// How a result is wished for.
struct SwarmOutput {
    /// As JSON.
    json: bool,
    /// Where the small scenario goes, if not to be printed.
    out: Option<Pending>,
}

/// Prints the findings. The scenario of the first one, made smaller by `shrink`, is written to `out` if that is
/// given. Everything else is printed first, as shrinking takes time.
fn say(
    swarm: &Swarm,
    sum: &Sum,
    shrink: &dyn Fn(&BrokenScenario) -> BrokenScenario,
    how: SwarmOutput,
    print: Print<'_>,
) -> anyhow::Result<Outcome> {
    let counts_first = how.out.is_some() || sum.found.is_empty();
    if counts_first && !how.json {
        print(&counted(swarm, sum))?;
        sum.found.iter().try_for_each(|found| print(&format!("{}\n", describe(found))))?;
    }
    let small = smallest(swarm, sum, shrink);
    match &small {
        small if how.json => {
            let json = swarm_json(swarm, sum, small.as_deref());
            let json = serde_json::to_string_pretty(&Stamped::new(&json, None))?;
            print(&format!("{json}\n"))?;
        }
        Some(small) if !counts_first => print(&format!("{small}# {}", counted(swarm, sum)))?,
        _ => {}
    }
    if let Some((small, out)) = small.as_ref().zip(how.out) {
        let see = format!("see it with: instep sim {} --check", out.to.display());
        out.write(small.as_bytes(), &see)?;
    }
    Ok(if small.is_some() { Outcome::Finding } else { Outcome::Fine })
}

/// The first finding as a small scenario, the others as comments behind it.
fn smallest(
    swarm: &Swarm,
    sum: &Sum,
    shrink: &dyn Fn(&BrokenScenario) -> BrokenScenario,
) -> Option<String> {
    let (first, others) = sum.found.split_first()?;
    let mut text = shrink(first).text(swarm.seed);
    others.iter().for_each(|found| text.push_str(&format!("# {}\n", describe(found))));
    Some(text)
}

/// What `--swarm --json` prints: schema instep.swarm/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Swarm")]
pub(crate) struct SwarmJson<'a> {
    #[schemars(extend("const" = "instep.swarm/1"))]
    schema: &'static str,
    seed: u64,
    runs: u64,
    events: u64,
    simulated_ns: u64,
    findings: Vec<SwarmFinding<'a>>,
    /// The first finding as a small scenario; null without one.
    scenario: Option<&'a str>,
}

#[derive(JsonSchema, Serialize)]
struct SwarmFinding<'a> {
    #[serde(flatten)]
    finding: &'a ScheduleFinding,
    run: u64,
    scheduler: &'a str,
}

fn swarm_json<'a>(swarm: &Swarm, sum: &'a Sum, scenario: Option<&'a str>) -> SwarmJson<'a> {
    let finding = |found: &'a BrokenScenario| SwarmFinding {
        finding: &found.finding,
        run: found.run,
        scheduler: &found.draft.scheduler,
    };
    SwarmJson {
        schema: "instep.swarm/1",
        seed: swarm.seed,
        runs: sum.runs,
        events: sum.events,
        simulated_ns: sum.simulated,
        findings: sum.found.iter().map(finding).collect(),
        scenario,
    }
}

/// A finding, and the run that showed it.
fn describe(found: &BrokenScenario) -> String {
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
    use super::*;
    use instep_check::ScheduleFinding;
    use instep_sim::scenario::Scenario;
    use std::fs;

    fn swarm() -> Swarm {
        Swarm { runs: 9, seed: 3, scheduler: Some("cfs".to_owned()) }
    }

    /// Findings of these runs, made up.
    fn sum(runs: &[u64]) -> Sum {
        let found = |run: &u64| {
            let finding =
                ScheduleFinding { rule: "wait", at: 5_000_000, what: format!("made in {run}") };
            BrokenScenario { run: *run, draft: swarm().draft(*run), finding }
        };
        Sum {
            runs: 9,
            events: 70,
            simulated: 4_000_000_000,
            found: runs.iter().map(found).collect(),
        }
    }

    /// Its status and what it printed. As if run 8's scenario were the small one.
    fn printed(sum: &Sum, json: bool, out: Option<Pending>) -> (Outcome, String) {
        let mut text = String::new();
        let small =
            |found: &BrokenScenario| BrokenScenario { draft: swarm().draft(8), ..found.clone() };
        let mut keep = |more: &str| {
            text.push_str(more);
            Ok(())
        };
        let outcome = say(&swarm(), sum, &small, SwarmOutput { json, out }, &mut keep).unwrap();
        (outcome, text)
    }

    const COUNTED: &str = "seed 3: 9 runs, 70 events, 4 s simulated,";

    /// The small scenario, which can be read, with the first finding and the others.
    fn is_the_finding(text: &str) {
        let scenario = Scenario::parse(text).unwrap_or_else(|fault| panic!("{fault:?}: {text}"));
        let about = scenario.about.clone();
        assert!(about.contains("seed 3, run 2: ") && about.contains("made in 2"), "{about}");
        assert!(text.starts_with(&swarm().draft(8).text(&about)), "{text}");
        assert!(text.contains("\n# run 5, cfs: ") && text.contains("made in 5"), "{text}");
    }

    #[test]
    fn findings_are_printed_as_a_scenario_with_others_as_comments() {
        let (outcome, text) = printed(&sum(&[2, 5]), false, None);
        assert_eq!(outcome, Outcome::Finding);
        is_the_finding(&text);
        assert!(text.ends_with(&format!("\n# {COUNTED} 2 findings\n")), "{text}");
    }

    #[test]
    fn with_out_findings_are_listed_and_the_scenario_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("small.toml");
        let (outcome, text) = printed(&sum(&[2, 5]), false, Some(Pending::new(&to).unwrap()));
        assert_eq!(outcome, Outcome::Finding);
        is_the_finding(&fs::read_to_string(&to).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, format!("{COUNTED} 2 findings").as_str()));
        for (line, run) in lines[1..].iter().zip([2, 5]) {
            assert!(line.starts_with(&format!("run {run}, cfs: ")), "{line}");
            assert!(line.contains("wait") && line.contains(&format!("made in {run}")), "{line}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn findings_are_reported_in_json_with_the_scenario() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("small.toml");
        for out in [None, Some(Pending::new(&to).unwrap())] {
            let (outcome, text) = printed(&sum(&[2, 5]), true, out);
            assert_eq!(outcome, Outcome::Finding);
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&json["schema"], &json["runs"]), (&"instep.swarm/1".into(), &9.into()));
            assert_eq!(json["simulated_ns"], 4_000_000_000u64);
            is_the_finding(json["scenario"].as_str().unwrap());
            let other = &json["findings"][1];
            assert_eq!((&other["run"], &other["at_ns"]), (&5.into(), &5_000_000.into()));
            assert_eq!((&other["scheduler"], &other["rule"]), (&"cfs".into(), &"wait".into()));
        }
        is_the_finding(&fs::read_to_string(&to).unwrap());
    }

    #[test]
    fn without_a_finding_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = Pending::new(&dir.path().join("small.toml")).unwrap();
        let (outcome, text) = printed(&sum(&[]), false, Some(out));
        assert_eq!((outcome, text), (Outcome::Fine, format!("{COUNTED} 0 findings\n")));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
