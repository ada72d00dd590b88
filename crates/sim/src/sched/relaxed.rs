//! Relaxed co-scheduling (systems.md, 3), over CFS: only the skew between siblings is bounded.
//!
//! A vCPU's *skew* grows while it waits for a CPU and a sibling runs, and shrinks while it runs and a
//! sibling waits, not below zero; a blocked vCPU has none. A vCPU with more than [`RelaxedTuning::threshold`] *lags*
//! until it has half of it. When one that lags waits, the VM is *held*: its siblings stop (co-stop) until
//! all that lag can start together, each on a CPU of its own; then it is *going*, and the others start
//! with them as far as they are due. Beyond the threshold and two looks nothing more is borne: then only
//! those that lag run, and losing a CPU holds the VM at once.
//!
//! ```text
//!   free --one that lags waits--> held --all that lag start--> going --nobody lags--> free
//!                                  ^---------one of them waits---'
//! ```
//! (`Alone`: going, and somebody is beyond those two looks.)
//!
//! They start when they are due: by the sum of how far they are ahead of the others on their CPUs, and
//! that a task must be behind to preempt (CFS's wake-up granularity, four times that if the other has
//! not had its least turn), or after [`PATIENCE`]. So the VM as a whole has its share. A VM whose vCPUs may not have a CPU each is
//! left to CFS.

use super::cfs::{Cfs, CfsTuning};
use super::{Pick, Scheduler};
use crate::context::{SchedContext, StopReason, Task, TaskId, TaskState, Waker};
use instep_check::Promises;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaxedTuning {
    /// Nanoseconds of skew that are borne: 3 ms (VMware's `CoSched.skewThreshold` of ESX 3).
    pub threshold: u64,
    /// Nanoseconds between two looks: 1 ms.
    pub period: u64,
    /// CFS's numbers.
    pub cfs: CfsTuning,
}

impl Default for RelaxedTuning {
    fn default() -> Self {
        Self { threshold: 3_000_000, period: 1_000_000, cfs: CfsTuning::default() }
    }
}

/// Nanoseconds after which a VM that is held starts although it is not due. Not published.
const PATIENCE: u64 = 30_000_000;

/// A vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    vm: usize,
    skew: u64,
    /// CPU time and time waited at the last look.
    ran: u64,
    waited: u64,
    /// Between two looks: CPU time and time waited.
    runs: u64,
    waits: u64,
    lags: bool,
    /// Stopped: runnable, but in no queue of CFS.
    stopped: bool,
}

/// Where a VM is. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gang {
    Free,
    Held,
    Going,
    Alone,
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Relaxed {
    rules: RelaxedTuning,
    cfs: Cfs,
    members: Vec<Member>,
    gangs: Vec<Gang>,
    /// Which VMs can have a CPU for each of their vCPUs.
    able: Vec<bool>,
    /// When each VM was held last.
    since: Vec<u64>,
    /// The task that runs next on each CPU, although another may be due.
    forced: Vec<Option<TaskId>>,
    /// Of a start that is tried: CPUs that are taken, and which task goes to which CPU.
    taken: Vec<bool>,
    plan: Vec<(TaskId, usize)>,
}

impl Relaxed {
    /// With these numbers.
    pub fn new(rules: RelaxedTuning) -> Self {
        Self {
            cfs: Cfs::new(rules.cfs),
            rules,
            members: Vec::new(),
            gangs: Vec::new(),
            able: Vec::new(),
            since: Vec::new(),
            forced: Vec::new(),
            taken: Vec::new(),
            plan: Vec::new(),
        }
    }

    fn lags(&self, task: TaskId) -> bool {
        self.members[task.ix()].lags
    }

    /// Whether it lags so far that nothing is borne any more.
    fn far(&self, task: TaskId) -> bool {
        self.members[task.ix()].skew > self.rules.threshold + 2 * self.rules.period
    }

