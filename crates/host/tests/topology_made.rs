//! The topology of trees that the test writes itself: today's kernels and old ones, parts
//! missing, garbage in files, links that leave the copy.

#![cfg(test)]

use instep_core::idset::CpuSet;
use instep_core::topology::{CoreKind, Topology};
use instep_core::units::{Bytes, CpuId, NodeId};
use instep_host::{Error, Root, topology};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const CPU: &str = "sys/devices/system/cpu";
const NODE: &str = "sys/devices/system/node";

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(instep_madehost::scratch_dir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn remove(&self, path: &str) -> &Self {
        let path = self.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        self
    }

    fn read(&self) -> Topology {
        topology::read(&Root::at(self.path())).unwrap()
    }

    /// One cache of one CPU, as a mask.
    fn cache(&self, cpu: u32, index: u32, level: u32, kind: &str, mask: u64) {
        let dir = format!("{CPU}/cpu{cpu}/cache/index{index}");
        self.write(&format!("{dir}/level"), format!("{level}\n"))
            .write(&format!("{dir}/type"), format!("{kind}\n"))
            .write(&format!("{dir}/shared_cpu_map"), format!("{mask:08x}\n"));
    }
}

/// `nodes` nodes, each a package with one LLC, of `cores` cores of 2 threads with neighbouring
/// numbers, as masks; every CPU online.
fn host(nodes: u32, cores: u32) -> Tree {
    let tree = Tree::new();
    let (each, all) = (2 * cores, 2 * cores * nodes);
    let node_mask = |node: u32| ((1u64 << each) - 1) << (node * each);
    tree.write(&format!("{CPU}/online"), format!("0-{}\n", all - 1));
    for cpu in 0..all {
        let (dir, node) = (format!("{CPU}/cpu{cpu}/topology"), cpu / each);
        let core = 3u64 << (cpu / 2 * 2);
        tree.write(&format!("{dir}/physical_package_id"), format!("{node}\n"))
            .write(&format!("{dir}/core_cpus"), format!("{core:08x}\n"));
        tree.cache(cpu, 0, 1, "Data", core);
        tree.cache(cpu, 1, 1, "Instruction", core);
        tree.cache(cpu, 2, 2, "Unified", core);
        tree.cache(cpu, 3, 3, "Unified", node_mask(node));
    }
    tree.write(&format!("{NODE}/online"), format!("0-{}\n", nodes - 1));
    for node in 0..nodes {
        let row: Vec<_> = (0..nodes).map(|to| if to == node { "10" } else { "21" }).collect();
        let dir = format!("{NODE}/node{node}");
        tree.write(&format!("{dir}/cpumap"), format!("{:08x}\n", node_mask(node)))
            .write(&format!("{dir}/meminfo"), format!("Node {node} MemTotal: 1024 kB\n"))
            .write(&format!("{dir}/distance"), row.join(" ") + "\n");
    }
    tree
}

fn lists(sets: &[CpuSet]) -> Vec<String> {
    sets.iter().map(ToString::to_string).collect()
}

