//! A scenario that the lab and the simulator both run: the simulator's words, and after them what is
//! measured and how far apart the two may be, with the reason. Runs nothing.
//!
//! scenarios/example/agreement.toml explains each word. In the lab a guest is a process in a cgroup of its own,
//! whose threads are the vCPUs. `default` is the kernel's scheduler there, `eevdf` in the simulator.

use anyhow::Context as _;
use instep_bench::case::{Case, GuestKind, Shape, Work};
use instep_bench::plan::{DEFAULT, Scheduler, SchedulerKind};
use instep_kernel::settings::MECHANISMS;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::scenario::{Guest, Load, Scenario, TuningText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../../../../scenarios/agreement/", $name, ".toml")))),*]
    };
}

/// The scenarios that come with Instep.
pub(super) const BUILT_IN: [(&str, &str); 13] = files![
    "shares",
    "stacking",
    "spin-100us",
    "spin-1ms",
    "block-100us",
    "block-1ms",
    "boost",
    "cosched",
    "shares-8",
    "spin-4",
    "spin-8",
    "gangs-8",
    "block-4",
];

/// Where the measures begin.
const MEASURES: &str = "\n[[measure]]";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AgreedQuantity {
    /// Throughput / (fair share x throughput alone), of the first guest.
    Speed,
    /// Part of the CPU time that all guests got.
    Share,
    /// Part of the time with siblings runnable on one CPU, of the first guest.
    Stacking,
    /// Mean part of the first guest's runnable vCPUs that run while one does.
    CoRun,
}

/// One measure and its tolerance.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measure {
    pub(super) what: AgreedQuantity,
    pub(super) guest: Option<String>,
    pub(super) under: String,
    /// How far medians may be apart.
    pub(super) within: f64,
    /// Why so far.
    pub(super) why: String,
    /// Known not to agree: why, as far as that is known. It is told, and is no finding.
    pub(super) differs: Option<String>,
    /// How far medians may be apart that are known not to agree.
    pub(super) at_most: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measures {
    measure: Vec<toml::Spanned<Measure>>,
}

/// A scenario, ready for both.
#[derive(Clone, Debug)]
pub(super) struct Both {
    /// For the lab.
    pub(super) case: Case,
    /// Whether by the lab's counted clock.
    pub(super) counted: bool,
    pub(super) settle: Duration,
    pub(super) duration: Duration,
    /// Names of the guests, the measured one first.
    pub(super) guests: Vec<String>,
    /// For the simulator, by scheduler.
    pub(super) plans: BTreeMap<String, SimulationPlan>,
    pub(super) measures: Vec<Measure>,
}

/// A file's scenario, named after it.
pub(super) fn read(path: &Path) -> anyhow::Result<Both> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&name, &text, &path.display().to_string())
}

/// The scenario of a text; `file` is for messages.
pub(super) fn parse(name: &str, text: &str, file: &str) -> anyhow::Result<Both> {
    let wrong = |at: usize, what: &str| {
        let line = text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("{file}: line {line}: {what}")
    };
    let cut = text.find(MEASURES).map_or(text.len(), |at| at + 1);
    let (head, tail) = text.split_at(cut);
    let fault = |fault: instep_sim::scenario::Fault| match fault.line(head) {
        0 => anyhow::anyhow!("{file}: {}", fault.what),
        line => anyhow::anyhow!("{file}: line {line}: {}", fault.what),
    };
    let scenario = Scenario::parse(head).map_err(fault)?;
    anyhow::ensure!(!tail.is_empty(), "{file}: there is no [[measure]] in it");
    let measures: Measures = toml::from_str(tail)
        .map_err(|error| wrong(cut + error.span().map_or(0, |span| span.start), error.message()))?;
    let mut plans = BTreeMap::new();
    for measure in &measures.measure {
        let (at, measure) = (cut + measure.span().start, measure.get_ref());
        check(measure, &scenario).map_err(|what| wrong(at, &what))?;
        if !plans.contains_key(&measure.under) {
            let under = under(&scenario, &measure.under).map_err(|what| wrong(at, &what))?;
            let no_files = |name: &str| Err(format!("{name}: the lab cannot have this topology"));
            plans.insert(
                measure.under.clone(),
                SimulationPlan::new(&under, &no_files).map_err(fault)?,
            );
        }
    }
    let case = case(name, &scenario).map_err(|(at, what)| wrong(at, &what))?;
    Ok(Both {
        case,
        counted: scenario.host.get_ref().clock.as_deref() == Some("counted"),
        settle: scenario.warmup,
        duration: *scenario.duration.get_ref(),
        guests: scenario.guest.iter().map(|guest| guest.get_ref().name.clone()).collect(),
        plans,
        measures: measures.measure.into_iter().map(toml::Spanned::into_inner).collect(),
    })
}

