//! Decisions as documented JSON: what `plan` prints and what `run` records, in the same shapes.
//!
//! VMs are named by their id (`a VM's unique name`), CPU and node sets are arrays of numbers.

use instep_core::conflict::Conflict;
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::reason::Reason;
use instep_core::snapshot::Snapshot;
use instep_core::units::{Bytes, NodeId, Tid, VmId};
use schemars::JsonSchema;
use serde::Serialize;

/// The verdict on one VM.
#[derive(Debug, JsonSchema, Serialize)]
pub struct VerdictView<'a> {
    /// The VM's unique name.
    pub id: &'a str,
    /// The same, for readers that look for a name.
    pub name: &'a str,
    /// Whether the policy takes charge of it.
    pub selected: bool,
    /// The node it shall live on; null when that is left open or several.
    pub home_node: Option<NodeId>,
    /// All nodes it shall live on.
    pub home_nodes: &'a NodeSet,
    /// Why, or why not.
    pub why: String,
}

/// A member that every action has and that says nothing for this kind: `null`.
type Null = ();

/// One change to the host. Every kind has `vm`, `vcpu`, `tid`, `cpus` and `why`.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ActionView<'a> {
    /// Let a vCPU thread use exactly `cpus`.
    VcpuAffinity {
        /// The VM's unique name.
        vm: &'a str,
        /// The guest's CPU number.
        vcpu: u32,
        /// The host thread.
        tid: Tid,
        /// The CPUs.
        cpus: &'a CpuSet,
        /// Why.
        why: String,
    },
    /// Let a monitor's thread that is no vCPU use exactly `cpus`.
    EmulatorAffinity {
        /// The VM's unique name.
        vm: &'a str,
        /// It runs none.
        vcpu: Null,
        /// The host thread.
        tid: Tid,
        /// The CPUs.
        cpus: &'a CpuSet,
        /// Why.
        why: String,
    },
    /// Tell the kernel scheduler that the VM is at home on `node`; its vCPUs are not bound to it.
    SoftHome {
        /// The VM's unique name.
        vm: &'a str,
        /// It concerns all of them.
        vcpu: Null,
        /// It concerns no single thread.
        tid: Null,
        /// It binds to none.
        cpus: Null,
        /// The node.
        node: NodeId,
        /// Why.
        why: String,
    },
    /// Let vCPUs prefer CPUs among those that they may use, and take memory from `nodes` (Xen).
    SoftAffinity {
        /// The VM's unique name.
        vm: &'a str,
        /// It concerns those of `soft`.
        vcpu: Null,
        /// It concerns no thread.
        tid: Null,
        /// It binds to none.
        cpus: Null,
        /// The vCPUs that change, each with the CPUs it is to prefer.
        soft: Vec<SoftView<'a>>,
        /// The node affinity; null where it stays.
        nodes: Option<&'a NodeSet>,
        /// Why.
        why: String,
    },
    /// Bring memory to `nodes`.
    MoveMemory {
        /// The VM's unique name.
        vm: &'a str,
        /// It concerns all of them.
        vcpu: Null,
        /// It concerns no thread.
        tid: Null,
        /// It concerns no CPUs.
        cpus: Null,
        /// Its monitor's process.
        pid: VmId,
        /// The guest's NUMA node whose memory it is, by the guest's number; null for all of it.
        guest_node: Option<u32>,
        /// Where the memory shall be.
        nodes: &'a NodeSet,
        /// How much lies elsewhere.
        remote_bytes: Bytes,
        /// Why.
        why: String,
    },
}

/// The soft affinity of one vCPU.
#[derive(Debug, JsonSchema, Serialize)]
pub struct SoftView<'a> {
    /// The guest's CPU number.
    pub vcpu: u32,
    /// The CPUs it is to prefer.
    pub cpus: &'a CpuSet,
}

impl ActionView<'_> {
    /// The VM's unique name.
    #[must_use]
    pub fn vm(&self) -> &str {
        match self {
            Self::VcpuAffinity { vm, .. }
            | Self::EmulatorAffinity { vm, .. }
            | Self::SoftHome { vm, .. }
            | Self::SoftAffinity { vm, .. }
            | Self::MoveMemory { vm, .. } => vm,
        }
    }
}

/// One conflict: its kind with the facts, and the sentence.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ConflictView<'a> {
    /// The VM's unique name.
    pub vm: &'a str,
    /// What is at odds.
    #[serde(flatten)]
    pub kind: &'a instep_core::conflict::ConflictKind,
    /// The same in words.
    pub text: String,
}

