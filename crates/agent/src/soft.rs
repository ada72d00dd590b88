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
use crate::observe::{Observation, VmKey};
use instep_core::conflict;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::idset::CpuSet;
use instep_core::reason::Reason;
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::units::{NodeId, Tid, VmId};
use std::collections::BTreeMap;

/// Whether the kernel scheduler keeps this VM at home.
pub(crate) type Keeps<'a> = &'a dyn Fn(VmKey) -> bool;

/// The VMs whose home the last cycle left to the kernel scheduler.
#[derive(Debug, Default)]
pub(crate) struct SoftHomes {
    /// Whether it kept VMs at home then.
    kept: bool,
    given: BTreeMap<VmKey, Given>,
}

/// What a VM was given without being bound to it.
#[derive(Debug)]
struct Given {
    home: NodeId,
    /// By thread: its start, and the CPUs.
    vcpus: BTreeMap<Tid, (u64, CpuSet)>,
}

/// A home that is news for the kernel scheduler.
#[derive(Debug)]
pub(crate) struct NewHome {
    pub(crate) vm: VmKey,
    pub(crate) node: NodeId,
    pub(crate) why: Reason,
    /// Whether the kernel scheduler got it and keeps the VM there.
    pub(crate) taken: bool,
}

/// What a cycle is to do, and whose home is soft once that is done.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) new_homes: Vec<NewHome>,
    pub(crate) soft: SoftHomes,
}

impl SoftHomes {
    /// What cycle `count` does. `keeps` is `None` while the kernel scheduler keeps nobody at home; then
    /// all is bound as decided.
    pub(crate) fn decide(
        &self,
        observation: &Observation,
        (config, count): (&Config, u64),
        keeps: Option<Keeps<'_>>,
    ) -> Decided {
        let Some(keeps) = keeps else {
            let decision = decide(&observation.snapshot, config, count);
            return Decided { decision, new_homes: Vec::new(), soft: Self::default() };
        };
        let seen = self.seen(observation, keeps);
        let mut decision = decide(&seen, config, count);
        // Conflicts are reported as they are, softened or not.
        decision.conflicts = conflict::find(&observation.snapshot);
        self.soften(observation, &seen, decision, keeps)
    }

    /// Whether what the last cycle did no longer goes with what the scheduler does now: it does not keep
    /// a VM whose home is soft, or began to keep VMs since.
    pub(crate) fn is_outdated(&self, keeps: Option<Keeps<'_>>) -> bool {
        match keeps {
            Some(keeps) => !self.kept || self.given.keys().any(|vm| !keeps(*vm)),
            None => !self.given.is_empty(),
        }
    }

    /// What a VM was given whose home is kept still.
    fn given(&self, vm: VmKey, keeps: Keeps<'_>) -> Option<&Given> {
        self.given.get(&vm).filter(|_| keeps(vm))
    }

    /// The snapshot as if vCPUs with a soft home were bound to what policies gave them.
    fn seen(&self, observation: &Observation, keeps: Keeps<'_>) -> Snapshot {
        let mut seen = observation.snapshot.clone();
        let online = seen.topology.all_cpus();
        for vm in &mut seen.vms {
            let given = self.given(VmKey::from(&*vm), keeps);
            let Some(given) = given.filter(|_| is_unbound(vm, &online)) else { continue };
            for vcpu in vm.vcpus.iter_mut().filter(|vcpu| vcpu.allowed == online) {
                let own = given.vcpus.get(&vcpu.tid);
                let own = own.filter(|(start, _)| *start == vcpu.start_ticks);
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
        &self,
        observation: &Observation,
        seen: &Snapshot,
        mut decision: Decision,
        keeps: Keeps<'_>,
    ) -> Decided {
        let online = seen.topology.all_cpus();
        let (mut actions, mut new_homes, mut soft) = (Vec::new(), Vec::new(), BTreeMap::new());
        let vms = observation.snapshot.vms.iter().zip(&seen.vms);
        for ((vm, seen), verdict) in vms.zip(&mut decision.vms) {
            let key = VmKey::from(vm);
            let before = self.given(key, keeps);
            let home = soft_home(vm, verdict, &online).filter(|_| keeps(key));
            if home.is_none() && before.is_none() {
                // It was seen as it is, and is bound as decided.
                continue;
            }
            let wanted = take_vcpu_actions(&mut decision.actions, vm.id);
            let wants = |position: usize| {
                let vcpu = &seen.vcpus[position];
                wanted.get(&vcpu.tid).unwrap_or(&vcpu.allowed).clone()
            };
            let Some(node) = home else {
                actions.extend(changes(vm, wants, &verdict.why));
                continue;
            };
            actions.extend(changes(vm, |_| online.clone(), &Reason::SoftHome { node }));
            without_cores(&mut verdict.why);
            if before.is_none_or(|before| before.home != node) {
                new_homes.push(NewHome { vm: key, node, why: verdict.why.clone(), taken: false });
            }
            let given =
                |(position, vcpu): (usize, &Vcpu)| (vcpu.tid, (vcpu.start_ticks, wants(position)));
            let vcpus = vm.vcpus.iter().enumerate().map(given).collect();
            soft.insert(key, Given { home: node, vcpus });
        }
        actions.append(&mut decision.actions);
        decision.actions = actions;
        Decided { decision, new_homes, soft: SoftHomes { kept: true, given: soft } }
    }
}

/// Takes the changes of a VM's vCPUs out of what is decided: the CPUs, by thread.
fn take_vcpu_actions(actions: &mut Vec<Action>, of: VmId) -> BTreeMap<Tid, CpuSet> {
    let mut taken = BTreeMap::new();
    actions.retain(|action| match action {
        Action::SetVcpuAffinity { vm, tid, cpus, .. } if *vm == of => {
            taken.insert(*tid, cpus.clone());
            false
        }
        _ => true,
    });
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

/// No vCPU is bound to a core of its own: the kernel scheduler finds whole cores by itself.
fn without_cores(why: &mut Reason) {
    if let Reason::Placed { cores, .. } = why {
        *cores = false;
    }
}

#[cfg(test)]
mod tests;
