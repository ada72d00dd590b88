//! VMs that come and go: their threads begin when the VM comes, and are killed when it goes. What was killed still needs its
//! CPU to end, as in the kernel: until it has had it, it waits there with nothing to do.

use super::{Engine, STAGGER, START, State};
use crate::context::{TaskId, TaskState};

/// When a VM exists, nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it comes; 0 if it is there from the start.
    pub from: u64,
    /// When it goes; `u64::MAX` if it stays to the end.
    pub until: u64,
}

impl Life {
    /// From the start to the end.
    pub const WHOLE: Self = Self { from: 0, until: u64::MAX };

    /// Nanoseconds of it between two moments.
    pub fn within(self, from: u64, until: u64) -> u64 {
        self.until.min(until).saturating_sub(self.from.max(from))
    }
}

/// A VM comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    pub(super) at: u64,
    vm: usize,
    comes: bool,
}

impl Change {
    /// All of them, the last one first.
    pub(super) fn all(lives: impl Iterator<Item = Life>) -> Vec<Self> {
        let mut all = Vec::new();
        for (vm, life) in lives.enumerate() {
            if life.from > 0 {
                all.push(Self { at: life.from, vm, comes: true });
            }
            if life.until < u64::MAX {
                all.push(Self { at: life.until, vm, comes: false });
            }
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }
}

impl Engine {
    /// The threads of a VM begin one after the other, as a program starts them.
    pub(super) fn begin_threads(&mut self, vm: usize) {
        let mut at = self.ctx.now + self.ctx.rng.below(START);
        self.runs[vm].began = at + STAGGER;
        for thread in self.threads_of(vm) {
            at += STAGGER;
            self.ctx.timers.arm(self.thread_slot(thread as u32), at);
        }
    }

    /// All VMs begin that are there from the start.
    pub(super) fn begin_vms(&mut self) {
        for vm in 0..self.ctx.vms.len() {
            if self.ctx.vms[vm].is_there && !self.threads_of(vm).is_empty() {
                self.begin_threads(vm);
            }
        }
        self.arm_changes();
    }

    fn threads_of(&self, vm: usize) -> std::ops::Range<usize> {
        self.first_thread[vm]..self.first_thread[vm + 1]
    }

    fn arm_changes(&mut self) {
        if let Some(next) = self.changes.last() {
            let slot = self.change_slot();
            self.ctx.timers.arm(slot, next.at);
        }
    }

    /// VMs come and go that do so now.
    pub(super) fn change(&mut self) {
        let now = self.ctx.now;
        while let Some(change) = self.changes.pop_if(|change| change.at <= now) {
            self.ctx.vms[change.vm].is_there = change.comes;
            if change.comes {
                self.begin_threads(change.vm);
            } else {
                self.kill(change.vm);
            }
        }
        self.arm_changes();
    }

    fn kill(&mut self, vm: usize) {
        let this = &self.ctx.vms[vm];
        let tasks = this.first..this.first + this.count;
        for task in tasks.clone().map(TaskId) {
            if self.ctx.task(task).state == TaskState::Running {
                let cpu = self.ctx.task(task).cpu;
                self.account_elapsed(cpu);
            }
        }
        for thread in self.threads_of(vm) {
            self.threads[thread].state = State::Done;
            self.ctx.timers.cancel(self.thread_slot(thread as u32));
        }
        for task in tasks.map(TaskId) {
            match self.ctx.task(task).state {
                TaskState::Running => self.end_running(task),
                TaskState::Blocked => self.sched.ends(&mut self.ctx, task),
                TaskState::Queued => {}
            }
        }
    }

    fn end_running(&mut self, task: TaskId) {
        let cpu = self.ctx.task(task).cpu;
        if self.vcpus[task.ix()].current.is_some() {
            self.proceed(cpu);
        } else {
            self.block(cpu, task);
        }
    }
}
