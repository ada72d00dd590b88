//! Xen's credit scheduler as of Xen 4.4 (xen/common/sched_credit.c): credits by weight every 30 ms,
//! priorities BOOST, UNDER and OVER, slices of 30 ms, two passes over node and vCPU affinity, work
//! stealing by idle CPUs.
//!
//! A vCPU burns 10 credits a millisecond; who has some left is UNDER, who has not is OVER, and who
//! wakes while UNDER is BOOST until its first tick. Caps, parking, tasklets and CPU pools are not
//! modelled. Weights count per vCPU that is active, as since Xen 4.2.
//!
//! ```text
//!   wake (UNDER) -> BOOST --tick--> UNDER <--accounting, each 30 ms--> OVER
//! ```

use super::{Pick, Scheduler};
use crate::check::{Promises, Share};
use crate::desk::{Desk, Put, TaskId, TaskState, Waker};
use crate::mask::Mask;

const MS: u64 = 1_000_000;
/// CSCHED_CREDITS_PER_MSEC.
const PER_MS: u64 = 10;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Slice, and period of accounting, in nanoseconds (CSCHED_DEFAULT_TSLICE_MS 30).
    pub slice: u64,
    /// Ticks in a slice (CSCHED_TICKS_PER_TSLICE 3).
    pub ticks: u64,
    /// A vCPU that ran for less than this many nanoseconds is not preempted
    /// (SCHED_DEFAULT_RATELIMIT_US 1000).
    pub ratelimit: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { slice: 30 * MS, ticks: 3, ratelimit: MS }
    }
}

/// A priority; the higher the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pri {
    Idle,
    Over,
    Under,
    Boost,
}

#[derive(Clone, Debug)]
struct Svc {
    pri: Pri,
    credit: i64,
    /// CPU time that was paid for, nanoseconds.
    paid: u64,
    /// CPU time when it was picked last.
    picked: u64,
    active: bool,
    migrating: bool,
    yielded: bool,
}

#[derive(Clone, Debug, Default)]
struct Pcpu {
    /// Queued vCPUs, by priority, then by time.
    queue: Vec<TaskId>,
    /// The last sort of the queue that this CPU knows of.
    sorted: u64,
    /// Where the last search for an idle CPU ended.
    bias: usize,
    /// The idle CPU that was woken last from here.
    tickled: usize,
    /// A vCPU that may not be preempted yet, and for how long.
    keep: Option<(TaskId, u64)>,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Credit {
    rules: Rules,
    svcs: Vec<Svc>,
    pcpus: Vec<Pcpu>,
    /// VMs with active vCPUs, in order of becoming active.
    active: Vec<usize>,
    /// Active vCPUs of each VM.
    counts: Vec<u32>,
    balance: i64,
    sort: u64,
    cpus: Mask,
    idlers: Mask,
    /// CPUs with somebody in their queue.
    waiting: Mask,
    /// Whether any vCPU has a node affinity.
    prefers: bool,
}

/// The two passes over affinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Node,
    Vcpu,
}

