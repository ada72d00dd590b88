//! Which parts of a process's address space hold memory on which nodes: `numa_maps` (where a
//! mapping starts, its pages by node) joined with `maps` (where it ends).
//!
//! Both files are read one after the other while the process runs, so a mapping may have changed
//! in between; ranges are cut where the two disagree. It does not know which page of a range lies
//! where: that is asked page by page when moving.

use crate::discover::{Vmm, args, guest, guest_memory, numa_maps};
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Warnings kept of one `maps`; the rest is only counted.
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
    pub fn remote(&self, home: &NodeSet) -> Bytes {
        let of = |(_, pages): (&NodeId, &u64)| pages.saturating_mul(self.page);
        let chosen = self.by_node.iter().filter(|(node, _)| !home.contains(**node)).map(of);
        Bytes(chosen.fold(0, u64::saturating_add))
    }
}

/// All memory of a monitor's process, and which of it is whose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestRanges {
    /// All ranges, ascending.
    pub all: Vec<Range>,
    /// Where the mapping of each of the guest's NUMA nodes begins, by the guest's number; a node
    /// whose mapping cannot be told (see [`guest_memory`]) is missing.
    pub nodes: BTreeMap<u32, u64>,
}

impl GuestRanges {
    /// All ranges, or those of the mapping that is the memory of one NUMA node of the guest.
    ///
    /// # Errors
    /// It cannot be told which mapping that is.
    pub fn of(&self, guest_node: Option<u32>) -> Result<Vec<Range>, Error> {
        let Some(number) = guest_node else { return Ok(self.all.clone()) };
        let start = self.nodes.get(&number).ok_or_else(|| Error::Unusable {
            what: format!("it is not known which mapping is the memory of guest node {number}"),
            next:
                "its memory stays where it is; compare numa_maps and maps of the process with the \
                   sizes of its -object memory-backend-..."
                    .into(),
        })?;
        Ok(self.all.iter().filter(|range| range.start == *start).cloned().collect())
    }
}

/// Reads the ranges of a process, with what can be told of QEMU's guest nodes, and what was wrong with the files.
///
/// # Errors
/// [`Error::is_gone`] when there is no such process; [`Error::is_denied`] without the right to
/// look at it.
pub fn read(root: &Root, pid: u32) -> Result<(GuestRanges, Vec<String>), Error> {
    let command = root.read(format!("proc/{pid}/cmdline"))?;
    let files = Files::read(root, pid)?;
    Ok(guest_ranges(command.as_bytes(), &files))
}

/// What the files of a process say, and its command line.
pub fn guest_ranges(command: &[u8], files: &Files) -> (GuestRanges, Vec<String>) {
    let (all, warnings, mappings) = files.ranges();
    let guest = guest::describe(&Vmm::Qemu, &args::split(command));
    let mut nodes = BTreeMap::new();
    if !guest.node_backends.is_empty() {
        let numa_maps = files.numa_maps.1.as_bytes();
        let told = guest_memory::tell(numa_maps, &mappings, &guest.backends);
        for (node, backend) in guest.nodes.iter().zip(guest.node_backends) {
            if let Some(Some(mapping)) = told.get(backend) {
                nodes.insert(node.id, mapping.start);
            }
        }
    }
    (GuestRanges { all, nodes }, warnings)
}

/// The two files of a process, each with its path.
#[derive(Clone, Debug)]
pub struct Files {
    /// `numa_maps`.
    pub numa_maps: (PathBuf, String),
    /// `maps`.
    pub maps: (PathBuf, String),
}

impl Files {
    fn read(root: &Root, pid: u32) -> Result<Self, Error> {
        let one = |name: &str| {
            let relative = format!("proc/{pid}/{name}");
            Ok((root.join(&relative), root.read(&relative)?))
        };
        Ok(Self { numa_maps: one("numa_maps")?, maps: one("maps")? })
    }

    /// The ranges, what is wrong with the files, and start and end of all mappings.
    fn ranges(&self) -> (Vec<Range>, Vec<String>, Vec<(u64, u64)>) {
        let (lines, mut warnings) = parse_numa_maps(&self.numa_maps.0, &self.numa_maps.1);
        let (mappings, more) = parse_maps(&self.maps.0, &self.maps.1);
        warnings.extend(more);
        (join(lines, &mappings), warnings, mappings)
    }
}

/// The lines of `numa_maps`, each a [`Range`] whose `end` is not known yet and
/// equals its `start`. Bad lines are passed over and told.
pub fn parse_numa_maps(path: &Path, text: &str) -> (Vec<Range>, Vec<String>) {
    let mut ranges = Vec::new();
    let told = numa_maps::each(text.as_bytes(), &path.display().to_string(), |mapping| {
        // Without pages it has no page size, but the mapping before it ends here.
        let (start, page) = (mapping.start, mapping.page_bytes());
        let by_node = mapping.pages.into_iter().collect();
        ranges.push(Range { start, end: start, page, by_node });
    });
    (ranges, told.warnings)
}

