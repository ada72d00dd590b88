//! Where a trace's bytes come from: anything that can be read at an offset, so that tests and
//! fuzz targets feed memory and programs feed files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any place.
pub trait ReadAt {
    /// How many there are.
    ///
    /// # Errors
    /// What the system says.
    fn size(&self) -> io::Result<u64>;

    /// Reads some bytes at `offset`; 0 at the end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl<T: AsRef<[u8]>> ReadAt for io::Cursor<T> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.get_ref().as_ref().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let data = self.get_ref().as_ref();
        let rest = usize::try_from(offset).ok().and_then(|offset| data.get(offset..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Reads up to `count` bytes at `offset`: fewer only at the end. Memory is taken for what is
/// there, not for what is asked.
pub(crate) fn read_up_to(source: &dyn ReadAt, offset: u64, count: u64) -> io::Result<Vec<u8>> {
    let there = source.size()?.saturating_sub(offset).min(count);
    let mut data = vec![0; usize::try_from(there).map_err(io::Error::other)?];
    let filled = read_full(source, &mut data, offset)?;
    data.truncate(filled);
    Ok(data)
}

/// Fills the buffer as far as the source goes and says how far that was.
pub(crate) fn read_full(source: &dyn ReadAt, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read_at(&mut buffer[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A part of a source, read from its front to its back.
pub(crate) struct Part<S> {
    source: S,
    at: u64,
    end: u64,
}

impl<S: ReadAt> Part<S> {
    /// The bytes from `at` up to `end`.
    pub(crate) fn new(source: S, at: u64, end: u64) -> Self {
        Part { source, at, end }
    }
}

impl<S: ReadAt> io::Read for Part<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = buffer.len().min(left);
        let count = self.source.read_at(&mut buffer[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
