//! Which mapping of a monitor is the memory of which guest node, and so on which host nodes each
//! guest node's memory lies; pure.
//!
//! QEMU maps every `memory-backend-*` object by itself, so a mapping as long as a backend is that
//! backend's when nothing else is as long (thread stacks have 8 MiB). Among several of one length
//! the policy that the backend asked for tells, then its id in the name of its file (QEMU names
//! files on hugetlbfs `qemu_back_mem.ID.XXXXXX`, libvirt others by the id). What could be two
//! things is left unknown, and so is what the kernel merged or split. A guest whose nodes are parts
//! of one mapping (`-numa node,mem=`) is not told apart.

use super::guest_numa::Backend;
use super::numa_maps::{self, Mapping, Policy};
use instep_core::units::{Bytes, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// More mappings of one length than this tell nothing.
const MAX_ALIKE: usize = 64;

/// For every backend the resident memory of its mapping by host node, `None` where it cannot be
/// told. `numa_maps` are the bytes of that file, `maps` start and end of the mappings of `maps`.
pub fn resident(
    numa_maps: &[u8],
    maps: &[(u64, u64)],
    backends: &[Backend],
) -> Vec<Option<BTreeMap<NodeId, Bytes>>> {
    let told = tell(numa_maps, maps, backends);
    told.into_iter().map(|mapping| mapping.as_ref().map(Mapping::by_node)).collect()
}

/// The same as [`resident`], but the mapping itself.
pub(crate) fn tell<'a>(
    numa_maps: &'a [u8],
    maps: &[(u64, u64)],
    backends: &[Backend],
) -> Vec<Option<Mapping<'a>>> {
    let wanted: BTreeSet<u64> = backends.iter().map(|backend| backend.size.0).collect();
    let ends: BTreeMap<u64, u64> = maps.iter().copied().collect();
    let mut alike: BTreeMap<u64, Vec<Mapping<'_>>> = BTreeMap::new();
    numa_maps::each(numa_maps, "", |mapping| {
        let length = ends.get(&mapping.start).map_or(0, |end| end.saturating_sub(mapping.start));
        if wanted.contains(&length) {
            let same = alike.entry(length).or_default();
            if same.len() <= MAX_ALIKE {
                same.push(mapping);
            }
        }
    });
    let of = |backend: &Backend| only(backend, alike.get(&backend.size.0)?);
    let told: Vec<Option<&Mapping<'_>>> = backends.iter().map(of).collect();
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for mapping in told.iter().flatten() {
        *times.entry(mapping.start).or_default() += 1;
    }
    let own = |mapping: &&Mapping<'_>| times.get(&mapping.start) == Some(&1);
    told.into_iter().map(|mapping| mapping.filter(own).cloned()).collect()
}

/// The one mapping that is this backend's.
fn only<'a, 'b>(backend: &Backend, alike: &'a [Mapping<'b>]) -> Option<&'a Mapping<'b>> {
    if backend.size == Bytes(0) || alike.len() > MAX_ALIKE {
        return None;
    }
    let mut fit: Vec<&Mapping<'_>> = alike.iter().filter(|m| asked(backend, &m.policy)).collect();
    if fit.len() > 1 {
        fit.retain(|mapping| mapping.file.is_some_and(|file| names(file, &backend.id)));
    }
    match fit[..] {
        [one] => Some(one),
        _ => None,
    }
}

/// Whether a mapping's policy may be the one that the backend asked for; one that asked for none
/// has its process's.
fn asked(backend: &Backend, policy: &Policy) -> bool {
    match (backend.policy.as_str(), policy) {
        ("bind", Policy::Bound(nodes)) | ("preferred", Policy::Preferred(nodes)) => {
            *nodes == backend.host_nodes
        }
        ("bind" | "preferred", _) => false,
        _ => true,
    }
}

/// Whether the last part of a file's path has `id` in it as a word.
fn names(file: &str, id: &str) -> bool {
    let base = file.rsplit('/').next().unwrap_or(file);
    let within = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-');
    !id.is_empty()
        && base.match_indices(id).any(|(at, _)| {
            let (before, after) = (&base[..at], &base[at + id.len()..]);
            !within(before.chars().next_back()) && !within(after.chars().next())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::idset::NodeSet;

    const MIB: u64 = 1 << 20;

    fn backend(id: &str, mib: u64, policy: &str, nodes: &str) -> Backend {
        let host_nodes = NodeSet::parse_list(nodes).unwrap();
        Backend { id: id.into(), size: Bytes(mib * MIB), policy: policy.into(), host_nodes }
    }

    /// Mappings one after the other, each `mib` long with a hole behind; what is resident in MiB
    /// on nodes 0 and 1, by backend.
    fn of(mappings: &[(u64, &str)], backends: &[Backend]) -> Vec<Option<[u64; 2]>> {
        let (mut text, mut maps, mut start) = (String::new(), Vec::new(), 1u64 << 40);
        for (mib, rest) in mappings {
            text += &format!("{start:08x} {rest} kernelpagesize_kB=1024\n");
            maps.push((start, start + mib * MIB));
            start += (mib + 4) * MIB;
        }
        resident(text.as_bytes(), &maps, backends)
            .into_iter()
            .map(|told| {
                let told = told?;
                Some([0, 1].map(|node| told.get(&NodeId(node)).map_or(0, |bytes| bytes.0 / MIB)))
            })
            .collect()
    }

    #[test]
    fn a_length_that_one_mapping_has_tells_it() {
        let backends = [backend("a", 64, "default", ""), backend("b", 32, "default", "")];
        let maps = [(64, "default N0=1 N1=60"), (8, "default N0=8"), (32, "bind:0-1 N1=30")];
        assert_eq!(of(&maps, &backends), [Some([1, 60]), Some([0, 30])]);
    }

    #[test]
    fn of_one_length_the_policy_tells() {
        let backends = [backend("a", 64, "bind", "0"), backend("b", 64, "bind", "1")];
        let maps = [(64, "bind:1 N1=60"), (64, "bind:0 N0=50"), (64, "default N0=1")];
        assert_eq!(of(&maps, &backends), [Some([50, 0]), Some([0, 60])]);
        assert_eq!(of(&[(64, "bind:0 N0=50"), (64, "bind:0 N0=1")], &backends), [None, None]);
    }

    #[test]
    fn of_one_length_the_file_tells() {
        let file = |id: &str| format!("file=/dev/hugepages/qemu_back_mem._objects_{id}.aX1 huge");
        let backends: Vec<_> =
            ["ram-node1", "ram-node10"].map(|id| backend(id, 64, "default", "")).into();
        let ten = format!("default {} N1=7", file("ram-node10"));
        let one = format!("default {} N0=5", file("ram-node1"));
        assert_eq!(of(&[(64, &ten), (64, &one)], &backends), [Some([5, 0]), Some([0, 7])]);
    }

    #[test]
    fn what_could_be_two_things_is_not_known() {
        let backends = [backend("a", 64, "default", ""), backend("b", 64, "default", "")];
        assert_eq!(of(&[(64, "default N0=1"), (64, "default N1=1")], &backends), [None, None]);
        // One mapping for both: the other is gone or was split.
        assert_eq!(of(&[(64, "default N0=1")], &backends), [None, None]);
        assert_eq!(of(&[], &[backend("a", 0, "default", "")]), [None]);
        let many = [(64, "default N0=1"); MAX_ALIKE + 9];
        assert_eq!(of(&many, &backends[..1]), [None]);
    }
}
