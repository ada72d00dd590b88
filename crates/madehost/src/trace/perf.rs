//! Made perf.data, as a file and as a pipe writes it.

use super::{Compress, MadeEvent, tracing_data};

/// IP, TID, TIME, CPU, PERIOD, RAW, IDENTIFIER: what `perf sched record` asks for.
const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 16;
const ATTR: usize = 128;
const IDENTIFIER: u64 = 12;
/// The head of a record.
const HEAD: usize = 8;
/// What is compressed at once: some events and a part of one.
const PIECE: usize = 500;

fn attr() -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(2u32.to_le_bytes());
    out.extend((ATTR as u32).to_le_bytes());
    for word in [310, 1, SAMPLE_TYPE, 4, 1 << 18] {
        out.extend(u64::to_le_bytes(word));
    }
    out.resize(ATTR, 0);
    out
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend([0, 0]);
    out.extend((body.len() as u16 + 8).to_le_bytes());
    out.extend(body);
    out
}

fn sample(event: &MadeEvent) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [IDENTIFIER, 0xffff_ffff_8100_0000] {
        body.extend(word.to_le_bytes());
    }
    body.extend(event.current.1.to_le_bytes());
    body.extend(event.current.0.to_le_bytes());
    body.extend(event.time.to_le_bytes());
    body.extend(u64::from(event.cpu).to_le_bytes());
    body.extend(1u64.to_le_bytes());
    let mut raw = event.raw();
    // A raw record and its size together are a multiple of 8 bytes.
    raw.resize((raw.len() + 4).next_multiple_of(8) - 4, 0);
    body.extend((raw.len() as u32).to_le_bytes());
    body.extend(raw);
    record(9, &body)
}

/// Rounds of `round` events each, within a round CPU after CPU, as perf drains its buffers.
fn rounds(events: &[MadeEvent], round: usize) -> Vec<Vec<u8>> {
    let mut sorted: Vec<&MadeEvent> = events.iter().collect();
    sorted.sort_by_key(|event| event.time);
    let one = |events: &[&MadeEvent]| {
        let mut events = events.to_vec();
        events.sort_by_key(|event| event.cpu);
        let mut out: Vec<u8> = events.iter().flat_map(|event| sample(event)).collect();
        out.extend(record(68, &[]));
        out
    };
    sorted.chunks(round.max(1)).map(one).collect()
}

/// A file: head, attributes, records, features.
#[must_use]
pub fn perf_file(events: &[MadeEvent], round: usize) -> Vec<u8> {
    file(&rounds(events, round).concat())
}

/// The same with compressed records as newer perfs write them: with their size, and padded.
#[must_use]
pub fn perf_file_compressed(events: &[MadeEvent], round: usize, compress: Compress<'_>) -> Vec<u8> {
    let compressed = |piece: &[u8]| {
        let data = compress(piece);
        let mut body = (data.len() as u64).to_le_bytes().to_vec();
        body.extend(&data);
        body.resize(body.len().next_multiple_of(8), 0);
        record(83, &body)
    };
    let rounds = rounds(events, round);
    file(&rounds.iter().flat_map(|round| packed(round, &compressed)).collect::<Vec<u8>>())
}

/// A file with these records.
fn file(data: &[u8]) -> Vec<u8> {
    let (ids_at, attrs_at) = (104u64, 112u64);
    let data_at = attrs_at + ATTR as u64 + 16;
    let mut out = b"PERFILE2".to_vec();
    let head = [104, ATTR as u64 + 16, attrs_at, ATTR as u64 + 16, data_at, data.len() as u64];
    out.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    out.extend([0; 16]);
    // Feature 1 is the description of tracepoints, 3 the host's name.
    out.extend([(1u64 << 1) | (1 << 3), 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    out.extend(IDENTIFIER.to_le_bytes());
    out.extend(attr());
    out.extend([ids_at, 8].iter().flat_map(|word| word.to_le_bytes()));
    out.extend(data);
    let mut hostname = 8u32.to_le_bytes().to_vec();
    hostname.extend(b"made\0\0\0\0");
    let features = [tracing_data(), hostname];
    let mut at = out.len() as u64 + 32;
    for feature in &features {
        out.extend([at, feature.len() as u64].iter().flat_map(|word| word.to_le_bytes()));
        at += feature.len() as u64;
    }
    features.iter().for_each(|feature| out.extend(feature));
    out
}

/// A pipe: everything as records, those of the events compressed if so wished, as perf 6.1 does it.
#[must_use]
pub fn perf_pipe(events: &[MadeEvent], round: usize, compress: Option<Compress<'_>>) -> Vec<u8> {
    let mut out = b"PERFILE2".to_vec();
    out.extend(16u64.to_le_bytes());
    let mut body = attr();
    body.extend(IDENTIFIER.to_le_bytes());
    out.extend(record(64, &body));
    let mut formats = tracing_data();
    formats.resize(formats.len().next_multiple_of(8), 0);
    out.extend(record(66, &(formats.len() as u32).to_le_bytes()));
    out.extend(formats);
    for round in rounds(events, round) {
        match compress {
            Some(compress) => out.extend(packed(&round, &|piece| record(81, &compress(piece)))),
            None => out.extend(round),
        }
    }
    out
}

/// A round whose events are compressed, its end is not. A piece of perf's buffers is one compressed record,
/// wherever the events in it begin and end.
fn packed(round: &[u8], record: Compress<'_>) -> Vec<u8> {
    let (events, end) = round.split_at(round.len() - HEAD);
    events.chunks(PIECE).flat_map(record).chain(end.iter().copied()).collect()
}
