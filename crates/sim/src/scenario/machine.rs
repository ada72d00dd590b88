//! The host of a scenario: its shape in the lab's words, or from the JSON that `instep topology`
//! prints. Gives core's topology; knows nothing of costs.

use super::Machine;
use instep_core::idset::CpuSet;
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The most CPUs that are simulated.
pub const MAX_CPUS: u32 = 4096;

/// A host of equal parts: `sockets` sockets, spread over `nodes` nodes, each of `cores` cores of
/// `threads` threads; one LLC for each node's part of a socket; distance 20. CPUs are numbered
/// threads first, then cores, then sockets, as the lab numbers them.
pub fn regular(nodes: u32, sockets: u32, cores: u32, threads: u32, memory: u64) -> Topology {
    let shape = Shape { nodes, sockets, cores, threads, memory, llcs: nodes.max(sockets) };
    shape.topology(&[])
}

/// A regular shape. See [`regular`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// NUMA nodes.
    pub nodes: u32,
    /// Sockets.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
    /// Bytes in all.
    pub memory: u64,
    /// Last-level caches in all.
    pub llcs: u32,
}

impl Shape {
    /// CPUs in all.
    pub fn cpus(&self) -> Option<u32> {
        self.sockets.checked_mul(self.cores)?.checked_mul(self.threads)
    }

    /// Checks that there is such a host.
    ///
    /// # Errors
    /// What is impossible.
    pub fn check(&self) -> Result<(), String> {
        let cpus = self.cpus().unwrap_or(u32::MAX);
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(format!("{cpus} CPUs; possible are 1 to {MAX_CPUS}"));
        }
        let cores = self.sockets * self.cores;
        for (count, what) in [(self.nodes, "nodes"), (self.llcs, "caches")] {
            if count == 0 || !cores.is_multiple_of(count) {
                return Err(format!("{cores} cores cannot be spread over {count} {what}"));
            }
        }
        if !self.sockets.is_multiple_of(self.nodes) && !self.nodes.is_multiple_of(self.sockets) {
            return Err(format!("{} sockets on {} nodes", self.sockets, self.nodes));
        }
        let parts = self.nodes.max(self.sockets);
        if !self.llcs.is_multiple_of(parts) {
            return Err(format!("{} caches for {parts} sockets or nodes", self.llcs));
        }
        Ok(())
    }

    /// Its topology. `distances` row by row; 20 between nodes when empty. The shape is checked.
    pub fn topology(&self, distances: &[Vec<u32>]) -> Topology {
        let cpus = self.cpus().unwrap_or(0);
        let group = |cpu: u32, groups: u32| -> CpuSet {
            let each = (cpus / groups.max(1)).max(1);
            let first = cpu / each * each;
            (first..first + each).map(CpuId).collect()
        };
        let facts = (0..cpus).map(|id| CpuFacts {
            id,
            package: Some(id / (cpus / self.sockets.max(1)).max(1)),
            thread_siblings: Some(group(id, self.sockets * self.cores)),
            l1i: None,
            l2: None,
            llc: Some(group(id, self.llcs)),
            kind: None,
        });
        let each = cpus / self.nodes.max(1);
        let nodes = (0..self.nodes).map(|id| NodeFacts {
            id,
            cpus: group(id * each, self.nodes),
            memory: Bytes(self.memory / u64::from(self.nodes.max(1))),
            distances: distances.get(id as usize).cloned().unwrap_or_else(|| {
                (0..self.nodes).map(|to| if to == id { 10 } else { 20 }).collect()
            }),
        });
        let built = Topology::build(facts.collect(), nodes.collect());
        built.expect("a checked shape has CPUs")
    }
}

#[derive(Deserialize)]
struct View {
    schema: String,
    cpus: Vec<CpuView>,
    nodes: Vec<NodeView>,
}