    /// Brings the skews of a VM up to now, and says who lags.
    fn measure(&mut self, ctx: &SchedContext, vm: usize) {
        let (mut ran, mut waited) = (0, 0);
        for task in ctx.vms[vm].tasks() {
            let this = &mut self.members[task.ix()];
            let (all, queued) = (ctx.ran(task), ctx.waited(task));
            (this.runs, this.waits) = (all - this.ran, queued - this.waited);
            (this.ran, this.waited) = (all, queued);
            (ran, waited) = (ran.max(this.runs), waited.max(this.waits));
        }
        for task in ctx.vms[vm].tasks() {
            let this = &mut self.members[task.ix()];
            this.skew += this.waits.min(ran);
            this.skew = this.skew.saturating_sub(this.runs.min(waited));
            if ctx.task(task).state == TaskState::Blocked {
                this.skew = 0;
            }
            let least = if this.lags { self.rules.threshold / 2 } else { self.rules.threshold };
            this.lags = self.able[vm] && this.skew > least;
        }
    }

    /// Stops vCPUs that are ahead, starts those that lag, or lets all run.
    fn steer(&mut self, ctx: &mut SchedContext, vm: usize) {
        let aim = self.aim(ctx, vm);
        if aim == Gang::Free && self.gangs[vm] == Gang::Free {
            return;
        }
        let waits = |task| self.lags(task) && ctx.task(task).state == TaskState::Queued;
        let waiting = ctx.vms[vm].tasks().any(waits);
        let held = self.gangs[vm] == Gang::Held && waiting;
        self.gangs[vm] = if held { Gang::Held } else { aim };
        self.sort(ctx, vm, waiting || aim == Gang::Alone);
        if waiting && !self.start_together(ctx, vm, None) {
            self.stop(ctx, vm);
        } else if waiting {
            self.sort(ctx, vm, aim == Gang::Alone);
        }
    }

    /// Where a VM is if all of it that lag can run.
    fn aim(&self, ctx: &SchedContext, vm: usize) -> Gang {
        let tasks = || ctx.vms[vm].tasks();
        match tasks().any(|task| self.lags(task)) {
            false => Gang::Free,
            true if tasks().any(|task| self.far(task)) => Gang::Alone,
            true => Gang::Going,
        }
    }

    /// All have a place in a queue, or with `held` only those who lag.
    fn sort(&mut self, ctx: &mut SchedContext, vm: usize, held: bool) {
        for task in ctx.vms[vm].tasks() {
            let this = &mut self.members[task.ix()];
            let runs = this.lags || !held;
            match ctx.task(task).state {
                TaskState::Queued if runs && this.stopped => {
                    this.stopped = false;
                    self.cfs.unpark(ctx, task);
                }
                TaskState::Queued if !runs && !this.stopped => {
                    this.stopped = true;
                    self.cfs.park(ctx, task);
                }
                TaskState::Running if !runs => ctx.resched(ctx.task(task).cpu),
                _ => {}
            }
        }
    }

    /// Holds a VM: all of it that run choose again.
    fn stop(&mut self, ctx: &mut SchedContext, vm: usize) {
        // Held again after it was alone it has waited since it started, or it would for good.
        if let Gang::Free | Gang::Going = std::mem::replace(&mut self.gangs[vm], Gang::Held) {
            self.since[vm] = ctx.now;
        }
        for task in ctx.vms[vm].tasks() {
            if ctx.task(task).state == TaskState::Running {
                ctx.resched(ctx.task(task).cpu);
            }
        }
    }

    /// Whether all of a VM that lag can start now; if so each is next on its CPU. `choosing`: the CPU
    /// that is choosing what to run.
    fn start_together(
        &mut self,
        ctx: &mut SchedContext,
        vm: usize,
        choosing: Option<usize>,
    ) -> bool {
        let aim = self.aim(ctx, vm);
        // With nobody that lags the next look lets all run.
        if aim == Gang::Free || !self.plan(ctx, vm, aim) {
            return false;
        }
        self.gangs[vm] = aim;
        self.since[vm] = ctx.now;
        for at in 0..self.plan.len() {
            let (task, cpu) = self.plan[at];
            if std::mem::take(&mut self.members[task.ix()].stopped) {
                self.cfs.unpark(ctx, task);
            }
            self.cfs.bring(ctx, task, cpu);
            self.forced[cpu] = Some(task);
            if choosing != Some(cpu) {
                ctx.resched(cpu);
            }
        }
        true
    }

