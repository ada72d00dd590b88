//! Synchronisation-aware scheduling on Xen's credit scheduler (systems.md, 2).
//!
//! A table holds for every vCPU since when its thread waits (futex_wait, seen from outside the
//! guest); a sibling that wakes (futex_wake) empties the VM's entries. At each tick: a VM with a
//! vCPU that has waited longer than the ideal scheduling interval `|C| / |P| * T` is held up by a
//! bottleneck, its siblings that are runnable and do not run. Those are put at BOOST, as long as the
//! VM has credits left, so that fairness over the accounting period is kept.
//!
//! `|P|` are the host's CPUs. Of `|C|` and `T` the published words allow several readings ([`Threshold`]).
//! One thread per vCPU is assumed, as published.

use super::credit::{Credit, CreditTuning, Pri};
use super::{Pick, Scheduler, Standing};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, VmTasks, Waker};
use instep_check::Promises;

/// The scheduler's second timer.
const CHECK: u32 = 1;

/// How the ideal scheduling interval `|C| / |P| * T` is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    /// `T` in nanoseconds; the slice when not given.
    pub quantum: Option<u64>,
    /// Whether `|C|` are the VM's own vCPUs instead of those of all VMs.
    pub own: bool,
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct SyncAware {
    credit: Credit,
    rules: CreditTuning,
    threshold: Threshold,
    /// Since when each vCPU waits, nanoseconds.
    waits: Vec<Option<u64>>,
    /// The ideal scheduling interval of each VM, nanoseconds.
    intervals: Vec<u64>,
    boosts: u64,
}

impl SyncAware {
    /// On the credit scheduler with these numbers.
    pub fn new(rules: CreditTuning, threshold: Threshold) -> Self {
        let credit = Credit::new(rules);
        Self { credit, rules, threshold, waits: Vec::new(), intervals: Vec::new(), boosts: 0 }
    }

    fn check(&mut self, ctx: &mut SchedContext) {
        for vm in 0..ctx.vms.len() {
            if ctx.vms[vm].hidden {
                continue;
            }
            let tasks = || ctx.vms[vm].tasks();
            let late = |task: &TaskId| {
                self.waits[task.ix()].is_some_and(|since| ctx.now - since > self.intervals[vm])
            };
            let credits: i64 = tasks().map(|task| self.credit.credit(task)).sum();
            if credits <= 0 || !tasks().any(|task| late(&task)) {
                continue;
            }
            for at in 0..ctx.vms[vm].count {
                let task = TaskId(ctx.vms[vm].first + at);
                if ctx.task(task).state == TaskState::Queued {
                    self.boost(ctx, task);
                }
            }
        }
    }

    fn boost(&mut self, ctx: &mut SchedContext, task: TaskId) {
        if self.credit.raise(ctx, task, Pri::Boost) {
            self.boosts += 1;
        }
    }
}

