//! Balancing by the number of runnable tasks, as the fair class does where groups of CPUs have spare ones; and
//! the mean weight of each CPU, which fades by half in 32 ms as the kernel's `load_avg` does.

use super::Eevdf;
use super::line::scaled;
use crate::context::{SchedContext, TaskId, TaskState};
use instep_check::mask::Mask;

/// How often a busy CPU balances, nanoseconds.
const BUSY: u64 = 32_000_000;

/// What is left of a mean after a millisecond, in 1024ths: 0.5^(1/32).
const FADES: i64 = 1002;

/// Means are kept in 1024ths.
pub(super) const ONE: i64 = 1024;

impl Eevdf {
    /// At a tick. An idle CPU looks each time, a busy one every 32 ms, for two more than it has.
    pub(super) fn balance_periodic(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.average(cpu, ctx.now);
        let idle = ctx.load(cpu) == 0;
        if !idle && ctx.now < self.queues[cpu].next {
            return;
        }
        self.queues[cpu].next = ctx.now + BUSY;
        if let Some(task) = self.balance(ctx, cpu, if idle { 1 } else { 2 }) {
            self.preempt(ctx, task);
        }
    }

    /// The weight of `cpu` counts up to now; before it changes.
    pub(super) fn note_load(&mut self, cpu: usize, now: u64) {
        let queue = &mut self.queues[cpu];
        queue.area += queue.root.load() * (now - queue.noted) as i64;
        queue.noted = now;
    }

    /// At a tick: the mean weight of `cpu` is brought up to now.
    fn average(&mut self, cpu: usize, now: u64) {
        self.note_load(cpu, now);
        let tick = self.rules.tick;
        let left = (0..tick.div_ceil(1_000_000)).fold(ONE, |left, _| left * FADES / ONE);
        let queue = &mut self.queues[cpu];
        let span = scaled(std::mem::take(&mut queue.area), ONE, tick as i64);
        queue.mean += (span - queue.mean) * (ONE - left) / ONE;
    }

    /// Pulls a task to `cpu`. Spans from near to far: LLC, node, host.
    pub(super) fn balance(
        &mut self,
        ctx: &mut SchedContext,
        cpu: usize,
        more: u32,
    ) -> Option<TaskId> {
        let spans = std::mem::take(&mut self.spans);
        let (llcs, nodes) = (ctx.host.llcs.len(), ctx.host.nodes.len());
        let near = [ctx.host.llc[cpu], llcs + ctx.host.node[cpu], llcs + nodes];
        // A node that is one cache was looked at already.
        let again = |at: usize| at > 0 && spans[near[at]] == spans[near[at - 1]];
        let mut near = (0..near.len()).filter(|at| !again(*at)).map(|at| &spans[near[at]]);
        let found = near.find_map(|span| self.pull(ctx, cpu, span, more));
        self.spans = spans;
        found
    }

    /// Pulls a queued task to `cpu` from the CPU of `span` with the most of those that have `more`
    /// than it; if nothing there may move, from the next.
    fn pull(
        &mut self,
        ctx: &mut SchedContext,
        cpu: usize,
        span: &Mask,
        more: u32,
    ) -> Option<TaskId> {
        let least = (ctx.load(cpu) + more).max(2);
        let mut below = (u32::MAX, 0);
        loop {
            let rank = |other: usize| (ctx.load(other), usize::MAX - other);
            let full =
                |other: &usize| *other != cpu && ctx.load(*other) >= least && rank(*other) < below;
            let from = span.iter().filter(full).max_by_key(|other| rank(*other))?;
            if let Some(task) = self.movable(ctx, from, cpu) {
                self.migrate(ctx, task, cpu);
                return Some(task);
            }
            below = rank(from);
        }
    }

    /// A task that waits on `from` and may use `to`.
    fn movable(&self, ctx: &SchedContext, from: usize, to: usize) -> Option<TaskId> {
        let may = |task: &TaskId| {
            let this = ctx.task(*task);
            this.state == TaskState::Queued && this.allowed.has(to)
        };
        let lines = self.queues[from].groups.iter().flat_map(|group| group.line.keys());
        lines.map(TaskId).find(may)
    }
}
