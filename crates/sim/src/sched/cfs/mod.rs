//! Linux's CFS as of Linux 3.x (kernel/sched/fair.c): virtual runtimes, wake-up preemption, wake
//! affinity, idle siblings, periodic load balancing by load and nothing else, so that siblings of a
//! VM may meet in one queue.
//!
//! Without groups: a task's weight is its VM's. [`Choice`] narrows which CPUs a task may be put on;
//! the rules of the *balance* scheduler (systems.md, 3) are one. Not modelled: cgroup bandwidth,
//! buddies other than directed yield's, NUMA balancing, autogroup, load averages over time.

mod balance;
mod domains;
mod gang;
mod queue;

use super::affinity;
use super::{Pick, Scheduler, scaling};
use crate::check::{Promises, Share};
use crate::desk::{Desk, Put, TaskId, TaskState, Waker};
use crate::mask::Mask;
use domains::Domains;
use queue::Queue;

const MS: u64 = 1_000_000;
/// Weight of a task of a VM of weight 100 (NICE_0_LOAD).
const UNIT: u64 = 1024;

/// The rules' numbers, nanoseconds, as they are with one CPU; with more they are multiplied by
/// 1 + log2 of at most 8 CPUs (sched_tunable_scaling).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// sysctl_sched_latency: 6 ms.
    pub latency: u64,
    /// sysctl_sched_min_granularity: 0.75 ms.
    pub min_granularity: u64,
    /// sysctl_sched_wakeup_granularity: 1 ms.
    pub wakeup_granularity: u64,
    /// sysctl_sched_migration_cost, not scaled: 0.5 ms.
    pub migration_cost: u64,
    /// 1 s / HZ, not scaled: 4 ms, as most distributions have it.
    pub tick: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            latency: 6 * MS,
            min_granularity: 750_000,
            wakeup_granularity: MS,
            migration_cost: 500_000,
            tick: 4 * MS,
        }
    }
}

/// Which of the CPUs that a task may use it may be put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any: plain CFS.
    Any,
    /// Those whose queue holds the fewest siblings: the balance scheduler.
    Apart,
    /// The one that it is bound to at the start: static affinity.
    Bound,
}

#[derive(Clone, Debug, Default)]
struct Entity {
    vruntime: u64,
    weight: u64,
    /// CPU time that is in `vruntime`, nanoseconds.
    paid: u64,
    /// CPU time when it was picked last.
    picked: u64,
    /// When it ran last.
    last_ran: u64,
    /// Where active balancing sends it when it stops.
    push: Option<usize>,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Cfs {
    rules: Rules,
    choice: Choice,
    name: &'static str,
    bare_metal: bool,
    entities: Vec<Entity>,
    queues: Vec<Queue>,
    /// Weight of all queues of each node.
    nodes: Vec<u64>,
    domains: Domains,
    may: Mask,
}

impl Cfs {
    /// Plain CFS.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self::with(rules, Choice::Any, "cfs")
    }

    /// CFS that puts tasks only where `choice` allows.
    #[must_use]
    pub fn with(rules: Rules, choice: Choice, name: &'static str) -> Self {
        Self {
            rules,
            choice,
            name,
            bare_metal: false,
            entities: Vec::new(),
            queues: Vec::new(),
            nodes: Vec::new(),
            domains: Domains::default(),
            may: Mask::none(0),
        }
    }

    /// The same for threads straight on the host's CPUs.
    pub(super) fn on_bare_metal(self) -> Self {
        Self { bare_metal: true, ..self }
    }

    /// Brings the task's virtual runtime up to now.
    fn update(&mut self, desk: &Desk, task: TaskId) {
        let entity = &mut self.entities[task.ix()];
        let ran = desk.ran(task);
        let delta = ran - entity.paid;
        if delta == 0 {
            return;
        }
        entity.paid = ran;
        entity.vruntime += delta * UNIT / entity.weight;
        entity.last_ran = desk.now;
        let cpu = desk.task(task).cpu;
        self.update_min(desk, cpu);
    }

    /// update_min_vruntime.
    fn update_min(&mut self, desk: &Desk, cpu: usize) {
        let queue = &self.queues[cpu];
        let current = desk.current(cpu).filter(|task| desk.task(*task).cpu == cpu);
        let current = current.map(|task| self.entities[task.ix()].vruntime);
        let waits = queue.nth(0).map(|(vruntime, _)| vruntime);
        if let Some(least) = waits.into_iter().chain(current).min() {
            let queue = &mut self.queues[cpu];
            queue.min_vruntime = queue.min_vruntime.max(least);
        }
    }

