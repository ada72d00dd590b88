//! A plain scheduler that can be broken in all the ways that checkers are there for.

use instep_sim::desk::{Desk, Put, TaskId, TaskState, Waker};
use instep_sim::sched::{Pick, Scheduler};
use std::collections::VecDeque;

pub(crate) const MS: u64 = 1_000_000;

/// How a scheduler is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// It lets a task run on two CPUs.
    Twice,
    /// It forgets affinities.
    Anywhere,
    /// Its CPU 1 never works.
    Lazy,
    /// The last task runs only when no other wants to.
    Unfair,
    /// It lets siblings queue on one CPU.
    Together,
    /// It does not tell CPUs of those who woke.
    Deaf,
    /// VM 0 gets three turns of four.
    Favour,
    /// It is thrown out of the kernel.
    Ejected,
}

/// Round robin from one queue for all CPUs, in turns of 5 ms.
#[derive(Debug)]
pub(crate) struct Robin {
    fault: Fault,
    queue: VecDeque<TaskId>,
    turn: u64,
}

impl Robin {
    /// One that is broken in this way.
    pub(crate) fn broken(fault: Fault) -> Box<dyn Scheduler> {
        Box::new(Self { fault, queue: VecDeque::new(), turn: 0 })
    }

    fn choose(&mut self, desk: &Desk, cpu: usize) -> Option<TaskId> {
        let fault = self.fault;
        self.turn += 1;
        let may = |task: &TaskId| fault == Fault::Anywhere || desk.task(*task).allowed.has(cpu);
        let favoured = |task: &TaskId| desk.task(*task).vm == 0;
        let least = |task: &TaskId| task.ix() + 1 < desk.tasks.len();
        let own = self.queue.iter().position(may)?;
        let better = match fault {
            Fault::Favour if !self.turn.is_multiple_of(4) => self.queue.iter().position(favoured),
            Fault::Unfair => self.queue.iter().position(least),
            _ => None,
        };
        self.queue.remove(better.unwrap_or(own))
    }
}

impl Scheduler for Robin {
    fn name(&self) -> &'static str {
        "robin"
    }

    fn start(&mut self, _desk: &mut Desk) {}

    fn wake(&mut self, desk: &mut Desk, task: TaskId, _by: Waker) {
        self.queue.push_back(task);
        if self.fault == Fault::Together {
            desk.assign(task, 0);
        }
        if self.fault != Fault::Deaf {
            let idle = desk.idle.clone();
            idle.iter().for_each(|cpu| desk.resched(cpu));
        }
    }

    fn block(&mut self, _desk: &mut Desk, _cpu: usize, _task: TaskId) {}

    fn put(&mut self, _desk: &mut Desk, _cpu: usize, task: TaskId, _why: Put) {
        self.queue.push_back(task);
    }

    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        let slice = 5 * MS;
        if self.fault == Fault::Lazy && cpu == 1 {
            return None;
        }
        if self.fault == Fault::Twice && cpu == 1 && desk.now > 50 * MS {
            let other = desk.current(0).filter(|task| desk.task(*task).state == TaskState::Running);
            return other.map(|task| Pick { task, slice });
        }
        self.choose(desk, cpu).map(|task| Pick { task, slice })
    }

    fn tick(&mut self, _desk: &mut Desk, _cpu: usize) {}

    fn tick_period(&self) -> u64 {
        4 * MS
    }

    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        let mut asked = desk.idle.clone();
        if desk.task(task).state == TaskState::Running {
            asked.set(desk.task(task).cpu);
        }
        asked.iter().for_each(|cpu| desk.resched(cpu));
    }

    fn failed(&self) -> Option<String> {
        (self.fault == Fault::Ejected && self.turn > 100).then(|| "it stalled".to_owned())
    }
}
