//! `cargo xtask bench scale --mechanisms`: what each mechanism of the kernel scheduler is worth. Simulates the cases once
//! with all mechanisms and once without each, and names for each mechanism the row that loses most without it, and
//! the row that gains most.
//!
//! A speed without a mechanism is in parts of the VM's throughput alone under the whole scheduler: a VM that is alone may
//! be slower without the mechanism, too. The loss of a speed is in per cent of the speed with the mechanism, that of an
//! error of a share in per cent of the share. Waits and lateness can be 0 with it, so their loss is in per cent of
//! what the row must not exceed. A row whose seeds do not all lie on the same side is passed over where there is
//! another: its difference may be chance.

use crate::scale::cases::Case;
use crate::scale::jobs::{self, Contestant, Job};
use crate::scale::measure::Row;
use crate::scale::options::Options;
use crate::scale::{find_failure, read_commit, write_wanted};
use anyhow::{Result, bail};
use instep_report::stats;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use strsim::levenshtein;

/// A mechanism stays if a row loses so many per cent without it (docs/performance.md).
const WORTH: f64 = 3.0;
/// The fewest CPUs of a host of realistic size; smaller ones are simulated only if they are named.
const LEAST_CPUS: i64 = 32;

/// What a row measured, with all seeds, with and without a mechanism.
#[derive(Clone, Debug)]
struct Difference {
    case: String,
    measure: String,
    digits: usize,
    with: f64,
    without: f64,
    /// Per cent; negative where it is better without.
    loss: f64,
    /// Whether all seeds with are better, or all are worse, than all without.
    is_sure: bool,
}

/// A mechanism and its differences in all rows.
#[derive(Clone, Debug)]
struct Worth {
    mechanism: String,
    differences: Vec<Difference>,
}

/// Fails for a name of no mechanism, with the known ones and the one that is most like it.
pub(crate) fn check_names(names: &[String], known: &[String]) -> Result<()> {
    let Some(name) = names.iter().find(|name| !known.contains(name)) else { return Ok(()) };
    let close = known.iter().map(|known| (levenshtein(name, known), known)).min();
    let hint = match close {
        Some((edits, close)) if edits <= 2 => format!("; did you mean `{close}`?"),
        _ => String::new(),
    };
    bail!("--without {name}: unknown mechanism; known are {}{hint}", known.join(", "));
}

/// Whether a case belongs to the table: of realistic size and not too long, or named.
pub(crate) fn is_of_size(options: &Options, case: &Case) -> bool {
    let is_left_out = case.leave_out.iter().any(|name| name == "mechanisms");
    !options.cases.is_empty() || (case.cpus >= LEAST_CPUS && !is_left_out)
}

/// Simulates, prints; whether each mechanism is worth its place.
pub(crate) fn run(
    root: &Path,
    cases: &[Case],
    options: &Options,
    names: &[String],
) -> Result<bool> {
    let mut contestants = vec![Contestant::plain("instep")];
    contestants.extend(
        names
            .iter()
            .map(|name| Contestant { scheduler: "instep".to_owned(), without: vec![name.clone()] }),
    );
    let (values, mut notes) = simulate_cases(root, cases, options, &contestants)?;
    let all: Vec<Worth> = names
        .iter()
        .enumerate()
        .map(|(at, name)| Worth {
            mechanism: name.clone(),
            differences: list_differences(cases, &values, at + 1),
        })
        .collect();
    notes.push(format!("Medians of {} seeds of {} cases", options.seeds(0), cases.len()));
    print!("{}", show_tables(&all));
    let worth = all.iter().filter(|one| one.is_worth()).count();
    println!(
        "\n{worth} of {} mechanisms have a row that loses {WORTH} % or more without.",
        all.len()
    );
    notes.iter().for_each(|note| println!("{note}."));
    write_wanted(options.json.as_deref(), to_json(&all, &notes, &read_commit(root)))?;
    Ok(worth == all.len())
}

/// Values of all seeds by case, row and contestant.
type Seeds = BTreeMap<(usize, usize, usize), Vec<f64>>;

fn simulate_cases(
    root: &Path,
    cases: &[Case],
    options: &Options,
    contestants: &[Contestant],
) -> Result<(Seeds, Vec<String>)> {
    let seeds = options.seeds(0);
    let of = |case| (0..contestants.len()).map(move |scheduler| Job { case, scheduler, seeds });
    let jobs: Vec<Job> =
        (0..cases.len()).filter(|case| !cases[*case].rows.is_empty()).flat_map(of).collect();
    if jobs.is_empty() {
        bail!("none of these cases has a row to compare");
    }
    let (mut results, mut notes) = (BTreeMap::new(), Vec::new());
    jobs::simulate(root, cases, contestants, jobs, |job, result| {
        let case = &cases[job.case];
        if let Some(reason) = find_failure(result) {
            notes.push(format!(
                "{} {} has no values: {reason}",
                case.name, contestants[job.scheduler]
            ));
            return;
        }
        results.insert((job.case, job.scheduler), keep_needed(result));
    })?;
    // Jobs end in any order.
    notes.sort();
    let mut values = Seeds::new();
    for ((case, contestant), result) in &results {
        let Some(whole) = results.get(&(*case, 0)) else { continue };
        let result = measure_by(result, whole);
        for (number, row) in cases[*case].rows.iter().enumerate() {
            values.insert((*case, number, *contestant), row.read_values(&result));
        }
    }
    Ok((values, notes))
}

