//! The rules of xen/common/sched_credit.c, each as a small case whose outcome was worked out by hand from
//! the source of 4.1.3, 4.4.1 and 4.17.7 (the heads of the files above say what each function does). A case names
//! the function it comes from and the rule; the comment above it is the calculation.

mod account;
mod caps;
mod place;
mod schedule;

use super::*;
use crate::params::XenRelease::{self, V4_1_3, V4_4_1, V4_17};
use crate::testing;

const US: u64 = 1000;
const ALL: &[XenRelease] = &[V4_1_3, V4_4_1, V4_17];
const OLD: &[XenRelease] = &[V4_1_3];
const MIDDLE: &[XenRelease] = &[V4_4_1];
const NEW: &[XenRelease] = &[V4_4_1, V4_17];
const NEWEST: &[XenRelease] = &[V4_17];
const BEFORE: &[XenRelease] = &[V4_1_3, V4_4_1];

type Case = testing::Case<XenRelease, Board>;

fn hold(cases: &[Case]) {
    testing::hold(cases, Board);
}

/// A release, on which hosts are made.
struct Board(XenRelease);

impl Board {
    /// One package of so many CPUs, no two of a core.
    fn cpus(self, cpus: u32, vms: &[u32]) -> Xen {
        self.host([1, cpus, 1], vms)
    }

    /// Packages, which are nodes, cores of each and threads of each core; vCPUs of each VM.
    fn host(self, [packages, cores, threads]: [u32; 3], vms: &[u32]) -> Xen {
        let mut ctx = testing::ctx_of(testing::host(packages, cores, threads), vms);
        ctx.xen = self.0;
        let mut credit = Credit::new(CreditTuning { slop: Some(0), ..CreditTuning::default() });
        credit.start(&mut ctx);
        Xen { ctx, credit, slice: 0 }
    }
}

/// A host with its scheduler. vCPUs have numbers from 0, VM by VM.
struct Xen {
    ctx: SchedContext,
    credit: Credit,
    /// Of the last choice, nanoseconds.
    slice: u64,
}

impl Xen {
    fn svc(&mut self, task: u32) -> &mut Svc {
        &mut self.credit.svcs[task as usize]
    }

    /// Runs on this CPU from now on, with this priority.
    fn runs(mut self, task: u32, cpu: usize, pri: Pri) -> Self {
        self.svc(task).pri = pri;
        self.begin(TaskId(task), cpu);
        self.credit.switch(&self.ctx, cpu, Some(TaskId(task)));
        self
    }

    fn begin(&mut self, task: TaskId, cpu: usize) {
        self.ctx.assign(task, cpu);
        self.ctx.begin(task, cpu);
    }

    /// Waits in this CPU's queue, at its place.
    fn waits(mut self, task: u32, cpu: usize, pri: Pri) -> Self {
        self.svc(task).pri = pri;
        self.ctx.assign(TaskId(task), cpu);
        self.ctx.tasks[task as usize].state = TaskState::Queued;
        self.credit.insert(&self.ctx, TaskId(task));
        self
    }

    /// Waits at the end of this CPU's queue, whatever its priority: as accounting may leave it.
    fn last(mut self, task: u32, cpu: usize, pri: Pri) -> Self {
        self = self.waits(task, cpu, Pri::Over);
        self.svc(task).pri = pri;
        self
    }

    /// Blocked; this CPU is where it was last.
    fn blocked(mut self, task: u32, cpu: usize, pri: Pri) -> Self {
        self.svc(task).pri = pri;
        self.ctx.assign(TaskId(task), cpu);
        self
    }

    fn allowed(mut self, task: u32, cpus: &[usize]) -> Self {
        let all = self.ctx.host.cpus();
        self.ctx.tasks[task as usize].allowed = Mask::of(all, cpus.iter().copied());
        self
    }

