//! A set of the host's CPUs by index, of fixed size: what schedulers search in.
//!
//! Unlike core's sets it never grows or allocates after it was made. CPUs are indices from 0,
//! not the kernel's numbers.

use std::fmt;

/// A set of CPU indices.
#[derive(Clone, PartialEq, Eq)]
pub struct Mask {
    words: Box<[u64]>,
}

impl Mask {
    /// The empty set, for a host of `cpus` CPUs.
    #[must_use]
    pub fn none(cpus: usize) -> Self {
        Self { words: vec![0; cpus.div_ceil(64)].into() }
    }

    /// All of `cpus` CPUs.
    #[must_use]
    pub fn all(cpus: usize) -> Self {
        Self::of(cpus, 0..cpus)
    }

    /// These CPUs; what is not below `cpus` is left out.
    #[must_use]
    pub fn of(cpus: usize, members: impl IntoIterator<Item = usize>) -> Self {
        let mut mask = Self::none(cpus);
        members.into_iter().filter(|member| *member < cpus).for_each(|member| mask.set(member));
        mask
    }

    /// Adds a CPU.
    #[inline]
    pub fn set(&mut self, cpu: usize) {
        self.words[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Removes a CPU.
    #[inline]
    pub fn clear(&mut self, cpu: usize) {
        self.words[cpu / 64] &= !(1 << (cpu % 64));
    }

    /// Whether a CPU is in it.
    #[inline]
    #[must_use]
    pub fn has(&self, cpu: usize) -> bool {
        self.words[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    /// How many CPUs are in it.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether there is a CPU in both.
    #[must_use]
    pub fn meets(&self, other: &Mask) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// How many CPUs are in both.
    #[must_use]
    pub fn common(&self, other: &Mask) -> u32 {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn covers(&self, other: &Mask) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| b & !a == 0)
    }

    /// Makes it a copy of `other`.
    pub fn copy(&mut self, other: &Mask) {
        self.words.copy_from_slice(&other.words);
    }

    /// Keeps what is in `other`, too.
    pub fn keep(&mut self, other: &Mask) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= b);
    }

    /// Removes what is in `other`.
    pub fn remove(&mut self, other: &Mask) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= !b);
    }

    /// The lowest CPU.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.from(0)
    }

    /// The lowest CPU of those from `start` on.
    #[inline]
    #[must_use]
    pub fn from(&self, start: usize) -> Option<usize> {
        let mut at = start / 64;
        let mut word = self.words.get(at)? & (u64::MAX << (start % 64));
        loop {
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            at += 1;
            word = *self.words.get(at)?;
        }
    }

    /// The lowest CPU of those from `start` on that is in both.
    #[inline]
    #[must_use]
    pub fn first_common(&self, other: &Mask, start: usize) -> Option<usize> {
        let mut at = start / 64;
        let mut keep = u64::MAX << (start % 64);
        loop {
            let word = self.words.get(at)? & other.words.get(at)? & keep;
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            (at, keep) = (at + 1, u64::MAX);
        }
    }

    /// The first CPU after `cpu`, going round (Xen's `cpumask_cycle`); `cpu` itself only if it is
    /// the only one.
    #[must_use]
    pub fn after(&self, cpu: usize) -> Option<usize> {
        self.from(cpu + 1).or_else(|| self.first())
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut next = self.first();
        std::iter::from_fn(move || {
            let cpu = next?;
            next = self.from(cpu + 1);
            Some(cpu)
        })
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_round_passes_every_cpu_and_comes_back() {
        let mask = Mask::of(130, [0, 63, 64, 129]);
        assert_eq!(mask.after(0), Some(63));
        assert_eq!(mask.after(63), Some(64));
        assert_eq!(mask.after(64), Some(129));
        assert_eq!(mask.after(129), Some(0));
        assert_eq!(Mask::of(130, [5]).after(5), Some(5));
        assert_eq!(Mask::none(130).after(5), None);
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 63, 64, 129]);
    }

    #[test]
    fn sets_are_cut_joined_and_compared() {
        let (a, b) = (Mask::of(70, [1, 2, 69]), Mask::of(70, [2, 69]));
        assert!(a.covers(&b) && !b.covers(&a) && a.meets(&b));
        assert_eq!((a.first_common(&b, 0), a.first_common(&b, 3)), (Some(2), Some(69)));
        assert_eq!((a.common(&b), a.count(), Mask::all(70).count()), (2, 3, 70));
        let mut rest = a.clone();
        rest.remove(&b);
        assert_eq!(rest, Mask::of(70, [1]));
    }
}
