//! What co-scheduling asks of CFS ([`relaxed`](crate::sched::relaxed)): tasks that may not run leave
//! their queue and come back, one is chosen whatever its virtual runtime, a turn is looked ahead to.

use super::Cfs;
use crate::context::{SchedContext, TaskId};
use crate::sched::Pick;

impl Cfs {
    /// A runnable task leaves its queue, and its weight goes with it.
    pub(in crate::sched) fn park(&mut self, ctx: &SchedContext, task: TaskId) {
        let cpu = ctx.task(task).cpu;
        if self.unqueue(cpu, task) {
            self.depart(ctx, cpu, task);
            self.update_min(ctx, cpu);
        }
    }

    /// It comes back where it was, or where it may be: what others ran meanwhile is not made up for.
    pub(in crate::sched) fn unpark(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let cpu = ctx.task(task).cpu;
        self.narrow(ctx, task);
        let to = if self.may.has(cpu) { cpu } else { self.idlest(ctx, cpu) };
        let floor = self.queues[to].min_vruntime;
        let least = floor.saturating_sub(self.rules.latency);
        let entity = &mut self.entities[task.ix()];
        entity.vruntime = if to == cpu { entity.vruntime.max(least) } else { floor };
        self.arrive(ctx, to, task);
        ctx.assign(task, to);
        self.enqueue(ctx, task);
        self.preempt(ctx, to, task);
    }

    /// Moves a queued task to `to`, where it shall run.
    pub(in crate::sched) fn bring(&mut self, ctx: &mut SchedContext, task: TaskId, to: usize) {
        if ctx.task(task).cpu != to {
            self.migrate(ctx, task, to);
        }
    }

    /// The task that is first in a CPU's queue.
    pub(in crate::sched) fn first(&self, cpu: usize) -> Option<TaskId> {
        self.queues[cpu].nth(0).map(|(_, task)| task)
    }

    /// Weight of all tasks of a CPU.
    pub(in crate::sched) fn weight(&self, cpu: usize) -> u64 {
        self.queues[cpu].weight
    }

    /// A queued task runs on its CPU, whoever is first in line.
    pub(in crate::sched) fn take(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId) -> Pick {
        self.unqueue(cpu, task);
        self.entities[task.ix()].picked = ctx.ran(task);
        // The slice is looked at on ticks, as Linux without HRTICK does.
        Pick { task, slice: u64::MAX }
    }

    /// By how much virtual time a task is ahead of whoever is the furthest behind of the others on
    /// its CPU: negative when it is due. 0 when it is alone.
    pub(in crate::sched) fn advance(&mut self, ctx: &SchedContext, task: TaskId) -> i64 {
        let cpu = ctx.task(task).cpu;
        let current = ctx.current(cpu).filter(|current| *current != task);
        if let Some(current) = ctx.current(cpu) {
            self.update(ctx, current);
        }
        let waits = (0..2).filter_map(|at| self.queues[cpu].nth(at));
        let waits = waits.filter(|(_, other)| *other != task).map(|(vruntime, _)| vruntime);
        let runs = current.map(|current| self.entities[current.ix()].vruntime);
        let own = self.entities[task.ix()].vruntime;
        waits.chain(runs).min().map_or(0, |least| own as i64 - least as i64)
    }

    /// Whether the task that runs on `cpu` had the least turn.
    pub(in crate::sched) fn had_its_turn(&self, ctx: &SchedContext, cpu: usize) -> bool {
        ctx.current(cpu).is_none_or(|task| {
            ctx.ran(task) - self.entities[task.ix()].picked >= self.rules.min_granularity
        })
    }

    /// By how much virtual time a task of usual weight must be behind to preempt.
    pub(in crate::sched) fn granularity(&self) -> i64 {
        self.rules.wakeup_granularity as i64
    }
}
