//! Bounded wait where a bound is stated for a host of ordinary load (docs/dispatch-safety.md): with at most
//! eight runnable vCPUs a CPU none waits longer than 100 ms.
//!
//! In general a vCPU is entitled to some part of a CPU: the fair share of its VM, by weight, of the CPUs that it may
//! use, among the tasks that may use any of these, divided by its runnable vCPUs. It waits no longer than
//!
//! ```text
//!     bound = each * max(1, 1 / (8 * part))         each: 100 ms
//! ```
//!
//! so that eight equal vCPUs on a CPU have 1/8 each, and 100 ms. The part is never less than 1/64 of a CPU for a VM,
//! which is the least that the scheduler takes it to be entitled to. The bound is the largest of the wait. Knows
//! nothing of threads of no VM but that they want a CPU, too.

use super::Checker;
use super::picture::{Picture, TaskLife, TaskPicture};
use instep_core::measure;

/// The bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBound {
    /// Of a vCPU that is entitled to an eighth of a CPU, nanoseconds.
    pub each: u64,
}

/// A vCPU that is entitled to this part of a CPU, thousandths, waits no longer than `each`.
const PART: u64 = 125;
/// The least that a VM is entitled to, thousandths of a CPU.
const LEAST: u64 = 1000 / 64;

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    rule: WaitBound,
    /// Tasks of VMs below this number are vCPUs.
    vms: usize,
    /// The largest bound of each task in its present wait, nanoseconds.
    bounds: Vec<u64>,
}

impl Checked {
    pub(super) fn new(rule: WaitBound, vms: usize) -> Self {
        Self { rule, vms, bounds: Vec::new() }
    }

    /// The bound of this task as things are now, nanoseconds.
    fn bound(&self, picture: &Picture, own: &TaskPicture) -> u64 {
        let all = picture.tasks.iter().map(|task| task.vm + 1).max().unwrap_or(0);
        let mut claims = vec![(0, 0); all];
        let runnable = picture.tasks.iter().filter(|task| task.life != TaskLife::Blocked);
        for task in runnable.filter(|task| task.allowed.meets(&own.allowed)) {
            let (weight, most) = &mut claims[task.vm];
            *weight = u64::from(task.weight);
            *most += 1000;
        }
        let cpus = u64::from(own.allowed.count());
        let share = measure::fair_shares(cpus * 1000, &claims)[own.vm].max(LEAST);
        let part = share * 1000 / claims[own.vm].1.max(1000);
        (self.rule.each * PART / part.max(1)).max(self.rule.each)
    }
}

impl Checker for Checked {
    fn name(&self) -> &'static str {
        "wait"
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        self.bounds.resize(picture.tasks.len(), 0);
        for (at, task) in picture.tasks.iter().enumerate() {
            // Who may use other CPUs than before waits anew.
            let waited = to - task.since.max(task.allowed_since).min(to);
            if task.vm >= self.vms || task.life != TaskLife::Waiting || waited <= self.rule.each / 2
            {
                self.bounds[at] = 0;
                continue;
            }
            let bound = self.bound(picture, task).max(self.bounds[at]);
            self.bounds[at] = bound;
            if waited > bound {
                let ms = |ns: u64| ns / 1_000_000;
                return Some(format!(
                    "task {at} waits for {} ms on CPU {}; {} ms are the bound",
                    ms(waited),
                    task.cpu,
                    ms(bound)
                ));
            }
        }
        None
    }
}
