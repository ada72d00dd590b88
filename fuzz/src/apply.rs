//! Parsers of the side that applies: address ranges, the journal, samples and their sources.

use instep_host::apply::journal;
use instep_host::apply::ranges;
use instep_host::apply::room;
use instep_host::apply::sampling::source::{Bits, parse_terms};
use instep_host::apply::sampling::{hot::HotPages, records};
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
        let _ = range.resident();
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

/// The records of a sampling buffer, and the hot ranges they make.
pub(crate) fn samples(data: &[u8]) {
    let decoded = records::decode(data);
    assert!(decoded.samples.len() <= data.len() / 32);
    if let Some(at) = decoded.damaged_at {
        assert_eq!(records::decode(&data[..at]).samples, decoded.samples);
    }
    let mut hot = HotPages::default();
    decoded.samples.iter().for_each(|sample| hot.add(sample));
    let whole = ranges::Range { start: 0, end: 1 << 47, page: 4096, by_node: Default::default() };
    let limit = instep_core::units::Bytes::from_mib(1);
    let ranges = hot.ranges(&[whole], 8, limit);
    let length: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    assert!(length <= limit.0);
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

/// The event and format files of a PMU.
pub(crate) fn sampling_source(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = parse_terms(&text);
    let _ = Bits::parse(&text);
}
