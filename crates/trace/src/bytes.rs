//! Little-endian numbers and strings out of untrusted bytes: every access is checked.

use crate::error::Fault;

/// A place in a slice that is read from front to back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    /// What is being read, for messages.
    what: &'static str,
}

impl<'a> Cursor<'a> {
    /// At the start of `data`, which is `what`.
    pub(crate) fn new(data: &'a [u8], what: &'static str) -> Self {
        Cursor { data, at: 0, what }
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let part = self.at.checked_add(count).and_then(|end| self.data.get(self.at..end));
        let part = part.ok_or_else(|| {
            Fault::new(format!(
                "{} is cut off: {count} bytes wanted at byte {}, {} are there",
                self.what,
                self.at,
                self.data.len().saturating_sub(self.at)
            ))
        })?;
        self.at += count;
        Ok(part)
    }

    /// The next number of two bytes.
    pub(crate) fn u16(&mut self) -> Result<u16, Fault> {
        self.take(2).map(|bytes| u16_at(bytes, 0).unwrap_or(0))
    }

    /// The next number of four bytes.
    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.take(4).map(|bytes| u32_at(bytes, 0).unwrap_or(0))
    }

    /// The next number of eight bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.take(8).map(|bytes| u64_at(bytes, 0).unwrap_or(0))
    }

    /// A count or size of eight bytes that must fit what is left.
    pub(crate) fn size(&mut self) -> Result<usize, Fault> {
        let size = self.u64()?;
        let left = self.data.len() - self.at;
        usize::try_from(size).ok().filter(|size| *size <= left).ok_or_else(|| {
            Fault::new(format!(
                "{} is cut off: a part of {size} bytes at byte {}, {left} are there",
                self.what, self.at
            ))
        })
    }

    /// The text up to the next zero byte, which is passed, too.
    pub(crate) fn string(&mut self) -> Result<String, Fault> {
        let rest = &self.data[self.at..];
        let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| {
            Fault::new(format!("{} is cut off in a name at byte {}", self.what, self.at))
        })?;
        self.at += end + 1;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

/// The number at `at`, if it lies inside.
#[inline]
pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The number at `at`, if it lies inside.
#[inline]
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The number at `at`, if it lies inside.
#[inline]
pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The text of a fixed field: up to the first zero byte.
pub(crate) fn text(data: &[u8]) -> String {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_beyond_the_end_is_a_fault() {
        let mut cursor = Cursor::new(&[9, 0, 0, 0, 0, 0, 0, 0, 1], "the header");
        let fault = cursor.size().unwrap_err();
        assert_eq!(fault.0, "the header is cut off: a part of 9 bytes at byte 8, 1 are there");
    }

    #[test]
    fn numbers_at_the_edge_are_none() {
        assert_eq!(u32_at(&[1, 2, 3], 0), None);
        assert_eq!(u64_at(&[0; 8], usize::MAX), None);
        assert_eq!(u16_at(&[0, 1, 2], 1), Some(0x0201));
    }
}
