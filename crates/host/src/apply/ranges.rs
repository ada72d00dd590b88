//! Which parts of a process's address space hold memory on which nodes: `numa_maps` (where a
//! mapping starts, its pages by node) joined with `maps` (where it ends).
//!
//! Both files are read one after the other while the process runs, so a mapping may have changed
//! in between; ranges are cut where the two disagree. It does not know which page of a range lies
//! where: that is asked page by page when moving.

use crate::error::Error;
use crate::root::Root;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest page size believed, 16 GiB (Power's largest); anything else is a damaged line.
const MAX_PAGE: u64 = 16 << 30;
/// Warnings kept per file; the rest is only counted.
const MAX_WARNINGS: usize = 5;

/// A mapping with at least one resident page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Behind the last byte; above `start`.
    pub end: u64,
    /// Size of its pages in bytes: a power of two. hugetlb pages move whole; transparent huge
    /// pages count as small ones.
    pub page: u64,
    /// Resident pages by node.
    pub by_node: BTreeMap<NodeId, u64>,
}

impl Range {
    /// Resident memory outside `home`.
    #[must_use]
    pub fn remote(&self, home: &NodeSet) -> Bytes {
        self.bytes(|node| !home.contains(node))
    }

    /// Resident memory.
    #[must_use]
    pub fn resident(&self) -> Bytes {
        self.bytes(|_| true)
    }

    fn bytes(&self, counts: impl Fn(NodeId) -> bool) -> Bytes {
        let of = |(_, pages): (&NodeId, &u64)| pages.saturating_mul(self.page);
        let chosen = self.by_node.iter().filter(|(node, _)| counts(**node)).map(of);
        Bytes(chosen.fold(0, u64::saturating_add))
    }
}

/// Reads the ranges of a process, ascending, and what was wrong with the files.
///
/// # Errors
/// [`Error::is_gone`] when there is no such process; [`Error::is_denied`] without the right to
/// look at it.
pub fn read(root: &Root, pid: u32) -> Result<(Vec<Range>, Vec<String>), Error> {
    let (numa_maps, maps) = (format!("proc/{pid}/numa_maps"), format!("proc/{pid}/maps"));
    let numa_text = root.read(&numa_maps)?;
    let maps_text = root.read(&maps)?;
    let (lines, mut warnings) = parse_numa_maps(&root.join(&numa_maps), &numa_text);
    let (mappings, more) = parse_maps(&root.join(&maps), &maps_text);
    warnings.extend(more);
    Ok((join(lines, &mappings), warnings))
}

/// A line of `numa_maps` with resident pages: a [`Range`] whose `end` is not known yet and equals
/// its `start`. Bad lines are passed over and told.
#[must_use]
pub fn parse_numa_maps(path: &Path, text: &str) -> (Vec<Range>, Vec<String>) {
    parse_lines(path, text, "an address, a policy and NODE=PAGES pairs", |line| {
        let mut words = line.split_ascii_whitespace();
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        words.next()?;
        let mut range = Range { start, end: start, page: 4096, by_node: BTreeMap::new() };
        for word in words {
            // A file name may hold anything, but never starts a word with N and a digit.
            if let Some(kib) = word.strip_prefix("kernelpagesize_kB=") {
                range.page = kib.parse::<u64>().ok()?.checked_mul(1024)?;
            } else if let Some((node, pages)) = node_pages(word) {
                range.by_node.insert(NodeId(node?), pages?);
            }
        }
        let sane = range.page.is_power_of_two() && range.page <= MAX_PAGE;
        (sane && start % range.page == 0).then_some(range)
    })
}

/// `N0=17` as (node, pages), each `None` when it is no number; `None` for any other word.
fn node_pages(word: &str) -> Option<(Option<u32>, Option<u64>)> {
    let rest = word.strip_prefix('N')?;
    let (node, pages) = rest.split_once('=')?;
    node.starts_with(|c: char| c.is_ascii_digit()).then(|| {
        let node = node.parse().ok().filter(|node| *node <= instep_core::idset::MAX_ID);
        (node, pages.parse().ok())
    })
}

/// Start and end of every mapping of a `maps` file, in its order.
#[must_use]
pub fn parse_maps(path: &Path, text: &str) -> (Vec<(u64, u64)>, Vec<String>) {
    parse_lines(path, text, "a mapping START-END", |line| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        (start < end).then_some((start, end))
    })
}

