//! Linux's EEVDF with group scheduling (kernel/sched/fair.c, 6.12): a cgroup for every VM, which has
//! its share on each CPU in proportion to how many of its tasks are there; inside it tasks are equal.
//!
//! Both levels are the same [`mod@line`]. The current task goes on while it is eligible and its slice is not used
//! up (RUN_TO_PARITY); slices are looked at on ticks and when somebody wakes. With SCHED_HRTICK they end
//! when they are over. A task that sleeps while it is ahead of the others stays until they have caught up
//! (DELAY_DEQUEUE). [`mod@wake`] finds the CPU of a task that wakes up, [`mod@balance`] moves waiting ones. The
//! heads of [`mod@line`] and [`mod@wake`] say what each function of the original does. Not modelled: load
//! averages over time, cgroup bandwidth, NUMA balancing.

mod balance;
mod line;
#[cfg(test)]
mod rules;
mod wake;

use super::{Pick, Scheduler, scaling};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use instep_check::mask::Mask;
use instep_check::{Promises, Share};
use line::{Leave, Line, MIN_SHARES, NICE_0, Parked, Times, UNIT, scaled};

/// The rules' numbers, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EevdfTuning {
    /// sysctl_sched_base_slice with one CPU, 0.75 ms (0.7 ms since 6.15); multiplied by 1 + log2 of at most
    /// 8 CPUs.
    pub slice: u64,
    /// 1 s / HZ: 4 ms.
    pub tick: u64,
    /// How long after its end a timer of its own ends a slice (SCHED_HRTICK); 0: a tick does. Not by
    /// default: the feature is off in 6.12, on in 7.2.
    pub hrtick: u64,
    /// Whether a CPU that runs something chooses again only at its next interrupt when another CPU asks it to
    /// (PREEMPT_LAZY). There is no such thing in 6.12; 7.2 has it.
    pub is_lazy: bool,
}

impl Default for EevdfTuning {
    fn default() -> Self {
        Self { slice: 750_000, tick: 4_000_000, hrtick: 0, is_lazy: false }
    }
}

/// VMs on a CPU, and tasks of each, for which there is room from the beginning.
const ROOM: usize = 8;

/// No group of this VM on this CPU so far.
const NONE: u32 = u32::MAX;

/// A VM's queue on a CPU, and what its entity there keeps while nobody is in the queue.
#[derive(Clone, Debug)]
struct Group {
    line: Line,
    lag: i64,
    weight: i64,
}

impl Default for Group {
    fn default() -> Self {
        Self { line: Line::with_room(ROOM), lag: 0, weight: NICE_0 }
    }
}

/// A CPU's queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// VMs with tasks here.
    root: Line,
    /// Their queues; those of VMs that left are kept.
    groups: Vec<Group>,
    /// What ran goes on, whatever is first: a directed yield found nobody, or only its timer is to be set.
    stays: bool,
    /// It chooses again at its next interrupt (TIF_NEED_RESCHED_LAZY).
    asked: bool,
    /// When it balances next, nanoseconds.
    next: u64,
    /// Tasks in it, delayed ones and the running one included (nr_running).
    count: i64,
    /// Its mean weight in 1024ths (load_avg); weight times nanoseconds since the last tick, and up to when.
    mean: i64,
    area: i64,
    noted: u64,
}

