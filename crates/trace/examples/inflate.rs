//! Makes a long perf.data of a short one: `inflate FILE TIMES OUT` writes its samples over and
//! over, each time later. For measuring speed; understands files whose samples begin with
//! IDENTIFIER, IP, TID, TIME, as `perf sched record` and `perf record -e` of several tracepoints
//! write them. What is compressed (`perf record -z`) is written plain.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use zstd::stream::raw::{Decoder, InBuffer, Operation as _, OutBuffer};

/// Where the time stands in a sample record.
const TIME: usize = 8 + 24;
const HEAD: usize = 8;
const SAMPLE: u32 = 9;
const FINISHED_ROUND: u32 = 68;
/// Records of compressed ones: the older have their payload behind the head, the newer a size first and
/// padding behind.
const COMPRESSED: u32 = 81;
const COMPRESSED_2: u32 = 83;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn word(data: &[u8], at: usize) -> Result<u64> {
    let bytes = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    Ok(bytes.map(u64::from_le_bytes).ok_or(format!("cut off at byte {at}"))?)
}

/// Kind and bytes of the record at the front; nothing where it is not whole.
fn record(data: &[u8]) -> Option<(u32, &[u8])> {
    let head = word(data, 0).ok()?;
    let length = (head >> 48) as usize;
    Some((head as u32, data.get(..length.max(HEAD))?))
}

/// The records of a file's data, none of them compressed.
fn plain(data: &[u8]) -> Result<Vec<u8>> {
    let (mut out, mut pending, mut at) = (Vec::new(), Vec::new(), 0);
    let mut decoder = Decoder::new()?;
    while at < data.len() {
        let (kind, whole) = record(&data[at..]).ok_or("a record is cut off")?;
        at += whole.len();
        let payload = match kind {
            COMPRESSED => &whole[HEAD..],
            COMPRESSED_2 => {
                let size = word(whole, HEAD)? as usize;
                whole.get(HEAD + 8..HEAD + 8 + size).ok_or("a compressed record is cut off")?
            }
            _ => {
                out.extend_from_slice(whole);
                continue;
            }
        };
        expand(&mut decoder, payload, &mut pending)?;
        // A record may go on in the next compressed one.
        let mut from = 0;
        while let Some((_, whole)) = record(&pending[from..]) {
            from += whole.len();
        }
        out.extend(pending.drain(..from));
    }
    if !pending.is_empty() {
        return Err("a compressed record is cut off".into());
    }
    Ok(out)
}

/// Appends what a piece of the compressed stream holds.
fn expand(decoder: &mut Decoder<'_>, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (mut input, mut room) = (InBuffer::around(payload), vec![0; 256 << 10]);
    loop {
        let mut output = OutBuffer::around(&mut room[..]);
        decoder.run(&mut input, &mut output)?;
        let piece = output.as_slice();
        out.extend_from_slice(piece);
        if input.pos() >= payload.len() && piece.len() < 256 << 10 {
            return Ok(());
        }
    }
}

/// A file of perf with its samples `times` times.
fn inflate(mut file: Vec<u8>, times: u64, out: &mut dyn Write) -> Result<()> {
    if !file.starts_with(b"PERFILE2") || word(&file, 8)? != 104 {
        return Err("no perf.data file".into());
    }
    let (at, size) = (word(&file, 40)? as usize, word(&file, 48)? as usize);
    let data = plain(file.get(at..at + size).ok_or("its data is cut off")?)?;
    let mut samples = Vec::new();
    let (mut place, mut first, mut last) = (0, u64::MAX, 0);
    while let Some((kind, record)) = record(&data[place..]) {
        if kind == SAMPLE {
            let time = word(record, TIME)?;
            (first, last) = (first.min(time), last.max(time));
        }
        if kind == SAMPLE || kind == FINISHED_ROUND {
            samples.push((kind, record.to_vec()));
        }
        place += record.len();
    }
    if last == 0 {
        return Err("it has no samples to write over and over".into());
    }
    let more: usize = samples.iter().map(|(_, record)| record.len()).sum();
    let length = data.len() as u64 + more as u64 * times.saturating_sub(1);
    let features = file[72..104].iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    for feature in 0..features {
        let at = at + size + feature * 16;
        let moved = word(&file, at)? - size as u64 + length;
        file[at..at + 8].copy_from_slice(&moved.to_le_bytes());
    }
    file[48..56].copy_from_slice(&length.to_le_bytes());
    out.write_all(&file[..at])?;
    out.write_all(&data)?;
    for _ in 1..times {
        for (kind, record) in &mut samples {
            if *kind == SAMPLE {
                let time = word(record, TIME)? + (last - first + 1_000);
                record[TIME..TIME + 8].copy_from_slice(&time.to_le_bytes());
            }
            out.write_all(record)?;
        }
    }
    out.write_all(&file[at + size..])?;
    Ok(out.flush()?)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, times, to] = args.as_slice() else {
        return Err("usage: inflate FILE TIMES OUT".into());
    };
    let (file, times) = (fs::read(from)?, times.parse::<u64>()?);
    inflate(file, times, &mut BufWriter::new(File::create(to)?))
        .map_err(|error| format!("{from}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const SHORT: &str = "tests/data/three-vms/host.perf.data";

    /// The records of a trace, whether it is whole, and of how many threads.
    fn read(data: Vec<u8>) -> (u64, Option<String>, u64) {
        let options = Default::default();
        let mut stream = instep_trace::open(Cursor::new(data), "inflated", options).unwrap();
        let (mut batch, mut last) = (Vec::new(), 0);
        while stream.next_batch(&mut batch) {
            last = batch.last().map_or(last, |event| event.time.0);
        }
        let tally = stream.tally();
        assert_eq!((tally.damaged, tally.late), (0, 0), "{tally:?}");
        (tally.records, tally.cut.clone(), last)
    }

    #[test]
    fn compressed_samples_are_written_over_and_over() {
        let short = fs::read(SHORT).unwrap();
        let (records, _, end) = read(short.clone());
        let mut long = Vec::new();
        inflate(short, 5, &mut long).unwrap();
        let (more, cut, later) = read(long);
        assert_eq!((more, cut), (5 * records, None));
        assert!(records > 1000 && later > end, "{records} {end} {later}");
    }

    #[test]
    fn a_file_without_samples_is_refused() {
        let mut empty = fs::read(SHORT).unwrap();
        // Its data ends before it begins.
        empty[48..56].fill(0);
        let error = inflate(empty, 5, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no samples"), "{error}");
        assert!(inflate(b"PERFILE2".to_vec(), 5, &mut Vec::new()).is_err());
    }
}
