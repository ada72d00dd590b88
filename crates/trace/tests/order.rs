//! Events that are out of order in a file: those that can be sorted are counted and change nothing, the others are
//! reported as late.

#[path = "common/pipe.rs"]
mod pipe;

use instep_core::units::Nanos;
use instep_madehost::trace::{MadeEvent, TracepointFields, perf_pipe};
use instep_trace::analysis::report::AnalysisReport;
use instep_trace::analysis::{AnalysisSettings, analyze};
use instep_trace::event::{Event, Fact};
use instep_trace::open;
use instep_trace::rec::{End, Head, Writer};
use instep_trace::stream::{Header, Tally};
use pipe::{ROUND, records};
use std::io::Cursor;

/// The type of an event's record.
const SAMPLE: u32 = 9;
const MS: u64 = 1_000_000;
/// Where a sample's time lies: behind the head, an identifier, an address, process and thread.
const TIME: usize = 32;
const TURNS: u64 = 100;

/// Two siblings that take turns of 1 ms on each of two CPUs, in rounds of 20 events.
fn healthy() -> Vec<u8> {
    let threads = [(11, "CPU 0/KVM"), (12, "CPU 1/KVM"), (13, "CPU 2/KVM"), (14, "CPU 3/KVM")];
    let moment = |turn: u64, cpu: usize| {
        let (a, b) = (threads[2 * cpu], threads[2 * cpu + 1]);
        let (from, to) = if turn.is_multiple_of(2) { (a, b) } else { (b, a) };
        let time = (turn + 1) * MS + cpu as u64 * 1000;
        let what = TracepointFields::Switch(from, to, 0);
        MadeEvent { time, cpu: cpu as u32, current: (from.0, 10), flags: 0, what }
    };
    let events: Vec<MadeEvent> =
        (0..TURNS).flat_map(|turn| [moment(turn, 0), moment(turn, 1)]).collect();
    perf_pipe(&events, 20, None)
}

/// The parts of a pipe: what comes before the events, and each round of them.
fn parts(pipe: &[u8]) -> (Vec<u8>, Vec<Vec<Vec<u8>>>) {
    let (mut before, mut rounds) = (pipe[..16].to_vec(), vec![Vec::new()]);
    for record in records(pipe) {
        let bytes = pipe[record.at].to_vec();
        match record.kind {
            SAMPLE => rounds.last_mut().expect("there is one").push(bytes),
            ROUND => rounds.push(Vec::new()),
            _ => before.extend(bytes),
        }
    }
    rounds.pop();
    (before, rounds)
}

/// The pipe that has these parts.
fn whole((before, rounds): (Vec<u8>, Vec<Vec<Vec<u8>>>)) -> Vec<u8> {
    let end = [ROUND.to_le_bytes(), [0, 0, 8, 0]].concat();
    let rounds = rounds.into_iter().flat_map(|round| [round.concat(), end.clone()].concat());
    before.into_iter().chain(rounds).collect()
}

fn read(data: &[u8]) -> (Vec<Event>, Tally, AnalysisReport) {
    let stream =
        || open(Cursor::new(data), "made", Default::default()).expect("a made trace is whole");
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    let mut first = stream();
    while first.next_batch(&mut batch) {
        all.append(&mut batch);
    }
    assert!(all.is_sorted_by_key(|event| event.time));
    all.retain(|event| matches!(event.fact, Fact::Switch { .. }));
    (all, first.tally().clone(), analyze(stream().as_mut(), &AnalysisSettings::default()))
}

fn speaks_of(report: &AnalysisReport, words: &str) -> bool {
    report.warnings.iter().any(|warning| warning.contains(words))
}

#[test]
fn a_healthy_pipe_says_nothing_of_order() {
    let data = healthy();
    assert!(whole(parts(&data)) == data);
    let (events, tally, report) = read(&data);
    assert_eq!(events.len() as u64, 2 * TURNS);
    assert_eq!((tally.reordered, tally.late, tally.warnings(&Header::default())), (0, 0, vec![]));
    assert!(!speaks_of(&report, "order"), "{:?}", report.warnings);
}

