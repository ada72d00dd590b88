//! What a recording says of CPU quotas and of weights.

use super::common::{list, text};
use super::{ONE, OTHER, TWO, analyze, events, made, recorded_of};
use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_trace::rec::{End, Head};
use instep_trace::stream::Throttled;
use serde_json::Value;

/// The findings about a VM: kind and text.
fn findings(json: &Value, vm: &str) -> Vec<(String, String)> {
    let of = list(json, "findings").iter().filter(|finding| finding["vm"] == vm);
    of.map(|it| (text(it, "kind").to_owned(), text(it, "text").to_owned())).collect()
}

/// Two siblings on CPU 0 run for 2 ms each, and then `between` runs there for 16 ms, eleven times.
fn crowded(between: (u32, &'static str)) -> Vec<MadeEvent> {
    let mut events = Vec::new();
    for turn in 0..11u64 {
        let at = 1_000_000 + turn * 20_000_000;
        let mut push = |after: u64, current, what| {
            events.push(MadeEvent {
                time: at + after * 1_000_000,
                cpu: 0,
                current,
                flags: 0,
                what,
            });
        };
        push(0, (11, 10), TracepointFields::Switch(ONE, TWO, 0));
        push(2, (12, 10), TracepointFields::Switch(TWO, between, 0));
        push(
            18,
            (between.0, between.0.saturating_sub(1)),
            TracepointFields::Switch(between, ONE, 0),
        );
    }
    events
}

/// The throttled time of the VM of [`crowded`], with a quota of its own of 20 %.
fn quota_of_vm(throttled_ns: u64) -> Throttled {
    Throttled {
        pid: 10,
        quota_milli_cpus: Some(200),
        file: Some("/sys/fs/cgroup/vm-10/cpu.max".to_owned()),
        throttled_ns,
        times: 7,
        ..Throttled::default()
    }
}

/// What `analyze` says of [`crowded`] where a quota did this.
fn throttled_by(between: (u32, &'static str), its: Throttled) -> Value {
    let end = End { throttled: vec![its], ..End::default() };
    let (_dir, path) = made("a.instep", &recorded_of(&crowded(between), &Head::default(), &end));
    let shown = analyze(&path, &[]).expect(1).stdout;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    analyze(&path, &["--json"]).expect(1).json()
}

/// Sums of the VM: throttled, steal, waited beside what ran between, beside siblings; in milliseconds.
fn sums(json: &Value, between: &str) -> [u64; 4] {
    let vm = vm_10(json);
    let sum = |key: &str| -> u64 { list(vm, "vcpus").iter().filter_map(|v| v[key].as_u64()).sum() };
    let beside = |name: &str| -> u64 {
        let of = list(vm, "culprits").iter().find(|culprit| culprit["name"] == name);
        of.and_then(|culprit| culprit["ns"].as_u64()).unwrap_or(0)
    };
    let all = [sum("throttled_ns"), sum("steal_ns"), beside(between), beside("vm-10")];
    all.map(|ns| (ns + 500_000) / 1_000_000)
}

fn vm_10(json: &Value) -> &Value {
    list(json, "vms").iter().find(|vm| vm["name"] == "vm-10").unwrap()
}

#[test]
fn time_of_a_quota_is_no_steal_and_is_reported_once() {
    let json = throttled_by(OTHER, quota_of_vm(150_000_000));
    let vm = vm_10(&json);
    assert_eq!(
        (vm["throttled"]["times"].as_u64(), vm["throttled"]["quota_milli_cpus"].as_u64()),
        (Some(7), Some(200))
    );
    let found = findings(&json, "vm-10");
    let (kind, said) = &found[0];
    assert_eq!(kind, "throttled");
    assert!(said.contains("throttled by its own quota of 20 %: 300ms of the "), "{said}");
    assert!(said.contains("`echo max > /sys/fs/cgroup/vm-10/cpu.max`"), "{said}");
    assert!(found.iter().all(|(kind, _)| kind != "not_co_scheduled"), "{found:?}");
}

#[test]
fn each_vcpu_that_waits_on_a_throttled_cpu_is_throttled() {
    // Both wait for 176 ms beside the other VM, or on the idle CPU, and for 22 and 20 ms beside each other.
    // An idle CPU learns of a refill after the kernel's count has ended: a twentieth of 176 ms more is the quota's there.
    for (between, name, after) in [(OTHER, "vm-20", 0), ((0, "swapper/0"), "(idle)", 9)] {
        let none = sums(&throttled_by(between, quota_of_vm(0)), name);
        assert_eq!(none, [0, 394, 352, 42], "{name}");
        let half = sums(&throttled_by(between, quota_of_vm(88_000_000)), name);
        assert_eq!(
            half,
            [176 + after, 218 - after, 176 - after, 42],
            "the kernel counts it once for the CPU: {name}"
        );
        let all = sums(&throttled_by(between, quota_of_vm(u64::MAX)), name);
        assert_eq!(all, [352, 42, 0, 42], "where a sibling ran it was not throttled: {name}");
        // libvirt's quotas: the cgroup of each vCPU counts.
        let of_vcpus = |ns| Throttled { vcpus_throttled_ns: ns, ..quota_of_vm(ns) };
        let each = sums(&throttled_by(between, of_vcpus(176_000_000)), name);
        assert_eq!(each, half, "{name}");
        let each = sums(&throttled_by(between, of_vcpus(u64::MAX)), name);
        assert_eq!(each, [394, 0, 0, 0], "no longer than it waited: {name}");
    }
}

#[test]
fn the_moment_after_each_refill_is_no_slow_wake_up() {
    let has = |throttled_ns| {
        let json = throttled_by((0, "swapper/0"), quota_of_vm(throttled_ns));
        findings(&json, "vm-10").iter().any(|(kind, _)| kind == "wake_latency")
    };
    // Waits on the idle CPU take 352 ms: 8 and 52 ms more than these quotas stop the VM, of which a twentieth are moments after refills.
    assert!(!has(172_000_000));
    assert!(has(150_000_000));
}

#[test]
fn a_quota_above_the_vm_is_not_called_its_own() {
    let its = Throttled {
        quota_milli_cpus: Some(1500),
        file: Some("/sys/fs/cgroup/machine.slice/cpu.max".to_owned()),
        is_above: true,
        ..quota_of_vm(150_000_000)
    };
    let session = "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope/cpu.max";
    let shared = Throttled {
        file: Some(session.to_owned()),
        is_above: false,
        is_shared: true,
        ..its.clone()
    };
    let found = findings(&throttled_by(OTHER, shared), "vm-10");
    let said = &found[0].1;
    let whose = "throttled by the quota of a cgroup that it shares with others, of 150 %: ";
    assert!(said.contains(whose) && !said.contains("virsh"), "{said}");
    assert!(said.ends_with(&format!("`echo max > {session}` removes it.")), "{said}");
    let found = findings(&throttled_by(OTHER, its), "vm-10");
    let said = &found[0].1;
    assert!(said.contains("throttled by a quota above its cgroup, of 150 %: "), "{said}");
    assert!(said.ends_with("`echo max > /sys/fs/cgroup/machine.slice/cpu.max` removes it."));
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
