//! `lock`: threads that now and then need the same lock.
//!
//! Models lock-holder preemption (systems.md 3): a holder whose vCPU does not run keeps every
//! waiter from going on, and with a ticket lock so does the next in line. `mutex` sleeps in a
//! futex after a short spin; `ticket-spin` is first come, first served and never sleeps, as the
//! locks of guest kernels without paravirtualisation.

use crate::args::{self, nanos};
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::unit;
use serde::Serialize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Threads that contend for one lock
///
/// work: acquisitions. wait_ns: from asking for the lock to having it.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    /// A lock that sleeps, or one that spins and serves in order
    #[arg(long, value_enum, default_value_t)]
    kind: LockKind,
    /// Computation with the lock held
    #[arg(long, value_name = "DURATION", default_value = "5us", value_parser = args::duration::<0>)]
    #[serde(rename = "hold_ns", serialize_with = "nanos")]
    hold: Duration,
    /// Computation between two acquisitions
    #[arg(long, value_name = "DURATION", default_value = "20us", value_parser = args::duration::<0>)]
    #[serde(rename = "think_ns", serialize_with = "nanos")]
    think: Duration,
    /// Each think time is up to this much longer or shorter
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = args::percent)]
    #[serde(rename = "imbalance_percent")]
    imbalance: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Lock {
    options: Options,
    mutex: Mutex<()>,
    ticket: Ticket,
    /// Counts acquisitions by load and store: right only if the lock excludes.
    guarded: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum LockKind {
    #[default]
    Mutex,
    TicketSpin,
}

/// A lock that serves in the order of arrival; waiters spin.
#[derive(Debug, Default)]
struct Ticket {
    next: Line,
    serving: Line,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU32);

impl Ticket {
    /// Runs `section` with the lock held.
    fn with(&self, section: impl FnOnce()) {
        let mine = self.next.0.fetch_add(1, Ordering::Relaxed);
        while self.serving.0.load(Ordering::Acquire) != mine {
            std::hint::spin_loop();
        }
        section();
        self.serving.0.store(mine.wrapping_add(1), Ordering::Release);
    }
}

impl Lock {
    fn with(&self, section: impl FnOnce()) {
        match self.options.kind {
            LockKind::TicketSpin => self.ticket.with(section),
            LockKind::Mutex => {
                let _held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
                section();
            }
        }
    }
}

impl Mode for Lock {
    const NAME: &'static str = "lock";
    const WORK: &'static str = "acquisitions";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Options = Options;
    type Local = (u64, u64);

    fn new(options: Options, _: usize) -> Result<Self, LoadError> {
        let (mutex, ticket) = (Mutex::new(()), Ticket::default());
        Ok(Self { options, mutex, ticket, guarded: AtomicU64::new(0) })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<(u64, u64), LoadError> {
        Ok((worker.units(self.options.hold), worker.units(self.options.think)))
    }

    fn work(&self, worker: &Worker<'_>, units: (u64, u64)) -> Result<(), LoadError> {
        let (hold, think) = units;
        let mut rng = worker.rng();
        while !worker.stopped() {
            unit::work(rng.around(think, self.options.imbalance));
            let asked = clock::now();
            let mut got = asked;
            self.with(|| {
                got = clock::now();
                let before = self.guarded.load(Ordering::Relaxed);
                unit::work(hold);
                self.guarded.store(before + 1, Ordering::Relaxed);
            });
            worker.latency(got - asked);
            worker.add(1);
        }
        Ok(())
    }

    fn verify(&self, by_thread: &[u64]) -> Result<(), LoadError> {
        let (taken, counted) =
            (by_thread.iter().sum::<u64>(), self.guarded.load(Ordering::Relaxed));
        if taken == counted {
            return Ok(());
        }
        Err(LoadError::Wrong(format!("{taken} acquisitions, but {counted} counted under the lock")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_lock_excludes() {
        for (kind, rounds) in [(LockKind::Mutex, 5_000), (LockKind::TicketSpin, 300)] {
            let (hold, think) = (Duration::ZERO, Duration::ZERO);
            let lock = Lock::new(Options { kind, hold, think, imbalance: 0 }, 3).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..rounds {
                            lock.with(|| {
                                let before = lock.guarded.load(Ordering::Relaxed);
                                std::hint::spin_loop();
                                lock.guarded.store(before + 1, Ordering::Relaxed);
                            });
                        }
                    });
                }
            });
            lock.verify(&[rounds, rounds, rounds]).unwrap();
            assert!(lock.verify(&[rounds, rounds, rounds + 1]).is_err());
        }
    }
}
