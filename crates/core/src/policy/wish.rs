//! What a policy wants for each VM, and how wants become a decision: only what differs from now
//! turns into an action.
//!
//! Also the two rules every policy obeys: which CPUs a thread may be given ([`permitted`]), and
//! how a thread gets back what it had before Instep ([`initial`]). Knows nothing of any policy.

use crate::conflict::Conflict;
use crate::decision::{Action, Decision, Verdict};
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Vcpu, Vm};
use crate::soft::wanted;
use crate::topology::Topology;
use crate::units::{Bytes, Milli, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a policy wants for one VM.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Whether the policy takes charge of it.
    pub(crate) selected: bool,
    /// Where it shall live; empty when left open.
    pub(crate) home: NodeSet,
    /// Why.
    pub(crate) why: Reason,
    /// CPUs of each vCPU, in the VM's order. An empty set leaves that thread as it is.
    pub(crate) vcpus: Vec<CpuSet>,
    /// CPUs of each emulator thread with the reason. An empty set leaves it as it is.
    pub(crate) emulators: Vec<(CpuSet, Reason)>,
    /// Memory to bring home.
    pub(crate) memory: Vec<Homeward>,
}

/// Memory of a VM, or of one of its guest's nodes, that is to move.
#[derive(Clone, Debug)]
pub(crate) struct Homeward {
    /// The number of the guest's node; `None` for all memory of the VM.
    pub(crate) guest_node: Option<u32>,
    /// Where to.
    pub(crate) to: NodeSet,
    /// How much lies elsewhere.
    pub(crate) remote: Bytes,
    /// Why.
    pub(crate) why: Reason,
    /// What moving it gains for each byte, on any scale; what gains most moves first. `None` where that
    /// is not known: such memory moves in the order of VMs.
    pub(crate) gain: Option<Milli>,
}

impl Wish {
    /// Not selected: every thread gets back what it had before Instep touched it.
    pub(crate) fn give_back(vm: &Vm, online: &CpuSet, why: Reason) -> Self {
        Self::keep_within_initial(vm, online, false, NodeSet::new(), why)
    }

    /// Every thread has its initial CPUs, whoever is in charge.
    pub(crate) fn keep_within_initial(
        vm: &Vm,
        online: &CpuSet,
        selected: bool,
        home: NodeSet,
        why: Reason,
    ) -> Self {
        let vcpus = vm
            .vcpus
            .iter()
            .map(|vcpu| initial(&vcpu.initial, &vcpu.allowed, &vm.cpuset, online))
            .collect();
        let emulators = emulators_back(vm, online, &why);
        Self { selected, home, why, vcpus, emulators, memory: Vec::new() }
    }
}

/// Every emulator thread's initial CPUs.
pub(crate) fn emulators_back(vm: &Vm, online: &CpuSet, why: &Reason) -> Vec<(CpuSet, Reason)> {
    vm.emulators
        .iter()
        .map(|emulator| {
            let cpus = initial(&emulator.initial, &emulator.allowed, &vm.cpuset, online);
            (cpus, why.clone())
        })
        .collect()
}

/// What a thread had before Instep, as far as it is online and in the cpuset; as it is now when
/// Instep never changed it.
pub(crate) fn initial(first: &CpuSet, now: &CpuSet, cpuset: &CpuSet, online: &CpuSet) -> CpuSet {
    let before = first.and(online);
    if before == *now { before } else { before.and(cpuset) }
}

/// The CPUs a policy may give a vCPU: the cpuset's, inside the initial affinity unless `mend`,
/// online.
pub(crate) fn permitted(vm: &Vm, vcpu: &Vcpu, online: &CpuSet, mend: bool) -> CpuSet {
    let within = vm.cpuset.and(online);
    if mend { within } else { within.and(&vcpu.initial) }
}

/// Why a VM counts as pinned by hand: its vCPUs differ from each other, are limited otherwise than
/// the emulator threads, or have fewer CPUs than they are although the cpuset has more. Emulator
/// threads of limited affinity beside vCPUs without limits say nothing of the vCPUs.
pub(crate) fn pinned_by_hand(vm: &Vm, online: &CpuSet) -> Option<Reason> {
    let first = &vm.vcpus.first()?.initial;
    if let Some(vcpu) = vm.vcpus.iter().find(|vcpu| vcpu.initial != *first) {
        let (vcpu, cpus) = (vcpu.index, vcpu.initial.clone());
        return Some(Reason::VcpusPinned { vcpu, cpus, others: first.clone() });
    }
    let before = first.and(online).and(&vm.cpuset);
    let emulators = vm.emulators.iter().fold(CpuSet::new(), |all, one| all.or(&one.initial));
    let emulators = emulators.and(online).and(&vm.cpuset);
    let limited = before.len() < vm.cpuset.and(online).len();
    if limited && !vm.emulators.is_empty() && emulators != before {
        return Some(Reason::PinnedFromEmulators { cpus: before, emulators });
    }
    let crowded = limited && before.len() < vm.vcpus.len();
    crowded.then_some(Reason::PinnedTogether { vcpus: vm.vcpus.len(), cpus: before })
}

