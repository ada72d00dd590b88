//! The root under which /proc and /sys are read: `/`, or a copy of another host's files.
//!
//! Reads are bounded, so that a hostile or damaged copy cannot exhaust memory, and never wait: what
//! is no regular file (a FIFO, a device) is not read. Symbolic links of a copy may lead out of it;
//! readers of copies ask `Inside`.

use crate::collect::Copies;
use crate::error::Error;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The most that is read of any one file, numa_maps of the largest guests included.
pub const MAX_FILE: u64 = 64 << 20;

/// Where a host's /proc and /sys are.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    /// Where what is read is kept, if it is to be.
    copies: Option<Copies>,
}

impl Root {
    /// This machine.
    pub fn live() -> Self {
        Self::at("/")
    }

    /// A copy: `path` holds `proc` and `sys`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), copies: None }
    }

    /// The same host, read as a copy of it would be, with what is read kept in `copies`.
    pub(crate) fn copied_into(&self, copies: &Copies) -> Self {
        Self { copies: Some(copies.clone()), ..self.clone() }
    }

    /// Whether this is the running machine, whose threads system calls can reach, and is read as such.
    pub fn is_live(&self) -> bool {
        self.path == Path::new("/") && self.copies.is_none()
    }

    /// `relative` (such as `proc/stat`) under this root.
    pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path.join(relative)
    }

    /// Reads a file as text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// When it cannot be opened or read, or is larger than [`MAX_FILE`].
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, Error> {
        let path = self.join(relative);
        text(open(&path), &path)
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

/// What an opened file says, bytes that are not UTF-8 replaced; `path` is named in errors.
///
/// # Errors
/// When it could not be opened, cannot be read, or is larger than [`MAX_FILE`].
pub(crate) fn text(opened: io::Result<File>, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    opened
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|source| Error::read(path, source))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::parse(path, 0, "more than 64MiB", "a file of /proc or /sys"));
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// How files are opened: never waiting, never as a terminal of ours.
const FLAGS: i32 = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;

/// Opens a regular file for reading without ever waiting for it. All files of procfs and sysfs are
/// regular ones.
///
/// # Errors
/// When it cannot be opened or is something else.
fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no regular file"))
    }
}

/// Opens files of a host, of a copy only those that are really in it.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// `None` for the running host; why no file of it is opened for a copy that cannot be found.
    copy: Option<io::Result<Copy>>,
    /// Where what is opened is kept, if it is to be.
    copies: Option<Copies>,
}

#[derive(Debug)]
struct Copy {
    /// The root as it was named, and without symbolic links.
    named: PathBuf,
    real: PathBuf,
    /// The root, to open files below; `None` when the kernel has no openat2 (before Linux 5.6).
    dir: Option<OwnedFd>,
    /// The directory last checked, and whether it is inside the copy.
    checked: (PathBuf, bool),
}

impl Inside {
    pub(crate) fn new(root: &Root) -> Self {
        if root.is_live() {
            return Self::default();
        }
        let named = root.join("");
        let copy = named.canonicalize().map(|real| {
            let dir = File::open(&real).ok().map(OwnedFd::from).filter(has_openat2);
            Copy { named, real, dir, checked: (PathBuf::new(), true) }
        });
        Self { copy: Some(copy), copies: root.copies.clone() }
    }

    /// Opens `path`, below the root, for reading without waiting. That it is a regular file is
    /// checked in a copy only: what is read of the running host is procfs, sysfs and cgroupfs, whose
    /// files all are, and the check would be a system call more for each.
    ///
    /// # Errors
    /// When it cannot be opened, or in a copy is no regular file or outside.
    pub(crate) fn open(&mut self, path: &Path) -> io::Result<File> {
        let opened = self.open_there(path);
        let Some(copies) = &self.copies else { return opened };
        let file = opened.inspect_err(|error| copies.note_error(path, error))?;
        copies.file(path, file)
    }

