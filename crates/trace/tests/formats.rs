//! Every format of a made trace gives the same facts; cut at any length or with any byte changed
//! it gives an error or says that it is not whole, and never panics.

#[path = "common/pipe.rs"]
mod pipe;

use instep_madehost::trace::{
    MadeEvent, TracepointFields, dat_6, dat_7, perf_file, perf_file_compressed, perf_pipe,
};
use instep_trace::event::{Event, Fact, Left};
use instep_trace::rec::{End, Head, Writer};
use instep_trace::stream::{EventStream, Header, Tally};
use instep_trace::{TraceError, open, open_stream};
use pipe::{ROUND, records};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Cursor, Write};

const ALPHA: (u32, &str) = (101, "CPU 0/KVM");
const BETA: (u32, &str) = (201, "CPU 0/KVM");
const IDLE: (u32, &str) = (0, "swapper/0");

/// Two CPUs on which threads take turns, with gaps that need time extends.
fn events(turns: u64) -> Vec<MadeEvent> {
    let mut events = Vec::new();
    for turn in 0..turns {
        for cpu in 0..2u32 {
            let time = 1_000_000 + turn * 300_000_000 + u64::from(cpu) * 1000;
            let thread = if cpu == 0 { ALPHA } else { BETA };
            let mut push = |time, current, flags, what| {
                events.push(MadeEvent { time, cpu, current, flags, what });
            };
            push(time, (0, 0), 8, TracepointFields::Waking(thread, cpu));
            push(time + 100, (0, 0), 8, TracepointFields::Wakeup(thread, cpu));
            push(time + 200, (0, 0), 0, TracepointFields::Switch(IDLE, thread, 0));
            push(time + 300, (thread.0, thread.0 - 1), 0, TracepointFields::Entry(0));
            push(
                time + 500,
                (thread.0, thread.0 - 1),
                0,
                TracepointFields::Switch(thread, IDLE, 1),
            );
        }
    }
    events
}

fn zstd(data: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(data, 1).expect("memory does not fail")
}

/// One stream that goes on from piece to piece, as perf's.
fn zstd_stream() -> impl Fn(&[u8]) -> Vec<u8> {
    let encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("memory does not fail");
    let encoder = RefCell::new(encoder);
    move |piece| {
        let mut encoder = encoder.borrow_mut();
        encoder.write_all(piece).and_then(|()| encoder.flush()).expect("memory does not fail");
        std::mem::take(encoder.get_mut())
    }
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}

/// What a trace says, as a recording of Instep's own, in blocks of a few events.
fn rec(trace: &[u8], compress: bool) -> Vec<u8> {
    let mut writer =
        Writer::begin(Vec::new(), &Head::default(), compress).expect("memory does not fail");
    for (number, event) in read(trace).expect("a made trace is whole").0.iter().enumerate() {
        writer.event(event).expect("memory does not fail");
        if number % 7 == 6 {
            writer.round();
            writer.flush().expect("memory does not fail");
        }
    }
    writer.finish(&End::default()).expect("memory does not fail")
}

/// Every format with its name.
fn formats(turns: u64) -> Vec<(&'static str, Vec<u8>)> {
    let (events, names) = (events(turns), [ALPHA, BETA]);
    let file = perf_file(&events, 8);
    vec![
        ("recording", rec(&file, false)),
        ("recording, zstd", rec(&file, true)),
        ("perf file", file),
        ("perf pipe", perf_pipe(&events, 8, None)),
        ("perf pipe, compressed", perf_pipe(&events, 8, Some(&zstd_stream()))),
        ("perf file, compressed", perf_file_compressed(&events, 8, &zstd_stream())),
        ("trace.dat 6", dat_6(&events, &names)),
        ("trace.dat 7", dat_7(&events, &names, "none", None)),
        ("trace.dat 7, zstd", dat_7(&events, &names, "zstd", Some(&zstd))),
        ("trace.dat 7, zlib", dat_7(&events, &names, "zlib", Some(&zlib))),
    ]
}

fn read(data: &[u8]) -> Result<(Vec<Event>, Tally), TraceError> {
    let mut stream = open(Cursor::new(data), "made", Default::default())?;
    Ok(drain(stream.as_mut()))
}

fn drain(stream: &mut dyn EventStream) -> (Vec<Event>, Tally) {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while stream.next_batch(&mut batch) {
        all.append(&mut batch);
    }
    (all, stream.tally().clone())
}

/// The scheduling facts, without those of threads, whose places differ.
fn scheduling(events: &[Event]) -> Vec<Event> {
    let of_threads =
        |fact: &Fact| matches!(fact, Fact::Named { .. } | Fact::Member { .. } | Fact::Fork { .. });
    events.iter().filter(|event| !of_threads(&event.fact)).copied().collect()
}

