//! What perf.data says of the host: name, kernel, CPUs, cores, caches and nodes.

use crate::bytes::{Cursor, text};
use crate::error::Fault;
use crate::format::Format;
use crate::stream::Header;
use crate::tracing_data;
use instep_core::idset::CpuSet;
use instep_core::topology::{CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};

/// Features by their bit; tools/perf/util/header.h.
pub(crate) const TRACING_DATA: u32 = 1;
const HOSTNAME: u32 = 3;
const RELEASE: u32 = 4;
const CPU_COUNT: u32 = 7;
const CPU_TOPOLOGY: u32 = 13;
const NUMA_TOPOLOGY: u32 = 14;
const CACHE: u32 = 20;

/// Hosts have fewer CPUs, nodes and caches than this; lists of hostile files end here.
const MAX_LIST: u32 = 8192;
/// Nodes that are read: each has a distance to each.
const MAX_NODES: u32 = 1024;

/// The contents of the features that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Features {
    pub(crate) formats: Option<Vec<Format>>,
    hostname: Option<String>,
    release: Option<String>,
    cpus: Option<u32>,
    cpu_topology: Option<CpuTopology>,
    nodes: Vec<NodeFacts>,
    caches: Vec<Cache>,
    warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct CpuTopology {
    threads: Vec<CpuSet>,
    /// Package by CPU.
    packages: Vec<Option<u32>>,
}

#[derive(Debug)]
struct Cache {
    level: u32,
    kind: String,
    cpus: CpuSet,
}

impl Features {
    /// Reads one feature; one that makes no sense is a warning, save the tracepoint formats.
    pub(crate) fn add(&mut self, bit: u32, data: &[u8]) -> Result<(), Fault> {
        if bit == TRACING_DATA {
            self.formats = Some(tracing_data::perf_feature(data)?);
            return Ok(());
        }
        let mut cursor = Cursor::new(data, "a feature of the header");
        let read = match bit {
            HOSTNAME => string(&mut cursor).map(|text| self.hostname = Some(text)),
            RELEASE => string(&mut cursor).map(|text| self.release = Some(text)),
            CPU_COUNT => self.cpu_count(&mut cursor),
            CPU_TOPOLOGY => self.cpu_topology(&mut cursor),
            NUMA_TOPOLOGY => self.numa_topology(&mut cursor),
            CACHE => self.caches(&mut cursor),
            _ => Ok(()),
        };
        if let Err(fault) = read
            && self.warnings.len() < 16
        {
            self.warnings.push(format!("feature {bit} of the header makes no sense: {}", fault.0));
        }
        Ok(())
    }

    fn cpu_count(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let _available = cursor.u32()?;
        self.cpus = Some(cursor.u32()?);
        Ok(())
    }

    /// Lists of siblings by package, then by core, then (core, package) of every CPU. What newer
    /// versions add behind is not needed.
    fn cpu_topology(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        strings(cursor)?;
        let threads = strings(cursor)?;
        let threads: Vec<CpuSet> =
            threads.iter().filter_map(|list| CpuSet::parse_list(list).ok()).collect();
        let mut packages = Vec::new();
        // The number of CPUs is that of CPU_COUNT, which perf writes before.
        for _ in 0..self.cpus.unwrap_or(0).min(MAX_LIST) {
            let (Ok(_core), Ok(package)) = (cursor.u32(), cursor.u32()) else { break };
            packages.push((package < MAX_LIST).then_some(package));
        }
        self.cpu_topology = Some(CpuTopology { threads, packages });
        Ok(())
    }

    fn numa_topology(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        // A pipe may have it again: the last one holds.
        self.nodes.clear();
        for _ in 0..cursor.u32()?.min(MAX_NODES) {
            let (id, total, _free) = (cursor.u32()?, cursor.u64()?, cursor.u64()?);
            let cpus = CpuSet::parse_list(&string(cursor)?).unwrap_or_default();
            let memory = Bytes(total.saturating_mul(1024));
            self.nodes.push(NodeFacts { id, cpus, memory, distances: Vec::new() });
        }
        Ok(())
    }