    /// Plans who of a VM runs where; whether it can be done and they are due. Who lags must start, the
    /// others start with them as far as that is due.
    fn plan(&mut self, ctx: &SchedContext, vm: usize, aim: Gang) -> bool {
        self.plan.clear();
        self.taken.fill(false);
        let mut ahead = 0;
        for task in ctx.vms[vm].tasks().filter(|task| self.members[task.ix()].lags) {
            if ctx.task(task).state == TaskState::Running {
                self.taken[ctx.task(task).cpu] = true;
                ahead += self.cfs.advance(ctx, task);
            }
        }
        let queued = |task: TaskId| ctx.task(task).state == TaskState::Queued;
        for must in [true, false] {
            for task in ctx.vms[vm].tasks() {
                if !queued(task) || self.lags(task) != must {
                    continue;
                }
                let Some(cpu) = self.seat(ctx, task) else {
                    // Another VM is about to start on what is left for it.
                    let left = |cpu: usize| !self.taken[cpu] && ctx.task(task).allowed.has(cpu);
                    if must && (0..self.taken.len()).any(left) {
                        return false;
                    }
                    continue;
                };
                let cost = self.cost(ctx, task, cpu);
                if must || (aim == Gang::Going && ahead + cost <= 0) {
                    ahead += cost;
                    self.taken[cpu] = true;
                    self.plan.push((task, cpu));
                }
            }
        }
        let held = self.gangs[vm] == Gang::Held && ctx.now - self.since[vm] > PATIENCE;
        ahead <= 0 || held
    }

    /// The CPU that a task would start on: its last one or the least loaded that is not taken; none if
    /// there are too few, and it takes turns.
    fn seat(&self, ctx: &SchedContext, task: TaskId) -> Option<usize> {
        let this = ctx.task(task);
        let free = |cpu: &usize| {
            !self.taken[*cpu] && this.allowed.has(*cpu) && self.forced[*cpu].is_none()
        };
        let lightest = || {
            let idle =
                |cpu: usize| ctx.current(cpu).is_none_or(|other| ctx.task(other).vm == this.vm);
            let all = (0..ctx.host.cpus()).filter(free);
            all.min_by_key(|cpu| (!idle(*cpu), self.cfs.weight(*cpu), *cpu))
        };
        Some(this.cpu).filter(free).or_else(lightest)
    }

    /// By how much virtual time a task would be ahead of what it is due, started on this CPU.
    fn cost(&mut self, ctx: &SchedContext, task: TaskId, cpu: usize) -> i64 {
        let (advance, vm) = (self.cfs.advance(ctx, task), ctx.task(task).vm);
        if ctx.current(cpu).is_none_or(|other| ctx.task(other).vm == vm) {
            return advance.min(0);
        }
        let early = if self.cfs.had_its_turn(ctx, cpu) { 1 } else { 4 };
        advance + early * self.cfs.granularity()
    }
}

/// Whether there is a CPU for each vCPU of a VM, those that may use the fewest first.
fn able(ctx: &SchedContext, vm: usize) -> bool {
    let mut tasks: Vec<TaskId> = ctx.vms[vm].tasks().collect();
    tasks.sort_by_key(|task| ctx.task(*task).allowed.count());
    let mut taken = vec![false; ctx.host.cpus()];
    tasks.into_iter().all(|task| {
        let free = ctx.task(task).allowed.iter().find(|cpu| !taken[*cpu]);
        free.is_some_and(|cpu| !std::mem::replace(&mut taken[cpu], true))
    })
}

