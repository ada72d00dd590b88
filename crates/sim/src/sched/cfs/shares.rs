//! Groups of CFS 3.19 (kernel/sched/fair.c), one for each VM, where no two siblings share a CPU. A VM's entity on a CPU then holds
//! one vCPU, so that a vCPU with the weight of that entity comes to the same as both levels. What an entity weighs is the VM's weight
//! times its part of the VM's load (calc_cfs_shares). Load of other CPUs is averaged, and known as it was told last.
//!
//! * `__update_entity_runnable_avg`: a vCPU's load is 1024 times the runnable part of its past; a new
//!   one was always runnable.
//! * `__update_cfs_rq_tg_load_contrib`: a VM's load is the sum of its queues' last reports, and smaller
//!   changes than an eighth are not reported when a vCPU wakes or sleeps.
//! * `calc_cfs_shares`: a runnable vCPU weighs its VM's weight, times 1024, over the VM's load. At least
//!   2.
//! * `update_cfs_shares`: when it wakes, and at ticks while it runs.
//! * `entity_tick`: the running vCPU's load is reported at ticks. A wait counts when it has run.
//! * `update_blocked_averages`: what is left of a sleeper's load is reported when its CPU balances, or
//!   goes idle and looks for tasks. A busy one of 16 CPUs balances after 0.5 to 1.6 s. Until then the
//!   sleeper counts as it did when it fell asleep.
//!
//! Assumed: runnable time counts in whole periods of 2^20 ns, by the state at their end.

use super::average::decayed;
use super::{Cfs, UNIT};
use crate::context::{SchedContext, TaskId, TaskState};

/// An average of a task that was always runnable: its weight, with 20 bits more.
const FULL: u64 = UNIT << 20;
/// MIN_SHARES.
const LEAST: u64 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Vcpu {
    is_runnable: bool,
    /// For how much of the past it was runnable, weighted by how long that is ago.
    average: u64,
    /// The period in which that was brought up to date.
    period: u64,
    /// What of it is in the VM's load (tg_load_contrib).
    told: u64,
}

/// The loads of all VMs.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    vms: Vec<u64>,
    vcpus: Vec<Vcpu>,
}

impl Shares {
    pub(super) fn new(vms: usize, tasks: usize) -> Self {
        Self { vms: vec![0; vms], vcpus: vec![Vcpu::default(); tasks] }
    }

    /// __update_entity_runnable_avg. The vCPU is runnable from now on, or not.
    fn set_runnable(&mut self, task: TaskId, now: u64, is_runnable: bool) {
        let vcpu = &mut self.vcpus[task.ix()];
        let period = now >> 20;
        let periods = period - std::mem::replace(&mut vcpu.period, period);
        vcpu.average = match vcpu.is_runnable {
            true => FULL - decayed(FULL - vcpu.average, periods),
            false => decayed(vcpu.average, periods),
        };
        vcpu.is_runnable = is_runnable;
    }

    /// __update_cfs_rq_tg_load_contrib: a change of no more than an eighth is told at ticks only.
    fn tell(&mut self, vm: usize, task: TaskId, is_tick: bool) {
        let vcpu = &mut self.vcpus[task.ix()];
        let load = vcpu.average >> 20;
        if is_tick || load.abs_diff(vcpu.told) > vcpu.told / 8 {
            self.vms[vm] = self.vms[vm] - vcpu.told + load;
            vcpu.told = load;
        }
    }

    /// calc_cfs_shares, of a runnable vCPU whose VM weighs `all`.
    fn weight(&self, vm: usize, task: TaskId, all: u64) -> u64 {
        let load = self.vms[vm] - self.vcpus[task.ix()].told + UNIT;
        (all * UNIT / load).clamp(LEAST, all)
    }
}

impl Cfs {
    /// A vCPU is about to come into its queue (update_cfs_shares in enqueue_entity). One that is new counts as always runnable
    /// so far (init_task_runnable_average).
    pub(super) fn share_woken(&mut self, ctx: &SchedContext, task: TaskId, is_new: bool) {
        let vm = ctx.task(task).vm;
        let Some(shares) = self.shares.as_mut().filter(|_| ctx.vms[vm].is_vm()) else { return };
        shares.set_runnable(task, ctx.now, true);
        if is_new {
            shares.vcpus[task.ix()].average = FULL;
        }
        shares.tell(vm, task, false);
        self.entities[task.ix()].weight = shares.weight(vm, task, Self::weight_of(ctx, vm));
    }

