//! Builds `instep-load` for guests: one static file that needs no library, and says where it is.

use crate::built::cargo;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it and prints its path.
pub(crate) fn run(root: &Path) -> Result<()> {
    let program = build(root)?;
    let bytes = std::fs::read(&program).with_context(|| format!("{}", program.display()))?;
    match asks_for_loader(&bytes) {
        Some(false) => println!("{}", program.display()),
        Some(true) => bail!("{} is not static: it asks for a loader", program.display()),
        None => bail!("{} is no 64-bit little-endian ELF file", program.display()),
    }
    Ok(())
}

/// Whether a 64-bit ELF file names an interpreter (PT_INTERP), that is, needs files at run time;
/// `None` if it is no such file.
fn asks_for_loader(bytes: &[u8]) -> Option<bool> {
    const INTERPRETER: [u8; 4] = 3_u32.to_le_bytes();
    let half = |at: usize| {
        let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(usize::from(u16::from_le_bytes(bytes)))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    let (size, count) = (half(54)?, half(56)?);
    let headers = bytes.get(usize::try_from(table).ok()?..)?.get(..size.checked_mul(count)?)?;
    Some(size > 0 && headers.chunks(size).any(|header| header.starts_with(&INTERPRETER)))
}

/// Builds it; the path of the program.
///
/// With `--target` the flags reach neither build scripts nor procedural macros, and the result
/// has a directory of its own: other builds stay as they are.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let target = host_target()?;
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    let status =
        cargo(root, &["build", "--package", "instep-load", "--release", "--target", &target])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_need_a_loader_are_recognised() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(asks_for_loader(&own), Some(true));
        assert_eq!(asks_for_loader(b"#!/bin/sh"), None);
        assert_eq!(asks_for_loader(&own[..60]), None);
    }
}
