//! What a recording says of CPU quotas and of weights.

use super::common::{list, text};
use super::{analyze, events, made, recorded};
use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_trace::rec::{End, Head, Throttled};
use serde_json::Value;

/// The findings about a VM: kind and text.
fn findings(json: &Value, vm: &str) -> Vec<(String, String)> {
    let of = list(json, "findings").iter().filter(|finding| finding["vm"] == vm);
    of.map(|it| (text(it, "kind").to_owned(), text(it, "text").to_owned())).collect()
}

/// The recording of two siblings that take turns, of whose waits a quota caused so much.
fn throttled_for(throttled_ns: u64) -> Value {
    let its = Throttled {
        pid: 10,
        quota_milli_cpus: Some(200),
        file: Some("/sys/fs/cgroup/vm-10/cpu.max".to_owned()),
        is_above: false,
        throttled_ns,
        times: 7,
    };
    let end = End { throttled: vec![its], ..End::default() };
    let (_dir, path) = made("a.instep", &recorded(&Head::default(), &end));
    let shown = analyze(&path, &[]).expect(1).stdout;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    analyze(&path, &["--json"]).expect(1).json()
}

#[test]
fn time_of_a_quota_is_no_steal_and_is_told_once() {
    let json = throttled_for(90_000_000);
    let vm = list(&json, "vms").iter().find(|vm| vm["name"] == "vm-10").unwrap();
    let sum = |key: &str| -> u64 { list(vm, "vcpus").iter().filter_map(|v| v[key].as_u64()).sum() };
    assert_eq!(sum("throttled_ns"), 89_999_999, "rounded down for each vCPU");
    assert!(sum("steal_ns") < 11_000_000, "{vm}");
    assert_eq!(
        (vm["throttled"]["times"].as_u64(), vm["throttled"]["quota_milli_cpus"].as_u64()),
        (Some(7), Some(200))
    );
    let found = findings(&json, "vm-10");
    let (kind, said) = &found[0];
    assert_eq!(kind, "throttled");
    assert!(said.contains("throttled by its own quota of 20 %: 90.0ms of the "), "{said}");
    assert!(said.contains("`echo max > /sys/fs/cgroup/vm-10/cpu.max`"), "{said}");
    assert!(
        found.iter().all(|(kind, _)| kind != "not_co_scheduled" && kind != "steal"),
        "{found:?}"
    );
}

#[test]
fn a_quota_stops_a_vm_no_longer_than_it_waited() {
    let json = throttled_for(u64::MAX);
    let vm = list(&json, "vms").iter().find(|vm| vm["name"] == "vm-10").unwrap();
    assert!(list(vm, "vcpus").iter().all(|vcpu| vcpu["steal_ns"] == 0), "{vm}");
    assert_eq!(list(vm, "culprits").len(), 0, "{vm}");
}

#[test]
fn a_quota_above_the_vm_is_not_called_its_own() {
    let its = Throttled {
        pid: 10,
        quota_milli_cpus: Some(1500),
        file: Some("/sys/fs/cgroup/machine.slice/cpu.max".to_owned()),
        is_above: true,
        throttled_ns: 90_000_000,
        times: 7,
    };
    let end = End { throttled: vec![its], ..End::default() };
    let (_dir, path) = made("a.instep", &recorded(&Head::default(), &end));
    let found = findings(&analyze(&path, &["--json"]).expect(1).json(), "vm-10");
    let said = &found[0].1;
    assert!(said.contains("throttled by a quota above its cgroup, of 150 %: "), "{said}");
    assert!(said.ends_with("`echo max > /sys/fs/cgroup/machine.slice/cpu.max` takes it away."));
}

/// Two VMs of one vCPU take turns on one CPU for 480 ms.
fn turns() -> Vec<u8> {
    let (one, two) = ((11, "CPU 0/KVM"), (21, "CPU 0/KVM"));
    let mut events = Vec::new();
    for turn in 0..48u64 {
        let at = 1_000_000 + turn * 10_000_000;
        let mut push = |time, current, what| {
            events.push(MadeEvent { time, cpu: 0, current, flags: 0, what });
        };
        push(at, (11, 10), TracepointFields::Switch(one, two, 0));
        push(at + 5_000_000, (21, 20), TracepointFields::Switch(two, one, 0));
    }
    perf_file(&events, 20)
}

#[test]
fn less_than_the_share_of_a_weight_is_found_in_place_of_steal() {
    let (_dir, path) = made("perf.data", &turns());
    let kinds = |weights: &[&str], vm: &str| -> Vec<String> {
        let json = analyze(&path, &[weights, &["--json"]].concat()).expect(1).json();
        findings(&json, vm).into_iter().map(|(kind, _)| kind).collect()
    };
    let told = ["--weight", "vm-10=200", "--weight", "vm-20=100"];
    assert_eq!(kinds(&told, "vm-10"), ["below_share"]);
    assert_eq!(kinds(&told, "vm-20"), ["steal"], "it has more than its share");
    let even = ["--weight", "vm-10=100", "--weight", "vm-20=100"];
    assert_eq!(kinds(&even, "vm-10"), ["steal"]);
    assert_eq!(kinds(&told[..2], "vm-10"), ["steal"], "the other weight is not known");
    let said = analyze(&path, &told).expect(1).stdout;
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("vm-10 got less than its weight's share: "), "{said}");
    assert!(words.contains("that weight 200 gives it"), "{said}");
}

#[test]
fn each_finding_ends_with_a_command() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let json = analyze(&path, &["--json"]).expect(1).json();
    for finding in list(&json, "findings") {
        let said = text(finding, "text");
        let last = said.rsplit(". ").next().unwrap();
        assert!(last.contains('`'), "{said}");
    }
}
