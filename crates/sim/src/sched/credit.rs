//! Xen's credit scheduler (xen/common/sched_credit.c) as of 4.1.3, 4.4.1 and 4.17, whichever the machine
//! runs: credits by weight every 30 ms, priorities BOOST, UNDER and OVER, slices of 30 ms, work stealing.
//!
//! A vCPU burns 10 credits a millisecond. One that has credits left is UNDER, one that has none is OVER. A
//! vCPU that wakes while UNDER is BOOST until the first tick that finds it running.
//!
//! ```text
//!   wake (UNDER) -> BOOST --tick--> UNDER <--accounting, each 30 ms--> OVER <--cap--> parked
//! ```
//!
//! This file holds the queues and the choice (`csched_schedule`); `account` the credits,
//! `place` the CPUs: which one a vCPU moves to, which ones are told of it, which ones steal. The head of each
//! file says what each function of the original does, in releases as docs/models/schedulers.md names them. A rule
//! that names no release holds for all. Not modelled: tasklets, CPU pools, migration delay.
//!
//! **Queues and the choice.**
//!
//! * `__runq_insert`: behind all of the same priority, after a yield also behind one of a lower
//!   priority.
//! * `csched_runq_sort`, after an accounting: UNDER and BOOST before OVER.
//! * `csched_vcpu_wake`: UNDER becomes BOOST (4.17: not if a CPU was chosen since). A parked one is not
//!   queued.
//! * `csched_unit_insert`, 4.17: a new vCPU takes the CPU of `_csched_cpu_pick`, without BOOST.
//! * `csched_schedule`: a vCPU runs for 1 ms at least, unless it is to move or (4.17) yields, and 30 ms
//!   at most. The first in the queue runs. A CPU with none, or only OVER, takes a better one of another
//!   CPU.
//! * `context_saved`, `vcpu_migrate`, `vcpu_set_affinity` (schedule.c; 4.17: `sched/core.c`): a vCPU
//!   that is to move, or may not stay (4.17: any vCPU), wakes on the CPU of `_csched_cpu_pick`.

mod account;
mod place;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;

use super::{Pick, Scheduler, Standing};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use crate::params::XenRelease;
use instep_check::mask::Mask;
use instep_check::{Promises, Share};

const MS: u64 = 1_000_000;
/// CSCHED_CREDITS_PER_MSEC.
const PER_MS: u64 = 10;
/// The CPU whose timer accounts for all (`master`).
const MASTER: usize = 0;
/// In 4.17 a vCPU that the rate limit keeps runs for so long at least (CSCHED_MIN_TIMER), nanoseconds.
const MIN_TIMER: u64 = MS / 10;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditTuning {
    /// Slice, and period of accounting, in nanoseconds (CSCHED_DEFAULT_TSLICE_MS 30).
    pub slice: u64,
    /// Ticks in a slice (CSCHED_TICKS_PER_TSLICE 3).
    pub ticks: u64,
    /// A vCPU that ran for less than this many nanoseconds is not preempted
    /// (`sched_ratelimit_us` 1000).
    pub ratelimit: u64,
    /// By how many nanoseconds timers may be late: each is by some of it. When not given 50 us in Xen 4.1.3
    /// (`timer_slop`, xen/common/timer.c, which adds it to each deadline; later releases only to those that are
    /// closer), and nothing in later ones. Where Xen runs on emulated CPUs it is milliseconds.
    pub slop: Option<u64>,
}

