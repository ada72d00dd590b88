//! The host's processors and memory as the policies see them: CPUs in cores, cores in clusters,
//! LLCs, packages and NUMA nodes.
//!
//! Built by [`Topology::build`] from plain [`CpuFacts`] and [`NodeFacts`], whoever gathered them
//! (sysfs, a scenario file, a test). Holds online CPUs only. Knows nothing of files.

mod build;
mod lanes;
mod nodes;
mod partition;

pub use build::TopologyError;
pub use lanes::{LANES, Lane, lanes};

use crate::idset::{CpuSet, NodeSet};
use crate::units::{Bytes, ClusterId, CoreId, CpuId, LlcId, NodeId, PackageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which kind of core a CPU belongs to on a hybrid processor.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CoreKind {
    /// A core built for speed (Intel P-core, Arm big).
    Performance,
    /// A core built for efficiency (Intel E-core, Arm LITTLE).
    Efficient,
}

/// What is known of one online CPU before it is grouped. Sets may name offline CPUs; they are
/// ignored. A missing fact is `None`, never a guess.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// The kernel's CPU number.
    pub id: u32,
    /// `topology/physical_package_id`; negative values of the kernel (unknown) are `None`.
    pub package: Option<u32>,
    /// `topology/thread_siblings_list`.
    pub thread_siblings: Option<CpuSet>,
    /// CPUs that share this CPU's level 1 instruction cache.
    pub l1i: Option<CpuSet>,
    /// CPUs that share this CPU's level 2 cache.
    pub l2: Option<CpuSet>,
    /// CPUs that share this CPU's cache of the highest level.
    pub llc: Option<CpuSet>,
    /// Kind of core on a hybrid machine.
    pub kind: Option<CoreKind>,
}

/// What is known of one online NUMA node before it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The kernel's node number.
    pub id: u32,
    /// CPUs of the node, offline ones included or not.
    pub cpus: CpuSet,
    /// Installed memory.
    pub memory: Bytes,
    /// `distance`: to every online node in ascending order of node number; 10 is local.
    pub distances: Vec<u32>,
}

/// One online CPU and where it sits. `PartialOrd` follows the CPU number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The kernel's CPU number.
    pub id: CpuId,
    /// The core: what shares fetch and decode.
    pub core: CoreId,
    /// The cluster: what shares an L2 (equal to the core's own where L2 is private).
    pub cluster: ClusterId,
    /// The last-level cache.
    pub llc: LlcId,
    /// The package.
    pub package: PackageId,
    /// The NUMA node.
    pub node: NodeId,
    /// Kind of core on a hybrid machine, `None` elsewhere.
    pub kind: Option<CoreKind>,
}

/// One online NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's node number.
    pub id: NodeId,
    /// Online CPUs of the node; empty on a memory-only node.
    pub cpus: CpuSet,
    /// Installed memory.
    pub memory: Bytes,
    /// Distance to every online node, in the order of [`Topology::nodes`]; 10 is local.
    pub distances: Vec<u32>,
}

/// A checked host topology. Invariants: CPUs ascending by number, nodes ascending by number,
/// every CPU in exactly one core, cluster, LLC, package and node; every core inside one cluster,
/// every cluster inside one LLC, every LLC inside one package and one node; ids of cores,
/// clusters, LLCs and packages dense from 0 in order of the lowest CPU; at least one CPU and
/// node; every `distances` as long as `nodes`, with 10 at the node's own place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
    cores: Vec<CpuSet>,
    clusters: Vec<CpuSet>,
    llcs: Vec<CpuSet>,
    packages: Vec<CpuSet>,
    /// Node numbers that were found to be another node again, with that node; ascending.
    merged_nodes: Vec<(NodeId, NodeId)>,
    /// What was found wrong with the facts and how it was put right.
    warnings: Vec<String>,
}

impl Topology {
    /// Online CPUs, ascending.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The CPU with this number, if it is online.
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().map(|index| &self.cpus[index])
    }

    /// Online nodes, ascending.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number, if it is online.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|index| &self.nodes[index])
    }

    /// CPUs of every core, indexed by [`CoreId`].
    pub fn cores(&self) -> &[CpuSet] {
        &self.cores
    }

    /// CPUs of every cluster, indexed by [`ClusterId`].
    pub fn clusters(&self) -> &[CpuSet] {
        &self.clusters
    }

    /// CPUs of every last-level cache, indexed by [`LlcId`].
    pub fn llcs(&self) -> &[CpuSet] {
        &self.llcs
    }

    /// CPUs of every package, indexed by [`PackageId`].
    pub fn packages(&self) -> &[CpuSet] {
        &self.packages
    }

    /// What was wrong with the machine's tables, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The same topology with sentences that its reader has to say put before the builder's.
    #[must_use]
    pub fn with_earlier_warnings(mut self, mut earlier: Vec<String>) -> Self {
        earlier.append(&mut self.warnings);
        self.warnings = earlier;
        self
    }

    /// The node that memory on the kernel's node `id` counts to: `id` itself where it is one of
    /// [`Topology::nodes`], the node it was merged into where several node numbers turned out to
    /// be one node (emulated NUMA), `None` for a node that is not online.
    pub fn memory_node(&self, id: NodeId) -> Option<NodeId> {
        let merged = self.merged_nodes.binary_search_by_key(&id, |(from, _)| *from);
        merged.ok().map(|at| self.merged_nodes[at].1).or(self.node(id).map(|node| node.id))
    }

    /// The kernel's nodes whose memory counts to these: the nodes themselves and those that were
    /// merged into them, the opposite of [`Topology::memory_node`].
    pub fn kernel_nodes(&self, nodes: &NodeSet) -> NodeSet {
        let merged = self.merged_nodes.iter().filter(|(_, to)| nodes.contains(*to));
        nodes.iter().chain(merged.map(|(from, _)| *from)).collect()
    }

    /// All online CPUs.
    pub fn all_cpus(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// Nodes that have memory and no CPUs (CXL).
    pub fn memory_only_nodes(&self) -> NodeSet {
        self.nodes.iter().filter(|node| node.cpus.is_empty()).map(|node| node.id).collect()
    }

    /// Online CPUs of these nodes.
    pub fn cpus_of(&self, nodes: &NodeSet) -> CpuSet {
        self.nodes
            .iter()
            .filter(|node| nodes.contains(node.id))
            .fold(CpuSet::new(), |cpus, node| cpus.or(&node.cpus))
    }

    /// Nodes that these CPUs belong to; offline CPUs belong to none.
    pub fn nodes_of(&self, cpus: &CpuSet) -> NodeSet {
        self.nodes.iter().filter(|node| node.cpus.intersects(cpus)).map(|node| node.id).collect()
    }

    /// SLIT distance between two online nodes; 10 is local, `None` if either is not online.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let to = self.nodes.binary_search_by_key(&to, |node| node.id).ok()?;
        self.node(from)?.distances.get(to).copied()
    }
}
