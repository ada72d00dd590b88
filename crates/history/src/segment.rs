//! One segment: its name, and the moments that are read of it.
//!
//! The lines are one zstd stream that is flushed after each. After `kill -9` the stream has no end, and that is fine. What is
//! read of it ends at the last whole line. A block of the stream or a line that is not whole is torn: the reader reports it.

use crate::{Error, MAX_LINE, MAX_PACKED, MAX_PLAIN, at};
use std::fs::{self, File};
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

/// How a line begins; the time follows, in milliseconds since 1970.
const BEGIN: &str = "{\"schema\":\"instep.moment/1\",\"at_ms\":";
/// How the name of a segment ends.
const END: &str = ".jsonl.zst";
/// How a zstd stream begins.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The largest window of a stream that is read, as a power of two: 8 MiB.
const MOST_WINDOW: u32 = 23;
/// What the decoder asks for where a block ends: the head of the next one.
const AT_A_BLOCK: usize = 3;
const STEP: usize = 256 << 10;

/// The beginning of a line of that time, up to the comma after which its other members stand.
pub fn opening(at_ms: u64) -> String {
    format!("{BEGIN}{at_ms},")
}

/// The name of a segment: its number and the time of its first moment, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) number: u64,
    pub(crate) at_ms: u64,
}

impl Name {
    pub(crate) fn file(self) -> String {
        format!("{:08}-{}{END}", self.number, self.at_ms)
    }

    fn parse(file: &str) -> Option<Self> {
        let (number, at_ms) = file.strip_suffix(END)?.split_once('-')?;
        let name = Self { number: number.parse().ok()?, at_ms: at_ms.parse().ok()? };
        (name.file() == file).then_some(name)
    }

    /// The segments of a directory with their bytes, in their order. What has another name is none.
    pub(crate) fn list(dir: &Path) -> Result<Vec<(Self, u64)>, Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(at(dir))? {
            let entry = entry.map_err(at(dir))?;
            let name = entry.file_name().to_str().and_then(Self::parse);
            // One that the writer removed meanwhile is none.
            let Some((name, meta)) = name.zip(entry.metadata().ok()) else { continue };
            if meta.is_file() {
                found.push((name, meta.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// A host at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment<'a> {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The line, without its end. Its members besides the time may be anything.
    pub line: &'a [u8],
}

/// The moments of a segment.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    plain: Vec<u8>,
    moments: Vec<(u64, Range<usize>)>,
    torn: Option<&'static str>,
}

impl Segment {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is too large to be a segment.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(at(path))?;
        let mut bytes = Vec::new();
        file.take(MAX_PACKED + 1).read_to_end(&mut bytes).map_err(at(path))?;
        if bytes.len() as u64 > MAX_PACKED {
            let why =
                format!("more than {} MiB: this is no segment of a history", MAX_PACKED >> 20);
            return Err(at(path)(std::io::Error::other(why)));
        }
        Ok(Self::parse(&bytes))
    }

    /// Reads the bytes of a segment, or JSON lines that are not compressed.
    pub fn parse(bytes: &[u8]) -> Self {
        let (plain, torn) =
            if bytes.starts_with(&MAGIC) { unpack(bytes) } else { cut_plain(bytes.to_vec()) };
        let mut segment = Self { plain: Vec::new(), moments: Vec::new(), torn };
        let mut begin = 0;
        while let Some(length) = plain[begin..].iter().position(|byte| *byte == b'\n') {
            let range = begin..begin + length;
            match time_of(&plain[range.clone()]) {
                Some(at_ms) => segment.moments.push((at_ms, range)),
                None => segment.torn = Some("a line in it is no moment"),
            }
            begin += length + 1;
        }
        if begin < plain.len() {
            segment.torn = Some("its last line is not whole");
        }
        segment.plain = plain;
        segment
    }

    /// How many moments it has.
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// The moment at this place.
    pub fn moment(&self, place: usize) -> Option<Moment<'_>> {
        let (at_ms, range) = self.moments.get(place)?;
        Some(Moment { at_ms: *at_ms, line: &self.plain[range.clone()] })
    }

    /// The place of the last moment that is not later than this.
    pub(crate) fn last_until(&self, at_ms: u64) -> Option<usize> {
        self.moments.iter().rposition(|(at, _)| *at <= at_ms)
    }

    /// What of it is left out, and why; `None` where all was read.
    pub fn torn(&self) -> Option<&'static str> {
        self.torn
    }
}

