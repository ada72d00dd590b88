//! Credits: what running costs, what accounting pays, and whom it pays at all.
//!
//! **Credits.** A slice of 30 ms is worth 300 credits. Each CPU yields 300 every 30 ms.
//!
//! * `burn_credits`: 10 credits a millisecond, rounded to the nearest (4.1.3) or down with the rest
//!   kept.
//! * `csched_acct`, VMs: all CPUs' credits and the last sum's debt are divided by weight times active
//!   vCPUs, at most 300 each and a part of that debt. What a VM may not take goes to the next VMs. With
//!   nobody active the balance becomes 0.
//! * `csched_acct`, cap: in per cent of 300 credits. A vCPU that owes more than its part is parked until
//!   out of debt.
//! * `csched_acct`, vCPU: equal parts. Below 0 a vCPU is OVER, else UNDER. Debt stops at 300; above 300
//!   a vCPU becomes inactive.
//! * `csched_vcpu_acct`: at a tick the running vCPU loses BOOST and burns credits. It becomes active, or
//!   moves to a better CPU.
//! * `__csched_vcpu_acct_start`: a VM that becomes active goes to the front.
//! * `csched_tick`: calls `csched_vcpu_acct` and `csched_runq_sort` every 10 ms (4.1.3: up to 50 us
//!   late).

use super::{Credit, MASTER, MS, PER_MS, Pri};
use crate::context::{SchedContext, TaskId, TaskState};
use crate::params::XenRelease;

impl Credit {
    /// Credits of a vCPU that runs for a whole slice (`credits_per_tslice`).
    pub(super) fn full(&self) -> i64 {
        (self.rules.slice / (MS / PER_MS)).max(1) as i64
    }

    /// `burn_credits`: 4.1.3 rounds to the nearest credit, later ones carry what they did not count. All pay
    /// for whole credits, of which some may be ahead of the time that was had.
    pub(super) fn burn(&mut self, ctx: &SchedContext, task: TaskId) {
        let svc = &mut self.svcs[task.ix()];
        let Some(delta) = ctx.ran(task).checked_sub(svc.paid).filter(|delta| *delta > 0) else {
            return;
        };
        let credits = match ctx.xen {
            XenRelease::V4_1_3 => (delta * PER_MS + MS / 2) / MS,
            XenRelease::V4_4_1 | XenRelease::V4_17 => {
                let value = delta * PER_MS + svc.residual;
                svc.residual = value % MS;
                value / MS
            }
        };
        svc.credit -= credits as i64;
        svc.paid += credits * MS / PER_MS;
    }

    /// `csched_acct`: hands out the credits of a period by weight and active vCPUs.
    pub(super) fn account(&mut self, ctx: &mut SchedContext) {
        let weight = |ctx: &SchedContext, vm: usize, counts: &[u32]| {
            i64::from(ctx.vms[vm].weight) * i64::from(counts[vm])
        };
        let weights: i64 = self.active.iter().map(|vm| weight(ctx, *vm, &self.counts)).sum();
        if weights == 0 {
            self.balance = 0;
            return;
        }
        let owed = (-self.balance).max(0);
        let (full, mut left) = (self.full(), weights);
        // What VMs owe is handed out once more, so that the balance comes back to zero.
        let mut total = full * ctx.host.cpus() as i64 + owed;
        let (mut balance, mut extra) = (0, false);
        // What goes to the front was passed already: places from `at` on stay.
        for at in 0..self.active.len() {
            let vm = self.active[at];
            let (own, count) = (weight(ctx, vm, &self.counts), i64::from(self.counts[vm]));
            left -= own;
            let mut peak = count * full + divided_up(owed * own, weights);
            let cap = divided_up(i64::from(ctx.vms[vm].cap) * full, 100);
            if cap > 0 {
                peak = peak.min(cap);
            }
            let debt = (cap > 0).then(|| divided_up(cap, count));
            let mut fair = divided_up(total * own, weights);
            if fair < peak {
                extra = true;
            } else {
                if left != 0 {
                    total += divided_up((fair - peak) * weights, left);
                }
                if extra {
                    // A VM that leaves credits goes to the front, so that others get them next time.
                    self.active[..=at].rotate_right(1);
                }
                fair = peak;
            }
            balance += self.pay(ctx, vm, divided_up(fair, count), debt);
        }
        self.active.retain(|vm| self.counts[*vm] > 0);
        self.balance = balance;
        self.sort += 1;
    }

