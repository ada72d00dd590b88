//! Linux's CFS (kernel/sched_fair.c of 3.0, kernel/sched/fair.c of 3.13 and 3.19), as the machine ran it:
//! virtual runtimes, wake-up preemption, wake affinity, idle siblings, load balancing by load and nothing
//! else, so that siblings of a VM may meet in one queue.
//!
//! This file holds the queues and the choice; `wake` the CPU of a task that wakes up, `balance`, `groups` and
//! `domains` the balancing. The head of each file says what each function of the original does. A rule that
//! names no release holds for all. A task's weight is its VM's, but where each VM is a group (`shares`).
//! [`Choice`] narrows which CPUs a task may be put on; the rules of the *balance* scheduler (systems.md, 3)
//! are one. What a task counts for in the load of its CPU is its weight in 3.0, and an `average` from 3.13
//! on. Not modelled: cgroup bandwidth, NUMA balancing, autogroup.

mod average;
mod balance;
mod domains;
mod gang;
mod groups;
mod queue;
#[cfg(test)]
mod rules;
mod shares;
mod wake;

use super::affinity;
use super::{Pick, Scheduler, scaling};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use crate::params::LinuxRelease::{self, V3_0, V3_19};
use average::Average;
use domains::Domains;
use instep_check::mask::Mask;
use instep_check::{Promises, Share};
use queue::Queue;
use shares::Shares;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Weight of a task of a VM of weight 100 (NICE_0_LOAD).
const UNIT: u64 = 1024;

/// The rules' numbers, nanoseconds, as they are with one CPU; with more they are multiplied by
/// 1 + log2 of at most 8 CPUs (sched_tunable_scaling).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfsTuning {
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
    /// Whether each VM is a group. Siblings are on different CPUs then.
    pub has_groups: bool,
}

