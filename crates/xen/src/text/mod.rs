//! What the commands of `xl` print, as pure functions: text in, facts or an error with the line out.
//!
//! Names of domains are anything that their owners chose, blanks and ends of lines included. Rows are read from the
//! right. A row that does not fit the heading is left out and told, never guessed. A table whose heading is another,
//! or of which no row fits, is an error.

pub mod config;
pub mod cpupools;
pub mod info;
pub mod list;
pub mod node_memory;
pub mod sched;
pub mod uptime;
pub mod vcpu_list;

use crate::error::{Error, not_so};
use instep_core::idset::IdSet;
use instep_core::units::Id;
use std::collections::BTreeMap;

/// A set as `xl` prints it: `all`, `none`, `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XlSet<T: Id> {
    /// All that there are.
    All,
    /// These.
    These(IdSet<T>),
}

impl<T: Id> XlSet<T> {
    /// Reads one; `None` for anything else. `any cpu` and `any node` are what Xen before 4.5 printed.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "all" | "any" => Some(Self::All),
            "none" => Some(Self::These(IdSet::new())),
            "" => None,
            list => IdSet::parse_list(list).ok().map(Self::These),
        }
    }

    /// The set, where `all` are these.
    pub fn of(&self, all: &IdSet<T>) -> IdSet<T> {
        match self {
            Self::All => all.clone(),
            Self::These(set) => set.clone(),
        }
    }
}

/// A table's rows, and what of it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XlTable<T> {
    /// The rows that fit the heading.
    pub rows: T,
    /// Lines that do not, one sentence each.
    pub unread: Vec<String>,
}

/// So many lines that cannot be read are named.
const MOST_NAMED: usize = 16;

impl<R> XlTable<Vec<R>> {
    /// Reads the rows under a heading.
    ///
    /// # Errors
    /// There are rows, and none of them fits.
    pub(crate) fn read<'a>(
        command: &'static str,
        lines: impl IntoIterator<Item = (usize, &'a str)>,
        expected: &'static str,
        row: impl Fn(&'a str) -> Option<R>,
    ) -> Result<Self, Error> {
        let (mut rows, mut bad) = (Vec::new(), Vec::new());
        for (number, line) in lines {
            match row(line) {
                Some(row) => rows.push(row),
                None => bad.push((number, line)),
            }
        }
        if let (Some((number, line)), true) = (bad.first(), rows.is_empty()) {
            return Err(Error::output(command, *number, line, expected));
        }
        let named = bad.iter().take(MOST_NAMED);
        let mut unread: Vec<String> = named
            .map(|(number, line)| format!("{}: left out", not_so(command, *number, line, expected)))
            .collect();
        if bad.len() > MOST_NAMED {
            unread.push(format!("{} more lines of `{command}`: left out", bad.len() - MOST_NAMED));
        }
        Ok(Self { rows, unread })
    }

    /// The same as a map.
    pub(crate) fn by_key<K: Ord, V>(self) -> XlTable<BTreeMap<K, V>>
    where
        Vec<R>: IntoIterator<Item = (K, V)>,
    {
        XlTable { rows: self.rows.into_iter().collect(), unread: self.unread }
    }
}

/// The last `N` words of a line, and what is before them without blanks at its ends.
pub(crate) fn last_words<const N: usize>(line: &str) -> Option<(&str, [&str; N])> {
    let mut rest = line.trim_end();
    let mut words = [""; N];
    for word in words.iter_mut().rev() {
        let start = rest.rfind(char::is_whitespace)? + 1;
        // A blank may be more than one byte long.
        let start = (start..=rest.len()).find(|at| rest.is_char_boundary(*at))?;
        *word = &rest[start..];
        rest = rest[..start].trim_end();
    }
    (!rest.trim().is_empty()).then(|| (rest.trim(), words))
}

/// Seconds with one decimal as nanoseconds.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let (whole, tenth) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(tenth) || tenth.len() > 9 {
        return None;
    }
    let part = tenth.parse::<u64>().ok()? * 10u64.pow(9 - tenth.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(part)
}

/// The lines of an output with their numbers from 1, without empty ones.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered.filter(|(_, line)| !line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    #[test]
    fn rows_are_read_from_the_right_whatever_the_name_is() {
        assert_eq!(last_words("my vm 2   3 4 "), Some(("my vm 2", ["3", "4"])));
        assert_eq!(last_words::<2>("3 4"), None, "there is no name");
        assert_eq!(last_words("a\u{2003}b\u{2003}c"), Some(("a", ["b", "c"])));
        assert_eq!(last_words::<1>(""), None);
    }

    #[test]
    fn times_have_a_decimal() {
        assert_eq!(seconds("12.5"), Some(12_500_000_000));
        for bad in ["12", "-1.0", "1.", ".5", "x.y", "99999999999999999999.0"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn masks_are_words_or_lists() {
        assert_eq!(XlSet::<CpuId>::parse("all"), Some(XlSet::All));
        assert_eq!(XlSet::<CpuId>::parse("none"), Some(XlSet::These(IdSet::new())));
        let some = XlSet::<CpuId>::parse("0-1,4").unwrap();
        assert_eq!(some.of(&IdSet::new()).to_string(), "0-1,4");
        assert!(XlSet::<CpuId>::parse("0-").is_none() && XlSet::<CpuId>::parse("").is_none());
    }
}
