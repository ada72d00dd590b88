//! Which CPU a task is put on when it wakes up or must move: select_task_rq_fair. Loads are means, but a task's
//! own, which is its part of its VM's weight as it is now.
//!
//! **The CPU of a task that wakes up.**
//!
//! * `select_task_rq_fair`, `wake_wide`, `record_wakee`: as of CFS (`cfs/wake.rs`), but not from a node
//!   farther than 30.
//! * `wake_affine_idle`: an idle last CPU is better than a busy waker's.
//! * `wake_affine_weight`: else the waker's, if lighter with the task by half the slack: 17 %, 10 %
//!   within a core.
//! * `select_idle_sibling`, `select_idle_cpu`, `select_idle_core`: that CPU if idle, else the last one
//!   or the one before it, in the same cache, else the cache from the next CPU around, an idle core
//!   first.
//! * `select_idle_smt`: without an idle core, first an idle thread beside the last CPU.

use super::Eevdf;
use super::balance::ONE;
use super::line::{NICE_0, UNIT};
use crate::context::{SchedContext, TaskId, Waker};
use instep_check::mask::Mask;

/// How long turns from one woken task to another count in full (HZ).
const SECOND: u64 = 1_000_000_000;

/// Beyond this distance no task comes to its waker (node_reclaim_distance).
const NEAR: u32 = 30;

impl Eevdf {
    /// select_task_rq_fair for a wake-up: the waker's CPU or the last one, then an idle one beside. A new task,
    /// and one whose last CPU it may not use any more, goes to the least loaded CPU.
    pub(super) fn select(&mut self, ctx: &SchedContext, task: TaskId, by: Waker) -> usize {
        let this = ctx.task(task);
        let (last, allowed) = (this.cpu, &this.allowed);
        if by == Waker::Start || !allowed.has(last) {
            return Self::idlest(ctx, allowed).unwrap_or(last);
        }
        let mut target = last;
        if let Waker::Sibling(waker) = by {
            let here = ctx.task(waker).cpu;
            if here != last
                && allowed.has(here)
                && !self.is_wide(ctx, waker, task)
                && self.is_affine(ctx, task, here)
            {
                target = here;
            }
        }
        self.idle_sibling(ctx, task, target, last)
    }

    /// record_wakee: how often a task turns to wake up another one than before.
    pub(super) fn note_wakeup(&mut self, ctx: &SchedContext, task: TaskId, by: Waker) {
        let Waker::Sibling(waker) = by else { return };
        let entity = &mut self.entities[waker.ix()];
        if ctx.now > entity.flips_since + SECOND {
            entity.flips /= 2;
            entity.flips_since = ctx.now;
        }
        if entity.wakee != Some(task) {
            entity.wakee = Some(task);
            entity.flips += 1;
        }
    }

    /// wake_wide: tasks that wake up many others, or are, do not come to their waker.
    fn is_wide(&self, ctx: &SchedContext, waker: TaskId, task: TaskId) -> bool {
        let factor = ctx.host.llcs[ctx.host.llc[ctx.task(waker).cpu]].count();
        let (waker, task) = (self.entities[waker.ix()].flips, self.entities[task.ix()].flips);
        let (less, more) = (waker.min(task), waker.max(task));
        less >= factor && more >= less * factor
    }

    /// wake_affine: whether a task that was on another CPU comes to its waker's, `here`.
    fn is_affine(&self, ctx: &SchedContext, task: TaskId, here: usize) -> bool {
        let (host, last) = (&ctx.host, ctx.task(task).cpu);
        if host.distance[host.node[here]][host.node[last]] > NEAR {
            return false;
        }
        let idle = |cpu: usize| ctx.load(cpu) == 0;
        if idle(here) && host.llc[here] == host.llc[last] {
            return !idle(last);
        }
        if idle(last) {
            return false;
        }
        // wake_affine_weight. The task was part of its last CPU's load.
        let own = self.part(ctx, task);
        let slack = if host.core[here] == host.core[last] { 110 } else { 117 };
        let load = |cpu: usize| self.queues[cpu].mean / ONE;
        (load(here) + own) * 100 < (load(last) - own).max(0) * (100 + (slack - 100) / 2)
    }

