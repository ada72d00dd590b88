//! How long vCPUs wait for a CPU: from the histogram that the scheduler keeps (`bpf/waits.bpf.h`) to the measure that simulations
//! have, too.

use instep_core::measure::waits::Waits;

/// Classes of waits (`INSTEP_WAITS`): by the number of bits of their microseconds.
pub const CLASSES: usize = 32;

/// The waits of one vCPU, as the scheduler counts them. The measure takes 4 KiB, thirty times as much as this: a large host has 32,768
/// vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitClasses {
    /// How many waits there were in each class.
    pub counts: [u32; CLASSES],
    /// The longest in microseconds.
    pub longest_us: u32,
}

impl WaitClasses {
    /// Counts these waits there, too. Each counts as long as the longest of its class, so that a quantile is at most 2.25 times the
    /// exact one, if that is 1 us or more.
    pub fn add_to(&self, waits: &mut Waits) {
        let longest = u64::from(self.longest_us) * 1000;
        for (bits, count) in self.counts.iter().enumerate() {
            let end = (1000_u64 << bits) - 1;
            waits.add_alike(end.min(longest), (*count).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(of: &[(usize, u32)], longest_us: u32) -> Waits {
        let mut counts = [0; CLASSES];
        of.iter().for_each(|(bits, count)| counts[*bits] = *count);
        let mut waits = Waits::default();
        WaitClasses { counts, longest_us }.add_to(&mut waits);
        waits
    }

    #[test]
    fn quantiles_are_the_upper_ends_of_their_classes() {
        // 90 waits of less than 1 us, 9 of 512 to 1,023 us, one of 70 ms.
        let all = waits(&[(0, 90), (10, 9), (17, 1)], 70_000);
        assert_eq!((all.count(), all.longest()), (100, 70_000_000));
        let us = |milli| all.quantile(milli) / 1000;
        assert_eq!(
            [0, 500, 900, 910, 990, 991, 1000].map(us),
            [1, 1, 1, 1048, 1048, 70_000, 70_000]
        );
        assert_eq!(waits(&[], 0).quantile(990), 0);
    }

    #[test]
    fn waits_of_a_vm_are_those_of_its_vcpus() {
        let mut vm = waits(&[(3, 1)], 7);
        vm.merge(&waits(&[(3, 2), (31, 1)], u32::MAX));
        assert_eq!((vm.count(), vm.quantile(750) / 1000), (4, 8));
        assert_eq!(vm.quantile(1000), (1000 << 31) - 1);
    }
}