    /// Puts a task into the queue of its CPU.
    fn enqueue(&mut self, desk: &Desk, task: TaskId) {
        let vruntime = self.entities[task.ix()].vruntime;
        self.queues[desk.task(task).cpu].join(task, vruntime);
    }

    fn unqueue(&mut self, cpu: usize, task: TaskId) -> bool {
        self.queues[cpu].leave(task, self.entities[task.ix()].vruntime)
    }

    /// Moves a queued task into another CPU's queue.
    fn migrate(&mut self, desk: &mut Desk, task: TaskId, to: usize) {
        let from = desk.task(task).cpu;
        self.unqueue(from, task);
        self.transfer(desk, task, to);
        self.enqueue(desk, task);
        self.preempt(desk, to, task);
    }

    /// A queue has so much more weight.
    #[inline]
    fn heavier(&mut self, desk: &Desk, cpu: usize, weight: u64) {
        self.queues[cpu].weight += weight;
        self.nodes[desk.host.node[cpu]] += weight;
    }

    /// A queue has so much less weight.
    #[inline]
    fn lighter(&mut self, desk: &Desk, cpu: usize, weight: u64) {
        self.queues[cpu].weight -= weight;
        self.nodes[desk.host.node[cpu]] -= weight;
    }

    /// Carries a runnable task's weight and place in line to another CPU.
    fn transfer(&mut self, desk: &mut Desk, task: TaskId, to: usize) {
        let from = desk.task(task).cpu;
        let weight = self.entities[task.ix()].weight;
        self.lighter(desk, from, weight);
        self.heavier(desk, to, weight);
        let entity = &mut self.entities[task.ix()];
        let ahead = entity.vruntime as i64 - self.queues[from].min_vruntime as i64;
        entity.vruntime = self.queues[to].min_vruntime.saturating_add_signed(ahead);
        desk.assign(task, to);
    }

    /// check_preempt_wakeup: whether `task`, just queued on `cpu`, runs at once.
    fn preempt(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        let Some(current) = desk.current(cpu) else {
            desk.resched(cpu);
            return;
        };
        self.update(desk, current);
        let (new, old) = (&self.entities[task.ix()], &self.entities[current.ix()]);
        let granularity = self.rules.wakeup_granularity * UNIT / new.weight;
        if old.vruntime > new.vruntime.saturating_add(granularity) {
            desk.resched(cpu);
        }
    }

    /// sched_slice: the task's part of the period.
    fn slice(&self, cpu: usize, task: TaskId) -> u64 {
        let queue = &self.queues[cpu];
        let count = queue.tasks().len() as u64 + 1;
        let fits = self.rules.latency / self.rules.min_granularity;
        let period =
            if count > fits { count * self.rules.min_granularity } else { self.rules.latency };
        let weight = self.entities[task.ix()].weight;
        (period * weight / queue.weight.max(weight)).max(1)
    }

    /// Narrows `may` to CPUs on which `task` may be put.
    fn narrow(&mut self, desk: &Desk, task: TaskId) {
        let this = desk.task(task);
        self.may.copy(&this.allowed);
        if self.choice != Choice::Apart || desk.vms[this.vm].hidden {
            return;
        }
        let Some(least) = this.allowed.iter().map(|cpu| self.others(desk, task, cpu)).min() else {
            return;
        };
        for cpu in this.allowed.iter() {
            if self.others(desk, task, cpu) > least {
                self.may.clear(cpu);
            }
        }
    }

    /// Siblings of a task in the queue of `cpu`, without itself.
    fn others(&self, desk: &Desk, task: TaskId, cpu: usize) -> u32 {
        let this = desk.task(task);
        let own = this.state != TaskState::Blocked && self.counts(desk, task, cpu);
        desk.siblings_on(this.vm, cpu).saturating_sub(u32::from(own))
    }

    /// Whether a runnable task counts in the queue of `cpu` itself.
    fn counts(&self, desk: &Desk, task: TaskId, cpu: usize) -> bool {
        desk.task(task).cpu == cpu
            && (desk.current(cpu) == Some(task) || self.queues[cpu].tasks().contains(&task))
    }

