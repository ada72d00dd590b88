//! What a recording says before and after its events, as JSON: the host, its VMs, how it was
//! recorded; what was counted and lost. Unknown keys are passed over, missing ones are empty.

use crate::error::Fault;
use crate::stream::{Counter, Header, Throttled, TracedGuest};
use crate::topology::TopologyDocument;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The first block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Head {
    /// The host's name.
    pub hostname: Option<String>,
    /// The kernel's release.
    pub release: Option<String>,
    /// The command that records.
    pub command: Option<String>,
    /// Version of Instep that records.
    pub instep: Option<String>,
    /// How events are collected: `bpf` or `tracefs`.
    pub source: Option<String>,
    /// The clock of all times: `monotonic`.
    pub clock: Option<String>,
    /// The time of day at the beginning, in seconds since 1970.
    pub started_unix_s: Option<u64>,
    /// Online CPUs.
    pub cpus: Option<u32>,
    /// Cores, caches and nodes.
    pub topology: Option<TopologyDocument>,
    /// VMs that ran at the beginning.
    pub vms: Vec<VmHead>,
    /// Names of the VMs whose wake-ups and moves alone are recorded; empty where all are.
    pub only: Vec<String>,
    /// What was odd while it began.
    pub warnings: Vec<String>,
}

/// A VM that ran at the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VmHead {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuHead>,
    /// `cpu.weight` of its cgroup, where known.
    pub weight: Option<u32>,
}

/// A vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VcpuHead {
    /// Its number.
    pub index: u32,
    /// Its thread.
    pub tid: u32,
}

/// The last block. A recording without one was cut.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// Why it ended, in words.
    pub ended: String,
    /// How long it recorded.
    pub duration_ns: u64,
    /// Events in the blocks before, the facts of threads and marks of rounds included.
    pub records: u64,
    /// Events that were lost, by where.
    pub lost: Vec<Lost>,
    /// CPU time that the recorder itself used, and that its programs in the kernel used where the
    /// kernel counts that.
    pub cost_ns: Option<u64>,
    /// See [`End::cost_ns`].
    pub kernel_cost_ns: Option<u64>,
    /// What the kernel itself counted of each vCPU's thread meanwhile: the recording can be held
    /// against it.
    pub counters: Vec<Counter>,
    /// What the CPU quotas of VMs did meanwhile, of VMs that had one.
    pub throttled: Vec<Throttled>,
}

/// Events lost in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "LostEvents")]
#[serde(default)]
pub struct Lost {
    /// Where: `ring` (no room), `nested` (the kernel was recording already).
    pub place: String,
    /// How many.
    pub events: u64,
}

impl Head {
    /// From a block's contents.
    pub(super) fn parse(bytes: &[u8]) -> Result<Head, Fault> {
        serde_json::from_slice(bytes)
            .map_err(|error| Fault::new(format!("its head makes no sense: {error}")))
    }

    /// What an analysis needs of it.
    pub(super) fn header(&self, version: u16) -> Header {
        let source = self.source.as_deref().unwrap_or("unknown");
        let mut header = Header {
            is_own: true,
            format: format!("Instep recording version {version} ({source})"),
            hostname: self.hostname.clone(),
            release: self.release.clone(),
            cpus: self.cpus,
            only: self.only.clone(),
            warnings: self
                .warnings
                .iter()
                .map(|said| format!("when it was recorded: {said}"))
                .collect(),
            ..Header::default()
        };
        let guest = |vm: &VmHead| TracedGuest {
            name: vm.name.clone(),
            pid: Some(vm.pid),
            vcpus: vm.vcpus.iter().map(|vcpu| (vcpu.index, vcpu.tid)).collect(),
            weight: vm.weight,
        };
        header.guests = self.vms.iter().map(guest).collect();
        match self.topology.as_ref().map(TopologyDocument::topology) {
            Some(Ok(topology)) => header.topology = Some(topology),
            Some(Err(why)) => header.warnings.push(format!("the head's topology: {why}")),
            None => {}
        }
        header
    }
}

impl End {
    /// From a block's contents.
    pub(super) fn parse(bytes: &[u8]) -> Result<End, Fault> {
        serde_json::from_slice(bytes)
            .map_err(|error| Fault::new(format!("its end makes no sense: {error}")))
    }
}
