//! A file that a command writes at its end: beside its place first, moved there when it is whole, so
//! that what ends early leaves nothing, and what cannot be written is known before the work.

use crate::tell;
use anyhow::Context as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that is not at its place yet.
pub struct Pending {
    /// Its place.
    pub to: PathBuf,
    /// What is there of it.
    pub file: NamedTempFile,
}

impl Pending {
    /// A file that will be at `to`.
    pub fn new(to: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", to.display());
        if let Ok(there) = to.metadata() {
            anyhow::ensure!(!there.is_dir(), "{}: it is a directory", cannot());
            // Such as /dev/null: a file would be put in its place.
            anyhow::ensure!(there.is_file(), "{}: it is no regular file", cannot());
        }
        let file = beside(dir_of(to)).with_context(cannot)?;
        Ok(Self { to: to.to_owned(), file })
    }

    /// Writes all of it and moves it to its place.
    pub fn write(mut self, bytes: &[u8], what: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.to.display());
        self.file.as_file_mut().write_all(bytes).with_context(cannot)?;
        self.keep(what)
    }

    /// It is whole: moves it to its place; `what` is what to do with it.
    pub fn keep(self, what: &str) -> anyhow::Result<()> {
        let shown = self.to.display().to_string();
        open_to_all(self.file.path());
        self.file.persist(&self.to).with_context(|| format!("cannot write {shown}"))?;
        tell(&format!("wrote {shown}; {what}"));
        Ok(())
    }
}

/// A file in `dir` under a name of no interest, which its errors do not tell.
fn beside(dir: &Path) -> io::Result<NamedTempFile> {
    let mut why = None;
    let made = tempfile::Builder::new().make_in(dir, |path| {
        let mut options = File::options();
        let opened = options.read(true).write(true).create_new(true).mode(0o600).open(path);
        opened.inspect_err(|error| why = error.raw_os_error())
    });
    made.map_err(|error| why.map_or(error, io::Error::from_raw_os_error))
}

/// None of the files to be written is another of them or one that is read: that would be lost.
pub fn ensure_apart(read: &[&Path], written: &[&Path]) -> anyhow::Result<()> {
    let files: Vec<&Path> = read.iter().chain(written).copied().collect();
    let places: Vec<Option<Place>> = files.iter().map(|file| Place::of(file)).collect();
    for at in read.len()..files.len() {
        let same = |other: &usize| places[at].is_some() && places[*other] == places[at];
        if let Some(other) = (0..at).find(same) {
            let (file, other) = (files[at].display(), files[other].display());
            anyhow::bail!("cannot write {file}: it is {other}, which is named, too");
        }
    }
    Ok(())
}

/// What a file is by, whatever it is called.
#[derive(PartialEq, Eq)]
enum Place {
    /// One that is there: device and inode.
    There(u64, u64),
    /// One that would be there: its directory, links followed, and its name.
    New(PathBuf),
}

impl Place {
    /// `None` for what holds nothing that could be lost, such as /dev/null or a pipe.
    fn of(file: &Path) -> Option<Self> {
        match file.metadata() {
            Ok(there) => there.is_file().then(|| Self::There(there.dev(), there.ino())),
            Err(_) => {
                let dir = dir_of(file);
                let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
                Some(Self::New(dir.join(file.file_name().unwrap_or_default())))
            }
        }
    }
}

/// The directory that a file is in.
fn dir_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Temporary files are their owner's alone; results are as other files are.
fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o644);
    if let Err(error) = std::fs::set_permissions(path, mode) {
        tracing::warn!("only the owner can read {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_every_name_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "").unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a", path("soft")).unwrap();
        let is_apart = |read: &Path, written: &Path| ensure_apart(&[read], &[written]).is_ok();
        for other in ["a", "./a", "hard", "soft"] {
            assert!(!is_apart(&path("a"), &path(other)), "{other}");
        }
        assert!(is_apart(&path("a"), &path("new")));
        assert!(!is_apart(&path("new"), &path("./new")) && is_apart(&path("new"), &path("n")));
        // Two that are read may be one, and nothing is lost in what keeps nothing.
        ensure_apart(&[&path("a"), &path("a")], &[&path("b")]).unwrap();
        ensure_apart(&[], &[Path::new("/dev/null"), Path::new("/dev/null")]).unwrap();
        let said =
            ensure_apart(&[], &[&path("b"), &path("c"), &path("b")]).unwrap_err().to_string();
        assert!(said.contains("b: it is ") && said.ends_with("which is named, too"), "{said}");
    }

    #[test]
    fn unwritable_file_is_reported_by_its_own_name() {
        let said = |to: &str| match Pending::new(Path::new(to)) {
            Ok(_) => panic!("{to} can be written"),
            Err(error) => crate::error_text(&error),
        };
        let why = io::Error::from_raw_os_error(2);
        assert_eq!(said("/nowhere/x.html"), format!("cannot write /nowhere/x.html: {why}"));
        assert_eq!(said("/dev/null"), "cannot write /dev/null: it is no regular file");
        assert_eq!(said("/dev"), "cannot write /dev: it is a directory");
    }
}
