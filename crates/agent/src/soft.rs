//! Soft homes: while the kernel scheduler keeps VMs at home, it is told the node and no vCPU is bound to it.
//!
//! ```text
//! observed --seen--> the snapshot policies see --policy--> decision --soften--> what is done
//! ```
//! An affinity would keep a vCPU from the idle CPUs of other nodes when its own is full, which the
//! scheduler would have lent it (decision 14). Policies go on as if each vCPU had what they gave it, or
//! they would give it anew in every cycle: the snapshot they see says so. Of what they decide, changes
//! of vCPUs whose home is soft are left out, and what earlier cycles set is put back.
//!
//! Whose home is soft: VMs with one home node that nobody bound, neither by affinity nor by cpuset.
//! It does not know which scheduler is in force; it is told by VM.

use crate::config::Config;
use crate::decide::decide;
use crate::observe::{Observation, facts_of};
use instep_core::conflict;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::idset::CpuSet;
use instep_core::reason::Reason;
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::units::{NodeId, Tid, VmId};
use std::collections::BTreeMap;

/// Whether the kernel scheduler keeps the VM of this name at home.
pub(crate) type Keeps<'a> = &'a dyn Fn(&str) -> bool;

/// The VMs whose home is soft, and what policies take their vCPUs to have.
#[derive(Debug, Default)]
pub(crate) struct SoftHomes(BTreeMap<VmId, Given>);

/// What a VM was given without being bound to it.
#[derive(Debug)]
struct Given {
    pid_start: u64,
    home: NodeId,
    /// By thread: its start, and the CPUs.
    vcpus: BTreeMap<Tid, (u64, CpuSet)>,
}

/// A home that is news for the kernel scheduler.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) vm: VmId,
    pub(crate) node: NodeId,
    pub(crate) why: Reason,
}

impl SoftHomes {
    /// What cycle `count` does: the decision, and the homes to tell the kernel scheduler. `keeps` is
    /// `None` while it keeps nobody at home; then all is bound as decided.
    pub(crate) fn decide(
        &mut self,
        observation: &Observation,
        (config, count): (&Config, u64),
        keeps: Option<Keeps<'_>>,
    ) -> (Decision, Vec<Told>) {
        let Some(keeps) = keeps else {
            self.0.clear();
            return (decide(&observation.snapshot, config, count), Vec::new());
        };
        self.0.retain(|id, given| given.is_of(observation, *id, keeps));
        let seen = self.seen(observation);
        let mut decision = decide(&seen, config, count);
        // What is told of conflicts is what is so.
        decision.conflicts = conflict::find(&observation.snapshot);
        let told = self.soften(observation, &seen, &mut decision, keeps);
        (decision, told)
    }

    /// The snapshot as if vCPUs with a soft home were bound to what policies gave them.
    fn seen(&self, observation: &Observation) -> Snapshot {
        let mut seen = observation.snapshot.clone();
        let online = seen.topology.all_cpus();
        for vm in &mut seen.vms {
            let Some(given) = self.0.get(&vm.id).filter(|_| is_unbound(vm, &online)) else {
                continue;
            };
            let starts = starts_of(observation, vm);
            for vcpu in vm.vcpus.iter_mut().filter(|vcpu| vcpu.allowed == online) {
                let own = given.vcpus.get(&vcpu.tid);
                let own = own.filter(|(start, _)| starts.get(&vcpu.tid) == Some(start));
                let cpus = own.map(|(_, cpus)| cpus.and(&online)).unwrap_or_default();
                if !cpus.is_empty() {
                    vcpu.allowed = cpus;
                }
            }
        }
        seen
    }

