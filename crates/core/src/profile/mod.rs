//! How an application would scale on virtual machines, from how it behaved on this one
//! (systems.md, 5): workload parallelism, synchronisation frequency, type, efficiency, potential.
//!
//! [`Watched`] is what was seen, interval by interval; [`Profile::of`] says what it means, and
//! [`advice`] and [`placing`] what follows for a VM; [`behaviour`] finds a synthetic program of the
//! same features.
//! Time in which a thread could run and another ran counts as active, so that a host that is not
//! idle disturbs less. It does not know what a thread waits for, nor whether one that runs makes
//! progress unless it is told ([`Watched::busy_waiting`]).

pub mod advice;
pub mod behaviour;
pub mod placing;

use crate::units::{Milli, Nanos};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Parallelism from this part of the threads on is high: 75 % (systems.md, 5).
pub const HIGH_PARALLELISM: Milli = Milli(750);
/// A program that is active on less than a tenth of a CPU on average has no type: chance decides its ratios.
pub const HARDLY_ACTIVE: Milli = Milli(100);
/// Busy waiting from this part of the CPU time on counts, even alone.
const SPINS: Milli = Milli(50);
/// Busy waiting from this part of the CPU time on says that there are spin loops.
const SPINS_SELDOM: Milli = Milli(10);
/// A thread that had less than this part of the busiest one's CPU time is no worker.
const WORKER: u64 = 100;

/// What was seen of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// CPUs that it may use, at least 1.
    pub cpus: u32,
    /// Consecutive intervals, none of length zero.
    pub intervals: Vec<Interval>,
    /// Its threads, each with the intervals it lived in.
    pub threads: Vec<ThreadSum>,
    /// How many threads work, where somebody knows (a VM's vCPUs, an option); else it is counted.
    pub workers: Option<u32>,
    /// Voluntary context switches: a thread blocked.
    pub voluntary: u64,
    /// Other context switches.
    pub involuntary: u64,
    /// The part of its CPU time that was busy waiting; `None` where that could not be told.
    pub busy_waiting: Option<Milli>,
    /// Time with exactly 0, 1, 2, ... threads running; empty where only sums are known.
    pub levels: Vec<Nanos>,
    /// CPU time that everybody else had meanwhile; `None` where that is not known.
    pub others: Option<Nanos>,
    /// Of that, what the machine's own hypervisor gave to other machines.
    pub stolen: Nanos,
}

/// A span of time in which an application was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its length.
    pub length: Nanos,
    /// CPU time used in it, over all threads.
    pub run: Nanos,
    /// Time runnable without running, over all threads.
    pub wait: Nanos,
}

/// What one thread had in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadSum {
    /// The first and the last interval in which it was seen.
    pub seen: (usize, usize),
    /// Its CPU time.
    pub run: Nanos,
}

/// The type of an application: whether its workload parallelism and the frequency of its
/// synchronisation are high (systems.md, 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(into = "u8")]
#[schemars(with = "u8", extend("minimum" = 1, "maximum" = 4))]
pub enum ApplicationKind {
    /// Type 1: high parallelism, low frequency.
    HighLow,
    /// Type 2: low parallelism, high frequency.
    LowHigh,
    /// Type 3: both high.
    HighHigh,
    /// Type 4: both low.
    LowLow,
}

/// How much of its CPU time an application waits busily, alone on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spinning {
    /// It could not be told.
    Unknown,
    /// Below 1 %: none was seen that counts.
    Hardly,
    /// From 1 to 5 %: it has spin loops. Who is balanced hardly waits in them as long as all of its
    /// threads run, and waits for those that are not let run among neighbours.
    Seldom,
    /// 5 % and more.
    Often,
}

