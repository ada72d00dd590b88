//! Other people's schedulers: packages of the crates registry, built once into the cache.
//!
//! `cargo install` does it, so the registry and mirrors are the user's own. What such a build needs
//! (clang, libelf, zlib) is looked for first, so that minutes of compiling do not end in a riddle.

use crate::lab::Progress;
use instep_lab::cache::Cache;
use instep_lab::{Error, Stop, command};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where they are in the cache.
const PEERS: &str = "peers";
/// How long building one may take.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
const SHORT: Duration = Duration::from_secs(30);
/// Compilers that can make BPF for sched_ext, the preferred first (16 is the least that works).
const CLANGS: [&str; 7] =
    ["clang-19", "clang-20", "clang-21", "clang-18", "clang-17", "clang-16", "clang"];

/// The program of a package, if it was built into the cache before.
pub(super) fn built(name: &str) -> Option<PathBuf> {
    let root = Cache::open().ok()?.path(&format!("{PEERS}/{name}"));
    program_in(&root, name)
}

fn program_in(root: &Path, name: &str) -> Option<PathBuf> {
    Some(root.join("bin").join(name)).filter(|path| path.is_file())
}

/// The program of a package: from the cache, else built.
///
/// # Errors
/// What is missing to build it, or why that failed; interrupted.
pub(super) fn program(name: &str, stop: &Stop, progress: &Progress) -> Result<PathBuf, Error> {
    let cache = Cache::open()?;
    let entry = format!("{PEERS}/{name}");
    if let Some(path) = program_in(&cache.path(&entry), name) {
        return Ok(path);
    }
    let clang = needs(stop)?;
    progress.say(&format!("building {name} from the crates registry, once: this takes minutes"));
    let root = cache.fill(&entry, |into| {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "--root"]).arg(into).arg(name);
        // Kept beside the results, a second package of the kind builds in half the time.
        cargo.env("CARGO_TARGET_DIR", cache.path(&format!("{PEERS}/target")));
        cargo.env("BPF_CLANG", &clang);
        command::succeed(&mut cargo, LIMIT, stop).map(drop)
    })?;
    program_in(&root, name).ok_or_else(|| {
        let what = format!("the package {name} has no program {name}");
        Error::missing(what, format!("build it yourself and give --peer {name}=PATH"))
    })
}

/// Looks for what building needs; the compiler for BPF.
fn needs(stop: &Stop) -> Result<String, Error> {
    let works = |program: &str, args: &[&str]| {
        command::succeed(Command::new(program).args(args), SHORT, stop).is_ok()
    };
    if !works("cargo", &["--version"]) {
        return Err(Error::missing("cargo is not found", "install Rust, or give --peer NAME=PATH"));
    }
    let own = std::env::var("BPF_CLANG").ok();
    let names = own.iter().map(String::as_str).chain(CLANGS);
    let mut clangs = names.filter(|name| works(name, &["--version"]));
    let Some(clang) = clangs.next().map(str::to_owned) else {
        let next = "install it: apt-get install clang-19";
        return Err(Error::missing("no clang of version 16 or later is found", next));
    };
    if !works("pkg-config", &["--exists", "libelf", "zlib"]) {
        let next = "install them: apt-get install libelf-dev zlib1g-dev pkg-config";
        return Err(Error::missing("libelf and zlib are not found by pkg-config", next));
    }
    Ok(clang)
}
