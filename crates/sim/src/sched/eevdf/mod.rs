//! Linux's EEVDF with group scheduling (kernel/sched/fair.c, 6.12): a cgroup for every VM, which has
//! its share on each CPU in proportion to how many of its tasks are there; inside it tasks are equal.
//!
//! Both levels are the same [`line`]. The current task is not disturbed before its slice is used up
//! (RUN_TO_PARITY), slices are looked at on ticks and when somebody wakes; with SCHED_HRTICK they end
//! when they are over. Idle CPUs are found under the waker's or the last LLC; balancing is by number
//! of runnable tasks, as the fair class does when groups have spare CPUs. Not modelled: delayed
//! dequeue, load averages over time, cgroup
//! bandwidth, NUMA balancing.

mod line;

use super::{Pick, Scheduler, scaling};
use crate::check::{Promises, Share};
use crate::desk::{Desk, Put, TaskId, TaskState, Waker};
use crate::mask::Mask;
use line::{Line, UNIT};

/// The rules' numbers, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// base_slice_ns with one CPU, 0.7 ms; multiplied by 1 + log2 of at most 8 CPUs.
    pub slice: u64,
    /// 1 s / HZ: 4 ms.
    pub tick: u64,
    /// How long after its end a timer of its own ends a slice (SCHED_HRTICK); 0: a tick does. Not by
    /// default: the feature is off in 6.12, on in 7.2.
    pub hrtick: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { slice: 700_000, tick: 4_000_000, hrtick: 0 }
    }
}

/// VMs on a CPU, and tasks of each, for which there is room from the beginning.
const ROOM: usize = 8;

/// A CPU's queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// VMs with runnable tasks here.
    vms: Line,
    /// Their tasks; lines of VMs that left are kept to be used again.
    tasks: Vec<(u32, Line)>,
    /// When it balances next, nanoseconds.
    next: u64,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Eevdf {
    rules: Rules,
    slice: i64,
    queues: Vec<Queue>,
    /// CPU time of each task that was charged.
    paid: Vec<u64>,
    /// Lag that each task left with.
    lags: Vec<i64>,
    /// Runnable tasks of each VM.
    runnable: Vec<u32>,
    /// Where a running task goes when it stops.
    push: Vec<Option<usize>>,
    /// CPUs of each LLC, of each node, and all.
    spans: Vec<Mask>,
}

