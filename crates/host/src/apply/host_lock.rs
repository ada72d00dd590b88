//! That only one instance acts on a host, whatever state directory each was given: a lock on a file
//! at a fixed place that only root can reach, `/run/instep/lock`.
//!
//! An instance in a container with a `/run` of its own takes the lock in the `/run` of the first process
//! of its pid namespace, where it can reach that (`/proc/1/root` needs CAP_SYS_PTRACE). Without root and
//! without CAP_SYS_NICE the lock is `instep/lock` in the user's own runtime directory, as such an instance
//! can change that user's threads only; a user without such a directory has the lock of the state
//! directory alone.

use crate::apply::lock_file::LockFile;
use crate::apply::state::StateDir;
use crate::error::Error;
use crate::system::file_id;
use rustix::thread::{CapabilitySet, capabilities};
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
        let dir = if may_act_on_others() { Some(Self::run_dir(1)) } else { runtime_dir() };
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

    /// Folders that hold, or may hold, a lock of the host.
    pub(crate) fn dirs() -> impl Iterator<Item = PathBuf> {
        [RUN_DIR.into(), Self::run_dir(1)].into_iter().chain(runtime_dir())
    }

    /// [`RUN_DIR`] as this process sees it: through the root of `first`, the first process of the pid
    /// namespace, if that one has another `/run`.
    fn run_dir(first: u32) -> PathBuf {
        let root = Path::new("/proc").join(first.to_string()).join("root");
        let theirs = file_id(&root.join("run"));
        let is_private = theirs.is_some() && theirs != file_id(Path::new("/run"));
        let own = Path::new(RUN_DIR);
        if is_private { root.join(own.strip_prefix("/").unwrap_or(own)) } else { own.to_owned() }
    }

    /// Becomes the one instance whose lock is at `path`. The folder is made where it is missing. A temporary
    /// lock removes its file in the end.
    ///
    /// # Errors
    /// Another process is that instance (named); the file cannot be locked.
    pub fn take(path: &Path, is_temporary: bool) -> Result<Self, Error> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let unusable = |why: String| Error::Unusable {
            what: format!("cannot lock {}, the lock of this host: {why}", path.display()),
            next: "make its folder one that only this user can write to, on a file system that is \
                   not read-only; a user with CAP_SYS_NICE needs this lock as root does, as only \
                   one such instance may run on a host (systemd: RuntimeDirectory=instep)"
                .into(),
        };
        StateDir::at(dir).make().map_err(unusable)?;
        let failed = |source: std::io::Error| unusable(source.to_string());
        let file = LockFile::take(path, failed)?;
        Ok(Self { file: if is_temporary { file.temporary() } else { file } })
    }

    /// Takes the lock again if its file was removed: others would take it for free. Whether it was.
    ///
    /// # Errors
    /// It cannot be taken again.
    pub(crate) fn renew(&mut self) -> Result<bool, Error> {
        let is_lost = !self.file.is_in_place();
        if is_lost {
            *self = Self::take(self.file.path(), self.file.is_temporary())?;
        }
        Ok(is_lost)
    }
}

