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
use serde_json::{Value, json};

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

/// The least document that a schema admits, made by its own words.
fn least(schema: &Value, all: &Value) -> Value {
    if let Some(fixed) = schema.get("const") {
        return fixed.clone();
    }
    if let Some(path) = schema["$ref"].as_str() {
        return least(all.pointer(&path[1..]).unwrap(), all);
    }
    if let Some(one) = schema["enum"].as_array() {
        return one[0].clone();
    }
    let mut made = match schema["type"].as_str().or_else(|| schema["type"][0].as_str()) {
        Some("object") => json!({}),
        Some("array") => {
            let items = schema["prefixItems"].as_array().into_iter().flatten();
            return items.map(|item| least(item, all)).collect();
        }
        Some("string") => json!(""),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(0)),
        Some("boolean") => json!(false),
        _ => Value::Null,
    };
    let parts = ["anyOf", "oneOf"].iter().filter_map(|key| schema[key].get(0));
    for part in parts.chain(schema["allOf"].as_array().into_iter().flatten()) {
        match (&mut made, least(part, all)) {
            (Value::Object(fields), Value::Object(more)) => fields.extend(more),
            (other, part) => *other = part,
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        made[name] = least(&schema["properties"][name], all);
    }
    made
}

#[test]
fn each_schema_refuses_what_differs() {
    let all = schemas::all();
    let names = schemas::names(&all);
    assert!(names.len() > 20, "{names:?}");
    for (name, schema) in names {
        let is_list = name.ends_with("[]");
        let sound = least(if is_list { &schema["items"] } else { &schema }, &all);
        let errors = |part: Value| {
            let document = if is_list { json!([part]) } else { part };
            schemas::errors(&name, &document)
        };
        assert_eq!(errors(sound.clone()), [""; 0], "{name}: {sound}");
        let fields = sound.as_object().unwrap();
        let with = |field: &str, value: Value| {
            let mut fields = fields.clone();
            fields.insert(field.to_owned(), value);
            errors(fields.into())
        };
        assert_ne!(with("more", json!(1)), [""; 0], "{name} admits what it does not list");
        for field in fields.keys() {
            let mut less = fields.clone();
            less.remove(field);
            assert_ne!(errors(less.into()), [""; 0], "{name} does without {field}");
            let others = [json!({ "more": [] }), json!([true]), json!(true), json!("more")];
            let refused = others.into_iter().filter(|other| !with(field, other.clone()).is_empty());
            assert!(refused.count() >= 3, "{name} admits most things as {field}");
        }
    }
}

#[test]
fn host_on_the_page_is_held_against_its_schema() {
    let errors = |host: Value| {
        let page = json!({ "schema": "instep.serve/1", "version": 1, "lacking": [], "host": host, "history": null });
        schemas::errors("instep.serve/1", &page)
    };
    assert_eq!(errors(Value::Null), [""; 0]);
    assert_ne!(errors(json!({ "schema": "instep.host/1" })), [""; 0]);
}

#[test]
fn document_that_differs_is_refused() {
    let copies = printed::Copies::new();
    let sound = copies.on(&["topology"]);
    let name = schemas::check(&sound).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut document = sound.clone();
        change(&mut document);
        !schemas::errors(&name, &document).is_empty()
    };
    assert!(refused(&|it| it["more"] = 1.into()), "a field that is not in the schema");
    assert!(refused(&|it| it["nodes"][0]["more"] = 1.into()), "the same, farther in");
    assert!(refused(&|it| it["nodes"] = "none".into()), "a text where there are to be nodes");
    assert!(refused(&|it| _ = it.as_object_mut().unwrap().remove("nodes")), "nothing there");
}
