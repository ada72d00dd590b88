//! How long vCPUs wait for a CPU: histograms as the scheduler keeps them (`bpf/waits.bpf.h`), and what they tell.

/// Classes of waits (`INSTEP_WAITS`): by the number of bits of their microseconds.
pub const CLASSES: usize = 32;

/// Waits of a vCPU, or of all of a VM, since they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    counts: [u64; CLASSES],
    longest_us: u64,
}

impl Waits {
    /// Of one vCPU.
    #[must_use]
    pub fn of(counts: &[u32; CLASSES], longest_us: u32) -> Self {
        Self { counts: counts.map(u64::from), longest_us: longest_us.into() }
    }

    /// Those of another vCPU belong to these, too.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest, in microseconds.
    #[must_use]
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }

    /// Such a part of them, from 0 to 1, was at most so long, in microseconds: less than twice the exact quantile. 0 when there were none.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> u64 {
        let wanted = (part * self.count() as f64).ceil().max(1.0);
        let mut sum = 0;
        for (bits, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum as f64 >= wanted {
                return ((1u64 << bits) - 1).min(self.longest_us);
            }
        }
        self.longest_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(of: &[(usize, u32)], longest_us: u32) -> Waits {
        let mut counts = [0; CLASSES];
        of.iter().for_each(|(bits, count)| counts[*bits] = *count);
        Waits::of(&counts, longest_us)
    }

    #[test]
    fn quantiles_are_the_upper_ends_of_their_classes() {
        // 90 waits of less than 1 us, 9 of 512 to 1,023 us, one of 70 ms.
        let all = waits(&[(0, 90), (10, 9), (17, 1)], 70_000);
        assert_eq!((all.count(), all.longest_us()), (100, 70_000));
        let parts = [0.0, 0.5, 0.9, 0.91, 0.99, 0.991, 1.0];
        assert_eq!(parts.map(|part| all.quantile_us(part)), [0, 0, 0, 1023, 1023, 70_000, 70_000]);
        assert_eq!(Waits::default().quantile_us(0.99), 0);
    }

    #[test]
    fn waits_of_a_vm_are_those_of_its_vcpus() {
        let mut vm = waits(&[(3, 1)], 7);
        vm.add(&waits(&[(3, 2), (31, 1)], u32::MAX));
        assert_eq!((vm.count(), vm.quantile_us(0.75), vm.longest_us()), (4, 7, u32::MAX.into()));
        assert_eq!(vm.quantile_us(1.0), (1 << 31) - 1);
    }
}
