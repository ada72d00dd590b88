//! Copies of real machines' /proc and /sys against counts made by hand, and against what
//! hwloc's `lstopo` reads in the same copy. Where Instep differs from lstopo on purpose, the
//! reason stands with the expectation. The copies are shared data, not part of the project:
//! without them, tar or lstopo the test says what it skipped.

#![cfg(test)]

use instep_core::idset::CpuSet;
use instep_core::topology::{CoreKind, Topology};
use instep_core::units::{Bytes, CpuId, NodeId};
use instep_host::Root;
use instep_madehost::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where and why Instep's answer is not lstopo's.
#[derive(Clone, Copy, PartialEq)]
enum Differs {
    /// It is the same.
    Not,
    /// lstopo calls each integer unit of an Opteron module a core; a module shares fetch and
    /// decode, so it is one core by Instep's definition: the sets are lstopo's L1i.
    Modules,
    /// The machine has one memory (15.6GiB by its /proc/meminfo) that the kernel presents as
    /// eight nodes which all name all CPUs. lstopo drops seven of them with their memory;
    /// Instep adds the memory up.
    MergedMemory,
    /// Node 0 is offline, its CPUs are not. lstopo leaves them without a node; in Instep every
    /// CPU has one: theirs is the only node that memory can come from.
    OfflineNode,
}

struct Dump {
    name: &'static str,
    /// cpus, cores, clusters, LLCs, packages, nodes: counted by hand in the copy's files.
    counts: [usize; 6],
    /// What a warning each must contain, in order.
    warnings: &'static [&'static str],
    differs: Differs,
}

const DUMPS: [Dump; 8] = [
    // lstopo also shows 32 groups of 4 (the kernel's cluster_cpus: CPUs on one L3 tag). Their L2
    // is private, so they are no clusters by Instep's definition.
    Dump {
        name: "128arm-2pa2n8cluster4co",
        counts: [128, 128, 128, 4, 2, 4],
        warnings: &[],
        differs: Differs::Not,
    },
    // No L3: the private L2 is the last level.
    Dump {
        name: "16amd64-8n2c",
        counts: [16, 16, 16, 16, 8, 8],
        warnings: &[],
        differs: Differs::Not,
    },
    // Masks only, no `online`, no L1i.
    Dump {
        name: "16em64t-4s2c2t",
        counts: [16, 8, 8, 4, 4, 1],
        warnings: &[],
        differs: Differs::Not,
    },
    // 6 P-cores with 2 threads, 8 E-cores in 2 clusters of 4.
    Dump {
        name: "20em64t-hybrid-1p6c2t+2ca4co1t",
        counts: [20, 14, 8, 1, 1, 1],
        warnings: &[],
        differs: Differs::Not,
    },
    Dump {
        name: "40intel64-2g2n4c+pcilocality",
        counts: [40, 40, 40, 4, 4, 4],
        warnings: &[],
        differs: Differs::Not,
    },
    // 4 sockets x 2 nodes x 4 modules x 2 CPUs.
    Dump {
        name: "64amd64-4s2n4ca2co",
        counts: [64, 32, 32, 8, 4, 8],
        warnings: &[],
        differs: Differs::Modules,
    },
    // Pairs share an L2, which is the last level: cluster and LLC are the same.
    Dump {
        name: "8em64t-2s2ca2c-buggynuma",
        counts: [8, 8, 4, 4, 2, 1],
        warnings: &["nodes 0-7 all name CPUs 0-7"],
        differs: Differs::MergedMemory,
    },
    // CPUs 4-20 of 24 and node 1 of 2 are online.
    Dump {
        name: "offline-cpu0-node0",
        counts: [17, 17, 17, 2, 2, 1],
        warnings: &["nodes 1: more distances", "CPUs 4,6,8,10,12,14,16,18,20: in no online node"],
        differs: Differs::OfflineNode,
    },
];

fn shared_topologies() -> PathBuf {
    let data = std::env::var_os("INSTEP_SHARED_DATA").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    data.unwrap_or_else(beside).join("topologies")
}

/// Unpacks a copy and returns its root, or why not.
fn unpack(archive: &Path, into: &Path) -> Result<PathBuf, String> {
    if !archive.exists() {
        return Err(format!("{} is not there (set INSTEP_SHARED_DATA)", archive.display()));
    }
    let unread = ["cpuidle", "hugepages", "memory[0-9]*", "pci*", "thermal_throttle"];
    let tar = Command::new("tar")
        .arg("-xjf")
        .arg(archive)
        .arg("-C")
        .arg(into)
        .args(unread.map(|name| format!("--exclude=*/{name}")))
        .output();
    let tar = tar.map_err(|error| format!("tar does not run: {error}"))?;
    if !tar.status.success() {
        return Err(format!("tar (with bzip2): {}", String::from_utf8_lossy(&tar.stderr).trim()));
    }
    let tops: Vec<_> = into.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(tops.len(), 1, "one directory in {}", archive.display());
    Ok(tops[0].clone())
}

#[test]
fn every_dump_is_read_as_counted_by_hand_and_as_lstopo_reads_it() {
    let mut lacking = Vec::new();
    for dump in &DUMPS {
        let dir = instep_madehost::scratch_dir().unwrap();
        let archive = shared_topologies().join(format!("{}.tar.bz2", dump.name));
        let root = match unpack(&archive, dir.path()) {
            Ok(root) => root,
            Err(why) => {
                lacking.push(why);
                continue;
            }
        };
        let host = instep_host::topology::read(&Root::at(&root)).unwrap();
        by_hand(dump, &host);
        match lstopo(&root) {
            Ok(xml) => by_lstopo(dump, &host, &xml),
            Err(why) => lacking.push(format!("not compared with lstopo: {why}")),
        }
    }
    if let Some(why) = lacking.first() {
        skip::note(&format!("{} of {} dumps, the first: {why}", lacking.len(), DUMPS.len()));
    }
}

