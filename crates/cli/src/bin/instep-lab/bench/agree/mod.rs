//! `instep agree`: has the lab and the simulator run the same scenarios, and sets what came of them
//! side by side. How the lab runs them, `bench` knows; what a run means, the simulator does.

mod file;
mod rows;

use super::{BenchOrder, FinishedCells, emulated, other_work};
use crate::args::AgreeArgs;
use crate::lab::Progress;
use crate::scenario_file::suggestion;
use crate::{Outcome, Stamped, print, print_json, tell};
use anyhow::Context as _;
use file::{BUILT_IN, Both};
use instep_bench::cell::BenchCell;
use instep_bench::plan::{Scheduler, Times};
use instep_kernel::settings::MECHANISMS;
use instep_lab::Stop;
use instep_lab::host::machine::Clock;
use instep_sim::report::SimulationReport;
use instep_sim::sched::instep::SOURCES;
pub(crate) use rows::Agreement;
use rows::{Compared, SCHEMA};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most that is read of an earlier result.
const MAX_EARLIER: u64 = 64 << 20;

/// What scenarios have in common that run together: clock (whether counted), times, schedulers.
type Key<'a> = (bool, Duration, Duration, Vec<&'a String>);

/// What the lab gave.
#[derive(Debug, Default)]
struct Measured {
    cells: Vec<BenchCell>,
    kernel: String,
    machine: String,
    /// Hashes of its bpf/.
    bpf: Option<String>,
    boots: u32,
    warnings: Vec<String>,
}

impl From<FinishedCells> for Measured {
    fn from(finished: FinishedCells) -> Self {
        let FinishedCells { kept, warnings, .. } = finished;
        let boot = kept.boots.last().cloned().unwrap_or_default();
        Self {
            cells: kept.cells,
            kernel: boot.kernel,
            machine: boot.machine,
            bpf: Some(SOURCES.to_owned()),
            boots: kept.boots.len() as u32,
            warnings: [kept.warnings, warnings].concat(),
        }
    }
}

/// What an earlier run gave, without what was compared then.
#[derive(Debug, Deserialize)]
struct Earlier {
    schema: String,
    kernel: String,
    machine: String,
    #[serde(default)]
    bpf: Option<String>,
    boots: u32,
    cells: Vec<BenchCell>,
    #[serde(default)]
    warnings: Vec<String>,
}

pub(crate) fn command(args: &AgreeArgs) -> anyhow::Result<Outcome> {
    let mut all = scenarios(&args.files)?;
    let stop = Stop::on_signals()?;
    let progress = Progress::start();
    let mut finished = if args.from.is_empty() {
        measured(&all, args, &stop, &progress)?
    } else {
        earlier(&args.from)?
    };
    if !args.from.is_empty() && args.files.is_empty() {
        all.retain(|both| finished.cells.iter().any(|cell| cell.case == both.case.name));
        anyhow::ensure!(!all.is_empty(), "there is no cell of a built-in scenario in it");
    }
    let mut compared = Vec::new();
    for both in &all {
        progress.say(&format!("simulating {}", both.case.name));
        let simulated = simulated(both, args.seeds, &stop);
        compared.push(Compared::new(both, &all, &finished.cells, &simulated));
        if stop.raised() {
            break;
        }
    }
    drop(progress);
    finished.warnings.extend(older(finished.bpf.as_deref()));
    let report = Agreement {
        schema: SCHEMA,
        kernel: finished.kernel,
        machine: finished.machine,
        bpf: finished.bpf,
        boots: finished.boots,
        seeds: args.seeds,
        scenarios: compared,
        warnings: finished.warnings,
        cells: finished.cells,
    };
    if args.json {
        print_json(&Stamped::new(&report, None))?
    } else {
        print(&rows::table(&report))?
    }
    if stop.raised() {
        tell("interrupted: the figures are of what was finished");
        return Ok(Outcome::Finding);
    }
    Ok(if report.holds() { Outcome::Fine } else { Outcome::Finding })
}

/// The scenarios of these files or names; all built-in ones without any.
fn scenarios(files: &[PathBuf]) -> anyhow::Result<Vec<Both>> {
    let built_in = |name: &str| BUILT_IN.into_iter().find(|(known, _)| *known == name);
    let one = |path: &PathBuf| match path.to_str().and_then(built_in) {
        Some((name, text)) => file::parse(name, text, name),
        None if path.exists() => file::read(path),
        None => {
            let hint = suggestion(path, &BUILT_IN.map(|(name, _)| name));
            anyhow::bail!("there is no file {}; {hint}", path.display())
        }
    };
    if files.is_empty() {
        return BUILT_IN.into_iter().map(|(name, text)| file::parse(name, text, name)).collect();
    }
    let all: Vec<Both> = files.iter().map(one).collect::<anyhow::Result<_>>()?;
    let names: BTreeSet<&str> = all.iter().map(|both| both.case.name.as_str()).collect();
    anyhow::ensure!(names.len() == all.len(), "two scenarios have one name; rename a file");
    Ok(all)
}

