//! The parsers of cgroup files, mount tables, QMP answers, the journal, sampling buffers and the
//! configuration.

use instep_agent::config::Config;
use instep_core::policy::PolicyName;
use instep_core::units::Bytes;
use instep_host::apply::journal;
use instep_host::apply::ranges::Range;
use instep_host::apply::sampling::{HotPages, records, source};
use instep_host::discover::identify::{self, Named};
use instep_host::discover::{cgroup, debugfs, numa_stat, qmp};
use std::collections::BTreeMap;
use std::path::Path;

/// /proc/PID/cgroup and the names in it.
pub(crate) fn cgroup_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let membership = cgroup::membership(&text);
    if let Some(path) = membership.path() {
        assert!(!path.split('/').any(|part| part == ".."), "{path}");
        let _ = cgroup::told_by_path(path);
    }
    let _ = cgroup::told_by_path(&text);
    let _ = cgroup::unescape(&text);
    let _ = debugfs::vm_dir(&text);
}

/// /proc/self/mounts: no mount point leads out of the root.
pub(crate) fn mounts(data: &[u8]) {
    for (place, controllers) in cgroup::cgroup_mounts(&String::from_utf8_lossy(data)) {
        assert!(!place.split('/').any(|part| part == ".."), "{place}");
        assert!(!controllers.is_empty());
    }
}

/// memory.numa_stat of both versions.
pub(crate) fn numa_stat(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for page in [1, 4096, 65_536] {
        let _ = numa_stat::parse(&text, page);
    }
}

/// Answers of query-cpus-fast.
pub(crate) fn qmp_answers(data: &[u8]) {
    let Ok(value) = serde_json::from_slice(data) else { return };
    let Some(vcpus) = qmp::cpus(&value) else { return };
    let threads: Vec<Named<'_>> = (0..100).map(|tid| Named { tid, comm: "x" }).collect();
    if let Ok(found) = identify::by_qmp(&vcpus, &threads) {
        assert!(found.is_sorted_by(|a, b| a.0 < b.0) && found.iter().all(|(_, tid)| *tid < 100));
    }
    if let Some(found) = identify::by_debugfs(&instep_host::discover::Vmm::Qemu, &vcpus, &threads) {
        assert!(found.is_sorted_by(|a, b| a.0 < b.0) && found.iter().all(|(_, tid)| *tid < 100));
    }
}

/// The journal: whatever is accepted could have been written.
pub(crate) fn journal(data: &[u8]) {
    if let Ok(journal) = journal::parse(Path::new("journal.json"), data) {
        for ((pid, tid), entry) in &journal.entries {
            assert!(*pid == entry.thread.pid && *tid == entry.thread.tid && tid.0 != 0);
            assert!(!entry.original.is_empty());
        }
    }
}

/// Records of the sampling buffer, and the ranges made of their addresses.
pub(crate) fn perf_records(data: &[u8]) {
    let decoded = records::decode(data);
    if let Some(at) = decoded.damaged_at {
        assert!(at <= data.len());
        assert_eq!(records::decode(&data[..at]).samples, decoded.samples);
    }
    let mut hot = HotPages::default();
    decoded.samples.iter().for_each(|sample| hot.add(sample));
    let whole = Range { start: 0, end: 1 << 47, page: 4096, by_node: BTreeMap::new() };
    let limit = Bytes::from_mib(1);
    let ranges = hot.ranges(&[whole], 8, limit);
    assert!(ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= limit.0);
}

/// Descriptions of events and their bits in /sys/bus/event_source.
pub(crate) fn event_sources(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = source::parse_terms(&text);
    let _ = source::Bits::parse(&text);
}

/// The configuration: whatever is accepted passes its own check.
pub(crate) fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Config::parse(&text, Path::new("instep.toml")) {
        Ok(config) => assert_eq!(config.check(), Ok(())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(policy) = text.parse::<PolicyName>() {
        assert_eq!(policy.as_str(), text);
    }
}
