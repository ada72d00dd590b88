//! Placement policies: a snapshot in, a decision with reasons out. Pure, deterministic and
//! independent of the order of their input.

mod bnn;
mod fixed;
pub mod idle;
mod instep;
mod wish;

use crate::conflict::{self, ConflictKind};
use crate::decision::{Decision, Verdict};
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The placement policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// The least predicted loss of CPU time (docs/policies.md).
    #[default]
    Instep,
    /// Best NUMA Node as published (systems.md 4).
    Bnn,
    /// Optimal affinity: one CPU of every core (systems.md 1, remedy c).
    Spread,
    /// Hand binding: equal VMs per node (systems.md 4, "bind").
    Bind,
    /// Leave everything to the kernel.
    None,
}

impl PolicyName {
    /// All policies, the default first.
    pub const ALL: [PolicyName; 5] = [
        PolicyName::Instep,
        PolicyName::Bnn,
        PolicyName::Spread,
        PolicyName::Bind,
        PolicyName::None,
    ];

    /// The name as written on a command line.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Instep => "instep",
            PolicyName::Bnn => "bnn",
            PolicyName::Spread => "spread",
            PolicyName::Bind => "bind",
            PolicyName::None => "none",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownPolicy { name: text.chars().take(40).collect() })
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{name}`; known are {}", PolicyName::ALL.map(PolicyName::as_str).join(", "))]
pub struct UnknownPolicy {
    /// The name given, cut to 40 characters.
    pub name: String,
}

/// How a policy shall treat what operators have set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// Which policy.
    pub policy: PolicyName,
    /// Mend affinity conflicts, even where that widens an initial affinity (never the cpuset) or
    /// takes charge of a VM pinned by hand.
    pub mend_conflicts: bool,
    /// Take charge of VMs whose vCPUs were pinned by hand, too.
    pub include_pinned: bool,
    /// Bring memory home from nodes that have memory and no CPUs (CXL), too, which are left to the kernel's tiering
    /// else. Only `instep` looks at this.
    pub memory_only_nodes: bool,
}

/// Where a VM should start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The nodes for its memory.
    pub nodes: NodeSet,
    /// The CPUs for its vCPUs.
    pub cpus: CpuSet,
    /// Why there.
    pub why: Reason,
}

/// Where the VM with the highest id, which has not started yet, should start, by the objective of `instep`,
/// while all other VMs keep the CPUs that they may use now.
///
/// # Errors
/// It may be nowhere.
pub fn advise(mut snapshot: Snapshot) -> Result<Advice, Reason> {
    snapshot.vms.sort_by_key(|vm| vm.id);
    for vcpu in snapshot.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        vcpu.initial = vcpu.allowed.clone();
    }
    let (nodes, cpus, why) = instep::advise(&snapshot)?;
    Ok(Advice { nodes, cpus, why })
}

/// Of the objective of `instep`, on a host where nothing is in force: what its plan loses, and what the best
/// of all plans does, in millionths of a CPU. `None` on a host with more than `most` plans, as it tries all.
pub fn against_exact(snapshot: &Snapshot, most: usize) -> Option<(i64, i64)> {
    instep::against_exact(snapshot, most)
}

/// Decides for one snapshot.
///
/// The result holds one verdict per VM, in the snapshot's order, and only actions that change
/// something: applied to the snapshot, a second decision changes no affinity. Every vCPU keeps at least one CPU,
/// inside its VM's cpuset and, unless conflicts are mended, inside its initial affinity. The order
/// of VMs and threads in the snapshot does not matter.
pub fn decide(snapshot: &Snapshot, settings: &PolicySettings) -> Decision {
    if is_sorted(snapshot) {
        return decide_sorted(snapshot, settings);
    }
    let mut order: Vec<usize> = (0..snapshot.vms.len()).collect();
    order.sort_by_key(|index| snapshot.vms[*index].id);
    let mut sorted = snapshot.clone();
    sorted.vms = order.iter().map(|index| snapshot.vms[*index].clone()).collect();
    for vm in &mut sorted.vms {
        vm.vcpus.sort_by_key(|vcpu| vcpu.index);
        vm.emulators.sort_by_key(|emulator| emulator.tid);
    }
    let mut decision = decide_sorted(&sorted, settings);
    let mut verdicts: Vec<(usize, Verdict)> = order.into_iter().zip(decision.vms).collect();
    verdicts.sort_by_key(|(index, _)| *index);
    decision.vms = verdicts.into_iter().map(|(_, verdict)| verdict).collect();
    decision
}

fn is_sorted(snapshot: &Snapshot) -> bool {
    snapshot.vms.is_sorted_by_key(|vm| vm.id)
        && snapshot.vms.iter().all(|vm| {
            vm.vcpus.is_sorted_by_key(|vcpu| vcpu.index)
                && vm.emulators.is_sorted_by_key(|emulator| emulator.tid)
        })
}

/// Decides for a snapshot whose VMs, vCPUs and emulators are in ascending order.
fn decide_sorted(snapshot: &Snapshot, settings: &PolicySettings) -> Decision {
    let conflicts = conflict::find(snapshot);
    let mend: Vec<Option<ConflictKind>> = if settings.mend_conflicts {
        conflict::mendable(snapshot)
    } else {
        vec![None; snapshot.vms.len()]
    };
    let wishes = match settings.policy {
        PolicyName::Instep => instep::decide(snapshot, settings, &mend),
        PolicyName::Bnn => bnn::decide(snapshot, &mend),
        PolicyName::Spread => fixed::spread(snapshot, &mend),
        PolicyName::Bind => fixed::bind(snapshot, &mend),
        PolicyName::None => fixed::none(snapshot),
    };
    wish::decision(snapshot, wishes, conflicts, settings.mend_conflicts)
}