fn time_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(BEGIN.as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // JSON has no numbers with zeros in front.
    let digits = if rest.starts_with(b"0") { 1 } else { digits };
    let at = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    (rest.get(digits) == Some(&b',') && line.ends_with(b"}") && line.len() <= MAX_LINE)
        .then_some(at)
}

/// No more than a segment may hold.
fn cut_plain(mut plain: Vec<u8>) -> (Vec<u8>, Option<&'static str>) {
    if plain.len() <= MAX_PLAIN {
        return (plain, None);
    }
    plain.truncate(MAX_PLAIN);
    (plain, Some("it has more lines than a segment may have"))
}

/// What the stream holds as far as it is sound, and what is wrong with the rest.
fn unpack(bytes: &[u8]) -> (Vec<u8>, Option<&'static str>) {
    const DAMAGED: Option<&str> = Some("its compressed stream is damaged");
    let mut plain = Vec::new();
    let Ok(mut decoder) = Decoder::new() else { return (plain, Some("there is no memory for it")) };
    if decoder.set_parameter(DParameter::WindowLogMax(MOST_WINDOW)).is_err() {
        return (plain, DAMAGED);
    }
    let (mut input, mut buffer) = (InBuffer::around(bytes), vec![0; STEP]);
    loop {
        let mut output = OutBuffer::around(&mut buffer[..]);
        let Ok(wanted) = decoder.run(&mut input, &mut output) else { return (plain, DAMAGED) };
        let piece = output.as_slice();
        let is_full = piece.len() == STEP;
        plain.extend_from_slice(piece);
        if plain.len() > MAX_PLAIN {
            return cut_plain(plain);
        }
        if !is_full && input.pos() >= bytes.len() {
            // 0: the stream ended as it should.
            let is_whole = [0, AT_A_BLOCK].contains(&wanted);
            return (plain, if is_whole { None } else { Some("its end is torn") });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at_ms: u64) -> String {
        format!("{}\"x\":{at_ms}}}\n", opening(at_ms))
    }

    fn times(segment: &Segment) -> Vec<u64> {
        segment.moments.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name { number: 7, at_ms: 1_764_161_234_567 };
        assert_eq!(name.file(), "00000007-1764161234567.jsonl.zst");
        assert_eq!(Name::parse(&name.file()), Some(name));
        let large = Name { number: u64::MAX, at_ms: 0 };
        assert_eq!(Name::parse(&large.file()), Some(large));
        for bad in ["7-1.jsonl.zst", "00000007-1.jsonl", "day.json", "00000007-01.jsonl.zst"] {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn lines_that_are_no_moments_are_left_out_and_reported() {
        let text = format!("{}no moment\n{}", line(1), line(2));
        let segment = Segment::parse(text.as_bytes());
        assert_eq!(
            (times(&segment), segment.torn()),
            (vec![1, 2], Some("a line in it is no moment"))
        );
        assert_eq!(segment.moment(1).unwrap().line, line(2).trim_end().as_bytes());
        assert_eq!(
            (segment.moment(2), segment.last_until(0), segment.last_until(9)),
            (None, None, Some(1))
        );
        let segment = Segment::parse(&text.as_bytes()[..text.len() - 1]);
        assert_eq!(
            (times(&segment), segment.torn()),
            (vec![1], Some("its last line is not whole"))
        );
    }

    #[test]
    fn stream_of_zeros_without_end_is_cut() {
        let bomb = zstd::bulk::compress(&vec![b'\n'; MAX_PLAIN + (1 << 20)], 3).unwrap();
        assert!(bomb.len() < 100_000);
        let segment = Segment::parse(&bomb);
        assert_eq!((segment.plain.len(), segment.len()), (MAX_PLAIN, 0));
        assert!(segment.torn().is_some());
    }
}
