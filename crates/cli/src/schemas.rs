//! JSON schemas of what a program prints with `--json`, as one document.
//!
//! They are made from the types that are printed, so they cannot say anything else. Each program names its own documents; a
//! test puts both together (docs/schemas.json) and holds real output against them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

/// The documents of a program, as far as they were added.
#[derive(Debug)]
pub struct Schemas {
    generator: SchemaGenerator,
    documents: Vec<Value>,
}

impl Default for Schemas {
    fn default() -> Self {
        let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
        Self { generator, documents: Vec::new() }
    }
}

impl Schemas {
    /// Adds what the command, or the file, named by `title` is.
    #[must_use]
    pub fn with<T: JsonSchema>(mut self, title: &str) -> Self {
        let mut schema = self.generator.subschema_for::<T>();
        schema.insert("title".to_owned(), title.into());
        self.documents.push(schema.to_value());
        self
    }

    /// Everything: `anyOf` has an entry with a title for each command, which refers to one of `$defs`.
    pub fn document(mut self) -> Value {
        let definitions = self.generator.take_definitions(true);
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "What Instep prints as JSON, and publishes as files",
            "anyOf": self.documents,
            "$defs": definitions,
        })
    }
}
