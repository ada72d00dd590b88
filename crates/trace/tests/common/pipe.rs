//! The records of a perf pipe, to cut it between two or to mix them up.

use std::ops::Range;

/// The end of a round.
pub(crate) const ROUND: u32 = 68;
/// Tracepoints' formats, which are followed by as many bytes as they say.
const TRACING_DATA: u32 = 66;
const HEAD: usize = 16;

/// A record: its type, and where it lies with what follows it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kind: u32,
    pub(crate) at: Range<usize>,
}

/// Every record of a whole pipe.
pub(crate) fn records(pipe: &[u8]) -> impl Iterator<Item = Record> + '_ {
    let word = |at: usize| u32::from_le_bytes(pipe[at..at + 4].try_into().expect("four bytes"));
    let mut at = HEAD;
    std::iter::from_fn(move || {
        let begin = (at < pipe.len()).then_some(at)?;
        let kind = word(begin);
        at += (word(begin + 4) >> 16) as usize;
        if kind == TRACING_DATA {
            at += word(begin + 8) as usize;
        }
        Some(Record { kind, at: begin..at })
    })
}
