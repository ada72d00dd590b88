//! Writes a recording: a head, blocks of events as they fill, an end.

use super::block::{self, BlockKind};
use super::encode::Encoder;
use super::head::{End, Head};
use crate::event::Event;
use std::io::{self, Write};

/// A block is written when it is as long: a damaged one costs no more, and compression gains
/// little from longer ones.
const FULL: usize = 64 << 10;

/// A recording with a whole frame around one block of events that says `contents`, whatever that is.
/// For fuzzing, which does not get past a checksum by itself.
pub fn framed(contents: &[u8]) -> Option<Vec<u8>> {
    let head = serde_json::to_vec(&Head::default()).ok()?;
    let end = serde_json::to_vec(&End::default()).ok()?;
    let mut out = block::file_head().to_vec();
    for (kind, plain) in
        [(BlockKind::Head, &head[..]), (BlockKind::Events, contents), (BlockKind::End, &end)]
    {
        out.extend(block::pack(kind, plain, false).ok()?);
    }
    Some(out)
}

/// A recording in the making. Dropped without [`Writer::finish`] it is cut.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    encoder: Encoder,
    compress: bool,
    written: u64,
    records: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the head.
    ///
    /// # Errors
    /// What writing says; a head longer than a block.
    pub fn begin(mut out: W, head: &Head, compress: bool) -> io::Result<Self> {
        let file = block::file_head();
        let head = block::pack(BlockKind::Head, &serde_json::to_vec(head)?, compress)?;
        out.write_all(&file)?;
        out.write_all(&head)?;
        let written = (file.len() + head.len()) as u64;
        Ok(Writer { out, encoder: Encoder::default(), compress, written, records: 0 })
    }

    /// Appends an event. Those of one CPU must come in order; those of several may be mixed up
    /// within two rounds.
    ///
    /// # Errors
    /// What writing says.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.encoder.event(event);
        if self.encoder.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Ends a round: no later event is older than the latest of the round before this one.
    pub fn round(&mut self) {
        if self.encoder.records > 0 {
            self.encoder.round();
        }
    }

    /// Writes what was appended, full block or not.
    ///
    /// # Errors
    /// What writing says.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.encoder.records == 0 {
            return Ok(());
        }
        self.records += self.encoder.records;
        let block = block::pack(BlockKind::Events, &self.encoder.take(), self.compress)?;
        self.out.write_all(&block)?;
        self.out.flush()?;
        self.written += block.len() as u64;
        Ok(())
    }

    /// Bytes written, those of the block in the making included as they stand.
    pub fn size(&self) -> u64 {
        self.written + self.encoder.len() as u64
    }

    /// Events appended so far, marks of rounds included.
    pub fn records(&self) -> u64 {
        self.records + self.encoder.records
    }

    /// Writes what is left and the end; `records` of the end is filled in here.
    ///
    /// # Errors
    /// What writing says.
    pub fn finish(mut self, end: &End) -> io::Result<W> {
        self.flush()?;
        let end = End { records: self.records, ..end.clone() };
        self.out.write_all(&block::pack(
            BlockKind::End,
            &serde_json::to_vec(&end)?,
            self.compress,
        )?)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
