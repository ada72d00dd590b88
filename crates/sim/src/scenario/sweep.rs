//! A grid over values of a scenario: a simulation for each combination of values.
//!
//! A value stands at a *place*: `scheduler`, `host.cores`, `guest.web.weight`, `guest.0.weight`. Entries of a list have
//! their name or their number, and `*` is all of them. A last word alone, `weight`, is that of the only guest.

use super::places::changed;
use super::{MAX_FILE, Overrides, Scenario, bounded};
use crate::error::Error;
use crate::report::SimulationReport;
use crate::report::{Progress, Stop};
use crate::scenario::build::SimulationPlan;
use rayon::prelude::*;
use std::path::Path;
use std::str::FromStr;
use toml::{Table, Value};

/// Combinations of values, at most.
pub const MOST_POINTS: usize = 10_000;

/// Words of a scenario itself; others that stand alone are a guest's.
const OWN: [&str; 5] = ["duration", "warmup", "scheduler", "placement", "placement_period"];

/// A place and the values that it takes in turn, `PLACE=VALUE,VALUE,...`. A comma in quotes, brackets or braces does not
/// divide. What is no value of TOML is text: `50ms`, `cfs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    place: String,
    values: Vec<Value>,
}

/// A combination of values, and the simulation with them.
#[derive(Clone, Debug)]
pub struct Point {
    /// The values, in the order of the axes.
    pub values: Vec<String>,
    /// The simulation.
    pub plan: SimulationPlan,
}

/// All combinations; the last axis changes first.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The places, as they were asked for.
    pub places: Vec<String>,
    /// The combinations.
    pub points: Vec<Point>,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let needed = || "PLACE=VALUE,VALUE,... is needed, such as weight=100,50".to_owned();
        let (place, values) = text.split_once('=').ok_or_else(needed)?;
        let place = place.trim();
        let values = divided(values);
        if place.split('.').any(str::is_empty) || values.iter().any(|value| value.is_empty()) {
            return Err(needed());
        }
        if place == "seed" {
            return Err("seeds are asked for by --seed and --seeds".to_owned());
        }
        let values = values.into_iter().map(value).collect();
        Ok(Self { place: place.to_owned(), values })
    }
}

/// The parts between commas that stand in no quotes, brackets or braces.
fn divided(text: &str) -> Vec<&str> {
    let (mut quote, mut depth, mut from, mut parts) = (None, 0_usize, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            (None, _) => {}
        }
    }
    parts.push(text[from..].trim());
    parts
}

