//! Files in the state directory by which a run tells others of itself, each replaced as a whole.

use instep_host::apply::Instance;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The most that is read of one.
const MAX_FILE: u64 = 1 << 20;

/// What the file of this name holds; `None` when there is none, or none of this kind.
pub(crate) fn stored<T: DeserializeOwned>(state: &Path, name: &str) -> Option<T> {
    let path = state.join(name);
    let is_fit = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= MAX_FILE);
    let bytes = is_fit.then(|| std::fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes the file of this name, all at once.
///
/// # Errors
/// The directory is full or gone.
pub(crate) fn write(state: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
    let (part, whole) = (state.join(name).with_extension("part"), state.join(name));
    std::fs::write(&part, bytes)?;
    std::fs::rename(&part, &whole)
}

/// What every such file holds: the process that wrote it.
#[derive(Deserialize)]
struct Written {
    instance: Instance,
}

/// Removes it as this process ends. What another instance wrote that has the directory by now stays.
pub(crate) fn withdraw(state: &Path, name: &str) {
    let is_own = |file: Written| Instance::this().is_ok_and(|this| this == file.instance);
    if stored(state, name).is_some_and(is_own) {
        remove(state, name);
    }
}

/// Removes it; fine when there is none.
pub(crate) fn remove(state: &Path, name: &str) {
    let _ = std::fs::remove_file(state.join(name));
}
