//! `instep record` beside two guests: what the recording says of their vCPUs is what the kernel
//! itself counted meanwhile.

use super::common::{list, text};
use super::stage::{Stage, vcpus};
use instep_core::units::{CpuId, Tid};
use instep_lab::Guest;
use instep_madehost::skip;
use instep_trace::event::{Event, Fact, Left};
use instep_trace::rec::{Counter, RecStream};
use instep_trace::stream::EventStream as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// A counter of a running thread may lag behind by a clock tick.
const TICK: u64 = 10_000_000;

#[test]
fn a_recording_through_tracefs_agrees_with_schedstat() {
    agrees_with_schedstat("tracefs");
}

#[test]
fn a_recording_through_bpf_agrees_with_schedstat() {
    agrees_with_schedstat("bpf");
}

fn agrees_with_schedstat(source: &str) {
    if !rustix::process::geteuid().is_root() {
        return skip::note("recording takes root");
    }
    let Some(stage) = Stage::new() else { return };
    let one = |name| instep_lab::GuestSpec { vcpus: 1, ..stage.spec(name) };
    let guests = stage.start([one("first"), one("second")]);
    let file = stage.file("guests.instep");
    let path = file.to_str().unwrap();
    let args = ["record", "-d", "6s", "-o", path, "--source", source, "--json"];
    let ran = super::common::instep(&args);
    if ran.code == Some(2) {
        return skip::note(ran.stderr.trim());
    }
    let told = ran.expect(0).json();
    assert_eq!((text(&told, "schema"), text(&told, "source")), ("instep.recording/1", source));
    assert_eq!((told["lost"].as_u64(), text(&told, "ended")), (Some(0), "time"));
    let report = super::common::instep(&["analyze", path, "--json"]).json();
    let (events, counters) = read(&file);
    // Some kernels tell no recorder of some switches (docs/analyze.md); the analysis says so.
    let said =
        |what: &Value| what.as_str().is_some_and(|what| what.contains("switches are missing"));
    let left_out = list(&report, "warnings").iter().find(|warning| said(warning));
    let unseen = |counted: u64| if left_out.is_some() { counted / 7 + 10 * TICK } else { 0 };
    for guest in &guests {
        let vm = of(&report, guest);
        assert_eq!(text(vm, "name"), guest.spec().name);
        let tids: Vec<u32> =
            list(vm, "vcpus").iter().map(|vcpu| number(vcpu, "tid") as u32).collect();
        assert_eq!(tids, vcpus(guest));
        for (vcpu, tid) in list(vm, "vcpus").iter().zip(tids) {
            let counter = counters.iter().find(|counter| counter.tid == tid).unwrap();
            let counted = Sums::of(&events, Tid(tid), counter.from_ns..counter.to_ns);
            assert_near(
                "run time by schedstat",
                counted.run,
                counter.run_ns,
                TICK + unseen(counter.run_ns),
            );
            // A wait at either end of the window is counted by one of the two only.
            let found = counted.wait + counted.moved_asleep;
            let slack = TICK + counted.longest + unseen(counter.wait_ns);
            // Counted as waiting, too, is the sleep of a thread that the balancer moved meanwhile, not
            // always with an event (seen on Linux 6.18): the kernel's number may be the larger one.
            assert_near("waiting by schedstat", found, counter.wait_ns.min(found), slack);
            assert!(
                found <= counter.wait_ns + counter.wait_ns / 100 + slack,
                "{found} {counter:?}"
            );
            // What the analysis says is what the events say, all of them.
            let all = Sums::of(&events, Tid(tid), 0..u64::MAX);
            assert_near("run time", number(vcpu, "run_ns"), all.run, TICK);
            assert_near("steal", number(vcpu, "steal_ns"), all.wait + all.waking, 5 * TICK);
        }
    }
    drop(guests);
    if let Some(warning) = left_out {
        skip::note(&format!("held against schedstat roughly only: {warning}"));
    }
}

