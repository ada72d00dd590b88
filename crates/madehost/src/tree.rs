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
    if has_room(&std::fs::read_to_string("/proc/mounts").unwrap_or_default()) {
        tempfile::tempdir_in(MEMORY)
    } else {
        tempfile::tempdir()
    }
}

const MEMORY: &str = "/dev/shm";

/// Whether there is a file system in memory of no less than a gibibyte, or of the usual half of the memory: that of a container has 64
/// MiB. A file takes a page at least.
fn has_room(mounts: &str) -> bool {
    let mut options = mounts.lines().rev().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next() == Some(MEMORY)).then(|| words.nth(1).unwrap_or_default())
    });
    let kib = |options: &str| {
        let size = options.split(',').find_map(|option| option.strip_prefix("size="));
        size.map_or(Some(u64::MAX), |size| size.strip_suffix('k')?.parse().ok())
    };
    options.next().and_then(kib).is_some_and(|kib| kib >= 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::has_room;

    #[test]
    fn memory_is_used_where_it_has_room() {
        let rest = "proc /proc proc rw 0 0\n";
        let mounted = |options: &str| format!("{rest}tmpfs /dev/shm tmpfs {options} 0 0\n");
        assert!(has_room(&mounted("rw,nosuid,nodev")));
        assert!(has_room(&mounted("rw,size=1048576k")));
        assert!(!has_room(&mounted("rw,size=65536k")), "as Docker has it");
        assert!(!has_room(rest));
    }
}