/// What an application's behaviour amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Threads that work at the same time and can run at the same time: N.
    pub threads: u32,
    /// Time watched.
    pub elapsed: Nanos,
    /// CPU time used.
    pub run: Nanos,
    /// Time runnable without running.
    pub wait: Nanos,
    /// Mean number of threads that run or could run, at most N at any time.
    pub busy: Milli,
    /// *Workload parallelism*: `busy` without the part that waits busily, where that is known.
    pub parallelism: Milli,
    /// *Synchronisation frequency*: voluntary context switches a second, in thousandths.
    pub frequency: Milli,
    /// Mean CPU time of a thread between two times that it blocks; `None` when none blocked.
    pub between: Option<Nanos>,
    /// Part of the CPU time that was busy waiting, where known.
    pub busy_waiting: Option<Milli>,
    /// Utilised / available CPU time on this machine: `parallelism / N`.
    pub efficiency: Milli,
    /// The CPU time a thread gets in one allocation period of the VM asked for.
    pub slice: Nanos,
    /// The type on such a VM; `None` for who is [hardly active](HARDLY_ACTIVE).
    pub kind: Option<ApplicationKind>,
}

impl Watched {
    /// Time watched.
    pub fn elapsed(&self) -> Nanos {
        sum(self.intervals.iter().map(|interval| interval.length))
    }

    /// CPU time used.
    pub fn run(&self) -> Nanos {
        sum(self.intervals.iter().map(|interval| interval.run))
    }

    /// CPU time that its threads wanted and others had: while they waited, up to the CPUs that it may
    /// use. More threads than these wait for each other, and that is not counted.
    pub fn taken(&self) -> Nanos {
        let missed = |interval: &Interval| interval.active(self.cpus).since(interval.run);
        let missed = sum(self.intervals.iter().map(missed));
        missed.min(self.others.unwrap_or_default())
    }

    /// N: threads that work at the same time, at most one for each CPU, at least one.
    pub fn workers(&self) -> u32 {
        self.at_once().min(self.cpus).max(1)
    }

    /// Threads that work at the same time, however many CPUs there are.
    pub fn at_once(&self) -> u32 {
        self.workers.unwrap_or_else(|| at_once(&self.threads))
    }
}

impl Profile {
    /// What `watched` amounts to, with the type that it would have on a VM with a `share` of its
    /// vCPUs' time in every allocation `period`.
    pub fn of(watched: &Watched, share: Milli, period: Nanos) -> Self {
        let (threads, elapsed) = (watched.workers(), watched.elapsed());
        let active = sum(watched.intervals.iter().map(|interval| interval.active(threads)));
        let busy = active.milli_of(elapsed);
        let progress = 1000 - watched.busy_waiting.map_or(0, |part| part.0.min(1000));
        let parallelism = Milli(busy.0 * progress / 1000);
        let run = watched.run();
        let between = (watched.voluntary > 0).then(|| Nanos(run.0 / watched.voluntary));
        let slice = part_of(period, share);
        Self {
            threads,
            elapsed,
            run,
            wait: sum(watched.intervals.iter().map(|interval| interval.wait)),
            busy,
            parallelism,
            frequency: frequency(watched.voluntary, elapsed),
            between,
            busy_waiting: watched.busy_waiting,
            efficiency: Milli(parallelism.0 / u64::from(threads)),
            slice,
            kind: (busy.0 >= HARDLY_ACTIVE.0)
                .then(|| ApplicationKind::of(parallelism, threads, between, slice)),
        }
    }

    /// Speedup on this machine over one thread: `N * utilised / available`.
    pub fn speedup(&self) -> Milli {
        self.parallelism
    }

    /// How much it waits busily.
    pub fn spinning(&self) -> Spinning {
        match self.busy_waiting {
            None => Spinning::Unknown,
            Some(part) if part < SPINS_SELDOM => Spinning::Hardly,
            Some(part) if part < SPINS => Spinning::Seldom,
            Some(_) => Spinning::Often,
        }
    }

    /// Whether it blocks more often than once a slice.
    pub fn synchronises_often(&self) -> bool {
        self.between.is_some_and(|between| between < self.slice)
    }
}

impl Interval {
    /// Time in which threads were active, as if at most `threads` could be at once.
    pub fn active(&self, threads: u32) -> Nanos {
        let most = self.length.0.saturating_mul(u64::from(threads));
        Nanos(self.run.0.saturating_add(self.wait.0).min(most))
    }
}