fn check(measure: &Measure, scenario: &Scenario) -> Result<(), String> {
    let first = scenario.guest.first().map(|guest| guest.get_ref().name.as_str());
    let wanted = measure.guest.as_deref().or(first);
    if !scenario.guest.iter().any(|guest| Some(guest.get_ref().name.as_str()) == wanted) {
        return Err(format!("guest {}: there is none of this name", wanted.unwrap_or("?")));
    }
    if measure.what != AgreedQuantity::Share && wanted != first {
        return Err("only shares are measured of other guests than the first".to_owned());
    }
    if !(measure.within > 0.0 && measure.within < 1.0) {
        return Err(format!("within {}: it must be above 0 and below 1", measure.within));
    }
    if measure.why.trim().is_empty() {
        return Err("why: a tolerance needs its reason".to_owned());
    }
    match (&measure.differs, measure.at_most) {
        (Some(_), None) => return Err("differs: at_most must say by how much".to_owned()),
        (None, Some(_)) => return Err("at_most: differs must say why".to_owned()),
        (Some(_), Some(most)) if !(most > measure.within && most.is_finite()) => {
            return Err(format!("at_most {most}: it is more than within"));
        }
        _ => {}
    }
    Ok(())
}

/// The scenario under the simulator's scheduler for one of the lab's.
fn under(scenario: &Scenario, name: &str) -> Result<Scenario, String> {
    let mut scenario = scenario.clone();
    let (simulated, off) = match Scheduler::of(name, &MECHANISMS).map_err(|e| e.to_string())?.kind {
        SchedulerKind::Default => return Ok(scenario),
        SchedulerKind::Instep { without } => ("instep", without),
        SchedulerKind::Peer => {
            return Err(format!(
                "under {name}: possible are {DEFAULT}, instep, instep-without-MECHANISM"
            ));
        }
    };
    let off = off.into_iter().map(|mechanism| {
        (format!("without.{mechanism}"), toml::Spanned::new(0..0, TuningText::Switch(true)))
    });
    scenario.tuning = off.collect();
    scenario.scheduler = toml::Spanned::new(scenario.scheduler.span(), simulated.to_owned());
    Ok(scenario)
}

/// The lab's words for it; what it has none for is refused, with its place.
fn case(name: &str, scenario: &Scenario) -> Result<Case, (usize, String)> {
    let host = scenario.host.get_ref();
    let at = scenario.host.span().start;
    let plain = host.nodes.unwrap_or(1) == 1 && host.sockets.unwrap_or(1) == 1;
    if scenario.scheduler.get_ref() != "eevdf" {
        let what = "scheduler: eevdf stands for the lab's default".to_owned();
        return Err((scenario.scheduler.span().start, what));
    }
    if host.clock.as_deref().is_some_and(|clock| clock != "counted" && clock != "real") {
        return Err((at, "host: clock: possible are real and counted".to_owned()));
    }
    let Some(cores) = host.cores.filter(|_| plain && host.topology.is_none()) else {
        return Err((
            at,
            "host: cores of one node, and their threads, are what lab and simulator share".into(),
        ));
    };
    let works = scenario.guest.iter().map(|guest| {
        let work = work(guest.get_ref());
        work.map_err(|what| (guest.span().start, format!("guest: {what}")))
    });
    let mut works = works.collect::<Result<Vec<Work>, _>>()?.into_iter();
    let work = works.next().ok_or((at, "there is no [[guest]]".to_owned()))?;
    let case = Case {
        name: name.to_owned(),
        about: scenario.about.clone(),
        host: Shape { cores, threads: host.threads.unwrap_or(1) },
        quick: false,
        ablate: true,
        weights: false,
        work,
        beside: works.collect(),
        slices: std::collections::BTreeMap::new(),
    };
    case.check().map(|()| case).map_err(|what| (at, what))
}

