//! Static affinity (systems.md, 3): every vCPU is bound to one CPU, siblings apart, as many vCPUs on
//! each CPU as on any other. Over CFS, which then only chooses the order on each CPU.
//!
//! A vCPU that is sensitive to latency may be stuck on the busiest CPU: that is the point of
//! comparison.

use super::cfs::{Cfs, Rules};
use super::{Pick, Scheduler};
use crate::check::Promises;
use crate::desk::{Desk, Put, TaskId, Waker};
use crate::mask::Mask;

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Affinity(Cfs);

impl Affinity {
    /// With CFS's numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Cfs::new(rules))
    }
}

/// Binds every task to one of the CPUs it may use: fewest siblings first, then fewest tasks, then in
/// the order in which an idle host is filled.
fn bind(desk: &mut Desk) {
    let (cpus, order) = (desk.host.cpus(), desk.host.spread());
    let mut rank = vec![0; cpus];
    order.iter().enumerate().for_each(|(at, cpu)| rank[*cpu] = at);
    let mut tasks = vec![0u32; cpus];
    for vm in 0..desk.vms.len() {
        let mut siblings = vec![0u32; cpus];
        for task in desk.vms[vm].tasks() {
            let this = &mut desk.tasks[task.ix()];
            let key = |cpu: &usize| (siblings[*cpu], tasks[*cpu], rank[*cpu]);
            let Some(cpu) = this.allowed.iter().min_by_key(key) else { continue };
            siblings[cpu] += 1;
            tasks[cpu] += 1;
            this.allowed = Mask::of(cpus, [cpu]);
            this.cpu = cpu;
        }
    }
}

impl Scheduler for Affinity {
    fn name(&self) -> &'static str {
        "affinity"
    }
    fn start(&mut self, desk: &mut Desk) {
        bind(desk);
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
}
