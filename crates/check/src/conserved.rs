//! CPU time conserved: a CPU runs one task at a time and a task is on one CPU at a time; only waiting
//! tasks begin to run, only running ones stop, only blocked ones wake. So every nanosecond of every
//! CPU belongs to one task or to nobody, and tasks run for as long as CPUs are busy.

use super::picture::{Picture, TaskLife};
use super::{Checker, Fact, FactKind};

/// The checker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conserved;

impl Conserved {
    /// Whether an account of CPU time agrees with the picture: nanoseconds by CPU, and by VM.
    ///
    /// # Errors
    /// What differs.
    pub fn account(picture: &Picture, busy: &[u64], vms: &[u64]) -> Result<(), String> {
        for (cpu, (seen, told)) in picture.cpus.iter().zip(busy).enumerate() {
            if seen.busy != *told {
                return Err(format!("CPU {cpu} was busy for {} ns, not {told}", seen.busy));
            }
        }
        for (vm, told) in vms.iter().enumerate() {
            let own = picture.tasks.iter().filter(|task| task.vm == vm);
            let seen: u64 = own.map(|task| task.had(picture.now)).sum();
            if seen != *told {
                return Err(format!("VM {vm} had {seen} ns, not {told}"));
            }
        }
        Ok(())
    }
}

impl Checker for Conserved {
    fn name(&self) -> &'static str {
        "conserved"
    }

    fn fact(&mut self, picture: &Picture, fact: &Fact) -> Option<String> {
        let id = fact.what.task();
        let task = &picture.tasks[id as usize];
        let running = |cpu: u32| picture.cpus[cpu as usize].running;
        let is = |life: TaskLife| task.life == life;
        match fact.what {
            FactKind::Start { cpu, .. } if !is(TaskLife::Waiting) => {
                Some(format!("task {id} begins to run on CPU {cpu} while {}", describe(task)))
            }
            FactKind::Start { cpu, .. } => running(cpu)
                .map(|other| format!("task {id} begins on CPU {cpu}, on which {other} runs")),
            FactKind::Stop { cpu, .. } if running(cpu) != Some(id) => {
                Some(format!("task {id} stops on CPU {cpu}, on which it does not run"))
            }
            FactKind::Wake { .. } if !is(TaskLife::Blocked) => {
                Some(format!("task {id} is woken while {}", describe(task)))
            }
            FactKind::Move { cpu, .. } if !is(TaskLife::Waiting) => {
                Some(format!("task {id} moves to CPU {cpu} while {}", describe(task)))
            }
            _ => None,
        }
    }

    fn end(&mut self, picture: &Picture) -> Option<String> {
        let busy: u64 = picture.cpus.iter().map(|cpu| cpu.busy).sum();
        let had: u64 = picture.tasks.iter().map(|task| task.had(picture.now)).sum();
        (busy != had).then(|| {
            format!("the CPUs were busy for {busy} ns, but all tasks together ran for {had} ns")
        })
    }
}

fn describe(task: &super::picture::TaskPicture) -> String {
    match task.life {
        TaskLife::Blocked => "it is blocked".to_owned(),
        TaskLife::Waiting => format!("it waits on CPU {}", task.cpu),
        TaskLife::Running => format!("it runs on CPU {}", task.cpu),
    }
}
