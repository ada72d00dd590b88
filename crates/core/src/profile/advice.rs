//! What a profile advises for a VM: how many vCPUs, which allocation period, whether its time should
//! follow its work, and whether co-scheduling would pay. Each answer carries its numbers.
//!
//! Speed at fewer vCPUs is Amdahl's, interval by interval: what ran on `p` of N threads is taken for
//! a part on one thread and a part on all. That knows neither caches nor the cost of
//! synchronisation, both of which make fewer vCPUs look worse than they are. What co-scheduling does
//! was measured (docs/performance.md): it gives a spinning guest its share and ruins a blocking one.

use super::{ApplicationKind, Profile, Spinning, Watched, in_periods, potential};
use crate::units::{Milli, Nanos};

/// Allocation periods in question, in milliseconds (systems.md, 5).
pub const PERIODS_MS: [u64; 4] = [24, 48, 96, 192];
/// Fewer vCPUs are advised while they keep this part of the speed.
const KEPT: u64 = 900;
/// A longer period is advised when it raises the potential by at least this much.
const WORTH: u64 = 20;

/// What follows from a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The vCPUs: all with high parallelism, else the fewest that keep nine tenths of the speed by
    /// Amdahl's law; and the part they keep.
    pub vcpus: (u32, Milli),
    /// The potential at the share asked for, by allocation period.
    pub potential: Vec<(Nanos, Milli)>,
    /// The shortest period that has nearly the best potential of all.
    pub period: Nanos,
    /// Whether the VM's time should go to its vCPUs by their demand.
    pub match_work: bool,
    /// Whether its vCPUs should run together.
    pub together: CoScheduling,
}

/// Whether co-scheduling would pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoScheduling {
    /// It waits busily: time that is lost unless its vCPUs run together.
    Pays,
    /// It blocks often: while its siblings run together, the time of those that block is wasted.
    Harms,
    /// It does not block and waits a little in spin loops even alone; beside others it may wait longer.
    MayPay,
    /// It neither blocks nor waits busily: it computes, and co-scheduling neither helps nor costs.
    Indifferent,
    /// It does not block, and whether it spins could not be told.
    IfItSpins,
    /// One thread has nobody to run with.
    Alone,
}

impl Advice {
    /// What `watched` and its `profile` advise for a VM with this share of its vCPUs' time;
    /// `period` is the allocation period now. `None` for a program that is hardly active: it has no type, any VM
    /// serves it, and advice would be drawn from noise.
    pub fn of(watched: &Watched, profile: &Profile, share: Milli, period: Nanos) -> Option<Self> {
        profile.kind?;
        let mut periods: Vec<Nanos> = PERIODS_MS.iter().map(|ms| Nanos(ms * 1_000_000)).collect();
        periods.push(period);
        periods.sort_unstable();
        periods.dedup();
        let bound = |period: &Nanos| potential(watched, profile.threads, share, *period);
        let potential: Vec<(Nanos, Milli)> =
            periods.iter().filter_map(|period| Some((*period, bound(period)?))).collect();
        let best = potential.iter().map(|(_, bound)| bound.0).max().unwrap_or(0);
        let enough = potential.iter().find(|(_, bound)| bound.0 + WORTH > best);
        Some(Self {
            vcpus: size(watched, profile),
            period: enough.map_or(period, |(enough, _)| *enough),
            potential,
            match_work: profile.threads > 1 && is_low(profile),
            together: together(profile),
        })
    }
}

fn is_low(profile: &Profile) -> bool {
    matches!(profile.kind, Some(ApplicationKind::LowHigh | ApplicationKind::LowLow))
}

fn together(profile: &Profile) -> CoScheduling {
    match profile.spinning() {
        _ if profile.threads < 2 => CoScheduling::Alone,
        Spinning::Often => CoScheduling::Pays,
        _ if profile.synchronises_often() => CoScheduling::Harms,
        Spinning::Seldom => CoScheduling::MayPay,
        Spinning::Hardly => CoScheduling::Indifferent,
        Spinning::Unknown => CoScheduling::IfItSpins,
    }
}