    fn prefers(mut self, task: u32, cpus: &[usize]) -> Self {
        let all = self.ctx.host.cpus();
        self.ctx.tasks[task as usize].preferred = Mask::of(all, cpus.iter().copied());
        self.credit.prefers = true;
        self
    }

    /// Active, with so many credits: VMs in the order of accounting.
    fn active(mut self, vms: &[(usize, &[i64])]) -> Self {
        for (vm, credits) in vms.iter().rev() {
            let first = self.ctx.vms[*vm].first;
            for (at, credit) in credits.iter().enumerate() {
                let task = TaskId(first + at as u32);
                self.credit.activate(*vm, task);
                self.credit.svcs[task.ix()].credit = *credit;
            }
        }
        self
    }

    fn weights(mut self, weights: &[u32]) -> Self {
        for (vm, weight) in self.ctx.vms.iter_mut().zip(weights) {
            vm.weight = *weight;
        }
        self
    }

    fn caps(mut self, caps: &[u32]) -> Self {
        for (vm, cap) in self.ctx.vms.iter_mut().zip(caps) {
            vm.cap = *cap;
        }
        self
    }

    fn balance(mut self, balance: i64) -> Self {
        self.credit.balance = balance;
        self
    }

    fn accounted(mut self) -> Self {
        self.credit.account(&mut self.ctx);
        self
    }

    /// Time passes.
    fn after(mut self, ns: u64) -> Self {
        self.ctx.now += ns;
        self
    }

    fn tick(mut self, cpu: usize) -> Self {
        self.credit.tick(&mut self.ctx, cpu);
        self
    }

    fn wakes(mut self, task: u32, by: Waker) -> Self {
        self.ctx.ready(TaskId(task));
        self.credit.wake(&mut self.ctx, TaskId(task), by);
        self
    }

    /// CPU `cpu` chooses.
    fn chooses(mut self, cpu: usize, why: StopReason) -> Self {
        let pick = testing::choose((&mut self.ctx, &mut self.credit), cpu, why);
        self.chose(pick)
    }

    /// The vCPU on `cpu` blocks, and the CPU chooses.
    fn blocks(mut self, cpu: usize) -> Self {
        let pick = testing::block((&mut self.ctx, &mut self.credit), cpu);
        self.chose(pick)
    }

    fn chose(mut self, pick: Option<Pick>) -> Self {
        self.slice = pick.map_or(self.slice, |pick| pick.slice);
        self
    }

    /// What runs on the CPU that chose last, and its slice in us.
    fn chosen(self, cpu: usize) -> String {
        match self.ctx.running[cpu] {
            Some(task) => format!("{} for {} us", task.0, self.slice / US),
            None => "nobody".to_owned(),
        }
    }

    fn pri_of(&self, task: u32) -> Pri {
        self.credit.svcs[task as usize].pri
    }

    fn credits(&self, tasks: u32) -> Vec<i64> {
        (0..tasks).map(|task| self.credit.svcs[task as usize].credit).collect()
    }

    fn queue(&self, cpu: usize) -> Vec<u32> {
        self.credit.pcpus[cpu].queue.iter().map(|task| task.0).collect()
    }

    /// CPUs that are told to choose again, and of these those whose vCPU is to look for another CPU.
    fn resched_cpus(&self) -> String {
        let leaves = |cpu: &usize| {
            self.ctx.running[*cpu].is_some_and(|task| self.credit.svcs[task.ix()].migrating)
        };
        let cpus: Vec<usize> = self.ctx.pending.iter().collect();
        let leaving: Vec<usize> = cpus.iter().copied().filter(leaves).collect();
        if leaving.is_empty() {
            format!("{cpus:?}")
        } else {
            format!("{cpus:?}, {leaving:?} leaves")
        }
    }

    /// To which CPU a vCPU goes that looks for one.
    fn goes(mut self, task: u32) -> String {
        self.picked(task, true).to_string()
    }

    fn picked(&mut self, task: u32, commit: bool) -> usize {
        self.credit.cpu_pick(&self.ctx, TaskId(task), commit)
    }
}
