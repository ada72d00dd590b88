//! Values of files of which a wrong one is refused with an example of what would be right: text, such as a
//! number with its unit, whole numbers and lists of words. Knows no units and no file.

use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
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

/// Reads a whole number; `what` as for [`text`], such as `a weight from 1 to 10000`.
///
/// # Errors
/// When it is none.
pub fn whole<'de, D: Deserializer<'de>>(from: D, what: &'static str) -> Result<i64, D::Error> {
    from.deserialize_i64(Whole(what))
}

struct Whole(&'static str);

impl Visitor<'_> for Whole {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }
}

/// Reads a list of words; `what` as for [`text`], such as `a list such as ["a"]`.
///
/// # Errors
/// When it is none.
pub fn words<'de, D: Deserializer<'de>>(
    from: D,
    what: &'static str,
) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(Words(what))
}

struct Words(&'static str);

impl<'de> Visitor<'de> for Words {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = list.next_element()? {
            words.push(word);
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::IntoDeserializer;

    #[test]
    fn number_without_a_unit_is_answered_with_the_right_form() {
        type Failed = serde::de::value::Error;
        let what = "a size such as \"64MiB\"";
        let from = IntoDeserializer::<Failed>::into_deserializer("2GiB");
        assert_eq!(text(from, what).unwrap(), "2GiB");
        let from = IntoDeserializer::<Failed>::into_deserializer(64u64);
        let said = text(from, what).unwrap_err().to_string();
        assert!(said.contains("integer `64`, expected a size such as \"64MiB\""), "{said}");
    }
    #[test]
    fn wrong_value_is_answered_with_the_right_form() {
        type Failed = serde::de::value::Error;
        let from = |text: &'static str| IntoDeserializer::<Failed>::into_deserializer(text);
        let number = IntoDeserializer::<Failed>::into_deserializer(-7i64);
        assert_eq!(whole(number, "a weight").unwrap(), -7);
        let said = whole(from("7"), "a weight").unwrap_err().to_string();
        assert!(said.contains("string \"7\", expected a weight"), "{said}");
        let list = IntoDeserializer::<Failed>::into_deserializer(vec!["a", "b"]);
        assert_eq!(words(list, "a list").unwrap(), ["a", "b"]);
        let said = words(from("a"), "a list such as [\"a\"]").unwrap_err().to_string();
        assert!(said.contains("string \"a\", expected a list such as [\"a\"]"), "{said}");
    }
}
