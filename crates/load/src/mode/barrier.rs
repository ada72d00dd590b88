//! `barrier`: phases of computation, each ended by a barrier of all threads.
//!
//! Models the parallel programs of systems.md 2 (NPB sp and lu under OpenMP): a thread whose vCPU
//! does not run holds up all others. How they wait meanwhile decides what it costs: see
//! `rendezvous`. With an imbalance, each thread's part of each phase is drawn anew around the
//! phase's length, the same for a seed on every machine.

use crate::args::{self, nanos};
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::rendezvous::{Rendezvous, WaitingOptions};
use crate::unit;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Phases of computation, each ended by a barrier of all threads
///
/// work: phases. wait_ns: from a thread's arrival at the barrier to its leaving.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    waiting: WaitingOptions,
    /// Computation of a thread in a phase, when undisturbed
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = args::duration::<100>)]
    #[serde(rename = "phase_ns", serialize_with = "nanos")]
    phase: Duration,
    /// Each part is up to this much longer or shorter
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = args::percent)]
    #[serde(rename = "imbalance_percent")]
    imbalance: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Barrier {
    options: Options,
    rendezvous: Rendezvous,
    /// Set by the last to arrive once time is up, so that all end after the same phase.
    over: AtomicBool,
}

impl Mode for Barrier {
    const NAME: &'static str = "barrier";
    const WORK: &'static str = "phases";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Options = Options;
    type Local = u64;

    fn new(mut options: Options, threads: usize) -> Result<Self, LoadError> {
        let rendezvous = Rendezvous::new(options.waiting.resolve()?, threads as u32);
        Ok(Self { options, rendezvous, over: AtomicBool::new(false) })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        Ok(worker.units(self.options.phase))
    }

    fn work(&self, worker: &Worker<'_>, units: u64) -> Result<(), LoadError> {
        let mut rng = worker.rng();
        while !self.over.load(Relaxed) {
            unit::work(rng.around(units, self.options.imbalance));
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

    fn verify(&self, by_thread: &[u64]) -> Result<(), LoadError> {
        match by_thread.iter().all(|phases| Some(phases) == by_thread.first()) {
            true => Ok(()),
            false => Err(LoadError::Wrong(format!("threads differ in phases: {by_thread:?}"))),
        }
    }
}
