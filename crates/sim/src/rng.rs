//! Seeded randomness: xoshiro256++ (Blackman and Vigna, 2019), seeded by SplitMix64. Integers only,
//! so a seed gives the same run on every machine. It does not know what its numbers are for.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream of this seed; every seed is fine, 0 too.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for small bounds.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// `mean` made up to `percent` per cent larger or smaller, evenly spread; `mean` itself
    /// without drawing when `percent` is 0.
    #[inline]
    pub fn around(&mut self, mean: u64, percent: u32) -> u64 {
        if percent == 0 {
            return mean;
        }
        let spread = mean / 100 * u64::from(percent) + mean % 100 * u64::from(percent) / 100;
        (mean - spread.min(mean)).saturating_add(self.below(spread.saturating_mul(2) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_for_a_seed_and_differ_between_seeds() {
        let take = |seed| {
            let mut rng = Rng::new(seed);
            [rng.draw(), rng.draw(), rng.draw()]
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(0), take(1));
    }

    #[test]
    fn the_stream_of_seed_one_is_written_down() {
        // A change of the algorithm would change every published result.
        let mut rng = Rng::new(1);
        assert_eq!([rng.draw(), rng.draw()], [0xcfc5_d07f_6f03_c29b, 0xbf42_4132_963f_e08d]);
    }

    #[test]
    fn around_stays_in_its_range_and_keeps_the_mean() {
        let mut rng = Rng::new(7);
        let mut sum = 0;
        for _ in 0..10_000 {
            let value = rng.around(1000, 20);
            assert!((800..=1200).contains(&value), "{value}");
            sum += value;
        }
        assert!((9_900_000..10_100_000).contains(&sum), "{sum}");
        assert_eq!((rng.around(1000, 0), rng.around(0, 50)), (1000, 0));
    }
}
