//! Writes files, links and directories under one directory, as copies of /proc and /sys.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A directory being filled.
pub(crate) struct Tree {
    dir: PathBuf,
}

impl Tree {
    /// The directory `dir`, made with its parents.
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// A directory in it, made with its parents.
    pub(crate) fn sub(&self, name: &str) -> io::Result<Self> {
        Self::new(&self.dir.join(name))
    }

    /// A directory in it, whose parent is there.
    pub(crate) fn child(&self, name: &str) -> io::Result<Self> {
        let dir = self.dir.join(name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { dir }),
        }
    }

    /// A file with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.dir.join(name), bytes)
    }

    /// A file with this text and an end of line, as most of sysfs is.
    pub(crate) fn line(&self, name: &str, text: impl std::fmt::Display) -> io::Result<()> {
        self.file(name, format!("{text}\n"))
    }

    /// A symbolic link; one that is there is kept.
    pub(crate) fn link(&self, name: &str, target: &str) -> io::Result<()> {
        match symlink(target, self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }
}

/// A directory for one test, which goes with it: in memory where there is a file system in memory, as some disks take minutes for
/// the thousands of small files of a made host. No program can be started from it on every machine.
///
/// # Errors
/// It cannot be made.
pub fn scratch_dir() -> io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}
