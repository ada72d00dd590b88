//! `lock`: threads that now and then need the same lock.
//!
//! Models lock-holder preemption (systems.md 3): a holder whose vCPU does not run keeps every
//! waiter from going on, and with a ticket lock so does the next in line. `mutex` sleeps in a
//! futex after a short spin; `ticket-spin` is first come, first served and never sleeps, as the
//! locks of guest kernels without paravirtualisation.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::unit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Lock {
    kind: Kind,
    hold: Duration,
    think: Duration,
    imbalance: u32,
    mutex: Mutex<()>,
    ticket: Ticket,
    /// Counts acquisitions by load and store: right only if the lock excludes.
    guarded: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
        match self.kind {
            Kind::TicketSpin => self.ticket.with(section),
            Kind::Mutex => {
                let _held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
                section();
            }
        }
    }
}

impl Mode for Lock {
    const NAME: &'static str = "lock";
    const HELP: &'static str = "\
lock: threads that contend for one lock
work: acquisitions
  --kind mutex|ticket-spin  a lock that sleeps, or one that spins and serves in order [mutex]
  --hold DURATION           computation with the lock held [5us]
  --think DURATION          computation between two acquisitions [20us]
  --imbalance PERCENT       each think time is up to this much longer or shorter [50%]
wait_ns: from asking for the lock to having it
";
    const WORK: &'static str = "acquisitions";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Local = (u64, u64);

    fn from_args(args: &mut Args, _: usize) -> Result<Self, LoadError> {
        let us = Duration::from_micros(1);
        Ok(Self {
            kind: args
                .choice("--kind", &[("mutex", Kind::Mutex), ("ticket-spin", Kind::TicketSpin)])?,
            hold: args.duration("--hold", 5 * us, Duration::ZERO)?,
            think: args.duration("--think", 20 * us, Duration::ZERO)?,
            imbalance: args.percent("--imbalance", 50)?,
            mutex: Mutex::new(()),
            ticket: Ticket::default(),
            guarded: AtomicU64::new(0),
        })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<(u64, u64), LoadError> {
        Ok((worker.units(self.hold), worker.units(self.think)))
    }

    fn work(&self, worker: &Worker<'_>, units: (u64, u64)) -> Result<(), LoadError> {
        let (hold, think) = units;
        let mut rng = worker.rng();
        while !worker.stopped() {
            unit::work(rng.around(think, self.imbalance));
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

    fn options(&self, fields: &mut Object) {
        fields.text(
            "kind",
            match self.kind {
                Kind::Mutex => "mutex",
                Kind::TicketSpin => "ticket-spin",
            },
        );
        fields.number("hold_ns", self.hold.as_nanos() as u64);
        fields.number("think_ns", self.think.as_nanos() as u64);
        fields.number("imbalance_percent", u64::from(self.imbalance));
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
        for (kind, rounds) in [(Kind::Mutex, 5_000), (Kind::TicketSpin, 300)] {
            let none = Duration::ZERO;
            let mut lock = Lock::from_args(&mut Args::new("lock", &[]).unwrap(), 3).unwrap();
            (lock.kind, lock.hold, lock.think) = (kind, none, none);
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