impl Scheduler for SyncAware {
    fn name(&self) -> &'static str {
        "sync-aware"
    }
    fn start(&mut self, ctx: &mut SchedContext) {
        self.credit.start(ctx);
        self.waits = vec![None; ctx.tasks.len()];
        let shown = ctx.vms.iter().filter(|vm| !vm.hidden);
        let vcpus: u64 = shown.map(|vm| u64::from(vm.count)).sum();
        let (cpus, quantum) = (ctx.host.cpus() as u64, self.threshold.quantum);
        let interval = |vm: &VmTasks| {
            let counted = if self.threshold.own { u64::from(vm.count) } else { vcpus };
            quantum.unwrap_or(self.rules.slice) * counted / cpus.max(1)
        };
        self.intervals = ctx.vms.iter().map(interval).collect();
        ctx.arm(CHECK, self.tick_period());
    }
    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        self.credit.wake(ctx, task, by);
    }
    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        self.credit.block(ctx, cpu, task);
    }
    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        self.credit.put(ctx, cpu, task, why);
    }
    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        self.credit.pick(ctx, cpu)
    }
    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.credit.tick(ctx, cpu);
    }
    fn tick_period(&self) -> u64 {
        self.credit.tick_period()
    }
    fn first_tick(&self, ctx: &mut SchedContext) -> u64 {
        self.credit.first_tick(ctx)
    }
    fn next_tick(&self, ctx: &mut SchedContext) -> u64 {
        self.credit.next_tick(ctx)
    }
    fn quantum(&self, cpus: usize) -> u64 {
        self.credit.quantum(cpus)
    }
    fn timer(&mut self, ctx: &mut SchedContext, id: u32) {
        if id == CHECK {
            self.check(ctx);
            ctx.arm(CHECK, ctx.now + self.tick_period());
        } else {
            self.credit.timer(ctx, id);
        }
    }
    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        self.credit.affinity_changed(ctx, task);
    }
    fn sync_wait(&mut self, ctx: &mut SchedContext, task: TaskId) {
        self.waits[task.ix()] = Some(ctx.now);
    }
    fn sync_wake(&mut self, ctx: &mut SchedContext, vm: usize) {
        for task in ctx.vms[vm].tasks() {
            self.waits[task.ix()] = None;
        }
    }
    fn keeps_caps(&self) -> bool {
        self.credit.keeps_caps()
    }
    fn standing(&self, task: TaskId) -> Option<Standing> {
        self.credit.standing(task)
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
    use crate::testing::ctx;

    #[test]
    fn the_threshold_counts_vcpus_and_no_threads_of_the_host() {
        // Two CPUs, six vCPUs, and four threads of the host.
        let mut ctx = ctx(2, &[2, 4]);
        assert_eq!(ctx.tasks.len(), 10);
        let mut intervals = |quantum, own| {
            let mut it = SyncAware::new(CreditTuning::default(), Threshold { quantum, own });
            it.start(&mut ctx);
            it.intervals[..2].to_vec()
        };
        // 6 / 2 * 30 ms, 6 / 2 * 10 ms; of the own vCPUs 2 / 2 and 4 / 2.
        assert_eq!(intervals(None, false), [90_000_000; 2]);
        assert_eq!(intervals(Some(10_000_000), false), [30_000_000; 2]);
        assert_eq!(intervals(Some(10_000_000), true), [10_000_000, 20_000_000]);
    }

    #[test]
    fn waiting_siblings_are_boosted_while_credits_last() {
        // One CPU, two VMs of two vCPUs: the threshold is 4 / 1 * 10 ms. Of each VM the first waits for its
        // sibling, which waits for the CPU.
        let boosted = |since: u64, credit: i64| {
            let mut ctx = ctx(1, &[2, 2]);
            let threshold = Threshold { quantum: Some(10_000_000), own: false };
            let mut it = SyncAware::new(CreditTuning::default(), threshold);
            it.start(&mut ctx);
            for task in [1, 3].map(TaskId) {
                ctx.ready(task);
                it.credit.queue_over(&ctx, task, credit);
            }
            it.sync_wait(&mut ctx, TaskId(0));
            ctx.now = since;
            it.timer(&mut ctx, CHECK);
            (it.boosts(), ctx.pending.first())
        };
        assert_eq!(boosted(40_000_000, 1), (Some(0), None), "not beyond it");
        // The sibling of the one that waits, and not the other VM's.
        assert_eq!(boosted(40_000_001, 1), (Some(1), Some(0)));
        assert_eq!(boosted(40_000_001, 0), (Some(0), None), "the VM has had its share");
    }

    #[test]
    fn a_wake_up_by_a_sibling_empties_the_table_of_the_vm_alone() {
        let mut ctx = ctx(1, &[2, 2]);
        let mut it = SyncAware::new(CreditTuning::default(), Threshold::default());
        it.start(&mut ctx);
        for task in 0..3 {
            it.sync_wait(&mut ctx, TaskId(task));
        }
        it.sync_wake(&mut ctx, 0);
        assert_eq!(it.waits[..4], [None, None, Some(0), None]);
    }

    #[test]
    fn it_promises_what_credit_promises() {
        let rules = CreditTuning::default();
        let sync_aware = SyncAware::new(rules, Threshold::default());
        assert_eq!(sync_aware.promises(), Credit::new(rules).promises());
    }
}
