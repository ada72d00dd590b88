//! What the tests over real traces share: where they are, reading them, and running other tools.

use instep_madehost::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// What another tool prints; notes the reason and gives nothing where it is missing or fails.
#[allow(dead_code, reason = "not every test that includes this file runs tools")]
pub(crate) fn printed(tool: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(tool).args(args).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            skip::note(&format!("{tool} {args:?} failed: {}", output.status));
            None
        }
        Err(error) => {
            skip::note(&format!("{tool} cannot be run: {error}"));
            None
        }
    }
}