impl Credit {
    /// With these numbers.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            svcs: Vec::new(),
            pcpus: Vec::new(),
            active: Vec::new(),
            counts: Vec::new(),
            balance: 0,
            sort: 0,
            cpus: Mask::none(0),
            idlers: Mask::none(0),
            waiting: Mask::none(0),
            prefers: false,
        }
    }

    fn full(&self) -> i64 {
        (self.rules.slice / (MS / PER_MS)).max(1) as i64
    }

    fn pri(&self, task: Option<TaskId>) -> Pri {
        task.map_or(Pri::Idle, |task| self.svcs[task.ix()].pri)
    }

    /// burn_credits.
    fn burn(&mut self, desk: &Desk, task: TaskId) {
        let svc = &mut self.svcs[task.ix()];
        let delta = desk.ran(task).saturating_sub(svc.paid);
        let credits = (delta * PER_MS + MS / 2) / MS;
        svc.credit -= credits as i64;
        svc.paid += credits * MS / PER_MS;
    }

    /// __runq_insert: after those of its priority.
    fn insert(&mut self, desk: &Desk, task: TaskId) {
        let pri = self.svcs[task.ix()].pri;
        let queue = &self.pcpus[desk.task(task).cpu].queue;
        let mut at =
            queue.iter().position(|other| self.svcs[other.ix()].pri < pri).unwrap_or(queue.len());
        // A vCPU that yielded goes behind one more (CSCHED_FLAG_VCPU_YIELD).
        if std::mem::take(&mut self.svcs[task.ix()].yielded) && at < queue.len() {
            at += 1;
        }
        let cpu = desk.task(task).cpu;
        self.pcpus[cpu].queue.insert(at, task);
        self.waiting.set(cpu);
    }

    fn unqueue(&mut self, cpu: usize, task: TaskId) -> bool {
        let queue = &mut self.pcpus[cpu].queue;
        let Some(at) = queue.iter().position(|queued| *queued == task) else { return false };
        queue.remove(at);
        if queue.is_empty() {
            self.waiting.clear(cpu);
        }
        true
    }

    /// csched_balance_cpumask; false when the pass has nothing to say for this vCPU.
    fn affinity(&mut self, desk: &Desk, task: TaskId, pass: Pass) -> bool {
        let task = desk.task(task);
        if pass == Pass::Node
            && (task.preferred.covers(&task.allowed) || !task.preferred.meets(&task.allowed))
        {
            return false;
        }
        self.cpus.copy(&task.allowed);
        if pass == Pass::Node {
            self.cpus.keep(&task.preferred);
        }
        true
    }

    /// __runq_tickle: which CPUs shall choose again because `task` was queued.
    fn tickle(&mut self, desk: &mut Desk, task: TaskId) {
        let cpu = desk.task(task).cpu;
        let (new, current) = (self.svcs[task.ix()].pri, desk.current(cpu));
        let cur = self.pri(current);
        if current.is_none() || (desk.idle.is_empty() && new > cur) {
            desk.resched(cpu);
            return;
        }
        if desk.idle.is_empty() {
            return;
        }
        for pass in [Pass::Node, Pass::Vcpu] {
            if !self.affinity(desk, task, pass) {
                continue;
            }
            self.cpus.keep(&desk.idle);
            match self.cpus.after(self.pcpus[cpu].tickled) {
                Some(idler) => {
                    self.pcpus[cpu].tickled = idler;
                    desk.resched(idler);
                    return;
                }
                None if pass == Pass::Node => {}
                None if new > cur => {
                    // Nobody idle may run it: the one that runs here looks for another CPU.
                    if let Some(current) = current {
                        self.svcs[current.ix()].migrating = true;
                    }
                    desk.resched(cpu);
                }
                None => {}
            }
        }
    }

    /// _csched_cpu_pick: an idle CPU with as many idle neighbours as possible, node affinity first.
    fn cpu_pick(&mut self, desk: &Desk, task: TaskId, commit: bool) -> usize {
        let home = desk.task(task).cpu;
        let host = &desk.host;
        let mut cpu = home;
        for pass in [Pass::Node, Pass::Vcpu] {
            if !self.affinity(desk, task, pass) {
                continue;
            }
            cpu = if self.cpus.has(home) { home } else { self.cpus.after(home).unwrap_or(home) };
            self.idlers.copy(&desk.idle);
            if home == cpu && self.pcpus[cpu].queue.is_empty() {
                let current = desk.current(cpu);
                if current.is_none() || current == Some(task) {
                    self.idlers.set(cpu);
                }
            }
            self.cpus.keep(&self.idlers);
            if !self.cpus.is_empty() && !self.cpus.has(cpu) {
                cpu = self.cpus.after(cpu).unwrap_or(cpu);
            }
            self.cpus.clear(cpu);
            let mut bias = None;
            while let Some(next) = self.cpus.after(cpu) {
                let same = host.package[cpu] == host.package[next];
                let (factor, here, there) = if same {
                    (1, &host.cores[host.core[cpu]], &host.cores[host.core[next]])
                } else {
                    (2, &host.packages[host.package[cpu]], &host.packages[host.package[next]])
                };
                let (here, idle) = (self.idlers.common(here), self.idlers.common(there));
                if here * factor < idle {
                    bias = Some(next);
                    // Begin where the last search from there ended.
                    let from = self.pcpus[next].bias;
                    let found = self.cpus.first_common(there, from + 1);
                    cpu = found.or_else(|| self.cpus.first_common(there, 0)).unwrap_or(next);
                    self.cpus.remove(&host.cores[host.core[cpu]]);
                } else {
                    self.cpus.remove(there);
                }
            }
            if commit && let Some(bias) = bias {
                self.pcpus[bias].bias = cpu;
            }
            if self.idlers.has(cpu) {
                break;
            }
        }
        cpu
    }

    /// csched_acct: hands out the credits of a period.
    fn account(&mut self, desk: &mut Desk) {
        let weight =
            |vm: usize, counts: &[u32]| i64::from(desk.vms[vm].weight) * i64::from(counts[vm]);
        let weights: i64 = self.active.iter().map(|vm| weight(*vm, &self.counts)).sum();
        if weights == 0 {
            self.balance = 0;
            return;
        }
        let (full, mut left) = (self.full(), weights);
        let mut total = full * desk.host.cpus() as i64;
        let (mut balance, mut extra) = (0, false);
        let mut front = 0;
        // What goes to the front was passed already: places from `at` on stay.
        for at in 0..self.active.len() {
            let vm = self.active[at];
            let (own, count) = (weight(vm, &self.counts), i64::from(self.counts[vm]));
            left -= own;
            let mut peak = count * full;
            if self.balance < 0 {
                peak += (-self.balance * own + weights - 1) / weights;
            }
            let mut fair = (total * own + weights - 1) / weights;
            if fair < peak {
                extra = true;
            } else {
                if left != 0 {
                    total += ((fair - peak) * weights + left - 1) / left;
                }
                if extra {
                    // Who leaves credits goes to the front, so that others get them next time.
                    self.active[front..=at].rotate_right(1);
                    front += 1;
                }
                fair = peak;
            }
            balance += self.pay(desk, vm, (fair + count - 1) / count.max(1));
        }
        self.active.retain(|vm| self.counts[*vm] > 0);
        self.balance = balance;
        self.sort += 1;
    }

    /// Adds `fair` credits to every active vCPU of a VM; what they have then.
    fn pay(&mut self, desk: &Desk, vm: usize, fair: i64) -> i64 {
        let (full, mut balance) = (self.full(), 0);
        for task in desk.vms[vm].tasks() {
            let svc = &mut self.svcs[task.ix()];
            if !svc.active {
                continue;
            }
            svc.credit += fair;
            if svc.credit < 0 {
                svc.pri = Pri::Over;
                svc.credit = svc.credit.max(-full);
            } else {
                svc.pri = Pri::Under;
                if svc.credit > full {
                    svc.active = false;
                    self.counts[vm] -= 1;
                    svc.credit /= 2;
                }
            }
            balance += svc.credit;
        }
        balance
    }

    /// csched_vcpu_acct: what a tick does to the vCPU that runs.
    fn tick_task(&mut self, desk: &mut Desk, cpu: usize, task: TaskId) {
        self.burn(desk, task);
        let vm = desk.task(task).vm;
        let svc = &mut self.svcs[task.ix()];
        if svc.pri == Pri::Boost {
            svc.pri = Pri::Under;
        }
        if !svc.active {
            svc.active = true;
            self.counts[vm] += 1;
            if self.counts[vm] == 1 {
                self.active.retain(|other| *other != vm);
                self.active.push(vm);
            }
        } else if self.cpu_pick(desk, task, false) != cpu {
            self.svcs[task.ix()].migrating = true;
            desk.resched(cpu);
        }
    }

    /// csched_load_balance: work of higher priority than `pri` from busy CPUs, node by node.
    fn steal(&mut self, desk: &mut Desk, cpu: usize, pri: Pri) -> Option<TaskId> {
        let nodes = desk.host.nodes.len();
        let passes = if self.prefers { &[Pass::Node, Pass::Vcpu][..] } else { &[Pass::Vcpu] };
        for pass in passes {
            for step in 0..nodes {
                let node = &desk.host.nodes[(desk.host.node[cpu] + step) % nodes];
                let mut next = node.first_common(&self.waiting, 0);
                while let Some(peer) = next {
                    next = node.first_common(&self.waiting, peer + 1);
                    if peer == cpu || desk.idle.has(peer) {
                        continue;
                    }
                    if let Some(task) = self.steal_from(desk, peer, cpu, pri, *pass) {
                        self.unqueue(peer, task);
                        desk.assign(task, cpu);
                        return Some(task);
                    }
                }
            }
        }
        None
    }

    /// csched_runq_steal.
    fn steal_from(
        &self,
        desk: &Desk,
        peer: usize,
        cpu: usize,
        pri: Pri,
        pass: Pass,
    ) -> Option<TaskId> {
        let better = |task: &&TaskId| self.svcs[task.ix()].pri > pri;
        let may = |task: &&TaskId| {
            let task = desk.task(**task);
            match pass {
                Pass::Vcpu => task.allowed.has(cpu),
                Pass::Node => {
                    !task.preferred.covers(&task.allowed)
                        && task.preferred.has(cpu)
                        && task.allowed.has(cpu)
                }
            }
        };
        self.pcpus[peer].queue.iter().take_while(better).find(may).copied()
    }

    /// Credits of a vCPU.
    pub(super) fn credit(&self, task: TaskId) -> i64 {
        self.svcs[task.ix()].credit
    }

    /// Gives a queued vCPU a higher priority and its new place; false if it has it already or is
    /// not queued.
    pub(super) fn raise(&mut self, desk: &mut Desk, task: TaskId, pri: Pri) -> bool {
        if self.svcs[task.ix()].pri >= pri || !self.unqueue(desk.task(task).cpu, task) {
            return false;
        }
        self.svcs[task.ix()].pri = pri;
        self.insert(desk, task);
        self.tickle(desk, task);
        true
    }

    fn take_first(&mut self, cpu: usize) -> Option<TaskId> {
        let first = *self.pcpus[cpu].queue.first()?;
        self.unqueue(cpu, first).then_some(first)
    }
}