#[derive(Deserialize)]
struct CpuView {
    id: u32,
    core: u32,
    llc: u32,
    package: u32,
    #[serde(default)]
    node: Option<u32>,
    #[serde(default)]
    cluster: Option<u32>,
    #[serde(default)]
    kind: Option<CoreKind>,
}

#[derive(Deserialize)]
struct NodeView {
    id: u32,
    memory_bytes: u64,
    cpus: CpuSet,
    distances: Vec<u32>,
}

/// Reads what `instep topology --json` printed.
///
/// # Errors
/// When it is not that, names no CPU or too many, or what it says of them cannot all be so.
pub fn parse_topology(text: &str) -> Result<Topology, String> {
    let view: View = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if view.schema != "instep.topology/1" {
        return Err(format!("schema {}; instep.topology/1 is known", view.schema));
    }
    if view.cpus.len() > MAX_CPUS as usize {
        return Err(format!("{} CPUs; possible are 1 to {MAX_CPUS}", view.cpus.len()));
    }
    let groups = |key: fn(&CpuView) -> Option<u32>| -> BTreeMap<u32, CpuSet> {
        let mut groups = BTreeMap::<u32, CpuSet>::new();
        for cpu in &view.cpus {
            if let Some(group) = key(cpu) {
                groups.entry(group).or_default().insert(CpuId(cpu.id));
            }
        }
        groups
    };
    let (cores, llcs, clusters) =
        (groups(|cpu| Some(cpu.core)), groups(|cpu| Some(cpu.llc)), groups(|cpu| cpu.cluster));
    let facts = view.cpus.iter().map(|cpu| CpuFacts {
        id: cpu.id,
        package: Some(cpu.package),
        thread_siblings: cores.get(&cpu.core).cloned(),
        l1i: None,
        l2: cpu.cluster.and_then(|cluster| clusters.get(&cluster).cloned()),
        llc: llcs.get(&cpu.llc).cloned(),
        kind: cpu.kind,
    });
    let nodes = view.nodes.iter().map(|node| NodeFacts {
        id: node.id,
        cpus: node.cpus.clone(),
        memory: Bytes(node.memory_bytes),
        distances: node.distances.clone(),
    });
    let topology = Topology::build(facts.collect(), nodes.collect());
    let topology = topology.map_err(|error| error.to_string())?;
    let mut wrong = contradictions(&view);
    wrong.extend_from_slice(topology.warnings());
    if wrong.is_empty() { Ok(topology) } else { Err(wrong.join("; ")) }
}

/// What the CPUs of a view and its nodes say of each other that cannot be.
fn contradictions(view: &View) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut owners = BTreeMap::new();
    for node in &view.nodes {
        for cpu in node.cpus.iter() {
            if let Some(other) = owners.insert(cpu.0, node.id) {
                wrong.push(format!("CPU {cpu} is of nodes {other} and {}", node.id));
            }
        }
    }
    let mut known = CpuSet::default();
    let mut packages = BTreeMap::new();
    for cpu in &view.cpus {
        if !known.insert(CpuId(cpu.id)) {
            wrong.push(format!("CPU {} is described twice", cpu.id));
        }
        if cpu.llc >= MAX_CPUS || cpu.core >= MAX_CPUS {
            wrong.push(format!(
                "CPU {}: core {}, llc {}: below {MAX_CPUS}",
                cpu.id, cpu.core, cpu.llc
            ));
        }
        if let Some(node) = cpu.node.filter(|node| owners.get(&cpu.id) != Some(node)) {
            wrong.push(format!("CPU {} is of node {node}, which does not list it", cpu.id));
        }
        if *packages.entry(cpu.core).or_insert(cpu.package) != cpu.package {
            wrong.push(format!("core {} is of two packages", cpu.core));
        }
    }
    let strangers = owners.iter().filter(|(cpu, _)| !known.contains(CpuId(**cpu)));
    wrong.extend(strangers.map(|(cpu, node)| format!("node {node}: there is no CPU {cpu}")));
    wrong
}