impl Default for CfsTuning {
    fn default() -> Self {
        Self {
            latency: 6 * MS,
            min_granularity: 750_000,
            wakeup_granularity: MS,
            migration_cost: 500_000,
            tick: 4 * MS,
            has_groups: false,
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
    /// What it counts for in the load of its CPU.
    average: Average,
    /// CPU time that is in `vruntime`, nanoseconds.
    paid: u64,
    /// CPU time when it was picked last.
    picked: u64,
    /// When it ran last.
    last_ran: u64,
    /// Where active balancing sends it when it stops.
    push: Option<usize>,
    /// Its place among the tasks that came into a queue (cfs_tasks).
    arrived: u64,
    /// The task that it woke up last, how often that changed within a second, and since when
    /// (last_wakee, wakee_flips, wakee_flip_decay_ts).
    wakee: Option<TaskId>,
    flips: u32,
    flips_since: u64,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Cfs {
    rules: CfsTuning,
    choice: Choice,
    name: &'static str,
    bare_metal: bool,
    linux: LinuxRelease,
    entities: Vec<Entity>,
    queues: Vec<Queue>,
    /// Load of all queues of each node.
    nodes: Vec<u64>,
    /// Whether some CPU was seen with two tasks (`overload` of the root domain, 3.19).
    crowded: bool,
    domains: Domains,
    /// Loads of VMs, where each is a group.
    shares: Option<Shares>,
    /// The places in line of the tasks that came last, and of those that count as the oldest.
    arrivals: u64,
    oldest: u64,
    may: Mask,
    /// CPUs that a search for the busiest one passes over (the `cpus` of load_balance, inverted).
    passed: Mask,
    /// Scratch: tasks that a try looks at.
    looks: Vec<TaskId>,
}

impl Cfs {
    /// Plain CFS.
    pub fn new(rules: CfsTuning) -> Self {
        Self::with(rules, Choice::Any, "cfs")
    }

    /// CFS that puts tasks only where `choice` allows.
    pub fn with(rules: CfsTuning, choice: Choice, name: &'static str) -> Self {
        Self {
            rules,
            choice,
            name,
            bare_metal: false,
            linux: LinuxRelease::default(),
            entities: Vec::new(),
            queues: Vec::new(),
            nodes: Vec::new(),
            crowded: false,
            domains: Domains::default(),
            shares: None,
            arrivals: u64::MAX / 2,
            oldest: u64::MAX / 2,
            may: Mask::none(0),
            passed: Mask::none(0),
            looks: Vec::new(),
        }
    }

    /// The same for threads straight on the host's CPUs.
    pub(super) fn on_bare_metal(self) -> Self {
        Self { bare_metal: true, ..self }
    }

    /// Brings the task's virtual runtime up to now.
    fn update(&mut self, ctx: &SchedContext, task: TaskId) {
        let entity = &mut self.entities[task.ix()];
        let ran = ctx.ran(task);
        let delta = ran - entity.paid;
        if delta == 0 {
            return;
        }
        entity.paid = ran;
        entity.vruntime += delta * UNIT / entity.weight;
        entity.last_ran = ctx.now;
        let cpu = ctx.task(task).cpu;
        self.update_min(ctx, cpu);
    }

    /// update_min_vruntime.
    fn update_min(&mut self, ctx: &SchedContext, cpu: usize) {
        let queue = &self.queues[cpu];
        let current = ctx.current(cpu).filter(|task| ctx.task(*task).cpu == cpu);
        let current = current.map(|task| self.entities[task.ix()].vruntime);
        let waits = queue.nth(0).map(|(vruntime, _)| vruntime);
        if let Some(least) = waits.into_iter().chain(current).min() {
            let queue = &mut self.queues[cpu];
            queue.min_vruntime = queue.min_vruntime.max(least);
        }
    }

    /// Puts a task into the queue of its CPU.
    fn enqueue(&mut self, ctx: &SchedContext, task: TaskId) {
        let entity = &self.entities[task.ix()];
        self.queues[ctx.task(task).cpu].join(task, entity.vruntime, entity.arrived);
    }

    /// A task leaves a queue, and whatever it was to do there is forgotten (dequeue_entity).
    fn unqueue(&mut self, cpu: usize, task: TaskId) -> bool {
        let entity = &self.entities[task.ix()];
        self.queues[cpu].forget(task);
        self.queues[cpu].leave(task, entity.vruntime, entity.arrived)
    }

    /// Moves a queued task into another CPU's queue.
    fn migrate(&mut self, ctx: &mut SchedContext, task: TaskId, to: usize) {
        let from = ctx.task(task).cpu;
        self.unqueue(from, task);
        self.transfer(ctx, task, to);
        self.enqueue(ctx, task);
        self.preempt(ctx, to, task);
    }

    /// A task comes to a CPU, and its weight and load with it (account_entity_enqueue, enqueue_entity_load_avg).
    #[inline]
    fn arrive(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId) {
        self.arrivals += 1;
        self.crowded |= ctx.load(cpu) > 0;
        let entity = &mut self.entities[task.ix()];
        entity.arrived = self.arrivals;
        self.queues[cpu].weight += entity.weight;
        self.queues[cpu].load += entity.average.load;
        self.nodes[ctx.host.node[cpu]] += entity.average.load;
    }

    /// A task leaves a CPU, and its weight and load with it.
    #[inline]
    fn depart(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId) {
        let entity = &self.entities[task.ix()];
        self.queues[cpu].weight -= entity.weight;
        self.queues[cpu].load -= entity.average.load;
        self.nodes[ctx.host.node[cpu]] -= entity.average.load;
    }

    /// Brings the load of a task up to date that was runnable until now (update_entity_load_avg).
    #[inline]
    fn track(&mut self, ctx: &SchedContext, task: TaskId) {
        if self.linux == V3_0 {
            return;
        }
        let entity = &mut self.entities[task.ix()];
        let old = entity.average.load;
        entity.average.update(ctx.now, true, entity.weight);
        let (cpu, new) = (ctx.task(task).cpu, entity.average.load);
        if old != new {
            self.queues[cpu].load = self.queues[cpu].load - old + new;
            let node = &mut self.nodes[ctx.host.node[cpu]];
            *node = *node - old + new;
        }
    }

    /// The load of a task that is about to come into the queue of `cpu`; until now it was not runnable (enqueue_entity_load_avg).
    /// One that is new counts as runnable for a slice so far.
    fn track_woken(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId, is_new: bool) {
        let weight = self.entities[task.ix()].weight;
        let average = match (self.linux, is_new) {
            (V3_0, _) => Average::of_load(weight),
            (_, true) => {
                let (count, all) = (self.running(ctx, cpu) + 1, self.queues[cpu].weight + weight);
                Average::new(self.slice(task, count, all), weight, ctx.now)
            }
            (_, false) => {
                let mut average = self.entities[task.ix()].average;
                average.update(ctx.now, false, weight);
                average
            }
        };
        self.entities[task.ix()].average = average;
    }

    /// Carries a runnable task's weight and place in line to another CPU.
    fn transfer(&mut self, ctx: &mut SchedContext, task: TaskId, to: usize) {
        let from = ctx.task(task).cpu;
        self.track(ctx, task);
        self.depart(ctx, from, task);
        self.arrive(ctx, to, task);
        let entity = &mut self.entities[task.ix()];
        let ahead = entity.vruntime as i64 - self.queues[from].min_vruntime as i64;
        entity.vruntime = self.queues[to].min_vruntime.saturating_add_signed(ahead);
        self.cool(task);
        ctx.assign(task, to);
    }

    /// In 3.19 a task that changes its CPU has left its caches' warmth behind (migrate_task_rq_fair).
    fn cool(&mut self, task: TaskId) {
        if self.linux == V3_19 {
            self.entities[task.ix()].last_ran = 0;
        }
    }

    /// check_preempt_wakeup: whether `task`, just queued on `cpu`, runs at once. If so it is next, whoever
    /// is first in line then; while many wait the preempted task comes back after it.
    fn preempt(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        let Some(current) = ctx.current(cpu) else {
            ctx.resched(cpu);
            return;
        };
        if ctx.pending.has(cpu) {
            return;
        }
        self.update(ctx, current);
        let ahead = self.entities[current.ix()].vruntime;
        if ahead <= self.entities[task.ix()].vruntime.saturating_add(self.granularity_of(task)) {
            return;
        }
        let many = self.running(ctx, cpu) >= self.most();
        let queue = &mut self.queues[cpu];
        queue.next = Some(task);
        if many {
            queue.last = Some(current);
        }
        ctx.resched(cpu);
    }

    /// yield_to_task_fair: the other is next where it waits, and the task that gives way is passed over where it
    /// waits until it runs again. Nothing happens if the other does not wait.
    fn give_way(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, to: Option<TaskId>) {
        if let Some(to) = to {
            let other = ctx.task(to).cpu;
            if !self.queues[other].has(to) {
                return;
            }
            self.queues[other].next = Some(to);
            ctx.resched(other);
        }
        if !self.queues[cpu].is_empty() {
            self.queues[cpu].forget(task);
            self.queues[cpu].skip = Some(task);
        }
    }

    /// What a VM weighs, and a task of it without groups.
    fn weight_of(ctx: &SchedContext, vm: usize) -> u64 {
        (u64::from(ctx.vms[vm].weight) * UNIT / 100).max(2)
    }

    /// wakeup_gran: by how much virtual time others may be ahead of a task that is behind them.
    fn granularity_of(&self, task: TaskId) -> u64 {
        self.rules.wakeup_granularity * UNIT / self.entities[task.ix()].weight
    }

    /// sched_nr_latency: as many tasks have their turn within a latency.
    fn most(&self) -> u64 {
        self.rules.latency.div_ceil(self.rules.min_granularity.max(1))
    }

    /// Tasks in the queue of `cpu`, the running one included (nr_running).
    fn running(&self, ctx: &SchedContext, cpu: usize) -> u64 {
        let runs = |task: &TaskId| ctx.task(*task).state == TaskState::Running;
        self.queues[cpu].len() as u64 + u64::from(ctx.current(cpu).filter(runs).is_some())
    }

    /// sched_slice: the task's part of the period, among so many tasks of so much weight.
    fn slice(&self, task: TaskId, count: u64, weight: u64) -> u64 {
        let many = count > self.most();
        let period = if many { count * self.rules.min_granularity } else { self.rules.latency };
        let own = self.entities[task.ix()].weight;
        (period * own / weight.max(own)).max(1)
    }

    /// The slice of the task that runs on `cpu`.
    fn slice_of_running(&self, ctx: &SchedContext, cpu: usize, task: TaskId) -> u64 {
        self.slice(task, self.running(ctx, cpu), self.queues[cpu].weight)
    }

    /// place_entity: where a task comes into the queue of `cpu`. A new one begins a slice of its own behind
    /// (START_DEBIT), one that slept is credited half a latency at most (GENTLE_FAIR_SLEEPERS).
    fn place(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId, new: bool) {
        let least = self.queues[cpu].min_vruntime;
        let weight = self.entities[task.ix()].weight;
        let floor = if new {
            let all = self.queues[cpu].weight + weight;
            least + self.slice(task, self.running(ctx, cpu) + 1, all) * UNIT / weight
        } else {
            least.saturating_sub(self.rules.latency / 2)
        };
        let entity = &mut self.entities[task.ix()];
        entity.vruntime = entity.vruntime.max(floor);
    }
}

impl Scheduler for Cfs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        if self.choice == Choice::Bound {
            affinity::bind(ctx);
        }
        let cpus = ctx.host.cpus();
        let factor = scaling(cpus);
        self.rules.latency *= factor;
        self.rules.min_granularity *= factor;
        self.rules.wakeup_granularity *= factor;
        let entity = |vm| Entity { weight: Self::weight_of(ctx, vm), ..Entity::default() };
        self.shares = self.rules.has_groups.then(|| Shares::new(ctx.vms.len(), ctx.tasks.len()));
        self.entities = ctx.tasks.iter().map(|task| entity(task.vm)).collect();
        self.queues = vec![Queue::new(2 * self.rules.migration_cost); cpus];
        self.nodes = vec![0; ctx.host.nodes.len()];
        self.linux = ctx.linux;
        self.domains = Domains::new(&ctx.host, self.linux);
        self.may = Mask::none(cpus);
        self.passed = Mask::none(cpus);
        self.looks = Vec::with_capacity(ctx.tasks.len() + 1);
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        let from = ctx.task(task).cpu;
        self.note_wakeup(ctx, task, by);
        let to = self.select(ctx, task, by);
        if from != to {
            let (old, new) = (self.queues[from].min_vruntime, self.queues[to].min_vruntime);
            let entity = &mut self.entities[task.ix()];
            let ahead = entity.vruntime as i64 - old as i64;
            entity.vruntime = new.saturating_add_signed(ahead);
            self.cool(task);
        }
        if let Some(current) = ctx.current(to) {
            self.update(ctx, current);
        }
        self.share_woken(ctx, task, by == Waker::Start);
        self.place(ctx, to, task, by == Waker::Start);
        self.track_woken(ctx, to, task, by == Waker::Start);
        self.note_idle_end(ctx, to);
        self.arrive(ctx, to, task);
        ctx.assign(task, to);
        self.enqueue(ctx, task);
        self.preempt(ctx, to, task);
    }

    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        self.update(ctx, task);
        self.track(ctx, task);
        self.depart(ctx, cpu, task);
        self.entities[task.ix()].push = None;
        self.queues[cpu].forget(task);
        self.queues[cpu].stopped = None;
        self.update_min(ctx, cpu);
        self.share_blocked(ctx, task);
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        self.update(ctx, task);
        self.track(ctx, task);
        if let Some(to) = self.pushed(ctx, cpu, task) {
            self.queues[cpu].forget(task);
            self.transfer(ctx, task, to);
            self.enqueue(ctx, task);
            self.preempt(ctx, to, task);
            return;
        }
        if let StopReason::Yield(to) = why {
            self.give_way(ctx, cpu, task, to);
        }
        self.enqueue(ctx, task);
        self.queues[cpu].stopped = Some(task);
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        self.pick_among(ctx, cpu, |_| true)
    }

    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if let Some(task) = ctx.current(cpu) {
            self.update(ctx, task);
            self.track(ctx, task);
        }
        self.share_tick(ctx, cpu);
        if let Some(task) = ctx.current(cpu).filter(|_| !self.queues[cpu].is_empty()) {
            self.tick_preempt(ctx, cpu, task);
        }
        self.queues[cpu].remember_load();
        self.balance_periodic(ctx, cpu);
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

