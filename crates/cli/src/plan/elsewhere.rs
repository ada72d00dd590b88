//! `instep plan --for FILE`: these VMs on another host, before they migrate there.
//!
//! Affinities do not survive a migration to a host of another shape (systems.md 1): the VMs are taken to arrive
//! without any, and the plan says what to give them there. It does not know what else runs on that host.

use instep_core::decision::{Action, Decision};
use instep_core::idset::CpuSet;
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::soft::SoftAffinity;
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The VMs of a snapshot as they would arrive on the host of this topology, and what they lose on the way.
pub(super) fn arrived(snapshot: &Snapshot, topology: Topology) -> (Snapshot, Vec<String>) {
    let topology = Arc::new(topology);
    let all = topology.all_cpus();
    let lost = snapshot.vms.iter().filter_map(|vm| lost(vm, &snapshot.topology, &all)).collect();
    let vms = snapshot.vms.iter().map(|vm| arriving(vm, &topology, &all)).collect();
    let there = Snapshot {
        topology,
        isolated: CpuSet::new(),
        other_busy: Nanos(0),
        opaque: Vec::new(),
        vms,
        ..snapshot.clone()
    };
    (there, lost)
}

/// What is decided there, without moves of memory: it comes to the VM's home as the VM arrives.
pub(super) fn without_moves(mut decision: Decision) -> Decision {
    decision.actions.retain(|action| !matches!(action, Action::MoveMemory { .. }));
    decision
}

fn arriving(vm: &Vm, topology: &Topology, all: &CpuSet) -> Vm {
    let mut new = vm.clone();
    for vcpu in &mut new.vcpus {
        (vcpu.cpu, vcpu.allowed, vcpu.initial) = (None, all.clone(), all.clone());
    }
    for emulator in &mut new.emulators {
        (emulator.allowed, emulator.initial) = (all.clone(), all.clone());
    }
    // It lies nowhere yet, and needs room all the same.
    let memory = Bytes(vm.memory.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)));
    new.memory = BTreeMap::from([(NodeId(u32::MAX), memory)]);
    new.guest_nodes.iter_mut().for_each(|node| (node.resident, node.bound) = Default::default());
    let nodes: instep_core::idset::NodeSet = topology.nodes().iter().map(|node| node.id).collect();
    let vcpus: BTreeMap<u32, CpuSet> =
        new.vcpus.iter().map(|vcpu| (vcpu.index, all.clone())).collect();
    new.soft = vm.soft.as_ref().map(|_| SoftAffinity {
        initial_vcpus: vcpus.clone(),
        vcpus,
        initial_nodes: nodes.clone(),
        nodes,
    });
    Vm {
        cpuset: all.clone(),
        memory_bound: None,
        preferred: None,
        devices: Vec::new(),
        placed: Default::default(),
        ..new
    }
}

/// Which affinity a VM has here that it will not have there, and whether it could have it at all.
fn lost(vm: &Vm, here: &Topology, there: &CpuSet) -> Option<String> {
    let all = here.all_cpus();
    let cpus = vm.allowed();
    let is_pinned = vm.vcpus.iter().any(|vcpu| vcpu.allowed != vm.cpuset.and(&all));
    let missing = cpus.minus(there);
    let why = if missing.is_empty() {
        "they may be of another node there".to_owned()
    } else {
        format!("CPUs {missing} are not there")
    };
    is_pinned.then(|| {
        format!("{}: its affinity of CPUs {cpus} does not survive the migration; {why}", vm.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::policy::{PolicyName, PolicySettings, decide};
    use instep_xen::scan::{Depth, scan};
    use instep_xen::{Source, rates};
    use std::path::Path;

    fn captured(state: &str) -> Snapshot {
        let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xen/tests/data").join(state);
        let scan = scan(&Source::Copy(copy), Depth::Full).unwrap();
        let topology = Arc::new(scan.topology().unwrap());
        rates::snapshot(&topology, None, &scan, |_| Default::default())
    }

    #[test]
    fn vms_arrive_without_affinities_and_get_those_of_other_host() {
        let here = captured("four-nodes/partial");
        let there = captured("two-nodes/six-domains").topology.as_ref().clone();
        let (there, lost) = arrived(&here, there);
        // `four` may use CPUs 2-5, `fixed` CPUs 4-5.
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert!(lost[0].starts_with("four: its affinity of CPUs 2-5 does not survive"), "{lost:?}");
        assert_eq!(there.topology.nodes().len(), 2);
        assert!(there.vms.iter().all(|vm| vm.allowed().to_string() == "0-7"));
        let settings = PolicySettings { policy: PolicyName::Bind, ..PolicySettings::default() };
        let decision = without_moves(decide(&there, &settings));
        assert!(!decision.actions.is_empty());
        assert!(decision.conflicts.is_empty());
    }

    #[test]
    fn cpus_that_the_other_host_lacks_are_named() {
        let here = captured("four-nodes/partial");
        let mut small = captured("two-nodes/six-domains").topology.as_ref().clone();
        small = {
            let cpus = small.cpus().iter().filter(|cpu| cpu.id.0 < 4);
            let facts = |cpu: &instep_core::topology::Cpu| instep_core::topology::CpuFacts {
                id: cpu.id.0,
                ..Default::default()
            };
            Topology::build(cpus.map(facts).collect(), Vec::new()).unwrap()
        };
        let (_, lost) = arrived(&here, small);
        assert!(lost[0].ends_with("CPUs 4-5 are not there"), "{lost:?}");
    }
}