/// The fewest vCPUs that keep nine tenths of the speed of all, if parallelism is low; else all.
fn size(watched: &Watched, profile: &Profile) -> (u32, Milli) {
    let all = profile.threads;
    if !is_low(profile) {
        return (all, Milli(1000));
    }
    let progress = 1000 - profile.busy_waiting.map_or(0, |part| part.0.min(1000));
    // Longer spans are enough here, and bound the work: 256 sizes times each span.
    let period = Nanos((profile.elapsed.0 / 1000).max(1));
    let spans: Vec<(u64, Milli)> = in_periods(&watched.intervals, all, period)
        .into_iter()
        .map(|(length, active)| (length.0, Milli(active.milli_of(length).0 * progress / 1000)))
        .collect();
    let speed = |vcpus: u32| {
        let (mut now, mut then) = (0u128, 0u128);
        for (length, parallelism) in &spans {
            now += u128::from(*length);
            then += stretched(*length, *parallelism, all, vcpus);
        }
        Milli(u64::try_from(now * 1000 / then.max(1)).unwrap_or(1000).min(1000))
    };
    let (mut low, mut high) = (1, all);
    // The speed grows with the vCPUs, so the fewest that are enough are found by halving.
    while low < high {
        let middle = low + (high - low) / 2;
        if speed(middle).0 >= KEPT {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    (low, speed(low))
}

/// How long a span of `length` with this parallelism on `all` threads takes on `vcpus`.
fn stretched(length: u64, parallelism: Milli, all: u32, vcpus: u32) -> u128 {
    let length = u128::from(length);
    if parallelism.0 <= 1000 || all <= 1 {
        return length;
    }
    // parallelism = ((1 - a) + a * N): the part `a` of the span ran on all N, the rest on one.
    let wide = u128::from(parallelism.0 - 1000) * 1000 / u128::from(all - 1);
    let wide = length * wide.min(1_000_000) / 1_000_000;
    (length - wide) + wide * u128::from(all) / u128::from(vcpus)
}

#[cfg(test)]
mod tests {
    use super::super::Interval;
    use super::*;

    const MS: u64 = 1_000_000;

    fn advice(runs: &[u64], threads: u32, voluntary: u64, waiting: Option<u64>) -> Advice {
        let interval =
            |run: &u64| Interval { length: Nanos(24 * MS), run: Nanos(run * MS), wait: Nanos(0) };
        let watched = Watched {
            cpus: threads,
            intervals: runs.iter().map(interval).collect(),
            workers: Some(threads),
            voluntary,
            busy_waiting: waiting.map(Milli),
            ..Watched::default()
        };
        let (share, period) = (Milli(500), Nanos(24 * MS));
        Advice::of(&watched, &Profile::of(&watched, share, period), share, period).unwrap()
    }

    #[test]
    fn advised_size_is_the_number_of_threads_that_work() {
        assert_eq!(advice(&[24 * 16; 20], 16, 0, None).vcpus, (16, Milli(1000)));
        let (vcpus, kept) = advice(&[24 * 2; 20], 16, 0, None).vcpus;
        assert!(vcpus < 8 && kept.0 >= 900, "{vcpus} {kept}");
        assert_eq!(advice(&[24; 20], 16, 0, None).vcpus, (1, Milli(1000)));
    }

    #[test]
    fn longer_period_is_advised_only_where_the_vm_catches_up() {
        assert_eq!(advice(&[96, 24].repeat(16), 4, 0, None).period, Nanos(48 * MS));
        assert_eq!(advice(&[96; 32], 4, 0, None).period, Nanos(24 * MS));
        let slow: Vec<u64> = [[96; 8], [24; 8]].concat();
        assert_eq!(advice(&slow, 4, 0, None).period, Nanos(24 * MS), "no period reaches so far");
    }

    #[test]
    fn co_scheduling_pays_for_spinners_only() {
        assert_eq!(advice(&[96; 8], 4, 4, Some(400)).together, CoScheduling::Pays);
        assert_eq!(advice(&[96; 8], 4, 40_000, Some(400)).together, CoScheduling::Pays);
        assert_eq!(advice(&[96; 8], 4, 40_000, None).together, CoScheduling::Harms);
        assert_eq!(advice(&[96; 8], 4, 40_000, Some(0)).together, CoScheduling::Harms);
        assert_eq!(advice(&[96; 8], 4, 4, Some(9)).together, CoScheduling::Indifferent);
        assert_eq!(advice(&[96; 8], 4, 4, None).together, CoScheduling::IfItSpins);
        assert_eq!(advice(&[24; 8], 1, 4, None).together, CoScheduling::Alone);
    }

    #[test]
    fn balanced_program_with_spin_loops_may_gain_beside_neighbours() {
        for waiting in [10, 30, 49] {
            assert_eq!(advice(&[48; 8], 2, 9, Some(waiting)).together, CoScheduling::MayPay);
            assert_eq!(advice(&[48; 8], 2, 40_000, Some(waiting)).together, CoScheduling::Harms);
        }
    }

    #[test]
    fn hardly_active_program_gets_no_advice() {
        let interval = Interval { length: Nanos(24 * MS), run: Nanos(2 * MS), wait: Nanos(0) };
        let watched =
            Watched { cpus: 2, intervals: vec![interval; 8], voluntary: 8, ..Watched::default() };
        let (share, period) = (Milli(500), Nanos(24 * MS));
        let profile = Profile::of(&watched, share, period);
        assert_eq!(Advice::of(&watched, &profile, share, period), None);
    }

    #[test]
    fn time_should_follow_work_where_parallelism_is_low() {
        assert!(advice(&[40; 8], 4, 4, None).match_work);
        assert!(!advice(&[96; 8], 4, 4, None).match_work);
        assert!(!advice(&[3; 8], 1, 4, None).match_work);
    }
}
