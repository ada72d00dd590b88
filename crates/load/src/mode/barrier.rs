//! `barrier`: phases of computation, each ended by a barrier of all threads.
//!
//! Models the parallel programs of systems.md 2 (NPB sp and lu under OpenMP): a thread whose vCPU
//! does not run holds up all others. How they wait meanwhile decides what it costs: see
//! `rendezvous`. With an imbalance, each thread's part of each phase is drawn anew around the
//! phase's length, the same for a seed on every machine.

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
pub struct Barrier {
    waiting: Waiting,
    phase: Duration,
    imbalance: u32,
    rendezvous: Rendezvous,
    /// Set by the last to arrive once time is up, so that all end after the same phase.
    over: AtomicBool,
}

impl Mode for Barrier {
    const NAME: &'static str = "barrier";
    const HELP: &'static str = "\
barrier: phases of computation, each ended by a barrier of all threads
work: phases
  --kind block|spin|spin-block  how to wait for the others [block]
  --spin-limit DURATION         spin-block: how long to spin before sleeping [50us]
  --phase DURATION              computation of a thread in a phase, when undisturbed [100us]
  --imbalance PERCENT           each part is up to this much longer or shorter [0%]
wait_ns: from a thread's arrival at the barrier to its leaving
";
    const WORK: &'static str = "phases";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Local = u64;

    fn from_args(args: &mut Args, threads: usize) -> Result<Self, LoadError> {
        let waiting = Waiting::from_args(args)?;
        let phase =
            args.duration("--phase", Duration::from_micros(100), Duration::from_nanos(100))?;
        let imbalance = args.percent("--imbalance", 0)?;
        let rendezvous = Rendezvous::new(waiting, threads as u32);
        Ok(Self { waiting, phase, imbalance, rendezvous, over: AtomicBool::new(false) })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        Ok(worker.units(self.phase))
    }

    fn work(&self, worker: &Worker<'_>, units: u64) -> Result<(), LoadError> {
        let mut rng = worker.rng();
        while !self.over.load(Relaxed) {
            unit::work(rng.around(units, self.imbalance));
            let arrived = clock::now();
            self.rendezvous.wait(|| self.over.store(worker.stopped(), Relaxed));
            worker.latency(clock::now() - arrived);
            worker.add(1);
        }
        Ok(())
    }

    fn together(&self, by_thread: &[u64]) -> u64 {
        by_thread.iter().copied().min().unwrap_or(0)
    }

    fn options(&self, fields: &mut Object) {
        self.waiting.describe(fields);
        fields.number("phase_ns", self.phase.as_nanos() as u64);
        fields.number("imbalance_percent", u64::from(self.imbalance));
    }

    fn verify(&self, by_thread: &[u64]) -> Result<(), LoadError> {
        match by_thread.iter().all(|phases| Some(phases) == by_thread.first()) {
            true => Ok(()),
            false => Err(LoadError::Wrong(format!("threads differ in phases: {by_thread:?}"))),
        }
    }
}
