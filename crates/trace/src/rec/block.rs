//! The frame of a recording: magic and version, then blocks, each with its kind, lengths and
//! checksum.
//!
//! ```text
//! "IBLK" kind flags 0 0  stored(4) plain(4) crc32(4)  stored bytes
//! ```
//! `kind` is 1 head, 2 events, 3 end; `flags` 1 where the contents are compressed with zstd; `stored` and `plain` are
//! the lengths as stored and unpacked. The checksum (CRC-32 of IEEE) covers everything between the marker and itself,
//! and the stored bytes. It tells damage, not malice.
//!
//! A reader passes over kinds that it does not know. A block holds at most 64 KiB, and the events of at most a second.

use crate::bytes::u32_at;
use crate::error::Fault;
use std::io;

/// What every recording begins with.
pub const MAGIC: &[u8; 8] = b"\x89ISTEP\r\n";
/// The version that is written; readers refuse later ones.
pub const VERSION: u16 = 1;
/// Magic, version, two zero bytes.
pub(super) const FILE_HEAD: usize = 12;
pub(super) const MARKER: &[u8; 4] = b"IBLK";
pub(super) const FRAME: usize = 20;
/// No block is longer, stored or plain; the head of a host with thousands of CPUs takes one.
pub(super) const MAX_BLOCK: usize = 4 << 20;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    Head,
    Events,
    End,
    /// Of a later writer; passed over.
    Other,
}

const COMPRESSED: u8 = 1;

/// A block's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: BlockKind,
    flags: u8,
    pub(super) stored: usize,
    plain: usize,
    sum: u32,
}

/// Magic and version.
pub(super) fn file_head() -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..10].copy_from_slice(&VERSION.to_le_bytes());
    head
}

/// One block as it stands in the file; compressed where that is wanted and shorter.
pub(super) fn pack(kind: BlockKind, plain: &[u8], compress: bool) -> io::Result<Vec<u8>> {
    let packed = if compress { Some(zstd::bulk::compress(plain, 1)?) } else { None };
    let packed = packed.filter(|packed| packed.len() < plain.len());
    let flags = if packed.is_some() { COMPRESSED } else { 0 };
    let stored = packed.as_deref().unwrap_or(plain);
    let length = |bytes: &[u8]| {
        let fits = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_BLOCK);
        fits.ok_or_else(|| io::Error::other("a block of the recording is too long"))
    };
    let mut out = Vec::with_capacity(FRAME + stored.len());
    out.extend(MARKER);
    out.extend([kind.number(), flags, 0, 0]);
    out.extend(length(stored)?.to_le_bytes());
    out.extend(length(plain)?.to_le_bytes());
    out.extend(checksum(&out[4..16], stored).to_le_bytes());
    out.extend(stored);
    Ok(out)
}

fn checksum(frame: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(frame);
    hasher.update(stored);
    hasher.finalize()
}

impl BlockKind {
    fn number(self) -> u8 {
        match self {
            BlockKind::Head => 1,
            BlockKind::Events => 2,
            BlockKind::End => 3,
            BlockKind::Other => 255,
        }
    }

    fn of(number: u8) -> BlockKind {
        match number {
            1 => BlockKind::Head,
            2 => BlockKind::Events,
            3 => BlockKind::End,
            _ => BlockKind::Other,
        }
    }
}

impl Frame {
    /// Reads a frame; `None` when no block begins like this.
    pub(super) fn read(bytes: &[u8]) -> Option<Frame> {
        let bytes = bytes.get(..FRAME).filter(|bytes| bytes.starts_with(MARKER))?;
        let length = |at| u32_at(bytes, at).map(|length| length as usize);
        let (stored, plain) = (length(8)?, length(12)?);
        let sum = u32_at(bytes, 16)?;
        let fits = stored <= MAX_BLOCK && plain <= MAX_BLOCK;
        fits.then_some(Frame { kind: BlockKind::of(bytes[4]), flags: bytes[5], stored, plain, sum })
    }

    /// The contents, checked: `block` is the frame and its stored bytes.
    pub(super) fn contents(&self, block: &[u8]) -> Result<Vec<u8>, Fault> {
        let (frame, stored) = block
            .split_at_checked(FRAME)
            .filter(|(_, stored)| stored.len() == self.stored)
            .ok_or_else(|| Fault::new("a block is cut off"))?;
        if checksum(&frame[4..16], stored) != self.sum {
            return Err(Fault::new("a block's checksum is wrong"));
        }
        let plain = match self.flags {
            0 => stored.to_vec(),
            COMPRESSED => zstd::bulk::decompress(stored, self.plain)
                .map_err(|error| Fault::new(format!("a block cannot be unpacked: {error}")))?,
            flags => return Err(Fault::new(format!("a block has the unknown flags {flags:#x}"))),
        };
        if plain.len() == self.plain {
            Ok(plain)
        } else {
            Err(Fault::new("a block is not as long as it says"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_and_a_changed_bit_is_noticed() {
        for compress in [false, true] {
            let plain = [7; 300];
            let packed = pack(BlockKind::Events, &plain, compress).unwrap();
            let frame = Frame::read(&packed).unwrap();
            assert_eq!(
                (frame.kind, frame.contents(&packed)),
                (BlockKind::Events, Ok(plain.to_vec()))
            );
            for at in 4..packed.len() {
                let mut changed = packed.clone();
                changed[at] ^= 4;
                let read = Frame::read(&changed).map(|frame| frame.contents(&changed));
                assert!(!matches!(read, Some(Ok(_))), "byte {at}");
            }
        }
    }

    #[test]
    fn absurd_lengths_are_no_block() {
        let mut packed = pack(BlockKind::End, b"x", false).unwrap();
        packed[11] = 0x7f;
        assert_eq!(Frame::read(&packed), None);
        assert!(pack(BlockKind::Head, &vec![0; MAX_BLOCK + 1], false).is_err());
    }
}