    fn work_conserving(&self) -> bool {
        // Groups of CPUs are balanced by load: a CPU may idle beside tasks that are light.
        false
    }

    fn promises(&self) -> Promises {
        let apart = self.choice == Choice::Apart;
        // Groups are balanced by all their tasks, those included that may not move.
        let pinned = false;
        // In a queue virtual runtimes keep together, but for turns, which end at ticks; weights are
        // rounded. Between queues balancing keeps within a task or a quarter (imbalance_pct), and three
        // equal tasks on two CPUs stay as they are: no share is promised there.
        let slack = 20 * MS + 2 * (self.rules.tick + self.rules.latency);
        // Where each VM is a group its vCPUs have its weight together.
        let by_vcpu = !self.rules.has_groups;
        let share = Some(Share { percent: 3, slack, one_cpu: true, by_vcpu, ..Share::default() });
        let usual = Promises::usual(self.work_conserving(), self.tick_period());
        Promises { apart, pinned, share, ..usual }
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let (state, cpu) = (ctx.task(task).state, ctx.task(task).cpu);
        if ctx.task(task).allowed.has(cpu) {
            return;
        }
        self.narrow(ctx, task);
        let to = self.idlest(ctx, cpu);
        match state {
            TaskState::Queued => self.migrate(ctx, task, to),
            TaskState::Running => {
                self.entities[task.ix()].push = Some(to);
                ctx.resched(cpu);
            }
            TaskState::Blocked => {
                let ahead =
                    self.entities[task.ix()].vruntime as i64 - self.queues[cpu].min_vruntime as i64;
                let floor = self.queues[to].min_vruntime;
                self.entities[task.ix()].vruntime = floor.saturating_add_signed(ahead);
                ctx.assign(task, to);
            }
        }
    }
}

