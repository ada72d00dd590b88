//! Compressed parts of a trace.dat: zstd or zlib, with the size that they must have.

use crate::error::Fault;
use std::io::Read;

/// How the parts are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Zstd,
    Zlib,
}

impl Compression {
    /// By the name in the head of the file.
    pub(super) fn named(name: &str) -> Result<Self, Fault> {
        match name {
            "none" | "" => Ok(Compression::None),
            "zstd" => Ok(Compression::Zstd),
            "zlib" => Ok(Compression::Zlib),
            other => Err(Fault::new(format!("its compression `{other}` is unknown"))),
        }
    }

    /// Inflates `data` to exactly `size` bytes.
    pub(super) fn inflate(self, data: &[u8], size: usize) -> Result<Vec<u8>, Fault> {
        let wrong = |error: std::io::Error| {
            Fault::new(format!("a compressed part of {} bytes is damaged: {error}", data.len()))
        };
        // Memory grows with what comes out, not with what a hostile head promises.
        let mut out = Vec::with_capacity(size.min(1 << 20));
        let limit = size as u64 + 1;
        match self {
            Compression::None => return Err(Fault::new("a part is compressed, the file is not")),
            Compression::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(data).map_err(wrong)?;
                decoder.take(limit).read_to_end(&mut out).map_err(wrong)?;
            }
            Compression::Zlib => {
                let decoder = flate2::read::ZlibDecoder::new(data);
                decoder.take(limit).read_to_end(&mut out).map_err(wrong)?;
            }
        }
        if out.len() != size {
            return Err(Fault::new(format!(
                "a compressed part holds {} bytes where {size} are promised",
                out.len()
            )));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_must_hold_what_it_promises() {
        let packed = zstd::bulk::compress(&[7; 1000], 1).unwrap();
        assert_eq!(Compression::Zstd.inflate(&packed, 1000).unwrap(), [7; 1000]);
        for wrong in [0, 999, 1001] {
            assert!(Compression::Zstd.inflate(&packed, wrong).is_err());
        }
        assert!(Compression::Zlib.inflate(&packed, 1000).is_err());
    }
}