/// A task.
#[derive(Clone, Debug, Default)]
struct Entity {
    /// What it took along when it left a queue.
    parked: Parked,
    /// Where it goes when it stops running.
    push: Option<usize>,
    /// The last CPU but one from which it was woken (recent_used_cpu).
    recent: usize,
    /// The task that it woke up last, how often that changed, and since when (last_wakee, wakee_flips,
    /// wakee_flip_decay_ts).
    wakee: Option<TaskId>,
    flips: u32,
    flips_since: u64,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Eevdf {
    rules: EevdfTuning,
    times: Times,
    queues: Vec<Queue>,
    /// Where the group of a VM is among those of a CPU: `cpu * vms + vm`.
    places: Vec<u32>,
    vms: usize,
    entities: Vec<Entity>,
    /// Tasks of each VM in queues, delayed ones included.
    queued: Vec<u32>,
    /// CPUs of each LLC, of each node, and all.
    spans: Vec<Mask>,
    /// The CPU on which the scheduler is called.
    here: usize,
}

impl Eevdf {
    /// With these numbers.
    pub fn new(rules: EevdfTuning) -> Self {
        Self {
            rules,
            times: Times::default(),
            queues: Vec::new(),
            places: Vec::new(),
            vms: 0,
            entities: Vec::new(),
            queued: Vec::new(),
            spans: Vec::new(),
            here: 0,
        }
    }

    /// resched_curr: `cpu` chooses again. By lazy preemption another CPU than the one that asks does so at its next
    /// interrupt.
    fn ask(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if self.rules.is_lazy && cpu != self.here && ctx.current(cpu).is_some() {
            self.queues[cpu].asked = true;
        } else {
            ctx.resched(cpu);
        }
    }

    fn group(&mut self, cpu: usize, vm: usize) -> &mut Group {
        let groups = &mut self.queues[cpu].groups;
        let place = &mut self.places[cpu * self.vms + vm];
        if *place == NONE {
            *place = groups.len() as u32;
            groups.push(Group::default());
        }
        &mut groups[*place as usize]
    }

    fn line(&mut self, cpu: usize, vm: usize) -> &mut Line {
        &mut self.group(cpu, vm).line
    }

    /// Tasks of a VM in the queue of `cpu`, delayed ones included.
    fn held(&self, cpu: usize, vm: usize) -> usize {
        let place = self.places[cpu * self.vms + vm];
        self.queues[cpu].groups.get(place as usize).map_or(0, |group| group.line.len())
    }

    /// Whether `task` sleeps, but is in the queue of its CPU still.
    fn is_delayed(&self, ctx: &SchedContext, task: TaskId) -> bool {
        let (vm, cpu) = (ctx.task(task).vm, ctx.task(task).cpu);
        let place = self.places[cpu * self.vms + vm];
        let group = self.queues[cpu].groups.get(place as usize);
        group.is_some_and(|group| group.line.is_delayed(task.0))
    }

    /// The weight of a VM's cgroup (sched_weight_from_cgroup).
    fn shares(ctx: &SchedContext, vm: usize) -> i64 {
        (i64::from(ctx.vms[vm].weight) * UNIT + 50) / 100 * (NICE_0 / UNIT)
    }

    /// calc_group_shares: the VM's weight in proportion to its tasks here. Of a group without tasks, whose load
    /// would fade slowly, it stays.
    fn weight(&self, ctx: &SchedContext, cpu: usize, vm: usize) -> Option<i64> {
        let here = self.held(cpu, vm) as i64;
        let all = i64::from(self.queued[vm].max(1));
        let shares = Self::shares(ctx, vm);
        (here > 0).then(|| (shares * here / all).clamp(MIN_SHARES, shares.max(MIN_SHARES)))
    }

    /// update_cfs_group of a VM in the queue of `cpu`, of which something was charged if its weight changed.
    fn reweigh(&mut self, ctx: &mut SchedContext, cpu: usize, vm: usize) {
        self.note_load(cpu, ctx.now);
        if let Some(weight) = self.weight(ctx, cpu, vm)
            && self.queues[cpu].root.reweigh(vm as u32, weight, ctx.now, self.times)
        {
            self.ask(ctx, cpu);
        }
    }

    /// update_curr of the tasks of a VM.
    fn charge_tasks(&mut self, ctx: &mut SchedContext, cpu: usize, vm: usize) {
        let (now, times) = (ctx.now, self.times);
        if self.line(cpu, vm).update(now, times) {
            self.ask(ctx, cpu);
        }
    }

