//! The head of perf.data in a file: where attributes, records and features lie.

use super::MAGIC;
use super::features::TRACING_DATA;
use super::records::Records;
use crate::bytes::Cursor;
use crate::error::Fault;
use crate::source::{ReadAt, read_up_to};

/// The head of a file, of a pipe its magic and this size.
pub(super) const FILE_HEAD: u64 = 104;
/// Everything but a file: magic and its own size, 16.
pub(super) const PIPE_HEAD: u64 = 16;
const INSTEAD: &str = "; where files may be cut, record through a pipe (perf record -o - ... > FILE), \
    which is read as far as it goes";
/// More than any perf writes for attributes or for a feature; tracepoint formats are the largest
/// and take some MB.
const MAX_PART: u64 = 64 << 20;

/// A range of bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) at: u64,
    pub(super) size: u64,
}

/// The head of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHead {
    attr_size: u64,
    attrs: Range,
    pub(super) data: Range,
    features: [u64; 4],
}

fn range(cursor: &mut Cursor<'_>) -> Result<Range, Fault> {
    Ok(Range { at: cursor.u64()?, size: cursor.u64()? })
}

impl FileHead {
    /// Reads the head of a file.
    pub(super) fn parse(data: &[u8]) -> Result<FileHead, Fault> {
        let mut cursor = Cursor::new(data, "its head");
        if cursor.take(8)? != MAGIC {
            return Err(Fault::new("no perf.data"));
        }
        let (_size, attr_size) = (cursor.u64()?, cursor.u64()?);
        let (attrs, data, _event_types) =
            (range(&mut cursor)?, range(&mut cursor)?, range(&mut cursor)?);
        let mut features = [0; 4];
        for word in &mut features {
            *word = cursor.u64()?;
        }
        Ok(FileHead { attr_size, attrs, data, features })
    }

    /// Reads the attributes of the events and the features.
    pub(super) fn read(&self, source: &dyn ReadAt, records: &mut Records) -> Result<(), Fault> {
        self.read_attrs(source, records)?;
        self.read_features(source, records)
    }

    fn read_attrs(&self, source: &dyn ReadAt, records: &mut Records) -> Result<(), Fault> {
        let size = self.attr_size;
        if !(16 + 48..=4096).contains(&size) || self.attrs.size > MAX_PART {
            return Err(Fault::new(format!("the size {size} of its attributes cannot be")));
        }
        let attrs = read_up_to(source, self.attrs.at, self.attrs.size)?;
        if attrs.is_empty() {
            return Err(Fault::new("it describes no event, or is cut off before"));
        }
        for attr in attrs.chunks_exact(size as usize) {
            let (attr, ids) = attr.split_at(size as usize - 16);
            let ids = range(&mut Cursor::new(ids, "the numbers of an event's counters"))?;
            if ids.size > MAX_PART {
                return Err(Fault::new("an event has an absurd number of counters"));
            }
            let ids = read_up_to(source, ids.at, ids.size)?;
            let (ids, _) = ids.as_chunks::<8>();
            records.add_attr(attr, ids.iter().map(|id| u64::from_le_bytes(*id)))?;
        }
        Ok(())
    }

    /// The list of where features lie stands behind the records, in order of their bits.
    fn read_features(&self, source: &dyn ReadAt, records: &mut Records) -> Result<(), Fault> {
        let bits: Vec<u32> = (0..256)
            .filter(|bit| self.features[*bit as usize / 64] & (1 << (bit % 64)) != 0)
            .collect();
        let at = self.data.at.saturating_add(self.data.size);
        let cut = |end: u64| {
            let what = "the formats of its tracepoints follow its records, in the part up";
            Ok::<_, Fault>(Fault::cut(source.size()?, what, end, INSTEAD))
        };
        let list = read_up_to(source, at, bits.len() as u64 * 16)?;
        if list.len() < bits.len() * 16 {
            return Err(cut(at.saturating_add(bits.len() as u64 * 16))?);
        }
        let mut cursor = Cursor::new(&list, "the list of features behind the records");
        for bit in bits {
            let Range { at, size } = range(&mut cursor)?;
            if size > MAX_PART {
                return Err(Fault::new(format!("feature {bit} of its header is absurdly large")));
            }
            let data = read_up_to(source, at, size)?;
            if bit == TRACING_DATA && (data.len() as u64) < size {
                return Err(cut(at.saturating_add(size))?);
            }
            records.features.add(bit, &data)?;
        }
        Ok(())
    }
}
