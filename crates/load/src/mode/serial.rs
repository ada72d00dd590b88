//! `serial`: a loop of a parallel part, shared among all threads, and a sequential part of one.
//!
//! The synthetic benchmark of systems.md 5: 8 units of 1 ms in parallel, then 1 unit alone.
//! *Imbalanced* (`--serial fixed`) runs the unit always on thread 0; *balanced* (`rotating`) on
//! each in turn, so that every vCPU needs the same time over a few iterations.

use crate::args::{self, nanos};
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::rendezvous::{Rendezvous, WaitingOptions};
use crate::unit;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A loop of a parallel part and a sequential part
///
/// work: iterations. wait_ns: waits for the end of the parallel part, and of the sequential part.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    /// CPU time of the parallel part, shared among the threads
    #[arg(long, value_name = "DURATION", default_value = "8ms", value_parser = args::duration::<0>)]
    #[serde(rename = "parallel_ns", serialize_with = "nanos")]
    parallel: Duration,
    /// CPU time of the sequential part
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = args::duration::<100>)]
    #[serde(rename = "sequential_ns", serialize_with = "nanos")]
    sequential: Duration,
    /// The thread that does it: thread 0 (imbalanced) or each in turn (balanced)
    #[arg(long, value_enum, default_value_t)]
    serial: Serially,
    #[command(flatten)]
    #[serde(flatten)]
    waiting: WaitingOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Serially {
    #[default]
    #[value(alias = "imbalanced")]
    Fixed,
    #[value(alias = "balanced")]
    Rotating,
}

/// See the module.
#[derive(Debug)]
pub struct Serial {
    options: Options,
    rendezvous: Rendezvous,
    over: AtomicBool,
}

impl Mode for Serial {
    const NAME: &'static str = "serial";
    const WORK: &'static str = "iterations";
    const LATENCY: Option<&'static str> = Some("wait_ns");
    type Options = Options;
    type Local = (u64, u64);

    fn new(mut options: Options, threads: usize) -> Result<Self, LoadError> {
        let rendezvous = Rendezvous::new(options.waiting.resolve()?, threads as u32);
        Ok(Self { options, rendezvous, over: AtomicBool::new(false) })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<(u64, u64), LoadError> {
        let share = self.options.parallel / worker.plan.threads as u32;
        Ok((worker.units(share), worker.units(self.options.sequential)))
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
            if self.options.serial == Serially::Rotating {
                turn = (turn + 1) % worker.plan.threads;
            }
        }
        Ok(())
    }

    fn together(&self, by_thread: &[u64]) -> u64 {
        by_thread.iter().copied().min().unwrap_or(0)
    }
}

impl Serial {
    fn meet(&self, worker: &Worker<'_>, last: impl FnOnce()) {
        let arrived = clock::now();
        self.rendezvous.wait(last);
        worker.latency(clock::now() - arrived);
    }
}
