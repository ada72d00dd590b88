//! The root under which /proc and /sys are read: `/`, or a copy of another host's files.
//!
//! Reads are bounded, so that a hostile or damaged copy cannot exhaust memory. Symbolic links
//! of a copy that point to absolute paths would leave it; callers use the relative ones sysfs
//! has.

use crate::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most that is read of any one file, numa_maps of the largest guests included.
pub const MAX_FILE: u64 = 64 << 20;

/// Where a host's /proc and /sys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// This machine.
    #[must_use]
    pub fn live() -> Self {
        Self { path: PathBuf::from("/") }
    }

    /// A copy: `path` holds `proc` and `sys`.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Whether this is the running machine, whose threads system calls can reach.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.path == Path::new("/")
    }

    /// `relative` (such as `proc/stat`) under this root.
    #[must_use]
    pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path.join(relative)
    }

    /// Reads a file as text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// When it cannot be opened or read, or is larger than [`MAX_FILE`].
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, Error> {
        let path = self.join(relative);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
            .map_err(|source| Error::read(&path, source))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(Error::parse(&path, 0, "more than 64MiB", "a file of /proc or /sys"));
        }
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Reads a file that may be absent: `None` when it is not there.
    ///
    /// # Errors
    /// As [`Root::read`], for any other cause than absence.
    pub fn read_opt(&self, relative: impl AsRef<Path>) -> Result<Option<String>, Error> {
        match self.read(relative) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
