//! Small pieces of sentences: numbers and sets with the noun they count.

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
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idset::CpuSet;

    #[test]
    fn one_is_singular_and_more_are_plural() {
        assert_eq!(Count(1, "core").to_string(), "1 core");
        assert_eq!(Count(0, "core").to_string(), "0 cores");
        let named = |list| Named("CPU", &CpuSet::parse_list(list).unwrap()).to_string();
        assert_eq!([named(""), named("3"), named("0-3")], ["no CPU", "CPU 3", "CPUs 0-3"]);
    }
}
