//! Values of files that are text with a unit: a number without one is refused with an example of what
//! would be right. Knows no units and no file.

use serde::Deserializer;
use serde::de::{Error, Visitor};
use std::fmt;

/// Reads text; `what` completes the sentence "expected ..." for anything else, such as
/// `a size such as "64MiB"`.
///
/// # Errors
/// When it is no text.
pub fn text<'de, D: Deserializer<'de>>(from: D, what: &'static str) -> Result<String, D::Error> {
    from.deserialize_str(Text(what))
}

struct Text(&'static str);

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::IntoDeserializer;

    #[test]
    fn a_number_without_a_unit_is_told_what_would_be_right() {
        type Said = serde::de::value::Error;
        let what = "a size such as \"64MiB\"";
        let from = IntoDeserializer::<Said>::into_deserializer("2GiB");
        assert_eq!(text(from, what).unwrap(), "2GiB");
        let from = IntoDeserializer::<Said>::into_deserializer(64u64);
        let said = text(from, what).unwrap_err().to_string();
        assert!(said.contains("integer `64`, expected a size such as \"64MiB\""), "{said}");
    }
}
