//! Which CPU a task is put on when it wakes up or must move: select_task_rq_fair.
//!
//! **The CPU of a task that wakes up.**
//!
//! * `select_task_rq_fair`: the waker's or the last CPU (a timer's waker is the last), and from there an
//!   idle one.
//! * `wake_affine`: the waker's CPU, unless heavier by half the slack: 10 % in a core, 25 % beyond
//!   (3.19: 17 % in a cache).
//! * `wake_wide`, `record_wakee`, from 3.13: two tasks do not come together if both often wake another
//!   task than the time before.
//! * `select_idle_sibling`: the CPU itself, in 3.0 else the first idle one of the innermost span in the
//!   cache, from 3.13 else the last one, an idle core of the cache, an idle thread.

use super::{Cfs, Choice, SECOND};
use crate::context::{SchedContext, TaskId, TaskState, Waker};
use crate::params::LinuxRelease::{V3_0, V3_13, V3_19};
use instep_check::mask::Mask;

impl Cfs {
    /// Narrows `may` to CPUs on which `task` may be put.
    pub(super) fn narrow(&mut self, ctx: &SchedContext, task: TaskId) {
        let this = ctx.task(task);
        self.may.copy(&this.allowed);
        if self.choice != Choice::Apart || ctx.vms[this.vm].hidden {
            return;
        }
        let Some(least) = this.allowed.iter().map(|cpu| self.others(ctx, task, cpu)).min() else {
            return;
        };
        for cpu in this.allowed.iter() {
            if self.others(ctx, task, cpu) > least {
                self.may.clear(cpu);
            }
        }
    }

    /// Whether a task may be put on `cpu`, by its affinity and by the choice.
    pub(super) fn may_be_on(&self, ctx: &SchedContext, task: TaskId, cpu: usize) -> bool {
        let this = ctx.task(task);
        if !this.allowed.has(cpu) || self.choice != Choice::Apart || ctx.vms[this.vm].hidden {
            return this.allowed.has(cpu);
        }
        let own = self.others(ctx, task, cpu);
        own == 0 || !this.allowed.iter().any(|other| self.others(ctx, task, other) < own)
    }

    /// Siblings of a task in the queue of `cpu`, without itself.
    fn others(&self, ctx: &SchedContext, task: TaskId, cpu: usize) -> u32 {
        let this = ctx.task(task);
        let own = this.state != TaskState::Blocked && self.counts(ctx, task, cpu);
        ctx.siblings_on(this.vm, cpu).saturating_sub(u32::from(own))
    }

    /// Whether a runnable task counts in the queue of `cpu` itself.
    fn counts(&self, ctx: &SchedContext, task: TaskId, cpu: usize) -> bool {
        ctx.task(task).cpu == cpu && (ctx.current(cpu) == Some(task) || self.queues[cpu].has(task))
    }

    /// select_task_rq_fair for a wake-up: the waker's CPU or the last one, then an idle one beside. A task
    /// whose last CPU it may not use any more goes to the least loaded one.
    pub(super) fn select(&mut self, ctx: &SchedContext, task: TaskId, by: Waker) -> usize {
        self.narrow(ctx, task);
        let last = ctx.task(task).cpu;
        let here = match by {
            Waker::Start => return self.idlest(ctx, last),
            Waker::Sibling(waker) => ctx.task(waker).cpu,
            // The interrupt comes where the task ran last.
            Waker::Timer | Waker::Io => last,
        };
        if !self.may.has(last) {
            let to = self.idlest(ctx, last);
            return self.idle_sibling(ctx, to, here, last);
        }
        if here == last {
            return self.idle_sibling(ctx, last, here, last);
        }
        // Without a span in which tasks come to their waker there is no search for an idle CPU, either, but in 3.19.
        let slack = self.domains.common(here, last).filter(|domain| domain.affine);
        let Some(slack) = slack.map(|domain| domain.slack).filter(|_| self.may.has(here)) else {
            return if self.linux == V3_19 { self.idle_group(ctx, last, last) } else { last };
        };
        let near = match by {
            Waker::Sibling(waker) if self.is_wide(ctx, waker, task) => false,
            _ => self.is_affine(task, [here, last], slack),
        };
        self.idle_sibling(ctx, if near { here } else { last }, here, last)
    }

    /// record_wakee, of 3.13 and later: how often a task turns to wake up another one than before.
    pub(super) fn note_wakeup(&mut self, ctx: &SchedContext, task: TaskId, by: Waker) {
        let Waker::Sibling(waker) = by else { return };
        if self.linux < V3_13 {
            return;
        }
        let entity = &mut self.entities[waker.ix()];
        if ctx.now > entity.flips_since + SECOND {
            let kept = if self.linux == V3_19 { entity.flips / 2 } else { 0 };
            (entity.flips, entity.flips_since) = (kept, ctx.now);
        }
        if entity.wakee != Some(task) {
            entity.wakee = Some(task);
            entity.flips += 1;
        }
    }