fn by_hand(dump: &Dump, host: &Topology) {
    let name = dump.name;
    let counts = [
        host.cpus().len(),
        host.cores().len(),
        host.clusters().len(),
        host.llcs().len(),
        host.packages().len(),
        host.nodes().len(),
    ];
    assert_eq!(counts, dump.counts, "{name}");
    assert_eq!(host.warnings().len(), dump.warnings.len(), "{name}: {:?}", host.warnings());
    for (said, expected) in host.warnings().iter().zip(dump.warnings) {
        assert!(said.contains(expected), "{name}: {said}");
    }
    let distances = |node| host.node(NodeId(node)).unwrap().distances.clone();
    match name {
        "64amd64-4s2n4ca2co" => {
            assert_eq!(distances(3), [22, 16, 16, 10, 16, 16, 22, 22]);
            assert_eq!(host.cpu(CpuId(5)).unwrap().core, host.cpu(CpuId(4)).unwrap().core);
        }
        "128arm-2pa2n8cluster4co" => assert_eq!(distances(0), [10, 16, 32, 33]),
        "8em64t-2s2ca2c-buggynuma" => {
            assert_eq!(host.nodes()[0].memory, Bytes((7 * 2_097_152 + 2_096_684 - 1024) * 1024));
            assert_eq!(host.memory_node(NodeId(5)), Some(NodeId(0)));
        }
        "offline-cpu0-node0" => assert_eq!(distances(1), [10]),
        "20em64t-hybrid-1p6c2t+2ca4co1t" => {
            let kind = |id| host.cpu(CpuId(id)).unwrap().kind;
            assert!((0..12).all(|id| kind(id) == Some(CoreKind::Performance)));
            assert!((12..20).all(|id| kind(id) == Some(CoreKind::Efficient)));
        }
        _ => {}
    }
}

/// lstopo's XML of the copy. Its x86 back end is off: it would mix in this machine's CPUID.
fn lstopo(root: &Path) -> Result<String, String> {
    let output = Command::new("lstopo-no-graphics")
        .args(["--no-io", "--of", "xml"])
        .env("HWLOC_FSROOT", root)
        .env("HWLOC_THISSYSTEM", "0")
        .env("HWLOC_COMPONENTS", "-x86")
        .output()
        .map_err(|error| format!("lstopo-no-graphics (Debian hwloc-nox) does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("lstopo: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(&format!(" {name}=\""))?.1.split_once('"').map(|(value, _)| value)
}

/// hwloc's mask: 32-bit words with 0x, the highest first.
fn cpuset(line: &str) -> CpuSet {
    let mut cpus = CpuSet::new();
    for (word, text) in (0u32..).zip(attribute(line, "cpuset").unwrap().rsplit(',')) {
        let digits = text.trim_start_matches("0x");
        let bits = if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 16).unwrap() };
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| CpuId(word * 32 + bit)));
    }
    cpus
}

fn objects<'a>(xml: &'a str, kind: &str) -> Vec<&'a str> {
    let start = format!("<object type=\"{kind}\"");
    xml.lines().filter(|line| line.trim_start().starts_with(&start)).collect()
}

/// The CPU sets of all objects of a type, in order of the lowest CPU, as Instep orders them.
fn sets(xml: &str, kind: &str) -> Vec<CpuSet> {
    let mut sets: Vec<CpuSet> = objects(xml, kind).into_iter().map(cpuset).collect();
    sets.sort_by_key(CpuSet::first);
    sets
}

fn by_lstopo(dump: &Dump, host: &Topology, xml: &str) {
    let name = dump.name;
    let pus = sets(xml, "PU").iter().fold(CpuSet::new(), |all, pu| all.or(pu));
    assert_eq!(host.all_cpus(), pus, "{name}: online CPUs");
    let cores = if dump.differs == Differs::Modules { "L1iCache" } else { "Core" };
    assert_eq!(host.cores(), sets(xml, cores), "{name}: cores");
    assert_eq!(host.clusters(), sets(xml, "L2Cache"), "{name}: clusters");
    let l3 = sets(xml, "L3Cache");
    let llcs = if l3.is_empty() { sets(xml, "L2Cache") } else { l3 };
    assert_eq!(host.llcs(), llcs, "{name}: last-level caches");
    assert_eq!(host.packages(), sets(xml, "Package"), "{name}: packages");
    let nodes = objects(xml, "NUMANode");
    assert_eq!(host.nodes().len(), nodes.len(), "{name}: nodes");
    for line in nodes {
        let id = NodeId(attribute(line, "os_index").unwrap().parse().unwrap());
        let memory = Bytes(attribute(line, "local_memory").unwrap().parse().unwrap());
        let node = host.node(id).unwrap();
        if dump.differs == Differs::MergedMemory {
            assert!(node.memory > memory, "{name}: memory of node {id}");
        } else {
            assert_eq!(node.memory, memory, "{name}: memory of node {id}");
        }
        if dump.differs == Differs::OfflineNode {
            assert!(cpuset(line).is_subset(&node.cpus), "{name}: CPUs of node {id}");
        } else {
            assert_eq!(node.cpus, cpuset(line), "{name}: CPUs of node {id}");
        }
    }
    for cpu in host.cpus() {
        assert!(host.cores()[cpu.core.0 as usize].contains(cpu.id), "{name}: CPU {}", cpu.id);
        assert!(host.node(cpu.node).unwrap().cpus.contains(cpu.id), "{name}: CPU {}", cpu.id);
    }
}
