//! Packages: the man pages and completions, and the programs that need nothing but the C library.
//!
//! Everything is made below `target/package`. The metadata of the package `instep` are in `crates/cli/Cargo.toml`,
//! those of `instep-lab` in `crates/lab/Cargo.toml`; what they hold besides the programs is in `packaging/` and
//! `scenarios/`.

use crate::built::cargo;
use crate::{bpf, load};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// With the kernel scheduler, and libelf and zlib inside.
const FEATURE: &str = "instep-cli/kernel-static";

/// Writes man pages and completions to `target/package`, and prints where.
pub(crate) fn write_pages(root: &Path) -> Result<()> {
    let directory = directory(root);
    for old in ["man", "completions"] {
        let old = directory.join(old);
        if old.exists() {
            fs::remove_dir_all(&old).with_context(|| format!("cannot empty {}", old.display()))?;
        }
    }
    cargo(root, &["run", "--quiet", "--package", "instep-cli", "--example", "pages", "--"])
        .arg(&directory)
        .status_ok()?;
    println!("{}", directory.display());
    Ok(())
}

/// The programs, each with a package of its name.
const PROGRAMS: [&str; 2] = ["instep", "instep-lab"];

/// Builds the programs and the Debian packages, and prints the packages' paths.
pub(crate) fn deb(root: &Path) -> Result<()> {
    build(root)?;
    let made = directory(root).join("deb");
    for package in ["instep-cli", "instep-lab"] {
        let mut deb =
            cargo(root, &["deb", "--package", package, "--no-build", "--strip", "--output"]);
        deb.arg(&made).status_ok().context("is cargo-deb there? cargo install cargo-deb")?;
    }
    Ok(())
}

/// Builds the programs and the RPM packages, and prints where they are.
pub(crate) fn rpm(root: &Path) -> Result<()> {
    let built = build(root)?;
    let made = directory(root).join("rpm");
    fs::create_dir_all(&made)?;
    for (program, package) in PROGRAMS.into_iter().zip(["crates/cli", "crates/lab"]) {
        let stripped = directory(root).join(program);
        Command::new("strip").arg("-o").arg(&stripped).arg(built.join(program)).status_ok()?;
        let mut rpm = cargo(root, &["generate-rpm", "--package", package, "--output"]);
        rpm.arg(&made).status_ok().context("is it there? cargo install cargo-generate-rpm")?;
    }
    println!("{}", made.display());
    Ok(())
}

/// Builds the programs for packages, and what these hold besides; the programs' directory.
fn build(root: &Path) -> Result<PathBuf> {
    let clang =
        bpf::clang().map_err(anyhow::Error::msg).context("a package has the kernel scheduler")?;
    let archives = archives()?;
    write_pages(root)?;
    for program in PROGRAMS {
        compress_pages(&directory(root).join("man").join(program))?;
    }
    let guest = load::build(root)?;
    let packed = directory(root).join("instep-load");
    fs::copy(&guest, &packed).with_context(|| format!("cannot copy {}", guest.display()))?;
    cargo(root, &["build", "--release", "--package", "instep-cli", "--features", FEATURE])
        .env("BPF_CLANG", clang)
        .env("LIBBPF_SYS_LIBRARY_PATH", archives)
        .status_ok()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(root.join(target).join("release"))
}

/// The directory of libelf.a and libz.a, which libbpf-sys does not find by itself.
fn archives() -> Result<PathBuf> {
    let mut directory = PathBuf::new();
    for name in ["libelf.a", "libz.a"] {
        let output = Command::new("cc").arg(format!("-print-file-name={name}")).output();
        let path = String::from_utf8(output.context("cannot run cc")?.stdout)?;
        // The compiler answers with the bare name for what it does not find.
        match Path::new(path.trim()).parent().filter(|parent| parent.is_absolute()) {
            Some(parent) => directory = parent.to_owned(),
            None => bail!("there is no {name}: apt-get install libelf-dev zlib1g-dev"),
        }
    }
    Ok(directory)
}

/// Debian has man pages compressed, without a time in them.
fn compress_pages(directory: &Path) -> Result<()> {
    let pages = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let pages: Vec<PathBuf> = pages.collect::<Result<_>>()?;
    Command::new("gzip").args(["-9", "--no-name", "--force"]).args(pages).status_ok()
}

/// Where the metadata of the packages look for it.
fn directory(root: &Path) -> PathBuf {
    root.join("target/package")
}

/// Runs a command that must not fail.
trait StatusOk {
    fn status_ok(&mut self) -> Result<()>;
}

impl StatusOk for Command {
    fn status_ok(&mut self) -> Result<()> {
        let name = self.get_program().to_string_lossy().into_owned();
        let status = self.status().with_context(|| format!("cannot run {name}"))?;
        if !status.success() {
            let arguments: Vec<_> = self.get_args().map(|it| it.to_string_lossy()).collect();
            bail!("{name} {} failed: {status}", arguments.join(" "));
        }
        Ok(())
    }
}
