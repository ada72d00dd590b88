//! `instep agree` in the lab: the built-in scenarios agree with the simulator anew.

use crate::dispatch;
use crate::held::lacking;
use crate::stage::{instep, turn};
use instep_madehost::skip;
use serde_json::Value;

#[test]
fn the_lab_and_the_simulator_agree_on_the_same_scenarios() {
    if !dispatch::is_asked_for("compares the lab with the simulator anew") {
        return;
    }
    let _turn = turn();
    let ran = instep(&["agree", "--json"]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let what = lacking(&said)
        .or_else(|| said.contains("instep-load is not built").then_some(said.as_str()));
    if let (Some(2), Some(what)) = (ran.status.code(), what) {
        return skip::note(&format!("agree: {what}"));
    }
    let report: Value =
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let rows = report["scenarios"].as_array().unwrap().iter();
    let apart: Vec<String> = rows
        .flat_map(|one| one["rows"].as_array().unwrap().iter().map(move |row| (one, row)))
        .filter(|(_, row)| row["holds"] != true && row["differs"].is_null())
        .map(|(one, row)| format!("{}: {row}", one["name"]))
        .collect();
    assert!(apart.is_empty(), "{apart:#?}\n{}", report["warnings"]);
    assert_eq!(ran.status.code(), Some(0), "{said}");
}
