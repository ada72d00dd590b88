//! What a policy is given: one moment of a host, its VMs and how they loaded it over the window
//! before.
//!
//! The real host, a recording and the simulator all produce this. It knows nothing of how it was
//! measured; everything in it is plain data.

use crate::idset::{CpuSet, NodeSet};
use crate::soft::SoftAffinity;
use crate::topology::Topology;
use crate::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid, VmId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A host at one moment. VMs are ascending by id; vCPUs of a VM ascending by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was taken, on the host's monotonic clock (or the simulator's).
    pub at: Nanos,
    /// The window over which `busy` and `steal` were measured, never zero.
    pub window: Nanos,
    /// The host's processors and memory.
    pub topology: Arc<Topology>,
    /// CPUs that the host keeps from its scheduler (`isolcpus=`, isolated cpuset partitions): only
    /// threads run there that are bound to them, so no VM is placed there.
    pub isolated: CpuSet,
    /// CPU time that everything else would have used in the window if nothing competed, that is neither a
    /// vCPU of `vms` nor counted in an [`OpaqueVm::busy`]: what it used, and as far as that is known what
    /// it waited for. What it used alone would change with where VMs are placed.
    pub other_busy: Nanos,
    /// The VMs that can be placed.
    pub vms: Vec<Vm>,
    /// VMs that cannot be placed, because their vCPU threads cannot be told; they still count
    /// when asking whether the host is overcommitted.
    pub opaque: Vec<OpaqueVm>,
}

/// A VM that is seen but cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct OpaqueVm {
    /// Its monitor's process.
    pub id: VmId,
    /// Its name or a stand-in.
    pub name: String,
    /// How many vCPUs it is known to have at least.
    pub vcpus: u32,
    /// CPU time that its threads [`wanted`] in the window, the monitor's own included where they cannot
    /// be told from vCPUs. Load, but no answer to how many cores its vCPUs want.
    #[serde(rename = "busy_ns")]
    pub busy: Nanos,
    /// Why its vCPU threads cannot be told, one sentence.
    pub why: String,
}

/// What threads that cannot be placed would use if nothing competed with them: what they got, and what they
/// waited for. A thread that runs now and then waits longer than it would run, so no more of the wait counts
/// than they got; threads that compute get half of what they want, or more, unless CPUs are crowded anyway.
pub fn wanted(got: Nanos, waited: Nanos) -> Nanos {
    Nanos(got.0.saturating_add(waited.0.min(got.0)))
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Its monitor's process.
    pub id: VmId,
    /// When that process started, in ticks since the host's boot: it tells the VM from a later one of the same number. 0 where
    /// that is not known, or there is no such process (Xen, the simulator).
    #[serde(default)]
    pub start_ticks: u64,
    /// Its UUID, where one is known.
    #[serde(default)]
    pub uuid: Option<String>,
    /// What people call it; unique among the VMs of a snapshot.
    pub name: String,
    /// Its vCPUs, ascending by index, at least one.
    pub vcpus: Vec<Vcpu>,
    /// Threads of the monitor that are not vCPUs (main loop, I/O, vhost).
    pub emulators: Vec<Emulator>,
    /// Resident memory by node; nodes without any may be missing.
    pub memory: BTreeMap<NodeId, Bytes>,
    /// CPUs the VM's cgroup (cpuset) lets it use; placement stays inside.
    pub cpuset: CpuSet,
    /// Nodes its memory is bound to (mempolicy `bind` or cpuset.mems narrower than the host); none where it
    /// cannot move at all (Xen).
    pub memory_bound: Option<NodeSet>,
    /// Nodes it prefers without being bound: mempolicy `prefer` on Linux, node affinity in
    /// the simulator (Xen hosts: [`soft`](Vm::soft)).
    /// Not those that its memory is interleaved over: that spreads memory and draws no vCPU.
    pub preferred: Option<NodeSet>,
    /// Its soft affinity, which a run on a Xen host reads and sets; `None` elsewhere.
    #[serde(default)]
    pub soft: Option<SoftAffinity>,
    /// The node of each of its passthrough and vhost devices, as far as the host knows them.
    #[serde(default)]
    pub devices: Vec<NodeId>,
    /// Threads per core that the guest believes in (`-smp threads=`), at least 1. vCPUs
    /// `k * n .. (k + 1) * n` share virtual core `k`.
    pub guest_threads_per_core: u32,
    /// The guest's own NUMA nodes; empty when it has none or they are not known.
    pub guest_nodes: Vec<GuestNode>,
    /// Weight of the VM's cgroup (`cpu.weight`) against those of all other VMs, with the weights of the cgroups
    /// above it; 100 where unknown.
    pub weight: u32,
    /// The most CPU time that the VM's cgroup may use (`cpu.max`), in thousandths of a CPU; `None`
    /// without a quota or where that is unknown.
    pub quota: Option<Milli>,
    /// Time in the window in which the quota stopped the VM's vCPUs, summed over them (by `throttled_usec` of
    /// `cpu.stat`). It is no [`steal`](Vcpu::steal).
    #[serde(rename = "throttled_ns")]
    pub throttled: Nanos,
    /// By how much the VM's demand usually differs from one window to the next, in thousandths of it;
    /// `None` until that was measured.
    pub noise: Option<Milli>,
    /// Where Instep placed it in the cycle before; empty when it has not.
    pub placed: NodeSet,
}

