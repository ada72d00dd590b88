//! An experiment's file: a scenario, the published figures, and what each row of them changes in it.
//!
//! ```toml
//! about = "siblings in one run queue"
//! system = 3                      # the section of systems.md
//! source = "systems.md, 3: figures"
//! unit = "% of the time"
//! measure = "stacking"            # of the guests whose names begin with `vm`
//! vm = "a"
//! seeds = 20
//! fitted = "Nothing."              # which numbers to which figures
//! [scenario]                      # as for `instep sim`
//! scheduler = "cfs"
//! [[row]]
//! label = "1 VM"
//! published = 5.6                 # absent where no figure was published
//! set = { "guest.0.count" = 1 }   # places in the scenario and what stands there instead
//! ```
//! A row with `over` (places again, on top of its own) is how many per cent its measure is above that
//! of the changed scenario; with `per` it is the quotient of the two. With `spread = true` it is the
//! standard deviation between runs, per cent of their mean; with `bound = true` the published figure is
//! a bound; `vm` and `measure` may be a row's own; `kind = "fitted"` or `"arithmetic"` says that it is no prediction. Gives plans; runs nothing.

use super::FigureKind;
use super::measure::{Measure, Relation};
use crate::engine::Setup;
use crate::library;
use crate::scenario::Scenario;
use crate::scenario::build::SimulationPlan;
use crate::scenario::places;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Places in a scenario, such as `guest.0.load`, and what stands there.
type Changes = BTreeMap<String, Value>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    system: u8,
    source: String,
    unit: String,
    measure: String,
    vm: String,
    seeds: u64,
    note: Option<String>,
    fitted: String,
    scenario: Table,
    row: Vec<RowText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowText {
    label: String,
    published: Option<f64>,
    #[serde(default)]
    implied: bool,
    #[serde(default)]
    bound: bool,
    #[serde(default)]
    spread: bool,
    #[serde(default)]
    kind: FigureKind,
    measure: Option<String>,
    vm: Option<String>,
    unit: Option<String>,
    scale: Option<f64>,
    why: Option<String>,
    #[serde(default)]
    set: Changes,
    over: Option<Changes>,
    per: Option<Changes>,
}

/// An experiment, ready to be run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name: that of its file.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// The section of systems.md.
    pub system: u8,
    /// Where the figures stand.
    pub source: String,
    /// The unit of its rows.
    pub unit: String,
    /// What to know when reading it.
    pub note: Option<String>,
    /// Which parameters were chosen so that which figures come out; "Nothing" where none was.
    pub fitted: String,
    /// What its machines and programs have, and what the engine does, that was chosen after results of
    /// any experiment had been seen, with the reason.
    pub chosen: Vec<String>,
    /// Seeds to run; 1 when chance plays no part.
    pub seeds: u64,
    /// Its rows.
    pub rows: Vec<RowPlan>,
    /// The different simulations that its rows need.
    pub plans: Vec<SimulationPlan>,
}

/// A row of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// What it is.
    pub label: String,
    /// The published figure.
    pub published: Option<f64>,
    /// Whether that follows from what is published instead of being a figure there.
    pub implied: bool,
    /// Whether the published figure is the most that was seen, not the figure itself.
    pub bound: bool,
    /// Whether it is the spread between runs that is measured: their standard deviation, per cent of
    /// their mean.
    pub spread: bool,
    /// What agreement is worth.
    pub kind: FigureKind,
    /// Its unit, where not the experiment's.
    pub unit: Option<String>,
    /// Why simulated and published differ, as far as known.
    pub why: Option<String>,
    /// What is measured, and in which simulations.
    pub measure: Measure,
}

impl Experiment {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// What is wrong with it, and in which row.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("experiment {name}: {what}");
        let file: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if file.seeds == 0 || file.row.is_empty() {
            return Err(wrong("at least one seed and one row are needed".to_owned()));
        }
        let mut plans = Plans::default();
        let mut rows = Vec::new();
        for row in &file.row {
            let made = row_plan(&file, row, &mut plans);
            rows.push(made.map_err(|what| wrong(format!("row {}: {what}", row.label)))?);
        }
        Ok(Self {
            name: name.to_owned(),
            about: file.about,
            system: file.system,
            source: file.source,
            unit: file.unit,
            note: file.note,
            fitted: file.fitted,
            chosen: chosen(&plans.made).map_err(wrong)?,
            seeds: file.seeds,
            rows,
            plans: plans.made,
        })
    }
}

/// Different simulations: rows that need the same one share it.
#[derive(Debug, Default)]
struct Plans {
    known: BTreeMap<String, usize>,
    made: Vec<SimulationPlan>,
}

impl Plans {
    fn of(&mut self, scenario: &Table) -> Result<usize, String> {
        let text = toml::to_string(scenario).map_err(|error| error.to_string())?;
        if let Some(at) = self.known.get(&text) {
            return Ok(*at);
        }
        let no_files = |name: &str| Err(format!("{name}: an experiment describes its host itself"));
        let plan = Scenario::parse(&text)
            .and_then(|scenario| SimulationPlan::new(&scenario, &no_files))
            .map_err(|fault| fault.what)?;
        self.made.push(plan);
        self.known.insert(text, self.made.len() - 1);
        Ok(self.made.len() - 1)
    }
}