impl ApplicationKind {
    /// The type of an application with this workload `parallelism` on `threads` threads, of which
    /// each blocks after `between` of CPU time and has a `slice` of it in an allocation period.
    pub fn of(parallelism: Milli, threads: u32, between: Option<Nanos>, slice: Nanos) -> Self {
        let high = parallelism.0 >= HIGH_PARALLELISM.0 * u64::from(threads);
        let often = between.is_some_and(|between| between < slice);
        match (high, often) {
            (true, false) => ApplicationKind::HighLow,
            (false, true) => ApplicationKind::LowHigh,
            (true, true) => ApplicationKind::HighHigh,
            (false, false) => ApplicationKind::LowLow,
        }
    }

    /// Its number, 1 to 4.
    pub fn number(self) -> u8 {
        match self {
            ApplicationKind::HighLow => 1,
            ApplicationKind::LowHigh => 2,
            ApplicationKind::HighHigh => 3,
            ApplicationKind::LowLow => 4,
        }
    }
}

impl From<ApplicationKind> for u8 {
    fn from(kind: ApplicationKind) -> u8 {
        kind.number()
    }
}

impl fmt::Display for ApplicationKind {
    /// `3 (high parallelism, high frequency)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parallelism, frequency) = match self {
            ApplicationKind::HighLow => ("high", "low"),
            ApplicationKind::LowHigh => ("low", "high"),
            ApplicationKind::HighHigh => ("high", "high"),
            ApplicationKind::LowLow => ("low", "low"),
        };
        let number = self.number();
        write!(f, "{number} ({parallelism} parallelism, {frequency} frequency)")
    }
}

/// *Potential*: the mean over the run of `min(1, u / p)`, u being the utilisation of `threads` CPUs
/// in one allocation period and p the VM's share: no hypervisor can be more efficient. `None` for a
/// share of zero or when nothing was watched. Periods are made of whole intervals.
pub fn potential(watched: &Watched, threads: u32, share: Milli, period: Nanos) -> Option<Milli> {
    let waiting = watched.busy_waiting.map_or(0, |part| part.0.min(1000));
    let (mut sum, mut all) = (0u128, 0u128);
    for (length, active) in in_periods(&watched.intervals, threads, period) {
        let active = u128::from(active.0) * u128::from(1000 - waiting) / 1000;
        let available = u128::from(length.0) * u128::from(threads) * u128::from(share.0) / 1000;
        if let Some(part) = (active.min(available) * 1_000_000).checked_div(available) {
            sum += part * u128::from(length.0);
            all += u128::from(length.0);
        }
    }
    (all > 0).then(|| Milli(u64::try_from(sum / all / 1000).unwrap_or(u64::MAX)))
}

/// Length and active time of each period of about `period`; a rest at the end counts by its length.
fn in_periods(intervals: &[Interval], threads: u32, period: Nanos) -> Vec<(Nanos, Nanos)> {
    let mut periods = Vec::new();
    let (mut length, mut active) = (0u64, 0u64);
    for interval in intervals {
        // An interval that would end beyond the period by more than half of itself begins the next.
        if length > 0 && length + interval.length.0 / 2 > period.0 {
            periods.push((Nanos(length), Nanos(active)));
            (length, active) = (0, 0);
        }
        length = length.saturating_add(interval.length.0);
        active = active.saturating_add(interval.active(threads).0);
    }
    if length > 0 {
        periods.push((Nanos(length), Nanos(active)));
    }
    periods
}

/// The most threads that lived at the same time and worked: each had at least a hundredth of the
/// CPU time of the busiest.
fn at_once(threads: &[ThreadSum]) -> u32 {
    let most = threads.iter().map(|thread| thread.run.0).max().unwrap_or(0);
    let works = |thread: &&ThreadSum| thread.run.0 > 0 && thread.run.0 >= most / WORKER;
    let mut changes: Vec<(usize, i32)> = Vec::new();
    for thread in threads.iter().filter(works) {
        changes.push((thread.seen.0, 1));
        changes.push((thread.seen.1.saturating_add(1), -1));
    }
    // At one interval those that were last seen in the one before leave first.
    changes.sort_unstable();
    let (mut now, mut peak) = (0i32, 0i32);
    for (_, change) in changes {
        now += change;
        peak = peak.max(now);
    }
    u32::try_from(peak).unwrap_or(0)
}

