//! Tells `--version` which commit is built: that of git, or what the variable `INSTEP_COMMIT` says where the
//! source comes without git. Lists the scenarios of `sim` and `lab`, which are built in.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-env-changed=INSTEP_COMMIT");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let named = env::var("INSTEP_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo:rustc-env=INSTEP_COMMIT={}", commit.as_deref().unwrap_or("unknown commit"));
    list_scenarios().expect("scenarios/ is beside crates/, and cargo's directory can be written");
}

/// Writes `SIM` and `LAB`, which hold the name and the text of each scenario, in the order of names.
fn list_scenarios() -> io::Result<()> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut code = String::new();
    for kind in ["sim", "lab"] {
        let dir = all.join(kind).canonicalize()?;
        println!("cargo:rerun-if-changed={}", dir.display());
        let entries = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
        let mut files = entries.collect::<io::Result<Vec<_>>>()?;
        files.sort();
        _ = writeln!(code, "const {}: &[(&str, &str)] = &[", kind.to_uppercase());
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "toml")) {
            let name = file.file_stem().unwrap_or_default();
            _ = writeln!(code, "({name:?}, include_str!({file:?})),");
        }
        code.push_str("];\n");
    }
    fs::write(Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("scenarios.rs"), code)
}

/// What git prints, if it knows.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
