//! The state directory and its lock: where the journal lives, and that only one process changes it
//! (another lock, [`HostLock`], tells that only one instance acts on the host).
//!
//! Which directory is used is the caller's choice.

use crate::apply::host_lock::HostLock;
use crate::apply::lock_file::LockFile;
use crate::error::Error;
use crate::system::file_id;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The lock of the journal, by the name that versions with one lock in place of two gave it: they and this
/// one see each other.
const LOCK: &str = "lock";
/// The lock of the journal in a directory that holds the lock of the host, too, which has that name there:
/// what only restores needs the journal's alone.
const LOCK_BESIDE_HOSTS: &str = "journal.lock";

/// A directory that holds what must outlive the process: `journal.json`, and its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The directory at `path`. Nothing is created or checked before [`StateDir::lock`].
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the directory where it is missing and takes the lock of its journal. Its mode is 0711: everybody can read
    /// the files that a run publishes in it, nobody else can list it, and the journal and locks are their owner's alone.
    ///
    /// # Errors
    /// Another process has it ([`Error::Taken`]); the directory cannot be created, is not the
    /// caller's, or is writable by others.
    pub fn lock(&self) -> Result<InstanceLock, Error> {
        Ok(InstanceLock { state: self.clone(), host: None, file: self.lock_file()? })
    }

    fn lock_file(&self) -> Result<LockFile, Error> {
        self.prepare()?;
        let path = self.lock_path();
        LockFile::take(&path, |source| Error::Unusable {
            what: format!("cannot lock {}: {source}", path.display()),
            next: NEXT.into(),
        })
    }

    /// The process that holds the lock now, `None` when nobody does.
    ///
    /// # Errors
    /// The lock file is there and cannot be opened.
    pub fn running_instance(&self) -> Result<Option<u32>, Error> {
        LockFile::holder_of(&self.lock_path())
    }

    fn lock_path(&self) -> PathBuf {
        let own = file_id(&self.path);
        let is_hosts = own.is_some() && HostLock::dirs().any(|dir| file_id(&dir) == own);
        self.file(if is_hosts { LOCK_BESIDE_HOSTS } else { LOCK })
    }

    /// Whether the first process of this pid namespace sees another directory at this path, or none: what
    /// is in it goes with this mount namespace, such as a container's. False where that cannot be told.
    pub fn is_private(&self) -> bool {
        self.is_private_beside(1)
    }

    fn is_private_beside(&self, pid: u32) -> bool {
        let first = &Path::new("/proc").join(pid.to_string()).join("root");
        let Ok(path) = fs::canonicalize(&self.path) else { return false };
        let below = path.strip_prefix("/").unwrap_or(&path);
        file_id(first).is_some() && file_id(&path) != file_id(&first.join(below))
    }

    fn prepare(&self) -> Result<(), Error> {
        self.make().map_err(|what| Error::Unusable { what, next: NEXT.into() })
    }

    /// Creates the directory where it is missing, and checks that it is the caller's own or, for root, the service's. The error
    /// says what is wrong with it.
    pub(crate) fn make(&self) -> Result<(), String> {
        let shown = self.path.display();
        let made = DirBuilder::new().recursive(true).mode(0o711).create(&self.path);
        made.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                format!("the state directory {shown} is, or lies below, a file: {source}")
            }
            _ => format!("cannot create {shown} for Instep's state: {source}"),
        })?;
        self.is_own()
    }

    /// Checks that the directory, which is there, is one that nobody else may change anything in.
    ///
    /// # Errors
    /// It is not, or is no directory.
    pub fn check(&self) -> Result<(), Error> {
        let checked = if self.path.is_dir() { self.is_own() } else { self.make() };
        checked.map_err(|what| Error::Unusable { what, next: NEXT.into() })
    }

    fn is_own(&self) -> Result<(), String> {
        let shown = self.path.display();
        let meta = fs::metadata(&self.path)
            .map_err(|source| format!("cannot examine {shown}: {source}"))?;
        // An existing directory is never made narrower: it may be /tmp, given by mistake.
        if !instep_state::is_trusted_owner(meta.uid()) || meta.mode() & 0o022 != 0 {
            return Err(format!(
                "state directory {shown} belongs to user {} with mode {:o}: others could change \
                 what is in it",
                meta.uid(),
                meta.mode() & 0o7777
            ));
        }
        Ok(())
    }
}

/// What to do about a state directory that cannot be used.
const NEXT: &str = "name a folder of your own with --state-dir DIR; it need not exist yet";

/// Proof of being the one process that changes this journal; released when dropped or when the process
/// ends.
#[derive(Debug)]
pub struct InstanceLock {
    state: StateDir,
    // Released in this order, the reverse of taking: a process that takes the file can take the host at once.
    host: Option<HostLock>,
    file: LockFile,
}

