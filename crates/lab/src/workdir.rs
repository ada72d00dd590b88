//! Temporary directories that name their owner, so that a later run can tell which ones a killed
//! process left behind and remove them.

use crate::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

const PREFIX: &str = "instep-lab";

/// Makes a directory that is removed when dropped; `what` is part of its name.
///
/// # Errors
/// When the temporary directory cannot be written.
pub fn create(what: &str) -> Result<TempDir, Error> {
    let base = std::env::temp_dir();
    let space = pid_space();
    sweep(&base, space);
    let what: String = what.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}.{space}.{}.{what}.", std::process::id()))
        .tempdir_in(&base)
        .map_err(|error| Error::io("make a directory in", base, error))
}

/// The process-id namespace: a pid of another one says nothing here.
fn pid_space() -> u64 {
    fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino()).unwrap_or(0)
}

/// Removes this user's directories whose owner is gone.
fn sweep(base: &Path, space: u64) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let Ok(me) = fs::metadata("/proc/self") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = owner(&name.to_string_lossy(), space) else { continue };
        let ours = entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == me.uid());
        if ours && !Path::new(&format!("/proc/{pid}")).exists() {
            tracing::debug!(path = %entry.path().display(), "removing what a killed run left");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The pid in a directory's name, if it is one of ours and of this pid namespace.
fn owner(name: &str, space: u64) -> Option<u32> {
    let mut parts = name.split('.');
    (parts.next()? == PREFIX && parts.next()?.parse() == Ok(space)).then_some(())?;
    parts.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("instep-lab.7.123.a.XyZ", 7), Some(123));
        assert_eq!(owner("instep-lab.8.123.a.XyZ", 7), None);
        assert_eq!(owner("instep-lab.7", 7), None);
        assert_eq!(owner("something.7.123", 7), None);
    }

    #[test]
    fn what_a_dead_process_left_is_swept_and_what_lives_is_kept() {
        let base = tempfile::tempdir().unwrap();
        // Above the largest pid Linux gives (2^22).
        let dead = base.path().join("instep-lab.7.99999999.a.x");
        let alive = base.path().join(format!("instep-lab.7.{}.a.x", std::process::id()));
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&alive).unwrap();
        sweep(base.path(), 7);
        assert!(!dead.exists() && alive.exists());
    }
}