    fn open_there(&mut self, path: &Path) -> io::Result<File> {
        let copy = match &mut self.copy {
            None => return OpenOptions::new().read(true).custom_flags(FLAGS).open(path),
            Some(Ok(copy)) => copy,
            Some(Err(error)) => return Err(io::Error::new(error.kind(), error.to_string())),
        };
        if let (Some(dir), Ok(below)) = (&copy.dir, path.strip_prefix(&copy.named)) {
            match beneath(dir, below) {
                // It says so of an absolute link, too, which may lead back into the copy.
                Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {}
                opened => return regular(opened?),
            }
        }
        if copy.holds(path) { open(path) } else { Err(io::Error::other(LEAVES)) }
    }

    /// Where folders and links are kept that count by being there; `None` where nothing is kept.
    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    /// Whether `path`, below the root, stays there when links are followed. A missing file does;
    /// nothing does in a copy that could not be found.
    pub(crate) fn holds(&mut self, path: &Path) -> bool {
        match &mut self.copy {
            None => true,
            Some(Ok(copy)) => copy.holds(path),
            Some(Err(_)) => false,
        }
    }

    /// Whether [`Inside::open`] failed because the file is outside the copy.
    pub(crate) fn is_outside(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|what| what.to_string() == LEAVES)
    }
}

/// Why a file of a copy was not opened.
const LEAVES: &str = "it is a link that leaves the copy";

impl Copy {
    fn holds(&mut self, path: &Path) -> bool {
        let real = &self.real;
        let leaves = |path: &Path| path.canonicalize().is_ok_and(|path| !path.starts_with(real));
        let dir = path.parent().unwrap_or(path);
        if self.checked.0 != dir {
            self.checked = (dir.to_owned(), !leaves(dir));
        }
        self.checked.1 && !(path.is_symlink() && leaves(path))
    }
}

/// Opens a file below a directory by openat2, which the kernel resolves without leaving it: one
/// system call, where looking at every component took a dozen.
fn beneath(dir: &OwnedFd, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat2(dir, path, flags, Mode::empty(), ResolveFlags::BENEATH)?;
    Ok(File::from(file))
}

fn has_openat2(dir: &OwnedFd) -> bool {
    // ENOSYS before Linux 5.6; EPERM under some seccomp filters.
    openat2(dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_fifo_in_place_of_a_file_is_refused_at_once() {
        let dir = instep_madehost::scratch_dir().unwrap();
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

    #[test]
    fn links_are_followed_as_long_as_they_stay_in_the_copy() {
        let outer = instep_madehost::scratch_dir().unwrap();
        let copy = outer.path().join("copy");
        std::fs::create_dir_all(copy.join("dir")).unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        std::fs::write(copy.join("dir/file"), "f").unwrap();
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, copy.join(name)).unwrap();
        };
        link(Path::new("../dir/file"), "dir/relative");
        link(&copy.join("dir/file"), "absolute");
        link(Path::new("../../secret"), "dir/out");
        link(&outer.path().join("secret"), "far");
        link(Path::new(".."), "up");
        let mut inside = Inside::new(&Root::at(&copy));
        for openat2 in [true, false] {
            for name in ["dir/file", "dir/relative", "absolute"] {
                assert!(inside.open(&copy.join(name)).is_ok(), "{name}");
            }
            for name in ["dir/out", "far", "up/secret"] {
                let error = inside.open(&copy.join(name)).unwrap_err();
                assert!(Inside::is_outside(&error), "{name}, openat2 {openat2}: {error}");
            }
            let error = inside.open(&copy.join("dir")).unwrap_err();
            assert!(error.to_string().contains("no regular file"));
            let error = inside.open(&copy.join("none")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            let copy = inside.copy.as_mut().unwrap().as_mut().unwrap();
            if openat2 && copy.dir.is_none() {
                return instep_madehost::skip::note("this kernel has no openat2");
            }
            copy.dir = None;
        }
    }

    #[test]
    fn nothing_is_opened_of_a_copy_that_was_not_there() {
        let outer = instep_madehost::scratch_dir().unwrap();
        let copy = outer.path().join("copy");
        let mut inside = Inside::new(&Root::at(&copy));
        std::fs::create_dir(&copy).unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("../secret", copy.join("out")).unwrap();
        assert_eq!(inside.open(&copy.join("out")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!inside.holds(&copy.join("out")));
    }
}
