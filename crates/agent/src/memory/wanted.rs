//! Whether a decision wants memory at a place, asked for or not: memory on its way goes on while its
//! VM's home stays, and an idle host brings home only what has one.

use super::Owner;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::Vm;
use instep_core::topology::Topology;
use instep_core::units::VmId;
use std::collections::BTreeMap;

/// What a decision says of memory and of where vCPUs are to be.
pub(crate) struct Wanted<'a> {
    topology: &'a Topology,
    asked: BTreeMap<Owner, &'a NodeSet>,
    given: BTreeMap<(VmId, u32), &'a CpuSet>,
    verdicts: BTreeMap<VmId, &'a Verdict>,
}

impl<'a> Wanted<'a> {
    /// By this decision.
    pub(crate) fn by(decision: &'a Decision, topology: &'a Topology) -> Self {
        let (mut asked, mut given) = (BTreeMap::new(), BTreeMap::new());
        for action in &decision.actions {
            match action {
                Action::MoveMemory { vm, guest_node, to, .. } => {
                    asked.insert((*vm, *guest_node), to);
                }
                Action::SetVcpuAffinity { vm, vcpu, cpus, .. } => {
                    given.insert((*vm, *vcpu), cpus);
                }
                Action::SetEmulatorAffinity { .. } | Action::SetSoftAffinity { .. } => {}
            }
        }
        let verdicts = decision.vms.iter().map(|verdict| (verdict.vm, verdict)).collect();
        Self { topology, asked, given, verdicts }
    }

    /// Whether memory of the VM, or of one of its guest's nodes, is wanted on `to`: as an action
    /// says, else by where the VM or the vCPUs of the guest's node are to be, as far as the memory
    /// may lie there.
    pub(crate) fn is_on(&self, to: &NodeSet, vm: &Vm, guest_node: Option<u32>) -> bool {
        if let Some(asked) = self.asked.get(&(vm.id, guest_node)) {
            return *asked == to;
        }
        let Some(verdict) = self.verdicts.get(&vm.id).filter(|verdict| verdict.selected) else {
            return false;
        };
        let within = |bound: &Option<NodeSet>, home: NodeSet| match bound {
            Some(bound) => home.and(bound),
            None => home,
        };
        let Some(number) = guest_node else {
            return within(&vm.memory_bound, verdict.home.clone()) == *to;
        };
        let Some(node) = vm.guest_nodes.iter().find(|node| node.id == number) else { return false };
        // On one home node all vCPUs are at home, those that are not bound to it, too.
        let nodes = match verdict.home.len() {
            1 => verdict.home.clone(),
            _ => self.topology.nodes_of(&self.cpus_of(vm, &node.vcpus)),
        };
        let home = within(&node.bound, within(&vm.memory_bound, nodes));
        !home.is_empty() && home.is_subset(to)
    }

    /// The CPUs that these vCPUs of a VM will have.
    fn cpus_of(&self, vm: &Vm, vcpus: &[u32]) -> CpuSet {
        let its = vm.vcpus.iter().filter(|vcpu| vcpus.contains(&vcpu.index));
        its.fold(CpuSet::new(), |all, vcpu| {
            let given = self.given.get(&(vm.id, vcpu.index));
            all.or(given.copied().unwrap_or(&vcpu.allowed))
        })
    }
}
