//! A set of the host's CPUs by index, of fixed size: what schedulers search in.
//!
//! Unlike core's sets it never grows or allocates after it was made. CPUs are indices from 0,
//! not the kernel's numbers.

use std::fmt;

/// A set of CPU indices.
#[derive(Clone)]
pub struct Mask {
    words: Box<[u64]>,
    /// No word before this one has a member, nor any from the second one on: what is searched of the
    /// masks of cores and caches does not grow with the host.
    low: usize,
    end: usize,
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl Eq for Mask {}

impl Mask {
    /// The empty set, for a host of `cpus` CPUs.
    pub fn none(cpus: usize) -> Self {
        let words: Box<[u64]> = vec![0; cpus.div_ceil(64)].into();
        Self { low: words.len(), end: 0, words }
    }

    /// All of `cpus` CPUs.
    pub fn all(cpus: usize) -> Self {
        Self::of(cpus, 0..cpus)
    }

    /// These CPUs; what is not below `cpus` is left out.
    pub fn of(cpus: usize, members: impl IntoIterator<Item = usize>) -> Self {
        let mut mask = Self::none(cpus);
        members.into_iter().filter(|member| *member < cpus).for_each(|member| mask.set(member));
        mask
    }

    /// Adds a CPU.
    #[inline]
    pub fn set(&mut self, cpu: usize) {
        let at = cpu / 64;
        self.words[at] |= 1 << (cpu % 64);
        (self.low, self.end) = (self.low.min(at), self.end.max(at + 1));
    }

    /// Removes a CPU.
    #[inline]
    pub fn clear(&mut self, cpu: usize) {
        self.words[cpu / 64] &= !(1 << (cpu % 64));
    }

    /// Removes all CPUs.
    #[inline]
    pub fn clear_all(&mut self) {
        self.words[self.low.min(self.end)..self.end].fill(0);
        (self.low, self.end) = (self.words.len(), 0);
    }

    /// Whether a CPU is in it.
    #[inline]
    pub fn has(&self, cpu: usize) -> bool {
        self.words[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    /// How many CPUs are in it.
    pub fn count(&self) -> u32 {
        self.used().iter().map(|word| word.count_ones()).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.used().iter().all(|word| *word == 0)
    }

    /// Whether there is a CPU in both.
    pub fn meets(&self, other: &Mask) -> bool {
        self.common_words(other).any(|word| word != 0)
    }

    /// How many CPUs are in both.
    pub fn common(&self, other: &Mask) -> u32 {
        self.common_words(other).map(u64::count_ones).sum()
    }

    /// Whether all of `other` is in it.
    pub fn covers(&self, other: &Mask) -> bool {
        (other.low..other.end).all(|at| other.words[at] & !self.words[at] == 0)
    }

    /// Makes it a copy of `other`.
    pub fn copy(&mut self, other: &Mask) {
        self.words[self.low.min(self.end)..self.end].fill(0);
        let used = other.low.min(other.end)..other.end;
        self.words[used.clone()].copy_from_slice(&other.words[used]);
        (self.low, self.end) = (other.low, other.end);
    }

    /// Keeps what is in `other`, too.
    pub fn keep(&mut self, other: &Mask) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= b);
    }

    /// Removes what is in `other`.
    pub fn remove(&mut self, other: &Mask) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= !b);
    }

    /// The words that may have members.
    fn used(&self) -> &[u64] {
        &self.words[self.low.min(self.end)..self.end]
    }

    /// The words of what is in both.
    fn common_words(&self, other: &Mask) -> impl Iterator<Item = u64> {
        let both = self.low.max(other.low)..self.end.min(other.end);
        both.map(|at| self.words[at] & other.words[at])
    }

    /// The lowest CPU.
    #[inline]
    pub fn first(&self) -> Option<usize> {
        self.from(0)
    }

    /// The lowest CPU of those from `start` on.
    #[inline]
    pub fn from(&self, start: usize) -> Option<usize> {
        let mut at = start / 64;
        let mut keep = u64::MAX << (start % 64);
        if at < self.low {
            (at, keep) = (self.low, u64::MAX);
        }
        while at < self.end {
            let word = self.words[at] & keep;
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            (at, keep) = (at + 1, u64::MAX);
        }
        None
    }

    /// The lowest CPU of those from `start` on that is in both.
    #[inline]
    pub fn first_common(&self, other: &Mask, start: usize) -> Option<usize> {
        let mut at = start / 64;
        let mut keep = u64::MAX << (start % 64);
        let low = self.low.max(other.low);
        if at < low {
            (at, keep) = (low, u64::MAX);
        }
        while at < self.end.min(other.end) {
            let word = self.words[at] & other.words[at] & keep;
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            (at, keep) = (at + 1, u64::MAX);
        }
        None
    }

    /// The first CPU after `cpu`, going round (Xen's `cpumask_cycle`); `cpu` itself only if it is
    /// the only one.
    pub fn after(&self, cpu: usize) -> Option<usize> {
        self.from(cpu + 1).or_else(|| self.first())
    }

    /// The CPUs, ascending.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut words = self.used().iter();
        let (mut left, mut after) = (0, 64 * self.low);
        std::iter::from_fn(move || {
            while left == 0 {
                left = *words.next()?;
                after += 64;
            }
            let cpu = after - 64 + left.trailing_zeros() as usize;
            left &= left - 1;
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
    fn a_copy_forgets_what_was_there() {
        let mut mask = Mask::of(200, [3, 70]);
        mask.copy(&Mask::of(200, [130, 190]));
        assert_eq!(mask.iter().collect::<Vec<_>>(), [130, 190]);
        assert_eq!(mask, Mask::of(200, [130, 190]));
        mask.set(5);
        assert_eq!((mask.first(), mask.from(6), mask.from(191)), (Some(5), Some(130), None));
        assert_eq!(mask.first_common(&Mask::of(200, [5, 190]), 6), Some(190));
        mask.copy(&Mask::none(200));
        assert_eq!((mask.first(), mask.count(), mask.is_empty()), (None, 0, true));
        assert!(Mask::all(200).covers(&mask) && !mask.meets(&Mask::all(200)));
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
