//! How much memory a node can take in: what is free or soon free above a reserve, and its free
//! huge pages.
//!
//! Soon free are clean pages of files that nobody used of late: the kernel drops them when a page
//! is to be moved in (mm/migrate.c, `alloc_migration_target`, may reclaim on the node; 6.18). On
//! a host that does much I/O they are nearly all there is; dirty ones would have to be written
//! first and do not count. A node filled to the brim swaps out what was just moved, so the
//! reserve stays. All of it changes all the time: read again before every step.

use crate::error::Error;
use crate::root::Root;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;

const SMALL_PAGE: u64 = 4096;
/// The least reserve, however small the node.
const MIN_RESERVE: u64 = 64 << 20;

/// What one node can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The node.
    pub node: NodeId,
    /// Free and soon free memory above the reserve.
    pub free: Bytes,
    /// Free hugetlb pages by page size in bytes.
    pub huge: BTreeMap<u64, u64>,
}

impl Room {
    /// Bytes it can take in pages of this size.
    pub fn for_page(&self, page: u64) -> u64 {
        if page <= SMALL_PAGE {
            return self.free.0;
        }
        match self.huge.get(&page) {
            Some(pages) => pages.saturating_mul(page),
            // Base pages of 16 or 64 KiB (Arm, Power) are no hugetlb size.
            None if page <= 64 << 10 => self.free.0,
            None => 0,
        }
    }

    pub(crate) fn take(&mut self, page: u64) {
        match self.huge.get_mut(&page) {
            Some(pages) => *pages = pages.saturating_sub(1),
            None => self.free.0 = self.free.0.saturating_sub(page),
        }
    }

    pub(crate) fn give(&mut self, page: u64) {
        match self.huge.get_mut(&page) {
            Some(pages) => *pages = pages.saturating_add(1),
            None => self.free.0 = self.free.0.saturating_add(page),
        }
    }

    pub(crate) fn close(&mut self) {
        self.free = Bytes(0);
        self.huge.clear();
    }
}

/// Reads what these nodes can take; `reserve` stays free on each, `None` means a thirty-second of
/// the node's memory and at least 64 MiB.
///
/// # Errors
/// A node without a readable `meminfo`.
pub fn read(root: &Root, nodes: &NodeSet, reserve: Option<Bytes>) -> Result<Vec<Room>, Error> {
    nodes.iter().map(|node| read_one(root, node, reserve)).collect()
}

fn read_one(root: &Root, node: NodeId, reserve: Option<Bytes>) -> Result<Room, Error> {
    let dir = format!("sys/devices/system/node/node{node}");
    let relative = format!("{dir}/meminfo");
    let text = root.read(&relative)?;
    let (total, free) = parse_meminfo(&text).ok_or_else(|| {
        let start = text.lines().next().unwrap_or_default();
        Error::parse(&root.join(&relative), 0, start, "a node's meminfo with MemTotal and MemFree")
    })?;
    let reserve = reserve.unwrap_or(Bytes((total.0 / 32).max(MIN_RESERVE)));
    let mut huge = BTreeMap::new();
    // A kernel without hugetlb has no such directory.
    for entry in std::fs::read_dir(root.join(format!("{dir}/hugepages"))).into_iter().flatten() {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let Some(size) = name.to_str().and_then(parse_huge_name) else { continue };
        let count =
            root.read_opt(format!("{dir}/hugepages/hugepages-{}kB/free_hugepages", size >> 10))?;
        huge.insert(size, count.and_then(|text| text.trim().parse().ok()).unwrap_or(0));
    }
    Ok(Room { node, free: Bytes(free.0.saturating_sub(reserve.0)), huge })
}

/// `hugepages-2048kB` as bytes.
fn parse_huge_name(name: &str) -> Option<u64> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Total memory and what is free or soon free by a node's `meminfo` (`Node 0 MemFree:  1234 kB`):
/// `MemTotal`, and `MemFree` with what of `Inactive(file)` is not `Dirty`.
pub fn parse_meminfo(text: &str) -> Option<(Bytes, Bytes)> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.split_ascii_whitespace().nth(2) == Some(key))?;
        let kib: u64 = line.split_ascii_whitespace().nth(3)?.parse().ok()?;
        Some(Bytes(kib.checked_mul(1024)?))
    };
    let or_none = |key| value(key).unwrap_or_default().0;
    let (total, free) = (value("MemTotal:")?, value("MemFree:")?);
    let clean = or_none("Inactive(file):").saturating_sub(or_none("Dirty:"));
    Some((total, Bytes(free.0.saturating_add(clean).min(total.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_per_node() {
        let text = "Node 0 MemTotal:        2048 kB\nNode 0 MemFree:          512 kB\n";
        assert_eq!(parse_meminfo(text), Some((Bytes(2 << 20), Bytes(512 << 10))));
        for cut in 0..text.find("512").unwrap() {
            assert_eq!(parse_meminfo(&text[..cut]), None);
        }
        assert_eq!(parse_meminfo("Node 0 MemTotal: 99999999999999999999 kB\n"), None);
    }

    #[test]
    fn page_cache_that_is_clean_and_out_of_use_counts_as_room() {
        let text = "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 65536 kB\n\
                    Node 1 Active(file): 900000 kB\nNode 1 Inactive(file): 5000000 kB\n\
                    Node 1 Dirty: 1000000 kB\n";
        assert_eq!(parse_meminfo(text), Some((Bytes(8 << 30), Bytes(4_065_536 << 10))));
        // Dirty anonymous or active pages can be more than the inactive ones; damage, even so.
        let text = text.replace("5000000", "5").replace("8388608", "1024");
        assert_eq!(parse_meminfo(&text), Some((Bytes(1 << 20), Bytes(1 << 20))));
    }

    #[test]
    fn the_reserve_stays_free_and_huge_pages_count_apart() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let node = dir.path().join("sys/devices/system/node/node1");
        let pool = node.join("hugepages/hugepages-2048kB");
        std::fs::create_dir_all(&pool).unwrap();
        let meminfo = "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 1048576 kB\n";
        std::fs::write(node.join("meminfo"), meminfo).unwrap();
        std::fs::write(pool.join("free_hugepages"), "3\n").unwrap();
        let root = Root::at(dir.path());
        let nodes = NodeSet::one(NodeId(1));
        let room = &read(&root, &nodes, None).unwrap()[0];
        assert_eq!(room.for_page(4096), (1 << 30) - (256 << 20));
        assert_eq!(room.for_page(2 << 20), 6 << 20);
        assert_eq!(room.for_page(1 << 30), 0);
        let none = &read(&root, &nodes, Some(Bytes(4 << 30))).unwrap()[0];
        assert_eq!(none.for_page(4096), 0);
        assert!(read(&root, &NodeSet::one(NodeId(2)), None).unwrap_err().is_gone());
    }
}