impl Cfs {
    /// Where a task that stops on `cpu` was sent, if it may still be put there: since then a
    /// sibling may have come. Who may not stay goes elsewhere.
    fn pushed(&mut self, ctx: &SchedContext, cpu: usize, task: TaskId) -> Option<usize> {
        let to = self.entities[task.ix()].push.take()?;
        self.narrow(ctx, task);
        let to = match self.may.has(to) {
            true => to,
            false if ctx.task(task).allowed.has(cpu) => return None,
            false => self.idlest(ctx, cpu),
        };
        (to != cpu).then_some(to)
    }

    /// pick_next_entity, of tasks that `may` run; a CPU without any pulls some first. The first in line runs,
    /// unless it yielded and the second is near it; the last and the next buddy come before it if they are
    /// near it. In 3.19 a task that is chosen again has no new turn (pick_next_task_fair).
    pub(super) fn pick_among(
        &mut self,
        ctx: &mut SchedContext,
        cpu: usize,
        may: impl Fn(TaskId) -> bool,
    ) -> Option<Pick> {
        if !self.queues[cpu].line().any(|(_, task)| may(task)) {
            self.balance_new_idle(ctx, cpu);
        }
        let stopped = self.queues[cpu].stopped.take().filter(|_| self.linux == V3_19);
        let queue = &self.queues[cpu];
        let mut line = queue.line().filter(|(_, task)| may(*task));
        let (least, left) = line.next()?;
        // wakeup_preempt_entity
        let near = |behind: u64| behind <= least + self.granularity_of(left);
        let mut task = left;
        if queue.skip == Some(left)
            && let Some((_, second)) = line.next().filter(|(behind, _)| near(*behind))
        {
            task = second;
        }
        drop(line);
        for buddy in [queue.last, queue.next].into_iter().flatten() {
            if may(buddy) && near(self.entities[buddy.ix()].vruntime) {
                task = buddy;
            }
        }
        let picked = self.entities[task.ix()].picked;
        let pick = self.take(ctx, cpu, task);
        if stopped == Some(task) {
            self.entities[task.ix()].picked = picked;
        }
        Some(pick)
    }

    /// check_preempt_tick: at the end of its slice a task loses what let it run before others.
    fn tick_preempt(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        let entity = &self.entities[task.ix()];
        let (ideal, ran) = (self.slice_of_running(ctx, cpu, task), ctx.ran(task) - entity.picked);
        let least = self.queues[cpu].nth(0).map_or(u64::MAX, |(vruntime, _)| vruntime);
        if ran > ideal {
            ctx.resched(cpu);
            self.queues[cpu].forget(task);
        } else if ran >= self.rules.min_granularity && entity.vruntime > least.saturating_add(ideal)
        {
            ctx.resched(cpu);
        }
    }
}
