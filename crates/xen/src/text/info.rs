//! `xl info -n`: the version, the scheduler, and the CPUs and nodes of the host.
//!
//! It does not tell caches: all CPUs of one socket and node are taken to share the last one.

use super::lines;
use crate::error::Error;
use instep_core::idset::{CpuSet, MAX_ID};
use instep_core::topology::{CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};
use std::collections::BTreeMap;

const COMMAND: &str = "xl info -n";
/// More CPUs or nodes than any Xen has (NR_CPUS is at most 4095; MAX_NUMNODES 64).
const MOST: usize = 8192;

/// Version, scheduler, CPUs and nodes of a Xen host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// `4.17.3`, with what the distribution adds.
    pub version: String,
    /// `credit`, `credit2` and so on.
    pub scheduler: String,
    /// The highest number that a CPU can have on this host, `all` reaches to it.
    pub max_cpu: Option<u32>,
    /// How many nodes there are.
    pub node_count: u32,
    /// Online CPUs by number.
    pub cpus: BTreeMap<u32, CpuLocation>,
    /// Nodes by number.
    pub nodes: BTreeMap<u32, NodeRow>,
}

/// Where a CPU sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuLocation {
    /// The core's number in its socket.
    pub core: u32,
    /// The socket.
    pub socket: u32,
    /// The node.
    pub node: u32,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Its memory.
    pub memory: Bytes,
    /// What of it is free.
    pub free: Bytes,
    /// Distances to nodes 0, 1 and so on; 0 where the firmware does not say.
    pub distances: Vec<u32>,
}

/// Which table a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    None,
    Cpus,
    Nodes,
    Devices,
}

/// Parses the output of `xl info -n`.
///
/// # Errors
/// There is no version or no CPU, as without `-n`, or a row of a table does not fit.
pub fn parse(text: &str) -> Result<Info, Error> {
    let mut info = Info::default();
    let mut table = Table::None;
    for (number, line) in lines(text) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if let Ok(id) = key.parse::<u32>() {
            let wrong = |expected| Error::output(COMMAND, number, line, expected);
            match table {
                Table::Cpus => {
                    let place =
                        place(value).ok_or_else(|| wrong("a CPU's core, socket and node"))?;
                    info.cpus.insert(id, place);
                }
                Table::Nodes => {
                    let node = node(value).ok_or_else(|| wrong("a node's memory and distances"))?;
                    info.nodes.insert(id, node);
                }
                Table::None | Table::Devices => {}
            }
            if id > MAX_ID || info.cpus.len() > MOST || info.nodes.len() > MOST {
                return Err(wrong("a number that a CPU or node can have"));
            }
            continue;
        }
        // The headings of tables stay in them; every other key ends one.
        table = match key {
            "cpu_topology" | "cpu" => Table::Cpus,
            "numa_info" | "node" => Table::Nodes,
            "device topology" => Table::Devices,
            _ if table == Table::Devices => Table::Devices,
            _ => Table::None,
        };
        match key {
            "xen_version" => info.version = value.to_owned(),
            "xen_scheduler" => info.scheduler = value.to_owned(),
            "max_cpu_id" => info.max_cpu = value.parse().ok().filter(|max| *max <= MAX_ID),
            "nr_nodes" => info.node_count = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    if info.version.is_empty() {
        return Err(Error::output(COMMAND, 0, text, "a list with xen_version"));
    }
    if info.cpus.is_empty() {
        return Err(Error::output(COMMAND, 0, text, "a list with cpu_topology, as with -n"));
    }
    Ok(info)
}

fn place(value: &str) -> Option<CpuLocation> {
    let mut numbers = value.split_whitespace().map(|number| number.parse::<u32>());
    let mut next = || numbers.next()?.ok();
    let place = CpuLocation { core: next()?, socket: next()?, node: next()? };
    numbers.next().is_none().then_some(place)
}

fn node(value: &str) -> Option<NodeRow> {
    let mut words = value.split_whitespace();
    let mut mib = || Some(Bytes::from_mib(words.next()?.parse().ok()?));
    let (memory, free) = (mib()?, mib()?);
    let distance = |number: &str| number.parse::<i64>().ok().map(|n| u32::try_from(n).unwrap_or(0));
    let distances = words.next()?.split(',').take(MOST).map(distance).collect::<Option<_>>()?;
    words.next().is_none().then_some(NodeRow { memory, free, distances })
}

impl Info {
    /// All numbers that `all` stands for where `xl` prints CPUs.
    pub fn all_cpus(&self) -> CpuSet {
        let last = self.cpus.keys().next_back().copied().unwrap_or(0);
        (0..=self.max_cpu.unwrap_or(last).max(last)).map(CpuId).collect()
    }

    /// The host's topology.
    ///
    /// # Errors
    /// It has no CPU that can be.
    pub fn topology(&self) -> Result<Topology, Error> {
        let together = |same: &dyn Fn(&CpuLocation) -> bool| {
            let cpus = self.cpus.iter().filter(|(_, place)| same(place));
            cpus.map(|(id, _)| CpuId(*id)).collect::<CpuSet>()
        };
        let mut cores: BTreeMap<CpuLocation, CpuSet> = BTreeMap::new();
        let mut caches: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
        for (id, place) in &self.cpus {
            cores.entry(*place).or_default().insert(CpuId(*id));
            caches.entry((place.socket, place.node)).or_default().insert(CpuId(*id));
        }
        let cpu = |(id, place): (&u32, &CpuLocation)| CpuFacts {
            id: *id,
            package: Some(place.socket),
            thread_siblings: cores.get(place).cloned(),
            llc: caches.get(&(place.socket, place.node)).cloned(),
            ..CpuFacts::default()
        };
        let cpus = self.cpus.iter().map(cpu).collect();
        let ids: Vec<u32> = self.nodes.keys().copied().collect();
        let node = |(id, row): (&u32, &NodeRow)| NodeFacts {
            id: *id,
            cpus: together(&|place| place.node == *id),
            memory: row.memory,
            distances: {
                let to = |to: &u32| row.distances.get(*to as usize).copied().unwrap_or(0);
                ids.iter().map(to).collect()
            },
        };
        let nodes = self.nodes.iter().map(node).collect();
        Topology::build(cpus, nodes)
            .map_err(|error| Error::output(COMMAND, 0, &error.to_string(), "a host with CPUs"))
    }
}
