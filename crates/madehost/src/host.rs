//! The hardware of a made host: how many nodes, cores, threads and caches, and which CPU number
//! each thread gets.
//!
//! Everything is derived from the few numbers of [`HostSpec`] and the position of a core; the
//! order of cores is node by node. Knows nothing of files.

use instep_core::idset::{CpuSet, NodeSet};
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts};
use instep_core::units::{Bytes, CpuId, NodeId};

/// In which order CPU numbers go over the threads of the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// The threads of a core follow each other: 0 and 1 are siblings (AMD, Arm, guests).
    #[default]
    SiblingsAdjacent,
    /// First threads of all cores, then the second ones: 0 and N are siblings (most Intel).
    SiblingsFar,
}

/// The hardware of a host. Change the fields of a [`HostSpec::new`] as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// NUMA nodes with CPUs, at least 1.
    pub nodes: u32,
    /// NUMA nodes with memory and no CPUs (CXL), after the others.
    pub memory_only_nodes: u32,
    /// Distance between two consecutive node numbers, at least 1 (POWER hosts leave gaps).
    pub node_stride: u32,
    /// Processor packages, at least 1; more nodes than packages or fewer.
    pub packages: u32,
    /// Cores of a node, at least 1.
    pub cores_per_node: u32,
    /// Threads of a core, at least 1.
    pub threads_per_core: u32,
    /// The last cores of every node that are efficient ones: single-threaded, four to an L2.
    pub efficient_cores_per_node: u32,
    /// The threads of a core are AMD modules' halves: each its own `core_id`, L1i and L2 shared.
    pub modules: bool,
    /// Cores that share an L2, at least 1; 1 is a private L2.
    pub cores_per_l2: u32,
    /// Level 3 caches of a node; 0 for a processor without one.
    pub llcs_per_node: u32,
    /// Installed memory of every node.
    pub memory_per_node: Bytes,
    /// SLIT distances, row by row; `None` for 10 on the diagonal, 12 within a package, else 21.
    pub distances: Option<Vec<Vec<u32>>>,
    /// CPU numbering.
    pub numbering: Numbering,
    /// CPUs that are present and offline.
    pub offline: CpuSet,
}

/// Where one CPU sits, online or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) cpu: CpuId,
    /// Number of the core, host-wide.
    pub(crate) core: u32,
    /// Which thread of its core.
    pub(crate) thread: u32,
    /// Number of the L2, host-wide.
    pub(crate) l2: u32,
    /// Number of the last-level cache, host-wide.
    pub(crate) llc: u32,
    pub(crate) package: u32,
    pub(crate) node: NodeId,
    pub(crate) kind: Option<CoreKind>,
}

impl HostSpec {
    /// `nodes` packages of one node each, with one last-level cache, 16 GiB and no SMT.
    #[must_use]
    pub fn new(nodes: u32, cores_per_node: u32) -> Self {
        Self {
            nodes,
            memory_only_nodes: 0,
            node_stride: 1,
            packages: nodes,
            cores_per_node,
            threads_per_core: 1,
            efficient_cores_per_node: 0,
            modules: false,
            cores_per_l2: 1,
            llcs_per_node: 1,
            memory_per_node: Bytes::from_mib(16 << 10),
            distances: None,
            numbering: Numbering::SiblingsAdjacent,
            offline: CpuSet::new(),
        }
    }

