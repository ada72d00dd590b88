//! Makes a long perf.data of a short one: `inflate FILE TIMES OUT` writes its samples over and
//! over, each time later. For measuring speed; understands files whose samples begin with
//! IDENTIFIER, IP, TID, TIME, as `perf sched record` and `perf record -e` of several tracepoints
//! write them.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};

/// Where the time stands in a sample record.
const TIME: usize = 8 + 24;
const SAMPLE: u32 = 9;
const FINISHED_ROUND: u32 = 68;

fn word(data: &[u8], at: usize) -> Result<u64, String> {
    let bytes = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or(format!("cut off at byte {at}"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, times, to] = args.as_slice() else {
        return Err("usage: inflate FILE TIMES OUT".into());
    };
    let (mut file, times) = (fs::read(from)?, times.parse::<u64>()?);
    if !file.starts_with(b"PERFILE2") || word(&file, 8)? != 104 {
        return Err("no perf.data file".into());
    }
    let (at, size) = (word(&file, 40)? as usize, word(&file, 48)? as usize);
    let data = file[at..at + size].to_vec();
    let mut samples = Vec::new();
    let (mut place, mut first, mut last) = (0, u64::MAX, 0);
    while place < data.len() {
        let kind = word(&data, place)? as u32;
        let length = (word(&data, place)? >> 48) as usize;
        let record = data.get(place..place + length.max(8)).ok_or("a record is cut off")?;
        if kind == SAMPLE {
            let time = word(record, TIME)?;
            (first, last) = (first.min(time), last.max(time));
        }
        if kind == SAMPLE || kind == FINISHED_ROUND {
            samples.push((kind, record.to_vec()));
        }
        place += length.max(8);
    }
    let more: usize = samples.iter().map(|(_, record)| record.len()).sum();
    let added = more as u64 * (times - 1);
    let features = file[72..104].iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    for feature in 0..features {
        let at = at + size + feature * 16;
        let moved = word(&file, at)? + added;
        file[at..at + 8].copy_from_slice(&moved.to_le_bytes());
    }
    file[48..56].copy_from_slice(&(size as u64 + added).to_le_bytes());
    let mut out = BufWriter::new(File::create(to)?);
    out.write_all(&file[..at + size])?;
    for copy in 1..times {
        let shift = copy * (last - first + 1_000);
        for (kind, record) in &mut samples {
            if *kind == SAMPLE {
                let time =
                    word(record, TIME)? + if copy == 1 { shift } else { last - first + 1_000 };
                record[TIME..TIME + 8].copy_from_slice(&time.to_le_bytes());
            }
            out.write_all(record)?;
        }
    }
    out.write_all(&file[at + size..])?;
    Ok(())
}
