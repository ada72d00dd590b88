//! Builds `instep-load` for guests: one static file that needs no library, and says where it is.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it and prints its path.
pub(crate) fn run(root: &Path) -> Result<()> {
    println!("{}", build(root)?.display());
    Ok(())
}

/// Builds it; the path of the program.
///
/// With `--target` the flags reach neither build scripts nor procedural macros, and the result
/// has a directory of its own: other builds stay as they are.
fn build(root: &Path) -> Result<PathBuf> {
    let target = host_target()?;
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--package", "instep-load", "--release", "--target", &target])
        .env(variable, "-C target-feature=+crt-static -C strip=symbols")
        .env_remove("RUSTFLAGS")
        .status()
        .context("cannot run cargo build")?;
    if !status.success() {
        bail!("building instep-load failed; it needs libc.a: apt-get install libc6-dev");
    }
    let directory =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(root.join(directory).join(target).join("release/instep-load"))
}

/// The target that this machine's compiler builds for by default.
fn host_target() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc -vV")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
