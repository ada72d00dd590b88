//! Facts of the online NUMA nodes, from /sys/devices/system/node.

use super::parse;
use super::source::Source;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::topology::NodeFacts;
use instep_core::units::{Bytes, NodeId};

const DIR: &str = "sys/devices/system/node";

/// Facts of the online nodes. A kernel without NUMA has no such directory: then it is one node
/// with `online` CPUs and the memory of /proc/meminfo, which is no fault and no warning.
pub(super) fn read(source: &mut Source<'_>, online: &CpuSet) -> Vec<NodeFacts> {
    let mut found: NodeSet =
        source.numbered(DIR, "node").unwrap_or_default().into_iter().map(NodeId).collect();
    if let Some(listed) = source.value(&format!("{DIR}/online"), parse::list::<NodeId>) {
        let absent = listed.minus(&found);
        if !absent.is_empty() && !found.is_empty() {
            source.warn(format!("{DIR}/online: names nodes {absent}, which are not there"));
        }
        let both = found.and(&listed);
        found = if both.is_empty() { found } else { both };
    }
    if found.is_empty() {
        return vec![uma(source, online)];
    }
    found.iter().map(|id| node(source, id)).collect()
}

fn uma(source: &mut Source<'_>, online: &CpuSet) -> NodeFacts {
    let memory = source.value("proc/meminfo", parse::memory_total).unwrap_or_else(|| {
        source.warn("proc/meminfo: does not have the memory of this host; 0 is assumed".into());
        Bytes(0)
    });
    NodeFacts { id: 0, cpus: online.clone(), memory, distances: vec![10] }
}

fn node(source: &mut Source<'_>, id: NodeId) -> NodeFacts {
    let dir = format!("{DIR}/node{id}");
    let cpus = source
        .value(&format!("{dir}/cpumap"), parse::mask)
        .or_else(|| source.value(&format!("{dir}/cpulist"), parse::list));
    let cpus = cpus.unwrap_or_else(|| {
        source.warn(format!("{dir}: neither cpumap nor cpulist has its CPUs"));
        CpuSet::new()
    });
    let memory = source.value(&format!("{dir}/meminfo"), parse::memory_total);
    let memory = memory.unwrap_or_else(|| {
        source.warn(format!("{dir}/meminfo: does not have the node's memory; 0 is assumed"));
        Bytes(0)
    });
    let distances = source.value(&format!("{dir}/distance"), parse::distances).unwrap_or_default();
    NodeFacts { id: id.0, cpus, memory, distances }
}
