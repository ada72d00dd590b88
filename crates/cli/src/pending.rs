//! A file that a command writes at its end: beside its place first, moved there when it is whole, so
//! that what ends early leaves nothing, and what cannot be written is known before the work.

use crate::tell;
use anyhow::Context as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that is not at its place yet.
pub(crate) struct Pending {
    /// Its place.
    pub(crate) to: PathBuf,
    /// What is there of it.
    pub(crate) file: NamedTempFile,
}

impl Pending {
    /// A file that will be at `to`.
    pub(crate) fn new(to: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", to.display());
        anyhow::ensure!(!to.is_dir(), "{}: it is a directory", cannot());
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = NamedTempFile::new_in(dir).with_context(cannot)?;
        Ok(Self { to: to.to_owned(), file })
    }

    /// Writes all of it and moves it to its place.
    pub(crate) fn write(mut self, bytes: &[u8], what: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.to.display());
        self.file.write_all(bytes).with_context(cannot)?;
        self.keep(what)
    }

    /// It is whole: moves it to its place; `what` is what to do with it.
    pub(crate) fn keep(self, what: &str) -> anyhow::Result<()> {
        let shown = self.to.display().to_string();
        open_to_all(self.file.path());
        self.file.persist(&self.to).with_context(|| format!("cannot write {shown}"))?;
        tell(&format!("wrote {shown}; {what}"));
        Ok(())
    }
}

/// None of these files, read or to be written, is another of them: it would be lost.
pub(crate) fn apart(files: &[&Path]) -> anyhow::Result<()> {
    let places: Vec<PathBuf> = files.iter().map(|file| place(file)).collect();
    for (at, file) in files.iter().enumerate() {
        let same = places[..at].iter().position(|other| *other == places[at]);
        if let Some(other) = same.map(|other| files[other].display()) {
            anyhow::bail!("cannot write {}: it is {other}, which is named, too", file.display());
        }
    }
    Ok(())
}

/// Where a file is or would be, links followed.
fn place(file: &Path) -> PathBuf {
    if let Ok(whole) = file.canonicalize() {
        return whole;
    }
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    dir.join(file.file_name().unwrap_or_default())
}

/// Temporary files are their owner's alone; results are as other files are.
fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o644);
    if let Err(error) = std::fs::set_permissions(path, mode) {
        tracing::warn!("{} stays its owner's alone: {error}", path.display());
    }
}