impl Scheduler for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn start(&mut self, desk: &mut Desk) {
        let svc = Svc {
            pri: Pri::Under,
            credit: 0,
            paid: 0,
            picked: 0,
            active: false,
            migrating: false,
            yielded: false,
        };
        self.svcs = vec![svc; desk.tasks.len()];
        self.pcpus = vec![Pcpu::default(); desk.host.cpus()];
        self.counts = vec![0; desk.vms.len()];
        self.cpus = Mask::none(desk.host.cpus());
        self.idlers = Mask::none(desk.host.cpus());
        self.waiting = Mask::none(desk.host.cpus());
        self.prefers = desk.tasks.iter().any(|task| !task.preferred.covers(&task.allowed));
        self.active = Vec::with_capacity(desk.vms.len());
        desk.arm(0, self.rules.slice);
    }

    fn wake(&mut self, desk: &mut Desk, task: TaskId, by: Waker) {
        let svc = &mut self.svcs[task.ix()];
        if svc.pri == Pri::Under {
            svc.pri = Pri::Boost;
        }
        if by == Waker::Start {
            // csched_vcpu_insert: a new vCPU is given a CPU.
            let cpu = self.cpu_pick(desk, task, true);
            desk.assign(task, cpu);
        }
        self.insert(desk, task);
        self.tickle(desk, task);
    }

    fn block(&mut self, desk: &mut Desk, _cpu: usize, task: TaskId) {
        self.burn(desk, task);
        if std::mem::take(&mut self.svcs[task.ix()].migrating) {
            let cpu = self.cpu_pick(desk, task, true);
            desk.assign(task, cpu);
        }
    }

    fn put(&mut self, desk: &mut Desk, cpu: usize, task: TaskId, why: Put) {
        self.burn(desk, task);
        let ran = desk.ran(task) - self.svcs[task.ix()].picked;
        let svc = &mut self.svcs[task.ix()];
        if std::mem::take(&mut svc.migrating) {
            let to = self.cpu_pick(desk, task, true);
            desk.assign(task, to);
            if self.svcs[task.ix()].pri == Pri::Under {
                self.svcs[task.ix()].pri = Pri::Boost;
            }
            self.insert(desk, task);
            if to != cpu {
                self.tickle(desk, task);
            }
            return;
        }
        match why {
            Put::Preempted if ran < self.rules.ratelimit => {
                self.pcpus[cpu].keep = Some((task, self.rules.ratelimit - ran));
                return;
            }
            Put::Yield(_) => svc.yielded = true,
            Put::Preempted | Put::SliceEnd => {}
        }
        self.insert(desk, task);
    }

    fn pick(&mut self, desk: &mut Desk, cpu: usize) -> Option<Pick> {
        if let Some((task, slice)) = self.pcpus[cpu].keep.take() {
            return Some(Pick { task, slice });
        }
        let first = self.pcpus[cpu].queue.first().copied();
        let pri = self.pri(first);
        let task = if pri > Pri::Over {
            self.take_first(cpu)
        } else {
            self.steal(desk, cpu, pri).or_else(|| self.take_first(cpu))
        }?;
        self.svcs[task.ix()].picked = desk.ran(task);
        Some(Pick { task, slice: self.rules.slice })
    }

    fn tick(&mut self, desk: &mut Desk, cpu: usize) {
        if let Some(task) = desk.current(cpu) {
            self.tick_task(desk, cpu, task);
        }
        if self.pcpus[cpu].sorted != self.sort {
            self.pcpus[cpu].sorted = self.sort;
            // csched_runq_sort: UNDER before OVER, else as they were.
            let (svcs, queue) = (&self.svcs, &mut self.pcpus[cpu].queue);
            let mut front = 0;
            for at in 0..queue.len() {
                if svcs[queue[at].ix()].pri >= Pri::Under {
                    queue[front..=at].rotate_right(1);
                    front += 1;
                }
            }
        }
    }

    fn tick_period(&self) -> u64 {
        self.rules.slice / self.rules.ticks
    }

    fn quantum(&self, _cpus: usize) -> u64 {
        self.rules.slice
    }

    fn timer(&mut self, desk: &mut Desk, _id: u32) {
        self.account(desk);
        desk.arm(0, desk.now + self.rules.slice);
    }

    fn affinity_changed(&mut self, desk: &mut Desk, task: TaskId) {
        self.prefers = true;
        let (state, cpu) = (desk.task(task).state, desk.task(task).cpu);
        match state {
            TaskState::Running => {
                self.svcs[task.ix()].migrating = true;
                desk.resched(cpu);
            }
            TaskState::Queued => {
                self.unqueue(cpu, task);
                let to = self.cpu_pick(desk, task, true);
                desk.assign(task, to);
                self.insert(desk, task);
                self.tickle(desk, task);
            }
            TaskState::Blocked => {
                let to = self.cpu_pick(desk, task, true);
                desk.assign(task, to);
            }
        }
    }

    fn promises(&self) -> Promises {
        let usual = Promises::usual(self.work_conserving(), self.tick_period());
        // Debt beyond a slice is forgiven, so small weights have more than their share.
        let slack = 2 * self.rules.slice;
        let share = Share { percent: 25, floor: 8, slack, by_vcpu: true, ..Share::default() };
        // Who wakes or is sent away by one who does is BOOST, as often as it happens, and comes before all that
        // are not: as long as those who block keep a CPU busy, nobody else has it.
        Promises { share: Some(share), wakers_first: true, ..usual }
    }

    fn work_conserving(&self) -> bool {
        // An OVER vCPU behind a running one is not stolen by CPUs that went idle before it came.
        false
    }
}

#[cfg(test)]
mod tests;
