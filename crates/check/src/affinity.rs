//! Affinity kept: a task begins to run only where it may, and does not stay where it may no more.
//! Where it waits does not matter.

use super::picture::{Picture, TaskLife};
use super::{Checker, Fact, FactKind};

/// How long a task may go on where it may not any more, nanoseconds: the interrupt that tells its
/// CPU.
const GRACE: u64 = 1_000_000;

/// The checker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affinity;

impl Checker for Affinity {
    fn name(&self) -> &'static str {
        "affinity"
    }

    fn fact(&mut self, picture: &Picture, fact: &Fact) -> Option<String> {
        let FactKind::Start { task, cpu } = fact.what else { return None };
        let allowed = &picture.tasks[task as usize].allowed;
        (!allowed.has(cpu as usize))
            .then(|| format!("task {task} begins to run on CPU {cpu}; it may use {allowed:?}"))
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        let strays = |task: &super::picture::TaskPicture| {
            task.life == TaskLife::Running
                && !task.allowed.has(task.cpu)
                && to - task.allowed_since.min(to) > GRACE
        };
        let at = picture.tasks.iter().position(strays)?;
        let task = &picture.tasks[at];
        Some(format!("task {at} still runs on CPU {}; it may use {:?}", task.cpu, task.allowed))
    }
}
