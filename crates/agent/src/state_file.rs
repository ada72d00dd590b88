//! Files in the state directory by which a run tells others of itself, each replaced as a whole.

use instep_host::apply::Instance;
use instep_state::Outlives;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

/// The most that is read of one.
const MAX_FILE: u64 = 16 << 20;

/// Who may read a file: its owner alone, or everybody.
pub(crate) const OWNERS: u32 = 0o600;
const EVERYBODYS: u32 = 0o644;

/// What the file of this name holds; `None` when there is none, or none of this kind.
pub(crate) fn stored<T: DeserializeOwned>(state: &Path, name: &str) -> Option<T> {
    serde_json::from_slice(&read(&state.join(name))?).ok()
}

/// The whole of a file; `None` where it cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    instep_state::open(path).ok()?.take(MAX_FILE + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_FILE).then_some(bytes)
}

/// Writes the file of this name, all at once; nobody else may read it.
///
/// # Errors
/// The directory is full or gone.
pub(crate) fn write(state: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    replace(&state.join(name), &serde_json::to_vec(value).map_err(io::Error::other)?, OWNERS)
}

/// The same for everybody to read. What cannot be written is not shown, and that is all.
pub(crate) fn publish_bytes(state: &Path, name: &str, bytes: &[u8]) {
    if let Err(error) = publish_file(&state.join(name), bytes) {
        tracing::debug!(%error, "cannot write to {}", state.display());
    }
}

/// Puts a file with this mode in the place of the one at `path`. Other programs read it, and what it describes ends with
/// the machine.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    instep_state::replace(path, bytes, mode, Outlives::Process)
}

/// Puts a file that everybody may read in the place of the one at `path`.
///
/// # Errors
/// The directory is full or gone.
pub(crate) fn publish_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, EVERYBODYS)
}

/// What every such file holds: the process that wrote it.
#[derive(Deserialize)]
struct Written {
    instance: Instance,
}

/// Removes it as this process ends, and tells whether it did. What another instance wrote that has the directory by now
/// stays.
pub(crate) fn withdraw(state: &Path, name: &str) -> bool {
    let is_own = |file: Written| Instance::this().is_ok_and(|this| this == file.instance);
    let is_removed = stored(state, name).is_some_and(is_own);
    if is_removed {
        remove(state, name);
    }
    is_removed
}

/// Removes it; fine when there is none.
pub(crate) fn remove(state: &Path, name: &str) {
    let _ = fs::remove_file(state.join(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn everybody_may_read_only_what_is_published() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.json", &1).unwrap();
        publish_bytes(dir.path(), "b.json", b"2");
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!([mode("a.json") & 0o777, mode("b.json") & 0o777], [OWNERS, EVERYBODYS]);
        assert_eq!(stored::<u8>(dir.path(), "b.json"), Some(2));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no part is left");
    }
}