    /// Takes soft homes out of the decision on `seen`, so that the rest can be carried out on the host
    /// as it was observed.
    fn soften(
        &mut self,
        observation: &Observation,
        seen: &Snapshot,
        decision: &mut Decision,
        keeps: Keeps<'_>,
    ) -> Vec<Told> {
        let online = seen.topology.all_cpus();
        let mut wanted = take_vcpu_actions(decision);
        let (mut actions, mut told, mut soft) = (Vec::new(), Vec::new(), BTreeMap::new());
        let vms = observation.snapshot.vms.iter().zip(&seen.vms);
        for ((vm, seen), verdict) in vms.zip(&mut decision.vms) {
            let why = verdict.why.clone();
            let wanted = wanted.remove(&vm.id).unwrap_or_default();
            let wants = |position: usize| {
                let vcpu = &seen.vcpus[position];
                wanted.get(&vcpu.tid).unwrap_or(&vcpu.allowed).clone()
            };
            let home = soft_home(vm, verdict, &online).filter(|_| keeps(&vm.name));
            let start = facts_of(&observation.scan, vm).map(|facts| facts.start_ticks);
            let Some((node, pid_start)) = home.zip(start) else {
                actions.extend(changes(vm, wants, &why));
                continue;
            };
            let back = Reason::SoftHome { node };
            actions.extend(changes(vm, |_| online.clone(), &back));
            without_cores(&mut verdict.why);
            if self.0.get(&vm.id).is_none_or(|given| given.home != node) {
                told.push(Told { vm: vm.id, node, why: verdict.why.clone() });
            }
            let starts = starts_of(observation, vm);
            let given = |(position, vcpu): (usize, &Vcpu)| {
                Some((vcpu.tid, (*starts.get(&vcpu.tid)?, wants(position))))
            };
            let vcpus = vm.vcpus.iter().enumerate().filter_map(given).collect();
            soft.insert(vm.id, Given { pid_start, home: node, vcpus });
        }
        actions.append(&mut decision.actions);
        decision.actions = actions;
        self.0 = soft;
        told
    }
}

impl Given {
    /// Whether it is this process's still, and its home still kept.
    fn is_of(&self, observation: &Observation, id: VmId, keeps: Keeps<'_>) -> bool {
        let vm = observation.snapshot.vm(id).filter(|vm| keeps(&vm.name));
        let facts = vm.and_then(|vm| facts_of(&observation.scan, vm));
        facts.is_some_and(|facts| facts.start_ticks == self.pid_start)
    }
}

/// Takes the changes of vCPUs out of a decision: the CPUs, by VM and thread.
fn take_vcpu_actions(decision: &mut Decision) -> BTreeMap<VmId, BTreeMap<Tid, CpuSet>> {
    let mut taken: BTreeMap<VmId, BTreeMap<Tid, CpuSet>> = BTreeMap::new();
    for action in &decision.actions {
        if let Action::SetVcpuAffinity { vm, tid, cpus, .. } = action {
            taken.entry(*vm).or_default().insert(*tid, cpus.clone());
        }
    }
    decision.actions.retain(|action| !matches!(action, Action::SetVcpuAffinity { .. }));
    taken
}

/// The changes that give each vCPU what is wanted at its position.
fn changes<'a>(
    vm: &'a Vm,
    wants: impl Fn(usize) -> CpuSet + 'a,
    why: &'a Reason,
) -> impl Iterator<Item = Action> + 'a {
    let change = move |(position, vcpu): (usize, &Vcpu)| {
        let (vm, vcpu_index, tid, cpus) = (vm.id, vcpu.index, vcpu.tid, wants(position));
        let why = why.clone();
        let action = Action::SetVcpuAffinity { vm, vcpu: vcpu_index, tid, cpus: cpus.clone(), why };
        (cpus != vcpu.allowed).then_some(action)
    };
    vm.vcpus.iter().enumerate().filter_map(change)
}

/// The node that a VM is at home on, where that may be left to the kernel scheduler: it knows one
/// node for a VM, and what an operator bound is bound.
fn soft_home(vm: &Vm, verdict: &Verdict, online: &CpuSet) -> Option<NodeId> {
    let single = verdict.selected && verdict.home.len() == 1;
    verdict.home.first().filter(|_| single && is_unbound(vm, online))
}

/// Whether every vCPU might use every CPU before Instep touched it.
fn is_unbound(vm: &Vm, online: &CpuSet) -> bool {
    vm.cpuset == *online && vm.vcpus.iter().all(|vcpu| vcpu.initial == *online)
}

/// When each vCPU thread started.
fn starts_of(observation: &Observation, vm: &Vm) -> BTreeMap<Tid, u64> {
    let facts = facts_of(&observation.scan, vm).map(|facts| facts.vcpus.as_slice());
    facts.unwrap_or_default().iter().map(|vcpu| (vcpu.tid, vcpu.start_ticks)).collect()
}

/// No vCPU is bound to a core of its own: the kernel scheduler finds whole cores by itself.
fn without_cores(why: &mut Reason) {
    if let Reason::Home { cores, .. } | Reason::Elsewhere { cores, .. } = why {
        *cores = None;
    }
}

#[cfg(test)]
mod tests;
