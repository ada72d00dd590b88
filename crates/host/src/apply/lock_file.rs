//! A lock that is a file: `flock` on it, so that the kernel releases it whatever ends the process.
//!
//! Every process that can open the file can hold the lock, so the file lies in a folder that only its owner may
//! enter. The process id inside is only for messages.

use crate::error::Error;
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// A lock that is held until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    file: File,
    /// Whether the file is removed when the lock is released.
    is_temporary: bool,
}

impl LockFile {
    /// Takes the lock at `path`, whose folder is there. `failed` makes an error of what the
    /// system refuses.
    ///
    /// # Errors
    /// Another process holds it ([`Error::Taken`]); the file cannot be opened or is a link.
    pub(crate) fn take(
        path: &Path,
        failed: impl Fn(io::Error) -> Error + Copy,
    ) -> Result<Self, Error> {
        Self::take_opened(path, instep_state::open_or_make, failed)
    }

    fn take_opened(
        path: &Path,
        open: impl Fn(&Path) -> io::Result<File>,
        failed: impl Fn(io::Error) -> Error + Copy,
    ) -> Result<Self, Error> {
        let mut attempt = 0;
        loop {
            let mut file = open(path).map_err(failed)?;
            match file.try_lock() {
                // It may have been removed since it was opened: then this is no lock.
                Ok(()) if is_at(&file, path) => {
                    // The lock holds on a full disk, too; messages then lack the process.
                    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                    return Ok(Self { path: path.to_owned(), file, is_temporary: false });
                }
                // Or a process that only asks has it for an instant, see `holder_of`.
                Ok(()) | Err(TryLockError::WouldBlock) if attempt < ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(PAUSE);
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {
                    return Err(Error::Taken { pid: pid_in(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
    }

    /// The same lock, whose file is removed when it is released.
    pub(crate) fn temporary(mut self) -> Self {
        self.is_temporary = true;
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is removed when the lock is released.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// Whether the file that is locked is still the one at its path: a new one would be another lock.
    pub(crate) fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// The process that holds the lock at `path`, 0 where the file does not tell; `None` when nobody
    /// does.
    ///
    /// # Errors
    /// The file is there and cannot be opened.
    pub(crate) fn holder_of(path: &Path) -> Result<Option<u32>, Error> {
        let mut file = match instep_state::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::read(path, source)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(pid_in(&mut file).unwrap_or(0))),
            Err(TryLockError::Error(source)) => Err(Error::read(path, source)),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_temporary && self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let there = fs::symlink_metadata(path).map(id).ok();
    there.is_some() && there == file.metadata().map(id).ok()
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path) -> Result<LockFile, Error> {
        LockFile::take(path, |source| Error::system("cannot lock", source))
    }

    #[test]
    fn second_holder_gets_the_process_of_the_first() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(LockFile::holder_of(&path).unwrap(), None);
        let first = take(&path).unwrap();
        let pid = std::process::id();
        assert!(matches!(take(&path), Err(Error::Taken { pid: Some(of), .. }) if of == pid));
        assert_eq!(LockFile::holder_of(&path).unwrap(), Some(pid));
        drop(first);
        assert!(path.exists());
        drop(take(&path).unwrap().temporary());
        assert!(!path.exists());
    }

    #[test]
    fn lock_holds_where_the_process_cannot_be_written_down() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return instep_madehost::skip::note("there is no /dev/full");
        }
        let take = || {
            let open = |path: &Path| File::options().read(true).write(true).open(path);
            LockFile::take_opened(full, open, |source| Error::system("cannot lock", source))
        };
        let first = take().unwrap();
        assert!(matches!(take(), Err(Error::Taken { pid: None })));
        drop(first);
    }

    #[test]
    fn removed_lock_file_is_noticed() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let path = dir.path().join("lock");
        let first = take(&path).unwrap();
        assert!(first.is_in_place());
        fs::remove_file(&path).unwrap();
        assert!(!first.is_in_place());
        let _second = take(&path).unwrap().temporary();
        drop(first.temporary());
        assert!(path.exists(), "what is not its own is not removed");
    }

    #[test]
    fn link_in_place_of_the_lock_file_is_refused() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(take(&path).is_err());
    }
}
