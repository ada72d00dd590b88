//! Where the real traces are that tests read.

use instep_madehost::skip;
use std::path::{Path, PathBuf};

/// A trace of ../shared/data; notes the reason and gives nothing where it is absent.
pub(crate) fn shared(file: &str) -> Option<PathBuf> {
    let root = std::env::var_os("INSTEP_SHARED_DATA").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = root.unwrap_or_else(beside).join("traces").join(file);
    if !path.exists() {
        skip::note(&format!("{} is absent (INSTEP_SHARED_DATA names its folder)", path.display()));
        return None;
    }
    Some(path)
}
