//! The root under which /proc and /sys are read: `/`, or a copy of another host's files.
//!
//! Reads are bounded, so that a hostile or damaged copy cannot exhaust memory, and never wait: what
//! is no regular file (a FIFO, a device) is not read. Symbolic links of a copy may lead out of it;
//! readers of copies ask `Inside`.

use crate::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
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
        open(&path)
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

/// Opens a regular file for reading without ever waiting for it. All files of procfs and sysfs are
/// regular ones.
///
/// # Errors
/// When it cannot be opened or is something else.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no regular file"))
    }
}

/// Tells whether files of a copy are really in it.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The root without symbolic links, for a copy; `None` for the running host.
    real: Option<PathBuf>,
    /// The directory last checked, and whether it is inside the copy.
    checked: (PathBuf, bool),
}

impl Inside {
    pub(crate) fn new(root: &Root) -> Self {
        let real = if root.is_live() { None } else { root.join("").canonicalize().ok() };
        Self { real, checked: (PathBuf::new(), true) }
    }

    /// Whether `path`, below the root, stays there when links are followed. A missing file does.
    pub(crate) fn holds(&mut self, path: &Path) -> bool {
        let Some(real) = &self.real else { return true };
        let leaves = |path: &Path| path.canonicalize().is_ok_and(|path| !path.starts_with(real));
        let dir = path.parent().unwrap_or(path);
        if self.checked.0 != dir {
            self.checked = (dir.to_owned(), !leaves(dir));
        }
        self.checked.1 && !(path.is_symlink() && leaves(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_fifo_in_place_of_a_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("online");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let (done, wait) = mpsc::channel();
        let root = Root::at(dir.path());
        std::thread::spawn(move || done.send(root.read("online").map_err(|e| e.to_string())));
        let read = wait.recv_timeout(Duration::from_secs(20)).expect("reading does not wait");
        assert!(read.unwrap_err().contains("online: it is no regular file"));
    }

    #[test]
    fn a_device_in_place_of_a_file_is_refused() {
        assert!(Root::live().read("dev/zero").unwrap_err().to_string().contains("regular"));
        assert!(Root::live().read("proc/self/stat").is_ok());
    }
}
