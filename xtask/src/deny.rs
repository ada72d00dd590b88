//! Holds the dependencies against `deny.toml`: licences, crates that are banned and where crates come from; and, where the
//! data of known defects were fetched (`cargo deny fetch`), those.

use crate::built::cargo;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo-deny keeps what `cargo deny fetch` got, below the directory of cargo.
const ADVISORIES: &str = "advisory-dbs";

/// Whether cargo-deny can be run.
pub(crate) fn is_installed() -> bool {
    let output = Command::new("cargo-deny").arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// What is not checked, and what to do about it.
pub(crate) fn skipped() -> Option<&'static str> {
    match (is_installed(), has_advisories()) {
        (false, _) => {
            Some("dependencies by deny.toml: no cargo-deny here: cargo install cargo-deny")
        }
        (true, false) => Some(
            "known defects of dependencies: their list is in no package registry: `cargo deny fetch` gets it",
        ),
        (true, true) => None,
    }
}

/// Runs it; whether it found nothing wrong.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut checks = vec!["licenses", "bans", "sources"];
    if has_advisories() {
        checks.push("advisories");
    }
    // It looks at crates for all systems, of which only those for this one were needed so far.
    let fetched = cargo(root, &["fetch", "--locked", "--quiet"]).status();
    fetched.context("cannot run cargo fetch")?;
    let mut command = Command::new("cargo-deny");
    command.current_dir(root).args(["--offline", "--log-level", "error", "check"]);
    let status = command.arg("--hide-inclusion-graph").args(checks).status();
    Ok(status.context("cannot run cargo-deny")?.success())
}

fn has_advisories() -> bool {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    cargo.is_some_and(|cargo| holds_clone(&cargo.join(ADVISORIES)))
}

/// Whether there is a clone in this directory. A fetch that failed leaves only a lock in it.
fn holds_clone(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join(".git").exists())
}

#[cfg(test)]
mod tests {
    use super::holds_clone;

    #[test]
    fn fetch_that_failed_leaves_no_clone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!holds_clone(&dir.path().join("none")));
        std::fs::write(dir.path().join("db.lock"), "").unwrap();
        std::fs::create_dir(dir.path().join("advisory-db-1")).unwrap();
        assert!(!holds_clone(dir.path()));
        std::fs::create_dir(dir.path().join("advisory-db-1/.git")).unwrap();
        assert!(holds_clone(dir.path()));
    }
}
