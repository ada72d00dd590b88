//! The measures of a schedule, kept as integrals over time in integers. The simulator and the trace analysis
//! report each change of a schedule, in order of time, and read the sums.
//!
//! Definitions: *stacking* is the part of the time in which two or more siblings are runnable on one
//! CPU. *Co-run* is the mean part of a VM's runnable vCPUs that run, over the time in which at least
//! one runs. *Competing modules* (systems.md, 1) is the sum over cores, and over pairs of a core's
//! CPUs, of the product of their utilisations, second by second. *Fair share* is what a VM gets of
//! the host by weight when what others cannot use is shared again. *Skew* is in [`skew`], with the one type of change that
//! measures are made of; how long waits for a CPU are is in [`waits`]. Nothing here knows who schedules.

pub mod skew;
pub mod waits;

use crate::units::{Milli, Nanos};

/// Parts per this many in [`VmMeter`]'s co-run sum.
const PARTS: u64 = 1_000_000;

/// What is integrated of one VM. Times are nanoseconds of the caller's clock, never going back.
#[derive(Clone, Debug, Default)]
pub struct VmMeter {
    since: u64,
    runnable: u32,
    running: u32,
    stacked_cpus: u32,
    sums: VmSums,
}

/// The sums of a [`VmMeter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmSums {
    /// Time measured.
    pub elapsed: u64,
    /// Time with two or more siblings runnable on one CPU.
    pub stacked: u64,
    /// Time with at least one vCPU running.
    pub active: u64,
    /// vCPU time running.
    pub running: u64,
    /// vCPU time runnable but not running: steal.
    pub waiting: u64,
    /// Millionths of the runnable vCPUs that ran, times nanoseconds, while at least one ran.
    pub co_run: u128,
}

impl VmMeter {
    /// Adds the time up to `now` to the sums.
    #[inline]
    pub fn advance(&mut self, now: u64) {
        let span = now.saturating_sub(self.since);
        if span == 0 {
            return;
        }
        self.since = now;
        let sums = &mut self.sums;
        sums.elapsed += span;
        sums.stacked += if self.stacked_cpus > 0 { span } else { 0 };
        sums.running += span * u64::from(self.running);
        sums.waiting += span * u64::from(self.runnable.saturating_sub(self.running));
        if self.running > 0 {
            sums.active += span;
            let part = u64::from(self.running) * PARTS / u64::from(self.runnable.max(1));
            sums.co_run += u128::from(span) * u128::from(part);
        }
    }

    /// One CPU more (1) or less (-1) holds two or more of the VM's runnable vCPUs.
    #[inline]
    pub fn stacked(&mut self, now: u64, change: i32) {
        self.advance(now);
        self.stacked_cpus = self.stacked_cpus.saturating_add_signed(change);
    }

    /// So many more vCPUs run.
    #[inline]
    pub fn running(&mut self, now: u64, change: i32) {
        self.advance(now);
        self.running = self.running.saturating_add_signed(change);
    }

    /// So many more vCPUs are runnable, running ones included.
    #[inline]
    pub fn runnable(&mut self, now: u64, change: i32) {
        self.advance(now);
        self.runnable = self.runnable.saturating_add_signed(change);
    }

    /// Forgets the sums, not the state: what came before `now` was warming up.
    pub fn reset(&mut self, now: u64) {
        self.advance(now);
        self.sums = VmSums::default();
    }

    /// The sums up to `now`.
    pub fn sums(&mut self, now: u64) -> VmSums {
        self.advance(now);
        self.sums
    }
}

impl VmSums {
    /// *Stacking*, in thousandths of the time.
    pub fn stacking(&self) -> Milli {
        Nanos(self.stacked).milli_of(Nanos(self.elapsed))
    }

