//! The parsers of cgroup files, mount tables, QMP answers, definitions of VMs, the configuration, the last hour, moments of the
//! history, and requests to the page.

use instep_agent::config::Config;
use instep_agent::published::{History, PublishedCycle};
use instep_core::policy::PolicyName;
use instep_history::{Segment, opening};
use instep_host::discover::definition::{libvirt, proxmox};
use instep_host::discover::identify::{self, Named};
use instep_host::discover::{cgroup, debugfs, numa_stat, qmp, quota};
use instep_serve::{PublishedFiles, answer_bytes};
use std::path::Path;

/// /proc/PID/cgroup and the names in it.
pub(crate) fn cgroup_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let membership = cgroup::membership(&text);
    if let Some(path) = membership.path() {
        assert!(!path.split('/').any(|part| part == ".."), "{path}");
        let _ = cgroup::told_by_path(path);
    }
    let _ = cgroup::lead_outside(&text);
    for path in cgroup::whole_paths(&text) {
        assert!(path.starts_with('/') && path != "/", "{path}");
        assert!(!path.split('/').any(|part| part == ".."), "{path}");
    }
    let _ = cgroup::told_by_path(&text);
    let _ = cgroup::unescape(&text);
    let _ = debugfs::vm_dir(&text);
}

/// Quotas, throttled times and weights of cgroups of both versions.
pub(crate) fn cgroup_values(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let text = text.trim();
    let words = text.split_once([' ', '\n']);
    let quotas = [quota::parse_cpu_max(text), words.and_then(|(a, b)| quota::part_of_period(a, b))];
    assert!(quotas.into_iter().flatten().all(|quota| quota.0 <= 1 << 40), "{quotas:?}");
    assert!(!text.starts_with("max") || quotas == [None; 2], "{text}: {quotas:?}");
    let _ = quota::throttled(text);
    let weights = [cgroup::parse_weight(text), cgroup::parse_shares(text)];
    assert!(weights.into_iter().flatten().all(|weight| (1..=10_000).contains(&weight)));
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

/// Segments of the history: what is read is bounded, and every line is what it says to be.
pub(crate) fn moments(data: &[u8]) {
    let segment = Segment::parse(data);
    let mut bytes = 0;
    for place in 0..segment.len() {
        let moment = segment.moment(place).expect("it has so many");
        assert!(moment.line.starts_with(opening(moment.at_ms).as_bytes()));
        bytes += moment.line.len() + 1;
        if let Ok(parsed) = PublishedCycle::parse(moment.line) {
            assert_eq!(parsed.at_ms, moment.at_ms);
        }
    }
    assert!(bytes <= 32 << 20, "{bytes}");
    assert!(segment.moment(segment.len()).is_none());
}

/// Files of libvirt and Proxmox: what is kept is bounded, and a domain is known by its process and UUID.
pub(crate) fn vm_definitions(data: &[u8]) {
    let _ = proxmox::pid(data);
    for (key, _) in proxmox::settings(data) {
        assert!(!key.contains(['-', ';', ' ', '\n']), "{key:?}");
    }
    let Ok(domain) = libvirt::parse(data) else { return };
    assert!(domain.settings.len() <= 64 && domain.unknown.len() <= 64);
    assert!(!domain.uuid.is_empty() && domain.uuid.len() <= 4 * 64);
    assert!(domain.settings.is_empty() || data.windows(15).any(|part| part == b"urn:instep:vm:1"));
    assert!(!domain.is_of(domain.pid.wrapping_add(1), Some(&domain.uuid)));
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

/// The last hour as an earlier run left it: what is accepted is written as it was read.
pub(crate) fn history(data: &[u8]) {
    if let Some(history) = History::parse(data) {
        let again = serde_json::to_vec(&history).expect("it is plain data");
        assert_eq!(History::parse(&again), Some(history));
    }
}

/// What a client may send to `instep serve`: only requests to read, for this machine, are answered with what they ask for.
pub(crate) fn http_requests(data: &[u8]) {
    let none = || Path::new("/nonexistent/x").to_owned();
    let files = PublishedFiles { host: none(), history: none(), past: none(), metrics: none() };
    let answer = answer_bytes(&files, data);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    if answer.get(8..12) == Some(b" 200") {
        let text = String::from_utf8_lossy(data).to_lowercase();
        let request = text.trim_start_matches(['\r', '\n']);
        assert!(request.starts_with("get ") || request.starts_with("head "), "{text}");
        assert!(["localhost", "127.", "1]"].iter().any(|host| text.contains(host)), "{text}");
    }
}