/// A value of TOML, else text.
fn value(text: &str) -> Value {
    let read = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let one = read.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    one.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A value as a person wrote it.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Axis {
    /// The places in this scenario, entries of lists by number.
    fn places(&self, scenario: &Table) -> Result<Vec<String>, String> {
        let words: Vec<&str> = self.place.split('.').collect();
        let mut found = Vec::new();
        if let [word] = words[..]
            && !OWN.contains(&word)
        {
            let guests = scenario.get("guest").and_then(Value::as_array);
            let names: Vec<String> = guests.into_iter().flatten().map(name).collect();
            if names.len() != 1 {
                let each = names.iter().map(|name| format!("guest.{name}.{word}, "));
                return Err(format!(
                    "{word}: there are {} guests: {}or guest.*.{word} for all",
                    names.len(),
                    each.take(20).collect::<String>()
                ));
            }
            return Ok(vec![format!("guest.0.{word}")]);
        }
        expand(&Value::Table(scenario.clone()), &words, "", &mut found)
            .map_err(|what| format!("{}: {what}", self.place))?;
        Ok(found)
    }
}

/// The name of an entry of a list.
fn name(entry: &Value) -> String {
    entry.get("name").and_then(Value::as_str).unwrap_or("(no name)").to_owned()
}

/// Adds the places that these words mean from here on.
fn expand(at: &Value, words: &[&str], before: &str, found: &mut Vec<String>) -> Result<(), String> {
    let Some((word, rest)) = words.split_first() else {
        found.push(before.trim_start_matches('.').to_owned());
        return Ok(());
    };
    let Value::Array(list) = at else {
        return match at.get(word) {
            Some(next) => expand(next, rest, &format!("{before}.{word}"), found),
            // What the scenario does not say yet; whether it may is its reader's to tell.
            None => {
                found.push(
                    format!("{before}.{}", words.join(".")).trim_start_matches('.').to_owned(),
                );
                Ok(())
            }
        };
    };
    let number = word.parse::<usize>().ok();
    let is =
        |index: usize, entry: &Value| *word == "*" || number == Some(index) || name(entry) == *word;
    let before_all = found.len();
    for (index, entry) in list.iter().enumerate().filter(|(index, entry)| is(*index, entry)) {
        expand(entry, rest, &format!("{before}.{index}"), found)?;
    }
    if found.len() == before_all {
        let known: Vec<String> = list.iter().take(20).map(name).collect();
        return Err(format!("there is no `{word}`; there are {}", known.join(", ")));
    }
    Ok(())
}

impl Sweep {
    /// Makes all simulations; nothing is run.
    ///
    /// # Errors
    /// The scenario cannot be read or simulated; a place is not there or not clear; there are too many points; or the
    /// scenario with the values of a point cannot be simulated, which is named.
    pub fn load(path: &Path, overrides: &Overrides, axes: &[Axis]) -> Result<Self, Error> {
        let text = bounded(path, MAX_FILE)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::of(path, &text, overrides, axes)
    }

    /// The same of the text of this file.
    ///
    /// # Errors
    /// As of [`Self::load`].
    pub fn of(
        path: &Path,
        text: &str,
        overrides: &Overrides,
        axes: &[Axis],
    ) -> Result<Self, Error> {
        // As it stands first: what is wrong there has a line.
        Scenario::plan(path, text, overrides)?;
        let scenario: Table =
            toml::from_str(text).map_err(|error| Error::Asked(error.message().to_owned()))?;
        let count = axes.iter().try_fold(1_usize, |all, axis| all.checked_mul(axis.values.len()));
        let count = count.filter(|count| *count <= MOST_POINTS).ok_or_else(|| {
            Error::Asked(format!(
                "--sweep: more than {MOST_POINTS} combinations: name fewer values"
            ))
        })?;
        let asked = |what: String| Error::Asked(format!("--sweep {what}"));
        let mut places: Vec<Vec<String>> = Vec::new();
        for axis in axes {
            let own = axis.places(&scenario).map_err(asked)?;
            if let Some(twice) = places.iter().flatten().find(|place| own.contains(place)) {
                return Err(asked(format!("{}: {twice} is swept already", axis.place)));
            }
            let given = [&overrides.scheduler, &overrides.placement];
            let option = ["scheduler", "placement"].into_iter().zip(given);
            if let Some((word, _)) =
                option.clone().find(|(word, set)| axis.place == *word && set.is_some())
            {
                return Err(asked(format!("{word}: it is given by --{word}, too")));
            }
            places.push(own);
        }
        let grid = Grid { path, scenario: &scenario, overrides, axes, places: &places };
        let points = (0..count).map(|number| grid.point(number)).collect::<Result<_, _>>()?;
        Ok(Self { places: axes.iter().map(|axis| axis.place.clone()).collect(), points })
    }

    /// Simulates so many seeds of each point, all side by side; point by point what came of it. Once `stop` says so no run
    /// goes on, and points have only the reports of what was finished.
    pub fn reports(
        &self,
        seeds: u64,
        more: Progress<'_>,
        stop: Stop<'_>,
    ) -> Vec<Vec<SimulationReport>> {
        let one = |point: &Point| point.plan.reports(seeds, &mut (), more, stop);
        self.points.par_iter().with_max_len(1).map(one).collect()
    }
}

/// What makes a point.
struct Grid<'a> {
    path: &'a Path,
    scenario: &'a Table,
    overrides: &'a Overrides,
    axes: &'a [Axis],
    places: &'a [Vec<String>],
}