/// `part` of a time.
pub(crate) fn part_of(time: Nanos, part: Milli) -> Nanos {
    let product = u128::from(time.0) * u128::from(part.0) / 1000;
    Nanos(u64::try_from(product).unwrap_or(u64::MAX))
}

fn sum(times: impl Iterator<Item = Nanos>) -> Nanos {
    Nanos(times.fold(0, |all, time| all.saturating_add(time.0)))
}

/// Events a second, in thousandths.
fn frequency(count: u64, elapsed: Nanos) -> Milli {
    if elapsed.0 == 0 {
        return Milli(0);
    }
    let milli = u128::from(count) * 1_000_000_000_000 / u128::from(elapsed.0);
    Milli(u64::try_from(milli).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Intervals of 24 ms with these CPU times in ms.
    fn watched(runs: &[u64], threads: u32, voluntary: u64) -> Watched {
        let interval =
            |run: &u64| Interval { length: Nanos(24 * MS), run: Nanos(run * MS), wait: Nanos(0) };
        Watched {
            cpus: threads,
            intervals: runs.iter().map(interval).collect(),
            workers: Some(threads),
            voluntary,
            ..Watched::default()
        }
    }

    fn kind(watched: &Watched) -> ApplicationKind {
        Profile::of(watched, Milli(500), Nanos(24 * MS)).kind.unwrap()
    }

    #[test]
    fn the_four_types_follow_parallelism_and_frequency() {
        // 4 threads for 96 ms; a slice is 12 ms.
        assert_eq!(kind(&watched(&[96, 96, 96, 96], 4, 2)), ApplicationKind::HighLow);
        assert_eq!(kind(&watched(&[40, 40, 40, 40], 4, 4000)), ApplicationKind::LowHigh);
        assert_eq!(kind(&watched(&[72, 72, 72, 72], 4, 4000)), ApplicationKind::HighHigh);
        assert_eq!(kind(&watched(&[71, 71, 71, 71], 4, 8)), ApplicationKind::LowLow);
        assert_eq!(
            kind(&watched(&[96], 4, 0)),
            ApplicationKind::HighLow,
            "who never blocks blocks rarely"
        );
    }

    #[test]
    fn fifth_of_sequential_work_gives_two_and_a_half_on_four_cores() {
        // systems.md, 5: 20 % sequential on 4 cores. Of 100 units 20 run alone, 80 by four at once.
        let watched = Watched {
            intervals: vec![
                Interval { length: Nanos(20), run: Nanos(20), wait: Nanos(0) },
                Interval { length: Nanos(20), run: Nanos(80), wait: Nanos(0) },
            ],
            ..watched(&[], 4, 0)
        };
        let profile = Profile::of(&watched, Milli(1000), Nanos(24 * MS));
        assert_eq!(profile.speedup(), Milli(2500));
        assert_eq!(profile.efficiency, Milli(625));
    }

    #[test]
    fn busy_waiting_is_no_progress() {
        let mut watched = watched(&[96, 96], 4, 0);
        watched.busy_waiting = Some(Milli(400));
        let profile = Profile::of(&watched, Milli(500), Nanos(24 * MS));
        assert_eq!((profile.busy, profile.parallelism), (Milli(4000), Milli(2400)));
        assert_eq!(profile.kind, Some(ApplicationKind::LowLow));
    }

    #[test]
    fn the_potential_is_the_mean_of_what_each_period_can_use() {
        // Half the time 4 CPUs, half the time 1: of a half share the second uses a half.
        let runs: Vec<u64> = [96, 24].repeat(8);
        let watched = watched(&runs, 4, 0);
        let at = |share, period| potential(&watched, 4, Milli(share), Nanos(period * MS));
        assert_eq!(at(500, 24), Some(Milli(750)));
        assert_eq!(at(250, 24), Some(Milli(1000)));
        assert_eq!(at(1000, 24), Some(Milli(625)));
        assert_eq!(at(500, 48), Some(Milli(1000)), "within a longer period it catches up");
        assert_eq!(at(0, 24), None);
        assert_eq!(potential(&Watched::default(), 4, Milli(500), Nanos(MS)), None);
    }

    #[test]
    fn threads_that_work_at_the_same_time_are_counted() {
        let thread = |first, last, run| ThreadSum { seen: (first, last), run: Nanos(run * MS) };
        let mut watched = watched(&[10, 10], 64, 0);
        watched.workers = None;
        // A starter that sleeps, four workers, and two that follow them.
        watched.threads = vec![thread(0, 9, 1)];
        watched.threads.extend([thread(0, 4, 300); 4]);
        watched.threads.extend([thread(5, 9, 300); 2]);
        assert_eq!(watched.workers(), 4);
        watched.cpus = 2;
        assert_eq!(watched.workers(), 2, "no more can run at once");
        watched.threads.clear();
        assert_eq!(watched.workers(), 1);
    }

    #[test]
    fn hardly_active_program_has_no_type() {
        // 2 and 3 of 24 ms: less than a tenth of a CPU, and more.
        let kind = |run| Profile::of(&watched(&[run; 4], 1, 1), Milli(500), Nanos(24 * MS)).kind;
        assert_eq!((kind(2), kind(3)), (None, Some(ApplicationKind::LowLow)));
    }

    #[test]
    fn waiting_for_a_cpu_is_no_idleness_of_the_application() {
        let mut watched = watched(&[24, 24], 2, 0);
        watched.intervals.iter_mut().for_each(|interval| interval.wait = Nanos(20 * MS));
        let profile = Profile::of(&watched, Milli(500), Nanos(24 * MS));
        assert_eq!(profile.busy, Milli(1833));
        assert_eq!(profile.kind, Some(ApplicationKind::HighLow));
    }

    #[test]
    fn others_took_what_its_threads_waited_for_and_could_have_had() {
        // Of 2 CPUs for 24 ms it had 20 and waited for 100: no more than 28 could be had.
        let mut watched = watched(&[20], 2, 0);
        watched.intervals[0].wait = Nanos(100 * MS);
        let mut taken = |others: Option<u64>| {
            watched.others = others.map(|ms| Nanos(ms * MS));
            watched.taken().0 / MS
        };
        assert_eq!((taken(Some(90)), taken(Some(5)), taken(None)), (28, 5, 0));
    }

    proptest! {
        #[test]
        fn any_watching_gives_numbers_in_their_ranges(
            intervals in proptest::collection::vec((1u64..u64::MAX / 4, any::<u64>(), any::<u64>()), 0..20),
            cpus in 0u32..100_000,
            voluntary in any::<u64>(),
            waiting in proptest::option::of(any::<u64>()),
            share in 0u64..=1000,
            period in any::<u64>(),
        ) {
            let intervals = intervals.into_iter().map(|(length, run, wait)| Interval {
                length: Nanos(length), run: Nanos(run), wait: Nanos(wait),
            });
            let watched = Watched {
                cpus,
                intervals: intervals.take(4).collect(),
                voluntary,
                busy_waiting: waiting.map(Milli),
                threads: vec![ThreadSum { seen: (0, usize::MAX), run: Nanos(u64::MAX) }; 3],
                ..Watched::default()
            };
            let profile = Profile::of(&watched, Milli(share), Nanos(period));
            prop_assert!(profile.threads >= 1);
            prop_assert!(profile.efficiency.0 <= 1000);
            let bound = potential(&watched, profile.threads, Milli(share), Nanos(period));
            prop_assert!(bound.is_none_or(|bound| bound.0 <= 1000));
            let _ = advice::Advice::of(&watched, &profile, Milli(share), Nanos(period));
            let _ = behaviour::Behaviour::of(&profile);
        }
    }
}
