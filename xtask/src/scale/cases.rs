//! Which cases there are: reads scenarios/scale/targets.toml and makes a scenario of each combination of a
//! template's values. What the words mean stands in that file. Knows no results.

use crate::scale::measure::Row;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// A scenario to simulate and what is asked of it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Its name, such as `grid-50/P8-V4-100us`.
    pub(crate) name: String,
    /// The scenario's text, as `instep sim` reads it.
    pub(crate) toml: String,
    /// CPUs of its host.
    pub(crate) cpus: i64,
    pub(crate) rows: Vec<Row>,
    /// Schedulers under which it is not simulated, as they would take minutes.
    pub(crate) leave_out: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    case: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    file: String,
    #[serde(default)]
    vary: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    row: Vec<Row>,
    #[serde(default)]
    leave_out: Vec<String>,
}

/// A value for each name.
type Values = BTreeMap<String, String>;

/// All cases of the directory scenarios/scale.
pub(crate) fn read_cases(dir: &Path) -> Result<Vec<Case>> {
    let targets: Targets = read_toml(&dir.join("targets.toml"))?;
    let mut cases: Vec<Case> = Vec::new();
    for entry in targets.case {
        let template: Table = read_toml(&dir.join(&entry.file))?;
        for values in list_combinations(&entry.vary) {
            let Some(scenario) = fill_table(&template, &values)
                .with_context(|| format!("{}: {values:?}", entry.file))?
            else {
                continue;
            };
            let name = put_values(&entry.name, &values);
            if cases.iter().any(|case| case.name == name) {
                bail!("targets.toml has two cases named {name}");
            }
            let toml =
                toml::to_string(&scenario).context("a scenario cannot be written as TOML")?;
            let (cpus, rows) = (count_cpus(&scenario), entry.row.clone());
            cases.push(Case { name, toml, cpus, rows, leave_out: entry.leave_out.clone() });
        }
    }
    Ok(cases)
}

fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    toml::from_str(&text).with_context(|| format!("{shown} is not understood"))
}

/// Each combination of one value for each name.
fn list_combinations(vary: &BTreeMap<String, Vec<Value>>) -> Vec<Values> {
    let mut all = vec![Values::new()];
    for (name, choices) in vary {
        let with = |values: &Values, choice: &Value| {
            let text = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
            values.clone().into_iter().chain([(name.clone(), text)]).collect()
        };
        let extend = |values: &Values| -> Vec<Values> {
            choices.iter().map(|choice| with(values, choice)).collect()
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}

/// The text with the value for each `$NAME`; longer names first, as one may begin with another.
fn put_values(text: &str, values: &Values) -> String {
    let mut names: Vec<&String> = values.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let put = |text: String, name: &&String| text.replace(&format!("${name}"), &values[*name]);
    names.iter().fold(text.to_owned(), put)
}

/// The scenario of a template; none where a quotient is not a whole number of at least 1.
fn fill_table(template: &Table, values: &Values) -> Result<Option<Table>> {
    let mut filled = Table::new();
    for (key, value) in template {
        let Some(value) = fill_value(value, values)? else { return Ok(None) };
        filled.insert(key.clone(), value);
    }
    Ok(Some(filled))
}

fn fill_value(value: &Value, values: &Values) -> Result<Option<Value>> {
    Ok(Some(match value {
        Value::String(text) if text.contains('$') => {
            let text = put_values(text, values);
            if text.contains('$') {
                bail!("no value is given for a name in `{text}`");
            }
            if let Ok(flag) = text.parse() {
                return Ok(Some(Value::Boolean(flag)));
            }
            match compute(&text) {
                Computed::Text => Value::String(text),
                Computed::Number(number) => Value::Integer(number),
                Computed::NotWhole => return Ok(None),
            }
        }
        Value::Table(table) => match fill_table(table, values)? {
            Some(table) => Value::Table(table),
            None => return Ok(None),
        },
        Value::Array(all) => {
            let all: Result<Option<Vec<Value>>> =
                all.iter().map(|one| fill_value(one, values)).collect();
            match all? {
                Some(all) => Value::Array(all),
                None => return Ok(None),
            }
        }
        other => other.clone(),
    }))
}

#[derive(Debug, PartialEq)]
enum Computed {
    /// It is no arithmetic.
    Text,
    Number(i64),
    /// A quotient is not a whole number of at least 1.
    NotWhole,
}

/// The value of numbers with `*` and `/` between them, from left to right.
fn compute(text: &str) -> Computed {
    let mut result = 1;
    let mut operator = '*';
    let mut rest = text;
    loop {
        let end = rest.find(['*', '/']).unwrap_or(rest.len());
        let Ok(number) = rest[..end].parse::<i64>() else { return Computed::Text };
        match operator {
            '*' => result *= number,
            _ if number > 0 && result % number == 0 => result /= number,
            _ => return Computed::NotWhole,
        }
        let Some(next) = rest[end..].chars().next() else { break };
        operator = next;
        rest = &rest[end + 1..];
    }
    Computed::Number(result)
}

/// CPUs of a scenario's host.
fn count_cpus(scenario: &Table) -> i64 {
    let host = scenario.get("host").and_then(Value::as_table);
    let number = |key: &str| host.and_then(|host| host.get(key)).and_then(Value::as_integer);
    let sockets = number("sockets").or(number("nodes")).unwrap_or(1);
    sockets * number("cores").unwrap_or(1) * number("threads").unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_computed_from_left_to_right() {
        for (text, value) in [
            ("8", Computed::Number(8)),
            ("128*2/16", Computed::Number(16)),
            ("8/16", Computed::NotWhole),
            ("100us", Computed::Text),
            ("instep-load spin", Computed::Text),
            ("", Computed::Text),
        ] {
            assert_eq!(compute(text), value, "{text}");
        }
    }

    #[test]
    fn vms_wider_than_the_host_are_left_out() {
        let template: Table =
            toml::from_str("a = [\"$P/$V\"]\nb = \"$PHASE on $P\"\nc = \"$C\"").unwrap();
        let vary: BTreeMap<String, Vec<Value>> =
            toml::from_str("P = [2, 8]\nV = [2, 4]\nPHASE = [\"1ms\"]\nC = [true]").unwrap();
        let all = list_combinations(&vary);
        assert_eq!(all.len(), 4);
        let filled: Vec<Table> =
            all.iter().filter_map(|values| fill_table(&template, values).unwrap()).collect();
        assert_eq!(filled.len(), 3);
        assert_eq!(filled[2].to_string(), "a = [2]\nb = \"1ms on 8\"\nc = true\n");
        assert!(fill_table(&template, &Values::new()).is_err());
    }

    #[test]
    fn the_cases_of_this_repository_are_understood() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/scale");
        let cases = read_cases(&dir).unwrap();
        let grid = cases.iter().filter(|case| case.name.starts_with("grid-50/")).count();
        assert_eq!(grid, 2 * 22);
        let largest = cases.iter().find(|case| case.name == "nodes-8").unwrap();
        assert_eq!(largest.cpus, 384);
    }
}
