//! `serial`: a loop of a parallel part, shared among all threads, and a sequential part of one.
//!
//! The synthetic benchmark of systems.md 5: 8 units of 1 ms in parallel, then 1 unit alone.
//! *Imbalanced* (`--serial fixed`) runs the unit always on thread 0; *balanced* (`rotating`) on
//! each in turn, so that every vCPU needs the same time over a few iterations.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::rendezvous::{Rendezvous, Waiting};
use crate::unit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Serial {
    parallel: Duration,
    sequential: Duration,
    rotating: bool,
    waiting: Waiting,
    rendezvous: Rendezvous,
    over: AtomicBool,
}

impl Mode for Serial {
    const NAME: &'static str = "serial";
    const HELP: &'static str = "\
serial: a loop of a parallel part and a sequential part
work: iterations
  --parallel DURATION           CPU time of the parallel part, shared among the threads [8ms]
  --sequential DURATION         CPU time of the sequential part [1ms]
  --serial fixed|rotating       who does it: thread 0 (imbalanced) or each in turn (balanced)
                                [fixed]
  --kind block|spin|spin-block  how the others wait [block]
  --spin-limit DURATION         spin-block: how long to spin before sleeping [50us]
wait_ns: waits for the end of the parallel part, and of the sequential part
";
    const WORK: &'static str = "iterations";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Local = (u64, u64);

    fn from_args(args: &mut Args, threads: usize) -> Result<Self, LoadError> {
        let waiting = Waiting::from_args(args)?;
        let ms = Duration::from_millis(1);
        let words =
            [("fixed", false), ("rotating", true), ("imbalanced", false), ("balanced", true)];
        Ok(Self {
            parallel: args.duration("--parallel", 8 * ms, Duration::ZERO)?,
            sequential: args.duration("--sequential", ms, Duration::from_nanos(100))?,
            rotating: args.choice("--serial", &words)?,
            waiting,
            rendezvous: Rendezvous::new(waiting, threads as u32),
            over: AtomicBool::new(false),
        })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<(u64, u64), LoadError> {
        let share = self.parallel / worker.plan.threads as u32;
        Ok((worker.units(share), worker.units(self.sequential)))
    }

    fn work(&self, worker: &Worker<'_>, units: (u64, u64)) -> Result<(), LoadError> {
        let (parallel, sequential) = units;
        let mut turn = 0;
        while !self.over.load(Relaxed) {
            unit::work(parallel);
            self.meet(worker, || ());
            if worker.index == turn {
                unit::work(sequential);
            }
            self.meet(worker, || self.over.store(worker.stopped(), Relaxed));
            worker.add(1);
            if self.rotating {
                turn = (turn + 1) % worker.plan.threads;
            }
        }
        Ok(())
    }

    fn together(&self, by_thread: &[u64]) -> u64 {
        by_thread.iter().copied().min().unwrap_or(0)
    }

    fn options(&self, fields: &mut Object) {
        self.waiting.describe(fields);
        fields.text("serial", if self.rotating { "rotating" } else { "fixed" });
        fields.number("parallel_ns", self.parallel.as_nanos() as u64);
        fields.number("sequential_ns", self.sequential.as_nanos() as u64);
    }
}

impl Serial {
    fn meet(&self, worker: &Worker<'_>, last: impl FnOnce()) {
        let arrived = clock::now();
        self.rendezvous.wait(last);
        worker.latency(clock::now() - arrived);
    }
}