impl Eevdf {
    /// With these numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            slice: rules.slice as i64,
            queues: Vec::new(),
            paid: Vec::new(),
            lags: Vec::new(),
            runnable: Vec::new(),
            push: Vec::new(),
            spans: Vec::new(),
        }
    }

    fn line(&mut self, cpu: usize, vm: usize) -> &mut Line {
        let tasks = &mut self.queues[cpu].tasks;
        let at = match tasks.iter().position(|(other, _)| *other == vm as u32) {
            Some(at) => at,
            None => match tasks.iter().position(|(_, line)| line.is_empty()) {
                Some(at) => {
                    tasks[at].0 = vm as u32;
                    tasks[at].1.reset();
                    at
                }
                None => {
                    tasks.push((vm as u32, Line::default()));
                    tasks.len() - 1
                }
            },
        };
        &mut tasks[at].1
    }

    /// calc_group_shares: the VM's weight in proportion to its tasks here.
    fn weight(&mut self, desk: &Desk, cpu: usize, vm: usize) -> i64 {
        let here = self.line(cpu, vm).len() as i64;
        let all = i64::from(self.runnable[vm].max(1));
        i64::from(desk.vms[vm].weight) * UNIT / 100 * here / all
    }

    fn enqueue(&mut self, desk: &Desk, task: TaskId) {
        let (vm, cpu, slice) = (desk.task(task).vm, desk.task(task).cpu, self.slice);
        let lag = self.lags[task.ix()];
        let new = self.line(cpu, vm).is_empty();
        self.line(cpu, vm).join(task.0, UNIT, lag, slice);
        let weight = self.weight(desk, cpu, vm);
        if new {
            self.queues[cpu].vms.join(vm as u32, weight, 0, slice);
        } else {
            self.queues[cpu].vms.reweigh(vm as u32, weight);
        }
    }

    fn dequeue(&mut self, desk: &Desk, task: TaskId) {
        let (vm, cpu, slice) = (desk.task(task).vm, desk.task(task).cpu, self.slice);
        self.lags[task.ix()] = self.line(cpu, vm).leave(task.0, slice);
        if self.line(cpu, vm).is_empty() {
            self.queues[cpu].vms.leave(vm as u32, slice);
        } else {
            let weight = self.weight(desk, cpu, vm);
            self.queues[cpu].vms.reweigh(vm as u32, weight);
        }
    }

    /// Charges the task that runs on `cpu`; true when its or its VM's request is used up.
    fn update(&mut self, desk: &Desk, cpu: usize, task: TaskId) -> bool {
        let ran = desk.ran(task);
        let delta = ran - std::mem::replace(&mut self.paid[task.ix()], ran);
        let (vm, slice) = (desk.task(task).vm, self.slice);
        let own = self.line(cpu, vm).charge(task.0, delta, slice);
        let group = self.queues[cpu].vms.charge(vm as u32, delta, slice);
        own || group
    }

    /// Whom `cpu` should run.
    fn best(&mut self, cpu: usize) -> Option<TaskId> {
        let vm = self.queues[cpu].vms.best()?;
        self.line(cpu, vm as usize).best().map(TaskId)
    }

    /// After `task` was queued: does its CPU choose again?
    fn preempt(&mut self, desk: &mut Desk, task: TaskId) {
        let cpu = desk.task(task).cpu;
        match desk.current(cpu) {
            None => desk.resched(cpu),
            Some(current) => {
                self.update(desk, cpu, current);
                // Who ran alone until now has no timer yet.
                if self.best(cpu) == Some(task) || self.rules.hrtick > 0 {
                    desk.resched(cpu);
                }
            }
        }
    }

    fn migrate(&mut self, desk: &mut Desk, task: TaskId, to: usize) {
        self.dequeue(desk, task);
        desk.assign(task, to);
        self.enqueue(desk, task);
        self.preempt(desk, task);
    }

    /// select_task_rq_fair.
    fn select(&self, desk: &Desk, task: TaskId, by: Waker) -> usize {
        let this = desk.task(task);
        let (last, allowed) = (this.cpu, &this.allowed);
        if by == Waker::Start || !allowed.has(last) {
            return Self::idlest(desk, allowed).unwrap_or(last);
        }
        let mut target = last;
        if let Waker::Sibling(waker) = by {
            let waker = desk.task(waker).cpu;
            let near = desk.host.llc[waker] == desk.host.llc[last];
            if near && allowed.has(waker) && desk.load(waker) < desk.load(last) {
                target = waker;
            }
        }
        Self::idle_near(desk, allowed, target).unwrap_or(target)
    }

    /// select_idle_sibling: the target, an idle core under its LLC, any idle CPU there.
    fn idle_near(desk: &Desk, allowed: &Mask, target: usize) -> Option<usize> {
        let host = &desk.host;
        let idle = |cpu: usize| desk.load(cpu) == 0 && allowed.has(cpu);
        if idle(target) {
            return Some(target);
        }
        let span = &host.llcs[host.llc[target]];
        let whole = |cpu: &usize| {
            idle(*cpu) && host.siblings[*cpu].iter().all(|other| desk.load(*other) == 0)
        };
        span.iter().find(whole).or_else(|| span.iter().find(|cpu| idle(*cpu)))
    }

    /// The least loaded node, core and CPU that are allowed.
    fn idlest(desk: &Desk, allowed: &Mask) -> Option<usize> {
        let host = &desk.host;
        let load = |mask: &Mask| mask.iter().map(|cpu| u64::from(desk.load(cpu))).sum::<u64>();
        let node = (0..host.nodes.len())
            .filter(|node| host.nodes[*node].meets(allowed))
            .min_by_key(|node| {
                let size = u64::from(host.nodes[*node].count());
                (u64::from(desk.node_load(*node)) * 1024 / size.max(1), *node)
            })?;
        let core = |cpu: usize| load(&host.cores[host.core[cpu]]);
        let own = host.nodes[node].iter().filter(|cpu| allowed.has(*cpu));
        own.min_by_key(|cpu| (core(*cpu), desk.load(*cpu), *cpu))
    }

    /// Pulls a queued task to `cpu` from the CPU of `span` with the most of those that have `more`
    /// than it; if nothing there may move, from the next.
    fn pull(&mut self, desk: &mut Desk, cpu: usize, span: &Mask, more: u32) -> bool {
        let least = (desk.load(cpu) + more).max(2);
        let mut below = (u32::MAX, 0);
        loop {
            let rank = |other: usize| (desk.load(other), usize::MAX - other);
            let full =
                |other: &usize| *other != cpu && desk.load(*other) >= least && rank(*other) < below;
            let Some(from) = span.iter().filter(full).max_by_key(|other| rank(*other)) else {
                return false;
            };
            if let Some(task) = self.movable(desk, from, cpu) {
                self.migrate(desk, task, cpu);
                return true;
            }
            below = rank(from);
        }
    }

    /// A task that waits on `from` and may use `to`.
    fn movable(&self, desk: &Desk, from: usize, to: usize) -> Option<TaskId> {
        let may = |task: &TaskId| {
            let this = desk.task(*task);
            this.state == TaskState::Queued && this.allowed.has(to)
        };
        let lines = self.queues[from].tasks.iter().flat_map(|(_, line)| line.keys());
        lines.map(TaskId).find(may)
    }

    /// Spans from near to far: LLC, node, host.
    fn balance(&mut self, desk: &mut Desk, cpu: usize, more: u32) {
        let spans = std::mem::take(&mut self.spans);
        let (llcs, nodes) = (desk.host.llcs.len(), desk.host.nodes.len());
        let near = [desk.host.llc[cpu], llcs + desk.host.node[cpu], llcs + nodes];
        for span in near {
            if self.pull(desk, cpu, &spans[span], more) {
                break;
            }
        }
        self.spans = spans;
    }
}