/// Within 1 %, and `slack`.
fn assert_near(what: &str, found: u64, expected: u64, slack: u64) {
    println!("{what}: {found} ns of {expected} ns");
    let most = expected / 100 + slack;
    assert!(found.abs_diff(expected) <= most, "{what}: {found} found, {expected} expected");
}

/// What the events say of one thread, as the kernel counts: time on a CPU within a window, and
/// waits that end within it, whole.
#[derive(Debug, Default)]
struct Sums {
    run: u64,
    wait: u64,
    waking: u64,
    longest: u64,
    /// Since 6.12 a thread that falls asleep may stay on its queue (DELAY_DEQUEUE); when the balancer
    /// moves it then, schedstat takes its further sleep for waiting (seen: Linux 6.18).
    moved_asleep: u64,
}

impl Sums {
    fn of(events: &[Event], tid: Tid, window: Range<u64>) -> Sums {
        let mut sums = Sums::default();
        let (mut runs, mut queued, mut woken, mut moved) = (None, None, None, None);
        let begin = window.start.max(events.first().map_or(0, |event| event.time.0));
        let mut is_new = true;
        let mut switched = BTreeMap::<CpuId, u64>::new();
        for Event { time, cpu, fact } in events {
            let time = time.0;
            match *fact {
                Fact::Switch { prev, next, left } if prev == tid || next == tid => {
                    if next == tid {
                        let since: u64 = queued.take().unwrap_or(time);
                        if window.contains(&time) {
                            sums.wait += time - since;
                            sums.longest = sums.longest.max(time - since);
                            sums.moved_asleep += moved.map_or(0, |moved: u64| since - moved);
                        }
                        (runs, woken, moved) = (Some(time), None, None);
                    } else {
                        // Who leaves first ran from the beginning; who was not seen to come, since
                        // the last switch there. Not every kernel tells every switch (seen: those
                        // away from one program's threads).
                        let unseen =
                            || queued.zip(switched.get(cpu)).map(|(q, s): (u64, &u64)| q.max(*s));
                        let since = runs.take().or(is_new.then_some(begin)).or_else(unseen);
                        if let Some((queued, since)) = queued.zip(since) {
                            sums.wait += if window.contains(&since) { since - queued } else { 0 };
                        }
                        let to = window.end.min(time);
                        let since = since.map_or(to, |since: u64| since.max(begin));
                        sums.run += to.saturating_sub(since);
                        queued = (left == Left::Runnable).then_some(time);
                    }
                    is_new = false;
                }
                Fact::Migrate { tid: who, .. }
                    if who == tid && runs.is_none() && queued.is_none() && woken.is_none() =>
                {
                    moved = moved.or(Some(time));
                }
                Fact::Waking { tid: who, .. } if who == tid && runs.is_none() => woken = Some(time),
                Fact::Wakeup { tid: who, .. } if who == tid && runs.is_none() => {
                    sums.waking += woken.take().map_or(0, |since: u64| time - since);
                    queued = queued.or(Some(time));
                }
                _ => {}
            }
            if matches!(fact, Fact::Switch { .. }) {
                switched.insert(*cpu, time);
            }
        }
        let last = events.last().map_or(0, |event| event.time.0).min(window.end);
        sums.run += runs.map_or(0, |since: u64| last.saturating_sub(since.max(begin)));
        sums
    }
}

/// The events, and what the kernel counted while they were recorded.
fn read(path: &Path) -> (Vec<Event>, Vec<Counter>) {
    let file = File::open(path).unwrap();
    let mut stream = RecStream::open(file, "made", Default::default()).unwrap();
    let (mut events, mut batch) = (Vec::new(), Vec::new());
    while stream.next_batch(&mut batch) {
        events.append(&mut batch);
    }
    assert_eq!(stream.tally().warnings(), Vec::<String>::new());
    (events, stream.end().unwrap().counters.clone())
}

fn of<'a>(report: &'a Value, guest: &Guest) -> &'a Value {
    let is = |vm: &&Value| vm["pid"] == guest.pid();
    list(report, "vms").iter().find(is).unwrap_or_else(|| panic!("{report}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}
