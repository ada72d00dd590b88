//! Seeded randomness (SplitMix64): the same seed gives the same work on every machine.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// The stream of thread `index` under `seed`.
    pub fn new(seed: u64, index: usize) -> Self {
        let first = |seed| SplitMix64::seed_from_u64(seed).next_u64();
        Self(SplitMix64::seed_from_u64(first(first(seed).wrapping_add(index as u64))))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for small bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// `mean` made up to `percent` per cent larger or smaller, evenly spread.
    pub fn around(&mut self, mean: u64, percent: u32) -> u64 {
        let spread = mean * u64::from(percent) / 100;
        mean - spread + self.below(2 * spread + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_for_a_seed_and_differ_between_threads() {
        let take = |seed, index| {
            let mut rng = Rng::new(seed, index);
            [rng.draw(), rng.draw(), rng.draw()]
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn around_stays_in_its_range_and_keeps_the_mean() {
        let mut rng = Rng::new(7, 0);
        let mut sum = 0;
        for _ in 0..10_000 {
            let value = rng.around(1000, 20);
            assert!((800..=1200).contains(&value), "{value}");
            sum += value;
        }
        assert!((9_900_000..10_100_000).contains(&sum), "{sum}");
        assert_eq!(rng.around(1000, 0), 1000);
        assert_eq!(rng.around(0, 50), 0);
    }
}
