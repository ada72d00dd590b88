//! docs/schemas.json is what the programs say of themselves, and every command prints what it says.
//!
//! Other tests hold what they have printed against it, too (`Ran::json` of ../common).
#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod printed;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../serve/server.rs"]
mod server;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../agent/vm.rs"]
mod vm;

use common::schemas;
use common::{Started, binary};
use serde_json::Value;

/// What one program says of what it prints.
fn schemas_of(program: &str) -> Value {
    Started::new(binary(program).arg("schemas")).end().expect(0).json()
}

#[test]
fn document_is_what_the_programs_say() {
    let mut all = schemas_of(env!("CARGO_BIN_EXE_instep"));
    let of_lab = schemas_of(env!("CARGO_BIN_EXE_instep-lab"));
    let more = of_lab["anyOf"].as_array().unwrap().clone();
    all["anyOf"].as_array_mut().unwrap().extend(more);
    let definitions = all["$defs"].as_object_mut().unwrap();
    for (name, schema) in of_lab["$defs"].as_object().unwrap() {
        let there = definitions.entry(name.clone()).or_insert_with(|| schema.clone());
        assert_eq!(
            there, schema,
            "two types are called {name}: #[schemars(rename)] tells them apart"
        );
    }
    definitions.sort_keys();
    for name in definitions.keys() {
        let is_second = name.ends_with(|end: char| end.is_ascii_digit());
        assert!(
            !is_second,
            "two types have the name of {name}: #[schemars(rename)] tells them apart"
        );
    }
    let text = serde_json::to_string_pretty(&all).unwrap() + "\n";
    if std::env::var_os("INSTEP_GOLDEN").is_some_and(|wish| wish == "write") {
        std::fs::write(schemas::file(), &text).unwrap();
    }
    let kept = std::fs::read_to_string(schemas::file()).unwrap_or_default();
    let anew = "INSTEP_GOLDEN=write cargo test -p instep-cli --test schemas writes it anew";
    assert!(kept == text, "docs/schemas.json is out of date: {anew}");
}

#[test]
fn document_that_differs_is_refused() {
    let copies = printed::Copies::new();
    let sound = copies.on(&["topology"]);
    schemas::check(&sound).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut document = sound.clone();
        change(&mut document);
        std::panic::catch_unwind(|| schemas::check(&document)).is_err()
    };
    assert!(refused(&|it| it["more"] = 1.into()), "a field that is not in the schema");
    assert!(refused(&|it| it["nodes"][0]["more"] = 1.into()), "the same, farther in");
    assert!(refused(&|it| it["nodes"] = "none".into()), "a text where there are to be nodes");
    assert!(refused(&|it| _ = it.as_object_mut().unwrap().remove("nodes")), "nothing there");
}
