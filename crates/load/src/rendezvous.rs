//! The barrier under test: nobody leaves before everybody has come, and how one waits is a choice.
//!
//! ```text
//!             arrive                    all arrived
//!   working ---------> waiting(spin) -----------------> working
//!                         |    ^ limit passed (spin-block),      ^
//!                         v    | or at once (block)              |
//!                      asleep in futex ------ woken by the last -+
//! ```
//!
//! `Block` models OpenMP with passive waiting and pthread barriers (systems.md 2: a waiter
//! halts its vCPU, the wake-up is an IPI of a sibling); `Spin` models OpenMP active waiting and
//! MPI polling; `SpinBlock` models the default of most run-times. A spinning waiter executes the
//! CPU's pause instruction, which hardware with pause-loop exiting may report to the host.
//! Spinning works on fewer CPUs than threads, but a phase then costs time slices.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::futex;
use crate::json::Object;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Pauses between two looks at the clock while spinning with a limit.
const PAUSES_PER_LOOK: u32 = 32;

/// How a thread waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps at once.
    Block,
    /// Never sleeps.
    Spin,
    /// Spins for the limit, then sleeps.
    SpinBlock {
        /// How long to spin.
        limit: Duration,
    },
}

impl Waiting {
    /// Reads `--kind` and `--spin-limit`.
    ///
    /// # Errors
    /// An unknown kind; a limit for a kind that has none.
    pub fn from_args(args: &mut Args) -> Result<Self, LoadError> {
        let limit = args.take("--spin-limit");
        let text = limit.as_deref().unwrap_or("50us");
        let limit_or_default = crate::args::duration(text).ok_or_else(|| {
            args.fault(format!("--spin-limit {text}: expected a duration such as 50us"))
        })?;
        let kinds = [
            ("block", Self::Block),
            ("spin", Self::Spin),
            ("spin-block", Self::SpinBlock { limit: limit_or_default }),
        ];
        let waiting = args.choice("--kind", &kinds)?;
        if limit.is_some() && !matches!(waiting, Self::SpinBlock { .. }) {
            return Err(args.fault("--spin-limit is for --kind spin-block only"));
        }
        Ok(waiting)
    }

    /// Writes it into a report.
    pub fn describe(self, fields: &mut Object) {
        match self {
            Self::Block => fields.text("kind", "block"),
            Self::Spin => fields.text("kind", "spin"),
            Self::SpinBlock { limit } => {
                fields.text("kind", "spin-block").number("spin_limit_ns", limit.as_nanos() as u64)
            }
        };
    }
}

/// A barrier that can be used again and again by a fixed number of threads.
#[derive(Debug)]
pub struct Rendezvous {
    waiting: Waiting,
    threads: u32,
    arrived: Line,
    /// Grows by one when everybody has come. The word that waiters watch and sleep on.
    generation: Line,
    /// Threads that sleep or are about to.
    sleepers: Line,
}

/// A counter with cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU32);

impl Rendezvous {
    /// A barrier of `threads` threads.
    pub fn new(waiting: Waiting, threads: u32) -> Self {
        Self {
            waiting,
            threads,
            arrived: Line::default(),
            generation: Line::default(),
            sleepers: Line::default(),
        }
    }

    /// Waits for the others. The last to come calls `last` before anybody leaves.
    pub fn wait(&self, last: impl FnOnce()) {
        // Read before arriving: the generation cannot change until this thread has arrived.
        let generation = self.generation.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            last();
            self.arrived.0.store(0, Ordering::Relaxed);
            // Sequentially consistent, as is the sleeper's count: either this thread sees the
            // sleeper or the sleeper's futex call sees the new generation.
            self.generation.0.store(generation.wrapping_add(1), Ordering::SeqCst);
            if self.sleepers.0.load(Ordering::SeqCst) > 0 {
                futex::wake_all(&self.generation.0);
            }
            return;
        }
        match self.waiting {
            Waiting::Block => self.sleep(generation),
            Waiting::Spin => {
                while !self.passed(generation) {
                    std::hint::spin_loop();
                }
            }
            Waiting::SpinBlock { limit } => {
                if !self.spin(generation, limit) {
                    self.sleep(generation);
                }
            }
        }
    }

    fn passed(&self, generation: u32) -> bool {
        self.generation.0.load(Ordering::Acquire) != generation
    }

    /// Spins up to `limit`; whether the others came.
    fn spin(&self, generation: u32, limit: Duration) -> bool {
        let end = clock::now() + limit.as_nanos() as u64;
        loop {
            for _ in 0..PAUSES_PER_LOOK {
                if self.passed(generation) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock::now() >= end {
                return false;
            }
        }
    }

    fn sleep(&self, generation: u32) {
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while !self.passed(generation) {
            futex::wait(&self.generation.0, generation);
        }
        self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Runs `rounds` phases and checks in each that nobody is a phase ahead or behind.
    fn nobody_passes_early(waiting: Waiting, threads: u32, rounds: u64) {
        let barrier = Rendezvous::new(waiting, threads);
        let came = AtomicU64::new(0);
        let lasts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for round in 1..=rounds {
                        came.fetch_add(1, Ordering::Relaxed);
                        barrier.wait(|| {
                            assert_eq!(came.load(Ordering::Relaxed), round * u64::from(threads));
                            lasts.fetch_add(1, Ordering::Relaxed);
                        });
                        let seen = came.load(Ordering::Relaxed);
                        assert!(seen >= round * u64::from(threads), "passed early: {seen}");
                        assert!(seen < (round + 1) * u64::from(threads), "left behind: {seen}");
                        assert_eq!(lasts.load(Ordering::Relaxed), round);
                        // A second barrier, so that the check itself is not overtaken.
                        barrier.wait(|| ());
                    }
                });
            }
        });
        assert_eq!(came.load(Ordering::Relaxed), rounds * u64::from(threads));
        assert_eq!(barrier.sleepers.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_thread_passes_a_blocking_barrier_early() {
        nobody_passes_early(Waiting::Block, 4, 5_000);
    }

    #[test]
    fn no_thread_passes_a_spin_then_block_barrier_early() {
        for limit in [0, 1, 20] {
            let limit = Duration::from_micros(limit);
            nobody_passes_early(Waiting::SpinBlock { limit }, 4, 2_000);
        }
    }

    #[test]
    fn no_thread_passes_a_spinning_barrier_early() {
        nobody_passes_early(Waiting::Spin, 2, 300);
    }

    #[test]
    fn a_spinning_barrier_goes_on_with_more_threads_than_cpus() {
        let cpus = crate::cpu::allowed().unwrap();
        let one = cpus[0];
        std::thread::spawn(move || {
            crate::cpu::pin(one).unwrap();
            // The threads inherit the one CPU.
            nobody_passes_early(Waiting::Spin, 3, 4);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn one_thread_never_waits() {
        for waiting in [Waiting::Block, Waiting::Spin] {
            nobody_passes_early(waiting, 1, 1000);
        }
    }

    #[test]
    fn the_generation_may_wrap() {
        let barrier = Rendezvous::new(Waiting::Block, 2);
        barrier.generation.0.store(u32::MAX - 2, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..8).for_each(|_| barrier.wait(|| ())));
            }
        });
        assert_eq!(barrier.generation.0.load(Ordering::Relaxed), 5);
    }
}
