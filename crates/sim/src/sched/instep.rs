//! Instep's own scheduler: bpf/'s C as the kernel runs it, compiled natively, on `instep-scx`'s
//! sched_ext. Here only the two hosts are made to agree: the simulated tasks and CPUs, and the kernel's.
//!
//! Ticks come every 4 ms (HZ 250), slices end at ticks, as under sched_ext. Tasks that belong to no VM
//! are the host's; those of them that are bound to a CPU are kernel threads. Times that calls of the
//! scheduler take are not simulated.

mod agent;

use super::{Pick, Scheduler, Tuner};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use crate::host::Host;
use instep_abi::WITHOUT;
use instep_check::mask::Mask;
use instep_check::{Promises, Share, WaitBound};
use instep_scx::abi::{CpuMask, PF_KTHREAD};
use instep_scx::instep::{Cgroup, Instep as Native, NativeVm, Settings, limits};
use instep_scx::{Machine, Release, TaskSetup, Waker as By};

/// Which bpf/ it is: a hash of its sources.
pub const SOURCES: &str = instep_scx::SOURCES;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstepTuning {
    /// What the scheduler is told.
    pub settings: Settings,
    /// 1 s / HZ: 4 ms.
    pub tick: u64,
}

impl Default for InstepTuning {
    fn default() -> Self {
        Self { settings: Settings::default(), tick: 4_000_000 }
    }
}

/// The timer of user space; 0 is the scheduler's own.
const AGENT: u32 = 1;

/// For how long the kernel has been up when a run begins: an hour, nanoseconds. To the scheduler whoever
/// comes has been away for longer than an allocation period, however long that is.
const UPTIME: u64 = 3_600_000_000_000;

impl InstepTuning {
    pub(super) fn tuned(tuner: &mut Tuner<'_>) -> Self {
        let mut rules = Self::default();
        let set = &mut rules.settings;
        tuner.set("slice", &mut set.slice);
        tuner.set("slot", &mut set.slot);
        tuner.set("wake_slack", &mut set.wake_slack);
        tuner.set("lag", &mut set.lag);
        tuner.set("period", &mut set.period);
        tuner.set("tick", &mut rules.tick);
        for (bit, name) in WITHOUT.into_iter().enumerate() {
            let mut is_off = false;
            tuner.switch(name, &mut is_off);
            rules.settings.without |= u32::from(is_off) << bit;
        }
        rules
    }
}

/// The scheduler.
#[derive(Debug)]
pub struct Instep {
    rules: InstepTuning,
    /// There from [`Scheduler::start`] on.
    native: Option<Native>,
    /// Running tasks that may not stay where they are.
    leaving: Vec<bool>,
    /// When the scheduler's own timer is set for.
    alarm: Option<u64>,
    /// Where VMs are at home, before the start.
    homes: Vec<Option<u32>>,
    /// User space, where there is something to tell once a second.
    agent: Option<agent::Agent>,
    /// Tasks that were made and have not ended.
    there: Vec<bool>,
}

/// The cgroups and what lies in each, as the kernel has it before the scheduler comes.
fn put_into_cgroups(native: &mut Native, ctx: &SchedContext) {
    for (own, number) in ctx.cgroups.iter().zip(1..) {
        let shares = u64::from(own.weight) * Cgroup::SHARES / 100;
        let shares = if own.idle { Cgroup::IDLE_SHARES } else { shares };
        native.set_cgroup(number, &Cgroup { above: own.above, shares, limit: own.limit });
    }
    for (task, this) in ctx.tasks.iter().enumerate() {
        native.put_into(task, ctx.vms[this.vm].cgroup);
    }
}

fn cpu_mask(mask: &Mask) -> CpuMask {
    CpuMask::of(mask.iter())
}

impl Instep {
    /// With these numbers.
    pub fn new(rules: InstepTuning) -> Self {
        Self {
            rules,
            native: None,
            leaving: Vec::new(),
            alarm: None,
            homes: Vec::new(),
            agent: None,
            there: Vec::new(),
        }
    }

    /// Calls the kernel, and takes over what came of it.
    fn call<R>(
        &mut self,
        ctx: &mut SchedContext,
        call: impl FnOnce(&mut Native, u64) -> R,
    ) -> Option<R> {
        let native = self.native.as_mut()?;
        let result = call(native, UPTIME + ctx.now);
        while let Some((task, cpu)) = native.take_moved() {
            let task = TaskId(task as u32);
            if ctx.task(task).state != TaskState::Running {
                ctx.assign(task, cpu);
            }
        }
        while let Some(cpu) = native.kernel().take_resched() {
            ctx.resched(cpu);
        }
        let alarm = native.kernel().next_timer().map(|at| at.saturating_sub(UPTIME));
        if alarm != self.alarm {
            self.alarm = alarm;
            match alarm {
                Some(at) => ctx.arm(0, at.max(ctx.now)),
                None => ctx.disarm(0),
            }
        }
        Some(result)
    }

    fn set_affinity(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let allowed = cpu_mask(&ctx.task(task).allowed);
        self.call(ctx, |native, now| native.kernel().set_affinity(task.ix(), &allowed, now));
    }
}