    /// select_task_rq_fair for a wake-up: the waker's CPU or the last one, then an idle one beside.
    fn select(&mut self, desk: &Desk, task: TaskId, by: Waker) -> usize {
        self.narrow(desk, task);
        let last = desk.task(task).cpu;
        if by == Waker::Start {
            return self.idlest(desk, last);
        }
        let mut target = last;
        if let Waker::Sibling(waker) = by {
            let this = desk.task(waker).cpu;
            // wake_affine: not where it would make the load larger than where the task was.
            let near = desk.host.node[this] == desk.host.node[last];
            if near && self.may.has(this) && self.queues[this].weight <= self.queues[last].weight {
                target = this;
            }
        }
        if !self.may.has(target) {
            target = if self.may.has(last) { last } else { self.idlest(desk, last) };
        }
        self.idle_sibling(desk, target, last)
    }

    /// select_idle_sibling: the target, the last CPU, an idle core under the target's LLC, an idle
    /// thread of the target's core; else the target.
    fn idle_sibling(&self, desk: &Desk, target: usize, last: usize) -> usize {
        let host = &desk.host;
        let idle = |cpu: usize| desk.load(cpu) == 0;
        if idle(target) {
            return target;
        }
        if host.llc[last] == host.llc[target] && idle(last) && self.may.has(last) {
            return last;
        }
        let mut next = host.llcs[host.llc[target]].first();
        while let Some(cpu) = next {
            let core = &host.cores[host.core[cpu]];
            let whole = core.first() == Some(cpu) && core.iter().all(idle);
            if let Some(found) = core.iter().find(|cpu| whole && self.may.has(*cpu)) {
                return found;
            }
            next = host.llcs[host.llc[target]].from(cpu + 1);
        }
        let core = &host.cores[host.core[target]];
        core.iter().find(|cpu| idle(*cpu) && self.may.has(*cpu)).unwrap_or(target)
    }

    /// find_idlest_cpu: the least loaded node, of it the least loaded LLC, core and CPU.
    fn idlest(&self, desk: &Desk, last: usize) -> usize {
        let host = &desk.host;
        let mean = |sum: u64, mask: &Mask| sum * 1024 / u64::from(mask.count().max(1));
        let load = |mask: &Mask| -> u64 {
            mean(mask.iter().map(|cpu| self.queues[cpu].weight).sum(), mask)
        };
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
        own.min_by_key(|cpu| (self.queues[*cpu].weight, *cpu)).unwrap_or(last)
    }
}

impl Scheduler for Cfs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self, desk: &mut Desk) {
        if self.choice == Choice::Bound {
            affinity::bind(desk);
        }
        let cpus = desk.host.cpus();
        let factor = scaling(cpus);
        self.rules.latency *= factor;
        self.rules.min_granularity *= factor;
        self.rules.wakeup_granularity *= factor;
        let entity = |vm: usize| {
            let weight = (u64::from(desk.vms[vm].weight) * UNIT / 100).max(2);
            Entity { weight, ..Entity::default() }
        };
        self.entities = desk.tasks.iter().map(|task| entity(task.vm)).collect();
        self.queues = vec![Queue::default(); cpus];
        self.nodes = vec![0; desk.host.nodes.len()];
        self.domains = Domains::new(&desk.host);
        self.may = Mask::none(cpus);
    }

    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        let from = desk.task(task).cpu;
        let to = self.select(desk, task, by);
        let (old, new) = (self.queues[from].min_vruntime, self.queues[to].min_vruntime);
        let vslice = self.slice(to, task);
        let entity = &mut self.entities[task.ix()];
        if from != to {
            let ahead = entity.vruntime as i64 - old as i64;
            entity.vruntime = new.saturating_add_signed(ahead);
        }
        // place_entity: new tasks begin behind (START_DEBIT), sleepers are credited half a latency
        // (GENTLE_FAIR_SLEEPERS).
        let floor = match by {
            Waker::Start => new + vslice,
            _ => new.saturating_sub(self.rules.latency / 2),
        };
        entity.vruntime = entity.vruntime.max(floor);
        let weight = entity.weight;
        self.heavier(desk, to, weight);
        desk.assign(task, to);
        self.enqueue(desk, task);
        self.preempt(desk, to, task);
    }

    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.update(desk, task);
        self.lighter(desk, cpu, self.entities[task.ix()].weight);
        self.entities[task.ix()].push = None;
        self.update_min(desk, cpu);
    }

    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        self.update(desk, task);
        if let Some(to) = self.pushed(desk, cpu, task) {
            self.transfer(desk, task, to);
            self.enqueue(desk, task);
            self.preempt(desk, to, task);
            return;
        }
        if let Put::Yield(to) = why {
            // yield_to_task_fair: the yielder is skipped once, the other is next where it queues.
            self.queues[cpu].skip = Some(task);
            if let Some(to) = to {
                let other = desk.task(to).cpu;
                self.queues[other].next = Some(to);
                desk.resched(other);
            }
        }
        self.enqueue(desk, task);
    }

    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        self.pick_among(desk, cpu, |_| true)
    }

    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        if let Some(task) = desk.current(cpu) {
            self.update(desk, task);
            if !self.queues[cpu].tasks().is_empty() {
                self.tick_preempt(desk, cpu, task);
            }
        }
        self.balance_periodic(desk, cpu);
    }

    fn tick_period(&self) -> u64 {
        self.rules.tick
    }

    fn quantum(&self, cpus: usize) -> u64 {
        self.rules.min_granularity * scaling(cpus)
    }

    fn bare_metal(&self) -> bool {
        self.bare_metal
    }

    fn promises(&self) -> Promises {
        let apart = self.choice == Choice::Apart;
        // Groups are balanced by all their tasks, those included that may not move.
        let pinned = false;
        // In a queue virtual runtimes keep together, but for turns, which end at ticks; weights are
        // rounded. Between queues balancing keeps within a task or a quarter (imbalance_pct), and three
        // equal tasks on two CPUs stay as they are: no share is promised there.
        let slack = 20 * MS + 2 * (self.rules.tick + self.rules.latency);
        let share = Share { percent: 3, slack, one_cpu: true, by_vcpu: true, ..Share::default() };
        let usual = Promises::usual(self.work_conserving(), self.tick_period());
        Promises { apart, pinned, share: Some(share), ..usual }
    }

    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        let (state, cpu) = (desk.task(task).state, desk.task(task).cpu);
        if desk.task(task).allowed.has(cpu) {
            return;
        }
        self.narrow(desk, task);
        let to = self.idlest(desk, cpu);
        match state {
            TaskState::Queued => self.migrate(desk, task, to),
            TaskState::Running => {
                self.entities[task.ix()].push = Some(to);
                desk.resched(cpu);
            }
            TaskState::Blocked => {
                let ahead =
                    self.entities[task.ix()].vruntime as i64 - self.queues[cpu].min_vruntime as i64;
                let floor = self.queues[to].min_vruntime;
                self.entities[task.ix()].vruntime = floor.saturating_add_signed(ahead);
                desk.assign(task, to);
            }
        }
    }
}

