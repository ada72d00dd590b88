//! The policies that look at no load: `none`, `bind` (systems.md 4, hand binding) and `spread`
//! (systems.md 1, remedy c).
//!
//! They are what the others are measured against. They know nothing of memory.

use super::wish::{Wish, emulators_back, permitted};
use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Vm};
use crate::topology::{Node, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Leaves everything to the kernel and gives back what Instep had changed.
pub(crate) fn none(snapshot: &Snapshot) -> Vec<Wish> {
    let online = snapshot.topology.all_cpus();
    snapshot.vms.iter().map(|vm| Wish::give_back(vm, &online, Reason::PolicyNone)).collect()
}

/// Equal numbers of VMs per node: the k-th VM by id on node `k mod n` of those with CPUs.
pub(crate) fn bind(snapshot: &Snapshot, mend: &[Option<ConflictKind>]) -> Vec<Wish> {
    let topology = &snapshot.topology;
    let online = topology.all_cpus();
    let nodes: Vec<&Node> = topology.nodes().iter().filter(|node| !node.cpus.is_empty()).collect();
    if nodes.is_empty() {
        return none(snapshot);
    }
    snapshot
        .vms
        .iter()
        .enumerate()
        .map(|(turn, vm)| {
            let node = nodes[turn % nodes.len()];
            on_node(vm, node, &online, mend[turn].is_some(), Reason::InTurn { node: node.id, turn })
        })
        .collect()
}

/// A VM's vCPUs on all permitted CPUs of one node; the VM is left to the kernel when some vCPU
/// may use none of them. Emulator threads are given back.
pub(crate) fn on_node(vm: &Vm, node: &Node, online: &CpuSet, mend: bool, why: Reason) -> Wish {
    let mut vcpus = Vec::with_capacity(vm.vcpus.len());
    for vcpu in &vm.vcpus {
        let may = permitted(vm, vcpu, online, mend);
        let cpus = may.and(&node.cpus);
        if cpus.is_empty() {
            let why = Reason::NodeNotPermitted { node: node.id, permitted: may };
            return Wish::give_back(vm, online, why);
        }
        vcpus.push(cpus);
    }
    let emulators = emulators_back(vm, online, &why);
    Wish { selected: true, home: NodeSet::one(node.id), why, vcpus, emulators, memory: Vec::new() }
}

/// One CPU of every core for every VM, so that its vCPUs never compete for a core's units. A VM
/// with more vCPUs than cores it may use is left alone: halving its CPUs would cost more. So is one
/// whose vCPUs may use different CPUs of one core.
pub(crate) fn spread(snapshot: &Snapshot, mend: &[Option<ConflictKind>]) -> Vec<Wish> {
    let topology = &snapshot.topology;
    let online = topology.all_cpus();
    let per_core = |cpus: &CpuSet| one_cpu_per_core(topology, cpus);
    // Most vCPUs may use the same CPUs.
    let mut known = BTreeMap::new();
    let spread_one = |(vm, mend): (&Vm, &Option<ConflictKind>)| {
        let may = |vcpu| permitted(vm, vcpu, &online, mend.is_some());
        let vcpus: Vec<CpuSet> = vm
            .vcpus
            .iter()
            .map(|vcpu| known.entry(may(vcpu)).or_insert_with_key(per_core).clone())
            .collect();
        let all = vcpus.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
        let uniform = vcpus.first() == Some(&all);
        let cores = if uniform { all.len() } else { per_core(&all).len() };
        if cores < vm.vcpus.len() || vcpus.iter().any(CpuSet::is_empty) {
            let why = Reason::FewerCoresThanVcpus { vcpus: vm.vcpus.len(), cores };
            return Wish::give_back(vm, &online, why);
        }
        if cores < all.len() {
            let why = Reason::SiblingsPermitted { cpus: all.len(), cores };
            return Wish::give_back(vm, &online, why);
        }
        let why = Reason::OneCpuPerCore { cores };
        let emulators = emulators_back(vm, &online, &why);
        Wish { selected: true, home: NodeSet::new(), why, vcpus, emulators, memory: Vec::new() }
    };
    snapshot.vms.iter().zip(mend).map(spread_one).collect()
}

/// The lowest CPU of each core in `cpus`.
fn one_cpu_per_core(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    let mut seen = BTreeSet::new();
    cpus.iter().filter(|id| topology.cpu(*id).is_some_and(|cpu| seen.insert(cpu.core))).collect()
}