    /// task_h_load: what a task adds to the weight of a CPU.
    pub(super) fn part(&self, ctx: &SchedContext, task: TaskId) -> i64 {
        let vm = ctx.task(task).vm;
        Self::shares(ctx, vm) / i64::from(self.queued[vm] + 1) * UNIT / NICE_0
    }

    /// select_idle_sibling: the target, the last CPU, the one before that, an idle core under the target's cache,
    /// any idle CPU there; else the target.
    fn idle_sibling(
        &mut self,
        ctx: &SchedContext,
        task: TaskId,
        target: usize,
        last: usize,
    ) -> usize {
        let (host, allowed) = (&ctx.host, &ctx.task(task).allowed);
        let idle = |cpu: usize| ctx.load(cpu) == 0;
        let near = |cpu: usize| host.llc[cpu] == host.llc[target];
        if idle(target) {
            return target;
        }
        if near(last) && idle(last) {
            return last;
        }
        let recent = std::mem::replace(&mut self.entities[task.ix()].recent, last);
        let other = recent != last && recent != target;
        if other && near(recent) && idle(recent) && allowed.has(recent) {
            return recent;
        }
        let span = &host.llcs[host.llc[target]];
        Self::idle_in(ctx, allowed, span, target, last).unwrap_or(target)
    }

    /// select_idle_smt and select_idle_cpu: while the cache has an idle core, that, or an idle CPU on the way to
    /// it; else an idle thread beside the last CPU; else the next idle CPU after the target.
    fn idle_in(
        ctx: &SchedContext,
        allowed: &Mask,
        span: &Mask,
        target: usize,
        last: usize,
    ) -> Option<usize> {
        if !ctx.idle.meets(span) {
            return None;
        }
        let host = &ctx.host;
        let idle = |cpu: usize| ctx.load(cpu) == 0;
        let threads = span.iter().any(|cpu| !host.siblings[cpu].is_empty());
        let whole = |cpu: usize| idle(cpu) && host.siblings[cpu].iter().all(|other| idle(*other));
        let cores = threads && span.iter().any(whole);
        if threads && !cores && span.has(last) {
            let beside = host.cores[host.core[last]].iter();
            let found =
                beside.filter(|cpu| *cpu != last).find(|cpu| idle(*cpu) && allowed.has(*cpu));
            if found.is_some() {
                return found;
            }
        }
        let after = span.iter().filter(|cpu| *cpu > target);
        let around = after.chain(span.iter().filter(|cpu| *cpu <= target));
        let mut around = around.filter(|cpu| allowed.has(*cpu));
        if !cores {
            return around.find(|cpu| idle(*cpu));
        }
        let mut first = None;
        for cpu in around {
            if whole(cpu) {
                return Some(cpu);
            }
            if first.is_none() {
                let mut core = host.cores[host.core[cpu]].iter();
                first = core.find(|cpu| idle(*cpu) && allowed.has(*cpu));
            }
        }
        first
    }

    /// The least loaded node, core and CPU that are allowed.
    pub(super) fn idlest(ctx: &SchedContext, allowed: &Mask) -> Option<usize> {
        let host = &ctx.host;
        let load = |mask: &Mask| mask.iter().map(|cpu| u64::from(ctx.load(cpu))).sum::<u64>();
        let node = (0..host.nodes.len())
            .filter(|node| host.nodes[*node].meets(allowed))
            .min_by_key(|node| {
                let size = u64::from(host.nodes[*node].count());
                (u64::from(ctx.node_load(*node)) * 1024 / size.max(1), *node)
            })?;
        let core = |cpu: usize| load(&host.cores[host.core[cpu]]);
        let own = host.nodes[node].iter().filter(|cpu| allowed.has(*cpu));
        own.min_by_key(|cpu| (core(*cpu), ctx.load(*cpu), *cpu))
    }
}