    /// A vCPU has left its queue to sleep.
    pub(super) fn share_blocked(&mut self, ctx: &SchedContext, task: TaskId) {
        let vm = ctx.task(task).vm;
        if let Some(shares) = self.shares.as_mut().filter(|_| ctx.vms[vm].is_vm()) {
            shares.set_runnable(task, ctx.now, false);
            shares.tell(vm, task, false);
        }
    }

    /// A tick of `cpu`: the load of the running vCPU is told, and its weight follows (entity_tick). A vCPU that waits has the load
    /// with which it came: its wait counts when it has run.
    pub(super) fn share_tick(&mut self, ctx: &SchedContext, cpu: usize) {
        let Some(shares) = &mut self.shares else { return };
        let runs = ctx.current(cpu).map(|task| (task, ctx.task(task).vm));
        if let Some((task, vm)) = runs.filter(|(_, vm)| ctx.vms[*vm].is_vm()) {
            shares.set_runnable(task, ctx.now, true);
            shares.tell(vm, task, true);
            let weight = shares.weight(vm, task, Self::weight_of(ctx, vm));
            let old = std::mem::replace(&mut self.entities[task.ix()].weight, weight);
            self.queues[cpu].weight = self.queues[cpu].weight - old + weight;
        }
    }

    /// `cpu` is about to balance: what became of the loads of vCPUs that sleep there is told (update_blocked_averages). Until then
    /// they count as when they fell asleep.
    pub(super) fn share_sleepers(&mut self, ctx: &SchedContext, cpu: usize) {
        let Some(shares) = &mut self.shares else { return };
        let vcpus = ctx.vms.iter().enumerate().filter(|(_, vm)| vm.is_vm());
        for (vm, task) in vcpus.flat_map(|(at, vm)| vm.tasks().map(move |task| (at, task))) {
            if ctx.task(task).cpu == cpu {
                if ctx.task(task).state == TaskState::Blocked {
                    shares.set_runnable(task, ctx.now, false);
                }
                shares.tell(vm, task, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::Scheduler;
    use crate::sched::cfs::CfsTuning;
    use crate::testing;

    /// A period of 1024 us, as the kernel counts it: 2^20 ns.
    const PERIOD: u64 = 1 << 20;
    const A: TaskId = TaskId(0);
    const B: TaskId = TaskId(1);

    fn both_always_runnable() -> Shares {
        let mut shares = Shares::new(1, 2);
        for task in [A, B] {
            shares.set_runnable(task, 0, true);
            shares.vcpus[task.ix()].average = FULL;
            shares.tell(0, task, false);
        }
        shares
    }

    #[test]
    fn vcpu_that_is_alone_weighs_as_its_vm_and_two_have_half_each() {
        let mut shares = both_always_runnable();
        assert_eq!(
            (shares.vms[0], shares.weight(0, A, 1024), shares.weight(0, B, 1024)),
            (2048, 512, 512)
        );
        assert_eq!(shares.weight(0, A, 2048), 1024, "a VM of twice the weight");
        // After 64 periods of sleep a quarter of 1024 is left, which is told at a tick: 1024 * 1024 / 1280.
        shares.set_runnable(B, 0, false);
        shares.set_runnable(B, 64 * PERIOD, false);
        shares.tell(0, B, true);
        assert_eq!(shares.weight(0, A, 1024), 819);
        // For ever: all of it.
        shares.set_runnable(B, 5000 * PERIOD, false);
        shares.tell(0, B, true);
        assert_eq!(shares.weight(0, A, 1024), 1024);
        // A vCPU that wakes counts with its whole weight, whatever its average: 1024 * 1024 / (1024 + 1024).
        shares.set_runnable(B, 5000 * PERIOD, true);
        shares.tell(0, B, false);
        assert_eq!(shares.weight(0, B, 1024), 512);
        assert_eq!(
            shares.weight(0, A, 1024),
            1024,
            "of which the other CPU learns when it is told"
        );
    }

    #[test]
    fn small_change_of_load_is_reported_at_ticks_only() {
        let mut shares = both_always_runnable();
        // Four periods leave 2^(-4/32) of 1024, 939: 85 less, and an eighth is 128. After eight 861 are left, 163 less.
        shares.set_runnable(B, 0, false);
        shares.set_runnable(B, 4 * PERIOD, false);
        shares.tell(0, B, false);
        assert_eq!((shares.vcpus[1].average >> 20, shares.vms[0]), (939, 2048));
        shares.set_runnable(B, 8 * PERIOD, false);
        shares.tell(0, B, false);
        assert_eq!(shares.vms[0], 1024 + 861);
        // It is runnable again: half of what 1024 lacks is made up after 32 periods, 861 + 163 / 2.
        shares.set_runnable(B, 8 * PERIOD, true);
        shares.set_runnable(B, 40 * PERIOD, true);
        shares.tell(0, B, true);
        assert_eq!(shares.vms[0], 1024 + 942);
    }

    /// entity_tick updates the running vCPU only.
    #[test]
    fn wait_of_a_vcpu_counts_when_it_has_run() {
        let mut ctx = testing::ctx_of(testing::host(1, 1, 1), &[1, 1]);
        let tuning = CfsTuning { has_groups: true, ..CfsTuning::default() };
        let mut cfs = Cfs::new(tuning);
        cfs.start(&mut ctx);
        for task in [A, B] {
            let shares = cfs.shares.as_mut().expect("there are groups");
            let vcpu = &mut shares.vcpus[task.ix()];
            (vcpu.is_runnable, vcpu.average) = (true, FULL / 4);
            shares.tell(task.ix(), task, false);
            ctx.assign(task, 0);
        }
        cfs.queues[0].weight = 2 * UNIT;
        ctx.begin(A, 0);
        ctx.tasks[B.ix()].state = TaskState::Queued;
        ctx.now = 32 * PERIOD;
        cfs.share_tick(&ctx, 0);
        // Half of the three quarters that 1024 lacks: 256 + 384.
        assert_eq!(cfs.shares.as_ref().expect("there are groups").vms[..2], [640, 256]);
        ctx.tasks[A.ix()].state = TaskState::Queued;
        ctx.begin(B, 0);
        cfs.share_tick(&ctx, 0);
        assert_eq!(cfs.shares.as_ref().expect("there are groups").vms[..2], [640, 640]);
    }
    /// update_blocked_averages comes with rebalance_domains. Of two CPUs a busy one balances after 32 times 2 ms, and as it finds
    /// nothing, after 32 times 4 ms then.
    #[test]
    fn sleep_of_a_vcpu_counts_when_its_cpu_balances() {
        let mut ctx = testing::ctx_of(testing::host(1, 2, 1), &[2, 1]);
        ctx.linux = crate::params::LinuxRelease::V3_19;
        let mut cfs = Cfs::new(CfsTuning { has_groups: true, ..CfsTuning::default() });
        cfs.start(&mut ctx);
        for (task, cpu) in [(A, 0), (B, 1), (TaskId(2), 1)] {
            ctx.assign(task, cpu);
        }
        for task in [A, B] {
            cfs.share_woken(&ctx, task, true);
        }
        for (task, cpu) in [(A, 0), (TaskId(2), 1)] {
            ctx.begin(task, cpu);
            ctx.count(task);
            cfs.queues[cpu].weight = UNIT;
        }
        cfs.share_blocked(&ctx, B);
        let mut load_at = |ms: u64| {
            ctx.now = ms * 1_000_000;
            cfs.tick(&mut ctx, 1);
            cfs.shares.as_ref().expect("there are groups").vms[0]
        };
        // Of 1024 are left after 61 periods 1024 * 2^(-61/32), after 183 1024 * 2^(-183/32).
        let loads = [60, 64, 188, 192].map(&mut load_at);
        assert_eq!(loads, [2048, 1024 + 273, 1024 + 273, 1024 + 19]);
    }
}