/// The distances between the nodes of a shape, row by row.
///
/// # Errors
/// What is wrong with those of the scenario.
pub(super) fn distances(host: &Machine, nodes: u32) -> Result<Vec<Vec<u32>>, String> {
    let other = host.distance.unwrap_or(20);
    if !(11..=255).contains(&other) {
        return Err(format!("distance {other} between nodes; possible are 11 to 255"));
    }
    let size = nodes as usize;
    let rows = match (&host.distances, host.distance) {
        (Some(_), Some(_)) => return Err("distance or distances, not both".to_owned()),
        (Some(rows), None) => rows.clone(),
        (None, _) => {
            let row = |own: usize| (0..size).map(|to| if to == own { 10 } else { other }).collect();
            (0..size).map(row).collect()
        }
    };
    if rows.len() != size || rows.iter().any(|row| row.len() != size) {
        return Err(format!("distances: {nodes} rows of {nodes} numbers are needed"));
    }
    for (from, row) in rows.iter().enumerate() {
        for (to, distance) in row.iter().enumerate() {
            if (from == to) != (*distance == 10) || !(10..=255).contains(distance) {
                return Err(format!("distance {distance} from node {from} to node {to}"));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opteron_has_four_nodes_of_four_modules() {
        let topology = regular(4, 2, 8, 2, 64 << 30);
        assert_eq!(topology.cpus().len(), 32);
        assert_eq!((topology.cores().len(), topology.nodes().len()), (16, 4));
        assert_eq!((topology.packages().len(), topology.llcs().len()), (2, 4));
        assert_eq!(topology.nodes()[2].cpus.to_string(), "16-23");
        assert!(topology.warnings().is_empty(), "{:?}", topology.warnings());
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let good = Shape { nodes: 2, sockets: 2, cores: 4, threads: 2, memory: 1, llcs: 2 };
        assert_eq!(good.check(), Ok(()));
        for bad in [
            Shape { nodes: 0, ..good },
            Shape { nodes: 3, ..good },
            Shape { cores: 0, ..good },
            Shape { sockets: u32::MAX, ..good },
            Shape { cores: 5000, ..good },
            Shape { llcs: 3, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_real_host_comes_from_the_json_of_topology() {
        let text = r#"{"schema":"instep.topology/1","counts":{},"warnings":[],
            "cpus":[{"id":0,"core":0,"llc":0,"package":0,"node":0,"cluster":0,"kind":null},
                    {"id":4,"core":0,"llc":0,"package":0,"node":0,"cluster":0,"kind":null}],
            "nodes":[{"id":0,"memory_bytes":1024,"cpus":[0,4],"distances":[10]}]}"#;
        let topology = parse_topology(text).unwrap();
        assert_eq!((topology.cpus().len(), topology.cores().len()), (2, 1));
        for (from, to, said) in [
            (r#""id":4"#, r#""id":0"#, "described twice"),
            (
                r#""package":0,"node":0,"cluster":0,"kind":null}]"#,
                r#""package":1,"node":0}]"#,
                "two packages",
            ),
            (r#""node":0,"cluster":0,"kind":null}]"#, r#""node":77}]"#, "of node 77"),
            (r#""llc":0"#, r#""llc":4000000000"#, "llc 4000000000"),
            (
                "[10]}",
                r#"[10,20]},{"id":1,"memory_bytes":1,"cpus":[0,4],"distances":[20,10]}"#,
                "nodes 0 and 1",
            ),
            ("[10]", "[3]", "distance"),
        ] {
            let bad = text.replacen(from, to, 9);
            assert_ne!(bad, text, "{from}");
            let refused = parse_topology(&bad).unwrap_err();
            assert!(refused.contains(said), "{said}: {refused}");
        }
        assert!(parse_topology("{}").is_err());
        assert!(parse_topology(&text.replace("topology/1", "topology/9")).is_err());
    }
}
