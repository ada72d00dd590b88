//! Parsers of the side that applies: address ranges, the journal, samples and their sources.

use instep_host::apply::journal;
use instep_host::apply::ranges;
use instep_host::apply::room;
use instep_host::apply::sampling::source::{Bits, parse_terms};
use instep_host::apply::sampling::{hot::HotPages, records};
use std::path::Path;

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

/// The event and format files of a PMU.
pub(crate) fn sampling_source(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = parse_terms(&text);
    let _ = Bits::parse(&text);
}
