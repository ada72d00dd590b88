//! A host's topology as it travels with a recording or beside a trace: what `instep topology
//! --json` prints, as far as analyses need it.

use instep_core::idset::{CpuSet, IdSet};
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema's name.
pub const SCHEMA: &str = "instep.topology/1";

/// CPUs and nodes; other keys are passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyDocument {
    /// [`SCHEMA`].
    pub schema: String,
    /// Online CPUs.
    pub cpus: Vec<CpuDocument>,
    /// Online nodes.
    pub nodes: Vec<NodeDocument>,
}

/// One CPU and the numbers of what it is part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuDocument {
    id: u32,
    core: u32,
    cluster: u32,
    llc: u32,
    package: u32,
    kind: Option<CoreKind>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDocument {
    id: u32,
    memory_bytes: u64,
    cpus: Vec<u32>,
    distances: Vec<u32>,
}

impl TopologyDocument {
    /// Of a topology.
    pub fn of(topology: &Topology) -> Self {
        let cpu = |cpu: &instep_core::topology::Cpu| CpuDocument {
            id: cpu.id.0,
            core: cpu.core.0,
            cluster: cpu.cluster.0,
            llc: cpu.llc.0,
            package: cpu.package.0,
            kind: cpu.kind,
        };
        let node = |node: &instep_core::topology::Node| NodeDocument {
            id: node.id.0,
            memory_bytes: node.memory.0,
            cpus: node.cpus.iter().map(|cpu| cpu.0).collect(),
            distances: node.distances.clone(),
        };
        TopologyDocument {
            schema: SCHEMA.to_owned(),
            cpus: topology.cpus().iter().map(cpu).collect(),
            nodes: topology.nodes().iter().map(node).collect(),
        }
    }

    /// Back to a topology.
    ///
    /// # Errors
    /// Another schema, or facts that make no host, in words.
    pub fn topology(&self) -> Result<Topology, String> {
        if self.schema != SCHEMA {
            return Err(format!("its schema is `{}`, not {SCHEMA}", self.schema));
        }
        let (cores, clusters, llcs) =
            (self.groups(|cpu| cpu.core), self.groups(|cpu| cpu.cluster), self.groups(|c| c.llc));
        let facts = |cpu: &CpuDocument| CpuFacts {
            id: cpu.id,
            package: Some(cpu.package),
            thread_siblings: cores.get(&cpu.core).cloned(),
            l1i: None,
            l2: clusters.get(&cpu.cluster).cloned(),
            llc: llcs.get(&cpu.llc).cloned(),
            kind: cpu.kind,
        };
        let node = |node: &NodeDocument| NodeFacts {
            id: node.id,
            cpus: node.cpus.iter().map(|cpu| CpuId(*cpu)).collect::<IdSet<CpuId>>(),
            memory: Bytes(node.memory_bytes),
            distances: node.distances.clone(),
        };
        let cpus = self.cpus.iter().map(facts).collect();
        Topology::build(cpus, self.nodes.iter().map(node).collect())
            .map_err(|error| error.to_string())
    }

    fn groups(&self, of: impl Fn(&CpuDocument) -> u32) -> BTreeMap<u32, CpuSet> {
        let mut groups = BTreeMap::<u32, Vec<CpuId>>::new();
        for cpu in &self.cpus {
            groups.entry(of(cpu)).or_default().push(CpuId(cpu.id));
        }
        groups.into_iter().map(|(group, cpus)| (group, cpus.into_iter().collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_comes_back() {
        let cpu = |id: u32| CpuFacts {
            id,
            package: Some(id / 4),
            thread_siblings: Some([CpuId(id & !1), CpuId(id | 1)].into_iter().collect()),
            ..CpuFacts::default()
        };
        let node = |id: u32| NodeFacts {
            id,
            cpus: (id * 4..id * 4 + 4).map(CpuId).collect(),
            memory: Bytes(1 << 30),
            distances: if id == 0 { vec![10, 21] } else { vec![21, 10] },
        };
        let made = Topology::build((0..8).map(cpu).collect(), vec![node(0), node(1)]).unwrap();
        let back = TopologyDocument::of(&made).topology().unwrap();
        assert_eq!((back.cores(), back.nodes()), (made.cores(), made.nodes()));
        assert_eq!((back.llcs(), back.packages()), (made.llcs(), made.packages()));
    }

    #[test]
    fn another_document_is_refused_with_its_schema() {
        let other = TopologyDocument { schema: "x/1".to_owned(), ..Default::default() };
        assert_eq!(other.topology().unwrap_err(), "its schema is `x/1`, not instep.topology/1");
    }
}