/// The name of a VM of the snapshot; `?` for one that is not in it.
#[must_use]
pub fn name_of(snapshot: &Snapshot, vm: VmId) -> &str {
    snapshot.vm(vm).map_or("?", |vm| &vm.name)
}

/// The verdicts of a decision, in its order.
#[must_use]
pub fn verdicts<'a>(snapshot: &'a Snapshot, decision: &'a Decision) -> Vec<VerdictView<'a>> {
    let view = |verdict: &'a instep_core::decision::Verdict| {
        let name = name_of(snapshot, verdict.vm);
        VerdictView {
            id: name,
            name,
            selected: verdict.selected,
            home_node: verdict.home.first().filter(|_| verdict.home.len() == 1),
            home_nodes: &verdict.home,
            why: verdict.why.to_string(),
        }
    };
    decision.vms.iter().map(view).collect()
}

/// One action.
#[must_use]
pub fn action<'a>(snapshot: &'a Snapshot, action: &'a Action) -> ActionView<'a> {
    let vm = name_of(snapshot, action.vm());
    let why = action.why().to_string();
    match action {
        Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
            ActionView::VcpuAffinity { vm, vcpu: *vcpu, tid: *tid, cpus, why }
        }
        Action::SetEmulatorAffinity { tid, cpus, .. } => {
            ActionView::EmulatorAffinity { vm, vcpu: (), tid: *tid, cpus, why }
        }
        Action::SetSoftAffinity { vcpus, nodes, .. } => {
            let soft = vcpus.iter().map(|(vcpu, cpus)| SoftView { vcpu: *vcpu, cpus }).collect();
            let (vcpu, tid, cpus) = ((), (), ());
            ActionView::SoftAffinity { vm, vcpu, tid, cpus, soft, nodes: nodes.as_ref(), why }
        }
        Action::MoveMemory { vm: pid, guest_node, to, remote, .. } => {
            let (vcpu, tid, cpus, pid) = ((), (), (), *pid);
            ActionView::MoveMemory {
                vm,
                vcpu,
                tid,
                cpus,
                pid,
                guest_node: *guest_node,
                nodes: to,
                remote_bytes: *remote,
                why,
            }
        }
    }
}

/// The kernel scheduler is told a home.
#[must_use]
pub fn soft_home<'a>(
    snapshot: &'a Snapshot,
    vm: VmId,
    node: NodeId,
    why: &Reason,
) -> ActionView<'a> {
    let (vm, why) = (name_of(snapshot, vm), why.to_string());
    ActionView::SoftHome { vm, vcpu: (), tid: (), cpus: (), node, why }
}

/// The conflicts, in their order.
#[must_use]
pub fn conflicts<'a>(snapshot: &'a Snapshot, conflicts: &'a [Conflict]) -> Vec<ConflictView<'a>> {
    conflicts
        .iter()
        .map(|conflict| ConflictView {
            vm: name_of(snapshot, conflict.vm),
            kind: &conflict.kind,
            text: conflict.kind.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    #[test]
    fn every_kind_of_action_has_the_same_members() {
        let (cpus, nodes, why) = (CpuSet::one(CpuId(1)), NodeSet::one(NodeId(0)), String::new);
        let actions = [
            ActionView::VcpuAffinity { vm: "a", vcpu: 0, tid: Tid(7), cpus: &cpus, why: why() },
            ActionView::EmulatorAffinity {
                vm: "a",
                vcpu: (),
                tid: Tid(7),
                cpus: &cpus,
                why: why(),
            },
            ActionView::SoftHome {
                vm: "a",
                vcpu: (),
                tid: (),
                cpus: (),
                node: NodeId(1),
                why: why(),
            },
            ActionView::SoftAffinity {
                vm: "a",
                vcpu: (),
                tid: (),
                cpus: (),
                soft: vec![SoftView { vcpu: 0, cpus: &cpus }],
                nodes: Some(&nodes),
                why: why(),
            },
            ActionView::MoveMemory {
                vm: "a",
                vcpu: (),
                tid: (),
                cpus: (),
                pid: VmId(7),
                guest_node: None,
                nodes: &nodes,
                remote_bytes: Bytes(1),
                why: why(),
            },
        ];
        let kinds =
            ["vcpu_affinity", "emulator_affinity", "soft_home", "soft_affinity", "move_memory"];
        for (action, kind) in actions.iter().zip(kinds) {
            let json = serde_json::to_value(action).unwrap();
            assert_eq!(json["kind"], kind);
            for member in ["vm", "vcpu", "tid", "cpus", "why"] {
                assert!(json.get(member).is_some(), "{kind} lacks {member}");
            }
        }
    }
}