impl Grid<'_> {
    /// The combination with this number.
    fn point(&self, number: usize) -> Result<Point, Error> {
        let mut rest = number;
        let mut values: Vec<&Value> = Vec::new();
        for axis in self.axes.iter().rev() {
            values.push(&axis.values[rest % axis.values.len()]);
            rest /= axis.values.len();
        }
        values.reverse();
        let each = || self.axes.iter().zip(&values);
        let told = || {
            let one = |(axis, value): (&Axis, &&Value)| format!("{}={}", axis.place, shown(value));
            each().map(one).collect::<Vec<_>>().join(" ")
        };
        let wrong = |what: String| Error::Asked(format!("--sweep {}: {what}", told()));
        // A scheduler brings its own tuning, as with --scheduler.
        let mut overrides = self.overrides.clone();
        for (_, value) in each().filter(|(axis, _)| axis.place == "scheduler") {
            overrides.scheduler = Some(shown(value));
        }
        let changes = each().zip(self.places).filter(|((axis, _), _)| axis.place != "scheduler");
        let changes = changes.flat_map(|((_, value), places)| {
            places.iter().map(move |place| (place.as_str(), *value))
        });
        let scenario = changed(self.scenario, changes).map_err(wrong)?;
        let text = toml::to_string(&scenario).map_err(|error| wrong(error.to_string()))?;
        let plan = Scenario::plan(self.path, &text, &overrides).map_err(|error| match error {
            Error::Scenario { what, .. } | Error::Asked(what) => wrong(what),
            other => other,
        })?;
        Ok(Point { values: values.iter().map(|value| shown(value)).collect(), plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "scheduler = \"cfs\"\nduration = \"50ms\"\nwarmup = \"0s\"\n\
        host = { cores = 2, memory = \"4GiB\" }\n\
        guest = [{ name = \"a\", vcpus = 1, memory = \"1GiB\", load = \"spin\" },\n\
                 { name = \"b\", vcpus = 1, memory = \"1GiB\", load = \"spin\" }]\n";

    fn sweep(axes: &[&str]) -> Result<Sweep, String> {
        let axes: Vec<Axis> = axes.iter().map(|axis| axis.parse()).collect::<Result<_, _>>()?;
        Sweep::of(Path::new("it.toml"), TEXT, &Overrides::default(), &axes)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn commas_divide_but_in_quotes_brackets_and_braces() {
        let axis: Axis = "a.b = 1, 'x,y',[1,2],{ c = [1,2] }, 50ms".parse().unwrap();
        let shown: Vec<String> = axis.values.iter().map(shown).collect();
        assert_eq!(axis.place, "a.b");
        assert_eq!(shown, ["1", "x,y", "[1, 2]", "{ c = [1, 2] }", "50ms"]);
    }

    #[test]
    fn last_axis_changes_first_and_places_are_by_name_number_or_all() {
        let found =
            sweep(&["guest.b.weight=50,200", "guest.0.vcpus=1,2", "scheduler=eevdf,credit"])
                .unwrap();
        assert_eq!(found.places, ["guest.b.weight", "guest.0.vcpus", "scheduler"]);
        assert_eq!(found.points.len(), 8);
        let seen = |point: &Point| (point.values.join(" "), point.plan.scheduler.clone());
        assert_eq!(seen(&found.points[0]), ("50 1 eevdf".into(), "eevdf".into()));
        assert_eq!(seen(&found.points[1]), ("50 1 credit".into(), "credit".into()));
        assert_eq!(seen(&found.points[7]), ("200 2 credit".into(), "credit".into()));
        let of = |point: usize| {
            let vms = &found.points[point].plan.setup.vms;
            (vms[0].affinity.len(), vms[1].weight)
        };
        assert_eq!((of(0), of(7)), ((1, 50), (2, 200)));
        let all = sweep(&["guest.*.weight=50"]).unwrap();
        assert!(all.points[0].plan.setup.vms.iter().take(2).all(|vm| vm.weight == 50));
    }

    #[test]
    fn unclear_or_excessive_sweeps_are_refused_before_any_run() {
        for (axes, said) in [
            (
                vec!["weight=1"],
                "weight: there are 2 guests: guest.a.weight, guest.b.weight, or guest.*.weight",
            ),
            (vec!["guest.c.weight=1"], "there is no `c`; there are a, b"),
            (vec!["guest.a.wieght=1"], "--sweep guest.a.wieght=1: unknown field `wieght`"),
            (vec!["guest.a.weight=10,0"], "--sweep guest.a.weight=0: "),
            (vec!["scheduler=cfs,nosuch"], "--sweep scheduler=nosuch: "),
            (vec!["guest.a.weight=1", "guest.*.weight=2"], "guest.0.weight is swept already"),
            (vec!["seed=1,2"], "--seeds"),
            (vec!["weight"], "PLACE=VALUE"),
            (vec!["weight=1,,2"], "PLACE=VALUE"),
        ] {
            let found = sweep(&axes).unwrap_err();
            assert!(found.contains(said), "{axes:?}: {found}");
        }
        let many = (0..101).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let (a, b) = (format!("guest.a.weight={many}"), format!("guest.b.weight={many}"));
        assert!(sweep(&[&a, &b]).unwrap_err().contains("more than 10000 combinations"));
    }
}
