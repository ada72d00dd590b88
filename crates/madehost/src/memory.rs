//! Where a made VM's memory is, as numa_maps, maps and memory.numa_stat tell it.
//!
//! All mappings add up to [`VmSpec::memory`] exactly, in whole 4 KiB pages (2 MiB for the guest's
//! own memory on huge pages, which memory.numa_stat does not count). Field order as in
//! fs/proc/task_mmu.c, `show_numa_map`, Linux 6.18.

use crate::vm::{GuestNodeSpec, MemPolicy, Pages, VmSpec};
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::fmt::Write;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Pages of the monitor itself: code, heap and stack, on its fullest node.
const MONITOR_PAGES: [u64; 3] = [448, 96, 9];
/// Where the guest's memory begins, on huge pages and on small ones: room for 16 TiB each.
const GUEST: [u64; 2] = [0x6000_0000_0000, 0x7000_0000_0000];

/// One mapping.
struct Mapping {
    start: u64,
    /// Bytes of address space, at least one page.
    length: u64,
    permissions: &'static str,
    policy: String,
    /// ` file=...`, ` heap`, ` stack` or nothing, as numa_maps has it.
    place: String,
    /// The path or name as maps has it.
    name: String,
    /// Bytes of a page.
    page: u64,
    pages: BTreeMap<NodeId, u64>,
}

/// All mappings, ascending by address.
fn mappings(vm: &VmSpec) -> Vec<Mapping> {
    let mut guest = vm.memory.clone();
    let wanted = MONITOR_PAGES.iter().sum::<u64>() * PAGE;
    let fullest = guest.iter_mut().max_by_key(|(_, bytes)| **bytes);
    let monitor = fullest.filter(|(_, bytes)| bytes.0 >= wanted + HUGE).map(|(node, bytes)| {
        bytes.0 -= wanted;
        *node
    });
    let own = |pages: u64| monitor.map(|node| BTreeMap::from([(node, pages)])).unwrap_or_default();
    let exe = crate::monitor::exe(vm.vmm);
    let [code, heap, stack] = MONITOR_PAGES;
    let small = |start, pages: u64, permissions, place: String, name: &str, held| Mapping {
        start,
        length: pages * PAGE,
        permissions,
        policy: "default".to_owned(),
        place,
        name: name.to_owned(),
        page: PAGE,
        pages: held,
    };
    let file = format!(" file={exe}");
    let mut list = vec![
        small(0x55ed_f8a6_7000, code, "r-xp", file.clone(), exe, own(code)),
        small(0x55ee_272a_1000, 16, "r--p", file, exe, BTreeMap::new()),
        small(0x55ee_273d_c000, heap, "rw-p", " heap".to_owned(), "[heap]", own(heap)),
    ];
    let nodes: Vec<Mapping> = (1..)
        .zip(&vm.guest_nodes)
        .filter_map(|(n, node)| of_node(vm, n, node, &mut guest))
        .collect();
    for (start, page) in GUEST.into_iter().zip([HUGE, PAGE]) {
        if page == HUGE && vm.pages != Pages::Huge {
            continue;
        }
        let pages = take(&mut guest, page);
        let huge = page == HUGE;
        list.push(Mapping {
            start,
            length: (pages.values().sum::<u64>() * page).max(page),
            permissions: if huge { "rw-s" } else { "rw-p" },
            policy: policy(&vm.policy),
            place: if huge { " file=/memfd:mem0\\040(deleted) huge" } else { "" }.to_owned(),
            name: if huge { "/memfd:mem0 (deleted)" } else { "" }.to_owned(),
            page,
            pages,
        });
    }
    list.extend(nodes);
    list.push(small(0x7f6f_fe00_0000, 1, "---p", String::new(), "", BTreeMap::new()));
    list.push(small(0x7ffd_1d1c_8000, stack, "rw-p", " stack".to_owned(), "[stack]", own(stack)));
    list
}

