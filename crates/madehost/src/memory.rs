//! Where a made VM's memory is, as numa_maps and memory.numa_stat tell it.
//!
//! Both add up to [`VmSpec::memory`] exactly, in whole 4 KiB pages (2 MiB for the guest's own
//! memory on huge pages). Field order as in fs/proc/task_mmu.c, `show_numa_map`, Linux 6.18.

use crate::vm::{MemPolicy, Pages, VmSpec};
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::fmt::Write;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Pages of the monitor itself: code, heap and stack, on its fullest node.
const MONITOR_PAGES: [u64; 3] = [448, 96, 9];

/// `/proc/PID/numa_maps`.
pub(crate) fn numa_maps(vm: &VmSpec) -> String {
    let mut guest = vm.memory.clone();
    let monitor = guest.iter().max_by_key(|(_, bytes)| **bytes).map(|(node, _)| *node);
    let wanted = MONITOR_PAGES.iter().sum::<u64>() * PAGE;
    let has_room = |node: &NodeId| guest[node].0 >= wanted + HUGE;
    let mut text = String::new();
    let mut huge = vm.pages == Pages::Huge;
    match monitor.filter(has_room) {
        Some(node) => {
            let [code, heap, stack] = MONITOR_PAGES;
            let exe = crate::monitor::exe(vm.vmm);
            let _ = writeln!(
                text,
                "55edf8a67000 default file={exe} mapped={code} mapmax=2 active=0 N{node}={code} \
                 kernelpagesize_kB=4"
            );
            let _ = writeln!(text, "55ee272a1000 default file={exe}");
            let _ = writeln!(
                text,
                "55ee273dc000 default heap anon={heap} dirty={heap} active=0 N{node}={heap} \
                 kernelpagesize_kB=4"
            );
            if let Some(bytes) = guest.get_mut(&node) {
                bytes.0 -= wanted;
            }
            text.push_str(&guest_lines(vm, &mut guest, &mut huge));
            let _ = writeln!(text, "7f6ffe000000 default");
            let _ = writeln!(
                text,
                "7ffd1d1c8000 default stack anon={stack} dirty={stack} active=0 N{node}={stack} \
                 kernelpagesize_kB=4"
            );
        }
        None => text.push_str(&guest_lines(vm, &mut guest, &mut huge)),
    }
    text
}

/// The guest's own memory: one mapping, and the rest of huge pages on a small one.
fn guest_lines(vm: &VmSpec, guest: &mut BTreeMap<NodeId, Bytes>, huge: &mut bool) -> String {
    let policy = policy(&vm.policy);
    let mut text = String::new();
    if *huge {
        let pages = take(guest, HUGE);
        let _ = writeln!(
            text,
            "7f0000000000 {policy} file=/memfd:mem0\\040(deleted) huge dirty={} {}\
             kernelpagesize_kB=2048",
            pages.values().sum::<u64>(),
            by_node(&pages)
        );
    }
    let pages = take(guest, PAGE);
    let total: u64 = pages.values().sum();
    if total > 0 {
        let _ = writeln!(
            text,
            "7f4000000000 {policy} anon={total} dirty={total} active=0 {}kernelpagesize_kB=4",
            by_node(&pages)
        );
    }
    text
}

/// Takes all whole pages of this size, by node.
fn take(guest: &mut BTreeMap<NodeId, Bytes>, size: u64) -> BTreeMap<NodeId, u64> {
    let mut pages = BTreeMap::new();
    for (node, bytes) in guest {
        if bytes.0 >= size {
            pages.insert(*node, bytes.0 / size);
            bytes.0 %= size;
        }
    }
    pages
}

fn by_node(pages: &BTreeMap<NodeId, u64>) -> String {
    pages.iter().map(|(node, pages)| format!("N{node}={pages} ")).collect()
}

fn policy(policy: &MemPolicy) -> String {
    match policy {
        MemPolicy::Default => "default".to_owned(),
        MemPolicy::Bind(nodes) => format!("bind:{nodes}"),
        MemPolicy::Prefer(node) => format!("prefer:{node}"),
        MemPolicy::Interleave(nodes) => format!("interleave:{nodes}"),
    }
}

/// `memory.numa_stat` of cgroup v2 for a group with this memory, all of it anonymous.
pub(crate) fn numa_stat(nodes: &[NodeId], memory: &BTreeMap<NodeId, Bytes>) -> String {
    let line = |name: &str, value: &dyn Fn(NodeId) -> u64| {
        let fields: String =
            nodes.iter().map(|node| format!(" N{node}={}", value(*node))).collect();
        format!("{name}{fields}\n")
    };
    let anon = |node: NodeId| memory.get(&node).map_or(0, |bytes| bytes.0 / PAGE * PAGE);
    let mut text = line("anon", &anon);
    for name in ["file", "kernel_stack", "pagetables", "shmem", "file_mapped", "file_dirty"] {
        text.push_str(&line(name, &|_| 0));
    }
    text.push_str(&line("inactive_anon", &anon));
    for name in ["active_anon", "inactive_file", "active_file", "unevictable"] {
        text.push_str(&line(name, &|_| 0));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Vmm;

    fn sum(text: &str, node: &str) -> u64 {
        let line_sum = |line: &str| {
            let size = line.split("kernelpagesize_kB=").nth(1).map_or(0, |n| n.parse().unwrap());
            let pages = line.split_whitespace().find_map(|f| f.strip_prefix(node));
            pages.map_or(0, |pages| pages.parse::<u64>().unwrap()) * size * 1024
        };
        text.lines().map(line_sum).sum()
    }

    #[test]
    fn numa_maps_adds_up_to_the_memory_of_the_spec() {
        let mut vm = VmSpec::new("a", Vmm::QemuKvm, 1, NodeId(0), Bytes::from_mib(64))
            .memory_on(NodeId(1), Bytes(5 * 4096));
        for pages in [Pages::Small, Pages::Huge] {
            vm.pages = pages;
            let text = numa_maps(&vm);
            assert_eq!((sum(&text, "N0="), sum(&text, "N1=")), (64 << 20, 5 * 4096), "{text}");
        }
    }
}
