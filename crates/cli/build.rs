//! Tells `--version` which commit is built: that of git, or what the variable `INSTEP_COMMIT` says where the
//! source comes without git.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=INSTEP_COMMIT");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let named = std::env::var("INSTEP_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo:rustc-env=INSTEP_COMMIT={}", commit.as_deref().unwrap_or("unknown commit"));
}

/// What git prints, if it knows.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
