//! What `instep analyze` says of a trace that was cut off, whose events are out of order, or that cannot be read
//! beside others: in the text, in the JSON and on the page.

use super::{analyze, events, made, piped, recorded};
use crate::common::{instep, list};
use crate::pipe::{ROUND, records};
use instep_core::units::{CpuId, Nanos, Tid};
use instep_madehost::trace::{dat_6, perf_file, perf_pipe};
use instep_trace::event::{Event, Fact, Left};
use instep_trace::rec::{End, Head, Writer};
use serde_json::Value;
use std::fs;

/// The type of an event's record.
const SAMPLE: u32 = 9;

/// How many events a trace has, and what is said of it with these words: the same by every way.
fn warned(data: &[u8], words: &str) -> Option<(u64, String)> {
    let (dir, path) = made("perf.pipe", data);
    let page = dir.path().join("a.html");
    let ran = analyze(&path, &["--json", "--html", page.to_str().unwrap()]);
    let json = ran.json();
    let said: Vec<&str> = list(&json, "warnings").iter().filter_map(Value::as_str).collect();
    let said = said.into_iter().find(|said| said.contains(words)).map(str::to_owned);
    let page = fs::read_to_string(page).unwrap();
    let shown = analyze(&path, &[]);
    let judged = analyze(&path, &["--check", "--json"]).json();
    let judged = list(&judged["files"][0], "warnings");
    match &said {
        Some(said) => {
            assert!(shown.stderr.contains(&format!("warning: {said}")), "{}", shown.all());
            assert!(page.contains(said.as_str()) && judged.contains(&said.as_str().into()));
        }
        None => assert!(!shown.stderr.contains(words) && !page.contains(words)),
    }
    said.map(|said| (json["events"].as_u64().unwrap(), said))
}