    fn caches(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let version = cursor.u32()?;
        if version != 1 {
            return Err(Fault::new(format!("version {version} of the caches is unknown")));
        }
        self.caches.clear();
        for _ in 0..cursor.u32()?.min(MAX_LIST) {
            let level = cursor.u32()?;
            cursor.take(12)?;
            let (kind, _size, map) = (string(cursor)?, string(cursor)?, string(cursor)?);
            let cpus = CpuSet::parse_list(&map).unwrap_or_default();
            self.caches.push(Cache { level, kind, cpus });
        }
        Ok(())
    }

    /// Everything together.
    pub(crate) fn header(&self, format: &str) -> Header {
        let mut header = Header {
            format: format.to_owned(),
            hostname: self.hostname.clone(),
            release: self.release.clone(),
            cpus: self.cpus,
            warnings: self.warnings.clone(),
            ..Header::default()
        };
        match self.topology() {
            Some(Ok(topology)) => header.topology = Some(topology),
            Some(Err(why)) => header.warnings.push(format!("the header's topology: {why}")),
            None => {}
        }
        header
    }

    fn topology(&self) -> Option<Result<Topology, String>> {
        let described = self.cpu_topology.as_ref()?;
        let all: CpuSet = described.threads.iter().flat_map(|set| set.iter()).collect();
        let highest = self.caches.iter().map(|cache| cache.level).max();
        let cache = |cpu: CpuId, wanted: &dyn Fn(&Cache) -> bool| {
            let found = self.caches.iter().find(|cache| wanted(cache) && cache.cpus.contains(cpu));
            found.map(|cache| cache.cpus.clone())
        };
        let facts = |cpu: CpuId| CpuFacts {
            id: cpu.0,
            package: described.packages.get(cpu.0 as usize).copied().flatten(),
            thread_siblings: described.threads.iter().find(|set| set.contains(cpu)).cloned(),
            l1i: cache(cpu, &|cache| cache.level == 1 && cache.kind.starts_with("Instr")),
            l2: cache(cpu, &|cache| cache.level == 2),
            llc: highest.and_then(|level| cache(cpu, &|cache| cache.level == level)),
            kind: None,
        };
        let cpus: Vec<CpuFacts> = all.iter().take(MAX_LIST as usize).map(facts).collect();
        let mut nodes = self.nodes.clone();
        // perf does not record distances: 10 to itself, 20 to others, as for unknown ones.
        nodes.sort_by_key(|node| node.id);
        let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
        for node in &mut nodes {
            let away = |id: &u32| if *id == node.id { 10 } else { 20 };
            node.distances = ids.iter().map(away).collect();
        }
        (!cpus.is_empty()).then(|| Topology::build(cpus, nodes).map_err(|error| error.to_string()))
    }
}

/// A length and so many bytes, padded with zeros.
fn string(cursor: &mut Cursor<'_>) -> Result<String, Fault> {
    let length = cursor.u32()? as usize;
    cursor.take(length).map(text)
}

fn strings(cursor: &mut Cursor<'_>) -> Result<Vec<String>, Fault> {
    let count = cursor.u32()?.min(MAX_LIST);
    (0..count).map(|_| string(cursor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u32 + 1).to_le_bytes());
        out.extend(text.as_bytes());
        out.push(0);
    }

    #[test]
    fn cores_and_nodes_come_out_of_the_header() {
        let mut features = Features::default();
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        features.add(CPU_COUNT, &words(&[4, 4])).unwrap();
        let mut data = words(&[1]);
        put(&mut data, "0-3");
        data.extend(words(&[2]));
        put(&mut data, "0-1");
        put(&mut data, "2-3");
        data.extend(words(&[0, 0, 0, 0, 1, 0, 1, 0]));
        features.add(CPU_TOPOLOGY, &data).unwrap();
        let topology = features.header("x").topology.unwrap();
        assert_eq!(topology.cores().len(), 2);
    }

    #[test]
    fn a_feature_cut_short_is_a_warning() {
        let mut features = Features::default();
        features.add(HOSTNAME, &[200, 0, 0, 0, b'x']).unwrap();
        assert_eq!(features.header("x").warnings.len(), 1);
    }
}
