//! While the host idles, one VM's remaining remote memory may come home: decides whether and
//! whose.
//!
//! Source: systems.md 4 (iv). Load under 1/p of capacity, p the physical cores, is less than one
//! core's worth of CPU time in the window. Then a VM is drawn at random among those with remote
//! memory, so that each gets its turn without anything to be remembered; the seed is the caller's.
//! It does not know how much fits into one batch, nor whether the pages can be moved.

use crate::decision::Action;
use crate::idset::{CpuSet, NodeSet};
use crate::policy::wish::elsewhere;
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Vm};
use crate::topology::Topology;
use crate::units::{Bytes, Nanos, VmId};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// Less than this is not worth a batch: every process has some pages of files that other
/// processes share and that never move.
pub const MIN_REMOTE: Bytes = Bytes::from_mib(4);

/// The VM whose memory shall come home now, `None` when the host is too busy or all is at home.
///
/// Only VMs that Instep placed have a home. Memory on the nodes in `left` stays there. The same snapshot and seed
/// give the same answer, whatever the order of the VMs.
pub fn idle_homecoming(snapshot: &Snapshot, left: &NodeSet, seed: u64) -> Option<Action> {
    let busy = snapshot.vms.iter().fold(snapshot.fixed_busy().0, |sum, vm| {
        vm.vcpus.iter().fold(sum, |sum, vcpu| sum.saturating_add(vcpu.busy.0))
    });
    draw(Nanos(busy), snapshot, left, seed)
}

fn draw(busy: Nanos, snapshot: &Snapshot, left: &NodeSet, seed: u64) -> Option<Action> {
    let (window, topology) = (snapshot.window, &snapshot.topology);
    if busy >= window {
        return None;
    }
    let mut candidates: Vec<Candidate> =
        snapshot.vms.iter().flat_map(|vm| candidates(vm, topology, left)).collect();
    candidates.sort_by_key(|candidate| (candidate.vm, candidate.guest_node));
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    let index = usize::try_from(SplitMix64::seed_from_u64(seed).next_u64() % count).ok()?;
    let Candidate { vm, guest_node, to, remote } = candidates.swap_remove(index);
    let why = Reason::IdleHomecoming { busy: busy.milli_of(window), remote, to: to.clone() };
    Some(Action::MoveMemory { vm, guest_node, to, remote, why })
}

/// Memory that may come home: a VM's, or that of one of its guest's nodes.
struct Candidate {
    vm: VmId,
    guest_node: Option<u32>,
    to: NodeSet,
    remote: Bytes,
}