#[test]
fn events_out_of_order_within_a_round_are_sorted() {
    let (expected, _, sound) = read(&healthy());
    let (before, mut rounds) = parts(&healthy());
    rounds.iter_mut().for_each(|round| round.reverse());
    // A round later is early enough, too.
    let moved = rounds[3].remove(0);
    rounds[4].push(moved);
    let (events, tally, mut report) = read(&whole((before, rounds)));
    assert!(events == expected);
    assert!(tally.reordered >= 180, "{tally:?}");
    assert_eq!(report.trace.reordered, tally.reordered);
    report.trace.reordered = 0;
    assert_eq!((tally.late, tally.warnings(&Header::default())), (0, vec![]));
    assert_eq!(
        serde_json::to_value(report).unwrap(),
        serde_json::to_value(sound).unwrap(),
        "the figures are the same"
    );
}

#[test]
fn events_rounds_too_late_are_counted_and_explained() {
    let (before, mut rounds) = parts(&healthy());
    // Of CPU 0, 11 to 13 ms: when round 4 has ended, all up to the end of round 3 is given, 40 ms.
    let moved: Vec<Vec<u8>> = rounds[1].drain(..3).collect();
    rounds[5].extend(moved);
    let (events, tally, report) = read(&whole((before, rounds)));
    assert_eq!(events.len() as u64, 2 * TURNS);
    assert_eq!((tally.reordered, tally.late), (3, 3));
    assert_eq!(tally.latest, Nanos(40 * MS + 1000 - 11 * MS));
    let said = "3 events came up to 29001 us too late to be put in order: the time that was reached then is taken";
    assert!(speaks_of(&report, said), "{:?}", report.warnings);
}

#[test]
fn clock_that_steps_back_within_a_round_is_reported() {
    let (before, mut rounds) = parts(&healthy());
    // The second half of CPU 0's turns in one round, 2.5 ms too early.
    for sample in &mut rounds[4][5..10] {
        let time = u64::from_le_bytes(sample[TIME..TIME + 8].try_into().unwrap());
        sample[TIME..TIME + 8].copy_from_slice(&(time - 5 * MS / 2).to_le_bytes());
    }
    let (_, tally, report) = read(&whole((before, rounds)));
    assert_eq!((tally.reordered, tally.late), (2, 0), "{tally:?}");
    assert!(speaks_of(&report, "switches are missing although no loss"), "{:?}", report.warnings);
    let said = "2 events came after a later one of the same CPU and had to be put in order by time";
    assert!(speaks_of(&report, said), "{:?}", report.warnings);
}

#[test]
fn a_recording_of_insteps_own_is_put_in_order_by_its_rounds() {
    let (events, ..) = read(&healthy());
    let recorded = |order: &[Event]| {
        let mut writer = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
        for round in order.chunks(20) {
            round.iter().for_each(|event| writer.event(event).unwrap());
            writer.round();
        }
        read(&writer.finish(&End::default()).unwrap())
    };
    // CPU after CPU within each round, as the collector's ring may give them.
    let mut mixed = events.clone();
    mixed.chunks_mut(20).for_each(|round| round.sort_by_key(|event| event.cpu));
    let (found, tally, report) = recorded(&mixed);
    assert!(found == events);
    assert_eq!((tally.late, tally.warnings(&Header::default())), (0, vec![]));
    assert_eq!(tally.reordered, 0, "each CPU's are in order");
    assert!(!speaks_of(&report, "order"), "{:?}", report.warnings);
    // One that comes after three rounds.
    let late = mixed.remove(0);
    mixed.insert(70, late);
    let (_, tally, report) = recorded(&mixed);
    assert_eq!((tally.reordered, tally.late), (1, 1));
    assert_eq!((report.trace.reordered, report.trace.late), (1, 1));
    assert!(speaks_of(&report, "1 event came up to"), "{:?}", report.warnings);
}