impl Cfs {
    /// Where a task that stops on `cpu` was sent, if it may still be put there: since then a
    /// sibling may have come. Who may not stay goes elsewhere.
    fn pushed(&mut self, desk: &Desk, cpu: usize, task: TaskId) -> Option<usize> {
        let to = self.entities[task.ix()].push.take()?;
        self.narrow(desk, task);
        let to = match self.may.has(to) {
            true => to,
            false if desk.task(task).allowed.has(cpu) => return None,
            false => self.idlest(desk, cpu),
        };
        (to != cpu).then_some(to)
    }

    /// pick_next_entity, of tasks that `may` run; a CPU without any pulls some first.
    pub(super) fn pick_among(
        &mut self,
        desk: &mut Desk,
        cpu: usize,
        may: impl Fn(TaskId) -> bool,
    ) -> Option<Pick> {
        if !self.queues[cpu].tasks().iter().any(|task| may(*task)) {
            self.balance_new_idle(desk, cpu);
        }
        let queue = &mut self.queues[cpu];
        let (next, skip) = (queue.next.take(), queue.skip.take());
        let mut line = queue.line().filter(|(_, task)| may(*task));
        let (least, left) = line.next()?;
        let near = |behind: u64| behind <= least + self.rules.wakeup_granularity;
        let second = line.next().filter(|(behind, _)| near(*behind)).map(|(_, task)| task);
        let mut task = if skip == Some(left) { second.unwrap_or(left) } else { left };
        let fits = |next: &TaskId| {
            may(*next) && near(self.entities[next.ix()].vruntime) && queue.tasks().contains(next)
        };
        if let Some(next) = next.filter(fits) {
            task = next;
        }
        drop(line);
        Some(self.take(desk, cpu, task))
    }

    /// check_preempt_tick.
    fn tick_preempt(&self, desk: &mut Desk, cpu: usize, task: TaskId) {
        let entity = &self.entities[task.ix()];
        let (ideal, ran) = (self.slice(cpu, task), desk.ran(task) - entity.picked);
        let least = self.queues[cpu].nth(0).map_or(u64::MAX, |(vruntime, _)| vruntime);
        if ran > ideal
            || (ran >= self.rules.min_granularity && entity.vruntime > least.saturating_add(ideal))
        {
            desk.resched(cpu);
        }
    }
}
