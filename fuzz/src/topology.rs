//! The parsers of sysfs, and the topology built of what they find.

use instep_core::idset::CpuSet;
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId};
use instep_host::topology::parse;

/// Lists of ids: what is parsed prints as a list that parses to the same.
pub(crate) fn id_lists(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(set) = CpuSet::parse_list(&text) {
        assert_eq!(CpuSet::parse_list(&set.to_string()).as_ref(), Ok(&set));
        assert_eq!(set.iter().count(), set.len());
    }
}

/// Every format of /sys/devices/system/cpu and /sys/devices/system/node.
pub(crate) fn topology_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = parse::list::<CpuId>(&text);
    let _ = parse::mask(&text);
    let _ = parse::number(&text);
    let _ = parse::flag(&text);
    let _ = parse::cache_type(&text);
    let _ = parse::memory_total(&text);
    let _ = parse::distances(&text);
    let _ = parse::cpuinfo(&text);
}

/// Any facts make a topology whose invariants hold.
pub(crate) fn topology_build(data: &[u8]) {
    let mut bytes = Input(data);
    let cpus = (0..bytes.next() % 24).map(|_| cpu(&mut bytes)).collect();
    let nodes = (0..bytes.next() % 6).map(|_| node(&mut bytes)).collect();
    if let Ok(topology) = Topology::build(cpus, nodes) {
        check(&topology);
    }
}

/// Hands out bytes, zeros after the last.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn next(&mut self) -> u32 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                u32::from(*first)
            }
            None => 0,
        }
    }

    /// A set of CPUs below 32, given by a mask.
    fn set(&mut self) -> CpuSet {
        let mask = u32::from_le_bytes([0; 4].map(|_: u8| self.next() as u8));
        (0..32).filter(|bit| mask >> bit & 1 == 1).map(CpuId).collect()
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.next().is_multiple_of(4)).then(|| value(self))
    }
}

fn cpu(bytes: &mut Input<'_>) -> CpuFacts {
    CpuFacts {
        id: bytes.next() % 32,
        package: bytes.maybe(|bytes| bytes.next() % 4),
        thread_siblings: bytes.maybe(Input::set),
        l1i: bytes.maybe(Input::set),
        l2: bytes.maybe(Input::set),
        llc: bytes.maybe(Input::set),
        kind: bytes.maybe(|bytes| match bytes.next() % 2 {
            0 => CoreKind::Performance,
            _ => CoreKind::Efficient,
        }),
    }
}

fn node(bytes: &mut Input<'_>) -> NodeFacts {
    NodeFacts {
        id: bytes.next() % 8,
        cpus: bytes.set(),
        memory: Bytes(u64::from(bytes.next()) << 24),
        distances: (0..bytes.next() % 8).map(|_| bytes.next()).collect(),
    }
}

/// The invariants that [`Topology`] states.
fn check(topology: &Topology) {
    let cpus = topology.cpus();
    assert!(!cpus.is_empty() && !topology.nodes().is_empty());
    assert!(cpus.is_sorted_by(|a, b| a.id < b.id));
    assert!(topology.nodes().is_sorted_by(|a, b| a.id < b.id));
    for groups in [topology.cores(), topology.clusters(), topology.llcs(), topology.packages()] {
        let members: usize = groups.iter().map(CpuSet::len).sum();
        let all = groups.iter().fold(CpuSet::new(), |all, group| all.or(group));
        assert_eq!((members, &all), (cpus.len(), &topology.all_cpus()));
    }
    for cpu in cpus {
        assert!(topology.cores()[cpu.core.0 as usize].contains(cpu.id));
        assert!(topology.clusters()[cpu.cluster.0 as usize].contains(cpu.id));
        assert!(topology.llcs()[cpu.llc.0 as usize].contains(cpu.id));
        assert!(topology.packages()[cpu.package.0 as usize].contains(cpu.id));
        let node = topology.node(cpu.node).expect("the node of every CPU is online");
        assert!(node.cpus.contains(cpu.id));
        let core = &topology.cores()[cpu.core.0 as usize];
        assert!(core.is_subset(&topology.llcs()[cpu.llc.0 as usize]));
        assert!(core.is_subset(&node.cpus));
    }
    for node in topology.nodes() {
        assert_eq!(node.distances.len(), topology.nodes().len());
    }
}