#[test]
fn every_format_gives_the_same_facts() {
    let expected = scheduling(&read(&formats(20)[0].1).unwrap().0);
    // Per turn and CPU: waking, wakeup, two switches; kvm_entry once per thread.
    assert_eq!(expected.len(), 20 * 2 * 4 + 2);
    for (name, data) in formats(20) {
        let (events, tally) = read(&data).unwrap();
        assert!(scheduling(&events) == expected, "{name}: {} facts", events.len());
        // Of kvm_entry a recording has only what is new.
        let records = if name.starts_with("recording") { 162 } else { 200 };
        assert_eq!(
            (tally.records, tally.warnings(&Header::default())),
            (records, vec![]),
            "{name}"
        );
        assert!(events.is_sorted_by_key(|event| event.time), "{name}");
    }
}

#[test]
fn names_and_processes_are_reported_once() {
    let (events, _) = read(&formats(5)[0].1).unwrap();
    let count = |wanted: &dyn Fn(&Fact) -> bool| events.iter().filter(|e| wanted(&e.fact)).count();
    assert_eq!(count(&|fact| matches!(fact, Fact::Named { .. })), 2);
    assert_eq!(count(&|fact| matches!(fact, Fact::Member { .. })), 2);
    let asleep = |fact: &Fact| matches!(fact, Fact::Switch { left: Left::Asleep, .. });
    assert_eq!(count(&asleep), 10);
}

#[test]
fn a_pipe_is_read_as_it_comes() {
    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8]);
    impl std::io::Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = buffer.len().min(self.0.len()).min(13);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    let pipes = formats(20);
    let pipes = pipes.iter().filter(|(name, _)| ["perf pipe", "recording"].contains(name));
    for (name, data) in pipes {
        let mut stream = open_stream(Slow(data), name, Default::default()).unwrap();
        let (events, tally) = drain(stream.as_mut());
        assert_eq!((scheduling(&events).len(), tally.cut), (162, None), "{name}");
    }
}

#[test]
fn cut_at_any_length_it_errs_or_says_so() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    for (name, data) in formats(6) {
        let whole = read(&data).unwrap().1.records;
        let is_pipe = name.starts_with("perf pipe");
        let rounds = if is_pipe { after_rounds(&data) } else { BTreeSet::new() };
        for length in 0..data.len() {
            let Ok((_, tally)) = read(&data[..length]) else { continue };
            let said = tally.cut.is_some() || tally.damaged > 0;
            // A pipe has no end of its own: cut right behind a round it is whole.
            if is_pipe {
                assert_eq!(said, !rounds.contains(&length), "{name} cut at {length}: {tally:?}");
                continue;
            }
            // Padding at the end of an uncompressed page may be missed without harm.
            let is_whole = !name.starts_with("recording") && tally.records == whole;
            assert!(said || is_whole, "{name} cut at {length} of {}: {tally:?}", data.len());
        }
    }
}

/// Where a pipe's records that end a round end.
fn after_rounds(pipe: &[u8]) -> BTreeSet<usize> {
    records(pipe).filter(|record| record.kind == ROUND).map(|record| record.at.end).collect()
}

#[test]
fn a_pipe_that_ends_in_its_formats_says_so() {
    let (_, pipe) = formats(3).remove(3);
    let formats = pipe.windows(12).position(|part| part == b"sched_switch").unwrap();
    let mut told = 0;
    for length in (formats..pipe.len()).step_by(7) {
        let Err(error) = read(&pipe[..length]) else { break };
        let why = error.to_string();
        assert!(why.contains("made: it is cut off before its first event"), "{length}: {why}");
        told += usize::from(why.contains("into the formats of its tracepoints"));
    }
    assert!(told > 100, "{told}");
}

#[test]
fn any_changed_byte_is_survived() {
    for (_, data) in formats(3) {
        // Every byte takes minutes; a stride of a prime meets all parts. Fuzzing does the rest.
        for at in (0..data.len()).step_by(13) {
            let mut changed = data.clone();
            changed[at] = [0x00, 0xff, 0x80, data[at].wrapping_add(1)][at % 4];
            let _ = read(&changed);
        }
    }
}

#[test]
fn file_that_is_no_trace_is_answered_with_what_to_do() {
    let error = read(b"hello").unwrap_err().to_string();
    assert!(error.contains("made: neither perf.data nor trace.dat"), "{error}");
    let error = read(b"2ELIFREP........").unwrap_err().to_string();
    assert!(error.contains("big-endian"), "{error}");
}
