//! Sections of version 7: a head of 16 bytes, then the contents, which may be compressed.

use super::chunks::Compression;
use crate::bytes::Cursor;
use crate::error::Fault;
use crate::source::{ReadAt, read_up_to};

/// The head of a section: id, flags, number of its description, size.
const HEAD: u64 = 16;
/// More than any trace-cmd writes in one section but trace data.
const MAX_SECTION: u64 = 256 << 20;

/// Which section or option.
pub(super) mod id {
    pub(in crate::dat) const OPTIONS: u16 = 0;
    pub(in crate::dat) const CPU_STATISTICS: u16 = 2;
    pub(in crate::dat) const BUFFER: u16 = 3;
    pub(in crate::dat) const CLOCK: u16 = 4;
    pub(in crate::dat) const UNAME: u16 = 5;
    pub(in crate::dat) const CPU_COUNT: u16 = 8;
    pub(in crate::dat) const GUEST: u16 = 13;
    pub(in crate::dat) const TSC_TO_NANOS: u16 = 14;
    pub(in crate::dat) const HEADER_INFO: u16 = 16;
    pub(in crate::dat) const EVENT_FORMATS: u16 = 18;
    pub(in crate::dat) const COMMAND_LINES: u16 = 21;
    pub(in crate::dat) const SAVED_TGIDS: u16 = 23;
}

/// A fault of a file that ends before what cannot be done without.
fn cut(source: &dyn ReadAt, what: &str, end: u64) -> Result<Fault, Fault> {
    let instead = ", or record it again and let trace-cmd end by itself or by SIGINT: it writes \
                   the index of events last";
    Ok(Fault::cut(source.size()?, what, end, instead))
}

/// A section's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) id: u16,
    pub(super) is_compressed: bool,
    /// Where its contents begin.
    at: u64,
    size: u64,
}

impl Section {
    /// Reads the head of the section at `offset`.
    pub(super) fn at(source: &dyn ReadAt, offset: u64) -> Result<Section, Fault> {
        let head = read_up_to(source, offset, HEAD)?;
        if (head.len() as u64) < HEAD {
            return Err(cut(source, "a list of what it holds goes", offset.saturating_add(HEAD))?);
        }
        let mut cursor = Cursor::new(&head, "the head of a section");
        let (id, flags) = (cursor.u16()?, cursor.u16()?);
        let (_description, size) = (cursor.u32()?, cursor.u64()?);
        Ok(Section { id, is_compressed: flags & 1 != 0, at: offset.saturating_add(HEAD), size })
    }

    /// Reads the contents of a section of this kind, inflated.
    pub(super) fn contents(
        &self,
        source: &dyn ReadAt,
        expected: u16,
        compression: Compression,
    ) -> Result<Vec<u8>, Fault> {
        if self.id != expected {
            return Err(Fault::new(format!(
                "section {} stands at byte {} where section {expected} should be",
                self.id, self.at
            )));
        }
        if self.size > MAX_SECTION {
            return Err(Fault::new(format!("section {expected} is absurdly large")));
        }
        let data = read_up_to(source, self.at, self.size)?;
        if (data.len() as u64) < self.size {
            let end = self.at.saturating_add(self.size);
            return Err(cut(source, &format!("its section {expected} goes"), end)?);
        }
        if !self.is_compressed {
            return Ok(data);
        }
        let mut cursor = Cursor::new(&data, "a compressed section");
        let (packed, size) = (cursor.u32()? as usize, cursor.u32()?);
        if u64::from(size) > MAX_SECTION {
            return Err(Fault::new(format!("section {expected} is absurdly large")));
        }
        compression.inflate(cursor.take(packed)?, size as usize)
    }
}
