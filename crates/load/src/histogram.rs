//! Latencies, counted in buckets: percentiles to 3 %, without allocation or locks while counting.
//!
//! A power of two is cut into 32 equal buckets; values below 32 are exact. One thread counts, any
//! thread may take a [`Tally`] meanwhile: it then misses at most what is being counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Buckets for every u64.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// The counters that one thread writes.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { counts, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one value. For one thread at a time.
    pub fn record(&self, value: u64) {
        let add = |counter: &AtomicU64, by: u64| {
            counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
        };
        add(&self.counts[bucket(value)], 1);
        add(&self.sum, value);
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// Adds what was counted so far to `tally`.
    pub fn add_to(&self, tally: &mut Tally) {
        for (into, from) in tally.counts.iter_mut().zip(&self.counts) {
            *into += from.load(Relaxed);
        }
        tally.sum = tally.sum.wrapping_add(self.sum.load(Relaxed));
        tally.max = tally.max.max(self.max.load(Relaxed));
    }
}

/// Counts at one moment, of one thread or many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    counts: Box<[u64]>,
    sum: u64,
    max: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), sum: 0, max: 0 }
    }
}

impl Tally {
    /// What came since `earlier`. The largest value is then known as a bucket only.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts: Box<[u64]> = self
            .counts
            .iter()
            .zip(&earlier.counts)
            .map(|(now, before)| now.saturating_sub(*before))
            .collect();
        let highest = counts.iter().rposition(|count| *count > 0);
        let max = highest.map_or(0, |index| upper(index).min(self.max));
        Self { counts, sum: self.sum.wrapping_sub(earlier.sum), max }
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their mean; 0 when there are none.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count()).unwrap_or(0)
    }

    /// The largest; 0 when there are none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `percent` per cent do not exceed (nearest rank), at most 3 % too high; 0
    /// when there are none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count()) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0_u128;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return upper(index).min(self.max);
            }
        }
        self.max
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let Some(exponent) = value.checked_ilog2().filter(|exponent| *exponent >= SUB_BITS) else {
        return value as usize;
    };
    let within = (value >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + within
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let lower = ((SUB + bucket % SUB) as u64) << shift;
    lower + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tally(values: impl IntoIterator<Item = u64>) -> Tally {
        let histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        let mut tally = Tally::default();
        histogram.add_to(&mut tally);
        tally
    }

    #[test]
    fn percentiles_of_known_data_are_within_a_thirtieth() {
        let tally = tally(1..=100_000);
        assert_eq!(tally.count(), 100_000);
        assert_eq!(tally.mean(), 50_000);
        assert_eq!(tally.max(), 100_000);
        for percent in [1, 50, 90, 99, 100] {
            let (exact, got) = (percent * 1000, tally.percentile(percent));
            assert!((exact..=exact + exact / 30).contains(&got), "p{percent}: {got}");
        }
    }

    #[test]
    fn small_values_are_exact_and_nothing_is_zero() {
        let few = tally([3, 1, 2, 31]);
        assert_eq!([25, 50, 75, 100].map(|p| few.percentile(p)), [1, 2, 3, 31]);
        let none = tally([]);
        assert_eq!((none.count(), none.mean(), none.max(), none.percentile(99)), (0, 0, 0, 0));
    }

    #[test]
    fn a_window_holds_only_what_came_in_it() {
        let histogram = Histogram::default();
        histogram.record(1_000_000);
        let mut before = Tally::default();
        histogram.add_to(&mut before);
        histogram.record(10);
        let mut after = Tally::default();
        histogram.add_to(&mut after);
        let window = after.since(&before);
        assert_eq!((window.count(), window.max(), window.mean()), (1, 10, 10));
        assert_eq!(after.max(), 1_000_000);
    }

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket(value: u64) {
            let index = bucket(value);
            prop_assert!(index < BUCKETS);
            prop_assert!(upper(index) >= value);
            prop_assert!(index == 0 || upper(index - 1) < value);
            prop_assert!(upper(index) - value <= value / 32);
        }
    }

    #[test]
    fn the_largest_value_has_the_last_bucket() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper(BUCKETS - 1), u64::MAX);
    }
}
