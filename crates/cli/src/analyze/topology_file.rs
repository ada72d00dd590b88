//! A host's topology from what `instep topology --json` printed there.

use anyhow::Context as _;
use instep_core::idset::{CpuSet, IdSet};
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};
use serde::Deserialize;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// A host of 4096 CPUs takes 1 MB.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
struct Document {
    schema: String,
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Cpu {
    id: u32,
    core: u32,
    cluster: u32,
    llc: u32,
    package: u32,
    kind: Option<CoreKind>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: u32,
    memory_bytes: u64,
    cpus: Vec<u32>,
    distances: Vec<u32>,
}

/// Reads the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Topology> {
    let shown = path.display();
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| {
        format!("{shown}: make it on that host with `instep topology --json > FILE`")
    })
}

fn parse(text: &str) -> anyhow::Result<Topology> {
    let document: Document = serde_json::from_str(text).context("no JSON of a topology")?;
    anyhow::ensure!(
        document.schema == "instep.topology/1",
        "its schema is `{}`, not instep.topology/1",
        document.schema
    );
    let sharing = |of: &dyn Fn(&Cpu) -> u32, cpu: &Cpu| -> CpuSet {
        let same = document.cpus.iter().filter(|other| of(other) == of(cpu));
        same.map(|other| CpuId(other.id)).collect()
    };
    let facts = |cpu: &Cpu| CpuFacts {
        id: cpu.id,
        package: Some(cpu.package),
        thread_siblings: Some(sharing(&|cpu| cpu.core, cpu)),
        l1i: None,
        l2: Some(sharing(&|cpu| cpu.cluster, cpu)),
        llc: Some(sharing(&|cpu| cpu.llc, cpu)),
        kind: cpu.kind,
    };
    let nodes = document.nodes.iter().map(|node| NodeFacts {
        id: node.id,
        cpus: node.cpus.iter().map(|cpu| CpuId(*cpu)).collect::<IdSet<CpuId>>(),
        memory: Bytes(node.memory_bytes),
        distances: node.distances.clone(),
    });
    Ok(Topology::build(document.cpus.iter().map(facts).collect(), nodes.collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_topology_prints_comes_back() {
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
        let text = serde_json::to_string(&crate::topology::view(&made)).unwrap();
        let read = parse(&text).unwrap();
        assert_eq!((read.cores(), read.nodes()), (made.cores(), made.nodes()));
        assert_eq!(read.llcs(), made.llcs());
    }

    #[test]
    fn another_document_is_refused_with_its_schema() {
        let error = parse(r#"{"schema":"x/1","cpus":[],"nodes":[]}"#).unwrap_err();
        assert_eq!(error.to_string(), "its schema is `x/1`, not instep.topology/1");
    }
}
