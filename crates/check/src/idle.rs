//! Work conservation: no CPU is idle for long while at every moment somebody waits who may use it, the
//! same task or one after the other.

use super::picture::{Picture, TaskLife};
use super::{Checker, Fact, FactKind};

/// The checker.
#[derive(Clone, Debug)]
pub struct Idle {
    grace: u64,
    /// Whether that holds, too, where some tasks may not use all CPUs.
    pinned: bool,
    silent: bool,
    /// Since when each CPU idles beside work.
    since: Vec<Option<u64>>,
}

impl Idle {
    /// That may last for so many nanoseconds. Not `pinned`: nothing is promised any more once some
    /// task may not use all CPUs.
    pub fn new(grace: u64, pinned: bool) -> Self {
        Self { grace, pinned, silent: false, since: Vec::new() }
    }
}

impl Checker for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn fact(&mut self, picture: &Picture, fact: &Fact) -> Option<String> {
        if let FactKind::Allowed { cpus, .. } = &fact.what {
            self.silent |= !self.pinned && (cpus.count() as usize) < picture.cpus.len();
        }
        None
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        self.since.resize(picture.cpus.len(), None);
        if self.silent || picture.waiting == 0 {
            self.since.fill(None);
            return None;
        }
        for (at, (cpu, since)) in picture.cpus.iter().zip(&mut self.since).enumerate() {
            if cpu.running.is_some() {
                *since = None;
                continue;
            }
            let waits = |task: &super::picture::TaskPicture| {
                task.life == TaskLife::Waiting && task.allowed.has(at)
            };
            let Some(task) = picture.tasks.iter().position(waits) else {
                *since = None;
                continue;
            };
            let span = to - *since.get_or_insert(picture.now);
            if span > self.grace {
                let (on, ms) = (picture.tasks[task].cpu, span / 1_000_000);
                return Some(format!("CPU {at} idles for {ms} ms beside task {task} of CPU {on}"));
            }
        }
        None
    }
}