fn parse_lines<T>(
    path: &Path,
    text: &str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> (Vec<T>, Vec<String>) {
    let (mut found, mut warnings, mut bad) = (Vec::new(), Vec::new(), 0);
    for (index, line) in text.lines().enumerate() {
        match parse(line) {
            Some(item) => found.push(item),
            None if bad < MAX_WARNINGS => {
                bad += 1;
                warnings.push(Error::parse(path, index + 1, line, expected).to_string());
            }
            None => bad += 1,
        }
    }
    if bad > MAX_WARNINGS {
        warnings.push(format!("{}: {} more bad lines", path.display(), bad - MAX_WARNINGS));
    }
    (found, warnings)
}

/// Gives each range its end: that of its mapping, or the start of the next range where the
/// mappings changed meanwhile. Ranges without pages or mapping are dropped.
#[must_use]
pub fn join(mut lines: Vec<Range>, mappings: &[(u64, u64)]) -> Vec<Range> {
    let mut mappings = mappings.to_vec();
    mappings.sort_unstable();
    lines.sort_by_key(|range| range.start);
    let starts: Vec<u64> = lines.iter().skip(1).map(|range| range.start).collect();
    for (index, range) in lines.iter_mut().enumerate() {
        let after = mappings.partition_point(|(start, _)| *start <= range.start);
        let end = after.checked_sub(1).map_or(0, |before| mappings[before].1);
        let next = starts.get(index).copied().unwrap_or(u64::MAX);
        range.end = end.min(next);
    }
    lines.retain(|range| range.end > range.start && range.by_node.values().any(|n| *n > 0));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::testing::Sleeper;
    use proptest::prelude::*;

    // As Linux 6.18 prints a process with hugetlb memory on two nodes, shortened.
    const NUMA_MAPS: &str = "\
7f0000000000 default file=/usr/bin/N0=3\\040x mapped=2 N0=2 kernelpagesize_kB=4
7f0000010000 default
7f0000020000 bind:1 anon=31232 dirty=31232 active=0 N0=8704 N1=22528 kernelpagesize_kB=4
7f0040000000 default file=/dev/hugepages/ram huge dirty=3 N1=3 kernelpagesize_kB=2048
";
    const MAPS: &str = "\
7f0000000000-7f0000002000 r--p 00000000 fe:01 131 /usr/bin/N0=3\\040x
7f0000010000-7f0000011000 ---p 00000000 00:00 0
7f0000020000-7f0008020000 rw-p 00000000 00:00 0
7f0040000000-7f0040800000 rw-s 00000000 00:2e 41 /dev/hugepages/ram
";

    fn both(numa_maps: &str, maps: &str) -> Vec<Range> {
        let path = Path::new("numa_maps");
        join(parse_numa_maps(path, numa_maps).0, &parse_maps(path, maps).0)
    }

    #[test]
    fn ranges_have_ends_page_sizes_and_pages_by_node() {
        let ranges = both(NUMA_MAPS, MAPS);
        let shown: Vec<_> =
            ranges.iter().map(|r| (r.start, r.end - r.start, r.page, r.resident())).collect();
        assert_eq!(
            shown,
            [
                (0x7f00_0000_0000, 0x2000, 4096, Bytes(8192)),
                (0x7f00_0002_0000, 128 << 20, 4096, Bytes(122 << 20)),
                (0x7f00_4000_0000, 8 << 20, 2 << 20, Bytes(6 << 20)),
            ]
        );
        let home = NodeSet::one(NodeId(1));
        assert_eq!(ranges[1].remote(&home), Bytes(34 << 20));
        assert_eq!(ranges[2].remote(&home), Bytes(0));
    }

    #[test]
    fn bad_lines_are_told_with_file_and_line_and_the_rest_is_used() {
        let text = format!("{NUMA_MAPS}fish default N0=1\n7f01 default N0=1 kernelpagesize_kB=3\n");
        let (ranges, warnings) = parse_numa_maps(Path::new("/proc/7/numa_maps"), &text);
        assert_eq!((ranges.len(), warnings.len()), (4, 2));
        assert!(warnings[0].starts_with("/proc/7/numa_maps:5: `fish"), "{}", warnings[0]);
        let many = "x\n".repeat(100);
        let (_, warnings) = parse_maps(Path::new("maps"), &many);
        assert_eq!((warnings.len(), warnings[5].as_str()), (6, "maps: 95 more bad lines"));
    }

    #[test]
    fn a_mapping_that_changed_between_the_files_is_cut() {
        let numa = "1000 default anon=1 N0=1 kernelpagesize_kB=4\n\
                    3000 default anon=1 N0=1 kernelpagesize_kB=4\n";
        let ends: Vec<u64> = both(numa, "1000-9000 rw-p\n").iter().map(|r| r.end).collect();
        assert_eq!(ends, [0x3000, 0x9000]);
        assert_eq!(both(numa, "1000-2000 rw-p\n").len(), 1);
    }

    #[test]
    fn a_real_process_has_ranges_inside_its_mappings() {
        let sleeper = Sleeper::start();
        let (ranges, warnings) = match read(&Root::live(), sleeper.tid().0) {
            Ok(read) => read,
            Err(error) => return instep_madehost::skip::note(&format!("{error}")),
        };
        assert_eq!(warnings, Vec::<String>::new());
        assert!(ranges.iter().all(|r| r.start < r.end && r.resident().0 <= r.end - r.start));
        assert!(!ranges.is_empty());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "[ -~\n]{0,300}", at in 0usize..400) {
            let mut mixed: String = NUMA_MAPS.into();
            let at = at.min(mixed.len());
            mixed.insert_str(at, &text);
            let path = Path::new("x");
            let ranges = join(parse_numa_maps(path, &mixed).0, &parse_maps(path, &mixed).0);
            prop_assert!(ranges.iter().all(|range| range.start < range.end));
        }
    }
}
