//! The state of every vCPU and CPU while events go by, and the time accounted to each state.
//!
//! Turns scheduling facts into [`VcpuChange`]s of vCPUs, which the measures see. Threads that run no
//! vCPU matter only as who occupied a CPU; they are put into groups by VM or by name.

use super::discover::FoundVm;
use crate::event::{Comm, Left, MAX_CPUS};
use crate::tid_map::TidMap;
pub(super) use instep_core::measure::skew::{SchedState, VcpuChange};
use instep_core::units::{CpuId, Nanos, Tid};
use std::collections::BTreeMap;

/// One vCPU.
#[derive(Clone, Debug)]
pub(super) struct VcpuState {
    pub(super) vm: usize,
    pub(super) index: u32,
    pub(super) tid: Tid,
    pub(super) place: SchedState,
    pub(super) since: Nanos,
    pub(super) run: Nanos,
    pub(super) wait: Nanos,
    pub(super) blocked: Nanos,
    /// Up to when its present wait was charged to who ran instead.
    pub(super) charged: Nanos,
    /// Whether the trace names its thread, with an event or without.
    pub(super) is_told: bool,
}

/// One CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpu {
    /// The group that runs; [`UNKNOWN`] before the first switch.
    pub(super) group: usize,
    pub(super) is_known: bool,
    /// Who the last switch put here, and when.
    pub(super) thread: Option<(Tid, Nanos)>,
    /// vCPUs on its queue.
    pub(super) waiting: Vec<usize>,
}

/// Groups that are always there.
pub(super) const UNKNOWN: usize = 0;
pub(super) const IDLE: usize = 1;
/// Not a group of threads: waits between waking and queueing.
pub(super) const WAKING: usize = 2;
/// The groups of VMs follow.
pub(super) const FIRST_VM: usize = 3;

/// More groups of host threads than any report shows; the rest is one.
const MAX_GROUPS: usize = 4096;
/// Threads that are told apart.
const MAX_THREADS: usize = 1 << 20;

/// A thread as an occupant of CPUs.
#[derive(Clone, Copy, Debug)]
struct OccupantThread {
    vcpu: Option<u32>,
    group: u32,
    /// Whether the group is settled, so that a name does not change it.
    is_fixed: bool,
}

/// Everything that is followed.
#[derive(Debug)]
pub(super) struct World {
    pub(super) vms: Vec<FoundVm>,
    /// vCPUs of each VM.
    pub(super) members: Vec<Vec<usize>>,
    pub(super) vcpus: Vec<VcpuState>,
    pub(super) cpus: Vec<Cpu>,
    /// Names of groups.
    pub(super) groups: Vec<String>,
    by_name: BTreeMap<String, usize>,
    index: TidMap,
    who: Vec<OccupantThread>,
    /// First and last time of a scheduling event.
    pub(super) begin: Nanos,
    pub(super) now: Nanos,
}

impl World {
    pub(super) fn new(vms: Vec<FoundVm>, begin: Nanos) -> Self {
        let mut groups = vec!["(unknown)".to_owned(), "(idle)".to_owned(), "(waking)".to_owned()];
        groups.extend(vms.iter().map(|vm| vm.name.clone()));
        let mut world = World {
            members: vec![Vec::new(); vms.len()],
            vcpus: Vec::new(),
            cpus: Vec::new(),
            groups,
            by_name: BTreeMap::new(),
            index: TidMap::default(),
            who: Vec::new(),
            begin,
            now: begin,
            vms,
        };
        world.put(Tid(0), OccupantThread { vcpu: None, group: IDLE as u32, is_fixed: true });
        for vm in 0..world.vms.len() {
            for (index, tid) in world.vms[vm].vcpus.clone() {
                let vcpu = world.vcpus.len();
                world.vcpus.push(VcpuState::new(vm, index, Tid(tid), begin));
                world.members[vm].push(vcpu);
                let group = (FIRST_VM + vm) as u32;
                world.put(
                    Tid(tid),
                    OccupantThread { vcpu: Some(vcpu as u32), group, is_fixed: true },
                );
            }
        }
        world
    }

    fn put(&mut self, tid: Tid, who: OccupantThread) {
        match self.index.get(tid) {
            Some(at) => self.who[at] = who,
            None if self.who.len() < MAX_THREADS && self.index.set(tid, self.who.len()) => {
                self.who.push(who);
            }
            None => {}
        }
    }

    /// The vCPU that a thread runs.
    #[inline]
    pub(super) fn vcpu_of(&self, tid: Tid) -> Option<usize> {
        let who = self.who.get(self.index.get(tid)?)?;
        who.vcpu.map(|vcpu| vcpu as usize)
    }

    /// The group of a thread.
    #[inline]
    pub(super) fn group_of(&self, tid: Tid) -> usize {
        self.index
            .get(tid)
            .and_then(|at| self.who.get(at))
            .map_or(UNKNOWN, |who| who.group as usize)
    }

