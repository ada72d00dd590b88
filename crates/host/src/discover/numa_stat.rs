//! Parser of a cgroup's `memory.numa_stat`, versions 2 and 1: the guest's memory by node.
//!
//! Guest memory is anonymous or shared memory. Version 2 counts them as `anon` and `shmem`
//! (bytes); version 1 has both on the anonymous lists and locked guests on `unevictable` (pages
//! of 4 kB on x86-64). Page cache of disk images is no guest memory. Neither version counts
//! hugetlb pages.

use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;

/// Bytes by node; `None` when the text has no row of guest memory or one that cannot be read.
/// `page` is the base page size in bytes, for version 1.
pub fn parse(text: &str, page: u64) -> Option<BTreeMap<NodeId, Bytes>> {
    let row = |name: &str, separator: char| {
        text.lines().take(256).find_map(|line| {
            let (head, rest) = line.split_once(separator)?;
            (head == name).then_some(rest)
        })
    };
    if let Some(anon) = row("anon", ' ') {
        let rows = [Some(anon), row("shmem", ' ')];
        return sum(rows.into_iter().flatten(), 1);
    }
    // `hierarchical_` rows hold what is below too; libvirt's emulator group is.
    let anon = row("hierarchical_anon", '=').or_else(|| row("anon", '='))?;
    let locked = row("hierarchical_unevictable", '=').or_else(|| row("unevictable", '='));
    sum([Some(anon), locked].into_iter().flatten(), page)
}

fn sum<'a>(rows: impl Iterator<Item = &'a str>, unit: u64) -> Option<BTreeMap<NodeId, Bytes>> {
    let mut by_node: BTreeMap<NodeId, Bytes> = BTreeMap::new();
    for field in rows.flat_map(|row| row.split_whitespace()) {
        // The total over nodes stands first in a row of version 1.
        let Some((node, count)) = field.strip_prefix('N').and_then(|f| f.split_once('=')) else {
            continue;
        };
        let node = node.parse().ok().filter(|n| *n <= instep_core::idset::MAX_ID)?;
        let bytes = count.parse::<u64>().ok()?.saturating_mul(unit);
        let sum = &mut by_node.entry(NodeId(node)).or_default().0;
        *sum = sum.saturating_add(bytes);
    }
    (!by_node.is_empty()).then_some(by_node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Vec<u64>> {
        Some(parse(text, 4096)?.into_values().map(|bytes| bytes.0).collect())
    }

    #[test]
    fn version_2_counts_anonymous_and_shared_memory() {
        let text = "anon N0=100 N1=20\nfile N0=9000 N1=1\nkernel_stack N0=5 N1=5\nshmem N0=3 N1=4\n\
            file_mapped N0=77 N1=7\n";
        assert_eq!(of(text), Some(vec![103, 24]));
    }

    #[test]
    fn version_1_counts_pages_with_what_is_below() {
        let text = "total=10 N0=10 N1=0\nfile=1 N0=1 N1=0\nanon=2 N0=2 N1=0\nunevictable=0 N0=0 N1=0\n\
            hierarchical_total=9 N0=9 N1=0\nhierarchical_anon=5 N0=4 N1=1\n\
            hierarchical_unevictable=1 N0=0 N1=1\n";
        assert_eq!(of(text), Some(vec![4 * 4096, 2 * 4096]));
    }

    #[test]
    fn garbage_gives_nothing() {
        for bad in ["", "anon", "anon N0=x", "anon Nx=1", "file N0=1", "anon=5 N0=-1"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
