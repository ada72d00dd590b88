//! Runs cargo and other commands for the benchmarks: what they built, what they printed.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds for release with these arguments, and where the target `name` is then.
pub(crate) fn built(root: &Path, args: &[&str], name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--release"]).args(args);
    let text = done(command.args(["--message-format", "json-render-diagnostics"]))?;
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut found = messages.filter_map(|message: serde_json::Value| {
        let its = message["target"]["name"].as_str()?;
        (its == name).then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    found.next_back().with_context(|| format!("cargo build names no executable `{name}`"))
}

/// What a command printed that succeeded.
pub(crate) fn done(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
