//! The locks of a run and of a restore.

use crate::error::Error;
use crate::guard::after_guardians;
use instep_host::apply::{HostLock, InstanceLock, StateDir};
use instep_host::system::check_pid_namespace;
use std::path::PathBuf;

/// Becomes the one instance that uses this directory and acts on this host. A guardian at work is
/// waited for.
///
/// # Errors
/// Another instance runs (its process is named); the directory is not usable; /proc is of another pid namespace.
pub fn lock(state: &StateDir) -> Result<InstanceLock, Error> {
    check_pid_namespace()?;
    let (place, is_named) = place()?;
    let take = || match &place {
        Some(path) => state.lock()?.on_host(path, is_named),
        None => state.lock(),
    };
    Ok(after_guardians(take)?)
}

/// Becomes the one instance that acts on this host, without a state directory; `None` where this user
/// has no place for such a lock.
///
/// # Errors
/// Another instance runs (its process is named).
pub fn lock_host() -> Result<Option<HostLock>, Error> {
    let (place, is_named) = place()?;
    let Some(path) = place else { return Ok(None) };
    HostLock::take(&path, is_named).map(Some).map_err(Into::into)
}

/// Becomes the one process that changes the journal in this directory, which is all that restoring
/// takes. A guardian at work is waited for.
///
/// # Errors
/// An instance uses it (its process is named); the directory is not usable; /proc is of another pid namespace.
pub fn lock_journal(state: &StateDir) -> Result<InstanceLock, Error> {
    check_pid_namespace()?;
    Ok(after_guardians(|| state.lock())?)
}

/// Where the lock of the host is, and whether it is one of a name. Tests that need several instances
/// side by side give each a name in the environment variable `INSTEP_INSTANCE`.
fn place() -> Result<(Option<PathBuf>, bool), Error> {
    let name = std::env::var_os("INSTEP_INSTANCE").map(|name| name.to_string_lossy().into_owned());
    Ok((HostLock::place(name.as_deref())?, name.is_some()))
}
