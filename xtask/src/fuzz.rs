//! Writes the seeds of the fuzz targets from made hosts, and runs the targets with cargo-fuzz.
//!
//! Skips with a reason where there is no nightly toolchain or no cargo-fuzz: the plain test
//! crates/agent/tests/parsers.rs feeds the same functions everywhere.

#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

use anyhow::{Context, Result, bail};
use instep_madehost::{HostSize, random, scratch_dir};
use std::path::Path;
use std::process::{Command, Stdio};

/// Made hosts whose files become seeds.
const SEED_HOSTS: u64 = 6;

/// Writes the seeds to fuzz/corpus/TARGET; those that are there stay.
pub(crate) fn write_seeds(root: &Path) -> Result<()> {
    let mut written = 0;
    for seed in 0..SEED_HOSTS {
        let dir = scratch_dir().context("cannot make a scratch directory")?;
        let limits = HostSize { nodes: 3, cores_per_node: 4, vms: 7, vcpus: 4, oddities: true };
        random(seed, limits).write(dir.path()).context("cannot write a made host")?;
        for (index, (target, bytes)) in seeds::collect(dir.path())?.into_iter().enumerate() {
            let corpus = root.join("fuzz/corpus").join(target);
            std::fs::create_dir_all(&corpus)
                .with_context(|| format!("cannot make {}", corpus.display()))?;
            let file = corpus.join(format!("seed-{seed}-{index}"));
            std::fs::write(&file, bytes)
                .with_context(|| format!("cannot write {}", file.display()))?;
            written += 1;
        }
    }
    eprintln!("fuzz: {written} seeds in fuzz/corpus");
    Ok(())
}

/// Runs the targets with these names, or all, each for some seconds; whether none found anything.
pub(crate) fn run(root: &Path, seconds: u32, named: &[String]) -> Result<bool> {
    if let Some(missing) = missing_tool() {
        eprintln!("fuzz: skipped: {missing}");
        return Ok(true);
    }
    let all = targets(root)?;
    if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target is called {unknown}; there are {}", all.join(", "));
    }
    write_seeds(root)?;
    let chosen: Vec<&String> =
        all.iter().filter(|name| named.is_empty() || named.contains(name)).collect();
    let mut failed = Vec::new();
    for target in &chosen {
        eprintln!("==> {target} for {seconds} s");
        if !fuzz_one(root, target, seconds)? {
            failed.push(target.as_str());
        }
    }
    eprintln!("fuzz: {} targets run, {} with findings {failed:?}", chosen.len(), failed.len());
    Ok(failed.is_empty())
}

/// Names of the targets, from the manifest.
fn targets(root: &Path) -> Result<Vec<String>> {
    let manifest = root.join("fuzz/Cargo.toml");
    let text = std::fs::read_to_string(&manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    let bins = text.split("[[bin]]").skip(1);
    let name = |bin: &str| {
        let line = bin.lines().find_map(|line| line.strip_prefix("name = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    Ok(bins.filter_map(name).collect())
}

/// What is not installed, if anything.
fn missing_tool() -> Option<&'static str> {
    let works = |args: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        outside_this_toolchain(&mut cargo);
        cargo.status().is_ok_and(|status| status.success())
    };
    if !works(&["+nightly", "--version"]) {
        return Some("no nightly toolchain (rustup toolchain install nightly)");
    }
    if !works(&["fuzz", "--version"]) {
        return Some("no cargo-fuzz (cargo install cargo-fuzz)");
    }
    None
}

/// Lets `cargo +nightly` choose its own toolchain although another cargo runs this.
fn outside_this_toolchain(command: &mut Command) {
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
}

fn fuzz_one(root: &Path, target: &str, seconds: u32) -> Result<bool> {
    let mut cargo = Command::new("cargo");
    outside_this_toolchain(&mut cargo);
    let status = cargo
        .current_dir(root)
        .args(["+nightly", "fuzz", "run", target, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=65536", "-timeout=5", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .arg("-verbosity=0")
        .status()
        .with_context(|| format!("cannot run cargo fuzz on {target}"))?;
    Ok(status.success())
}
