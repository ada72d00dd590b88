//! Checkers of what every policy promises. Each takes the policy as a function, so that a broken
//! one can prove the checker.

use crate::made::Random;
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::{PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;

/// A policy as the checkers see it.
pub(crate) type Policy<'a> = &'a dyn Fn(&Snapshot) -> Decision;

/// The settings of a policy, all else at its default.
pub(crate) fn settings(policy: PolicyName) -> PolicySettings {
    PolicySettings { policy, ..PolicySettings::default() }
}

/// The snapshot after the actions took effect on affinities and the homes were noted, as the
/// agent does.
pub(crate) fn apply(snapshot: &Snapshot, decision: &Decision) -> Snapshot {
    let mut after = snapshot.clone();
    for (vm, verdict) in after.vms.iter_mut().zip(&decision.vms) {
        vm.placed = verdict.home.clone();
    }
    for action in &decision.actions {
        for vm in after.vms.iter_mut().filter(|vm| vm.id == action.vm()) {
            match action {
                Action::SetVcpuAffinity { vcpu, cpus, .. } => {
                    let threads = vm.vcpus.iter_mut().filter(|other| other.index == *vcpu);
                    threads.for_each(|thread| thread.allowed = cpus.clone());
                }
                Action::SetEmulatorAffinity { tid, cpus, .. } => {
                    let threads = vm.emulators.iter_mut().filter(|other| other.tid == *tid);
                    threads.for_each(|thread| thread.allowed = cpus.clone());
                }
                Action::SetSoftAffinity { vcpus, nodes, .. } => {
                    let soft = vm.soft.as_mut().expect("only what is there is set");
                    soft.vcpus.extend(vcpus.iter().cloned());
                    soft.nodes = nodes.clone().unwrap_or_else(|| soft.nodes.clone());
                }
                Action::MoveMemory { .. } => {}
            }
        }
    }
    after
}

/// The snapshot after that, with the memory that is to move where it is to be, evenly on these nodes.
pub(crate) fn arrived(snapshot: &Snapshot, decision: &Decision) -> Snapshot {
    let mut after = apply(snapshot, decision);
    for action in &decision.actions {
        let Action::MoveMemory { vm, guest_node, to, .. } = action else { continue };
        for vm in after.vms.iter_mut().filter(|one| one.id == *vm) {
            let mut parts: Vec<&mut BTreeMap<NodeId, Bytes>> = match guest_node {
                None => vec![&mut vm.memory],
                Some(id) => {
                    let own = vm.guest_nodes.iter_mut().filter(|node| node.id == *id);
                    own.map(|node| &mut node.resident).collect()
                }
            };
            for memory in &mut parts {
                let away = memory.iter().filter(|(node, _)| !to.contains(**node));
                let away: u64 = away.map(|(_, bytes)| bytes.0).sum();
                memory.retain(|node, _| to.contains(*node));
                to.iter().for_each(|node| {
                    memory.entry(node).or_default().0 += away / to.len() as u64;
                });
            }
        }
    }
    after
}

/// One verdict per VM, in order; a reason for everything; no action without effect; never an empty set of CPUs.
pub(crate) fn sound(policy: Policy, snapshot: &Snapshot) -> Result<(), String> {
    let decision = policy(snapshot);
    let named: Vec<_> = decision.vms.iter().map(|verdict| verdict.vm).collect();
    let expected: Vec<_> = snapshot.vms.iter().map(|vm| vm.id).collect();
    if named != expected {
        return Err(format!("verdicts for {named:?}, VMs are {expected:?}"));
    }
    let reasons = decision.vms.iter().map(|verdict| &verdict.why);
    for why in reasons.chain(decision.actions.iter().map(Action::why)) {
        if why.to_string().is_empty() {
            return Err(format!("{why:?} says nothing"));
        }
    }
    for action in &decision.actions {
        let vm = snapshot.vm(action.vm()).ok_or("an action for no VM")?;
        let (now, then) = match action {
            Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
                let thread = vm.vcpus.iter().find(|other| other.index == *vcpu);
                let thread = thread.filter(|thread| thread.tid == *tid).ok_or("no such vCPU")?;
                (&thread.allowed, cpus)
            }
            Action::SetEmulatorAffinity { tid, cpus, .. } => {
                let thread = vm.emulators.iter().find(|other| other.tid == *tid);
                (&thread.ok_or("no such emulator")?.allowed, cpus)
            }
            Action::SetSoftAffinity { vcpus, nodes, .. } => {
                let soft = vm.soft.as_ref().ok_or("a soft affinity where there is none")?;
                let same = |(vcpu, cpus): &(u32, CpuSet)| soft.vcpus.get(vcpu) == Some(cpus);
                let idle = vcpus.is_empty() && nodes.is_none();
                if idle || vcpus.iter().any(same) || nodes.as_ref() == Some(&soft.nodes) {
                    return Err(format!("{action:?} changes nothing"));
                }
                continue;
            }
            Action::MoveMemory { .. } => continue,
        };
        if then.is_empty() {
            return Err(format!("{action:?} leaves no CPU"));
        }
        if now == then {
            return Err(format!("{action:?} changes nothing"));
        }
    }
    Ok(())
}

