//! No lost wake-up: a woken task does not wait in the queue of a CPU that idles. Somebody must have
//! told that CPU to look, or another to take the task.

use super::Checker;
use super::picture::{Picture, TaskLife};

/// The checker.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    /// How long that may last, nanoseconds.
    pub grace: u64,
}

impl Checker for Woken {
    fn name(&self) -> &'static str {
        "woken"
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        if picture.waiting == 0 {
            return None;
        }
        let lost = |task: &super::picture::TaskPicture| {
            let cpu = &picture.cpus[task.cpu];
            let since = task.since.max(task.there).max(cpu.since).max(task.allowed_since);
            task.life == TaskLife::Waiting
                && task.woken
                && cpu.running.is_none()
                && task.allowed.has(task.cpu)
                && to - since > self.grace
        };
        let at = picture.tasks.iter().position(lost)?;
        let (on, since) = (picture.tasks[at].cpu, picture.tasks[at].since);
        let us = (to - since) / 1000;
        Some(format!("task {at} was woken {us} us ago and waits on CPU {on}, which idles"))
    }
}
