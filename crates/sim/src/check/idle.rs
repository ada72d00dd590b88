//! Work conservation: no CPU is idle for long while one and the same task that may use it waits all
//! that time.

use super::Checker;
use super::picture::{Life, Picture};

/// The checker.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// How long that may last, nanoseconds.
    pub grace: u64,
}

impl Checker for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        if picture.waiting == 0 || picture.cpus.iter().all(|cpu| cpu.running.is_some()) {
            return None;
        }
        for (cpu, idle) in picture.cpus.iter().enumerate() {
            if idle.running.is_some() || to - idle.since <= self.grace {
                continue;
            }
            let kept = picture.tasks.iter().position(|task| {
                let since = task.since.max(idle.since).max(task.allowed_since);
                task.life == Life::Waiting && task.allowed.has(cpu) && to - since > self.grace
            });
            if let Some(task) = kept {
                let (on, since) = (picture.tasks[task].cpu, picture.tasks[task].since);
                let ms = (to - idle.since.max(since)) / 1_000_000;
                return Some(format!("CPU {cpu} idles for {ms} ms beside task {task} of CPU {on}"));
            }
        }
        None
    }
}
