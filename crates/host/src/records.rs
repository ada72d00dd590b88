//! How records of the kernel's perf buffers follow each other, whatever they hold
//! (include/uapi/linux/perf_event.h, 6.18).
//!
//! They stand in the byte order of the host. A damaged one ends the walk, for nothing tells where the
//! next begins.

pub(crate) const HEADER: usize = 8;
pub(crate) const LOST: u32 = 2;
pub(crate) const SAMPLE: u32 = 9;
pub(crate) const LOST_SAMPLES: u32 = 13;
const MISC_CPUMODE: u16 = 7;
pub(crate) const MISC_USER: u16 = 2;

/// One record, its header read.
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    pub(crate) misc: u16,
    pub(crate) body: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record that `bytes` begin with, and its length.
    fn first(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let kind = u32_at(bytes, 0)?;
        let misc = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let length = usize::from(u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?));
        if length < HEADER || length % 8 != 0 {
            return None;
        }
        Some((Record { kind, misc, body: bytes.get(HEADER..length)? }, length))
    }

    /// Whether it is about user level.
    pub(crate) fn is_of_user(&self) -> bool {
        self.misc & MISC_CPUMODE == MISC_USER
    }
}

/// The header of a record: its type, its `misc` bits and its whole length.
pub(crate) fn header(kind: u32, misc: u16, length: u16) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
    bytes[6..].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// Gives each record to `take`, which tells a damaged one by `None`; the offset of that one.
pub(crate) fn walk(bytes: &[u8], mut take: impl FnMut(&Record<'_>) -> Option<()>) -> Option<usize> {
    let mut at = 0;
    while at < bytes.len() {
        let Some((record, length)) = Record::first(&bytes[at..]) else { return Some(at) };
        if take(&record).is_none() {
            return Some(at);
        }
        at += length;
    }
    None
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
