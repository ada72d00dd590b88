//! What the text of `instep analyze` says of times: when a VM was held up, and of a finding that has none.

use super::browser::rendered;
use super::{ONE, OTHER, TWO, analyze, made};
use crate::common::{Ran, instep, list};
use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_madehost::{HostSpec, MadeHost};

const IDLE: (u32, &str) = (0, "swapper");
const WORKER: (u32, &str) = (5, "kworker/0:0");

fn ran(moments: Vec<(u64, u32, TracepointFields)>, options: &[&str]) -> Ran {
    let of = |(time, cpu, what)| MadeEvent { time, cpu, current: (0, 0), flags: 0, what };
    let moments: Vec<MadeEvent> = moments.into_iter().map(of).collect();
    let (_dir, path) = made("perf.data", &perf_file(&moments, 20));
    analyze(&path, options)
}

/// The text with each run of white space as one blank.
fn words(ran: &Ran) -> String {
    ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_times_at_which_a_vm_was_held_up_are_reported() {
    // One vCPU sleeps all the time; the other waits for 20 ms of each 40.
    let mut moments = vec![(1, 0, TracepointFields::Switch(TWO, ONE, 1))];
    for turn in 0..7u64 {
        let at = (turn + 1) * 40_000_000;
        moments.push((at, 0, TracepointFields::Switch(ONE, OTHER, 0)));
        moments.push((at + 5_000_000, 0, TracepointFields::Switch(OTHER, WORKER, 0)));
        moments.push((at + 6_000_000, 0, TracepointFields::Switch(WORKER, OTHER, 1)));
        moments.push((at + 20_000_000, 0, TracepointFields::Switch(OTHER, ONE, 0)));
    }
    let vms = ["--vm=a=11,12", "--vm=b=21"];
    let said = words(&ran(moments.clone(), &vms));
    let expected = "sleeps beyond 9.00ms, at 0.04s, 0.08s, 0.12s, 0.16s, 0.20s, ...";
    assert!(said.contains("held up 7 times (140ms)") && said.contains(expected), "{said}");
    let held = &ran(moments, &[&vms[..], &["--json"]].concat()).json()["vms"][0]["held_up"];
    let times: Vec<u64> = (1..8).map(|turn| turn * 40_000_000).collect();
    assert_eq!((&held["held_ns"], &held["times_ns"]), (&140_000_000.into(), &times.into()));
}

#[test]
fn threshold_passed_between_two_events_counts_from_then_on() {
    // One vCPU falls asleep at 10 ms, the other waits from 11 to 50 ms: held up from 14.5 ms on.
    let ms = 1_000_000;
    let moments = vec![
        (1, 1, TracepointFields::Switch(IDLE, TWO, 0)),
        (2, 0, TracepointFields::Switch(IDLE, ONE, 0)),
        (10 * ms, 1, TracepointFields::Switch(TWO, IDLE, 1)),
        (11 * ms, 0, TracepointFields::Switch(ONE, OTHER, 0)),
        (50 * ms, 0, TracepointFields::Switch(OTHER, ONE, 1)),
        (90 * ms, 0, TracepointFields::Switch(ONE, IDLE, 1)),
    ];
    let json = ran(moments, &["--vm=a=11,12", "--vm=b=21", "--json"]).json();
    let (interval, held) = (&json["host"]["ideal_interval_ns"], &json["vms"][0]["held_up"]);
    assert_eq!((interval, &held["passes"]), (&(4_500_000).into(), &1.into()));
    assert_eq!((&held["held_ns"], &held["times_ns"]), (&(35 * ms).into(), &vec![15 * ms].into()));
}

#[test]
fn a_finding_without_a_time_has_none_beside_it() {
    let host = instep_madehost::scratch_dir().unwrap();
    MadeHost::new(HostSpec::new(2, 1)).write(host.path()).unwrap();
    let root = host.path().to_str().unwrap();
    let topology = instep(&["topology", "--json", "--root", root]).expect(0).stdout;
    let (_dir, file) = made("topology.json", topology.as_bytes());
    // A vCPU sleeps on the one node and wakes up on the other.
    let mut moments = Vec::new();
    for turn in 1..50u64 {
        let (at, cpu) = (turn * 2_000_000, (turn % 2) as u32);
        moments.push((at, cpu, TracepointFields::Wakeup(ONE, cpu)));
        moments.push((at + 1000, cpu, TracepointFields::Switch(IDLE, ONE, 0)));
        moments.push((at + 1_000_000, cpu, TracepointFields::Switch(ONE, IDLE, 1)));
    }
    let options = ["--vm=a=11", "--topology", file.to_str().unwrap()];
    let text = ran(moments.clone(), &options);
    let said = words(&text);
    assert!(said.contains("1. - vCPUs of a moved between NUMA nodes"), "{said}");
    assert!(said.contains("Host: competing modules 0, no core has two CPUs"), "{said}");
    let json = ran(moments, &[&options[..], &["--json"]].concat()).json();
    let found = list(&json, "findings");
    assert_eq!((found.len(), &found[0]["kind"]), (1, &"node_migrations".into()));
    assert_eq!(found[0]["lost_ns"], 0);
    assert_eq!(json["host"]["competing_modules"], 0.0);
    assert!(json["vms"][0]["halts"].is_null(), "{:#}", json["vms"][0]);
}

#[test]
fn wait_table_is_shown_for_each_vcpu_too() {
    // vCPU 0 sleeps for 3 ms until its sibling wakes it, vCPU 1 for 5 ms until an interrupt does.
    let (ms, hard) = (1_000_000, 0x08);
    let at = |time, cpu, tid, flags, what| MadeEvent { time, cpu, current: (tid, 10), flags, what };
    let moments = [
        at(ms, 0, 0, 0, TracepointFields::Switch(IDLE, ONE, 0)),
        at(ms, 1, 0, 0, TracepointFields::Switch(IDLE, TWO, 0)),
        at(2 * ms, 0, 11, 0, TracepointFields::Switch(ONE, IDLE, 1)),
        at(5 * ms, 1, 12, 0, TracepointFields::Wakeup(ONE, 0)),
        at(5 * ms + 1, 0, 0, 0, TracepointFields::Switch(IDLE, ONE, 0)),
        at(6 * ms, 1, 12, 0, TracepointFields::Switch(TWO, IDLE, 1)),
        at(11 * ms, 1, 0, hard, TracepointFields::Wakeup(TWO, 1)),
        at(11 * ms, 1, 0, 0, TracepointFields::Switch(IDLE, TWO, 0)),
        at(20 * ms, 1, 12, 0, TracepointFields::Switch(TWO, IDLE, 1)),
    ];
    let (dir, path) = made("perf.data", &perf_file(&moments, 20));
    let page = dir.path().join("a.html");
    let options = ["--vm=a=11,12", "--json", "--html", page.to_str().unwrap()];
    let json = analyze(&path, &options).json();
    let vm = &json["vms"][0];
    let of = |sibling: u64, timer: u64| serde_json::json!({"sibling_ns": sibling, "timer_ns": timer, "io_ns": 0, "other_ns": 0});
    assert_eq!(vm["waits_by_vcpu"], serde_json::json!([of(3 * ms, 0), of(0, 5 * ms)]));
    assert_eq!(vm["wakeups"]["sibling"]["ns"], 3 * ms);
    if let Some(seen) = rendered(&page) {
        let lines = seen.text.replace('\n', " ");
        assert!(lines.contains("vCPU 0 3.00ms - - - vCPU 1 - 5.00ms - -"), "{lines}");
    }
}
