//! Parsers of the side that applies: address ranges, the journal, DAMON's regions, traced switches.

use instep_host::apply::damon::{heat, parse_regions};
use instep_host::apply::journal;
use instep_host::apply::ranges;
use instep_host::apply::room;
use std::path::{Path, PathBuf};

/// `numa_maps`, `maps`, `meminfo`, `stat`, `status`, `uptime`: the text up to a zero byte is the
/// first file, the rest the second.
pub(crate) fn memory_ranges(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (first, second) = text.split_once('\0').unwrap_or((&text, &text));
    let path = Path::new("fuzz");
    let (lines, _) = ranges::parse_numa_maps(path, first);
    let (mappings, _) = ranges::parse_maps(path, second);
    for range in ranges::join(lines, &mappings) {
        assert!(range.start < range.end && range.page.is_power_of_two());
        assert!(mappings.iter().any(|(start, end)| *start <= range.start && range.end <= *end));
        let _ = range.remote(&instep_core::idset::NodeSet::new());
    }
    let _ = room::parse_meminfo(first);
}

/// The memory of each node of a guest: `cmdline`, `numa_maps` and `maps` of its monitor, each up to
/// a byte 1.
pub(crate) fn guest_ranges(data: &[u8]) {
    let mut files = data.splitn(3, |byte| *byte == 1);
    let command = files.next().unwrap_or_default();
    let mut file = |name: &str| {
        let bytes = files.next().unwrap_or_default();
        (PathBuf::from(name), String::from_utf8_lossy(bytes).into_owned())
    };
    let files = ranges::Files { numa_maps: file("numa_maps"), maps: file("maps") };
    let (guest, _) = ranges::guest_ranges(command, &files);
    for node in guest.nodes.keys() {
        let own = guest.of(Some(*node)).expect("its mapping was told");
        assert!(own.iter().all(|range| guest.all.contains(range) && range.start < range.end));
    }
}

/// `journal.json`.
pub(crate) fn journal(data: &[u8]) {
    if let Ok(journal) = journal::parse(Path::new("journal.json"), data) {
        assert!(journal.entries.values().all(|entry| !entry.original.is_empty()));
    }
}

/// Regions as DAMON tells them, and the order of memory that they make.
pub(crate) fn damon_regions(data: &[u8]) {
    let (regions, _) = parse_regions(&String::from_utf8_lossy(data));
    assert!(regions.iter().all(|region| region.start < region.end));
    assert!(regions.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let whole =
        ranges::Range { start: 4096, end: 1 << 47, page: 4096, by_node: Default::default() };
    let parts = heat::hottest_first(std::slice::from_ref(&whole), &regions);
    let length: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
    assert_eq!(length, whole.end - whole.start);
    assert!(parts.windows(2).all(|pair| pair[0].heat >= pair[1].heat));
}

/// The records of traced context switches, and the timeline they make.
pub(crate) fn switches(data: &[u8]) {
    let decoded = instep_host::profile::records::decode(data);
    assert!(decoded.events.len() <= data.len() / 32);
    let mut timeline = instep_host::profile::timeline::Timeline::default();
    let mut events = decoded.events;
    // Clocks of kernels count years at most.
    events.iter_mut().for_each(|event| event.at.0 >>= 14);
    events.sort_by_key(|event| event.at);
    events.iter().for_each(|event| timeline.take(event));
    let last = events.last().map_or(0, |event| event.at.0);
    timeline.cut(instep_core::units::Nanos(last + 1));
    let levels: u64 = timeline.levels.iter().map(|time| time.0).sum();
    assert_eq!(levels, timeline.intervals.iter().map(|interval| interval.length.0).sum::<u64>());
}