/// What rows read of a job's result, and the throughput alone; all else of 200 VMs is too much to keep.
fn keep_needed(result: &Value) -> Value {
    let vm = |vm: &Value| {
        let keys = ["name", "lived_ns", "cpus", "fair_share_speed", "alone", "late_ns"];
        let mut kept: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), vm[*key].clone())).collect();
        kept.insert("wait".to_owned(), json!({ "max_ns": vm["wait"]["max_ns"] }));
        Value::from(kept)
    };
    let list = |value: &Value, of: &dyn Fn(&Value) -> Value| -> Vec<Value> {
        value.as_array().into_iter().flatten().map(of).collect()
    };
    let report = |report: &Value| json!({ "vms": list(&report["vms"], &vm) });
    json!({ "reports": list(&result["reports"], &report), "by_weight": result["by_weight"] })
}

/// A result with the speeds in parts of the throughput alone that `whole` has.
fn measure_by(result: &Value, whole: &Value) -> Value {
    let mut result = result.clone();
    for (seed, report) in result["reports"].as_array_mut().into_iter().flatten().enumerate() {
        for (at, vm) in report["vms"].as_array_mut().into_iter().flatten().enumerate() {
            let alone = whole["reports"][seed]["vms"][at]["alone"].as_f64();
            let speed = vm["fair_share_speed"].as_f64().zip(vm["alone"].as_f64());
            if let Some(((speed, own), alone)) = speed.zip(alone.filter(|alone| *alone > 0.0)) {
                vm["fair_share_speed"] = (speed * own / alone).into();
            }
        }
    }
    result
}

/// What the rows of all cases lose under this contestant; 0 is the whole scheduler.
fn list_differences(cases: &[Case], values: &Seeds, contestant: usize) -> Vec<Difference> {
    let of = |case: usize, number: usize, row: &Row| {
        let seeds = |contestant| values.get(&(case, number, contestant));
        compare(&cases[case].name, row, seeds(0)?, seeds(contestant)?)
    };
    let rows = |case: usize| cases[case].rows.iter().enumerate().map(move |row| (case, row));
    (0..cases.len())
        .flat_map(rows)
        .filter_map(|(case, (number, row))| of(case, number, row))
        .collect()
}

fn compare(case: &str, row: &Row, with: &[f64], without: &[f64]) -> Option<Difference> {
    let (median, other) = (stats::median(with)?, stats::median(without)?);
    let loss = if row.is_speed() {
        (median > 0.0).then(|| (median - other) / median)
    } else if row.is_share_error() {
        Some(other - median)
    } else {
        row.must.map(|must| (other - median) / must)
    };
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Difference {
        case: case.to_owned(),
        measure: row.to_string(),
        digits: row.digits(),
        with: median,
        without: other,
        loss: loss? * 100.0,
        is_sure: least(with) > most(without) || most(with) < least(without),
    })
}

impl Worth {
    /// The row that loses most, of those that are sure if there are any; `sign` -1 for what gains most.
    fn find_extreme(&self, sign: f64) -> Option<&Difference> {
        let most = |sure: bool| {
            let found = self.differences.iter().filter(|one| one.is_sure == sure);
            let by_loss =
                |a: &&Difference, b: &&Difference| (sign * a.loss).total_cmp(&(sign * b.loss));
            found.max_by(by_loss).filter(|one| sign * one.loss > 0.0)
        };
        most(true).or_else(|| most(false))
    }

    fn is_worth(&self) -> bool {
        self.find_extreme(1.0).is_some_and(|one| one.is_sure && one.loss >= WORTH)
    }

    /// Its line of a table.
    fn show_line(&self, sign: f64) -> String {
        let Some(one) = self.find_extreme(sign) else {
            return format!("| `{}` | none | | | | |\n", self.mechanism);
        };
        let digits = one.digits;
        let chance = if one.is_sure { "" } else { ", may be chance" };
        format!(
            "| `{}` | {} | {} | {:.digits$} | {:.digits$} | {:.1}{chance} |\n",
            self.mechanism,
            one.case,
            one.measure,
            one.with,
            one.without,
            sign * one.loss
        )
    }
}

