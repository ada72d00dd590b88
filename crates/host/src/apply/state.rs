//! The state directory and its lock: where the journal lives, and that only one instance uses it
//! ([`HostLock`]: only one acts on the host).
//!
//! The lock is a `flock` on the file `lock`, so the kernel releases it whatever ends the process;
//! the process id inside is only for the message. Which directory is used is the caller's choice.

use crate::apply::host_lock::HostLock;
use crate::error::Error;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A directory that holds what must outlive the process: `lock` and `journal.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The directory at `path`. Nothing is created or checked before [`StateDir::lock`].
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the directory (mode 0700) where it is missing and becomes the one instance.
    ///
    /// # Errors
    /// Another instance runs ([`Error::Taken`]); the directory cannot be created, is not the
    /// caller's, or is writable by others.
    pub fn lock(&self) -> Result<InstanceLock, Error> {
        self.prepare()?;
        let path = self.file("lock");
        let failed = |source| unusable(&format!("cannot lock {}", path.display()), &source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed)?;
        let mut attempt = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Someone who only asks holds it for an instant, see `running_instance`.
                Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Taken { pid: holder(&mut file), user: None });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(InstanceLock { state: self.clone(), host: None, _file: file })
    }

    /// The process that holds the lock now, `None` when nobody does.
    ///
    /// # Errors
    /// The lock file is there and cannot be opened.
    pub fn running_instance(&self) -> Result<Option<u32>, Error> {
        let path = self.file("lock");
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::read(path, source)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(holder(&mut file).unwrap_or(0))),
            Err(TryLockError::Error(source)) => Err(Error::read(path, source)),
        }
    }

    fn prepare(&self) -> Result<(), Error> {
        let shown = self.path.display();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                unusable(&format!("the state directory {shown} is, or lies below, a file"), &source)
            }
            _ => unusable(&format!("cannot create {shown} for Instep's state"), &source),
        })?;
        let meta = fs::metadata(&self.path).map_err(|source| Error::read(&self.path, source))?;
        // SAFETY: geteuid has no preconditions and cannot fail.
        let me = unsafe { libc::geteuid() };
        // An existing directory is never made narrower: it may be /tmp, given by mistake.
        if meta.uid() != me || meta.mode() & 0o022 != 0 {
            return Err(Error::Unusable {
                what: format!(
                    "state directory {shown} belongs to user {} with mode {:o}: others could \
                     change the journal",
                    meta.uid(),
                    meta.mode() & 0o7777
                ),
                next: "name a folder of your own with --state-dir DIR; it need not exist yet"
                    .into(),
            });
        }
        Ok(())
    }
}

/// A directory that the system does not let be used.
fn unusable(what: &str, source: &io::Error) -> Error {
    Error::Unusable {
        what: format!("{what}: {source}"),
        next: "name a folder of your own with --state-dir DIR; it need not exist yet".into(),
    }
}

/// Proof of being the one instance here; released when dropped or when the process ends.
#[derive(Debug)]
pub struct InstanceLock {
    state: StateDir,
    // Released in this order, the reverse of taking: who has the file may have the host at once.
    host: Option<HostLock>,
    _file: File,
}

impl InstanceLock {
    /// The same, being the one instance `name` on this host, too; see [`HostLock::take`].
    ///
    /// # Errors
    /// As [`HostLock::take`].
    pub fn on_host(mut self, name: &str) -> Result<Self, Error> {
        self.host = Some(HostLock::take(name)?);
        Ok(self)
    }

    /// The directory that is locked.
    #[must_use]
    pub fn state(&self) -> &StateDir {
        &self.state
    }
}

fn holder(file: &mut File) -> Option<u32> {
    use std::io::{Seek, SeekFrom};
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    const HOLD: &str = "INSTEP_TEST_HOLD_LOCK";
    const FREE: &str = "INSTEP_TEST_FREE_LOCK";

    #[test]
    fn a_second_instance_is_told_the_process_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("deep/instep"));
        assert_eq!(state.running_instance().unwrap(), None);
        let lock = state.lock().unwrap();
        let pid = std::process::id();
        let text = state.lock().unwrap_err().to_string();
        assert!(text.contains(&format!("process {pid}")), "{text}");
        assert_eq!(state.running_instance().unwrap(), Some(pid));
        drop(lock);
        assert_eq!(state.running_instance().unwrap(), None);
        state.lock().unwrap();
    }

    #[test]
    fn the_directory_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("instep"));
        state.lock().unwrap();
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o7777, 0o700);
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let text = state.lock().unwrap_err().to_string();
        assert!(text.contains("777") && text.contains("others could"), "{text}");
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o7777, 0o777);
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("instep"));
        state.lock().unwrap();
        fs::remove_file(state.file("lock")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", state.file("lock")).unwrap();
        assert!(state.lock().is_err());
    }

    /// Run by the next test in a process of its own; does nothing otherwise.
    #[test]
    fn helper_that_holds_the_lock_until_killed() {
        let Ok(path) = std::env::var(HOLD) else { return };
        let _lock = StateDir::at(path).lock().unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    /// This test program, told to run one helper with this state directory.
    fn helper(name: &str, variable: &str, state: &StateDir) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--exact").arg(format!("apply::state::tests::{name}"));
        command.env(variable, state.path()).stdout(Stdio::null());
        command
    }

    /// Run by the next test in a process of its own, where no other one starts processes, which have
    /// what is open here for a moment; does nothing otherwise.
    #[test]
    fn helper_that_takes_what_is_just_freed() {
        let Ok(path) = std::env::var(FREE) else { return };
        let name = format!("instep-test-free-{}", std::process::id());
        let state = StateDir::at(path);
        for round in 0..2000 {
            let first = state.lock().unwrap().on_host(&name).unwrap();
            let file = File::open(state.file("lock")).unwrap();
            let drops = std::thread::spawn(move || drop(first));
            while file.try_lock().is_err() {}
            let taken = HostLock::take(&name);
            assert!(taken.is_ok(), "round {round}: the file is free, the host is not");
            drops.join().unwrap();
        }
    }

    #[test]
    fn whose_file_is_free_is_no_instance_on_the_host_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("instep"));
        let helper = helper("helper_that_takes_what_is_just_freed", FREE, &state).status();
        assert!(helper.unwrap().success());
    }

    #[test]
    fn the_lock_of_a_killed_instance_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("instep"));
        let helper = helper("helper_that_holds_the_lock_until_killed", HOLD, &state).spawn();
        let mut child = helper.unwrap();
        let start = Instant::now();
        while state.running_instance().unwrap() != Some(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(20), "the child never took the lock");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(state.lock().unwrap_err().to_string().contains(&child.id().to_string()));
        child.kill().unwrap();
        child.wait().unwrap();
        state.lock().unwrap();
    }
}