/// What was chosen after results had been seen and applies to every simulation.
const EVERYWHERE: &str = "vCPUs start spread over the host (engine): chosen after stacking and competing-0-16 \
                          had been seen";

/// What plans have that was chosen after results had been seen: by the sources that the library gives.
fn chosen(plans: &[SimulationPlan]) -> Result<Vec<String>, String> {
    let mut all = vec![EVERYWHERE.to_owned()];
    let mut add = |what: String| {
        if !all.contains(&what) {
            all.push(what);
        }
    };
    let known = library::applications();
    for Setup { params, vms, .. } in plans.iter().map(|plan| &plan.setup) {
        for (place, source) in library::chosen(&params.machine)? {
            // Of noise that is off no number plays a part.
            if params.noise.on || !place.starts_with("noise.") {
                add(format!("{place} of machine {}: {source}", params.machine));
            }
        }
        let programs = vms.iter().flat_map(|vm| &vm.workload.programs);
        for one in programs.filter_map(|program| known.get(program.profile)) {
            one.chosen.iter().for_each(|what| add(format!("{}, {what}", one.profile.name)));
        }
    }
    Ok(all)
}

fn row_plan(file: &File, row: &RowText, plans: &mut Plans) -> Result<RowPlan, String> {
    let scenario = changed(&file.scenario, &row.set)?;
    let plan = plans.of(&scenario)?;
    let relation = match (&row.over, &row.per) {
        (Some(_), Some(_)) => return Err("over or per, not both".to_owned()),
        (Some(over), None) => Relation::PercentOver(plans.of(&changed(&scenario, over)?)?),
        (None, Some(per)) => Relation::Per(plans.of(&changed(&scenario, per)?)?),
        (None, None) => Relation::Alone,
    };
    let what = row.measure.as_deref().unwrap_or(&file.measure);
    Ok(RowPlan {
        label: row.label.clone(),
        published: row.published,
        implied: row.implied,
        bound: row.bound,
        spread: row.spread,
        kind: row.kind,
        unit: row.unit.clone(),
        why: row.why.clone(),
        measure: Measure {
            what: what.parse()?,
            vm: row.vm.as_ref().unwrap_or(&file.vm).clone(),
            scale: row.scale.unwrap_or(1.0),
            plan,
            relation,
        },
    })
}

/// The scenario with these changes.
fn changed(scenario: &Table, changes: &Changes) -> Result<Table, String> {
    let changes = changes.iter().map(|(place, value)| (place.as_str(), value));
    places::changed(scenario, changes).map_err(|what| format!("set: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        about = "x"
        system = 3
        source = "systems.md, 3"
        unit = "%"
        measure = "stacking"
        vm = "a"
        seeds = 2
        fitted = "Nothing."
        [scenario]
        about = "x"
        scheduler = "cfs"
        duration = "1s"
        host = { cores = 2, memory = "4GiB" }
        guest = [{ name = "a", vcpus = 2, memory = "1GiB", load = "spin" }]
        [[row]]
        label = "one"
        [[row]]
        label = "two"
        set = { "guest.0.count" = 2 }
        over = { scheduler = "balance" }
        [[row]]
        label = "two under balance"
        set = { "guest.0.count" = 2, scheduler = "balance" }
    "#;

    #[test]
    fn rows_that_need_the_same_simulation_share_it() {
        let experiment = Experiment::parse("x", TEXT).unwrap();
        assert_eq!((experiment.rows.len(), experiment.plans.len()), (3, 3));
        assert_eq!(experiment.rows[1].measure.relation, Relation::PercentOver(2));
        assert_eq!(experiment.rows[2].measure.plan, 2);
    }

    #[test]
    fn what_was_chosen_after_results_is_named_where_it_applies() {
        let chosen = |from: &str, to: &str| {
            Experiment::parse("x", &TEXT.replace(from, to)).unwrap().chosen.join("\n")
        };
        let all = chosen("\"spin\"", "\"npb/ep\"");
        for words in ["start spread", "noise.on of machine generic: chosen", "npb/ep, fpu: chosen"]
        {
            assert!(all.contains(words), "{words}: {all}");
        }
        let ideal = chosen("cores = 2,", "cores = 2, machine = \"ideal\",");
        assert!(ideal.contains("start spread") && !ideal.contains("noise"), "{ideal}");
        assert!(!chosen("cores = 2,", "cores = 2, noise = false,").contains("noise"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_row() {
        for (from, to, said) in [
            (
                "guest.0.count",
                "guest.7.count",
                "row two: set: guest.7.count: there is no such place",
            ),
            ("guest.0.count", "about.x", "there is no such place"),
            (
                "\"balance\" }\n        [[row",
                "\"best\" }\n        [[row",
                "row two: scheduler best",
            ),
            ("\"stacking\"", "\"luck\"", "measure luck: known are"),
            ("seeds = 2", "seeds = 0", "at least one seed"),
            ("unit", "units", "unknown field"),
            ("fitted = \"Nothing.\"", "", "missing field `fitted`"),
        ] {
            let error = Experiment::parse("x", &TEXT.replace(from, to)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
