//! `pm`: guest threads straight on the host's CPUs under CFS, without any hypervisor. What published
//! comparisons call the physical machine.

use super::cfs::{Cfs, Rules};
use super::{Pick, Scheduler};
use crate::check::Promises;
use crate::desk::{Desk, Put, TaskId, Waker};

/// The scheduler. Each task is a thread.
#[derive(Clone, Debug)]
pub struct Pm(Cfs);

impl Pm {
    /// With CFS's numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Cfs::new(rules))
    }
}

impl Scheduler for Pm {
    fn name(&self) -> &'static str {
        "pm"
    }
    fn start(&mut self, desk: &mut Desk) {
        self.0.start(desk);
    }
    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        self.0.wake(desk, task, by);
    }
    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.0.block(desk, cpu, task);
    }
    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        self.0.put(desk, cpu, task, why);
    }
    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        self.0.pick(desk, cpu)
    }
    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        self.0.tick(desk, cpu);
    }
    fn tick_period(&self) -> u64 {
        self.0.tick_period()
    }
    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        self.0.affinity_changed(desk, task);
    }
    fn promises(&self) -> Promises {
        self.0.promises()
    }
    fn bare_metal(&self) -> bool {
        true
    }
}
