//! The file for the textfile collector of node_exporter, replaced as a whole.
//!
//! The collector may be another user's, so everybody may read the file. What cannot be written is said once, and
//! changes nothing else: a full disk does not undo placement.

use crate::state_file::publish_file;
use std::fs;
use std::path::{Path, PathBuf};

/// The file as last written.
#[derive(Debug, Default)]
pub(super) struct TextFile {
    /// Where it is; empty before the first time.
    path: PathBuf,
    /// Whether it could not be written the last time.
    failed: bool,
}

impl TextFile {
    /// Writes it, and removes one that is elsewhere by now. Returns what is worth telling.
    pub(super) fn write(&mut self, path: &Path, text: &str) -> Option<String> {
        if self.path != path {
            self.remove();
            self.path = path.to_owned();
        }
        let result = publish_file(path, text.as_bytes());
        let was = std::mem::replace(&mut self.failed, result.is_err());
        match result {
            Err(error) if !was => Some(format!(
                "metrics cannot be written to {}: {error}; make room there, or name another file with \
                 --metrics or under [metrics]; placement goes on",
                path.display()
            )),
            Ok(()) if was => Some(format!("metrics are written to {} again", path.display())),
            _ => None,
        }
    }

    /// Removes it, so that nothing that is over is shown as present.
    pub(super) fn remove(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(part_of(&self.path));
        }
    }
}

/// The collector reads names that end with `.prom` only, and none that is being written.
fn part_of(path: &Path) -> PathBuf {
    path.with_added_extension("part")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn file_is_replaced_and_readable_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.prom");
        let mut file = TextFile::default();
        assert_eq!(file.write(&path, "one\n"), None);
        assert_eq!(file.write(&path, "two\n"), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        let other = dir.path().join("b.prom");
        assert_eq!(file.write(&other, "three\n"), None);
        assert!(!path.exists() && other.exists());
        file.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn file_that_cannot_be_written_is_reported_once() {
        let mut file = TextFile::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/a.prom");
        let said = file.write(&path, "x").unwrap();
        assert!(said.contains("cannot be written") && said.contains("placement goes on"), "{said}");
        assert_eq!(file.write(&path, "x"), None);
        fs::create_dir(dir.path().join("none")).unwrap();
        assert!(file.write(&path, "x").unwrap().contains("again"));
        assert_eq!(file.write(&path, "x"), None);
        // What cannot be replaced leaves no other file behind.
        let taken = dir.path().join("b.prom");
        fs::create_dir_all(taken.join("x")).unwrap();
        assert!(publish_file(&taken, b"x").is_err() && !part_of(&taken).exists());
    }

    #[test]
    fn link_that_somebody_put_there_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        for name in ["a.prom", "a.prom.part"] {
            std::os::unix::fs::symlink(&victim, dir.path().join(name)).unwrap();
        }
        assert_eq!(TextFile::default().write(&dir.path().join("a.prom"), "x"), None);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    }
}
