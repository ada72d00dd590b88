//! A moment of the history as it is read: what `instep top --replay` shows of it.
//!
//! Of the schemas `instep.moment/1` and, in it, `instep.host/1`. What is missing is empty or unknown, so that moments that
//! another version wrote can be read, too. Texts are those of others: they are printed only through what makes them fit.

use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid, VmId};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a run found and did in one cycle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PublishedCycle {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// What was changed.
    #[serde(default)]
    pub changes: Vec<MomentChange>,
    /// The host.
    pub host: MomentHost,
}

/// A change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MomentChange {
    /// The VM's name.
    pub vm: String,
    /// `vcpu_affinity`, `emulator_affinity`, `soft_home`, `move_memory`.
    pub kind: String,
    /// CPUs, nodes or bytes, in words.
    pub to: String,
    /// Why.
    pub why: String,
    /// `done`, or what stood in the way.
    pub outcome: String,
}

/// The host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct MomentHost {
    /// The time over which loads were measured.
    #[serde(default)]
    pub window_ns: Nanos,
    /// CPUs that all else used.
    #[serde(default)]
    pub others_milli: Milli,
    /// NUMA nodes.
    #[serde(default)]
    pub nodes: Vec<MomentNode>,
    /// VMs.
    #[serde(default)]
    pub vms: Vec<MomentVm>,
    /// VMs that are not placed: their number is all that readers need.
    #[serde(default)]
    pub left_alone: Vec<serde::de::IgnoredAny>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MomentNode {
    /// Its number.
    pub id: NodeId,
    /// Its last-level caches, their cores, the CPUs of these.
    pub llcs: Vec<Vec<Vec<CpuId>>>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MomentVm {
    /// Its name.
    pub name: String,
    /// Its monitor's process.
    pub pid: VmId,
    /// In CPUs.
    pub used_milli: Milli,
    /// In CPUs.
    pub steal_milli: Milli,
    /// In CPUs.
    pub throttled_milli: Milli,
    /// CPUs that it may use; `None` without a quota.
    pub quota_milli: Option<Milli>,
    /// `None` where it is not known.
    #[serde(default)]
    pub co_run_milli: Option<Milli>,
    /// Where its memory lies.
    #[serde(default)]
    pub memory_bytes_by_node: BTreeMap<NodeId, Bytes>,
    /// Why it was placed so.
    #[serde(default)]
    pub why: String,
    /// Its vCPUs.
    pub vcpus: Vec<MomentVcpu>,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MomentVcpu {
    /// Its number.
    pub index: u32,
    /// Its thread.
    #[serde(default)]
    pub tid: Option<Tid>,
    /// Where it ran last.
    pub cpu: Option<CpuId>,
    /// In CPUs.
    pub used_milli: Milli,
    /// In CPUs.
    pub steal_milli: Milli,
    /// CPUs that it may use.
    pub cpus: String,
}

impl PublishedCycle {
    /// Reads a line of the history.
    ///
    /// # Errors
    /// It is no moment: what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}
