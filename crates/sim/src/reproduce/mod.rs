//! `instep reproduce`: the experiments of systems.md as scenarios with their published figures, run
//! for several seeds and set beside what was published (schema `instep.reproduce/1`).
//!
//! Every experiment is a file of scenarios/published, built in. Runs are spread over the CPUs; which
//! ends first does not change a number. Nothing is fitted here: what was fitted, the files name.

pub mod file;
pub mod measure;
pub mod page;
pub mod table;

pub use file::Experiment;

use crate::engine::RunTotals;
use instep_report::stats;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! experiments {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../scenarios/published/", $name, ".toml")))),*]
    };
}

/// Name and text of every experiment.
pub const FILES: &[(&str, &str)] = experiments![
    "stacking",
    "competing-0-16",
    "competing-8-8",
    "competing-distributions",
    "competing-remedies",
    "opteron-speed",
    "sequential-section",
    "synthetic-periods",
    "sync-aware-weights",
    "sync-aware-sensitivity",
    "mixed-workloads",
    "types",
    "types-sensitivity",
    "eight-npb-vms",
    "best-node-sensitivity",
];

/// What came of experiments, schema `instep.reproduce/1`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Reproduced {
    /// `instep.reproduce/1`.
    #[schemars(extend("const" = "instep.reproduce/1"))]
    pub schema: &'static str,
    /// The experiments.
    pub experiments: Vec<ExperimentResult>,
}

/// What came of one experiment.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "Experiment")]
pub struct ExperimentResult {
    /// Its name.
    pub name: String,
    /// The section of systems.md.
    pub system: u8,
    /// What it shows.
    pub about: String,
    /// Where the figures stand.
    pub source: String,
    /// The unit of its rows.
    pub unit: String,
    /// What to know when reading it.
    pub note: Option<String>,
    /// Which parameters were chosen so that which figures come out; "Nothing" where none was.
    pub fitted: String,
    /// What it has of machines, programs and engine that was chosen after results of any experiment had
    /// been seen.
    pub chosen: Vec<String>,
    /// Seeds that were to be run.
    pub seeds: u64,
    /// Whether chance plays a part in it.
    #[serde(skip)]
    pub chance: bool,
    /// Its rows.
    pub rows: Vec<PublishedFigure>,
}

/// A row: published beside simulated.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct PublishedFigure {
    /// What it is.
    pub label: String,
    /// The published figure; null where there is none.
    pub published: Option<f64>,
    /// Whether that follows from what is published instead of being a figure there.
    pub implied: bool,
    /// Whether the published figure is the most that was seen, not the figure itself.
    pub bound: bool,
    /// What agreement with the published figure is worth; null where there is none.
    pub kind: Option<FigureKind>,
    /// The mean over seeds, or the spread between them; null when nothing was run.
    pub simulated: Option<f64>,
    /// Lower end of its 95 % confidence interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Seeds that were run.
    pub seeds: usize,
    /// Its unit.
    pub unit: String,
    /// Whether the two agree; null where there is nothing to compare.
    pub verdict: Option<FigureVerdict>,
    /// Why they differ, as far as known.
    pub why: Option<String>,
}

/// Whether simulated and published agree. One rule for all experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "Agreement")]
#[serde(rename_all = "lowercase")]
pub enum FigureVerdict {
    /// The published figure lies in the interval, or not further from the mean than a tenth of
    /// itself, or than 2 % of the largest published figure of that unit. Of a bound: the whole
    /// interval lies below it.
    Agrees,
    /// It lies in the interval, but that is wider than the figure itself: more seeds are needed. Of a
    /// bound: it lies in the interval.
    Unclear,
    /// Neither. Of a bound: the whole interval lies above it.
    Differs,
}

impl FigureVerdict {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Unclear => "unclear",
            Self::Differs => "differs",
        }
    }
}

/// What agreement with a published figure is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    /// A number of the model was chosen so that the figure comes out: worth nothing.
    Fitted,
    /// It follows from the rules' definition, whatever the host: a check of the program.
    Arithmetic,
    /// Neither: what the model is worth.
    #[default]
    Predicted,
}

impl FigureKind {
    /// All of them, those that count first.
    pub const ALL: [Self; 3] = [Self::Predicted, Self::Fitted, Self::Arithmetic];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Arithmetic => "arithmetic",
            Self::Predicted => "predicted",
        }
    }
}

impl Reproduced {
    fn of(experiments: Vec<ExperimentResult>) -> Self {
        Self { schema: "instep.reproduce/1", experiments }
    }

    /// Whether any row differs from what was published.
    pub fn differs(&self) -> bool {
        let mut rows = self.experiments.iter().flat_map(|experiment| &experiment.rows);
        rows.any(|row| row.verdict == Some(FigureVerdict::Differs))
    }
}

