//! Writes one JSON object on one line. Knows only what the reports need.

use std::fmt::Write as _;

/// An object under construction. Keys are this program's own and need no escaping.
#[derive(Debug)]
pub struct Object {
    text: String,
}

impl Default for Object {
    fn default() -> Self {
        Self { text: "{".to_owned() }
    }
}

impl Object {
    /// An empty object.
    pub fn new() -> Self {
        Self::default()
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push('"');
        self.text.push_str(key);
        self.text.push_str("\":");
    }

    /// A whole number.
    pub fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    /// A number with three decimals; null when it is none.
    pub fn decimal(&mut self, key: &str, value: f64) -> &mut Self {
        self.key(key);
        if value.is_finite() {
            let _ = write!(self.text, "{value:.3}");
        } else {
            self.text.push_str("null");
        }
        self
    }

    /// true or false.
    pub fn truth(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key);
        self.text.push_str(if value { "true" } else { "false" });
        self
    }

    /// Text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        self.text.push('"');
        for character in value.chars() {
            match character {
                '"' | '\\' => {
                    self.text.push('\\');
                    self.text.push(character);
                }
                control if control < ' ' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(control));
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
        self
    }

    /// A list of whole numbers.
    pub fn numbers(&mut self, key: &str, values: &[u64]) -> &mut Self {
        self.key(key);
        self.text.push('[');
        for (index, value) in values.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(self.text, "{comma}{value}");
        }
        self.text.push(']');
        self
    }

    /// An object within.
    pub fn object(&mut self, key: &str, value: Self) -> &mut Self {
        self.key(key);
        self.text.push_str(&value.end());
        self
    }

    /// The finished text, without a line end.
    pub fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_comes_back_from_a_parser() {
        let odd = "a\"b\\c\n\u{1}é";
        let mut inner = Object::new();
        inner.number("n", u64::MAX);
        let mut object = Object::new();
        object.text("text", odd).decimal("nan", f64::NAN).decimal("half", 0.5);
        object.truth("yes", true).numbers("list", &[1, 2, 3]).numbers("none", &[]);
        object.object("inner", inner).object("empty", Object::new());
        let value: serde_json::Value = serde_json::from_str(&object.end()).unwrap();
        assert_eq!(value["text"], odd);
        assert!(value["nan"].is_null());
        assert_eq!(value["half"], 0.5);
        assert_eq!(value["yes"], true);
        assert_eq!(value["list"], serde_json::json!([1, 2, 3]));
        assert_eq!(value["none"], serde_json::json!([]));
        assert_eq!(value["inner"]["n"], u64::MAX);
        assert_eq!(value["empty"], serde_json::json!({}));
    }
}
