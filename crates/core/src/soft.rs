//! The second affinity of a hypervisor that has two (Xen; systems.md 1): which CPUs draw a VM's vCPUs among those
//! that they may use, when that works against the first, and what it should be instead.
//!
//! Xen looks for a CPU twice, first in the soft and the hard affinity, then in the hard one. A soft affinity that
//! holds only a part of the hard one therefore crowds that part. One that holds none of it is ignored, and memory
//! still comes from the nodes of the node affinity. It knows no commands and not who set what.

use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::snapshot::Vm;
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// CPUs and nodes that draw a VM, now and before Instep first touched them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftAffinity {
    /// The soft affinity of each vCPU, by index; CPUs outside its hard affinity have no effect.
    pub vcpus: BTreeMap<u32, CpuSet>,
    /// The node affinity: where the VM's memory comes from.
    pub nodes: NodeSet,
    /// What each vCPU had before; equals `vcpus` if Instep never changed it.
    pub initial_vcpus: BTreeMap<u32, CpuSet>,
    /// What the VM had before; equals `nodes` if Instep never changed it.
    pub initial_nodes: NodeSet,
}

/// What draws a VM, for each of its vCPUs and for its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) vcpus: BTreeMap<u32, CpuSet>,
    pub(crate) nodes: NodeSet,
}

impl SoftAffinity {
    fn now(&self) -> Drawn {
        Drawn { vcpus: self.vcpus.clone(), nodes: self.nodes.clone() }
    }

    fn before(&self) -> Drawn {
        Drawn { vcpus: self.initial_vcpus.clone(), nodes: self.initial_nodes.clone() }
    }
}

/// What of the VM's soft affinity works against what its vCPUs may use now.
pub(crate) fn find(topology: &Topology, vm: &Vm) -> Vec<ConflictKind> {
    let Some(soft) = &vm.soft else { return Vec::new() };
    let hard: Vec<CpuSet> = vm.vcpus.iter().map(|vcpu| vcpu.allowed.clone()).collect();
    conflicts(topology, vm, &hard, &soft.now())
}

/// What shall draw a VM whose vCPUs are to have these hard affinities, and the conflict that is mended so; `None`
/// for a VM without soft affinity. What was found stays where it is no conflict. A conflict that Instep itself
/// would make by placing the VM is avoided, one that was there is mended only if `mend`.
pub(crate) fn wanted(
    topology: &Topology,
    vm: &Vm,
    hard: &[CpuSet],
    mend: bool,
) -> Option<(Drawn, Option<ConflictKind>)> {
    let before = vm.soft.as_ref()?.before();
    let mut found = conflicts(topology, vm, hard, &before);
    let is_placed = vm.vcpus.iter().zip(hard).any(|(vcpu, hard)| vcpu.initial != *hard);
    if found.is_empty() || !(is_placed || mend) {
        return Some((before, None));
    }
    let all = hard.iter().fold(CpuSet::new(), |all, hard| all.or(hard));
    let nodes = topology.nodes_of(&all);
    let cpus = topology.cpus_of(&nodes);
    // Where only memory comes from elsewhere, vCPUs keep what they prefer.
    let is_of_vcpus =
        |kind: &ConflictKind| !matches!(kind, ConflictKind::NodeAffinityElsewhere { .. });
    let vcpus = match found.iter().any(is_of_vcpus) {
        true => vm.vcpus.iter().map(|vcpu| (vcpu.index, cpus.clone())).collect(),
        false => before.vcpus,
    };
    let mended = Drawn { vcpus, nodes };
    Some((mended, (!is_placed).then(|| found.swap_remove(0))))
}

/// What is at odds when a VM has these hard affinities and is drawn so.
fn conflicts(topology: &Topology, vm: &Vm, hard: &[CpuSet], drawn: &Drawn) -> Vec<ConflictKind> {
    let online = topology.all_cpus();
    let pool = vm.cpuset.and(&online);
    let mut misses = Group::default();
    let mut outside = Group::default();
    let mut all = Group::default();
    for (vcpu, hard) in vm.vcpus.iter().zip(hard) {
        let Some(soft) = drawn.vcpus.get(&vcpu.index) else { continue };
        let (hard, soft) = (hard.and(&online), soft.and(&online));
        all.add(vcpu.index, &hard, &soft);
        if soft.is_empty() || hard.is_empty() {
            continue;
        }
        if !soft.intersects(&hard) {
            outside.add(vcpu.index, &hard, &soft);
        } else if hard != pool && !hard.is_subset(&soft) {
            misses.add(vcpu.index, &hard, &soft);
        }
    }
    let mut found = Vec::new();
    let drawn_to = all.soft.and(&all.hard);
    let is_crowded = !drawn_to.is_empty() && drawn_to.len() < vm.vcpus.len();
    if misses.vcpus.is_empty() && is_crowded && drawn_to.len() < all.hard.len() {
        misses = all.clone();
    }
    if !misses.vcpus.is_empty() {
        let Group { vcpus, hard, soft } = misses;
        let (crowded, missed) = (soft.and(&hard), hard.minus(&soft));
        found.push(ConflictKind::SoftMissesAllowed { vcpus, crowded, missed });
    }
    if !outside.vcpus.is_empty() {
        let Group { vcpus, hard: allowed, soft } = outside;
        found.push(ConflictKind::SoftOutsideAllowed { vcpus, soft, allowed });
    }
    let allowed = topology.nodes_of(&all.hard);
    if !allowed.is_empty() && !drawn.nodes.is_empty() && !drawn.nodes.intersects(&allowed) {
        let nodes = drawn.nodes.clone();
        found.push(ConflictKind::NodeAffinityElsewhere { nodes, allowed });
    }
    found
}

/// Some vCPUs, and what they may use and prefer together.
#[derive(Clone, Default)]
struct Group {
    vcpus: Vec<u32>,
    hard: CpuSet,
    soft: CpuSet,
}

impl Group {
    fn add(&mut self, vcpu: u32, hard: &CpuSet, soft: &CpuSet) {
        self.vcpus.push(vcpu);
        self.hard = self.hard.or(hard);
        self.soft = self.soft.or(soft);
    }
}
