//! That only one instance acts on a host, whatever state directory each was given: a lock on a file
//! at a fixed place that only root can reach, `/run/instep/lock`.
//!
//! Instances in mount namespaces with a `/run` of their own do not see each other. Without root it is
//! `instep/lock` in the user's own runtime directory, as a user's instance can change that user's
//! threads only; a user without such a directory has the lock of the state directory alone.

use crate::apply::lock_file::LockFile;
use crate::apply::state::StateDir;
use crate::error::Error;
use std::path::{Path, PathBuf};

/// Where root's instances keep their state, and the lock of the host.
pub const RUN_DIR: &str = "/run/instep";
/// A longer name than this is none.
const MAX_NAME: usize = 64;

/// Held for as long as an instance acts.
#[derive(Debug)]
pub struct HostLock {
    file: LockFile,
}

impl HostLock {
    /// The file of this user's lock, `None` where there is no place for one. `name` tells an instance
    /// apart that runs beside others, for tests: letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// The name is no name.
    pub fn place(name: Option<&str>) -> Result<Option<PathBuf>, Error> {
        let runtime = || {
            let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
            dir.is_absolute().then(|| dir.join("instep"))
        };
        let is_root = rustix::process::geteuid().is_root();
        let dir = if is_root { Some(RUN_DIR.into()) } else { runtime() };
        let Some(name) = name else { return Ok(dir.map(|dir| dir.join("lock"))) };
        let is_sane = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_sane) {
            return Err(Error::Unusable {
                what: format!("`{}` is no name of an instance", name.escape_default()),
                next: format!("use up to {MAX_NAME} letters, digits, `-`, `_` and `.`"),
            });
        }
        Ok(dir.map(|dir| dir.join(format!("lock.{name}"))))
    }

    /// Becomes the one instance whose lock is at `path`. Its folder is made where it is missing.
    ///
    /// # Errors
    /// Another process is that instance (named); the file cannot be locked.
    pub fn take(path: &Path) -> Result<Self, Error> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let unusable = |why: String| Error::Unusable {
            what: format!("cannot lock {}, the lock of this host: {why}", path.display()),
            next: "make its folder one that only this user can write to, on a file system that is \
                   not read-only"
                .into(),
        };
        StateDir::at(dir).make().map_err(unusable)?;
        let failed = |source: std::io::Error| unusable(source.to_string());
        LockFile::take(path, failed).map(|file| Self { file })
    }

    /// The same, whose file is removed in the end.
    #[must_use]
    pub fn temporary(self) -> Self {
        Self { file: self.file.temporary() }
    }

    /// Whether the lock is still the one of this host: nobody removed its file.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_the_process_of_the_first_until_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("instep/lock");
        let first = HostLock::take(&path).unwrap();
        let text = HostLock::take(&path).unwrap_err().to_string();
        let process = format!("process {}", std::process::id());
        assert!(text.contains("already runs") && text.contains(&process), "{text}");
        drop(first);
        HostLock::take(&path).unwrap();
    }

    #[test]
    fn the_lock_is_at_a_fixed_place_and_instances_of_other_names_beside_it() {
        let [plain, named] = [None, Some("a")].map(|name| HostLock::place(name).unwrap());
        let (Some(plain), Some(named)) = (plain, named) else { return };
        assert_ne!(plain, named);
        if rustix::process::geteuid().is_root() {
            assert_eq!(plain, Path::new("/run/instep/lock"));
            assert_eq!(named, Path::new("/run/instep/lock.a"));
        }
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        for bad in ["", "a b", "a/b", "a\0b", &"a".repeat(65)] {
            let text = HostLock::place(Some(bad)).unwrap_err().to_string();
            assert!(text.contains("no name of an instance"), "{text}");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_no_place_for_the_lock() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let text = HostLock::take(&dir.path().join("lock")).unwrap_err().to_string();
        assert!(text.contains("the lock of this host"), "{text}");
    }
}
