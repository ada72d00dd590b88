//! Sets of CPUs and of nodes: ordered, compared by content, written as the kernel writes lists
//! (`0-3,8`).
//!
//! A set is a bit map without trailing zero words, so equal sets are equal values. It knows
//! nothing of which identities exist; [`MAX_ID`] only bounds what hostile input can make it
//! allocate.

use crate::units::{CpuId, Id, NodeId};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// The largest identity a list may name. The kernel's NR_CPUS limit is 8192 on x86-64
/// (arch/x86/Kconfig, 6.18); this leaves room and keeps a hostile `0-4294967295` small.
pub const MAX_ID: u32 = 65_535;

/// A set of logical CPUs.
pub type CpuSet = IdSet<CpuId>;
/// A set of NUMA nodes.
pub type NodeSet = IdSet<NodeId>;

/// A set of small identities. See the module.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSet<T> {
    /// Bit `i % 64` of word `i / 64` is identity `i`; the last word is never zero.
    words: Vec<u64>,
    kind: PhantomData<T>,
}

impl<T> Default for IdSet<T> {
    fn default() -> Self {
        Self { words: Vec::new(), kind: PhantomData }
    }
}

impl<T: Id> IdSet<T> {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of one identity.
    pub fn one(id: T) -> Self {
        [id].into_iter().collect()
    }

    /// Adds `id`; true when it was not there. Identities above [`MAX_ID`] are ignored.
    pub fn insert(&mut self, id: T) -> bool {
        if id.raw() > MAX_ID {
            return false;
        }
        let (word, bit) = (id.raw() as usize / 64, 1u64 << (id.raw() % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let was = self.words[word] & bit != 0;
        self.words[word] |= bit;
        !was
    }

    /// Removes `id`; true when it was there.
    pub fn remove(&mut self, id: T) -> bool {
        let was = self.contains(id);
        if was {
            self.words[id.raw() as usize / 64] &= !(1u64 << (id.raw() % 64));
            self.trim();
        }
        was
    }

    /// Whether `id` is in the set.
    pub fn contains(&self, id: T) -> bool {
        self.words.get(id.raw() as usize / 64).is_some_and(|w| w & (1u64 << (id.raw() % 64)) != 0)
    }

    /// How many identities the set holds.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set holds nothing.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest identity.
    pub fn first(&self) -> Option<T> {
        self.iter().next()
    }

    /// The identities in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(T::from_raw(index as u32 * 64 + bit))
            })
        })
    }

    /// What is in both.
    pub fn and(&self, other: &Self) -> Self {
        Self::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// How many identities are in both.
    pub fn common(&self, other: &Self) -> usize {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    /// What is in either.
    pub fn or(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (word, more) in words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        Self::from_words(words)
    }

    /// What is in `self` and not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        let mut words = self.words.clone();
        for (word, less) in words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        Self::from_words(words)
    }

    /// Whether every identity of `self` is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words
            .iter()
            .enumerate()
            .all(|(i, word)| word & !other.words.get(i).copied().unwrap_or(0) == 0)
    }

    /// Whether the two have anything in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Reads the kernel's list format: `0-3,8`, surrounded by white space or nothing.
    /// The empty list is the empty set. Time is linear in the text, but for sorting its ranges,
    /// however many overlap: what a command line says is anyone's.
    ///
    /// # Errors
    /// A part that is no number or ascending range, or a number above [`MAX_ID`].
    pub fn parse_list(text: &str) -> Result<Self, ListError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::new());
        }
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let bad = || ListError { part: part.chars().take(40).collect() };
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: u32 = low.trim().parse().map_err(|_| bad())?;
            let high: u32 = high.trim().parse().map_err(|_| bad())?;
            if low > high || high > MAX_ID {
                return Err(bad());
            }
            ranges.push((low, high));
        }
        ranges.sort_unstable();
        let mut words =
            vec![0; ranges.iter().map(|(_, high)| *high as usize / 64 + 1).max().unwrap_or(0)];
        let mut next = 0;
        for (low, high) in ranges {
            for raw in low.max(next)..=high {
                words[raw as usize / 64] |= 1u64 << (raw % 64);
            }
            next = next.max(high + 1);
        }
        Ok(Self::from_words(words))
    }

    fn from_words(words: Vec<u64>) -> Self {
        let mut set = Self { words, kind: PhantomData };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl<T: Id> FromIterator<T> for IdSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(ids: I) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl<T: Id> Extend<T> for IdSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<T: Id> fmt::Display for IdSet<T> {
    /// The kernel's list format; the empty set prints nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().map(Id::raw).peekable();
        let mut comma = "";
        while let Some(low) = ids.next() {
            let mut high = low;
            while let Some(next) = ids.next_if_eq(&(high + 1)) {
                high = next;
            }
            if low == high {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{high}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl<T: Id> fmt::Debug for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// As an array of numbers, ascending.
impl<T: Id> Serialize for IdSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Id::raw))
    }
}

