//! `instep agree --from` with this very binary: what the lab gave, kept in data/agreement.json, against
//! the simulator as it is now; and what is refused.
//!
//! The file is what `instep agree --json` printed (its `kernel` and `machine` say where), cells and all.

#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::instep;
use instep_madehost::skip;
use serde_json::Value;
use std::path::Path;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/agreement.json");

/// Scenarios of which every measure agrees.
const AGREE: [&str; 8] =
    ["shares", "spin-100us", "spin-1ms", "block-1ms", "cosched", "shares-8", "spin-4", "block-4"];
/// Those of which some do not, and how many do.
const PARTLY: [(&str, usize); 4] = [("stacking", 1), ("boost", 1), ("spin-8", 3), ("gangs-8", 4)];

fn rows(json: &Value) -> Vec<(String, Value)> {
    let scenarios = json["scenarios"].as_array().unwrap().iter();
    let of = |one: &Value| {
        let name = one["name"].as_str().unwrap().to_owned();
        one["rows"].as_array().unwrap().iter().map(|row| (name.clone(), row.clone())).collect()
    };
    scenarios.flat_map(|one| -> Vec<(String, Value)> { of(one) }).collect()
}

#[test]
fn the_simulator_agrees_with_what_the_lab_gave() {
    if !skip::may_take_long() {
        return;
    }
    let found = instep(&["agree", "--from", KEPT, "--json"]);
    let json: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", found.stderr);
    });
    assert_eq!(json["schema"], "instep.agreement/1");
    let rows = rows(&json);
    let holds = |row: &Value| row["holds"] == true;
    let apart: Vec<_> =
        rows.iter().filter(|(_, row)| !holds(row) && row["differs"].is_null()).collect();
    assert!(apart.is_empty(), "{apart:#?}");
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    // Cells of another bpf/ are still compared: it is said, and no failure.
    let warnings = json["warnings"].as_array().unwrap().iter().filter_map(Value::as_str);
    if let Some(older) = warnings.clone().find(|warning| warning.contains("the lab ran")) {
        skip::note(&format!("whether today's bpf/ agrees, too: {older}"));
    }
    for what in ["speed", "share", "stacking", "co-run"] {
        assert!(rows.iter().any(|(_, row)| row["measure"] == what && holds(row)), "{what}");
    }
    let agrees = |name: &str| rows.iter().filter(|(of, _)| of == name).all(|(_, row)| holds(row));
    for name in AGREE {
        assert!(rows.iter().any(|(of, _)| of == name) && agrees(name), "{name}");
    }
    for (name, most) in PARTLY {
        let held = rows.iter().filter(|(of, row)| of == name && holds(row)).count();
        assert!(held >= most, "{name}: {held}");
    }
}

/// The kept cells, changed: the file, and the directory that holds it.
fn other(change: impl Fn(&mut Value)) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.json");
    let mut kept: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap()).unwrap();
    let cells = kept["cells"].as_array_mut().unwrap();
    cells.iter_mut().filter(|cell| cell["scheduler"] == "instep").for_each(change);
    std::fs::write(&file, kept.to_string()).unwrap();
    (dir, file.to_str().unwrap().to_owned())
}

/// The names of `AGREE` of which a measure under Instep does not hold when its cells are changed so;
/// all else under Instep holds. One seed says little of the default, whose siblings share a CPU by chance.
fn differing(changed: &str, change: impl Fn(&mut Value)) -> Vec<String> {
    let (_dir, from) = other(change);
    let args = [&["agree"], &AGREE[..], &["--from", &from, "--seeds", "1", "--json"]].concat();
    let found = instep(&args);
    assert_eq!(found.code, Some(1), "{changed}: {}", found.stderr);
    let json: Value = serde_json::from_str(&found.stdout).unwrap();
    let mut names = Vec::new();
    for (name, row) in rows(&json).into_iter().filter(|(_, row)| row["under"] == "instep") {
        let shall = row["measure"] != changed;
        assert_eq!(row["holds"], shall, "{name}: {row}");
        names.extend((!shall).then_some(name));
    }
    names.sort();
    names
}

#[test]
fn a_lab_that_gave_something_else_does_not_agree() {
    if !skip::may_take_long() {
        return;
    }
    let shares = differing("share", |cell| cell["cpus"] = serde_json::json!([0.5, 1.5]));
    assert_eq!(shares, ["shares", "shares-8"]);
    let speeds = differing("speed", |cell| {
        cell["rate"] = serde_json::json!(cell["rate"].as_f64().unwrap_or(0.0) * 4.0);
    });
    assert_eq!(speeds, ["block-1ms", "block-4", "cosched", "spin-100us", "spin-1ms", "spin-4"]);
    let co_runs = differing("co-run", |cell| cell["co_run"] = serde_json::json!(0.3));
    assert_eq!(co_runs, ["cosched", "spin-100us", "spin-1ms", "spin-4"]);
}

#[test]
fn what_is_known_to_differ_may_not_differ_more() {
    let (_dir, from) = other(|cell| {
        cell["rate"] = serde_json::json!(cell["rate"].as_f64().unwrap_or(0.0) * 8.0);
    });
    let found = instep(&["agree", "block-100us", "--from", &from, "--seeds", "1"]);
    assert_eq!(found.code, Some(1), "{}{}", found.stdout, found.stderr);
    let said = "block-100us under instep: known to differ, but by 2 at most";
    assert!(found.stdout.contains(said), "{}", found.stdout);
}

#[test]
fn only_cells_of_another_bpf_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.json");
    let warnings = |bpf: &str| {
        let text = std::fs::read_to_string(KEPT).unwrap();
        let mut kept: Value = serde_json::from_str(&text).unwrap();
        kept["bpf"] = bpf.into();
        std::fs::write(&file, kept.to_string()).unwrap();
        let args = ["agree", "shares", "--from", file.to_str().unwrap(), "--seeds", "1", "--json"];
        let json: Value = serde_json::from_str(&instep(&args).stdout).unwrap();
        // What happened while the lab ran is told besides.
        let mut all = json["warnings"].as_array().unwrap().clone();
        all.retain(|warning| warning.as_str().unwrap().starts_with("the lab ran"));
        all
    };
    let told = warnings("0123456789abcdef");
    assert_eq!(told.len(), 1, "{told:?}");
    let own = told[0].as_str().unwrap().split("simulated is bpf/ ").nth(1).unwrap();
    assert!(told[0].as_str().unwrap().contains("the lab ran bpf/ 0123456789abcdef"));
    assert_eq!(warnings(&own[..16]), [0; 0]);
}

#[test]
fn what_is_no_scenario_or_no_result_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/agreement/shares.toml");
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(&file, text.replacen("cores = 2", "cores = 2\ncolour = 1", 1)).unwrap();
    let found = instep(&["agree", file.to_str().unwrap()]);
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("bad.toml: line 8: unknown field"), "{}", found.stderr);
    let found = instep(&["agree", "--from", file.to_str().unwrap()]);
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("is no output of agree --json"), "{}", found.stderr);
    let found = instep(&["agree", "luck"]);
    assert!(found.stderr.contains("no file luck; built in are shares"), "{}", found.stderr);
}
