//! CPUs: which one a vCPU moves to, which ones are told that it waits, which ones steal it.
//!
//! **CPUs.**
//!
//! * `__runq_tickle`, 4.1.3: a better vCPU makes its CPU choose again. A busy CPU also kicks an allowed
//!   idle one.
//! * `__runq_tickle`, 4.4.1: an allowed idle CPU is kicked, the next after the last kicked. Without one
//!   a running vCPU of lower priority moves or is preempted; in 4.17 it is only preempted, and a kicked
//!   CPU counts as busy.
//! * `_csched_cpu_pick`: an idle CPU with more idle threads in its core, or twice the idle CPUs in its
//!   package, from `idle_bias` on. After 4.1.3 node affinity comes first.
//! * `csched_load_balance`: the queues of busy CPUs, from the next CPU on. From 4.4.1 first vCPUs with
//!   node affinity for this CPU, and its own node (4.17: `balance_bias`).
//! * `csched_runq_steal`: the first vCPU of higher priority that may come, none of an idle CPU.

use super::{Credit, Pri};
use crate::context::{SchedContext, Task, TaskId};
use crate::host::Host;
use crate::params::XenRelease;

/// The two passes over affinities; 4.1.3 knows the second only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Node,
    Vcpu,
}

/// All passes of a release, in order.
fn passes(ctx: &SchedContext) -> &'static [Pass] {
    match ctx.xen {
        XenRelease::V4_1_3 => &[Pass::Vcpu],
        XenRelease::V4_4_1 | XenRelease::V4_17 => &[Pass::Node, Pass::Vcpu],
    }
}

impl Credit {
    /// `__vcpu_has_node_affinity`: not if it names all CPUs, nor if none of those that it names is allowed.
    pub(super) fn has_node_affinity(&self, task: &Task) -> bool {
        !task.preferred.covers(&self.all) && task.preferred.meets(&task.allowed)
    }

    /// `csched_balance_cpumask`, into `cpus`; false when the pass has nothing to say for this vCPU.
    pub(super) fn affinity(&mut self, ctx: &SchedContext, task: TaskId, pass: Pass) -> bool {
        let task = ctx.task(task);
        if pass == Pass::Node && !self.has_node_affinity(task) {
            return false;
        }
        self.cpus.copy(&task.allowed);
        if pass == Pass::Node {
            self.cpus.keep(&task.preferred);
        }
        true
    }

    /// `__runq_tickle` on CPU `here`: which CPUs shall choose again because `task` was queued.
    pub(super) fn tickle(&mut self, ctx: &mut SchedContext, task: TaskId, here: usize) {
        match ctx.xen {
            XenRelease::V4_1_3 => self.tickle_both(ctx, task, here),
            XenRelease::V4_4_1 | XenRelease::V4_17 => self.tickle_one(ctx, task, here),
        }
    }

    /// As in 4.1.3: the CPU of the queue if the new one comes before what runs there, and an idle one, too.
    fn tickle_both(&mut self, ctx: &mut SchedContext, task: TaskId, here: usize) {
        let cpu = ctx.task(task).cpu;
        let (new, current) = (self.pri(Some(task)), self.pri(self.pcpus[cpu].current));
        let mut own = new > current;
        if current > Pri::Idle && !self.idlers.is_empty() {
            self.affinity(ctx, task, Pass::Vcpu);
            own &= self.cpus.has(cpu);
            self.wake_idler(ctx, here);
        }
        if own {
            ctx.resched(cpu);
        }
    }

    /// As in 4.4.1 and 4.17: an idle CPU if there is one. Else the new vCPU preempts the one that runs on its queue's
    /// CPU. In 4.4.1 the preempted vCPU looks for another CPU then; in 4.17 only if the new one may use an idle CPU,
    /// which is never so here.
    fn tickle_one(&mut self, ctx: &mut SchedContext, task: TaskId, here: usize) {
        let cpu = ctx.task(task).cpu;
        let current = self.pcpus[cpu].current;
        let before = self.pri(Some(task)) > self.pri(current);
        let Some(current) = current else {
            self.wake_idle(ctx, cpu);
            return;
        };
        if self.idlers.is_empty() {
            if before {
                ctx.resched(cpu);
            }
            return;
        }
        for pass in passes(ctx) {
            if self.affinity(ctx, task, *pass) && self.wake_idler(ctx, here) {
                return;
            }
        }
        if before {
            self.svcs[current.ix()].migrating |= ctx.xen == XenRelease::V4_4_1;
            ctx.resched(cpu);
        }
    }

    /// An idle CPU shall choose. In 4.17 it counts as busy from now on.
    fn wake_idle(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if ctx.xen >= XenRelease::V4_17 {
            self.idlers.clear(cpu);
        }
        ctx.resched(cpu);
    }

    /// Wakes one of the idle CPUs in `cpus`, in turn (`tickle_one_idle_cpu`); false if there is none.
    fn wake_idler(&mut self, ctx: &mut SchedContext, here: usize) -> bool {
        self.cpus.keep(&self.idlers);
        let idler = self.cpus.after(self.pcpus[here].tickled);
        if let Some(idler) = idler {
            self.pcpus[here].tickled = idler;
            self.wake_idle(ctx, idler);
        }
        idler.is_some()
    }

