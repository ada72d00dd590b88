//! Relaxed co-scheduling (systems.md, 3), over CFS: only the skew between siblings is bounded.
//!
//! A vCPU that is runnable without running while a sibling that is not behind runs falls behind; its
//! *skew* grows by that time and shrinks while it runs. When a skew exceeds [`Rules::threshold`], the siblings that
//! ran ahead stop (co-stop) and those behind are next on their CPUs. As soon as all that are behind
//! run or blocked, the others may run again. A blocked vCPU does not fall behind.
//!
//! ```text
//!   free --a skew > threshold--> stopped (who is not behind) --all behind run or block--> free
//! ```

use super::cfs::{Cfs, Rules as CfsRules};
use super::{Pick, Scheduler};
use crate::check::Promises;
use crate::desk::{Desk, Put, TaskId, TaskState, Waker};

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nanoseconds of skew that are borne: 3 ms (VMware's `CoSched.skewThreshold` of ESX 3).
    pub threshold: u64,
    /// Nanoseconds between two looks: 1 ms.
    pub period: u64,
    /// CFS's numbers.
    pub cfs: CfsRules,
}

impl Default for Rules {
    fn default() -> Self {
        Self { threshold: 3_000_000, period: 1_000_000, cfs: CfsRules::default() }
    }
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Relaxed {
    rules: Rules,
    cfs: Cfs,
    skew: Vec<u64>,
    /// Tasks that are stopped: runnable, but in no queue of CFS.
    stopped: Vec<bool>,
    /// VMs of which some are stopped.
    stopping: Vec<bool>,
}

impl Relaxed {
    /// With these numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            cfs: Cfs::new(rules.cfs),
            rules,
            skew: Vec::new(),
            stopped: Vec::new(),
            stopping: Vec::new(),
        }
    }

    fn behind(&self, task: TaskId) -> bool {
        self.skew[task.ix()] > self.rules.threshold
    }

    /// Adds the time since the last look to the skews of a VM.
    fn measure(&mut self, desk: &Desk, vm: usize) {
        let state = |task: TaskId| desk.task(task).state;
        // While those ahead are stopped nobody falls further behind: else siblings that take turns on
        // one CPU would keep them stopped for good.
        let ahead = |task: TaskId| state(task) == TaskState::Running && !self.behind(task);
        let runs = desk.vms[vm].tasks().any(ahead);
        for task in desk.vms[vm].tasks() {
            let skew = &mut self.skew[task.ix()];
            match state(task) {
                TaskState::Running => *skew = skew.saturating_sub(self.rules.period),
                TaskState::Queued if runs && !self.stopped[task.ix()] => *skew += self.rules.period,
                TaskState::Queued => {}
                TaskState::Blocked => *skew = 0,
            }
        }
    }

    /// Stops who is ahead, starts who is behind, or lets all run.
    fn steer(&mut self, desk: &mut Desk, vm: usize) {
        let mut waiting = false;
        for at in 0..desk.vms[vm].count {
            let task = TaskId(desk.vms[vm].first + at);
            if self.behind(task) && desk.task(task).state == TaskState::Queued {
                waiting = true;
                self.cfs.favour(desk, task);
            }
        }
        if !waiting {
            if std::mem::take(&mut self.stopping[vm]) {
                self.release(desk, vm);
            }
            return;
        }
        self.stopping[vm] = true;
        for at in 0..desk.vms[vm].count {
            let task = TaskId(desk.vms[vm].first + at);
            if !self.behind(task) && desk.task(task).state == TaskState::Running {
                let cpu = desk.task(task).cpu;
                desk.resched(cpu);
            }
        }
    }

    fn release(&mut self, desk: &mut Desk, vm: usize) {
        for at in 0..desk.vms[vm].count {
            let task = TaskId(desk.vms[vm].first + at);
            if std::mem::take(&mut self.stopped[task.ix()]) {
                self.cfs.wake(desk, task, Waker::Timer);
                self.cfs.favour(desk, task);
            }
        }
    }
}

impl Scheduler for Relaxed {
    fn name(&self) -> &'static str {
        "relaxed"
    }

    fn start(&mut self, desk: &mut Desk) {
        self.cfs.start(desk);
        self.skew = vec![0; desk.tasks.len()];
        self.stopped = vec![false; desk.tasks.len()];
        self.stopping = vec![false; desk.vms.len()];
        desk.arm(0, self.rules.period);
    }

    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        self.cfs.wake(desk, task, by);
    }

    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.skew[task.ix()] = 0;
        self.cfs.block(desk, cpu, task);
    }

    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        let vm = desk.task(task).vm;
        if self.stopping[vm] && !self.behind(task) {
            self.stopped[task.ix()] = true;
            self.cfs.block(desk, cpu, task);
        } else {
            self.cfs.put(desk, cpu, task, why);
        }
    }

    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        self.cfs.pick(desk, cpu)
    }

    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        self.cfs.tick(desk, cpu);
    }

    fn tick_period(&self) -> u64 {
        self.cfs.tick_period()
    }

    fn timer(&mut self, desk: &mut Desk, _id: u32) {
        for vm in 0..desk.vms.len() {
            if desk.vms[vm].count > 1 && !desk.vms[vm].hidden {
                self.measure(desk, vm);
                self.steer(desk, vm);
            }
        }
        desk.arm(0, desk.now + self.rules.period);
    }

    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        if !self.stopped[task.ix()] {
            self.cfs.affinity_changed(desk, task);
        }
    }

    fn work_conserving(&self) -> bool {
        false
    }

    fn promises(&self) -> Promises {
        // Who is stopped waits on a CPU that idles.
        Promises { woken: None, ..Promises::usual(false, self.tick_period()) }
    }
}