/// The part of `memory` that is not on `home`.
pub(crate) fn elsewhere(memory: &BTreeMap<NodeId, Bytes>, home: &NodeSet) -> Bytes {
    let there = |(node, bytes): (&NodeId, &Bytes)| if home.contains(*node) { 0 } else { bytes.0 };
    Bytes(memory.iter().map(there).fold(0, u64::saturating_add))
}

/// Whether memory of these bounds may lie on `home` at all: it is not bound to other nodes.
pub(crate) fn memory_may_move(bounds: &[&Option<NodeSet>], home: &NodeSet) -> bool {
    bounds.iter().copied().flatten().all(|bound| home.is_subset(bound))
}

/// The decision that fulfils the wishes, which are in the order of the snapshot's VMs. `mend`: a soft affinity that
/// was found to work against the hard one is mended, too.
pub(crate) fn decision(
    snapshot: &Snapshot,
    wishes: Vec<Wish>,
    conflicts: Vec<Conflict>,
    mend: bool,
) -> Decision {
    let mut decision = Decision { conflicts, ..Decision::default() };
    let mut moves = Vec::new();
    for (vm, wish) in snapshot.vms.iter().zip(wishes) {
        let soft = soft_affinity(&snapshot.topology, vm, &wish, mend);
        for (vcpu, cpus) in vm.vcpus.iter().zip(wish.vcpus) {
            if !cpus.is_empty() && cpus != vcpu.allowed {
                let (why, tid) = (wish.why.clone(), vcpu.tid);
                let action =
                    Action::SetVcpuAffinity { vm: vm.id, vcpu: vcpu.index, tid, cpus, why };
                decision.actions.push(action);
            }
        }
        for (emulator, (cpus, why)) in vm.emulators.iter().zip(wish.emulators) {
            if !cpus.is_empty() && cpus != emulator.allowed {
                let tid = emulator.tid;
                decision.actions.push(Action::SetEmulatorAffinity { vm: vm.id, tid, cpus, why });
            }
        }
        decision.actions.extend(soft);
        for Homeward { guest_node, to, remote, why, gain } in wish.memory {
            let action = Action::MoveMemory { vm: vm.id, guest_node, to, remote, why };
            match gain {
                Some(gain) => moves.push((gain, action)),
                None => decision.actions.push(action),
            }
        }
        let Wish { selected, home, why, .. } = wish;
        decision.vms.push(Verdict { vm: vm.id, selected, home, why });
    }
    moves.sort_by_key(|(gain, _)| Reverse(*gain));
    decision.actions.extend(moves.into_iter().map(|(_, action)| action));
    decision
}

/// The change of a VM's soft affinity that its wish asks for, `None` where it can stay or there is none.
fn soft_affinity(topology: &Topology, vm: &Vm, wish: &Wish, mend: bool) -> Option<Action> {
    let soft = vm.soft.as_ref()?;
    let given = |(at, vcpu): (usize, &Vcpu)| match wish.vcpus.get(at) {
        Some(cpus) if !cpus.is_empty() => cpus.clone(),
        _ => vcpu.allowed.clone(),
    };
    let hard: Vec<CpuSet> = vm.vcpus.iter().enumerate().map(given).collect();
    let (drawn, mended) = wanted(topology, vm, &hard, mend)?;
    let is_new = |(index, cpus): &(u32, CpuSet)| soft.vcpus.get(index) != Some(cpus);
    let vcpus: Vec<(u32, CpuSet)> = drawn.vcpus.into_iter().filter(is_new).collect();
    let nodes = (drawn.nodes != soft.nodes).then(|| drawn.nodes.clone());
    if vcpus.is_empty() && nodes.is_none() {
        return None;
    }
    let why = match mended {
        Some(conflict) => Reason::Mends { nodes: drawn.nodes, conflict },
        None => wish.why.clone(),
    };
    Some(Action::SetSoftAffinity { vm: vm.id, vcpus, nodes, why })
}