    /// The same with `threads` threads a core.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads_per_core = threads;
        self
    }

    /// The same with siblings numbered far apart.
    #[must_use]
    pub fn siblings_far(mut self) -> Self {
        self.numbering = Numbering::SiblingsFar;
        self
    }

    /// Numbers of all nodes, ascending.
    #[must_use]
    pub fn node_ids(&self) -> Vec<NodeId> {
        let count = self.nodes + self.memory_only_nodes;
        (0..count).map(|index| NodeId(index * self.node_stride.max(1))).collect()
    }

    /// The nodes with CPUs that are online.
    #[must_use]
    pub fn nodes_with_cpus(&self) -> NodeSet {
        self.places().iter().filter(|p| !self.offline.contains(p.cpu)).map(|p| p.node).collect()
    }

    /// CPUs that are present, online or not.
    #[must_use]
    pub fn present(&self) -> CpuSet {
        self.places().iter().map(|place| place.cpu).collect()
    }

    /// CPUs that are online.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.present().minus(&self.offline)
    }

    /// Online CPUs of a node.
    #[must_use]
    pub fn cpus_of(&self, node: NodeId) -> CpuSet {
        self.online_where(|place| place.node == node)
    }

    /// What a reader of sysfs must gather of every online CPU, ascending.
    #[must_use]
    pub fn cpu_facts(&self) -> Vec<CpuFacts> {
        let online = self.online_places();
        let shared = |same: &dyn Fn(&Place) -> bool| -> Option<CpuSet> {
            Some(online.iter().filter(|place| same(place)).map(|place| place.cpu).collect())
        };
        let facts = |place: &Place| CpuFacts {
            id: place.cpu.0,
            package: Some(place.package),
            thread_siblings: if self.modules {
                Some(CpuSet::one(place.cpu))
            } else {
                shared(&|other| other.core == place.core)
            },
            l1i: shared(&|other| other.core == place.core),
            l2: shared(&|other| other.l2 == place.l2),
            llc: if self.llcs_per_node == 0 {
                shared(&|other| other.l2 == place.l2)
            } else {
                shared(&|other| other.llc == place.llc)
            },
            kind: place.kind,
        };
        online.iter().map(facts).collect()
    }

    /// What a reader of sysfs must gather of every node, ascending.
    #[must_use]
    pub fn node_facts(&self) -> Vec<NodeFacts> {
        let distances = self.distance_rows();
        let facts = |(node, distances): (NodeId, Vec<u32>)| NodeFacts {
            id: node.0,
            cpus: self.cpus_of(node),
            memory: self.memory_per_node,
            distances,
        };
        self.node_ids().into_iter().zip(distances).map(facts).collect()
    }

    pub(crate) fn distance_rows(&self) -> Vec<Vec<u32>> {
        if let Some(rows) = &self.distances {
            return rows.clone();
        }
        let count = self.nodes + self.memory_only_nodes;
        let package = |node: u32| (node < self.nodes).then(|| self.package_of_node(node));
        let distance = |from: u32, to: u32| match (package(from), package(to)) {
            _ if from == to => 10,
            (Some(a), Some(b)) if a == b => 12,
            _ => 21,
        };
        (0..count).map(|from| (0..count).map(|to| distance(from, to)).collect()).collect()
    }

    fn package_of_node(&self, node: u32) -> u32 {
        self.package_of_core(node * self.cores_per_node)
    }

    fn package_of_core(&self, core: u32) -> u32 {
        let cores = u64::from(self.nodes * self.cores_per_node).max(1);
        (u64::from(core) * u64::from(self.packages.max(1)) / cores) as u32
    }

    pub(crate) fn online_places(&self) -> Vec<Place> {
        let mut places = self.places();
        places.retain(|place| !self.offline.contains(place.cpu));
        places
    }

    fn online_where(&self, wanted: impl Fn(&Place) -> bool) -> CpuSet {
        self.online_places().iter().filter(|place| wanted(place)).map(|place| place.cpu).collect()
    }

    /// Every present CPU, ascending by number.
    pub(crate) fn places(&self) -> Vec<Place> {
        let cores = self.nodes * self.cores_per_node;
        let mut order: Vec<(u32, u32)> = Vec::new();
        match self.numbering {
            Numbering::SiblingsAdjacent => {
                for core in 0..cores {
                    order.extend((0..self.threads_of(core)).map(|thread| (core, thread)));
                }
            }
            Numbering::SiblingsFar => {
                for thread in 0..self.threads_per_core.max(1) {
                    let has = |core: &u32| thread < self.threads_of(*core);
                    order.extend((0..cores).filter(has).map(|core| (core, thread)));
                }
            }
        }
        let place =
            |(cpu, (core, thread)): (usize, (u32, u32))| self.place(cpu as u32, core, thread);
        order.into_iter().enumerate().map(place).collect()
    }

    fn place(&self, cpu: u32, core: u32, thread: u32) -> Place {
        let node = core / self.cores_per_node;
        let within = core % self.cores_per_node;
        let llcs = self.llcs_per_node.max(1);
        let first_efficient = self.cores_per_node.saturating_sub(self.efficient_cores_per_node);
        let first_of_l2 = if within >= first_efficient {
            within - (within - first_efficient) % 4
        } else {
            within - within % self.cores_per_l2.max(1)
        };
        let kind = (self.efficient_cores_per_node > 0).then_some(if self.is_efficient(core) {
            CoreKind::Efficient
        } else {
            CoreKind::Performance
        });
        Place {
            cpu: CpuId(cpu),
            core,
            thread,
            l2: node * self.cores_per_node + first_of_l2,
            llc: node * llcs + within * llcs / self.cores_per_node,
            package: self.package_of_core(core),
            node: NodeId(node * self.node_stride.max(1)),
            kind,
        }
    }

    fn is_efficient(&self, core: u32) -> bool {
        core % self.cores_per_node
            >= self.cores_per_node.saturating_sub(self.efficient_cores_per_node)
    }

    fn threads_of(&self, core: u32) -> u32 {
        if self.is_efficient(core) { 1 } else { self.threads_per_core.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Option<CpuSet> {
        Some(CpuSet::parse_list(text).unwrap())
    }

    #[test]
    fn far_siblings_are_half_the_host_apart() {
        let host = HostSpec::new(2, 4).threads(2).siblings_far();
        let facts = host.cpu_facts();
        assert_eq!(facts[1].thread_siblings, list("1,9"));
        assert_eq!(host.cpus_of(NodeId(1)).to_string(), "4-7,12-15");
    }

    #[test]
    fn adjacent_siblings_follow_each_other() {
        let host = HostSpec::new(2, 4).threads(2);
        assert_eq!(host.cpu_facts()[1].thread_siblings, list("0-1"));
        assert_eq!(host.cpus_of(NodeId(1)).to_string(), "8-15");
    }

    #[test]
    fn modules_share_the_instruction_cache_and_no_core_id() {
        let mut host = HostSpec::new(1, 2).threads(2);
        host.modules = true;
        let facts = &host.cpu_facts()[2];
        assert_eq!((&facts.thread_siblings, &facts.l1i), (&list("2"), &list("2-3")));
    }

    #[test]
    fn efficient_cores_are_single_threaded_and_share_an_l2_by_four() {
        let mut host = HostSpec::new(1, 6).threads(2);
        host.efficient_cores_per_node = 4;
        let facts = host.cpu_facts();
        assert_eq!(facts.len(), 8);
        assert_eq!((&facts[5].thread_siblings, &facts[5].l2), (&list("5"), &list("4-7")));
    }

    #[test]
    fn nodes_within_a_package_are_nearer() {
        let mut host = HostSpec::new(4, 2);
        host.packages = 2;
        assert_eq!(host.distance_rows()[0], [10, 12, 21, 21]);
    }
}