/// What of a placed VM lies elsewhere than its home, unless that is too little or it is bound to
/// other nodes. Of a VM that is placed by its guest's nodes, each is a VM of its own (systems.md 4):
/// its home is where its vCPUs are.
fn candidates(vm: &Vm, topology: &Topology, left: &NodeSet) -> Vec<Candidate> {
    let within = |bound: &Option<NodeSet>, home: NodeSet| match bound {
        Some(bound) => home.and(bound),
        None => home,
    };
    let home = within(&vm.memory_bound, vm.placed.clone());
    let mut parts = Vec::new();
    if home.len() > 1 && vm.guest_footprints().is_some() {
        let mut cpus = vec![CpuSet::new(); vm.guest_nodes.len()];
        for (vcpu, owner) in vm.vcpus.iter().zip(vm.guest_node_of_vcpus()) {
            cpus[owner] = cpus[owner].or(&vcpu.allowed);
        }
        for (node, cpus) in vm.guest_nodes.iter().zip(cpus) {
            let home = within(&vm.memory_bound, topology.nodes_of(&cpus));
            parts.push((Some(node.id), within(&node.bound, home), &node.resident));
        }
    } else {
        parts.push((None, home, &vm.memory));
    }
    let candidate = |(guest_node, to, memory): (_, NodeSet, _)| {
        let remote = elsewhere(memory, &to.or(left));
        (!to.is_empty() && remote >= MIN_REMOTE).then_some(Candidate {
            vm: vm.id,
            guest_node,
            to,
            remote,
        })
    };
    parts.into_iter().filter_map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{GuestNode, Vcpu};
    use crate::topology::{CpuFacts, NodeFacts};
    use crate::units::{NodeId, Tid};
    use proptest::prelude::*;

    const WINDOW: Nanos = Nanos::from_secs(60);
    const IDLE: Nanos = Nanos::from_secs(59);

    /// A VM placed on node 1 with this much memory on nodes 0 and 1.
    fn vm(id: u32, remote: u64, home: u64) -> Vm {
        Vm {
            memory: [(NodeId(0), Bytes::from_mib(remote)), (NodeId(1), Bytes::from_mib(home))]
                .into(),
            placed: NodeSet::one(NodeId(1)),
            ..Vm::new(VmId(id), format!("vm{id}"), Vec::new(), CpuSet::new())
        }
    }

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    /// Two nodes of two CPUs each, and these VMs.
    fn host(vms: &[Vm]) -> Snapshot {
        let node = |(id, list): (u32, &str)| NodeFacts {
            id,
            cpus: cpus(list),
            memory: Bytes::from_mib(4096),
            distances: vec![10, 10],
        };
        let facts = (0..4).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
        let topology = Topology::build(facts, [(0, "0-1"), (1, "2-3")].map(node).into()).unwrap();
        Snapshot {
            at: WINDOW,
            window: WINDOW,
            topology: topology.into(),
            isolated: CpuSet::new(),
            other_busy: Nanos(0),
            vms: vms.to_vec(),
            opaque: Vec::new(),
        }
    }

    fn drawn(vms: &[Vm], seed: u64) -> Option<u32> {
        draw(IDLE, &host(vms), &NodeSet::new(), seed).map(|action| action.vm().0)
    }

    #[test]
    fn a_host_that_uses_one_core_or_more_moves_nothing() {
        let host = host(&[vm(1, 100, 0)]);
        assert_eq!(draw(WINDOW, &host, &NodeSet::new(), 0), None);
        let Some(Action::MoveMemory { vm, to, remote, why, .. }) =
            draw(IDLE, &host, &NodeSet::new(), 0)
        else {
            panic!("nothing drawn");
        };
        assert_eq!((vm, remote), (VmId(1), Bytes::from_mib(100)));
        assert_eq!(to, NodeSet::one(NodeId(1)));
        assert!(why.to_string().contains("0.98 CPUs"), "{why}");
    }

    #[test]
    fn vms_at_home_unplaced_or_bound_elsewhere_are_not_drawn() {
        let unplaced = Vm { placed: NodeSet::new(), ..vm(2, 100, 0) };
        let bound = Vm { memory_bound: Some(NodeSet::one(NodeId(0))), ..vm(3, 100, 0) };
        let vms = [vm(1, 3, 100), unplaced, bound];
        assert!((0..100).all(|seed| drawn(&vms, seed).is_none()));
    }

    #[test]
    fn of_vm_placed_by_its_guests_nodes_each_comes_home_to_its_vcpus() {
        let mut split = vm(1, 140, 60);
        split.placed = [0, 1].map(NodeId).into_iter().collect();
        for (index, list) in [(0, "0-1"), (1, "2-3")] {
            let (allowed, tid) = (cpus(list), Tid(10 + index));
            let initial = allowed.clone();
            let (start_ticks, cpu, busy, steal) = (0, None, Nanos(0), Nanos(0));
            split.vcpus.push(Vcpu { index, tid, start_ticks, cpu, allowed, initial, busy, steal });
            // The guest's first node is wholly at home.
            let resident = [(0, 100 - 60 * u64::from(index)), (1, 60 * u64::from(index))];
            let resident = resident.map(|(node, mib)| (NodeId(node), Bytes::from_mib(mib)));
            let (id, vcpus, resident) = (index, vec![index], resident.into());
            split.guest_nodes.push(GuestNode { id, vcpus, resident, ..GuestNode::default() });
        }
        let drawn = |vm: &Vm| draw(IDLE, &host(std::slice::from_ref(vm)), &NodeSet::new(), 0);
        let Some(Action::MoveMemory { guest_node, to, remote, .. }) = drawn(&split) else {
            panic!("nothing drawn");
        };
        assert_eq!((guest_node, remote), (Some(1), Bytes::from_mib(40)));
        assert_eq!(to, NodeSet::one(NodeId(1)));
        split.guest_nodes[1].bound = Some(NodeSet::one(NodeId(0)));
        assert_eq!(drawn(&split), None, "bound to another node");
    }

    #[test]
    fn every_vm_with_remote_memory_gets_its_turn() {
        let vms: Vec<Vm> = (1..=10).map(|id| vm(id, 100, 100)).collect();
        let mut turns = [0; 11];
        for cycle in 0..1000 {
            turns[drawn(&vms, cycle).unwrap() as usize] += 1;
        }
        assert!(turns[1..].iter().all(|turns| (50..200).contains(turns)), "{turns:?}");
    }

    proptest! {
        #[test]
        fn the_draw_ignores_order_and_moves_only_what_is_remote(
            sizes in proptest::collection::vec((0u64..200, 0u64..200), 0..20),
            seed: u64,
        ) {
            let mut vms: Vec<Vm> =
                sizes.iter().zip(0..).map(|((away, home), id)| vm(id, *away, *home)).collect();
            let first = drawn(&vms, seed);
            vms.reverse();
            prop_assert_eq!(first, drawn(&vms, seed));
            prop_assert_eq!(first.is_some(), sizes.iter().any(|(away, _)| *away >= 4));
            if let Some(id) = first {
                prop_assert!(sizes[id as usize].0 >= 4);
            }
        }
    }
}