/// Start and end of every mapping of a `maps` file, in its order.
pub fn parse_maps(path: &Path, text: &str) -> (Vec<(u64, u64)>, Vec<String>) {
    let (mut found, mut warnings, mut bad) = (Vec::new(), Vec::new(), 0);
    for (index, line) in text.lines().enumerate() {
        if let Some(mapping) = start_and_end(line) {
            found.push(mapping);
            continue;
        }
        bad += 1;
        if bad <= MAX_WARNINGS {
            let error = Error::parse(path, index + 1, line, "a mapping START-END");
            warnings.push(error.to_string());
        }
    }
    if bad > MAX_WARNINGS {
        warnings.push(format!("{}: {} more bad lines", path.display(), bad - MAX_WARNINGS));
    }
    (found, warnings)
}

fn start_and_end(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (start < end).then_some((start, end))
}

/// Gives each range its end: that of its mapping, or the start of the next range where the
/// mappings changed meanwhile. Ranges without pages or mapping are dropped.
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
        let shown: Vec<_> = ranges
            .iter()
            .map(|r| (r.start, r.end - r.start, r.page, r.remote(&NodeSet::new())))
            .collect();
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
    fn bad_lines_are_reported_with_file_and_line_and_rest_is_used() {
        let text = format!("{NUMA_MAPS}fish default N0=1\n7f01 default N0=1 kernelpagesize_kB=3\n");
        let (ranges, warnings) = parse_numa_maps(Path::new("/proc/7/numa_maps"), &text);
        assert_eq!((ranges.len(), warnings.len()), (4, 2));
        assert!(warnings[0].starts_with("/proc/7/numa_maps:5: `fish"), "{}", warnings[0]);
        let odd = "7f0000100000 default huge N0=1 kernelpagesize_kB=2048\n".repeat(9);
        let (ranges, warnings) = parse_numa_maps(Path::new("numa_maps"), &odd);
        assert_eq!((ranges.len(), warnings.len()), (0, 4), "{warnings:?}");
        assert!(warnings[0].contains("numa_maps:1: `7f0000100000 default huge"), "{warnings:?}");
        assert!(warnings[0].contains("begins in the middle of a page"), "{warnings:?}");
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
    fn the_memory_of_one_guest_node_is_one_mapping() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let process = dir.path().join("proc/5");
        std::fs::create_dir_all(&process).unwrap();
        let (a, b) = ("memory-backend-ram,id=a,size=2M", "memory-backend-ram,id=b,size=1M");
        let (c, d) = ("node,nodeid=3,cpus=0,memdev=a", "node,nodeid=7,cpus=1,memdev=b");
        let line = ["qemu", "-smp", "2", "-object", a, "-object", b, "-numa", c, "-numa", d];
        std::fs::write(process.join("cmdline"), line.join("\0")).unwrap();
        let numa = "100000 default N0=9 kernelpagesize_kB=4\n\
                    400000 default N0=5 kernelpagesize_kB=4\n\
                    800000 default N1=6 kernelpagesize_kB=4\n";
        std::fs::write(process.join("numa_maps"), numa).unwrap();
        let maps = "100000-200000 rw-p\n400000-600000 rw-p\n800000-803000 rw-p\n";
        std::fs::write(process.join("maps"), maps).unwrap();
        let (guest, warnings) = read(&Root::at(dir.path()), 5).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let starts = |node| guest.of(Some(node)).unwrap().iter().map(|r| r.start).collect();
        let (three, seven): (Vec<u64>, Vec<u64>) = (starts(3), starts(7));
        assert_eq!((three, seven), (vec![0x40_0000], vec![0x10_0000]));
        let error = guest.of(Some(0)).unwrap_err().to_string();
        assert!(error.contains("mapping is the memory of guest node 0"), "{error}");
        assert_eq!(guest.of(None).unwrap().len(), 3);
    }

    #[test]
    fn a_real_process_has_ranges_inside_its_mappings() {
        let sleeper = Sleeper::start();
        let (ranges, warnings) = match read(&Root::live(), sleeper.tid().0) {
            Ok((guest, warnings)) => (guest.all, warnings),
            Err(error) => return instep_madehost::skip::note(&format!("{error}")),
        };
        assert_eq!(warnings, Vec::<String>::new());
        assert!(
            ranges
                .iter()
                .all(|r| r.start < r.end && r.remote(&NodeSet::new()).0 <= r.end - r.start)
        );
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