impl Vm {
    /// A VM of usual weight of which nothing but this is known.
    pub fn new(id: VmId, name: impl Into<String>, vcpus: Vec<Vcpu>, cpuset: CpuSet) -> Self {
        Self {
            id,
            start_ticks: 0,
            uuid: None,
            name: name.into(),
            vcpus,
            emulators: Vec::new(),
            memory: BTreeMap::new(),
            cpuset,
            memory_bound: None,
            preferred: None,
            soft: None,
            devices: Vec::new(),
            guest_threads_per_core: 1,
            guest_nodes: Vec::new(),
            weight: 100,
            quota: None,
            throttled: Nanos(0),
            noise: None,
            placed: NodeSet::new(),
        }
    }
}

/// One virtual CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu {
    /// The guest's CPU number.
    pub index: u32,
    /// The host thread that runs it.
    pub tid: Tid,
    /// When that thread started, as [`Vm::start_ticks`].
    #[serde(default)]
    pub start_ticks: u64,
    /// The CPU it last ran on, if online and known.
    pub cpu: Option<CpuId>,
    /// CPUs it may use now (online ones of its affinity).
    pub allowed: CpuSet,
    /// CPUs it might use before Instep first touched it; equals `allowed` if it never did.
    pub initial: CpuSet,
    /// CPU time it used in the window.
    pub busy: Nanos,
    /// Time in the window in which it was runnable and another thread ran; without the time in which
    /// a quota stopped it.
    pub steal: Nanos,
}

impl Vcpu {
    /// A vCPU that has used nothing, and may use these CPUs as before Instep touched it.
    pub fn new(index: u32, tid: Tid, allowed: CpuSet) -> Self {
        let initial = allowed.clone();
        let (start_ticks, cpu, busy, steal) = (0, None, Nanos(0), Nanos(0));
        Self { index, tid, start_ticks, cpu, allowed, initial, busy, steal }
    }
}

/// A thread of a VM's monitor that runs no guest code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulator {
    /// The host thread.
    pub tid: Tid,
    /// When it started, as [`Vm::start_ticks`].
    #[serde(default)]
    pub start_ticks: u64,
    /// CPUs it may use now.
    pub allowed: CpuSet,
    /// CPUs it might use before Instep first touched it.
    pub initial: CpuSet,
}

/// One NUMA node that a guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNode {
    /// Its number in the guest (`nodeid=`); unique in a VM.
    #[serde(default)]
    pub id: u32,
    /// Indices of the vCPUs in it.
    pub vcpus: Vec<u32>,
    /// Its memory as configured.
    pub memory: Bytes,
    /// Resident memory of this guest node alone by host node; empty when that is not known.
    #[serde(default)]
    pub resident: BTreeMap<NodeId, Bytes>,
    /// Host nodes that the memory of this guest node is bound to (`host-nodes=` with
    /// `policy=bind`); `None` when it is not, or when that is not known.
    #[serde(default)]
    pub bound: Option<NodeSet>,
}

impl Vcpu {
    /// The CPU time it would use if nothing competed: what it used and what it waited for, in
    /// thousandths of a CPU, at most 1000.
    pub fn demand(&self, window: Nanos) -> Milli {
        let wanted = Nanos(self.busy.0.saturating_add(self.steal.0));
        Milli(wanted.milli_of(window).0.min(1000))
    }
}

impl GuestNode {
    /// Where its memory lies: what is resident, or where that is not known its configured memory
    /// in equal parts on the nodes it is bound to. Empty when neither is known.
    pub fn footprint(&self) -> BTreeMap<NodeId, Bytes> {
        match &self.bound {
            Some(bound) if self.resident.is_empty() && self.memory.0 > 0 => {
                let part = Bytes(self.memory.0 / bound.len().max(1) as u64);
                bound.iter().map(|node| (node, part)).collect()
            }
            _ => self.resident.clone(),
        }
    }
}