impl InstanceLock {
    /// The same, being the one instance on this host, too, whose lock is at `path`.
    ///
    /// # Errors
    /// As [`HostLock::take`].
    pub fn on_host(mut self, path: &Path, is_temporary: bool) -> Result<Self, Error> {
        self.host = Some(HostLock::take(path, is_temporary)?);
        Ok(self)
    }

    /// The directory that is locked.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// As [`renew`](Self::renew), for the lock of the journal alone: without it, what is in the
    /// directory is another instance's.
    pub(crate) fn renew_journals(&mut self) -> Result<bool, Error> {
        let is_lost = !self.file.is_in_place();
        if is_lost {
            self.file = self.state.lock_file()?;
        }
        Ok(is_lost)
    }

    /// Takes locks again whose files were removed, with the directory perhaps: others would take
    /// them for free. Whether there were any.
    ///
    /// # Errors
    /// One cannot be taken again.
    pub(crate) fn renew(&mut self) -> Result<bool, Error> {
        let mut is_new = self.renew_journals()?;
        if let Some(lock) = &mut self.host {
            is_new |= lock.renew()?;
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::host_lock::RUN_DIR;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    const HOLD: &str = "INSTEP_TEST_HOLD_LOCK";
    const FREE: &str = "INSTEP_TEST_FREE_LOCK";

    #[test]
    fn second_instance_gets_the_process_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("deep/instep"));
        assert_eq!(state.running_instance().unwrap(), None);
        let lock = state.lock().unwrap();
        let pid = std::process::id();
        let text = state.lock().unwrap_err().to_string();
        assert!(text.contains(&format!("process {pid}")), "{text}");
        assert_eq!(state.running_instance().unwrap(), Some(pid));
        drop(lock);
        // Children that other tests start have all files of this process for a moment.
        let end = Instant::now() + Duration::from_secs(20);
        while state.running_instance().unwrap().is_some() {
            assert!(Instant::now() < end, "the lock is not free");
        }
        state.lock().unwrap();
    }

    #[test]
    fn directory_that_another_mount_namespace_does_not_see_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let (state, own) = (StateDir::at(dir.path().join("s")), std::process::id());
        state.lock().unwrap();
        assert!(!state.is_private_beside(own) && !state.is_private_beside(u32::MAX));
        // As seen by a container with a file system of its own in that place.
        let script = "mount -t tmpfs instep-test \"$0\" && echo mounted && exec sleep 60";
        let mut container = Command::new("unshare");
        container.args(["--mount", "sh", "-c", script]).arg(dir.path()).stdout(Stdio::piped());
        let Ok(mut container) = container.spawn() else {
            return instep_madehost::skip::note("unshare cannot be started");
        };
        let mut said = [0; 8];
        let mounted = container.stdout.take().unwrap().read_exact(&mut said).is_ok();
        let is_private = state.is_private_beside(container.id());
        let _ = container.kill();
        container.wait().unwrap();
        if !mounted {
            return instep_madehost::skip::note("no mount namespace can be made here");
        }
        assert!(is_private);
    }

    #[test]
    fn the_directory_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("instep"));
        state.lock().unwrap();
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o7777, 0o711);
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let text = state.lock().unwrap_err().to_string();
        assert!(text.contains("777") && text.contains("others could"), "{text}");
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o7777, 0o777);
    }

    #[test]
    fn journals_lock_is_the_one_that_earlier_versions_take() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("s"));
        let lock = state.lock().unwrap();
        assert!(File::open(state.file("lock")).unwrap().try_lock().is_err());
        drop(lock);
        // Where that name is the lock of the host, restoring does without it.
        let host = StateDir::at(RUN_DIR);
        if host.path().is_dir() {
            assert_eq!(host.lock_path(), Path::new("/run/instep/journal.lock"));
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(RUN_DIR, &link).unwrap();
            assert_eq!(StateDir::at(&link).lock_path(), link.join("journal.lock"));
        }
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
        let state = StateDir::at(path);
        let host = state.file("host/lock");
        for round in 0..2000 {
            let first = state.lock().unwrap().on_host(&host, false).unwrap();
            let file = File::open(state.file(LOCK)).unwrap();
            let drops = std::thread::spawn(move || drop(first));
            while file.try_lock().is_err() {}
            let taken = HostLock::take(&host, false);
            assert!(taken.is_ok(), "round {round}: the file is free, the host is not");
            drops.join().unwrap();
        }
    }

    #[test]
    fn whose_file_is_free_is_no_instance_on_the_host_any_more() {
        if !instep_madehost::skip::may_take_long() {
            return;
        }
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