    /// update_curr of the VMs.
    fn charge_groups(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if self.queues[cpu].root.update(ctx.now, self.times) {
            self.ask(ctx, cpu);
        }
    }

    /// enqueue_task_fair: into the queue of its CPU.
    fn enqueue(&mut self, ctx: &mut SchedContext, task: TaskId, initial: bool) {
        let (vm, cpu, times) = (ctx.task(task).vm, ctx.task(task).cpu, self.times);
        self.queued[vm] += 1;
        self.queues[cpu].count += 1;
        self.charge_tasks(ctx, cpu, vm);
        let parked = std::mem::take(&mut self.entities[task.ix()].parked);
        self.line(cpu, vm).join(task.0, NICE_0, parked, times, initial);
        if self.queues[cpu].root.has(vm as u32) {
            self.queues[cpu].root.requeue_if_delayed(vm as u32, times);
            self.reweigh(ctx, cpu, vm);
            return;
        }
        self.charge_groups(ctx, cpu);
        let weight = self.weight(ctx, cpu, vm).unwrap_or(NICE_0);
        let group = self.group(cpu, vm);
        let lag = scaled(group.lag, group.weight, weight);
        let parked = Parked { lag, deadline: None };
        self.note_load(cpu, ctx.now);
        self.queues[cpu].root.join(vm as u32, weight, parked, times, false);
    }

    /// dequeue_entities: out of the queue of its CPU; false if it stays as delayed.
    fn dequeue(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: Leave) -> bool {
        let (vm, times) = (ctx.task(task).vm, self.times);
        self.charge_tasks(ctx, cpu, vm);
        let Some(parked) = self.line(cpu, vm).dequeue(task.0, why, times) else { return false };
        self.entities[task.ix()].parked = parked;
        self.queued[vm] -= 1;
        self.queues[cpu].count -= 1;
        if self.line(cpu, vm).is_empty() {
            self.charge_groups(ctx, cpu);
            self.dequeue_group(ctx.now, cpu, vm, Leave::Sleep);
        } else {
            self.reweigh(ctx, cpu, vm);
        }
        true
    }

    /// dequeue_entity of a VM without tasks here. As delayed it stays, too.
    fn dequeue_group(&mut self, now: u64, cpu: usize, vm: usize, why: Leave) {
        self.note_load(cpu, now);
        let times = self.times;
        let root = &mut self.queues[cpu].root;
        let weight = root.weight(vm as u32);
        if let Some(parked) = root.dequeue(vm as u32, why, times) {
            let group = self.group(cpu, vm);
            (group.lag, group.weight) = (parked.lag, weight);
        }
    }

    /// check_preempt_wakeup_fair: after `task` was queued, does its CPU choose again? Only the level is looked at
    /// on which it meets the task that runs.
    fn preempt(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let (vm, cpu) = (ctx.task(task).vm, ctx.task(task).cpu);
        let Some(current) = ctx.current(cpu) else {
            ctx.resched(cpu);
            return;
        };
        if current == task || ctx.pending.has(cpu) {
            return;
        }
        let first = if ctx.task(current).vm == vm {
            self.charge_tasks(ctx, cpu, vm);
            self.line(cpu, vm).pick() == Some(task.0)
        } else {
            self.charge_groups(ctx, cpu);
            self.queues[cpu].root.pick() == Some(vm as u32)
        };
        if first {
            self.ask(ctx, cpu);
        }
        // hrtick_update: a task that ran alone until now has no timer yet.
        if self.rules.hrtick > 0 && !ctx.pending.has(cpu) {
            self.queues[cpu].stays = true;
            ctx.resched(cpu);
        }
    }

    /// Moves a waiting task to another CPU, with its lag and what is left of its request.
    fn migrate(&mut self, ctx: &mut SchedContext, task: TaskId, to: usize) {
        let from = ctx.task(task).cpu;
        self.dequeue(ctx, from, task, Leave::Move);
        ctx.assign(task, to);
        self.enqueue(ctx, task, false);
    }