/// Takes as much of this time as there is out of the waits of these vCPUs, in proportion, and returns it: a thread that a CPU limit
/// holds is to the kernel one that waits.
pub fn take_from_steal(vcpus: &mut [Vcpu], held: Nanos) -> Nanos {
    let all: u128 = vcpus.iter().map(|vcpu| u128::from(vcpu.steal.0)).sum();
    let held = u128::from(held.0).min(all);
    for vcpu in vcpus.iter_mut().filter(|_| all > 0) {
        let own = u128::from(vcpu.steal.0);
        vcpu.steal = Nanos((own - own * held / all) as u64);
    }
    Nanos(held as u64)
}

impl Vm {
    /// Counts time for which a CPU limit held its threads as throttled and no longer as steal, as far as its vCPUs have steal.
    pub fn count_as_throttled(&mut self, held: Nanos) {
        let held = take_from_steal(&mut self.vcpus, held);
        self.throttled = Nanos(self.throttled.0 + held.0);
    }

    /// Where the memory of each guest node lies, in their order; `None` with fewer than two guest
    /// nodes, and unless it is known of every one that has vCPUs.
    pub fn guest_footprints(&self) -> Option<Vec<BTreeMap<NodeId, Bytes>>> {
        if self.guest_nodes.len() < 2 {
            return None;
        }
        self.guest_nodes
            .iter()
            .map(|node| {
                let footprint = node.footprint();
                let known = footprint.values().any(|bytes| bytes.0 > 0) || node.vcpus.is_empty();
                known.then_some(footprint)
            })
            .collect()
    }

    /// Per vCPU, in their order, which of the guest's nodes it is in; the first where none says.
    pub fn guest_node_of_vcpus(&self) -> Vec<usize> {
        let mut owner = BTreeMap::new();
        for (position, node) in self.guest_nodes.iter().enumerate() {
            node.vcpus.iter().for_each(|index| _ = owner.entry(*index).or_insert(position));
        }
        self.vcpus.iter().map(|vcpu| owner.get(&vcpu.index).copied().unwrap_or(0)).collect()
    }

    /// CPU time that all vCPUs used in the window.
    pub fn busy(&self) -> Nanos {
        Nanos(self.vcpus.iter().map(|vcpu| vcpu.busy.0).fold(0, u64::saturating_add))
    }

    /// The [demand](Vcpu::demand) of each vCPU, in proportion less where the VM's quota allows less.
    pub fn demands(&self, window: Nanos) -> Vec<Milli> {
        let mut demands: Vec<Milli> = self.vcpus.iter().map(|vcpu| vcpu.demand(window)).collect();
        let all: u64 = demands.iter().map(|demand| demand.0).sum();
        if let Some(Milli(quota)) = self.quota.filter(|quota| quota.0 < all) {
            demands.iter_mut().for_each(|demand| demand.0 = demand.0 * quota / all);
        }
        demands
    }

    /// Time in the window that its vCPUs waited for a CPU.
    pub fn steal(&self) -> Nanos {
        Nanos(self.vcpus.iter().map(|vcpu| vcpu.steal.0).fold(0, u64::saturating_add))
    }

    /// Sum of the vCPUs' [demands](Vm::demands).
    pub fn demand(&self, window: Nanos) -> Milli {
        Milli(self.demands(window).iter().map(|demand| demand.0).sum())
    }

    /// Resident memory on `node`.
    pub fn memory_on(&self, node: NodeId) -> Bytes {
        self.memory.get(&node).copied().unwrap_or_default()
    }

    /// Resident memory on all nodes.
    pub fn memory_total(&self) -> Bytes {
        Bytes(self.memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add))
    }

    /// CPUs that any of its vCPUs may use now.
    pub fn allowed(&self) -> CpuSet {
        self.vcpus.iter().fold(CpuSet::new(), |all, vcpu| all.or(&vcpu.allowed))
    }
}

impl Snapshot {
    /// The VM with this id.
    pub fn vm(&self, id: VmId) -> Option<&Vm> {
        self.vms.binary_search_by_key(&id, |vm| vm.id).ok().map(|index| &self.vms[index])
    }

    /// CPU time that everything that is not a vCPU of `vms` used or would have used in the window: load
    /// that placement cannot move.
    pub fn fixed_busy(&self) -> Nanos {
        let opaque = self.opaque.iter().map(|vm| vm.busy.0);
        Nanos(opaque.fold(self.other_busy.0, u64::saturating_add))
    }

    /// vCPUs of all VMs, those that cannot be placed included.
    pub fn vcpu_count(&self) -> u64 {
        let known: u64 = self.vms.iter().map(|vm| vm.vcpus.len() as u64).sum();
        known + self.opaque.iter().map(|vm| u64::from(vm.vcpus)).sum::<u64>()
    }
}