impl Scheduler for Eevdf {
    fn name(&self) -> &'static str {
        "eevdf"
    }

    fn start(&mut self, desk: &mut Desk) {
        let cpus = desk.host.cpus();
        self.slice = self.quantum(cpus) as i64;
        // Room for as many VMs as usually meet on a CPU.
        let room = desk.vms.len().min(ROOM);
        let lines = || (0..room).map(|_| (u32::MAX, Line::with_room(ROOM))).collect();
        let queue = |_| Queue { vms: Line::with_room(room), tasks: lines(), next: 0 };
        self.queues = (0..cpus).map(queue).collect();
        self.paid = vec![0; desk.tasks.len()];
        self.lags = vec![0; desk.tasks.len()];
        self.push = vec![None; desk.tasks.len()];
        self.runnable = vec![0; desk.vms.len()];
        let host = &desk.host;
        self.spans = host.llcs.iter().chain(&host.nodes).cloned().collect();
        self.spans.push(Mask::all(cpus));
    }

    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        self.runnable[desk.task(task).vm] += 1;
        let cpu = self.select(desk, task, by);
        desk.assign(task, cpu);
        self.enqueue(desk, task);
        self.preempt(desk, task);
    }

    fn block(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.update(desk, cpu, task);
        self.runnable[desk.task(task).vm] -= 1;
        self.dequeue(desk, task);
        self.push[task.ix()] = None;
        self.queues[cpu].vms.rest();
    }

    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        self.update(desk, cpu, task);
        let (vm, slice) = (desk.task(task).vm, self.slice);
        if let Some(to) = self.push[task.ix()].take()
            && desk.task(task).allowed.has(to)
        {
            self.queues[cpu].vms.rest();
            self.line(cpu, vm).rest();
            self.migrate(desk, task, to);
            return;
        }
        if let Put::Yield(to) = why {
            self.line(cpu, vm).give_up(task.0, slice);
            self.queues[cpu].vms.give_up(vm as u32, slice);
            if let Some(to) = to {
                let (cpu, vm) = (desk.task(to).cpu, desk.task(to).vm);
                self.line(cpu, vm).hurry(to.0);
                self.queues[cpu].vms.hurry(vm as u32);
                desk.resched(cpu);
            }
        }
    }

    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        if self.queues[cpu].vms.is_empty() {
            self.balance(desk, cpu, 1);
        }
        let task = self.best(cpu)?;
        let vm = desk.task(task).vm;
        self.queues[cpu].vms.run(vm as u32);
        self.line(cpu, vm).run(task.0);
        let slice = if self.rules.hrtick > 0 && desk.load(cpu) > 1 {
            let left = self.queues[cpu].vms.left(vm as u32).min(self.line(cpu, vm).left(task.0));
            left + self.rules.hrtick
        } else {
            u64::MAX
        };
        Some(Pick { task, slice })
    }

    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        if let Some(task) = desk.current(cpu) {
            let vm = desk.task(task).vm;
            let weight = self.weight(desk, cpu, vm);
            self.queues[cpu].vms.reweigh(vm as u32, weight);
            if self.update(desk, cpu, task) && desk.load(cpu) > 1 {
                desk.resched(cpu);
            }
        }
        // An idle CPU looks each tick, a busy one every 32 ms (busy_factor), for two more than it has.
        let idle = desk.load(cpu) == 0;
        if idle || desk.now >= self.queues[cpu].next {
            self.queues[cpu].next = desk.now + 32_000_000;
            self.balance(desk, cpu, if idle { 1 } else { 2 });
        }
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

    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        let (state, cpu) = (desk.task(task).state, desk.task(task).cpu);
        if desk.task(task).allowed.has(cpu) {
            return;
        }
        let Some(to) = Self::idlest(desk, &desk.task(task).allowed) else { return };
        match state {
            TaskState::Queued => self.migrate(desk, task, to),
            TaskState::Running => {
                self.push[task.ix()] = Some(to);
                desk.resched(cpu);
            }
            TaskState::Blocked => desk.assign(task, to),
        }
    }
}
