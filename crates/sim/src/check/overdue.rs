//! Bounded wait where who has waited for too long goes first, whatever its rank (bpf/policy.h,
//! `pol_overdue`; docs/dispatch-safety.md): a task is *overdue* after its bound, and from then on waits for the
//! claims of those that were before it on its CPU. Weights do not count.
//!
//! The bound grows with a vCPU's siblings on its CPU, which take turns. Where more wait for a CPU than it
//! looks at nothing is promised. Knows nothing of threads of no VM.

use super::Checker;
use super::picture::{Life, Picture, TaskPicture};

/// The bounds, times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// After so long a vCPU is overdue, times its siblings that run or wait on its CPU, itself
    /// included.
    pub each: u64,
    /// As many siblings count at most.
    pub siblings: u64,
    /// In so long a CPU chooses one that is overdue, if there is one.
    pub claim: u64,
    /// How many of those that wait a CPU looks at.
    pub depth: u64,
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    rules: Overdue,
    /// Tasks of VMs below this number are vCPUs.
    vms: usize,
    /// Of each task that is overdue: since when, and how many waited there at most.
    late: Vec<Option<(u64, u64)>>,
}

impl Checked {
    pub(super) fn new(rules: Overdue, vms: usize) -> Self {
        Self { rules, vms, late: Vec::new() }
    }

    /// When a waiting task is overdue as things are now, and how many wait for its CPU.
    fn due(&self, picture: &Picture, task: &TaskPicture) -> (u64, u64) {
        let rules = &self.rules;
        let here = || picture.tasks.iter().filter(|other| other.cpu == task.cpu);
        let waits = |other: &&TaskPicture| other.life == Life::Waiting;
        let there = |other: &&TaskPicture| other.vm == task.vm && other.life != Life::Blocked;
        let bound = (here().filter(there).count() as u64).min(rules.siblings) * rules.each;
        (begun(task) + bound, here().filter(waits).count() as u64)
    }
}

/// When the wait began: who may use other CPUs than before queues anew.
fn begun(task: &TaskPicture) -> u64 {
    task.queued.max(task.allowed_since)
}

impl Checker for Checked {
    fn name(&self) -> &'static str {
        "wait"
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        self.late.resize(picture.tasks.len(), None);
        let least = self.rules.each;
        for (at, task) in picture.tasks.iter().enumerate() {
            if task.vm >= self.vms || task.life != Life::Waiting || to - begun(task) <= least {
                self.late[at] = None;
                continue;
            }
            let (due, waiting) = self.due(picture, task);
            if to <= due || waiting > self.rules.depth {
                self.late[at] = None;
                continue;
            }
            let (since, most) = self.late[at].unwrap_or((due.max(picture.now), 0));
            let most = most.max(waiting);
            self.late[at] = Some((since, most));
            // One may have been chosen just before it was overdue.
            let claims = self.rules.claim * (most + 1);
            if to - since > claims {
                let ms = |ns: u64| ns / 1_000_000;
                return Some(format!(
                    "task {at} waits for {} ms on CPU {}, overdue for {} ms; {} ms are the bound \
                     among {most}",
                    ms(to - begun(task)),
                    task.cpu,
                    ms(to - since),
                    ms(claims)
                ));
            }
        }
        None
    }
}
