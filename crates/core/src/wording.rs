//! Small pieces of sentences: numbers and sets with the noun they count; text of others that is fit to
//! be shown.

use crate::idset::IdSet;
use crate::units::Id;
use std::fmt;

/// A number with what it counts, by its name for one: `1 core`, `3 cores`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        write!(f, "{number} {noun}{}", if *number == 1 { "" } else { "s" })
    }
}

impl Count {
    /// For lengths.
    pub fn of(length: usize, noun: &'static str) -> Self {
        Self(length as u64, noun)
    }
}

/// `CPU 3`, `CPUs 0-3`, `no CPU`.
pub(crate) struct Named<'a, T>(pub(crate) &'static str, pub(crate) &'a IdSet<T>);

impl<T: Id> fmt::Display for Named<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(noun, set) = self;
        match set.len() {
            0 => write!(f, "no {noun}"),
            1 => write!(f, "{noun} {set}"),
            _ => write!(f, "{noun}s {set}"),
        }
    }
}

/// Whether a character steers what shows it instead of being shown: control characters, such as ESC and
/// BEL, line and paragraph separators, and the marks of Unicode's bidirectional algorithm (UAX 9).
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// Text on one line in which nothing steers a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_steering(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idset::CpuSet;

    #[test]
    fn what_steers_a_terminal_becomes_a_question_mark() {
        assert_eq!(printable("a\x1b[2J\x07b\r\n\u{9b}31m\u{7f}"), "a?[2J?b???31m?");
        assert_eq!(printable("x\u{202e}y\u{2066}z\u{200f}\u{61c}\u{2028}"), "x?y?z???");
        assert_eq!(printable("Zürich \u{5d0} 東京"), "Zürich \u{5d0} 東京");
    }

    #[test]
    fn one_is_singular_and_more_are_plural() {
        assert_eq!(Count(1, "core").to_string(), "1 core");
        assert_eq!(Count(0, "core").to_string(), "0 cores");
        let named = |list| Named("CPU", &CpuSet::parse_list(list).unwrap()).to_string();
        assert_eq!([named(""), named("3"), named("0-3")], ["no CPU", "CPU 3", "CPUs 0-3"]);
    }
}