/// Has the lab run them, those of the same times under the same schedulers together.
fn measured(
    all: &[Both],
    args: &AgreeArgs,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    let mut together: BTreeMap<Key<'_>, Vec<&Both>> = BTreeMap::new();
    for both in all {
        let key = (both.counted, both.settle, both.duration, both.plans.keys().collect());
        together.entry(key).or_default().push(both);
    }
    let mut sum = Measured::default();
    sum.warnings.extend(other_work().inspect(|line| tell(line)));
    for ((counted, settle, duration, under), group) in together {
        let schedulers =
            under.iter().map(|name| Scheduler::of(name, &MECHANISMS)).collect::<Result<_, _>>()?;
        let mut wanted = BenchOrder {
            cases: group.iter().map(|both| both.case.clone()).collect(),
            schedulers,
            peers: BTreeMap::new(),
            absent: BTreeMap::new(),
            runs: args.runs,
            times: Times { settle, measure: duration, trace: duration / 2 },
            recorded: true,
            clock: if counted { Clock::Counted } else { Clock::Real },
            warnings: Vec::new(),
        };
        let finished = emulated::run(&mut wanted, &args.host, None, stop, progress)?;
        add(&mut sum, finished.into());
        sum.warnings.extend(wanted.warnings);
    }
    let failed = |cell: &BenchCell| Some(format!("{}: {}", cell.case, cell.failed.as_ref()?));
    let failed: BTreeSet<String> = sum.cells.iter().filter_map(failed).collect();
    sum.warnings.extend(failed);
    Ok(sum)
}

/// Puts results of further boots to earlier ones; boots are numbered on.
fn add(sum: &mut Measured, mut finished: Measured) {
    finished.cells.iter_mut().for_each(|cell| cell.boot += sum.boots);
    sum.cells.extend(finished.cells);
    sum.warnings.extend(finished.warnings);
    sum.boots += finished.boots;
    // Results of two that differ are of no one bpf/.
    let same = sum.kernel.is_empty() || sum.bpf == finished.bpf;
    sum.bpf = finished.bpf.filter(|_| same);
    sum.kernel = finished.kernel;
    if sum.machine.is_empty() {
        sum.machine = finished.machine;
    } else if !sum.machine.contains(&finished.machine) {
        sum.machine = format!("{}; {}", sum.machine, finished.machine);
    }
}

/// What earlier runs of the lab gave.
fn earlier(files: &[PathBuf]) -> anyhow::Result<Measured> {
    let read = |path: &Path| -> anyhow::Result<Earlier> {
        let cannot = || format!("cannot read {}", path.display());
        let size = std::fs::metadata(path).with_context(cannot)?.len();
        anyhow::ensure!(size <= MAX_EARLIER, "{} is too large for a result", path.display());
        let text = std::fs::read_to_string(path).with_context(cannot)?;
        let earlier: Earlier = serde_json::from_str(&text)
            .with_context(|| format!("{} is no output of agree --json", path.display()))?;
        let schema = &earlier.schema;
        anyhow::ensure!(
            schema == SCHEMA,
            "{}: its schema is {schema:?}, not {SCHEMA}",
            path.display()
        );
        Ok(earlier)
    };
    let mut sum = Measured::default();
    for path in files {
        let Earlier { kernel, machine, bpf, boots, cells, warnings, .. } = read(path)?;
        add(&mut sum, Measured { cells, kernel, machine, bpf, boots, warnings });
    }
    Ok(sum)
}

/// What to say where the lab's kernel scheduler was not the one that is simulated.
fn older(bpf: Option<&str>) -> Option<String> {
    let was = match bpf {
        Some(bpf) if bpf == SOURCES => return None,
        Some(bpf) => format!("bpf/ {bpf}"),
        None => "an unknown bpf/".to_owned(),
    };
    Some(format!(
        "the lab ran {was}, simulated is bpf/ {SOURCES}: have the lab run it anew (instep agree)"
    ))
}

/// Reports of all seeds, by scheduler.
fn simulated(both: &Both, seeds: u64, stop: &Stop) -> BTreeMap<String, Vec<SimulationReport>> {
    let reports = |plan: &instep_sim::scenario::build::SimulationPlan| {
        plan.reports(seeds, &mut (), &|_| (), &|| stop.raised())
    };
    both.plans.iter().map(|(name, plan)| (name.clone(), reports(plan))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_of_several_results_are_distinguished() {
        let finished = || Measured {
            cells: vec![BenchCell { boot: 1, ..BenchCell::default() }],
            boots: 1,
            ..Measured::default()
        };
        let mut sum = Measured::default();
        add(&mut sum, finished());
        add(&mut sum, finished());
        assert_eq!(sum.cells.iter().map(|cell| cell.boot).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn results_of_another_bpf_are_reported_and_not_mixed() {
        let finished = |bpf: &str| Measured {
            bpf: Some(bpf.to_owned()),
            kernel: "7.2.13".to_owned(),
            ..Measured::default()
        };
        let sum = |all: &[&str]| {
            let mut sum = Measured::default();
            all.iter().for_each(|bpf| add(&mut sum, finished(bpf)));
            sum.bpf
        };
        assert_eq!(older(sum(&[SOURCES, SOURCES]).as_deref()), None);
        assert_eq!(sum(&["1", "1"]).as_deref(), Some("1"));
        assert_eq!(sum(&["1", SOURCES]), None);
        assert_eq!(sum(&["1", SOURCES, SOURCES]), None);
        assert!(older(Some("1")).unwrap().contains("the lab ran bpf/ 1, simulated is bpf/ "));
        assert!(older(None).unwrap().contains("an unknown bpf/"));
    }

    #[test]
    fn a_name_that_is_none_is_answered_with_those_there_are() {
        let error = scenarios(&["luck".into()]).unwrap_err().to_string();
        assert!(error.contains("no file luck; built in are shares"), "{error}");
        assert_eq!(scenarios(&["shares".into()]).unwrap()[0].case.name, "shares");
        assert!(scenarios(&["shares".into(), "shares".into()]).is_err());
    }
}
