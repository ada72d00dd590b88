//! Hypervisor schedulers: one interface, and a module for each published set of rules.
//!
//! The engine tells what happened and asks what shall run; it never decides. Order of calls for a
//! task: `wake`, then `pick` and `put` in turn, then `block`. A task that `pick` returned is out of
//! the scheduler's queues until `put`. `tick` comes on every CPU each [`Scheduler::tick_period`],
//! idle ones too.

pub mod affinity;
pub mod balance;
pub mod cfs;
pub mod credit;
pub mod eevdf;
pub mod pm;
pub mod relaxed;
pub mod strict;
pub mod sync_aware;

use crate::desk::{Desk, Put, TaskId, Waker};
use std::fmt;

/// What shall run, and for how long at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The task.
    pub task: TaskId,
    /// Nanoseconds from now after which the CPU chooses again; `u64::MAX` for no end.
    pub slice: u64,
}

/// A hypervisor's scheduler.
pub trait Scheduler: fmt::Debug + Send {
    /// Its name, as in scenarios.
    fn name(&self) -> &'static str;

    /// Called once; all tasks are blocked. May arm timers and narrow affinities.
    fn start(&mut self, desk: &mut Desk);

    /// A blocked task became runnable: choose its CPU ([`Desk::assign`]), put it into a queue, ask
    /// for CPUs to choose again ([`Desk::resched`]). Its state is `Queued` already.
    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker);

    /// The task that ran on `cpu` blocks. It is charged up to now and `Blocked` already.
    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId);

    /// The task that ran on `cpu` is runnable still: put it back into a queue. It is charged up to
    /// now and `Queued` already. [`Scheduler::pick`] follows at once.
    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put);

    /// What shall run on `cpu`: a queued task, which leaves its queue and is assigned to `cpu`.
    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick>;

    /// The CPU's clock tick.
    fn tick(&mut self, desk: &mut Desk, cpu: usize);

    /// Nanoseconds between two ticks of a CPU.
    fn tick_period(&self) -> u64;

    /// A timer that was armed with [`Desk::arm`] is due.
    fn timer(&mut self, _desk: &mut Desk, _id: u32) {}

    /// Placement changed what a task may or should use, which is in [`Desk`] already. It may be
    /// running or queued where it may not be any more.
    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId);

    /// The thread of a vCPU began to wait for siblings (futex_wait), seen from outside the guest.
    fn sync_wait(&mut self, _desk: &mut Desk, _task: TaskId) {}

    /// A vCPU of this VM woke its siblings (futex_wake).
    fn sync_wake(&mut self, _desk: &mut Desk, _vm: usize) {}

    /// Whether tasks are threads on the bare machine: no exits, no halts, no directed yields.
    fn bare_metal(&self) -> bool {
        false
    }

    /// Whether no CPU may be idle while a task that may use it waits, at the latest one tick
    /// later. What checkers hold it to.
    fn work_conserving(&self) -> bool {
        true
    }
}

/// Names of all schedulers, as scenarios use them.
pub const NAMES: [&str; 9] =
    ["credit", "sync-aware", "cfs", "balance", "affinity", "strict", "relaxed", "eevdf", "pm"];

/// The scheduler of this name, with its published numbers.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Scheduler>> {
    Some(match name {
        "credit" => Box::new(credit::Credit::new(credit::Rules::default())),
        "sync-aware" => Box::new(sync_aware::SyncAware::new(credit::Rules::default())),
        "cfs" => Box::new(cfs::Cfs::new(cfs::Rules::default())),
        "balance" => Box::new(balance::new(cfs::Rules::default())),
        "affinity" => Box::new(affinity::Affinity::new(cfs::Rules::default())),
        "strict" => Box::new(strict::Strict::new(strict::Rules::default())),
        "relaxed" => Box::new(relaxed::Relaxed::new(relaxed::Rules::default())),
        "eevdf" => Box::new(eevdf::Eevdf::new(eevdf::Rules::default())),
        "pm" => Box::new(pm::Pm::new(cfs::Rules::default())),
        _ => return None,
    })
}