    /// `_csched_cpu_pick`: an idle CPU with as many idle neighbours as possible.
    pub(super) fn cpu_pick(&mut self, ctx: &SchedContext, task: TaskId, commit: bool) -> usize {
        let home = ctx.task(task).cpu;
        let (mut cpu, mut bias) = (home, None);
        for pass in passes(ctx) {
            if !self.affinity(ctx, task, *pass) {
                continue;
            }
            cpu = if self.cpus.has(home) { home } else { self.cpus.after(home).unwrap_or(home) };
            self.near.copy(&self.idlers);
            match ctx.xen {
                // The CPU itself counts as idle, whatever runs there.
                XenRelease::V4_1_3 => self.near.set(cpu),
                // It does if nobody waits for it.
                XenRelease::V4_4_1 | XenRelease::V4_17 => {
                    if home == cpu && self.pcpus[cpu].queue.is_empty() {
                        self.near.set(cpu);
                    }
                }
            }
            self.cpus.keep(&self.near);
            if ctx.xen >= XenRelease::V4_4_1 && !self.cpus.is_empty() && !self.cpus.has(cpu) {
                cpu = self.cpus.after(cpu).unwrap_or(cpu);
            }
            self.cpus.clear(cpu);
            // 4.1.3 notes each step of the search, later ones the last.
            let each = commit && ctx.xen == XenRelease::V4_1_3;
            cpu = self.most_idle(&ctx.host, cpu, each, &mut bias);
            if self.near.has(cpu) {
                break;
            }
        }
        if let Some(bias) = bias.filter(|_| commit) {
            self.pcpus[bias].bias = cpu;
        }
        self.svcs[task.ix()].moved |= commit && ctx.xen >= XenRelease::V4_17;
        cpu
    }

    /// The loop of `_csched_cpu_pick` over the CPUs that are left in `cpus`: one with more idle threads in
    /// its core, or more than twice as many idle CPUs in its package, is better than `cpu`. `bias` is where
    /// the end is to be noted, `each` whether every step is.
    fn most_idle(
        &mut self,
        host: &Host,
        mut cpu: usize,
        each: bool,
        bias: &mut Option<usize>,
    ) -> usize {
        while let Some(next) = self.cpus.after(cpu) {
            let same = host.package[cpu] == host.package[next];
            let (factor, here, there) = if same {
                (1, &host.cores[host.core[cpu]], &host.cores[host.core[next]])
            } else {
                (2, &host.packages[host.package[cpu]], &host.packages[host.package[next]])
            };
            if self.near.common(here) * factor < self.near.common(there) {
                // Begin where the last search from there ended.
                let from = self.pcpus[next].bias;
                let found = self.cpus.first_common(there, from + 1);
                cpu = found.or_else(|| self.cpus.first_common(there, 0)).unwrap_or(next);
                *bias = Some(next);
                if each {
                    self.pcpus[next].bias = cpu;
                }
                self.cpus.remove(&host.cores[host.core[cpu]]);
            } else {
                self.cpus.remove(there);
            }
        }
        cpu
    }

    /// `csched_load_balance`: a vCPU of higher priority than `pri` from the queue of a busy CPU. 4.1.3 looks
    /// at those after `cpu` first, later ones at those of its node.
    pub(super) fn steal(&mut self, ctx: &mut SchedContext, cpu: usize, pri: Pri) -> Option<TaskId> {
        if self.waiting.is_empty() {
            return None;
        }
        let found = match ctx.xen {
            XenRelease::V4_1_3 => {
                let after = std::iter::successors(self.waiting.from(cpu + 1), |peer| {
                    self.waiting.from(peer + 1)
                });
                let before =
                    std::iter::successors(self.waiting.first(), |peer| self.waiting.from(peer + 1));
                after
                    .chain(before.take_while(|peer| *peer < cpu))
                    .find_map(|peer| self.steal_from(ctx, peer, cpu, pri, Pass::Vcpu))
            }
            XenRelease::V4_4_1 | XenRelease::V4_17 => self.steal_by_node(ctx, cpu, pri),
        };
        let (task, peer) = found?;
        self.unqueue(peer, task);
        ctx.assign(task, cpu);
        Some(task)
    }

    /// Node by node: in 4.4.1 from its first CPU on, in 4.17 from behind the one that was stolen from last
    /// (`balance_bias`).
    fn steal_by_node(
        &mut self,
        ctx: &SchedContext,
        cpu: usize,
        pri: Pri,
    ) -> Option<(TaskId, usize)> {
        let nodes = ctx.host.nodes.len();
        let passes = if self.prefers { passes(ctx) } else { &[Pass::Vcpu] };
        for pass in passes {
            for step in 0..nodes {
                let node = (ctx.host.node[cpu] + step) % nodes;
                let from = if ctx.xen >= XenRelease::V4_17 { self.stolen[node] + 1 } else { 0 };
                let cpus = &ctx.host.nodes[node];
                let peers = |from: usize| {
                    let first = cpus.first_common(&self.waiting, from);
                    std::iter::successors(first, |peer| cpus.first_common(&self.waiting, peer + 1))
                };
                let around = peers(from).chain(peers(0).take_while(|peer| *peer < from));
                let found = around
                    .filter(|peer| *peer != cpu)
                    .find_map(|peer| self.steal_from(ctx, peer, cpu, pri, *pass));
                if let Some((_, peer)) = found {
                    self.stolen[node] = peer;
                    return found;
                }
            }
        }
        None
    }

    /// `csched_runq_steal`: not from a CPU that is about to run what waits there, and not past the first
    /// vCPU that is no better.
    fn steal_from(
        &self,
        ctx: &SchedContext,
        peer: usize,
        cpu: usize,
        pri: Pri,
        pass: Pass,
    ) -> Option<(TaskId, usize)> {
        self.pcpus[peer].current?;
        let better = |task: &&TaskId| self.svcs[task.ix()].pri > pri;
        let may = |task: &&TaskId| {
            let task = ctx.task(**task);
            let prefers = || self.has_node_affinity(task) && task.preferred.has(cpu);
            task.allowed.has(cpu) && (pass == Pass::Vcpu || prefers())
        };
        let task = self.pcpus[peer].queue.iter().take_while(better).find(may)?;
        Some((*task, peer))
    }
}