impl Scheduler for Instep {
    fn name(&self) -> &'static str {
        "instep"
    }

    fn fits(&self, host: &Host, vcpus: &[usize]) -> Result<(), String> {
        let room = limits();
        let most = vcpus.iter().max().copied().unwrap_or(0);
        let all: usize = vcpus.iter().sum();
        if host.cpus() > room.cpus
            || vcpus.len() > room.vms
            || all > room.vcpus
            || most > room.vcpus_of_one
        {
            return Err(format!(
                "scheduler instep: at most {} CPUs, {} VMs, {} vCPUs and {} of one VM (bpf/intf.h)",
                room.cpus, room.vms, room.vcpus, room.vcpus_of_one
            ));
        }
        Ok(())
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        let host = &ctx.host;
        let machine = Machine {
            core: host.core.iter().map(|core| host.cores[*core].iter().collect()).collect(),
            node: host.node.iter().map(|node| *node as i32).collect(),
        };
        let task = |task: &crate::context::Task| TaskSetup {
            allowed: cpu_mask(&task.allowed),
            cpu: task.cpu,
            flags: match ctx.vms[task.vm].hidden && task.allowed.count() == 1 {
                true => PF_KTHREAD,
                false => 0,
            },
        };
        let tasks: Vec<TaskSetup> = ctx.tasks.iter().map(task).collect();
        let shown = ctx.vms.iter().filter(|vm| vm.is_vm());
        let vm = |vm: &crate::context::VmTasks| NativeVm {
            weight: vm.weight,
            own: vm.own,
            first: vm.first as usize,
            count: vm.count as usize,
            later: !vm.is_there,
        };
        let vms: Vec<NativeVm> = shown.map(vm).collect();
        let seed = ctx.rng.draw();
        let settings = &self.rules.settings;
        let native =
            Native::prepare(machine, &host.lanes, &tasks, &vms, settings, seed, Release::V7_2);
        let mut native = native.expect("the plan was checked for room");
        put_into_cgroups(&mut native, ctx);
        native.load().expect("nothing speaks against it");
        self.native = Some(native);
        self.there = ctx.tasks.iter().map(|task| ctx.vms[task.vm].is_there).collect();
        self.leaving = vec![false; ctx.tasks.len()];
        if !ctx.cgroups.is_empty() || ctx.has_changes {
            self.agent = Some(agent::Agent::new(ctx));
            ctx.arm(AGENT, 0);
        }
        for (vm, home) in std::mem::take(&mut self.homes).into_iter().enumerate() {
            self.set_home(vm, home);
        }
        self.call(ctx, |_, _| ());
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker) {
        let own = ctx.task(task).cpu;
        let by = match by {
            Waker::Sibling(waker) if ctx.task(waker).state == TaskState::Running => {
                By::Task(ctx.task(waker).cpu)
            }
            Waker::Timer => By::Interrupt(own),
            Waker::Sibling(_) | Waker::Start | Waker::Io => By::Other(own),
        };
        if !std::mem::replace(&mut self.there[task.ix()], true) {
            self.call(ctx, |native, now| native.fork(task.ix(), own, now));
            return;
        }
        self.call(ctx, |native, now| native.kernel().wake(task.ix(), by, now));
    }

    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId) {
        self.call(ctx, |native, now| native.kernel().block(cpu, now));
        if std::mem::take(&mut self.leaving[task.ix()]) {
            self.set_affinity(ctx, task);
        }
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        if std::mem::take(&mut self.leaving[task.ix()]) {
            self.set_affinity(ctx, task);
        } else if let StopReason::Yield(Some(to)) = why {
            // Without anybody to yield to KVM enters the guest again (kvm_vcpu_on_spin).
            self.call(ctx, |native, now| native.kernel().yield_to(cpu, Some(to.ix()), now));
        }
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        let task = self.call(ctx, |native, now| {
            native.kernel().schedule(cpu, now);
            native.current(cpu)
        });
        let task = task.flatten().map(|task| TaskId(task as u32))?;
        Some(Pick { task, slice: u64::MAX })
    }

    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.call(ctx, |native, now| native.kernel().tick(cpu, now));
    }

    fn tick_period(&self) -> u64 {
        self.rules.tick
    }

    fn quantum(&self, _cpus: usize) -> u64 {
        self.rules.settings.slice
    }

    fn keeps_cgroups(&self) -> bool {
        true
    }

    fn ends(&mut self, ctx: &mut SchedContext, task: TaskId) {
        if std::mem::take(&mut self.there[task.ix()]) {
            self.call(ctx, |native, now| native.kernel().exit(task.ix(), now));
        }
    }

    fn timer(&mut self, ctx: &mut SchedContext, id: u32) {
        if id == AGENT {
            if let Some((agent, native)) = self.agent.as_mut().zip(self.native.as_mut()) {
                agent.update_weights(native, ctx, &self.there);
            }
            ctx.arm(AGENT, ctx.now + agent::LOOK);
            return;
        }
        self.alarm = None;
        self.call(ctx, |native, now| while native.kernel().fire_timer(0, now) {});
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId) {
        let this = ctx.task(task);
        let cpu = this.cpu;
        if this.state == TaskState::Running && !this.allowed.has(cpu) {
            self.leaving[task.ix()] = true;
            ctx.resched(cpu);
        } else {
            self.set_affinity(ctx, task);
        }
    }

    fn set_home(&mut self, vm: usize, node: Option<u32>) {
        match &mut self.native {
            Some(native) => native.set_home(vm, node),
            None => {
                self.homes.resize(self.homes.len().max(vm + 1), None);
                self.homes[vm] = node;
            }
        }
    }

    fn failed(&self) -> Option<String> {
        self.native.as_ref().and_then(Native::ejected)
    }

    fn promises(&self) -> Promises {
        let usual = Promises::usual(true, self.rules.tick);
        let slack = 2 * (self.rules.settings.slice + self.rules.tick);
        // Gangs exclude each other, and what fits beside one runs uncharged (docs/dispatch.md, "Fair shares"): a VM has at
        // least half of its share, and may have more than it.
        let share = Share { percent: 50, slack, more: true, ..Share::default() };
        Promises { share: Some(share), wait_bound: Some(WaitBound { each: 100_000_000 }), ..usual }
    }
}
