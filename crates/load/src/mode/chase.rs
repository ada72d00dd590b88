//! `chase`: follows pointers through memory in random order: bound by memory latency.
//!
//! Models the latency-bound NPB programs (systems.md 4: cg) and databases: each load's address
//! comes from the load before, so that nothing is fetched ahead, and a remote node costs its full
//! distance. The pointers form one cycle through every line (Sattolo's shuffle), so that all
//! of the memory is used and none of it soon again.

use super::memory::fill;
use crate::args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::rng::Rng;
use serde::Serialize;
use std::hint::black_box;

/// Loads between two looks at the stop flag and the clock.
const BATCH: u64 = 1024;

/// Follows pointers in random order, bound by memory latency
///
/// work: loads. load_ns: time of one load, the mean of 1024 in a row.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    /// Memory of each thread; to be larger than the caches
    #[arg(long, default_value = "16MiB", value_parser = args::size::<{ 2 * size_of::<Line>() }>)]
    #[serde(rename = "size_bytes")]
    size: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Chase {
    options: Options,
}

/// A cache line that says where the next one is.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Line {
    next: usize,
}

impl Mode for Chase {
    const NAME: &'static str = "chase";
    const WORK: &'static str = "loads";
    const LATENCY: Option<&'static str> = Some("load_ns");
    type Options = Options;
    type Local = Vec<Line>;

    fn new(options: Options, _: usize) -> Result<Self, LoadError> {
        Ok(Self { options })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<Vec<Line>, LoadError> {
        cycle(self.options.size / size_of::<Line>(), &mut worker.rng())
    }

    fn work(&self, worker: &Worker<'_>, lines: Vec<Line>) -> Result<(), LoadError> {
        let mut at = 0;
        let mut start = clock::now();
        while !worker.stopped() {
            for _ in 0..BATCH {
                at = lines[at].next;
            }
            black_box(at);
            let end = clock::now();
            worker.latency((end - start) / BATCH);
            worker.add(BATCH);
            start = end;
        }
        Ok(())
    }
}

/// Lines that form one cycle.
fn cycle(length: usize, rng: &mut Rng) -> Result<Vec<Line>, LoadError> {
    let mut lines = fill("the lines to chase through", length, |next| Line { next })?;
    for index in (1..length).rev() {
        let other = rng.below(index as u64) as usize;
        let next = lines[index].next;
        lines[index].next = lines[other].next;
        lines[other].next = next;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cycle_visits_every_line() {
        for length in [2, 3, 64, 1000] {
            let lines = cycle(length, &mut Rng::new(3, 0)).unwrap();
            let mut seen = vec![false; length];
            let mut at = 0;
            for _ in 0..length {
                assert!(!std::mem::replace(&mut seen[at], true), "{at} of {length} twice");
                at = lines[at].next;
            }
            assert_eq!(at, 0);
        }
    }
}