    /// wake_wide, of 3.13 and later: a task that wakes up many others does not have them come to it.
    fn is_wide(&self, ctx: &SchedContext, waker: TaskId, task: TaskId) -> bool {
        let factor = ctx.host.llcs[ctx.host.llc[ctx.task(waker).cpu]].count();
        let (waker, task) = (self.entities[waker.ix()].flips, self.entities[task.ix()].flips);
        self.linux >= V3_13 && task > factor && waker > factor * task
    }

    /// wake_affine: whether the waker's CPU with the task would be heavier than the CPU where the task was by
    /// no more than half the slack of the span.
    fn is_affine(&self, task: TaskId, [here, last]: [usize; 2], slack: u64) -> bool {
        let (this, load) = (self.queues[here].load, self.queues[last].load);
        let weight = self.entities[task.ix()].weight;
        this == 0 || 100 * (this + weight) <= (100 + (slack - 100) / 2) * load
    }

    /// select_idle_sibling.
    fn idle_sibling(&self, ctx: &SchedContext, target: usize, here: usize, last: usize) -> usize {
        match self.linux {
            V3_0 => self.idle_near(ctx, target, here, last),
            V3_13 | V3_19 => self.idle_group(ctx, target, last),
        }
    }

    /// As in 3.0: the first idle CPU of the innermost span under the target's cache that holds both the
    /// waker's and the last CPU; of smaller ones only if there is none.
    fn idle_near(&self, ctx: &SchedContext, mut target: usize, here: usize, last: usize) -> usize {
        let idle = |cpu: usize| ctx.load(cpu) == 0;
        if (target == here || target == last) && idle(target) {
            return target;
        }
        for (domain, _) in self.domains.of(target).filter(|(domain, _)| domain.cache) {
            let cpus = || domain.groups.iter().flat_map(|group| group.cpus.iter().copied());
            let found = cpus().filter(|cpu| self.may.has(*cpu) && idle(*cpu)).min();
            target = found.unwrap_or(target);
            if cpus().any(|cpu| cpu == here) && cpus().any(|cpu| cpu == last) {
                break;
            }
        }
        target
    }

    /// As in 3.13 and later: the target, the last CPU, an idle core under the target's cache, an idle
    /// thread of the target's core; else the target. The search begins at the target's own core.
    fn idle_group(&self, ctx: &SchedContext, target: usize, last: usize) -> usize {
        let idle = |cpu: usize| ctx.load(cpu) == 0;
        if idle(target) {
            return target;
        }
        if ctx.host.llc[last] == ctx.host.llc[target] && idle(last) && self.may.has(last) {
            return last;
        }
        for (domain, own) in self.domains.of(target).rev().filter(|(domain, _)| domain.cache) {
            let (before, from) = domain.groups.split_at(own);
            for group in from.iter().chain(before) {
                let may = group.cpus.iter().copied().find(|cpu| self.may.has(*cpu));
                let whole = || group.cpus.iter().all(|cpu| *cpu != target && idle(*cpu));
                if let Some(found) = may.filter(|_| whole()) {
                    return found;
                }
            }
        }
        target
    }

    /// find_idlest_cpu: the least loaded node, of it the least loaded LLC, core and CPU.
    pub(super) fn idlest(&self, ctx: &SchedContext, last: usize) -> usize {
        let host = &ctx.host;
        let mean = |sum: u64, mask: &Mask| sum * 1024 / u64::from(mask.count().max(1));
        let load =
            |mask: &Mask| -> u64 { mean(mask.iter().map(|cpu| self.queues[cpu].load).sum(), mask) };
        let nodes = host.nodes.iter().enumerate().filter(|(_, node)| node.meets(&self.may));
        let node = nodes.min_by_key(|(at, node)| mean(self.nodes[*at], node));
        let mut span = node.map(|(_, node)| node);
        for groups in [&host.llcs, &host.cores] {
            let inside = groups.iter().filter(|group| {
                group.meets(&self.may) && span.is_none_or(|span: &Mask| span.covers(group))
            });
            span = inside.min_by_key(|group| load(group)).or(span);
        }
        let Some(span) = span else { return last };
        let own = span.iter().filter(|cpu| self.may.has(*cpu));
        own.min_by_key(|cpu| (self.queues[*cpu].load, *cpu)).unwrap_or(last)
    }
}
