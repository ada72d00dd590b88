//! The trace for ui.perfetto.dev, read back as protobuf: on each vCPU's track every begin has its end before
//! the next, and runs last as long as the analysis says.
#![cfg(test)]

use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_trace::analysis::{AnalysisSettings, analyze_into};
use instep_trace::perfetto::PerfettoWriter;
use std::collections::BTreeMap;
use std::io::Cursor;

const ONE: (u32, &str) = (11, "CPU 0/KVM");
const TWO: (u32, &str) = (12, "CPU 1/KVM");
const IDLE: (u32, &str) = (0, "swapper");

/// One field of a message: its number, its varint, and its bytes.
type Field<'a> = (u64, u64, &'a [u8]);

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = data.split_first().expect("a varint is whole");
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn fields(mut data: &[u8]) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let number = varint(&mut data);
        let bytes = match key & 7 {
            0 => &[][..],
            2 => {
                let (bytes, rest) = data.split_at(usize::try_from(number).unwrap());
                data = rest;
                bytes
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, number, bytes));
    }
    found
}

fn number(message: &[Field<'_>], field: u64) -> Option<u64> {
    message.iter().find(|(number, ..)| *number == field).map(|(_, value, _)| *value)
}

fn bytes<'a>(message: &[Field<'a>], field: u64) -> Option<&'a [u8]> {
    message.iter().find(|(number, ..)| *number == field).map(|(.., bytes)| *bytes)
}

/// A track: its name, and its slices with begin and end.
#[derive(Debug, Default)]
struct Track {
    name: String,
    slices: Vec<(String, u64, Option<u64>)>,
}

/// The tracks of a trace; panics where a slice begins within another, or ends without a begin.
fn tracks(trace: &[u8]) -> BTreeMap<u64, Track> {
    let mut tracks = BTreeMap::<u64, Track>::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    for (field, _, packet) in fields(trace) {
        assert_eq!(field, 1, "a trace has packets only");
        let packet = fields(packet);
        if let Some(descriptor) = bytes(&packet, 60).map(fields) {
            let uuid = number(&descriptor, 1).unwrap();
            tracks.entry(uuid).or_default().name = text(bytes(&descriptor, 2).unwrap());
        }
        let Some(event) = bytes(&packet, 11).map(fields) else { continue };
        let time = number(&packet, 8).unwrap();
        let track = tracks.get_mut(&number(&event, 11).unwrap()).expect("a track comes first");
        let last = track.slices.last_mut();
        match number(&event, 9).unwrap() {
            1 => {
                assert!(last.is_none_or(|(.., end)| end.is_some_and(|end| end <= time)));
                track.slices.push((text(bytes(&event, 23).unwrap()), time, None));
            }
            2 => {
                let (_, begin, end) = last.expect("a begin comes first");
                assert!(end.is_none() && *begin <= time);
                *end = Some(time);
            }
            other => panic!("event of type {other}"),
        }
    }
    tracks
}

#[test]
fn every_slice_of_a_track_ends_and_lasts_as_analysed() {
    let mut events = Vec::new();
    for turn in 0..40u64 {
        let at = 1_000_000 + turn * 3_000_000;
        let mut push = |time, what| {
            events.push(MadeEvent { time, cpu: 0, current: (0, 0), flags: 0, what });
        };
        push(at, TracepointFields::Switch(IDLE, ONE, 0));
        push(at + 500_000, TracepointFields::Waking(TWO, 0));
        push(at + 500_100, TracepointFields::Wakeup(TWO, 0));
        push(at + 1_000_000, TracepointFields::Switch(ONE, TWO, 0));
        push(at + 1_500_000, TracepointFields::Switch(TWO, ONE, 1));
        push(at + 2_000_000, TracepointFields::Switch(ONE, IDLE, 0));
    }
    let data = Cursor::new(perf_file(&events, 20));
    let mut stream = instep_trace::open(data, "made", Default::default()).unwrap();
    let mut writer = PerfettoWriter::new(Vec::new());
    let report = analyze_into(stream.as_mut(), &AnalysisSettings::default(), &mut writer);
    let tracks = tracks(&writer.finish().unwrap());
    let vcpus: Vec<_> = report.vms.iter().flat_map(|vm| &vm.vcpus).collect();
    assert_eq!((tracks.len(), vcpus.len()), (report.vms.len() + 2, 2));
    for vcpu in vcpus {
        let name = format!("vCPU {} ({})", vcpu.index, vcpu.tid);
        let track = tracks.values().find(|track| track.name == name).expect("it has a track");
        let sum = |is_run: bool| -> u64 {
            let slices =
                track.slices.iter().filter(|(name, ..)| name.starts_with("runs") == is_run);
            slices.map(|(_, begin, end)| end.expect("every slice ends") - begin).sum()
        };
        assert_eq!((Some(sum(true)), Some(sum(false))), (vcpu.run_ns, vcpu.steal_ns), "{name}");
        assert!(track.slices.len() >= 80, "{}", track.slices.len());
    }
}