/// The experiments of this name; all when it is `all`.
///
/// # Errors
/// When there is none of this name.
pub fn find(name: &str) -> std::result::Result<Vec<Experiment>, crate::Error> {
    let wanted = FILES.iter().filter(|(known, _)| name == "all" || *known == name);
    let found: std::result::Result<Vec<_>, _> =
        wanted.map(|(name, text)| Experiment::parse(name, text)).collect();
    let found = found.map_err(crate::Error::Asked)?;
    if found.is_empty() {
        let known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        let what = format!("experiment {name}: known are all, {}", known.join(", "));
        return Err(crate::Error::Asked(what));
    }
    Ok(found)
}

/// The experiments and their published figures; nothing is run.
pub fn list(experiments: &[Experiment]) -> Reproduced {
    Reproduced::of(experiments.iter().map(|one| result(one, one.seeds, &[])).collect())
}

/// Runs experiments, one after the other, the runs of each side by side. `seeds` replaces their number
/// of seeds where chance plays a part; `progress` is called with how many of how many runs are done;
/// once `stop` says so no further run is begun, and the result holds what was finished: whole
/// experiments, at most one in part, and none of those after it.
pub fn run(
    experiments: &[Experiment],
    seeds: Option<u64>,
    progress: &(dyn Fn(usize, usize) + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Reproduced {
    let wanted = |experiment: &Experiment| match experiment.seeds {
        1 => 1,
        own => seeds.unwrap_or(own).max(1),
    };
    let runs = |experiment: &Experiment| wanted(experiment) as usize * experiment.plans.len();
    let (done, all) = (AtomicUsize::new(0), experiments.iter().map(runs).sum());
    let more = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    let results = experiments.iter().map(|experiment| {
        let seeds = wanted(experiment);
        result(experiment, seeds, &outcomes(experiment, seeds, &more, stop))
    });
    Reproduced::of(results.collect())
}

/// The runs of an experiment: seed by seed, each simulation; none of those that a stop left out.
fn outcomes(
    experiment: &Experiment,
    seeds: u64,
    more: &(dyn Fn() + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Vec<Option<RunTotals>> {
    let plans = 0..experiment.plans.len();
    let jobs: Vec<(u64, usize)> =
        (1..=seeds).flat_map(|seed| plans.clone().map(move |plan| (seed, plan))).collect();
    let one = |(seed, plan): &(u64, usize)| {
        if stop() {
            return None;
        }
        let mut plan = experiment.plans[*plan].clone();
        plan.setup.seed = *seed;
        let outcome = plan.run();
        more();
        Some(outcome)
    };
    jobs.par_iter().with_max_len(1).map(one).collect()
}

/// The result of an experiment of so many seeds from its runs.
fn result(experiment: &Experiment, seeds: u64, runs: &[Option<RunTotals>]) -> ExperimentResult {
    let plans = experiment.plans.len().max(1);
    let rows = experiment.rows.iter().map(|row| {
        let values: Vec<f64> = runs
            .chunks(plans)
            .filter_map(|seed| row.measure.of(&|plan| seed.get(plan)?.as_ref()))
            .collect();
        let found = match row.spread {
            true => stats::spread_percent(&values),
            false => stats::estimate(&values),
        };
        let unit = row.unit.clone().unwrap_or_else(|| experiment.unit.clone());
        PublishedFigure {
            label: row.label.clone(),
            published: row.published,
            implied: row.implied,
            bound: row.bound,
            kind: row.published.map(|_| row.kind),
            simulated: found.map(|found| found.mean),
            low: found.map(|found| found.low),
            high: found.map(|found| found.high),
            seeds: values.len(),
            verdict: row.published.zip(found).map(|(published, found)| {
                if row.bound {
                    return below(published, found);
                }
                let alike = |other: &&file::RowPlan| other.unit == row.unit;
                let figures = experiment.rows.iter().filter(alike).filter_map(|row| row.published);
                verdict(published, found, figures.fold(0.0, |most, one| f64::max(most, one.abs())))
            }),
            unit,
            why: row.why.clone(),
        }
    });
    ExperimentResult {
        name: experiment.name.clone(),
        system: experiment.system,
        about: experiment.about.clone(),
        source: experiment.source.clone(),
        unit: experiment.unit.clone(),
        note: experiment.note.clone(),
        fitted: experiment.fitted.clone(),
        chosen: experiment.chosen.clone(),
        chance: experiment.seeds > 1,
        seeds,
        rows: rows.collect(),
    }
}

/// See [`FigureVerdict`], of a bound.
fn below(bound: f64, found: stats::Estimate) -> FigureVerdict {
    if found.high <= bound {
        FigureVerdict::Agrees
    } else if found.low <= bound {
        FigureVerdict::Unclear
    } else {
        FigureVerdict::Differs
    }
}

/// See [`FigureVerdict`], of a figure.
fn verdict(published: f64, found: stats::Estimate, largest: f64) -> FigureVerdict {
    let allowed = f64::max(published.abs() * 0.1, largest * 0.02) + 1e-9;
    let within = found.low <= published && published <= found.high;
    let width = found.high - found.low;
    if within && width > f64::max(published.abs(), allowed) {
        FigureVerdict::Unclear
    } else if within || (found.mean - published).abs() <= allowed {
        FigureVerdict::Agrees
    } else {
        FigureVerdict::Differs
    }
}

#[cfg(test)]
mod tests;
