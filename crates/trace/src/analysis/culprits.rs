//! Who ran while each VM waited: every nanosecond that a vCPU waits on a CPU's queue is charged to
//! the group that occupies that CPU then. What is charged to the VM itself is the loss by stacking,
//! what is charged to an idle CPU, or to nobody
//! between waking and queueing, the latency of wake-ups.

use super::world::{Place, UNKNOWN, WAKING, World};
use instep_core::units::{CpuId, Nanos};

/// Time waited by VM and group.
#[derive(Debug)]
pub(super) struct Culprits {
    vms: Vec<Vec<u64>>,
}

impl Culprits {
    pub(super) fn new(vms: usize) -> Self {
        Culprits { vms: vec![Vec::new(); vms] }
    }

    /// Charges all who wait on this CPU up to now: called before its occupant changes.
    pub(super) fn charge_waiting(&mut self, world: &mut World, cpu: CpuId, time: Nanos) {
        let World { cpus, vcpus, .. } = world;
        let Some(state) = cpus.get(cpu.0 as usize) else { return };
        let group = if state.is_known { state.group } else { UNKNOWN };
        for vcpu in &state.waiting {
            let vcpu = &mut vcpus[*vcpu];
            let span = time.since(vcpu.charged);
            vcpu.charged = vcpu.charged.max(time);
            add(&mut self.vms[vcpu.vm], group, span);
        }
    }

    /// Charges one vCPU up to now: called before it leaves a queue.
    pub(super) fn settle_one(&mut self, world: &mut World, vcpu: usize, time: Nanos) {
        let group = match world.vcpus[vcpu].place {
            Place::Waiting(cpu) => {
                let state = world.cpu(cpu);
                if state.is_known { state.group } else { UNKNOWN }
            }
            Place::Waking => WAKING,
            _ => return,
        };
        let vcpu = &mut world.vcpus[vcpu];
        let span = time.since(vcpu.charged);
        vcpu.charged = vcpu.charged.max(time);
        add(&mut self.vms[vcpu.vm], group, span);
    }

    /// Groups and times of a VM's waits, the longest first.
    pub(super) fn of(&self, vm: usize) -> Vec<(usize, Nanos)> {
        let mut list: Vec<(usize, Nanos)> = self.vms[vm]
            .iter()
            .enumerate()
            .filter(|(_, time)| **time > 0)
            .map(|(group, time)| (group, Nanos(*time)))
            .collect();
        list.sort_by_key(|(group, time)| (std::cmp::Reverse(*time), *group));
        list
    }
}

fn add(row: &mut Vec<u64>, group: usize, span: Nanos) {
    if row.len() <= group {
        row.resize(group + 1, 0);
    }
    row[group] = row[group].saturating_add(span.0);
}
