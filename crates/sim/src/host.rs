//! The host's shape in dense indices: which CPUs share a core, a cache, a package, a node, and how
//! far apart nodes are. Made once from core's topology; knows nothing of time or tasks.

use instep_check::mask::Mask;
use instep_core::idset::CpuSet;
use instep_core::topology::{self, Topology};
use instep_core::units::{CpuId, NodeId};
use instep_scx::instep::Lane;

/// A host. CPUs are indices from 0 in the order of the kernel's numbers.
#[derive(Clone, Debug)]
pub struct Host {
    /// The kernel's number of each CPU.
    pub ids: Vec<CpuId>,
    /// The kernel's number of each node.
    pub node_ids: Vec<NodeId>,
    /// Core of each CPU.
    pub core: Vec<usize>,
    /// Last-level cache of each CPU.
    pub llc: Vec<usize>,
    /// Package of each CPU.
    pub package: Vec<usize>,
    /// Node of each CPU, an index.
    pub node: Vec<usize>,
    /// CPUs of each core.
    pub cores: Vec<Mask>,
    /// CPUs of each last-level cache.
    pub llcs: Vec<Mask>,
    /// CPUs of each package.
    pub packages: Vec<Mask>,
    /// CPUs of each node; empty for nodes without CPUs.
    pub nodes: Vec<Mask>,
    /// Memory of each node in bytes.
    pub memory: Vec<u64>,
    /// Distance between two nodes (10 is local), row by row.
    pub distance: Vec<Vec<u32>>,
    /// The other CPUs of each CPU's core.
    pub siblings: Vec<Vec<usize>>,
    /// Where each CPU is among Instep's scheduling domains, in their order.
    pub lanes: Vec<Lane>,
}

impl Host {
    /// The host of this topology.
    pub fn new(topology: &Topology) -> Self {
        let cpus = topology.cpus();
        let count = cpus.len();
        let index = |id: CpuId| cpus.binary_search_by_key(&id, |cpu| cpu.id).ok();
        let masks = |sets: &[instep_core::idset::CpuSet]| -> Vec<Mask> {
            sets.iter().map(|set| Mask::of(count, set.iter().filter_map(index))).collect()
        };
        let node_ids: Vec<NodeId> = topology.nodes().iter().map(|node| node.id).collect();
        let node = |id: NodeId| node_ids.binary_search(&id).unwrap_or(0);
        let cores = masks(topology.cores());
        let siblings = cpus.iter().enumerate().map(|(at, cpu)| {
            cores[cpu.core.0 as usize].iter().filter(|other| *other != at).collect()
        });
        let lane = |(id, at): (CpuId, topology::Lane)| {
            let topology::Lane { domain, lane, core, first_of_cache, .. } = at;
            Some(Lane { cpu: index(id)?, domain, lane, core, first_of_cache })
        };
        Self {
            lanes: topology::lanes(topology, &CpuSet::new()).into_iter().filter_map(lane).collect(),
            ids: cpus.iter().map(|cpu| cpu.id).collect(),
            core: cpus.iter().map(|cpu| cpu.core.0 as usize).collect(),
            llc: cpus.iter().map(|cpu| cpu.llc.0 as usize).collect(),
            package: cpus.iter().map(|cpu| cpu.package.0 as usize).collect(),
            node: cpus.iter().map(|cpu| node(cpu.node)).collect(),
            siblings: siblings.collect(),
            llcs: masks(topology.llcs()),
            packages: masks(topology.packages()),
            nodes: topology
                .nodes()
                .iter()
                .map(|node| Mask::of(count, node.cpus.iter().filter_map(index)))
                .collect(),
            memory: topology.nodes().iter().map(|node| node.memory.0).collect(),
            distance: topology.nodes().iter().map(|node| node.distances.clone()).collect(),
            node_ids,
            cores,
        }
    }

    /// How many CPUs.
    #[inline]
    pub fn cpus(&self) -> usize {
        self.ids.len()
    }

    /// All CPUs in the order in which an idle host is filled: other nodes first, then other cores,
    /// then second threads.
    pub fn spread(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.cpus()).collect();
        let rank = |mask: &Mask, cpu: usize| mask.iter().take_while(|other| *other < cpu).count();
        order.sort_by_cached_key(|cpu| {
            let core = &self.cores[self.core[*cpu]];
            let node = &self.nodes[self.node[*cpu]];
            (rank(core, *cpu), rank(node, core.first().unwrap_or(0)), *cpu)
        });
        order
    }

    /// The index of the CPU with this kernel number.
    pub fn index(&self, id: u32) -> Option<usize> {
        self.ids.binary_search(&CpuId(id)).ok()
    }

    /// The index of the node with this kernel number.
    pub fn node_index(&self, id: u32) -> Option<usize> {
        self.node_ids.binary_search(&NodeId(id)).ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn idle_host_is_filled_node_by_node_core_by_core_thread_by_thread() {
        assert_eq!(testing::host(2, 2, 2).spread(), [0, 4, 2, 6, 1, 5, 3, 7]);
    }
}
