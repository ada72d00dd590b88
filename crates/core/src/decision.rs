//! What a policy answers: per VM a verdict with its reason, and the actions that carry it out.
//!
//! Actions are plain data. They say what shall be, not how; the host adapter and the simulator
//! each carry them out in their own way.

use crate::conflict::Conflict;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::units::{Bytes, Tid, VmId};

/// Everything a policy decided for one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// One verdict per VM of the snapshot, in the snapshot's order.
    pub vms: Vec<Verdict>,
    /// What to change, in the order in which to change it; nothing that is so already.
    pub actions: Vec<Action>,
    /// What is at odds with itself on this host, mended by `actions` or only reported.
    pub conflicts: Vec<Conflict>,
}

/// What a policy decided for one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The VM.
    pub vm: VmId,
    /// Whether the policy takes charge of it; the others stay with the kernel's scheduler.
    pub selected: bool,
    /// The nodes it shall live on; empty when the policy leaves that open.
    pub home: NodeSet,
    /// Why, or why not.
    pub why: Reason,
}

/// One change to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let a vCPU thread use exactly these CPUs.
    SetVcpuAffinity {
        /// The VM.
        vm: VmId,
        /// The guest's CPU number.
        vcpu: u32,
        /// The host thread.
        tid: Tid,
        /// The CPUs, never empty.
        cpus: CpuSet,
        /// Why.
        why: Reason,
    },
    /// Let a monitor's thread that is no vCPU use exactly these CPUs.
    SetEmulatorAffinity {
        /// The VM.
        vm: VmId,
        /// The host thread.
        tid: Tid,
        /// The CPUs, never empty.
        cpus: CpuSet,
        /// Why.
        why: Reason,
    },
    /// Let vCPUs prefer these CPUs among those that they may use, and take the VM's memory from these nodes (Xen:
    /// soft affinity and node affinity).
    SetSoftAffinity {
        /// The VM.
        vm: VmId,
        /// The vCPUs that change, each with the CPUs it is to prefer.
        vcpus: Vec<(u32, CpuSet)>,
        /// The nodes for its memory; `None` where they stay as they are.
        nodes: Option<NodeSet>,
        /// Why.
        why: Reason,
    },
    /// Bring the memory of a VM, or of one of its guest's nodes, to these nodes.
    MoveMemory {
        /// The VM.
        vm: VmId,
        /// The guest's NUMA node whose memory it is, by [its number](crate::snapshot::GuestNode::id);
        /// `None` for all of the VM's.
        guest_node: Option<u32>,
        /// Where its memory shall be, nearest first choice of the kernel among them.
        to: NodeSet,
        /// How much lies elsewhere now.
        remote: Bytes,
        /// Why.
        why: Reason,
    },
}

impl Action {
    /// The VM it concerns.
    pub fn vm(&self) -> VmId {
        match self {
            Action::SetVcpuAffinity { vm, .. }
            | Action::SetEmulatorAffinity { vm, .. }
            | Action::SetSoftAffinity { vm, .. }
            | Action::MoveMemory { vm, .. } => *vm,
        }
    }

    /// Why it is done.
    pub fn why(&self) -> &Reason {
        match self {
            Action::SetVcpuAffinity { why, .. }
            | Action::SetEmulatorAffinity { why, .. }
            | Action::SetSoftAffinity { why, .. }
            | Action::MoveMemory { why, .. } => why,
        }
    }
}
