//! A synthetic program with the features of a profiled application, in the words of `instep-load`
//! and the simulator: as parallel, blocking as often, spinning if it spins.
//!
//! ```text
//! one thread, or parallelism below 1 ---> io: each thread computes, then waits
//! spins, or a little and blocks rarely -> barrier --kind spin
//! hardly ever blocks ---------------> compute
//! parallelism nearly N -------------> barrier: a phase per N-1 blocks
//! else -----------------------------> serial: a part on all threads, a part on one
//! ```
//!
//! What is lost: who waits for whom, how phases vary, memory. A spinning program's phases cannot be
//! seen from outside; they are assumed.

use super::{Profile, Spinning};
use crate::units::{Milli, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The phase of a spinning barrier, which nothing tells: assumed, that of the lab's spinning guest.
pub const ASSUMED_PHASE: Nanos = Nanos(1_000_000);
/// Sequential parts below this part of an iteration are taken for imbalance.
const SEQUENTIAL: u64 = 60;
/// Threads that block so often each in all their time only start and end: it is no synchronisation.
const ONCE: u64 = 6;
/// The shortest and longest times that are written.
const BOUNDS: (u64, u64) = (1_000, 3_600_000_000_000);

/// A synthetic program; prints as a command line of `instep-load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Threads that compute and never wait.
    Compute {
        /// How many.
        threads: u32,
    },
    /// Equal phases with a barrier after each.
    Barrier {
        /// How many threads.
        threads: u32,
        /// Work of a thread between two barriers.
        phase: Nanos,
        /// How much phases vary, in per cent.
        imbalance: u32,
        /// Whether waiting is busy.
        spins: bool,
    },
    /// A part shared by all threads, then one of a single thread.
    Serial {
        /// How many threads.
        threads: u32,
        /// Work shared by all, over all threads.
        parallel: Nanos,
        /// Work of one thread.
        sequential: Nanos,
    },
    /// Threads that compute and wait for something outside.
    Io {
        /// How many threads.
        threads: u32,
        /// Work between two waits.
        compute: Nanos,
        /// Length of a wait.
        wait: Nanos,
    },
}

impl Behaviour {
    /// The program that resembles `profile`.
    pub fn of(profile: &Profile) -> Self {
        let threads = profile.threads;
        let n = u64::from(threads);
        if spins(profile) && threads > 1 {
            let imbalance = imbalance(Milli(profile.parallelism.0 * 1000 / profile.busy.0.max(1)));
            return Behaviour::Barrier { threads, phase: ASSUMED_PHASE, imbalance, spins: true };
        }
        if hardly_blocks(profile) && profile.efficiency.0 >= 900 {
            return Behaviour::Compute { threads };
        }
        // The time in which threads block so often.
        let time_of = |blocks: u64| {
            let time =
                u128::from(blocks) * 1_000_000_000_000 / u128::from(profile.frequency.0.max(1));
            u64::try_from(time).unwrap_or(u64::MAX)
        };
        if threads == 1 || profile.parallelism.0 <= 1000 {
            let cycle = time_of(n);
            let compute = part(cycle, profile.efficiency.0);
            let wait = bounded(cycle.saturating_sub(compute));
            return Behaviour::Io { threads, compute: bounded(compute), wait };
        }
        let sequential = (n * 1000).saturating_sub(profile.parallelism.0) / (n - 1);
        if sequential < SEQUENTIAL {
            let phase = bounded(part(time_of(n - 1), profile.efficiency.0));
            // Phases of equal length to the nanosecond, which no machine has, would end without a block.
            let imbalance = imbalance(profile.efficiency).max(1);
            return Behaviour::Barrier { threads, phase, imbalance, spins: false };
        }
        // Two barriers an iteration, at each of which all but one block.
        let cycle = time_of(2 * (n - 1));
        let alone = part(cycle, sequential);
        let parallel = bounded(cycle.saturating_sub(alone).saturating_mul(n));
        Behaviour::Serial { threads, parallel, sequential: bounded(alone) }
    }

    /// The same with every time `by` thousandths as long: what a trial of it showed to be needed.
    #[must_use]
    pub fn scaled(self, by: Milli) -> Self {
        let scale = |time: Nanos| bounded(super::part_of(time, by).0);
        match self {
            Behaviour::Compute { .. } => self,
            Behaviour::Barrier { threads, phase, imbalance, spins } => {
                Behaviour::Barrier { threads, phase: scale(phase), imbalance, spins }
            }
            Behaviour::Serial { threads, parallel, sequential } => Behaviour::Serial {
                threads,
                parallel: scale(parallel),
                sequential: scale(sequential),
            },
            Behaviour::Io { threads, compute, wait } => {
                Behaviour::Io { threads, compute: scale(compute), wait: scale(wait) }
            }
        }
    }
}

/// Whether it waits by spinning: much, or a little and not by blocking.
fn spins(profile: &Profile) -> bool {
    match profile.spinning() {
        Spinning::Often => true,
        Spinning::Seldom => !profile.synchronises_often(),
        Spinning::Hardly | Spinning::Unknown => false,
    }
}