/// The mapping of the guest's node number `n`, from 1, if it has one; taken from `guest`.
fn of_node(
    vm: &VmSpec,
    n: u64,
    node: &GuestNodeSpec,
    guest: &mut BTreeMap<NodeId, Bytes>,
) -> Option<Mapping> {
    let pages: BTreeMap<NodeId, u64> =
        node.resident.iter().map(|(node, bytes)| (*node, bytes.0 / PAGE)).collect();
    for (node, pages) in &pages {
        let left = guest.entry(*node).or_default();
        left.0 = left.0.saturating_sub(pages * PAGE);
    }
    (!pages.is_empty()).then(|| Mapping {
        start: GUEST[1] + (n << 32),
        length: node.memory.0 >> 20 << 20,
        permissions: "rw-p",
        policy: policy(&vm.policy),
        place: String::new(),
        name: String::new(),
        page: PAGE,
        pages,
    })
}

/// `/proc/PID/numa_maps`.
pub(crate) fn numa_maps(vm: &VmSpec) -> String {
    let mut text = String::new();
    for mapping in mappings(vm) {
        let Mapping { start, policy, place, page, pages, .. } = &mapping;
        let _ = write!(text, "{start:08x} {policy}{place}");
        let total: u64 = pages.values().sum();
        if total > 0 {
            let _ = match (place.contains("file="), *page == HUGE) {
                (_, true) => write!(text, " dirty={total}"),
                (true, false) => write!(text, " mapped={total} mapmax=2 active=0"),
                (false, false) => write!(text, " anon={total} dirty={total} active=0"),
            };
            let _ = write!(text, " {}kernelpagesize_kB={}", by_node(pages), page / 1024);
        }
        text.push('\n');
    }
    text
}

/// `/proc/PID/maps`.
pub(crate) fn maps(vm: &VmSpec) -> String {
    let mut text = String::new();
    for mapping in mappings(vm) {
        let Mapping { start, length, permissions, name, .. } = &mapping;
        let line = format!("{start:08x}-{:08x} {permissions} 00000000 00:00 0", start + length);
        let _ = if name.is_empty() {
            writeln!(text, "{line} ")
        } else {
            writeln!(text, "{line:<72} {name}")
        };
    }
    text
}

/// Memory on pages of hugetlbfs.
pub(crate) fn huge(vm: &VmSpec) -> Bytes {
    let huge = mappings(vm).into_iter().filter(|mapping| mapping.page == HUGE);
    Bytes(huge.map(|mapping| mapping.pages.values().sum::<u64>() * HUGE).sum())
}

/// Memory on ordinary pages by node: what a cgroup counts.
pub(crate) fn small(vm: &VmSpec) -> BTreeMap<NodeId, Bytes> {
    let mut sum: BTreeMap<NodeId, Bytes> = vm.memory.keys().map(|node| (*node, Bytes(0))).collect();
    for mapping in mappings(vm).into_iter().filter(|mapping| mapping.page == PAGE) {
        for (node, pages) in mapping.pages {
            sum.entry(node).or_default().0 += pages * PAGE;
        }
    }
    sum
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

/// `memory.numa_stat` of cgroup v2 for a group with this memory, all of it anonymous, in whole pages.
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

/// `memory.numa_stat` of cgroup v1, in pages.
pub(crate) fn numa_stat_v1(nodes: &[NodeId], memory: &BTreeMap<NodeId, Bytes>) -> String {
    let pages = |node: &NodeId| memory.get(node).map_or(0, |bytes| bytes.0 / PAGE);
    let mut text = String::new();
    for (name, held) in [("total", true), ("file", false), ("anon", true), ("unevictable", false)] {
        for prefix in ["", "hierarchical_"] {
            let of = |node: &NodeId| if held { pages(node) } else { 0 };
            let by_node: String =
                nodes.iter().map(|node| format!(" N{node}={}", of(node))).collect();
            let sum: u64 = nodes.iter().map(of).sum();
            let _ = writeln!(text, "{prefix}{name}={sum}{by_node}");
        }
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