impl Default for CreditTuning {
    fn default() -> Self {
        Self { slice: 30 * MS, ticks: 3, ratelimit: MS, slop: None }
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

/// `csched_vcpu`.
#[derive(Clone, Debug)]
struct Svc {
    pri: Pri,
    credit: i64,
    /// CPU time that was paid for, nanoseconds; may be ahead of what was had (`start_time`).
    paid: u64,
    /// Of 4.4.1's division by credits: what was left of it, in nanoseconds times [`PER_MS`].
    residual: u64,
    /// Since when it runs (`runstate.state_entry_time`): a new slice does not change it.
    entered: u64,
    active: bool,
    /// It is to look for another CPU (`_VPF_migrating`).
    migrating: bool,
    yielded: bool,
    /// It may not run before it has credits again: its VM used more than its cap (CSCHED_FLAG_VCPU_PARKED).
    parked: bool,
    /// In 4.17: a CPU was chosen for it since it woke last (CSCHED_FLAG_UNIT_MIGRATING).
    moved: bool,
}

/// `csched_pcpu`, and the CPU's `schedule_data`.
#[derive(Clone, Debug)]
struct Pcpu {
    /// Queued vCPUs, by priority, then by time.
    queue: Vec<TaskId>,
    /// What runs; nobody for the idle vCPU.
    current: Option<TaskId>,
    /// The last sort of the queue that this CPU knows of.
    sorted: u64,
    /// Where the last search for an idle CPU ended (`idle_bias`).
    bias: usize,
    /// The idle CPU that was woken last from here (`last_tickle_cpu`).
    tickled: usize,
    /// The vCPU that may not be preempted yet.
    kept: Option<TaskId>,
    /// The vCPU that stops here to look for another CPU.
    leaving: Option<TaskId>,
    /// When the slice of what runs is over, nanoseconds.
    slice_end: u64,
}

/// The scheduler. See the module.
#[derive(Clone, Debug)]
pub struct Credit {
    rules: CreditTuning,
    svcs: Vec<Svc>,
    pcpus: Vec<Pcpu>,
    /// VMs with active vCPUs, in the order of accounting.
    active: Vec<usize>,
    /// Active vCPUs of each VM.
    counts: Vec<u32>,
    balance: i64,
    /// When the next accounting is due, nanoseconds.
    account_at: u64,
    sort: u64,
    /// CPUs that run nobody.
    idlers: Mask,
    /// All CPUs.
    all: Mask,
    /// CPUs with somebody in their queue.
    waiting: Mask,
    /// Whether any vCPU has a node affinity.
    prefers: bool,
    /// The CPU of each node from which another one took a vCPU last, in 4.17 (`balance_bias`).
    stolen: Vec<usize>,
    /// Scratch.
    cpus: Mask,
    near: Mask,
}

impl Credit {
    /// With these numbers.
    pub fn new(rules: CreditTuning) -> Self {
        let none = || Mask::none(0);
        Self {
            rules,
            svcs: Vec::new(),
            pcpus: Vec::new(),
            active: Vec::new(),
            counts: Vec::new(),
            balance: 0,
            account_at: 0,
            sort: 0,
            idlers: none(),
            all: none(),
            waiting: none(),
            prefers: false,
            stolen: Vec::new(),
            cpus: none(),
            near: none(),
        }
    }

    fn pri(&self, task: Option<TaskId>) -> Pri {
        task.map_or(Pri::Idle, |task| self.svcs[task.ix()].pri)
    }

    /// By how much a timer is late this time.
    fn late(&self, ctx: &mut SchedContext) -> u64 {
        let usual = if ctx.xen == XenRelease::V4_1_3 { MS / 20 } else { 0 };
        match self.rules.slop.unwrap_or(usual) {
            0 => 0,
            slop => ctx.rng.below(slop),
        }
    }

    /// `task` runs on `cpu` for so many nanoseconds, and as long as the timer is late.
    fn until(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, slice: u64) -> Pick {
        self.pcpus[cpu].slice_end = ctx.now + slice;
        Pick { task, slice: slice + self.late(ctx) }
    }

    /// `csched_acct`, with its timer.
    fn account_and_arm(&mut self, ctx: &mut SchedContext) {
        self.account(ctx);
        self.account_at = ctx.now + self.rules.slice;
        let at = self.account_at + self.late(ctx);
        ctx.arm(0, at);
    }

    /// Whether timers are late by milliseconds ([`CreditTuning::slop`]).
    fn is_late(&self) -> bool {
        self.rules.slop.unwrap_or(0) > 0
    }

    fn account_if_due(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if self.is_late() && cpu == MASTER && self.account_at <= ctx.now {
            self.account_and_arm(ctx);
        }
    }

    /// A late timer of `cpu` fired: others of it may be due by now, and are handled with it (`timer_softirq_action`,
    /// xen/common/timer.c). So a slice and an accounting that end within that time end together from then on.
    fn handle_due(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.account_if_due(ctx, cpu);
        let is_over = self.pcpus[cpu].current.is_some() && self.pcpus[cpu].slice_end <= ctx.now;
        if self.is_late() && is_over {
            ctx.resched(cpu);
        }
    }

    /// `__runq_insert`: after those of its priority; one that yields lets one more pass.
    fn insert(&mut self, ctx: &SchedContext, task: TaskId) {
        let pri = self.svcs[task.ix()].pri;
        let cpu = ctx.task(task).cpu;
        let queue = &self.pcpus[cpu].queue;
        let mut at =
            queue.iter().position(|other| self.svcs[other.ix()].pri < pri).unwrap_or(queue.len());
        if std::mem::take(&mut self.svcs[task.ix()].yielded) && at < queue.len() {
            at += 1;
        }
        self.pcpus[cpu].queue.insert(at, task);
        self.waiting.set(cpu);
    }

    /// `__runq_remove`.
    fn unqueue(&mut self, cpu: usize, task: TaskId) -> bool {
        let queue = &mut self.pcpus[cpu].queue;
        let Some(at) = queue.iter().position(|queued| *queued == task) else { return false };
        queue.remove(at);
        if queue.is_empty() {
            self.waiting.clear(cpu);
        }
        true
    }

    fn take_first(&mut self, cpu: usize) -> Option<TaskId> {
        let first = *self.pcpus[cpu].queue.first()?;
        self.unqueue(cpu, first).then_some(first)
    }

    /// `csched_vcpu_wake`, on CPU `here`.
    fn enqueue_woken(&mut self, ctx: &mut SchedContext, task: TaskId, here: usize) {
        let svc = &mut self.svcs[task.ix()];
        let moved = std::mem::take(&mut svc.moved);
        if svc.pri == Pri::Under && !svc.parked && !moved {
            svc.pri = Pri::Boost;
        }
        self.insert(ctx, task);
        self.tickle(ctx, task, here);
    }

    /// `vcpu_migrate` (xen/common/schedule.c) of a vCPU that is in no queue and does not run.
    fn migrate(&mut self, ctx: &mut SchedContext, task: TaskId, here: usize) {
        let to = self.cpu_pick(ctx, task, true);
        ctx.assign(task, to);
        if !self.svcs[task.ix()].parked {
            self.enqueue_woken(ctx, task, here);
        }
    }

    /// `cpu` runs this vCPU from now on, or nobody.
    fn switch(&mut self, ctx: &SchedContext, cpu: usize, next: Option<TaskId>) {
        let before = std::mem::replace(&mut self.pcpus[cpu].current, next);
        match next {
            None => self.idlers.set(cpu),
            Some(task) => {
                self.idlers.clear(cpu);
                if before != next {
                    self.svcs[task.ix()].entered = ctx.now;
                }
            }
        }
    }

    /// `csched_runq_sort`, at most once an accounting: UNDER and BOOST before OVER, else as they were.
    fn sort_queue(&mut self, cpu: usize) {
        if std::mem::replace(&mut self.pcpus[cpu].sorted, self.sort) == self.sort {
            return;
        }
        let (svcs, queue) = (&self.svcs, &mut self.pcpus[cpu].queue);
        let mut front = 0;
        for at in 0..queue.len() {
            if svcs[queue[at].ix()].pri >= Pri::Under {
                queue[front..=at].rotate_right(1);
                front += 1;
            }
        }
    }

    /// Credits of a vCPU.
    pub(super) fn credit(&self, task: TaskId) -> i64 {
        self.svcs[task.ix()].credit
    }

    /// Queues a vCPU as OVER, with so many credits.
    #[cfg(test)]
    pub(super) fn queue_over(&mut self, ctx: &SchedContext, task: TaskId, credit: i64) {
        let svc = &mut self.svcs[task.ix()];
        (svc.pri, svc.credit) = (Pri::Over, credit);
        self.insert(ctx, task);
    }

    /// Gives a queued vCPU a higher priority and its new place; false if it has it already or is
    /// not queued.
    pub(super) fn raise(&mut self, ctx: &mut SchedContext, task: TaskId, pri: Pri) -> bool {
        let cpu = ctx.task(task).cpu;
        if self.svcs[task.ix()].pri >= pri || !self.unqueue(cpu, task) {
            return false;
        }
        self.svcs[task.ix()].pri = pri;
        self.insert(ctx, task);
        self.tickle(ctx, task, cpu);
        true
    }
}

impl Scheduler for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        let cpus = ctx.host.cpus();
        let svc = Svc {
            pri: Pri::Under,
            credit: 0,
            paid: 0,
            residual: 0,
            entered: 0,
            active: false,
            migrating: false,
            yielded: false,
            parked: false,
            moved: false,
        };
        let pcpu = Pcpu {
            queue: Vec::new(),
            current: None,
            sorted: 0,
            bias: cpus - 1,
            tickled: 0,
            kept: None,
            leaving: None,
            slice_end: u64::MAX,
        };
        self.svcs = vec![svc; ctx.tasks.len()];
        self.pcpus = vec![pcpu; cpus];
        self.counts = vec![0; ctx.vms.len()];
        self.active = Vec::with_capacity(ctx.vms.len());
        (self.all, self.idlers) = (Mask::all(cpus), Mask::all(cpus));
        (self.waiting, self.cpus, self.near) =
            (Mask::none(cpus), Mask::none(cpus), Mask::none(cpus));
        self.prefers = ctx.tasks.iter().any(|task| self.has_node_affinity(task));
        self.stolen = ctx.host.nodes.iter().map(|node| node.first().unwrap_or(0)).collect();
        let begins = match ctx.xen {
            XenRelease::V4_1_3 | XenRelease::V4_4_1 => 0,
            // Ticks come together there. Where accounting lies between them is a matter of when Xen booted.
            XenRelease::V4_17 => ctx.rng.below(self.tick_period()),
        };
        self.account_at = self.rules.slice + begins;
        ctx.arm(0, self.account_at);
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        let here = match by {
            Waker::Sibling(sender) => ctx.task(sender).cpu,
            Waker::Start | Waker::Timer | Waker::Io => ctx.task(task).cpu,
        };
        if by == Waker::Start && ctx.xen >= XenRelease::V4_17 {
            // `csched_unit_insert`.
            let to = self.cpu_pick(ctx, task, true);
            ctx.assign(task, to);
        }
        if !self.svcs[task.ix()].parked {
            self.enqueue_woken(ctx, task, here);
        }
    }

    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        self.burn(ctx, task);
        self.pcpus[cpu].current = None;
        let svc = &mut self.svcs[task.ix()];
        svc.yielded = false;
        if std::mem::take(&mut svc.migrating) {
            let to = self.cpu_pick(ctx, task, true);
            ctx.assign(task, to);
        }
    }

    /// `csched_schedule` up to `__runq_insert`.
    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        if why == StopReason::SliceEnd {
            self.account_if_due(ctx, cpu);
            // It chooses now, whatever the accounting asks for.
            ctx.pending.clear(cpu);
        }
        self.burn(ctx, task);
        let svc = &mut self.svcs[task.ix()];
        svc.yielded |= matches!(why, StopReason::Yield(_));
        let passes = svc.yielded && ctx.xen >= XenRelease::V4_17;
        if std::mem::take(&mut svc.migrating) {
            // Not runnable until it has moved, so that neither queue nor rate limit hold it.
            svc.yielded = false;
            self.pcpus[cpu].leaving = Some(task);
        } else if svc.parked {
            svc.yielded = false;
        } else if ctx.now - svc.entered < self.rules.ratelimit && !passes {
            self.pcpus[cpu].kept = Some(task);
        } else {
            self.insert(ctx, task);
        }
    }

    /// `csched_schedule` from there on, and `context_saved` for a vCPU that leaves.
    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        if let Some(task) = self.pcpus[cpu].kept.take() {
            let whole = self.rules.ratelimit;
            let slice = match (ctx.xen, ctx.now - self.svcs[task.ix()].entered) {
                (XenRelease::V4_17, ran) if ran < MIN_TIMER => MIN_TIMER,
                (XenRelease::V4_17, ran) => whole - ran,
                _ => whole,
            };
            return Some(self.until(ctx, cpu, task, slice));
        }
        let pri = self.pri(self.pcpus[cpu].queue.first().copied());
        let next = match pri > Pri::Over {
            true => self.take_first(cpu),
            false => self.steal(ctx, cpu, pri).or_else(|| self.take_first(cpu)),
        };
        self.switch(ctx, cpu, next);
        if let Some(task) = self.pcpus[cpu].leaving.take() {
            self.migrate(ctx, task, cpu);
        }
        let slice = self.rules.slice;
        next.map(|task| self.until(ctx, cpu, task, slice))
    }

    /// `csched_tick`.
    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        if let Some(task) = ctx.current(cpu) {
            self.account_running(ctx, cpu, task);
        }
        self.sort_queue(cpu);
        self.handle_due(ctx, cpu);
    }

    fn tick_period(&self) -> u64 {
        self.rules.slice / self.rules.ticks
    }

    /// Each CPU's ticker is armed when the CPU comes up, and again when a tick is handled: those of busy
    /// CPUs do not come together. In 4.17 they do, as a CPU that leaves idleness begins with the next whole period.
    fn first_tick(&self, ctx: &mut SchedContext) -> u64 {
        match ctx.xen {
            XenRelease::V4_1_3 | XenRelease::V4_4_1 => 1 + ctx.rng.below(self.tick_period()),
            XenRelease::V4_17 => self.tick_period(),
        }
    }

    fn next_tick(&self, ctx: &mut SchedContext) -> u64 {
        self.tick_period() + self.late(ctx)
    }

    fn quantum(&self, _cpus: usize) -> u64 {
        self.rules.slice
    }

    fn timer(&mut self, ctx: &mut SchedContext, _id: u32) {
        self.account_and_arm(ctx);
        self.handle_due(ctx, MASTER);
    }

    /// `vcpu_set_affinity`: a vCPU moves only if it may not stay; in 4.17 it always looks for a CPU.
    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        self.prefers |= self.has_node_affinity(ctx.task(task));
        let (state, cpu) = (ctx.task(task).state, ctx.task(task).cpu);
        if ctx.task(task).allowed.has(cpu) && ctx.xen < XenRelease::V4_17 {
            return;
        }
        match state {
            TaskState::Running => {
                self.svcs[task.ix()].migrating = true;
                ctx.resched(cpu);
            }
            TaskState::Queued => {
                self.unqueue(cpu, task);
                self.migrate(ctx, task, cpu);
            }
            TaskState::Blocked => {
                let to = self.cpu_pick(ctx, task, true);
                ctx.assign(task, to);
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

    fn keeps_caps(&self) -> bool {
        true
    }

    fn standing(&self, task: TaskId) -> Option<Standing> {
        let svc = &self.svcs[task.ix()];
        // No task is the idle vCPU.
        let pri = match svc.pri {
            Pri::Boost => 0,
            Pri::Under => -1,
            Pri::Over | Pri::Idle => -2,
        };
        Some(Standing { pri, credit: svc.credit, is_parked: svc.parked })
    }

    fn work_conserving(&self) -> bool {
        // An OVER vCPU behind a running one is not stolen by CPUs that went idle before it came.
        false
    }
}
