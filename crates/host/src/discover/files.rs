//! Bounded reads of many small files through one reused buffer.
//!
//! Opening never waits, not even on a FIFO that a hostile copy holds in place of a file, and never
//! leaves a copy through a symbolic link: a line of a file of this machine could end up in a
//! warning.

use crate::root::{Inside, Root};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Reads files into its buffer.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    inside: Inside,
    /// The first file that was not read because it is outside the copy.
    outside: Option<PathBuf>,
    /// The first `schedstat` that could not be understood, and how many there were.
    damaged: Option<(PathBuf, usize)>,
}

impl Reader {
    /// A reader of the files of `root`.
    pub(super) fn new(root: &Root) -> Self {
        Self { inside: Inside::new(root), ..Self::default() }
    }

    /// Opens a file of the host for reading.
    pub(super) fn open(&mut self, path: &Path) -> io::Result<File> {
        self.inside.open(path).inspect_err(|error| {
            if Inside::is_outside(error) {
                self.outside.get_or_insert_with(|| path.to_owned());
            }
        })
    }

    /// A folder counts by being there.
    pub(super) fn keep_dir(&self, path: &Path) {
        if let Some(copies) = self.inside.copies() {
            copies.dir(path);
        }
    }

    /// A link of a process counts by where it leads.
    pub(super) fn keep_link(&self, path: &Path, target: &Path) {
        if let Some(copies) = self.inside.copies() {
            copies.link(path, target);
        }
    }

    /// Passes on what came of a folder or a link; that it was refused is noted.
    pub(super) fn noted<T>(&self, path: &Path, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if let Some(copies) = self.inside.copies() {
                copies.note_error(path, error);
            }
        })
    }

    /// Notes a `schedstat` that could not be understood.
    pub(super) fn note_damaged(&mut self, path: PathBuf) {
        self.damaged.get_or_insert((path, 0)).1 += 1;
    }

    /// What was not read or not understood since this was last asked, one sentence each.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        let outside = self.outside.take().map(|path| {
            format!(
                "{} is a link that leaves the copy; nor are others like it read",
                path.display()
            )
        });
        let damaged = self.damaged.take().map(|(path, count)| {
            format!(
                "{}: three numbers expected; steal is not known, and the load is by stat ({count} such files)",
                path.display()
            )
        });
        outside.into_iter().chain(damaged).collect()
    }

    /// The first `limit` bytes of the file.
    pub(super) fn read(&mut self, path: &Path, limit: usize) -> io::Result<&[u8]> {
        let mut file = self.open(path)?;
        let mut filled = 0;
        if self.buffer.len() < 4096 {
            self.buffer.resize(4096, 0);
        }
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(filled * 2, 0);
            }
            let end = self.buffer.len().min(limit);
            if filled >= end {
                break;
            }
            match file.read(&mut self.buffer[filled..end]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[..filled])
    }

    /// The first 4 kB of a file that the kernel gives in one read (`stat`, `schedstat`, `cgroup`
    /// and others made by single_open(), fs/seq_file.c): saves asking for its end, a fifth of
    /// the time of a scan. A regular file of a copy is read the same way.
    pub(super) fn read_short(&mut self, path: &Path) -> io::Result<&[u8]> {
        let mut file = self.open(path)?;
        if self.buffer.len() < 4096 {
            self.buffer.resize(4096, 0);
        }
        loop {
            match file.read(&mut self.buffer[..4096]) {
                Ok(count) => return Ok(&self.buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// As [`Reader::read`], as text without surrounding white space; `None` for any failure.
    pub(super) fn text(&mut self, path: &Path, limit: usize) -> Option<String> {
        let bytes = self.read(path, limit).ok()?;
        Some(String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
    }
}

/// The names in a directory that are numbers, ascending.
pub(super) fn numbered(path: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let Ok(entry) = entry else { break };
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
