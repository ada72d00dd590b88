//! A plain scheduler that can be broken in all the ways that checkers are there for.

use instep_sim::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
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

    fn choose(&mut self, ctx: &SchedContext, cpu: usize) -> Option<TaskId> {
        let fault = self.fault;
        self.turn += 1;
        let may = |task: &TaskId| fault == Fault::Anywhere || ctx.task(*task).allowed.has(cpu);
        let favoured = |task: &TaskId| ctx.task(*task).vm == 0;
        let least = |task: &TaskId| task.ix() + 1 < ctx.tasks.len();
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

    fn start(&mut self, _ctx: &mut SchedContext) {}

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, _by: Waker) {
        self.queue.push_back(task);
        if self.fault == Fault::Together {
            ctx.assign(task, 0);
        }
        if self.fault != Fault::Deaf {
            let idle = ctx.idle.clone();
            idle.iter().for_each(|cpu| ctx.resched(cpu));
        }
    }

    fn block(&mut self, _ctx: &mut SchedContext, _cpu: usize, _task: TaskId) {}

    fn put(&mut self, _ctx: &mut SchedContext, _cpu: usize, task: TaskId, _why: StopReason) {
        self.queue.push_back(task);
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        let slice = 5 * MS;
        if self.fault == Fault::Lazy && cpu == 1 {
            return None;
        }
        if self.fault == Fault::Twice && cpu == 1 && ctx.now > 50 * MS {
            let other = ctx.current(0).filter(|task| ctx.task(*task).state == TaskState::Running);
            return other.map(|task| Pick { task, slice });
        }
        self.choose(ctx, cpu).map(|task| Pick { task, slice })
    }

    fn tick(&mut self, _ctx: &mut SchedContext, _cpu: usize) {}

    fn tick_period(&self) -> u64 {
        4 * MS
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let mut asked = ctx.idle.clone();
        if ctx.task(task).state == TaskState::Running {
            asked.set(ctx.task(task).cpu);
        }
        asked.iter().for_each(|cpu| ctx.resched(cpu));
    }

    fn failed(&self) -> Option<String> {
        (self.fault == Fault::Ejected && self.turn > 100).then(|| "it stalled".to_owned())
    }
}