#[test]
fn a_plain_host_is_read_without_a_warning() {
    let host = host(2, 2).read();
    assert_eq!(lists(host.cores()), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(host.clusters(), host.cores());
    assert_eq!(lists(host.llcs()), ["0-3", "4-7"]);
    assert_eq!(host.packages(), host.llcs());
    assert_eq!(host.nodes()[1].distances, [21, 10]);
    assert_eq!(host.nodes()[1].memory, Bytes(1 << 20));
    assert_eq!(host.warnings(), [""; 0]);
}

#[test]
fn offline_cpus_are_left_out_by_the_list_or_by_their_own_file() {
    let tree = host(2, 2);
    tree.write(&format!("{CPU}/online"), "0,2-7\n").remove(&format!("{CPU}/cpu1/topology"));
    assert_eq!(lists(tree.read().cores()), ["0", "2-3", "4-5", "6-7"]);
    assert_eq!(tree.read().warnings(), [""; 0]);
    tree.remove(&format!("{CPU}/online")).write(&format!("{CPU}/cpu1/online"), "0\n");
    assert_eq!(lists(tree.read().cores()), ["0", "2-3", "4-5", "6-7"]);
}

#[test]
fn lists_serve_where_masks_are_missing() {
    let tree = host(1, 2);
    for cpu in 0..4 {
        tree.remove(&format!("{CPU}/cpu{cpu}/topology/core_cpus"));
        let core = cpu / 2 * 2;
        let text = format!("{core}-{}\n", core + 1);
        tree.write(&format!("{CPU}/cpu{cpu}/topology/thread_siblings_list"), text);
        tree.remove(&format!("{CPU}/cpu{cpu}/cache/index3/shared_cpu_map"));
        tree.write(&format!("{CPU}/cpu{cpu}/cache/index3/shared_cpu_list"), "0-3\n");
    }
    tree.remove(&format!("{NODE}/node0/cpumap")).write(&format!("{NODE}/node0/cpulist"), "0-3\n");
    let host = tree.read();
    assert_eq!(lists(host.cores()), ["0-1", "2-3"]);
    assert_eq!((host.llcs().len(), host.warnings()), (1, &[][..]));
}

#[test]
fn garbage_in_a_file_is_a_warning_that_names_file_and_value() {
    let tree = host(2, 2);
    tree.write(&format!("{CPU}/cpu3/topology/physical_package_id"), "fish\n")
        .write(&format!("{CPU}/cpu2/cache/index3/shared_cpu_map"), b"\xff\xfe\0\0")
        .write(&format!("{CPU}/cpu4/cache/index1/type"), "Rumour\n")
        .write(&format!("{NODE}/node1/distance"), "10 far\n")
        .write(&format!("{NODE}/online"), "0-99999999999\n");
    let host = tree.read();
    assert_eq!(lists(host.llcs()), ["0-3", "4-7"]);
    assert_eq!(host.packages(), host.llcs());
    assert_eq!(host.nodes()[1].distances, [20, 10]);
    let said = host.warnings().join("\n");
    for part in [
        "cpu3/topology/physical_package_id: `fish` is not a number; ignored",
        "cpu2/cache/index3/shared_cpu_map: `",
        "cpu4/cache/index1/type: `Rumour` is not Data, Instruction or Unified",
        "node1/distance: `10 far` is not distances like",
        "node/online: `0-99999999999` is not an ascending list",
        "CPUs 3: no package number",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}

#[test]
fn a_broken_copy_yields_a_bounded_number_of_warnings() {
    let tree = host(2, 8);
    for cpu in 0..32 {
        for index in 0..4 {
            tree.write(&format!("{CPU}/cpu{cpu}/cache/index{index}/type"), "?");
        }
    }
    let host = tree.read();
    assert!(host.warnings().len() < 110, "{}", host.warnings().len());
    assert!(host.warnings().iter().any(|said| said.starts_with("28 more warnings")));
}

#[test]
fn no_cpu_directory_is_an_error_that_says_what_to_do() {
    let tree = Tree::new();
    tree.write("proc/cpuinfo", "processor : 0\n");
    let error = topology::read(&Root::at(tree.path())).unwrap_err();
    assert!(matches!(error, Error::Unusable { .. }));
    let said = error.to_string();
    assert!(
        said.contains("sys/devices/system/cpu: cannot be listed; a copy (--root DIR) is"),
        "{said}"
    );
    fs::create_dir_all(tree.path().join(CPU)).unwrap();
    tree.remove("proc/cpuinfo");
    let said = topology::read(&Root::at(tree.path())).unwrap_err().to_string();
    assert!(said.contains("lists no online CPU"), "{said}");
}

#[test]
fn a_kernel_without_numa_is_one_node_with_all_memory() {
    let tree = host(1, 1);
    tree.remove(NODE).write("proc/meminfo", "MemTotal:     2048 kB\nMemFree: 1 kB\n");
    let host = tree.read();
    assert_eq!((host.nodes().len(), host.nodes()[0].memory), (1, Bytes(2 << 20)));
    assert_eq!(host.nodes()[0].cpus.to_string(), "0-1");
    assert_eq!(host.warnings(), [""; 0]);
}

#[test]
fn cpuinfo_tells_packages_and_threads_where_sysfs_does_not() {
    let tree = host(2, 2);
    let mut info = String::new();
    for cpu in 0..8 {
        tree.remove(&format!("{CPU}/cpu{cpu}/topology"));
        let (package, core) = (cpu / 4, cpu / 2 % 2);
        info += &format!(
            "processor\t: {cpu}\nphysical id\t: {package}\nsiblings\t: 4\ncore id\t\t: {core}\n\
             cpu cores\t: 2\n\n"
        );
        tree.remove(&format!("{CPU}/cpu{cpu}/cache"));
    }
    tree.write("proc/cpuinfo", &info);
    let host = tree.read();
    assert_eq!(lists(host.cores()), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(lists(host.packages()), ["0-3", "4-7"]);
    let said = host.warnings();
    assert!(
        said[0].contains("CPUs 0-7; packages and threads are those of proc/cpuinfo"),
        "{said:?}"
    );
    tree.write("proc/cpuinfo", info.replace("siblings\t: 4", "siblings\t: 2"));
    assert_eq!(tree.read().cores().len(), 8, "as many cores as CPUs: no threads");
}

#[test]
fn memory_without_cpus_is_node_and_node_that_is_offline_is_none() {
    let tree = host(2, 1);
    tree.write(&format!("{NODE}/node1/cpumap"), "00000000\n")
        .write(&format!("{NODE}/node0/cpumap"), "0000000f\n");
    let host = tree.read();
    assert_eq!(host.nodes().len(), 2);
    assert!(host.nodes()[1].cpus.is_empty());
    tree.write(&format!("{NODE}/online"), "0\n").write(&format!("{NODE}/node0/distance"), "10\n");
    assert_eq!(tree.read().nodes().len(), 1);
    assert_eq!(tree.read().memory_node(NodeId(1)), None);
}

#[test]
fn kinds_come_from_pmu_lists_or_from_capacities() {
    let kinds = |tree: &Tree| -> Vec<Option<CoreKind>> {
        tree.read().cpus().iter().map(|cpu| cpu.kind).collect()
    };
    let (fast, small) = (Some(CoreKind::Performance), Some(CoreKind::Efficient));
    let tree = host(1, 2);
    assert_eq!(kinds(&tree), [None; 4]);
    tree.write("sys/devices/cpu_core/cpus", "0-1\n").write("sys/devices/cpu_atom/cpus", "2-3\n");
    assert_eq!(kinds(&tree), [fast, fast, small, small]);
    let tree = host(1, 2);
    for (cpu, capacity) in [1024, 1024, 446, 446].iter().enumerate() {
        tree.write(&format!("{CPU}/cpu{cpu}/cpu_capacity"), format!("{capacity}\n"));
    }
    assert_eq!(kinds(&tree), [fast, fast, small, small]);
}

#[test]
fn a_link_that_leaves_the_copy_is_not_followed() {
    let (tree, other) = (host(1, 1), host(1, 1));
    other.write("package", "7\n").write(&format!("{CPU}/cpu1/topology/physical_package_id"), "7\n");
    let file = tree.path().join(CPU).join("cpu0/topology/physical_package_id");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(other.path().join("package"), &file).unwrap();
    let dir = tree.path().join(CPU).join("cpu1/topology");
    fs::remove_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(other.path().join(CPU).join("cpu1/topology"), &dir).unwrap();
    let host = tree.read();
    let said = host.warnings().join("\n");
    assert!(said.contains("cpu0/topology/physical_package_id: is a link that leaves"), "{said}");
    assert!(said.contains("cpu1/topology/physical_package_id: is a link that leaves"), "{said}");
    assert_eq!(host.packages().len(), 1);
}

#[test]
fn a_relative_link_inside_the_copy_is_followed() {
    let tree = host(1, 1);
    let (cpus, kept) = (tree.path().join(CPU), tree.path().join("sys/devices/kept"));
    fs::rename(cpus.join("cpu1"), &kept).unwrap();
    std::os::unix::fs::symlink("../../kept", cpus.join("cpu1")).unwrap();
    assert_eq!(lists(tree.read().cores()), ["0-1"]);
    assert_eq!(tree.read().cpu(CpuId(1)).unwrap().id, CpuId(1));
}

#[test]
fn this_machine_is_read() {
    match topology::read(&Root::live()) {
        Ok(host) => assert!(!host.cpus().is_empty()),
        Err(error) => assert!(error.to_string().contains("mount sysfs"), "{error}"),
    }
}

#[test]
fn a_copy_with_lists_only_still_has_cpus_and_nodes() {
    let tree = Tree::new();
    tree.write(&format!("{CPU}/online"), "0-3\n").write(&format!("{NODE}/online"), "0-1\n");
    tree.write(&format!("{NODE}/node0/cpulist"), "0-1\n");
    tree.write(&format!("{NODE}/node1/cpulist"), "2-3\n");
    let host = tree.read();
    assert_eq!((host.cpus().len(), host.cores().len(), host.nodes().len()), (4, 4, 2));
    assert!(host.warnings().iter().any(|w| w.contains("no directories of CPUs 0-3")));
}