fn work(guest: &Guest) -> Result<Work, String> {
    let load = match guest.load.as_ref().map(toml::Spanned::get_ref) {
        Some(Load::One(load)) if load.starts_with("instep-load ") => load.clone(),
        _ => return Err("load: one command line of instep-load is needed".to_owned()),
    };
    let only_simulated = guest.allowed.is_some()
        || guest.prefer_nodes.is_some()
        || guest.home_node.is_some()
        || guest.parts.is_some()
        || guest.profile.is_some()
        || !guest.stage.is_empty()
        || guest.start.pinned
        || guest.count.is_some();
    if only_simulated {
        let known = "name, vcpus, memory, weight and load are what lab and simulator share";
        return Err(known.to_owned());
    }
    Ok(Work {
        load,
        vcpus: *guest.vcpus.get_ref(),
        weight: *guest.weight.get_ref(),
        quota: None,
        slice: None,
        count: 1,
        kind: GuestKind::Process,
        demand: 1.0,
        per: None,
        programs: Vec::new(),
        settings: std::collections::BTreeMap::new(),
        realtime: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_sim::sched::TunedValue;

    const TEXT: &str = "about = 'x'\nscheduler = 'eevdf'\nduration = '1s'\n[host]\ncores = 2\n\
        memory = '1GiB'\n[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '64MiB'\n\
        load = 'instep-load compute'\n[[guest]]\nname = 'b'\nvcpus = 2\nmemory = '64MiB'\n\
        weight = 200\nload = 'instep-load compute'\n[[measure]]\nwhat = 'share'\nguest = 'b'\n\
        under = 'instep-without-gang'\nwithin = 0.1\nwhy = 'x'\n";

    fn read(text: &str) -> Result<Both, String> {
        parse("x", text, "x.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn one_text_gives_a_case_of_the_lab_and_a_simulation() {
        let both = read(TEXT).unwrap();
        assert!((both.case.share(2) - 1.0 / 3.0).abs() < 1e-5);
        assert_eq!(both.guests, ["a", "b"]);
        let plan = &both.plans["instep-without-gang"];
        assert_eq!(plan.scheduler, "instep");
        assert_eq!(plan.tuning["without.gang"], TunedValue::Switch(true));
    }

    #[test]
    fn example_has_only_words_of_such_a_scenario() {
        let both =
            read(include_str!("../../../../../../../scenarios/example/agreement.toml")).unwrap();
        assert_eq!((both.guests.len(), both.measures[0].at_most), (2, Some(0.3)));
    }

    #[test]
    fn every_file_of_the_directory_is_built_in_and_is_one() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/agreement");
        let mut there: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        there.sort();
        let mut known = BUILT_IN.map(|(name, _)| name.to_owned());
        known.sort();
        assert_eq!(there, known);
        for (name, text) in BUILT_IN {
            let both = parse(name, text, name).unwrap();
            // One set of parameters for all: nothing is tuned for a scenario.
            let (first, text) = (BUILT_IN[0].1, text);
            let line = |text: &str, word: &str| {
                text.lines().find(|line| line.starts_with(word)).map(str::to_owned)
            };
            for word in ["tuning", "machine", "seed"] {
                assert_eq!(line(text, word), line(first, word), "{name}: {word}");
            }
            assert!(both.measures.iter().all(|measure| measure.why.len() > 10), "{name}");
        }
    }

    #[test]
    fn what_only_one_of_them_knows_is_refused_with_its_line() {
        for (from, to, said) in [
            ("cores = 2", "cores = 2\nnodes = 2\nsockets = 2", "line 4: host: cores of one node"),
            ("'eevdf'", "'credit'", "line 2: scheduler: eevdf stands"),
            ("cores = 2", "cores = 2\nclock = 'sun'", "line 4: host: clock: possible are real"),
            ("weight = 200", "allowed = '0'", "line 12: guest: name, vcpus"),
            ("load = 'instep-load compute'", "load = 'spin'", "load: one command line"),
            ("'instep-without-gang'", "'scx_cosmos'", "line 18: under scx_cosmos: possible are"),
            ("guest = 'b'", "guest = 'c'", "line 18: guest c: there is none"),
            ("what = 'share'", "what = 'speed'", "line 18: only shares"),
            ("within = 0.1", "within = 0.0", "line 18: within 0: it must be"),
            ("why = 'x'", "why = ''", "line 18: why: a tolerance needs"),
            ("why = 'x'", "why = 'x'\ncolour = 1", "line 24: unknown field"),
            ("why = 'x'", "why = 'x'\ndiffers = 'y'", "line 18: differs: at_most must say"),
            ("why = 'x'", "why = 'x'\nat_most = 0.2", "line 18: at_most: differs must say"),
            ("why = 'x'", "why = 'x'\ndiffers = 'y'\nat_most = 0.1", "line 18: at_most 0.1: it is"),
            ("vcpus = 2", "vcpus = 0", "line 9"),
        ] {
            let error = read(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with("x.toml: ") && error.contains(said), "{said}: {error}");
        }
        let head = TEXT.split("[[measure]]").next().unwrap();
        assert!(read(head).unwrap_err().contains("no [[measure]]"));
    }
}
