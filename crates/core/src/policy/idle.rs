//! While the host idles, one VM's remaining remote memory may come home: decides whether and
//! whose.
//!
//! Source: systems.md 4 (iv). Load under 1/p of capacity, p the physical cores, is less than one
//! core's worth of CPU time in the window. Then a VM is drawn at random among those with remote
//! memory, so that each gets its turn without anything to be remembered; the seed is the caller's.
//! It does not know how much fits into one batch, nor whether the pages can be moved.

use crate::decision::Action;
use crate::idset::NodeSet;
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Vm};
use crate::units::{Bytes, Nanos};

/// Less than this is not worth a batch: every process has some pages of files that other
/// processes share and that never move.
pub const MIN_REMOTE: Bytes = Bytes::from_mib(4);

/// The VM whose memory shall come home now, `None` when the host is too busy or all is at home.
///
/// Only VMs that Instep placed have a home. The same snapshot and seed give the same answer,
/// whatever the order of the VMs.
#[must_use]
pub fn idle_homecoming(snapshot: &Snapshot, seed: u64) -> Option<Action> {
    let busy = snapshot.vms.iter().fold(snapshot.fixed_busy().0, |sum, vm| {
        vm.vcpus.iter().fold(sum, |sum, vcpu| sum.saturating_add(vcpu.busy.0))
    });
    draw(Nanos(busy), snapshot.window, &snapshot.vms, seed)
}

fn draw(busy: Nanos, window: Nanos, vms: &[Vm], seed: u64) -> Option<Action> {
    if busy >= window {
        return None;
    }
    let mut candidates: Vec<(&Vm, NodeSet, Bytes)> = vms.iter().filter_map(candidate).collect();
    candidates.sort_by_key(|(vm, ..)| vm.id);
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    let index = usize::try_from(mix(seed) % count).ok()?;
    let (vm, to, remote) = candidates.swap_remove(index);
    let why = Reason::IdleHomecoming { busy: busy.milli_of(window), remote, to: to.clone() };
    Some(Action::MoveMemory { vm: vm.id, guest_node: None, to, remote, why })
}

/// A placed VM with its home and what lies elsewhere, unless that is too little or its memory is
/// bound to other nodes.
fn candidate(vm: &Vm) -> Option<(&Vm, NodeSet, Bytes)> {
    let home = match &vm.memory_bound {
        Some(bound) => vm.placed.and(bound),
        None => vm.placed.clone(),
    };
    // On several nodes each guest node's memory has a place of its own: the policy looks after it.
    if home.is_empty() || (home.len() > 1 && vm.guest_footprints().is_some()) {
        return None;
    }
    let away = vm.memory.iter().filter(|(node, _)| !home.contains(**node));
    let remote = Bytes(away.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes.0)));
    (remote >= MIN_REMOTE).then_some((vm, home, remote))
}

/// SplitMix64 (Steele, Lea, Flood 2014): one well-mixed number from a seed that may be a counter.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idset::CpuSet;
    use crate::units::{NodeId, VmId};
    use proptest::prelude::*;

    const WINDOW: Nanos = Nanos::from_secs(60);
    const IDLE: Nanos = Nanos::from_secs(59);

    /// A VM placed on node 1 with this much memory on nodes 0 and 1.
    fn vm(id: u32, remote: u64, home: u64) -> Vm {
        Vm {
            id: VmId(id),
            name: format!("vm{id}"),
            vcpus: Vec::new(),
            emulators: Vec::new(),
            memory: [(NodeId(0), Bytes::from_mib(remote)), (NodeId(1), Bytes::from_mib(home))]
                .into(),
            cpuset: CpuSet::new(),
            memory_bound: None,
            preferred: None,
            guest_threads_per_core: 1,
            guest_nodes: Vec::new(),
            weight: 100,
            placed: NodeSet::one(NodeId(1)),
        }
    }

    fn drawn(vms: &[Vm], seed: u64) -> Option<u32> {
        draw(IDLE, WINDOW, vms, seed).map(|action| action.vm().0)
    }

    #[test]
    fn a_host_that_uses_one_core_or_more_moves_nothing() {
        let vms = [vm(1, 100, 0)];
        assert_eq!(draw(WINDOW, WINDOW, &vms, 0), None);
        let Some(Action::MoveMemory { vm, to, remote, why, .. }) = draw(IDLE, WINDOW, &vms, 0)
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