    /// The group that stands for a VM's other threads, or the VM itself.
    pub(super) fn vm_of_group(&self, group: usize) -> Option<usize> {
        if let Some(vm) = group.checked_sub(FIRST_VM).filter(|vm| *vm < self.vms.len()) {
            return Some(vm);
        }
        let name = self.groups.get(group)?;
        self.vms.iter().position(|vm| emulator(vm) == *name)
    }

    /// The trace knows this thread.
    pub(super) fn note_named(&mut self, tid: Tid) {
        if let Some(vcpu) = self.vcpu_of(tid) {
            self.vcpus[vcpu].is_told = true;
        }
    }

    /// A thread has this name.
    pub(super) fn named(&mut self, tid: Tid, name: Comm) {
        if self.index.get(tid).is_some_and(|at| self.who[at].is_fixed) {
            return;
        }
        let name = name.to_string();
        let vhost = name.strip_prefix("vhost-").and_then(|pid| pid.parse::<u32>().ok());
        let owner = vhost.and_then(|pid| self.vms.iter().find(|vm| vm.pid == Some(pid)));
        let group = match owner {
            Some(vm) => emulator(vm),
            // kworker/3:1-mm, migration/3: one group over all CPUs.
            None => name.split('/').next().unwrap_or(&name).to_owned(),
        };
        let group = self.group(group) as u32;
        self.put(
            tid,
            OccupantThread { vcpu: None, group, is_fixed: owner_known(vhost, &self.vms) },
        );
    }

    /// A thread is of this process.
    pub(super) fn member(&mut self, tid: Tid, tgid: Tid) {
        if self.index.get(tid).is_some_and(|at| self.who[at].is_fixed) {
            return;
        }
        let owner = self.vms.iter().find(|vm| vm.pid == Some(tgid.0));
        if let Some(name) = owner.map(emulator) {
            let group = self.group(name) as u32;
            self.put(tid, OccupantThread { vcpu: None, group, is_fixed: true });
        }
    }

    fn group(&mut self, name: String) -> usize {
        if let Some(group) = self.by_name.get(&name) {
            return *group;
        }
        let name = if self.groups.len() >= MAX_GROUPS { "(others)".to_owned() } else { name };
        let next = self.groups.len();
        let group = *self.by_name.entry(name.clone()).or_insert(next);
        if group == next {
            self.groups.push(name);
        }
        group
    }

    /// The CPU with this number; those met first are made.
    #[inline]
    pub(super) fn cpu(&mut self, cpu: CpuId) -> &mut Cpu {
        let at = cpu.0.min(MAX_CPUS - 1) as usize;
        if self.cpus.len() <= at {
            self.cpus.resize_with(at + 1, Cpu::default);
        }
        &mut self.cpus[at]
    }

    /// Moves a vCPU, accounts the time in its last state, and says what changed; `None` when
    /// nothing did.
    #[inline]
    pub(super) fn go(&mut self, vcpu: usize, to: SchedState, time: Nanos) -> Option<VcpuChange> {
        let state = &mut self.vcpus[vcpu];
        let (from, since) = (state.place, state.since);
        if from == to {
            return None;
        }
        let span = time.since(since);
        match from {
            SchedState::Running(_) => state.run.0 += span.0,
            SchedState::Waking | SchedState::Waiting(_) => state.wait.0 += span.0,
            SchedState::Blocked => state.blocked.0 += span.0,
            SchedState::Unknown => {}
        }
        (state.place, state.since, state.charged) = (to, time, time);
        let vm = state.vm;
        if let SchedState::Waiting(cpu) = from {
            self.cpu(cpu).waiting.retain(|waiting| *waiting != vcpu);
        }
        if let SchedState::Waiting(cpu) = to {
            self.cpu(cpu).waiting.push(vcpu);
        }
        Some(VcpuChange { time, vcpu, vm, from, to, since })
    }

    /// The state in which a thread that left a CPU is.
    pub(super) fn after(left: Left, cpu: CpuId) -> SchedState {
        match left {
            Left::Runnable => SchedState::Waiting(cpu),
            _ => SchedState::Blocked,
        }
    }
}

impl VcpuState {
    fn new(vm: usize, index: u32, tid: Tid, begin: Nanos) -> Self {
        let zero = Nanos(0);
        let (run, wait, blocked) = (zero, zero, zero);
        let place = SchedState::Unknown;
        VcpuState {
            vm,
            index,
            tid,
            place,
            since: begin,
            run,
            wait,
            blocked,
            charged: begin,
            is_told: false,
        }
    }
}

fn owner_known(vhost: Option<u32>, vms: &[FoundVm]) -> bool {
    vhost.is_some() && vms.iter().any(|vm| vm.pid == vhost)
}

/// The name of the group of a VM's threads that run no vCPU.
fn emulator(vm: &FoundVm) -> String {
    format!("{} (other threads)", vm.name)
}