/// Whether its threads block a few times in all, or once in a quarter of the time.
fn hardly_blocks(profile: &Profile) -> bool {
    let few = ONCE * u64::from(profile.threads);
    let is_rare = |between: Nanos| {
        between.0 > profile.elapsed.0 / 4 || between.0.saturating_mul(few) >= profile.run.0
    };
    profile.between.is_none_or(is_rare)
}

/// How much phases must vary, in per cent of their mean, for threads to be busy `efficiency` of the
/// time: of n phases spread evenly over +-x the longest is near 1 + x.
fn imbalance(efficiency: Milli) -> u32 {
    let efficiency = efficiency.0.clamp(500, 1000);
    u32::try_from((1000 - efficiency) * 100 / efficiency).unwrap_or(100)
}

/// So many thousandths of a time.
fn part(time: u64, milli: u64) -> u64 {
    super::part_of(Nanos(time), Milli(milli)).0
}

fn bounded(nanos: u64) -> Nanos {
    Nanos(nanos.clamp(BOUNDS.0, BOUNDS.1))
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Behaviour::Compute { threads } => write!(f, "instep-load compute --threads {threads}"),
            Behaviour::Barrier { threads, phase, imbalance, spins } => {
                let kind = if *spins { "spin" } else { "block" };
                write!(
                    f,
                    "instep-load barrier --threads {threads} --kind {kind} --phase {}ns \
                     --imbalance {imbalance}%",
                    phase.0
                )
            }
            Behaviour::Serial { threads, parallel, sequential } => write!(
                f,
                "instep-load serial --threads {threads} --kind block --parallel {}ns \
                 --sequential {}ns",
                parallel.0, sequential.0
            ),
            Behaviour::Io { threads, compute, wait } => write!(
                f,
                "instep-load io --threads {threads} --compute {}ns --wait {}ns",
                compute.0, wait.0
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Interval, Watched};
    use super::*;

    /// One second of `threads` threads with this parallelism and these blocks.
    fn behaviour(threads: u32, milli: u64, voluntary: u64, waiting: Option<u64>) -> Behaviour {
        let second = Nanos::SECOND;
        let run = Nanos(milli * 1_000_000);
        let watched = Watched {
            cpus: threads,
            intervals: vec![Interval { length: second, run, wait: Nanos(0) }],
            workers: Some(threads),
            voluntary,
            busy_waiting: waiting.map(Milli),
            ..Watched::default()
        };
        Behaviour::of(&Profile::of(&watched, Milli(500), Nanos(24_000_000)))
    }

    #[test]
    fn each_kind_of_application_has_its_program() {
        assert_eq!(behaviour(4, 4000, 3, None), Behaviour::Compute { threads: 4 });
        let phases = behaviour(4, 4000, 3000, None);
        let ms = Nanos(1_000_000);
        let expected = Behaviour::Barrier { threads: 4, phase: ms, imbalance: 1, spins: false };
        assert_eq!(phases, expected);
        assert!(matches!(behaviour(4, 4000, 3, Some(300)), Behaviour::Barrier { spins: true, .. }));
        // Balanced, it waits little while all run: 3 % of the time.
        let spins = behaviour(4, 4000, 20, Some(30));
        let expected = Behaviour::Barrier { threads: 4, phase: ms, imbalance: 3, spins: true };
        assert_eq!(spins, expected);
        assert!(matches!(
            behaviour(4, 4000, 3000, Some(30)),
            Behaviour::Barrier { spins: false, .. }
        ));
        assert!(matches!(behaviour(4, 200, 1000, None), Behaviour::Io { threads: 4, .. }));
        assert!(matches!(behaviour(1, 900, 1000, None), Behaviour::Io { threads: 1, .. }));
    }

    #[test]
    fn blocking_at_start_and_end_makes_no_long_phases() {
        // 9 blocks of two threads in a second.
        for waiting in [None, Some(0), Some(9)] {
            assert_eq!(behaviour(2, 1990, 9, waiting), Behaviour::Compute { threads: 2 });
        }
        assert!(matches!(behaviour(2, 1990, 9, Some(30)), Behaviour::Barrier { spins: true, .. }));
        assert!(matches!(behaviour(2, 1990, 50, None), Behaviour::Barrier { spins: false, .. }));
    }

    #[test]
    fn a_sequential_part_is_as_long_as_the_parallelism_says() {
        // 4 threads, parallelism 2.5: half of each iteration on one thread, half on all.
        let expected = Behaviour::Serial {
            threads: 4,
            parallel: Nanos(4 * 500_000),
            sequential: Nanos(500_000),
        };
        assert_eq!(behaviour(4, 2500, 6000, None), expected);
        assert_eq!(
            expected.to_string(),
            "instep-load serial --threads 4 --kind block --parallel 2000000ns --sequential 500000ns"
        );
        assert!(expected.scaled(Milli(500)).to_string().contains("--sequential 250000ns"));
    }
}
