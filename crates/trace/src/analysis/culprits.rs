//! What ran while each VM waited: every nanosecond that a vCPU waits on a CPU's queue is charged to
//! the group that occupies that CPU then. What is charged to the VM itself is the loss by stacking,
//! what is charged to an idle CPU, or to nobody
//! between waking and queueing, the latency of wake-ups.
//!
//! Beside the sum over vCPUs each wait counts once for each CPU on which it was: two vCPUs that wait a second on one CPU
//! wait two seconds together, on one second of that CPU. The kernel counts throttled time so.

use super::world::{FIRST_VM, IDLE, SchedState, UNKNOWN, WAKING, World};
use instep_core::units::{CpuId, Nanos};

/// Waits of a VM or of some of its vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// Summed over vCPUs.
    pub(super) ns: u64,
    /// Summed over CPUs: time in which one vCPU at least waited there.
    pub(super) on_cpus_ns: u64,
}

/// Waits by what occupied the CPU meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByOccupant<T> {
    pub(super) idle: T,
    pub(super) others: T,
    pub(super) siblings: T,
}

/// Time waited by VM and group.
#[derive(Debug)]
pub(super) struct Culprits {
    vms: Vec<CulpritTally>,
    /// Of each vCPU.
    vcpus: Vec<ByOccupant<u64>>,
    /// The number of this charge, by which a VM knows its own first vCPU in it.
    charge: u64,
}

#[derive(Clone, Debug, Default)]
struct CulpritTally {
    groups: Vec<Waited>,
    /// The last charge with a vCPU of this VM, and the longest wait in it.
    charge: u64,
    longest: u64,
}

impl Culprits {
    pub(super) fn new(vms: usize, vcpus: usize) -> Self {
        let vms = vec![CulpritTally::default(); vms];
        Culprits { vms, vcpus: vec![ByOccupant::default(); vcpus], charge: 0 }
    }

    /// Charges all who wait on this CPU up to now: called before its occupant changes.
    pub(super) fn charge_waiting(&mut self, world: &mut World, cpu: CpuId, time: Nanos) {
        let World { cpus, vcpus, .. } = world;
        let Some(state) = cpus.get(cpu.0 as usize) else { return };
        let group = if state.is_known { state.group } else { UNKNOWN };
        self.charge += 1;
        for at in &state.waiting {
            let vcpu = &mut vcpus[*at];
            let span = time.since(vcpu.charged);
            vcpu.charged = vcpu.charged.max(time);
            self.add(vcpu.vm, *at, group, span);
        }
    }

    /// Charges one vCPU up to now: called before it leaves a queue. All others there are charged, too, so that the waits of each
    /// charge end together.
    pub(super) fn settle_one(&mut self, world: &mut World, vcpu: usize, time: Nanos) {
        match world.vcpus[vcpu].place {
            SchedState::Waiting(cpu) => self.charge_waiting(world, cpu, time),
            SchedState::Waking => {
                let state = &mut world.vcpus[vcpu];
                let span = time.since(state.charged);
                state.charged = state.charged.max(time);
                self.charge += 1;
                self.add(state.vm, vcpu, WAKING, span);
            }
            _ => {}
        }
    }

    /// Groups and times of a VM's waits, the longest first.
    pub(super) fn of(&self, vm: usize) -> Vec<(usize, Nanos)> {
        let groups = self.vms[vm].groups.iter().enumerate();
        let mut list: Vec<(usize, Nanos)> = groups
            .filter(|(_, waited)| waited.ns > 0)
            .map(|(group, waited)| (group, Nanos(waited.ns)))
            .collect();
        list.sort_by_key(|(group, time)| (std::cmp::Reverse(*time), *group));
        list
    }

    /// A VM's waits by what occupied the CPU.
    pub(super) fn by_occupant(&self, vm: usize) -> ByOccupant<Waited> {
        let mut sums = ByOccupant::<Waited>::default();
        for (group, waited) in self.vms[vm].groups.iter().enumerate() {
            let sum = sums.of(vm, group);
            sum.ns = sum.ns.saturating_add(waited.ns);
            sum.on_cpus_ns = sum.on_cpus_ns.saturating_add(waited.on_cpus_ns);
        }
        sums
    }

    /// The same of a vCPU.
    pub(super) fn of_vcpu(&self, vcpu: usize) -> ByOccupant<u64> {
        self.vcpus[vcpu]
    }

    /// A wait of this charge. They end together, so that the longest of a VM's holds the others.
    fn add(&mut self, vm: usize, vcpu: usize, group: usize, span: Nanos) {
        let of_vcpu = self.vcpus[vcpu].of(vm, group);
        *of_vcpu = of_vcpu.saturating_add(span.0);
        let vm = &mut self.vms[vm];
        if vm.charge != self.charge {
            (vm.charge, vm.longest) = (self.charge, 0);
        }
        let more = span.0.saturating_sub(vm.longest);
        vm.longest += more;
        if vm.groups.len() <= group {
            vm.groups.resize(group + 1, Waited::default());
        }
        let waited = &mut vm.groups[group];
        waited.ns = waited.ns.saturating_add(span.0);
        waited.on_cpus_ns = waited.on_cpus_ns.saturating_add(more);
    }
}

impl<T> ByOccupant<T> {
    /// What stands for a group, seen from a VM.
    fn of(&mut self, vm: usize, group: usize) -> &mut T {
        match group {
            IDLE => &mut self.idle,
            group if group == FIRST_VM + vm => &mut self.siblings,
            _ => &mut self.others,
        }
    }
}
