//! What the compiler does not check: which crate may know which, how long files are, how they begin and are called, what
//! must not be written down in them, whether tests assert something, and where links of the documents lead.

mod asserting;
mod files;
mod layering;
mod links;
mod names;
mod programs;

use anyhow::{Context, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something tidy has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Fails the check; a warning otherwise.
    pub(crate) fatal: bool,
    /// What and where.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn error(what: impl Into<String>) -> Self {
        Self { fatal: true, what: what.into() }
    }

    pub(crate) fn warning(what: impl Into<String>) -> Self {
        Self { fatal: false, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.fatal { "error" } else { "warning" };
        write!(f, "tidy: {kind}: {}", self.what)
    }
}

/// Checks the workspace at `root`, prints what was found, and says whether nothing was fatal.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut findings = layering::check(&layering::packages(root)?);
    let files = tracked(root)?;
    let mut texts = links::Texts::new();
    for file in &files {
        if let Ok(bytes) = std::fs::read(root.join(file)) {
            findings.extend(files::check(file, &bytes));
            texts.insert(file.clone(), String::from_utf8(bytes).unwrap_or_default());
        }
    }
    findings.extend(links::check(&texts));
    findings.extend(names::check(&texts));
    findings.extend(asserting::check(&texts));
    findings.extend(programs::check(&texts));
    for finding in &findings {
        eprintln!("{finding}");
    }
    let fatal = findings.iter().filter(|finding| finding.fatal).count();
    eprintln!("tidy: {} files, {} warnings, {fatal} errors", files.len(), findings.len() - fatal);
    Ok(fatal == 0)
}

/// Files that git tracks or would, relative to `root`; all of them where there is no git.
fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    match listed {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
        }
        _ => {
            let mut files = Vec::new();
            walk(root, Path::new(""), &mut files)?;
            Ok(files)
        }
    }
}

fn walk(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    const SKIPPED: [&str; 4] = ["target", ".git", "corpus", "artifacts"];
    let dir = root.join(below);
    let entries =
        std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let path = below.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            walk(root, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}
