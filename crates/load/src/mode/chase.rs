//! `chase`: follows pointers through memory in random order: bound by memory latency.
//!
//! Models the latency-bound NPB programs (systems.md 4: cg) and databases: each load's address
//! comes from the load before, so that nothing is fetched ahead, and a remote node costs its full
//! distance. The pointers form one cycle through every line (Sattolo's shuffle), so that all
//! of the memory is used and none of it soon again.

use super::memory::fill;
use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::rng::Rng;
use std::hint::black_box;

/// Loads between two looks at the stop flag and the clock.
const BATCH: u64 = 1024;

/// See the module.
#[derive(Debug)]
pub struct Chase {
    /// Bytes of one thread's memory.
    size: usize,
}

/// A cache line that says where the next one is.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Line {
    next: usize,
}

impl Mode for Chase {
    const NAME: &'static str = "chase";
    const HELP: &'static str = "\
chase: follows pointers in random order, bound by memory latency
work: loads
  --size SIZE  memory of each thread [16MiB]; to be larger than the caches
load_ns: time of one load, the mean of 1024 in a row
";
    const WORK: &'static str = "loads";
    const LATENCY: Option<&'static str> = Some("load_ns");
    type Local = Vec<Line>;

    fn from_args(args: &mut Args, _: usize) -> Result<Self, LoadError> {
        Ok(Self { size: args.size("--size", 16 << 20, 2 * size_of::<Line>())? })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<Vec<Line>, LoadError> {
        cycle(self.size / size_of::<Line>(), &mut worker.rng())
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

    fn options(&self, fields: &mut Object) {
        fields.number("size_bytes", self.size as u64);
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