#[test]
fn perf_pipe_that_ends_between_two_records_is_called_cut() {
    let data = perf_pipe(&events(), 20, None);
    assert_eq!(warned(&data, "is incomplete"), None);
    let samples = || records(&data).filter(|record| record.kind == SAMPLE);
    let cut = samples().nth(104).unwrap().at.end;
    let (events, said) = warned(&data[..cut], "is incomplete").unwrap();
    assert_eq!(events, 105);
    assert!(said.contains("it ends 5 events into a round that perf did not end"), "{said}");
    // Behind a round it looks like a whole one.
    let round = records(&data).filter(|record| record.kind == ROUND).nth(4).unwrap();
    assert_eq!(warned(&data[..round.at.end], "is incomplete"), None);
    // Before the first event there is nothing to tell of.
    let before = samples().next().unwrap().at.start;
    let output = piped(&data[..before], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cut off before its first event: perf ended no round"), "{said}");
}

#[test]
fn a_pipe_that_breaks_off_says_where_and_what_is_missing() {
    let data = perf_pipe(&events(), 20, None);
    for (data, expected) in [
        (&b""[..], "standard input: it is empty: its recorder wrote nothing"),
        (b"hello", "standard input: neither perf.data nor trace.dat"),
        (&data[..12], "standard input: it is cut off: it ends at byte 12 of its head of 16"),
    ] {
        let output = piped(data, &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn cut_trace_dat_is_analysed_and_called_cut() {
    let data = dat_6(&events(), &[]);
    let (_dir, path) = made("trace.dat", &data[..data.len() - 4096]);
    analyze(&path, &[]).expect(1).says(&["the trace is incomplete"]);
}

#[test]
fn a_recording_that_is_cut_before_its_first_event_is_no_result() {
    let data = recorded(&Head::default(), &End::default());
    let marks: Vec<usize> = (0..data.len()).filter(|at| data[*at..].starts_with(b"IBLK")).collect();
    let (dir, path) = made("a.instep", &data[..(marks[1] + marks[2]) / 2]);
    let page = dir.path().join("a.html");
    for options in [&[][..], &["--json"], &["--check"], &["--html", page.to_str().unwrap()]] {
        let ran = analyze(&path, options).expect(2);
        let ran = ran.says(&["a.instep: no event can be read of it: ", "cut off", "record anew"]);
        assert!(ran.stdout.is_empty() && !page.exists(), "{}", ran.all());
    }
    // A whole one may have none.
    let writer = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
    let (_dir, path) = made("a.instep", &writer.finish(&End::default()).unwrap());
    let ran = analyze(&path, &[]).expect(0);
    assert!(ran.stdout.contains("the trace holds no event"), "{}", ran.all());
    assert!(!ran.stderr.contains("no wake-ups"), "{}", ran.all());
}

#[test]
fn damage_is_distinguished_from_a_loss_by_small_buffers() {
    let mut data = recorded(&Head::default(), &End::default());
    // The head, a block of events, the end.
    let marks: Vec<usize> = (0..data.len()).filter(|at| data[*at..].starts_with(b"IBLK")).collect();
    data[(marks[1] + marks[2]) / 2] ^= 0x10;
    let (_dir, path) = made("a.instep", &data);
    let said = ["the trace is damaged: 1 record makes no sense", "events are missing there"];
    let ran = analyze(&path, &[]).says(&said);
    assert!(!ran.stderr.contains("buffers") && ran.stdout.contains("0 lost"), "{}", ran.all());
}

#[test]
fn events_that_come_too_late_to_be_put_in_order_are_reported() {
    let data = perf_pipe(&events(), 20, None);
    assert_eq!(warned(&data, "put in order"), None);
    // The first event of all comes at the end of the fifth round.
    let first = records(&data).find(|record| record.kind == SAMPLE).unwrap().at;
    let end = records(&data).filter(|record| record.kind == ROUND).nth(4).unwrap().at.start;
    let parts = [&data[..first.start], &data[first.end..end], &data[first], &data[end..]];
    let (events, said) = warned(&parts.concat(), "put in order").unwrap();
    assert_eq!(events, 200);
    assert!(said.starts_with("1 event came up to ") && said.contains("wrong by as much"), "{said}");
}

#[test]
fn what_is_wrong_with_a_trace_is_in_the_json_by_kind() {
    let data = perf_pipe(&events(), 20, None);
    let sound = ["reordered", "late", "damaged", "lost_places", "cut"];
    let trace = |data: &[u8]| {
        let (_dir, path) = made("trace", data);
        let (text, json) = (analyze(&path, &[]).stdout, analyze(&path, &["--json"]).json());
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let numbers = sound.map(|key| json["trace"][key].as_u64().unwrap());
        (text, numbers)
    };
    let (text, numbers) = trace(&data);
    assert!(numbers == [0; 5] && !text.contains("after a later"), "{numbers:?} {text}");
    // The first event of CPU 0 comes behind its second.
    let samples: Vec<_> = records(&data).filter(|record| record.kind == SAMPLE).collect();
    let (first, rest) = (samples[0].at.clone(), samples[4].at.end);
    let moved = [&data[..first.start], &data[first.end..rest], &data[first.clone()], &data[rest..]];
    let (text, numbers) = trace(&moved.concat());
    assert_eq!(numbers, [1, 0, 0, 0, 0]);
    let said = "1 event came after a later one of the same CPU; all are put in their places";
    assert!(text.contains(said), "{text}");
    let (_, numbers) = trace(&data[..samples[104].at.end]);
    assert_eq!(numbers, [0, 0, 0, 0, 1]);
}

#[test]
fn a_loss_of_unknown_size_is_no_nought_in_the_heading() {
    let at = |time, fact| Event { time: Nanos(time), cpu: CpuId(0), fact };
    let switch =
        |prev, next| Fact::Switch { prev: Tid(prev), next: Tid(next), left: Left::Runnable };
    let of = |losses: &[u64]| {
        let mut writer = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
        writer.event(&at(1, switch(11, 12))).unwrap();
        for events in losses {
            writer.event(&at(2, Fact::Lost { events: *events })).unwrap();
        }
        writer.event(&at(3, switch(12, 11))).unwrap();
        let (_dir, path) = made("a.instep", &writer.finish(&End::default()).unwrap());
        let json = analyze(&path, &["--json"]).json();
        let text = analyze(&path, &[]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        (text, json["lost"].as_u64(), json["trace"]["lost_places"].as_u64())
    };
    let (text, lost, places) = of(&[0]);
    assert_eq!((lost, places), (Some(0), Some(1)));
    assert!(text.contains("2 events, an unknown number lost at 1 place"), "{text}");
    let (text, lost, places) = of(&[7, 0]);
    assert_eq!((lost, places), (Some(7), Some(1)));
    assert!(text.contains("2 events, 7 lost and an unknown number at 1 place"), "{text}");
}

#[test]
fn reports_of_several_files_name_them() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let path = path.to_str().unwrap();
    let ran = instep(&["analyze", path, "/nowhere", path, "--json"]).expect(2);
    let json = ran.json();
    let files: Vec<_> = json.as_array().unwrap().iter().map(|report| &report["file"]).collect();
    assert_eq!(files, [path, path]);
    assert!(ran.stderr.contains("/nowhere"), "{}", ran.stderr);
}