/// What loses most and what gains most, as Markdown.
fn show_tables(all: &[Worth]) -> String {
    let mut text = String::new();
    for (title, sign) in [("loss", 1.0), ("gain", -1.0)] {
        let _ = writeln!(text, "| mechanism | case | measure | with | without | {title}, % |");
        text.push_str("|---|---|---|---:|---:|---:|\n");
        text.extend(all.iter().map(|one| one.show_line(sign)));
        if sign > 0.0 {
            text.push('\n');
        }
    }
    text
}

/// All differences (schema `instep.scale.mechanisms/1`), a row on each line.
fn to_json(all: &[Worth], notes: &[String], commit: &str) -> String {
    let rounded = |number: f64| (number * 1e4).round() / 1e4;
    let line = |worth: &Worth, one: &Difference| {
        json!({
            "mechanism": worth.mechanism,
            "case": one.case,
            "measure": one.measure,
            "with": rounded(one.with),
            "without": rounded(one.without),
            "loss_percent": rounded(one.loss),
            "sure": one.is_sure,
        })
        .to_string()
    };
    let rows: Vec<String> =
        all.iter().flat_map(|worth| worth.differences.iter().map(|one| line(worth, one))).collect();
    let notes: Value = notes.into();
    format!(
        "{{\"schema\":\"instep.scale.mechanisms/1\",\"commit\":{},\"notes\":{notes},\"rows\":[\n{}\n]}}\n",
        Value::from(commit),
        rows.join(",\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        toml::from_str(text).unwrap()
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn unknown_name_is_refused_with_the_nearest_one() {
        let known = words("gang shares moves");
        assert!(check_names(&words("moves gang"), &known).is_ok());
        let error = |name: &str| check_names(&words(name), &known).unwrap_err().to_string();
        assert!(error("move").ends_with("gang, shares, moves; did you mean `moves`?"));
        assert!(error("teleport").ends_with("known are gang, shares, moves"));
    }

    #[test]
    fn speed_is_in_parts_of_throughput_alone_of_whole_scheduler() {
        let result = |speed: f64, alone: f64| {
            let vm = json!({ "name": "a", "cpus": 1.0, "fair_share_speed": speed, "alone": alone,
                             "wait": { "max_ns": 5, "up_to_ns": [1] } });
            keep_needed(&json!({ "reports": [{ "vms": [vm] }], "by_weight": [1.0] }))
        };
        // It does 0.9 of what it does alone, which is four fifths of what it does with the mechanism.
        let measured = measure_by(&result(0.9, 80.0), &result(1.0, 100.0));
        let speed = row("measure = \"speed\"\ntake = \"least\"").read_values(&measured)[0];
        assert!((speed - 0.72).abs() < 1e-9, "{speed}");
        let vm = &measured["reports"][0]["vms"][0];
        assert_eq!((&vm["wait"]["max_ns"], &vm["wait"]["up_to_ns"]), (&json!(5), &Value::Null));
    }

    #[test]
    fn loss_is_of_the_speed_the_share_or_the_limit() {
        let speed = row("measure = \"speed\"\ntake = \"least\"");
        let lost = compare("a", &speed, &[0.8, 0.9], &[0.4, 0.45]).unwrap();
        assert!((lost.loss - 50.0).abs() < 1e-9 && lost.is_sure, "{lost:?}");
        let wait = row("measure = \"wait-ms\"\ntake = \"most\"\nmust = 100");
        let lost = compare("a", &wait, &[0.0, 20.0], &[16.0, 24.0]).unwrap();
        assert!((lost.loss - 10.0).abs() < 1e-9 && !lost.is_sure, "{lost:?}");
        let share = row("measure = \"share-error\"\ntake = \"most\"\nmust = 0.05");
        let lost = compare("a", &share, &[0.01], &[0.03]).unwrap();
        assert!((lost.loss - 2.0).abs() < 1e-9, "{lost:?}");
        let informs = row("measure = \"wait-ms\"\ntake = \"most\"");
        assert!(compare("a", &informs, &[1.0], &[2.0]).is_none());
    }

    #[test]
    fn sure_row_is_named_before_one_that_may_be_chance() {
        let speed = row("measure = \"speed\"\ntake = \"least\"");
        let of =
            |case, with: &[f64], without: &[f64]| compare(case, &speed, with, without).unwrap();
        let mut worth = Worth {
            mechanism: "moves".to_owned(),
            differences: vec![of("chance", &[1.0, 0.2], &[0.3, 0.3]), of("sure", &[1.0], &[0.9])],
        };
        assert_eq!(
            worth.show_line(1.0),
            "| `moves` | sure | speed: least of all | 1.00 | 0.90 | 10.0 |\n"
        );
        assert_eq!(worth.show_line(-1.0), "| `moves` | none | | | | |\n");
        assert!(worth.is_worth());
        worth.differences.pop();
        assert!(!worth.is_worth() && worth.show_line(1.0).contains("50.0, may be chance"));
    }
}
