//! Small files made to cost much: each is read in bounded memory and to its end, and says what is wrong.
//!
//! One test after another: memory is that of the whole process.

#![cfg(test)]

use instep_madehost::trace::{MadeEvent, TracepointFields, perf_pipe};
use instep_trace::analysis::{AnalysisSettings, analyze};
use instep_trace::stream::Tally;
use std::fs;
use std::io::{Cursor, Write};

/// The most memory that a file of some kilobytes may take.
const MAX_KIB: u64 = 600 << 10;

/// Types of records (tools/perf/util/event.h).
const EXIT: u32 = 4;
const FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const CPU_COUNT: u64 = 7;
const CPU_TOPOLOGY: u64 = 13;
const NUMA_TOPOLOGY: u64 = 14;

fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(body.len() + 8).unwrap();
    let head = [kind.to_le_bytes(), u32::from(size).rotate_left(16).to_le_bytes()].concat();
    [&head, body].concat()
}

fn switches(times: &[u64]) -> Vec<MadeEvent> {
    let turn = |(at, time): (usize, &u64)| {
        let (from, to) =
            [((0, "swapper/0"), (101, "CPU 0/KVM")), ((101, "CPU 0/KVM"), (0, "swapper/0"))]
                [at % 2];
        MadeEvent {
            time: *time,
            cpu: 0,
            current: (from.0, from.0),
            flags: 0,
            what: TracepointFields::Switch(from, to, 0),
        }
    };
    times.iter().enumerate().map(turn).collect()
}

/// Analyses a pipe that begins as a sound one does.
fn analysed(more: &[u8], times: &[u64]) -> (Tally, Vec<String>, usize) {
    let pipe = [perf_pipe(&switches(times), 8, None), more.to_vec()].concat();
    let mut stream = instep_trace::open(Cursor::new(pipe), "made", Default::default()).unwrap();
    let report = analyze(stream.as_mut(), &AnalysisSettings::default());
    let nodes = stream.header().topology.as_ref().map_or(0, |topology| topology.nodes().len());
    (stream.tally().clone(), report.warnings, nodes)
}

/// Records of one zstd stream, a record for each piece.
fn compressed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let pack = |piece: &[u8]| {
        encoder.write_all(piece).and_then(|()| encoder.flush()).unwrap();
        record(COMPRESSED, &std::mem::take(encoder.get_mut()))
    };
    pieces.flat_map(pack).collect()
}

#[test]
fn small_files_take_bounded_memory() {
    // Nodes of a feature that comes again and again: each node has a distance to each.
    let node = |id: u32| {
        let words = [
            id.to_le_bytes().to_vec(),
            vec![0; 16],
            4u32.to_le_bytes().to_vec(),
            b"0-1\0".to_vec(),
        ];
        words.concat()
    };
    let feature = |first: u32| {
        let nodes: Vec<u8> = (first..first + 2000).flat_map(node).collect();
        let body =
            [NUMA_TOPOLOGY.to_le_bytes().to_vec(), 2000u32.to_le_bytes().to_vec(), nodes].concat();
        record(FEATURE, &body)
    };
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let plain =
        |bit: u64, data: Vec<u8>| record(FEATURE, &[bit.to_le_bytes().to_vec(), data].concat());
    let list = |text: &[u8; 4]| [words(&[4]), text.to_vec()].concat();
    let cores = [words(&[1]), list(b"0-1\0"), words(&[1]), list(b"0-1\0"), words(&[0, 0, 1, 0])];
    let cpus = [plain(CPU_COUNT, words(&[2, 2])), plain(CPU_TOPOLOGY, cores.concat())].concat();
    let features: Vec<u8> = (0..13).flat_map(|at| feature(at * 2000)).collect();
    let (.., nodes) = analysed(&[cpus, features].concat(), &[1000, 2000]);
    assert!(nodes <= 1024, "{nodes} nodes");
    assert!(peak() < MAX_KIB, "nodes: {} KiB", peak());

    // Ends of threads, compressed a thousandfold.
    let exit = record(EXIT, &[[1u8; 16].as_slice(), &5000u64.to_le_bytes()].concat());
    let exits: Vec<u8> = exit.iter().copied().cycle().take(exit.len() * 100_000).collect();
    let (tally, ..) = analysed(&compressed((0..100).map(|_| &exits[..])), &[1000, 2000]);
    assert_eq!(tally.damaged, 0, "{tally:?}");
    assert!(peak() < MAX_KIB, "exits: {} KiB", peak());

    // What makes no sense in a compressed stream, and more of it.
    let zeros = vec![0; 256 << 10];
    let (tally, ..) = analysed(&compressed((0..2600).map(|_| &zeros[..])), &[1000, 2000]);
    assert!(tally.cut.is_some_and(|why| why.contains("makes no sense")));
    assert!(peak() < MAX_KIB, "zeros: {} KiB", peak());
}

#[test]
fn times_of_centuries_are_damage() {
    for far in [1 << 52, 1 << 63, u64::MAX - 1] {
        let times = [1000, 2000, far, far + 1, far];
        let (_, warnings, _) = analysed(&[], &times);
        assert!(warnings.iter().any(|one| one.contains("more than 13 days")), "{warnings:?}");
        analysed(&[], &[far, far, far + 1]);
    }
}