    /// Adds `fair` credits to every active vCPU of a VM; what they have then. Those of a capped VM are parked when
    /// they owe more than `debt`.
    pub(super) fn pay(
        &mut self,
        ctx: &mut SchedContext,
        vm: usize,
        fair: i64,
        debt: Option<i64>,
    ) -> i64 {
        let (full, mut balance) = (self.full(), 0);
        for task in ctx.vms[vm].tasks() {
            let svc = &mut self.svcs[task.ix()];
            if !svc.active {
                continue;
            }
            svc.credit += fair;
            if svc.credit < 0 {
                svc.pri = Pri::Over;
                let parks = debt.is_some_and(|debt| svc.credit < -debt) && !svc.parked;
                svc.credit = svc.credit.max(-full);
                if parks {
                    self.park(ctx, task);
                }
            } else {
                svc.pri = Pri::Under;
                if svc.parked {
                    self.unpark(ctx, task);
                }
                let svc = &mut self.svcs[task.ix()];
                if svc.credit > full {
                    // It does not use what it gets: it earns no more until a tick finds it running.
                    svc.active = false;
                    self.counts[vm] -= 1;
                    svc.credit /= 2;
                }
            }
            balance += self.svcs[task.ix()].credit;
        }
        balance
    }

    /// `vcpu_pause_nosync`: the vCPU leaves its queue or its CPU.
    fn park(&mut self, ctx: &mut SchedContext, task: TaskId) {
        self.svcs[task.ix()].parked = true;
        let (state, cpu) = (ctx.task(task).state, ctx.task(task).cpu);
        match state {
            TaskState::Running => ctx.resched(cpu),
            TaskState::Queued => {
                self.unqueue(cpu, task);
            }
            TaskState::Blocked => {}
        }
    }

    /// `vcpu_unpause`, on the CPU that accounts. The flag is to spare a vCPU that wakes its BOOST; 4.4.1 clears it
    /// too early.
    fn unpark(&mut self, ctx: &mut SchedContext, task: TaskId) {
        if ctx.xen == XenRelease::V4_4_1 {
            self.svcs[task.ix()].parked = false;
        }
        if ctx.task(task).state == TaskState::Queued {
            self.enqueue_woken(ctx, task, MASTER);
        }
        self.svcs[task.ix()].parked = false;
    }

    /// `csched_vcpu_acct`: what a tick does to the vCPU that runs.
    pub(super) fn account_running(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        let vm = ctx.task(task).vm;
        let svc = &mut self.svcs[task.ix()];
        if svc.pri == Pri::Boost {
            svc.pri = Pri::Under;
        }
        self.burn(ctx, task);
        if !self.svcs[task.ix()].active {
            self.activate(vm, task);
        } else if self.cpu_pick(ctx, task, false) != cpu {
            self.svcs[task.ix()].migrating = true;
            ctx.resched(cpu);
        }
    }

    /// `__csched_vcpu_acct_start`: it earns from now on; a VM that is new goes to the front.
    pub(super) fn activate(&mut self, vm: usize, task: TaskId) {
        self.svcs[task.ix()].active = true;
        self.counts[vm] += 1;
        if self.counts[vm] == 1 {
            self.active.insert(0, vm);
        }
    }
}

fn divided_up(value: i64, by: i64) -> i64 {
    (value + by - 1) / by
}
