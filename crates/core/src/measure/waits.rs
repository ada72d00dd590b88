//! The distribution of waits for a CPU: counts by length, exact to an eighth, in constant memory.
//!
//! A length falls into one of eight equal parts of the power of two that holds it, so that a quantile
//! is up to 12.5 % too long, never too short. Lengths are nanoseconds.

/// Parts of a power of two, as a number of bits.
const BITS: u32 = 3;
const SLOTS: usize = 64 << BITS;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    longest: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { counts: vec![0; SLOTS], count: 0, sum: 0, longest: 0 }
    }
}

impl Waits {
    /// A wait of `ns` ended.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.add_alike(ns, 1);
    }

    /// So many waits of `ns` ended.
    #[inline]
    pub fn add_alike(&mut self, ns: u64, count: u64) {
        if count > 0 {
            self.counts[slot(ns)] += count;
            self.count += count;
            self.sum = self.sum.saturating_add(ns.saturating_mul(count));
            self.longest = self.longest.max(ns);
        }
    }

    /// Counts the waits of another vCPU here, too.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.longest) = (0, 0, 0);
    }

    /// How many waits.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean length; 0 without any.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// The longest.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// A length that this many thousandths of the waits do not exceed; 0 without any.
    pub fn quantile(&self, milli: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(milli)).div_ceil(1000);
        let mut seen = 0u128;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= rank {
                return end(slot).min(self.longest);
            }
        }
        0
    }

    /// Upper ends of the occupied slots and their counts, shortest first.
    pub fn slots(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let occupied = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        occupied.map(|(slot, count)| (end(slot), *count))
    }
}

fn slot(ns: u64) -> usize {
    if ns < 1 << BITS {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let part = (ns >> (power - BITS)) as usize & ((1 << BITS) - 1);
    ((power - BITS + 1) as usize) << BITS | part
}

/// The longest length of a slot.
fn end(slot: usize) -> u64 {
    if slot < 1 << BITS {
        return slot as u64;
    }
    let power = (slot >> BITS) as u32 + BITS - 1;
    let part = (slot & ((1 << BITS) - 1)) as u128 + 1;
    let end = (1u128 << power) + (part << (power - BITS)) - 1;
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_too_long_by_an_eighth_at_most() {
        let mut waits = Waits::default();
        (1..=1000).for_each(|ms| waits.add(ms * 1_000_000));
        for milli in [10, 500, 900, 990] {
            let (found, exact) = (waits.quantile(milli), milli * 1_000_000);
            assert!(found >= exact && found <= exact + exact / 8 + 1, "{milli}: {found}");
        }
        assert_eq!(waits.quantile(1000), 1_000_000_000);
        assert_eq!((waits.count(), waits.mean()), (1000, 500_500_000));
        assert_eq!(Waits::default().quantile(500), 0);
    }

    proptest! {
        #[test]
        fn every_length_lies_in_a_slot_that_ends_within_an_eighth_of_it(ns in any::<u64>()) {
            let end = end(slot(ns));
            prop_assert!(end >= ns && end - ns <= ns / 8);
        }
    }
}