    /// pick_task_fair: the VM and its task that come next. Whatever sleeps and is picked leaves.
    fn choose(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<(u32, TaskId)> {
        loop {
            let (now, times) = (ctx.now, self.times);
            let root = &mut self.queues[cpu].root;
            root.update(now, times);
            let vm = root.pick()?;
            if root.is_delayed(vm) {
                self.dequeue_group(ctx.now, cpu, vm as usize, Leave::Delayed);
                continue;
            }
            let line = self.line(cpu, vm as usize);
            line.update(now, times);
            let Some(task) = line.pick() else {
                debug_assert!(false, "a VM in a queue has tasks there");
                return None;
            };
            if !line.is_delayed(task) {
                return Some((vm, TaskId(task)));
            }
            self.dequeue(ctx, cpu, TaskId(task), Leave::Delayed);
        }
    }

    /// pick_next_task_fair: `task` runs from now on. Only what changes is put and set: a task that goes on, and a
    /// VM whose tasks change, keep the deadline until which they were protected.
    fn set_next(&mut self, cpu: usize, next: Option<(u32, TaskId)>, now: u64) {
        let before = self.queues[cpu].root.current();
        if let Some(before) = before
            && next.map(|(vm, _)| vm) != Some(before)
        {
            self.line(cpu, before as usize).put();
            self.queues[cpu].root.put();
        }
        let Some((vm, task)) = next else { return };
        if before != Some(vm) {
            self.queues[cpu].root.set(vm, now);
        }
        let line = self.line(cpu, vm as usize);
        if line.current() != Some(task.0) {
            line.put();
            line.set(task.0, now);
        }
    }

    /// yield_to, of kernel/sched/syscalls.c: who gives way gives its next request up, too. The other is marked as
    /// next, which is not looked at (NEXT_BUDDY is off), and its CPU chooses again. Without another one nothing
    /// happens.
    fn give_way(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, to: Option<TaskId>) {
        let Some(to) = to else {
            self.queues[cpu].stays = true;
            return;
        };
        let (vm, other, times) = (ctx.task(task).vm, ctx.task(to).cpu, self.times);
        let alone = |this: &Self, cpu: usize| this.queues[cpu].count == 1;
        if alone(self, cpu) && alone(self, other) {
            self.queues[cpu].stays = true;
            return;
        }
        if !alone(self, cpu) {
            self.charge_tasks(ctx, cpu, vm);
            self.line(cpu, vm).give_up(task.0, times);
        }
        if other != cpu {
            ctx.resched(other);
        }
    }
}

impl Scheduler for Eevdf {
    fn name(&self) -> &'static str {
        "eevdf"
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        let cpus = ctx.host.cpus();
        self.times = Times { slice: self.quantum(cpus) as i64, tick: self.rules.tick as i64 };
        self.vms = ctx.vms.len();
        self.places = vec![NONE; cpus * self.vms];
        // Room for as many VMs as usually meet on a CPU.
        let room = self.vms.min(ROOM);
        let queue = |_| Queue {
            root: Line::with_room(room),
            groups: Vec::with_capacity(room),
            ..Queue::default()
        };
        self.queues = (0..cpus).map(queue).collect();
        let entity = |task: &crate::context::Task| Entity { recent: task.cpu, ..Entity::default() };
        self.entities = ctx.tasks.iter().map(entity).collect();
        self.queued = vec![0; self.vms];
        let host = &ctx.host;
        self.spans = host.llcs.iter().chain(&host.nodes).cloned().collect();
        self.spans.push(Mask::all(cpus));
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        self.note_wakeup(ctx, task, by);
        self.here = match by {
            Waker::Sibling(waker) => ctx.task(waker).cpu,
            Waker::Start | Waker::Timer | Waker::Io => ctx.task(task).cpu,
        };
        // ttwu_runnable: a task that is in its queue still stays there, whatever idles.
        if self.is_delayed(ctx, task) {
            let (vm, cpu, times) = (ctx.task(task).vm, ctx.task(task).cpu, self.times);
            self.line(cpu, vm).requeue(task.0, times);
        } else {
            let cpu = self.select(ctx, task, by);
            ctx.assign(task, cpu);
            self.enqueue(ctx, task, by == Waker::Start);
        }
        self.preempt(ctx, task);
    }

    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        self.here = cpu;
        self.queues[cpu].stays = false;
        self.entities[task.ix()].push = None;
        self.dequeue(ctx, cpu, task, Leave::Sleep);
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        self.here = cpu;
        self.queues[cpu].stays &= why == StopReason::Preempted;
        if let Some(to) = self.entities[task.ix()].push.take()
            && ctx.task(task).allowed.has(to)
        {
            self.queues[cpu].stays = false;
            self.migrate(ctx, task, to);
            self.preempt(ctx, task);
            return;
        }
        if let StopReason::Yield(to) = why {
            self.give_way(ctx, cpu, task, to);
        }
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        self.here = cpu;
        let stays = std::mem::take(&mut self.queues[cpu].stays);
        self.queues[cpu].asked &= stays;
        let runs = self.queues[cpu].root.current().filter(|_| stays);
        let runs = runs.and_then(|vm| Some((vm, TaskId(self.line(cpu, vm as usize).current()?))));
        let mut next = runs.or_else(|| self.choose(ctx, cpu));
        if next.is_none() {
            self.balance(ctx, cpu, 1);
            next = self.choose(ctx, cpu);
        }
        self.set_next(cpu, next, ctx.now);
        // What was charged meanwhile had it choose again: it just did.
        ctx.pending.clear(cpu);
        let (vm, task) = next?;
        let slice = if self.rules.hrtick > 0 && ctx.load(cpu) > 1 {
            self.line(cpu, vm as usize).left(task.0) + self.rules.hrtick
        } else {
            u64::MAX
        };
        Some(Pick { task, slice })
    }

    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.here = cpu;
        if std::mem::take(&mut self.queues[cpu].asked) {
            ctx.resched(cpu);
        }
        if let Some(task) = ctx.current(cpu) {
            let vm = ctx.task(task).vm;
            self.charge_tasks(ctx, cpu, vm);
            self.charge_groups(ctx, cpu);
            self.reweigh(ctx, cpu, vm);
        }
        self.balance_periodic(ctx, cpu);
    }

    fn tick_period(&self) -> u64 {
        self.rules.tick
    }

    fn quantum(&self, cpus: usize) -> u64 {
        self.rules.slice * scaling(cpus)
    }

    fn promises(&self) -> Promises {
        // On a CPU the lag of a VM's group is bounded by its request and by what overruns it up to the
        // tick. A group's weight is divided among CPUs by how many of its tasks are on each, so that
        // beside a VM of one vCPU on its CPU one of many is there with a part of its weight: over
        // several CPUs the kernel promises no VM its share.
        let slack = 20_000_000 + 2 * (self.rules.tick + self.rules.slice);
        let share = Share { percent: 3, slack, one_cpu: true, ..Share::default() };
        let usual = Promises::usual(self.work_conserving(), self.tick_period());
        Promises { share: Some(share), ..usual }
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let (state, cpu) = (ctx.task(task).state, ctx.task(task).cpu);
        if ctx.task(task).allowed.has(cpu) {
            return;
        }
        let Some(to) = Self::idlest(ctx, &ctx.task(task).allowed) else { return };
        match state {
            TaskState::Queued => {
                self.migrate(ctx, task, to);
                self.preempt(ctx, task);
            }
            TaskState::Running => {
                self.entities[task.ix()].push = Some(to);
                ctx.resched(cpu);
            }
            TaskState::Blocked => {
                if self.is_delayed(ctx, task) {
                    self.dequeue(ctx, cpu, task, Leave::Delayed);
                }
                ctx.assign(task, to);
            }
        }
    }
}
