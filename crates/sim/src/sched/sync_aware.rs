//! Synchronisation-aware scheduling on Xen's credit scheduler (systems.md, 2).
//!
//! A table holds for every vCPU since when its thread waits (futex_wait, seen from outside the
//! guest); a sibling that wakes (futex_wake) empties the VM's entries. Periodically: a VM with a
//! vCPU that has waited longer than the ideal scheduling interval `|C| / |P| * T` is held up by a
//! bottleneck, its siblings that are runnable and do not run. Those are put at BOOST, as long as the
//! VM has credits left, so that fairness over the accounting period is kept.
//!
//! One thread per vCPU is assumed, as published.

use super::credit::{Credit, Pri, Rules};
use super::{Pick, Scheduler};
use crate::check::Promises;
use crate::desk::{Desk, Put, TaskId, TaskState, Waker};

/// The scheduler's second timer.
const CHECK: u32 = 1;

/// The scheduler.
#[derive(Clone, Debug)]
pub struct SyncAware {
    credit: Credit,
    rules: Rules,
    /// Since when each vCPU waits, nanoseconds.
    waits: Vec<Option<u64>>,
    /// The threshold, nanoseconds.
    threshold: u64,
    boosts: u64,
}

impl SyncAware {
    /// On the credit scheduler with these numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let credit = Credit::new(rules);
        Self { credit, rules, waits: Vec::new(), threshold: 0, boosts: 0 }
    }

    fn check(&mut self, desk: &mut Desk) {
        for vm in 0..desk.vms.len() {
            if desk.vms[vm].hidden {
                continue;
            }
            let tasks = || desk.vms[vm].tasks();
            let late = |task: &TaskId| {
                self.waits[task.ix()].is_some_and(|since| desk.now - since > self.threshold)
            };
            let credits: i64 = tasks().map(|task| self.credit.credit(task)).sum();
            if credits <= 0 || !tasks().any(|task| late(&task)) {
                continue;
            }
            for at in 0..desk.vms[vm].count {
                let task = TaskId(desk.vms[vm].first + at);
                if desk.task(task).state == TaskState::Queued {
                    self.boost(desk, task);
                }
            }
        }
    }

    fn boost(&mut self, desk: &mut Desk, task: TaskId) {
        if self.credit.raise(desk, task, Pri::Boost) {
            self.boosts += 1;
        }
    }
}

impl Scheduler for SyncAware {
    fn name(&self) -> &'static str {
        "sync-aware"
    }
    fn start(&mut self, desk: &mut Desk) {
        self.credit.start(desk);
        self.waits = vec![None; desk.tasks.len()];
        let shown = desk.vms.iter().filter(|vm| !vm.hidden);
        let vcpus: u64 = shown.map(|vm| u64::from(vm.count)).sum();
        let cpus = desk.host.cpus() as u64;
        self.threshold = self.rules.slice * vcpus / cpus.max(1);
        desk.arm(CHECK, self.tick_period());
    }
    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        self.credit.wake(desk, task, by);
    }
    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.credit.block(desk, cpu, task);
    }
    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        self.credit.put(desk, cpu, task, why);
    }
    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        self.credit.pick(desk, cpu)
    }
    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        self.credit.tick(desk, cpu);
    }
    fn tick_period(&self) -> u64 {
        self.credit.tick_period()
    }
    fn quantum(&self, cpus: usize) -> u64 {
        self.credit.quantum(cpus)
    }
    fn timer(&mut self, desk: &mut Desk, id: u32) {
        if id == CHECK {
            self.check(desk);
            desk.arm(CHECK, desk.now + self.tick_period());
        } else {
            self.credit.timer(desk, id);
        }
    }
    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        self.credit.affinity_changed(desk, task);
    }
    fn sync_wait(&mut self, desk: &mut Desk, task: TaskId) {
        self.waits[task.ix()] = Some(desk.now);
    }
    fn sync_wake(&mut self, desk: &mut Desk, vm: usize) {
        for task in desk.vms[vm].tasks() {
            self.waits[task.ix()] = None;
        }
    }
    fn boosts(&self) -> Option<u64> {
        Some(self.boosts)
    }
    fn promises(&self) -> Promises {
        self.credit.promises()
    }
    fn work_conserving(&self) -> bool {
        self.credit.work_conserving()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::desk;

    #[test]
    fn the_threshold_counts_vcpus_and_no_threads_of_the_host() {
        // Two CPUs, four vCPUs, and four threads of the host: 4 / 2 * 30 ms.
        let mut desk = desk(2, &[2, 2]);
        assert_eq!(desk.tasks.len(), 8);
        let mut sync_aware = SyncAware::new(Rules::default());
        sync_aware.start(&mut desk);
        assert_eq!(sync_aware.threshold, 60_000_000);
    }

    #[test]
    fn it_promises_what_credit_promises() {
        let rules = Rules::default();
        assert_eq!(SyncAware::new(rules).promises(), Credit::new(rules).promises());
    }
}