impl<T: Id> JsonSchema for IdSet<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IdSet".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <Vec<u32>>::json_schema(generator)
    }
}

impl<'de, T: Id> Deserialize<'de> for IdSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Vec::<u32>::deserialize(deserializer)?;
        if let Some(large) = raw.iter().find(|r| **r > MAX_ID) {
            return Err(serde::de::Error::custom(format!("{large} is above {MAX_ID}")));
        }
        Ok(raw.into_iter().map(T::from_raw).collect())
    }
}

/// A part of a list that is not a number or an ascending range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` is not a number or range up to {MAX_ID} (lists look like 0-3,8)")]
pub struct ListError {
    /// The part, cut to 40 characters.
    pub part: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(ids: &BTreeSet<u32>) -> CpuSet {
        ids.iter().map(|id| CpuId(*id)).collect()
    }

    #[test]
    fn a_list_is_read_as_the_kernel_writes_it() {
        let read = CpuSet::parse_list(" 0-2,8\n").unwrap();
        assert_eq!(read.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert_eq!(read.to_string(), "0-2,8");
        assert_eq!(CpuSet::parse_list("\n").unwrap(), CpuSet::new());
    }

    #[test]
    fn a_bad_list_names_the_bad_part() {
        for bad in ["x", "3-1", "0-4294967295", "1,,2", "-", "70000"] {
            assert!(CpuSet::parse_list(bad).is_err(), "{bad}");
        }
        let error = CpuSet::parse_list("0-3,fish").unwrap_err();
        assert_eq!(error.part, "fish");
    }

    /// A command line of 2 MiB can be anyone's; bit by bit this took minutes.
    #[test]
    fn a_list_of_many_whole_ranges_costs_no_more_than_its_text() {
        let started = std::time::Instant::now();
        let all = CpuSet::parse_list(&vec!["0-65535"; 250_000].join(",")).unwrap();
        assert_eq!(all.to_string(), "0-65535");
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
        assert_eq!(CpuSet::parse_list("5-9,0-6,8,64-65,63").unwrap().to_string(), "0-9,63-65");
    }

    proptest! {
        #[test]
        fn operations_agree_with_an_ordinary_set(
            a in proptest::collection::btree_set(0u32..300, 0..40),
            b in proptest::collection::btree_set(0u32..300, 0..40),
        ) {
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x.and(&y), set(&a.intersection(&b).copied().collect()));
            prop_assert_eq!(x.or(&y), set(&a.union(&b).copied().collect()));
            prop_assert_eq!(x.minus(&y), set(&a.difference(&b).copied().collect()));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(CpuSet::parse_list(&x.to_string()).unwrap(), x.clone());
            let mut z = x.clone();
            for id in &b {
                prop_assert_eq!(z.remove(CpuId(*id)), a.contains(id));
            }
            prop_assert_eq!(z, x.minus(&y));
        }
    }
}
