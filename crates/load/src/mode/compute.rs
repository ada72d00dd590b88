//! `compute`: arithmetic that needs no memory, no other thread and no kernel.
//!
//! Models NPB ep (systems.md 4: indifferent to placement and to co-scheduling); what a neighbour
//! gets when it simply wants all its CPUs. Work is counted in units (see `unit`).

use crate::args::Args;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::unit;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Compute;

impl Mode for Compute {
    const NAME: &'static str = "compute";
    const HELP: &'static str = "\
compute: arithmetic without memory, waiting or system calls
work: units (some 100 ns each, see --unit-ns)
";
    const WORK: &'static str = "units";
    type Local = u64;

    fn from_args(_: &mut Args, _: usize) -> Result<Self, LoadError> {
        Ok(Self)
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        // Between two looks at the stop flag.
        Ok(worker.units(Duration::from_micros(100)))
    }

    fn work(&self, worker: &Worker<'_>, batch: u64) -> Result<(), LoadError> {
        while !worker.stopped() {
            unit::work(batch);
            worker.add(batch);
        }
        Ok(())
    }
}