/// Whatever is set lies inside cpuset, online CPUs and, unless mending, the initial affinity.
pub(crate) fn inside(policy: Policy, snapshot: &Snapshot, mend: bool) -> Result<(), String> {
    let online = snapshot.topology.all_cpus();
    let within = |cpus: &CpuSet, cpuset: &CpuSet, initial: &CpuSet| {
        cpus.is_subset(&cpuset.and(&online)) && (mend || cpus.is_subset(initial))
    };
    for action in &policy(snapshot).actions {
        let vm = snapshot.vm(action.vm()).ok_or("an action for no VM")?;
        let fine = match action {
            Action::SetVcpuAffinity { tid, cpus, .. } => {
                let mut threads = vm.vcpus.iter().filter(|thread| thread.tid == *tid);
                threads.all(|thread| within(cpus, &vm.cpuset, &thread.initial))
            }
            Action::SetEmulatorAffinity { tid, cpus, .. } => {
                let mut threads = vm.emulators.iter().filter(|thread| thread.tid == *tid);
                threads.all(|thread| within(cpus, &vm.cpuset, &thread.initial))
            }
            Action::SetSoftAffinity { nodes, .. } => {
                nodes.as_ref().is_none_or(|nodes| !snapshot.topology.cpus_of(nodes).is_empty())
            }
            Action::MoveMemory { guest_node, to, remote, .. } => {
                let part = |number: &u32| vm.guest_nodes.iter().find(|node| node.id == *number);
                let part = guest_node.as_ref().map(part);
                let bound = part.flatten().and_then(|node| node.bound.as_ref());
                let has = |nodes: &NodeSet| to.is_subset(nodes);
                let memory = part.flatten().map_or(&vm.memory, |node| &node.resident);
                let away = memory.iter().filter(|(node, _)| !to.contains(**node));
                let away: u64 = away.map(|(_, bytes)| bytes.0).fold(0, u64::saturating_add);
                // A guest node that is none would be all of the VM's memory.
                part != Some(None)
                    && away == remote.0
                    && !to.is_empty()
                    && to.iter().all(|node| snapshot.topology.node(node).is_some())
                    && bound.is_none_or(has)
                    && vm.memory_bound.as_ref().is_none_or(has)
            }
        };
        if !fine {
            return Err(format!("{action:?} leaves what is allowed"));
        }
    }
    Ok(())
}

/// The same decision for the same VMs and threads in any of several orders.
pub(crate) fn order_does_not_matter(policy: Policy, snapshot: &Snapshot) -> Result<(), String> {
    let expected = policy(snapshot);
    for seed in 0..3 {
        let mut found = policy(&shuffled(snapshot, seed));
        found.vms.sort_by_key(|verdict| verdict.vm);
        if found != expected {
            let differ = found.vms.iter().zip(&expected.vms).find(|(a, b)| a != b);
            return Err(format!("the order of VMs mattered: {differ:?}"));
        }
    }
    Ok(())
}

fn shuffled(snapshot: &Snapshot, seed: u64) -> Snapshot {
    let mut shuffled = snapshot.clone();
    let mut random = Random(seed);
    for last in (1..shuffled.vms.len()).rev() {
        shuffled.vms.swap(last, random.within(0, last as u64) as usize);
    }
    for vm in &mut shuffled.vms {
        vm.vcpus.reverse();
        vm.emulators.reverse();
    }
    shuffled
}

/// The host with the decision for it in force, and the decision for that, which must change no affinity.
fn settled(policy: Policy, snapshot: &Snapshot) -> Result<(Snapshot, Decision), String> {
    let host = apply(snapshot, &policy(snapshot));
    let next = policy(&host);
    let sets = |action: &&Action| !matches!(action, Action::MoveMemory { .. });
    match next.actions.iter().find(sets) {
        Some(action) => Err(format!("changed again: {action:?}")),
        None => Ok((host, next)),
    }
}

pub(crate) fn does_not_flap(policy: Policy, snapshot: &Snapshot) -> Result<(), String> {
    settled(policy, snapshot).map(|_| ())
}

/// With the settled decision in force and all loads up to 5 % higher or lower, no home changes but
/// of VMs that were left wide or left alone, which may get one.
pub(crate) fn homes_survive_noise(
    policy: Policy,
    snapshot: &Snapshot,
    seed: u64,
) -> Result<(), String> {
    let (host, first) = settled(policy, snapshot)?;
    let mut noisy = host;
    let mut random = Random(seed);
    for vcpu in noisy.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        vcpu.busy.0 = vcpu.busy.0 / 1000 * random.within(950, 1050);
        vcpu.steal.0 = vcpu.steal.0 / 1000 * random.within(950, 1050);
    }
    noisy.other_busy.0 = noisy.other_busy.0 / 1000 * random.within(950, 1050);
    for vm in &mut noisy.opaque {
        vm.busy.0 = vm.busy.0 / 1000 * random.within(950, 1050);
    }
    let again = policy(&noisy);
    let mut pairs = first.vms.iter().zip(&again.vms);
    let narrows = |before: &NodeSet, after: &NodeSet| before.is_empty() || after.is_subset(before);
    let moved = pairs.find(|(before, after)| !narrows(&before.home, &after.home));
    moved.map_or(Ok(()), |(before, after)| Err(format!("noise moved {before:?} to {after:?}")))
}
