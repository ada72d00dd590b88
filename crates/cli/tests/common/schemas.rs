//! docs/schemas.json, and whether a document is as it says.

use jsonschema::Validator;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Where the schemas of both programs are kept.
pub(crate) fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas.json"))
}

/// The name of a document's schema, such as `instep.status/1`, and that with `[]` of a list; `None` where it has none.
pub(crate) fn name(document: &Value) -> Option<String> {
    if let Some(list) = document.as_array() {
        return Some(name(list.first()?)? + "[]");
    }
    let name = document["schema"].as_str().filter(|name| name.starts_with("instep."))?;
    Some(name.to_owned())
}

/// Holds a document against the schema that it names, and fails where it differs, or has a field that the schema has not.
/// Its name.
pub(crate) fn check(document: &Value) -> Option<String> {
    let name = name(document)?;
    let wrong = errors(&name, document);
    assert!(wrong.is_empty(), "{name} is not as docs/schemas.json says:\n{}", wrong.join("\n"));
    Some(name)
}

/// Where a document differs from the schema of this name, a line each.
pub(crate) fn errors(name: &str, document: &Value) -> Vec<String> {
    static ALL: OnceLock<BTreeMap<String, Validator>> = OnceLock::new();
    let all = ALL.get_or_init(|| validators(all()));
    let schema = all.get(name).unwrap_or_else(|| panic!("docs/schemas.json has no {name}"));
    let errors = schema.iter_errors(document);
    errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The names of all documents, with what prints each, as docs/schemas.json lists them.
pub(crate) fn names(schemas: &Value) -> BTreeMap<String, Value> {
    let listed = schemas["anyOf"].as_array().unwrap().iter();
    let named = listed.map(|entry| {
        let (reference, list) = match entry["items"]["$ref"].as_str() {
            Some(items) => (items, "[]"),
            None => (entry["$ref"].as_str().unwrap(), ""),
        };
        let definition = schemas.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        let name = definition["properties"]["schema"]["const"].as_str();
        (
            name.unwrap_or_else(|| panic!("{reference} names no schema")).to_owned() + list,
            entry.clone(),
        )
    });
    named.collect()
}

/// The document.
pub(crate) fn all() -> Value {
    serde_json::from_str(&std::fs::read_to_string(file()).unwrap()).unwrap()
}

/// A validator for each document. All need the definitions, too.
fn validators(mut schemas: Value) -> BTreeMap<String, Validator> {
    let names = names(&schemas);
    let definitions = schemas["$defs"].as_object_mut().unwrap();
    definitions.values_mut().for_each(|schema| close(schema, true));
    let validator = |mut schema: Value| {
        schema["$defs"] = schemas["$defs"].clone();
        jsonschema::validator_for(&schema).unwrap()
    };
    names.into_iter().map(|(name, schema)| (name, validator(schema))).collect()
}

/// Has objects take only fields that are listed. `is_whole`: it is not a part of what an object has.
fn close(schema: &mut Value, is_whole: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    let is_object = schema
        .get("type")
        .is_some_and(|kind| *kind == "object" || *kind == json!(["object", "null"]));
    let has_fields = schema.contains_key("properties");
    let each =
        |schema: &mut Map<String, Value>, key: &str, is_whole: bool| match schema.get_mut(key) {
            Some(Value::Array(parts)) => parts.iter_mut().for_each(|part| close(part, is_whole)),
            Some(part) => close(part, is_whole),
            None => {}
        };
    for key in ["anyOf", "oneOf", "allOf"] {
        each(schema, key, is_whole && !(is_object && has_fields));
    }
    for key in ["items", "prefixItems", "additionalProperties"] {
        each(schema, key, true);
    }
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.values_mut().for_each(|field| close(field, true));
    }
    if is_whole && is_object && has_fields {
        schema.insert("unevaluatedProperties".to_owned(), false.into());
    }
}