/// Whether this process may set the affinity of other users' threads.
fn may_act_on_others() -> bool {
    rustix::process::geteuid().is_root()
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

/// Where this user's instances keep their state.
fn runtime_dir() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    dir.is_absolute().then(|| dir.join("instep"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn container_with_a_run_of_its_own_takes_the_lock_of_the_host() {
        let own = std::process::id();
        assert_eq!(HostLock::run_dir(own), Path::new(RUN_DIR));
        assert_eq!(HostLock::run_dir(u32::MAX), Path::new(RUN_DIR), "it cannot be looked at");
        // The process with a /run of its own here is the other one.
        let script = "mount -t tmpfs instep-test /run && echo mounted && exec sleep 60";
        let mut other = Command::new("unshare");
        let other = other.args(["--mount", "sh", "-c", script]).stdout(Stdio::piped()).spawn();
        let Ok(mut other) = other else {
            return instep_madehost::skip::note("unshare cannot be started");
        };
        let mut said = [0; 8];
        let mounted = other.stdout.take().unwrap().read_exact(&mut said).is_ok();
        let dir = HostLock::run_dir(other.id());
        let taken = mounted.then(|| HostLock::take(&dir.join("lock"), false));
        let here = Path::new(RUN_DIR).join("lock");
        let is_one = |path: &Path| {
            let (a, b) = (fs::metadata(path).unwrap(), fs::metadata(dir.join("lock")).unwrap());
            (a.dev(), a.ino()) == (b.dev(), b.ino())
        };
        let is_other = mounted && (!here.exists() || !is_one(&here));
        let _ = other.kill();
        other.wait().unwrap();
        let Some(taken) = taken else {
            return instep_madehost::skip::note("no mount namespace can be made here");
        };
        taken.unwrap();
        assert_eq!(dir, PathBuf::from(format!("/proc/{}/root/run/instep", other.id())));
        assert!(is_other, "it is the lock of this mount namespace");
    }

    /// Run by the next test as a user with CAP_SYS_NICE; does nothing otherwise.
    #[test]
    fn helper_that_tells_its_place() {
        let Ok(file) = std::env::var("INSTEP_TEST_PLACE") else { return };
        let place = HostLock::place(None).unwrap();
        fs::write(file, place.unwrap_or_default().as_os_str().as_encoded_bytes()).unwrap();
    }

    #[test]
    fn user_with_cap_sys_nice_takes_the_lock_of_root() {
        let dir = tempfile::tempdir().unwrap();
        let place_with = |caps: &[&str]| {
            let file = dir.path().join(format!("place{}", caps.len()));
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--clear-groups"]).args(caps);
            command.arg("--").arg(dir.path().join("test"));
            command.args(["--exact", "apply::host_lock::tests::helper_that_tells_its_place"]);
            command.env("INSTEP_TEST_PLACE", &file).env("XDG_RUNTIME_DIR", "/nonexistent");
            let ran = command.stdout(Stdio::null()).status();
            ran.is_ok_and(|status| status.success()).then(|| fs::read_to_string(&file).unwrap())
        };
        // The user must be able to run the program and to write there.
        fs::copy(std::env::current_exe().unwrap(), dir.path().join("test")).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let _ = std::os::unix::fs::chown(dir.path(), Some(65534), None);
        let (plain, able) = (
            place_with(&[]),
            place_with(&["--inh-caps", "+sys_nice", "--ambient-caps", "+sys_nice"]),
        );
        let (Some(plain), Some(able)) = (plain, able) else {
            return instep_madehost::skip::note("setpriv cannot start a program as another user");
        };
        assert_eq!(
            (plain.as_str(), able.as_str()),
            ("/nonexistent/instep/lock", "/run/instep/lock")
        );
    }

    #[test]
    fn second_gets_the_process_of_the_first_until_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("instep/lock");
        let first = HostLock::take(&path, false).unwrap();
        let text = HostLock::take(&path, false).unwrap_err().to_string();
        let process = format!("process {}", std::process::id());
        assert!(text.contains("already runs") && text.contains(&process), "{text}");
        drop(first);
        HostLock::take(&path, false).unwrap();
    }

    #[test]
    fn lock_is_at_a_fixed_place_and_other_instances_are_beside_it() {
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
        let text = HostLock::take(&dir.path().join("lock"), false).unwrap_err().to_string();
        assert!(text.contains("the lock of this host"), "{text}");
    }

    #[test]
    fn lock_that_is_taken_again_is_still_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock.test");
        let mut lock = HostLock::take(&path, true).unwrap();
        assert!(!lock.renew().unwrap());
        fs::remove_file(&path).unwrap();
        assert!(lock.renew().unwrap() && path.exists());
        drop(lock);
        assert!(!path.exists());
    }
}
