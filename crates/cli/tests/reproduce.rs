//! `instep reproduce` with this very binary: the smallest experiment, the list, the page and what is
//! refused.

#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::instep;

#[test]
fn list_has_every_experiment_with_its_figures_and_runs_nothing() {
    let found = instep(&["reproduce", "--list", "--json"]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let json: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(json["schema"], "instep.reproduce/1");
    let stacking = &json["experiments"][0];
    assert_eq!((&stacking["name"], &stacking["system"]), (&"stacking".into(), &3.into()));
    assert_eq!(stacking["rows"][0]["published"], 5.6);
    assert!(stacking["rows"][0]["simulated"].is_null());
}

#[test]
fn the_smallest_experiment_agrees_and_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let args = ["reproduce", "sequential-section", "--json", "--html", page.to_str().unwrap()];
    let found = instep(&args);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let json: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    for row in json["experiments"][0]["rows"].as_array().unwrap() {
        if !row["published"].is_null() {
            assert_eq!(row["simulated"], row["published"], "{row}");
        }
        assert!(row["low"].is_number() && row["high"].is_number());
    }
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}

#[test]
fn bad_names_and_unwritable_pages_are_refused_before_any_run() {
    let found = instep(&["reproduce", "luck"]);
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("known are all, stacking"), "{}", found.stderr);
    let found = instep(&["reproduce", "all", "--html", "/nowhere/page.html"]);
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("cannot write /nowhere/page.html"), "{}", found.stderr);
}

#[test]
fn the_list_is_a_summary_and_that_of_one_has_its_rows() {
    let all = instep(&["reproduce", "--list"]);
    assert_eq!(all.code, Some(0), "{}", all.stderr);
    assert!(all.stdout.lines().count() < 50, "{}", all.stdout);
    assert!(all.stdout.contains("instep reproduce --list NAME"));
    let one = instep(&["reproduce", "--list", "stacking"]);
    assert!(one.stdout.contains("CFS, 2 VMs") && one.stdout.contains("43.1"), "{}", one.stdout);
}

#[test]
fn several_experiments_are_listed_once_each_in_order_asked_for() {
    let found = instep(&["reproduce", "--list", "--json", "types", "stacking", "types"]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let json: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    let names = json["experiments"].as_array().unwrap().iter().map(|one| &one["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["types", "stacking"]);
}