    /// *Co-run*, in thousandths; 1000 when nothing ran.
    pub fn co_run(&self) -> Milli {
        if self.active == 0 {
            return Milli(1000);
        }
        let part = self.co_run / u128::from(self.active) / u128::from(PARTS / 1000);
        Milli(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// *Competing modules* of one window, in millionths of a module: `busy` is each CPU's busy time in
/// the window, `cores` the CPUs of each core. Two CPUs of a core half busy count 250,000.
pub fn competing_modules<C>(busy: &[u64], window: u64, cores: impl IntoIterator<Item = C>) -> u64
where
    C: IntoIterator<Item = usize>,
{
    if window == 0 {
        return 0;
    }
    let part = |cpu: usize| {
        u128::from(busy.get(cpu).copied().unwrap_or(0)) * 1_000_000 / u128::from(window)
    };
    let mut sum = 0;
    for core in cores {
        let (mut seen, mut pairs) = (0, 0);
        for cpu in core {
            pairs += seen * part(cpu);
            seen += part(cpu);
        }
        sum += pairs / 1_000_000;
    }
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// What each of the claims `(weight, most)` gets of `capacity` by weight, nobody more than its
/// `most`; what one cannot use the others share again. Units are the caller's (thousandths of a
/// CPU). Sums to `capacity` or to all that is wanted, up to rounding down.
pub fn fair_shares(capacity: u64, claims: &[(u64, u64)]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..claims.len()).filter(|at| claims[*at].0 > 0).collect();
    let need = |at: usize| u128::from(claims[at].1) * (1 << 32) / u128::from(claims[at].0);
    order.sort_by_key(|at| (need(*at), *at));
    let mut weights: u128 = order.iter().map(|at| u128::from(claims[*at].0)).sum();
    let (mut left, mut shares) = (u128::from(capacity), vec![0; claims.len()]);
    for at in order {
        let weight = u128::from(claims[at].0);
        let share = (left * weight / weights).min(u128::from(claims[at].1));
        shares[at] = u64::try_from(share).unwrap_or(u64::MAX);
        left -= share;
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stacked_time_counts_once_however_many_cpus_are_stacked() {
        let mut meter = VmMeter::default();
        meter.stacked(10, 1);
        meter.stacked(20, 1);
        meter.stacked(30, -1);
        meter.stacked(40, -1);
        assert_eq!(meter.sums(60).stacking(), Milli(500));
    }

    #[test]
    fn co_run_counts_only_time_in_which_somebody_runs() {
        let mut meter = VmMeter::default();
        meter.runnable(0, 4);
        meter.running(100, 2);
        meter.running(200, 2);
        let sums = meter.sums(300);
        assert_eq!((sums.co_run(), sums.active), (Milli(750), 200));
        assert_eq!((sums.running, sums.waiting), (600, 600));
        meter.reset(300);
        assert_eq!(meter.sums(400).co_run(), Milli(1000));
    }

    #[test]
    fn half_busy_siblings_compete_for_a_quarter_of_a_module() {
        let cores = || [[0, 1], [2, 3]];
        assert_eq!(competing_modules(&[50, 50, 100, 0], 100, cores()), 250_000);
        assert_eq!(competing_modules(&[100, 100, 100, 100], 100, cores()), 2_000_000);
        assert_eq!(competing_modules(&[100; 4], 100, [[0, 1, 2, 3]]), 6_000_000);
        assert_eq!(competing_modules(&[], 0, cores()), 0);
    }

    #[test]
    fn what_one_cannot_use_the_others_share() {
        assert_eq!(fair_shares(4000, &[(100, 4000), (100, 1000), (200, 4000)]), [1000, 1000, 2000]);
        assert_eq!(fair_shares(4000, &[(100, 500), (100, 4000)]), [500, 3500]);
        assert_eq!(fair_shares(4000, &[(0, 500), (1, 100)]), [0, 100]);
    }

    proptest! {
        #[test]
        fn shares_use_all_there_is_and_exceed_no_demand(
            capacity in 0u64..100_000,
            claims in proptest::collection::vec((1u64..10_000, 0u64..50_000), 1..20),
        ) {
            let shares = fair_shares(capacity, &claims);
            let wanted: u64 = claims.iter().map(|claim| claim.1).sum();
            let given: u64 = shares.iter().sum();
            prop_assert!(shares.iter().zip(&claims).all(|(share, claim)| *share <= claim.1));
            prop_assert!(given <= capacity.min(wanted));
            prop_assert!(given + claims.len() as u64 >= capacity.min(wanted));
        }
    }
}
