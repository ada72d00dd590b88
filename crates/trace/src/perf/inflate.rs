//! Compressed records: one zstd stream that goes on from record to record.

use crate::error::Fault;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// A record of at most 64 KiB of compressed zeros could be gigabytes: no further than this from
/// one record. perf flushes its stream per record, of buffers that are far smaller.
const MAX_FROM_ONE: usize = 64 << 20;
const STEP: usize = 256 << 10;

/// The stream.
pub(crate) struct Inflater {
    decoder: Decoder<'static>,
    /// Room for a piece of what comes out.
    buffer: Vec<u8>,
}

impl Inflater {
    /// At its beginning.
    pub(crate) fn new() -> Result<Self, Fault> {
        let decoder = Decoder::new().map_err(|error| Fault::new(format!("zstd: {error}")))?;
        Ok(Inflater { decoder, buffer: vec![0; STEP] })
    }

    /// Feeds one record's payload and hands out what it holds in pieces. `take` says whether to
    /// go on.
    pub(crate) fn feed(
        &mut self,
        payload: &[u8],
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Fault> {
        let mut input = InBuffer::around(payload);
        let mut total = 0;
        loop {
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            self.decoder
                .run(&mut input, &mut output)
                .map_err(|error| Fault::new(format!("a compressed record is damaged: {error}")))?;
            let piece = output.as_slice();
            total += piece.len();
            let full = piece.len() == STEP;
            if !piece.is_empty() && !take(piece) {
                return Ok(());
            }
            if total > MAX_FROM_ONE {
                return Err(Fault::new("a compressed record holds more than 64 MiB"));
            }
            if !full && input.pos() >= payload.len() {
                return Ok(());
            }
        }
    }
}
