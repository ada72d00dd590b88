//! Holds the dependencies against `deny.toml`: licences, crates that are banned and where crates come from; and, where the
//! data of known defects were fetched (`cargo deny fetch`), those. Asks no server.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Where cargo-deny keeps what `cargo deny fetch` got, below the directory of cargo.
const ADVISORIES: &str = "advisory-dbs";

/// Whether cargo-deny can be run.
pub(crate) fn is_installed() -> bool {
    let output = Command::new("cargo-deny").arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Runs it; whether it found nothing wrong.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut checks = vec!["licenses", "bans", "sources"];
    if has_advisories() {
        checks.push("advisories");
    } else {
        eprintln!("known defects of dependencies are not looked up: run `cargo deny fetch` first");
    }
    let mut command = Command::new("cargo-deny");
    command.current_dir(root).args(["--offline", "--log-level", "error", "check"]);
    let status = command.arg("--hide-inclusion-graph").args(checks).status();
    Ok(status.context("cannot run cargo-deny")?.success())
}

fn has_advisories() -> bool {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(Into::into).or(home);
    cargo.is_some_and(|cargo| cargo.join(ADVISORIES).exists())
}
