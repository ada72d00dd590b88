//! Runs cargo and other commands: what they built, what they printed.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds for release with these arguments, and where the target `name` is then.
pub(crate) fn built(root: &Path, args: &[&str], name: &str) -> Result<PathBuf> {
    let mut command = cargo(root, &["build", "--release"]);
    let text = done(command.args(args).args(["--message-format", "json-render-diagnostics"]))?;
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut found = messages.filter_map(|message: serde_json::Value| {
        let its = message["target"]["name"].as_str()?;
        (its == name).then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    found.next_back().with_context(|| format!("cargo build names no executable `{name}`"))
}

/// The cargo that runs this program, in the workspace.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(args);
    command
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