impl Scheduler for Relaxed {
    fn name(&self) -> &'static str {
        "relaxed"
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        self.cfs.start(ctx);
        let member = |task: &Task| Member { vm: task.vm, ..Member::default() };
        self.members = ctx.tasks.iter().map(member).collect();
        self.gangs = vec![Gang::Free; ctx.vms.len()];
        self.since = vec![0; ctx.vms.len()];
        self.able = (0..ctx.vms.len()).map(|vm| able(ctx, vm)).collect();
        self.forced = vec![None; ctx.host.cpus()];
        self.taken = vec![false; ctx.host.cpus()];
        ctx.arm(0, self.rules.period);
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        if matches!(self.gangs[ctx.task(task).vm], Gang::Free | Gang::Going) {
            self.cfs.wake(ctx, task, by);
        } else {
            self.members[task.ix()].stopped = true;
        }
    }

    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        let this = &mut self.members[task.ix()];
        (this.skew, this.lags) = (0, false);
        self.cfs.block(ctx, cpu, task);
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        let vm = ctx.task(task).vm;
        // It spins for a sibling, which is stopped for its sake: it does not lag.
        if let StopReason::Yield(_) = why {
            let this = &mut self.members[task.ix()];
            (this.skew, this.lags) = (0, false);
        }
        if self.gangs[vm] == Gang::Alone && self.far(task) {
            self.stop(ctx, vm);
        }
        if !self.lags(task) && matches!(self.gangs[vm], Gang::Held | Gang::Alone) {
            self.members[task.ix()].stopped = true;
            self.cfs.block(ctx, cpu, task);
        } else {
            self.cfs.put(ctx, cpu, task, why);
        }
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        if let Some(vm) = self.cfs.first(cpu).map(|task| ctx.task(task).vm)
            && self.forced[cpu].is_none()
            && self.gangs[vm] == Gang::Held
            // Not while those that were stopped just now leave their CPUs.
            && self.since[vm] < ctx.now
        {
            self.start_together(ctx, vm, Some(cpu));
        }
        let (members, gangs) = (&self.members, &self.gangs);
        let may = |task: TaskId| match gangs[members[task.ix()].vm] {
            Gang::Free | Gang::Going => true,
            Gang::Held => false,
            Gang::Alone => members[task.ix()].lags,
        };
        let ready = |task: &TaskId| {
            let this = ctx.task(*task);
            may(*task) && this.state == TaskState::Queued && this.allowed.has(cpu)
        };
        let forced = self.forced[cpu].take().filter(ready);
        match forced.filter(|task| !members[task.ix()].stopped) {
            Some(task) => {
                // Balancing may have pulled it away.
                self.cfs.bring(ctx, task, cpu);
                Some(self.cfs.take(ctx, cpu, task))
            }
            None => self.cfs.pick_among(ctx, cpu, may),
        }
    }

    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.cfs.tick(ctx, cpu);
    }

    fn tick_period(&self) -> u64 {
        self.cfs.tick_period()
    }

    fn quantum(&self, cpus: usize) -> u64 {
        self.cfs.quantum(cpus)
    }

    fn timer(&mut self, ctx: &mut SchedContext, _id: u32) {
        for vm in 0..ctx.vms.len() {
            if ctx.vms[vm].count > 1 && !ctx.vms[vm].hidden {
                self.measure(ctx, vm);
                self.steer(ctx, vm);
            }
        }
        ctx.arm(0, ctx.now + self.rules.period);
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let vm = ctx.task(task).vm;
        self.able[vm] = able(ctx, vm);
        if !self.members[task.ix()].stopped {
            self.cfs.affinity_changed(ctx, task);
        }
    }

    fn work_conserving(&self) -> bool {
        false
    }

    fn promises(&self) -> Promises {
        // A vCPU that is stopped waits on a CPU that idles.
        Promises { woken: None, ..Promises::usual(false, self.tick_period()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ctx;
    use instep_check::mask::Mask;

    #[test]
    fn a_vm_without_a_cpu_for_each_vcpu_is_left_to_cfs() {
        let mut ctx = ctx(2, &[2, 3]);
        assert_eq!([able(&ctx, 0), able(&ctx, 1)], [true, false]);
        ctx.tasks[0].allowed = Mask::of(2, [1]);
        assert!(able(&ctx, 0));
        ctx.tasks[1].allowed = Mask::of(2, [1]);
        assert!(!able(&ctx, 0));
    }
}
