//! Where the files go that a scenario brings back: under their own names into a directory that is
//! the lab's, and never over what is there. A scenario may come from anywhere.

use super::Scenario;
use crate::error::Error;
use crate::host::REGISTERS;
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Below the current directory, when the user names none.
const DIR: &str = "instep-lab";

/// The name that a file of the host gets.
///
/// # Errors
/// Why it is none: it would be hidden, or meet what the lab itself keeps.
pub(super) fn name(path: &str) -> Result<&str, String> {
    let Some(name) = Path::new(path).file_name().and_then(|name| name.to_str()) else {
        return Err(format!("fetch: {path:?} names no file"));
    };
    if name.starts_with('.') {
        return Err(format!("fetch: {name:?} begins with a dot; give the file another name"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("fetch: {name:?} has control characters"));
    }
    let guest = name.starts_with("guest-") && name.ends_with(".txt");
    if guest || ["console.txt", "dmesg.txt", REGISTERS, "report.json"].contains(&name) {
        return Err(format!("fetch: {name} is a name of the lab's own; give the file another"));
    }
    Ok(name)
}

/// Where this run's files go, and those it has written: a run that is begun again replaces its own.
#[derive(Debug)]
pub(super) struct Fetched {
    dir: PathBuf,
    written: BTreeSet<PathBuf>,
}

impl Fetched {
    /// Into `keep`, if the user named it.
    ///
    /// # Errors
    /// When a file that the scenario fetches is there already: better now than after the run.
    pub(super) fn new(scenario: &Scenario, keep: Option<&Path>) -> Result<Self, Error> {
        let dir = keep.map_or_else(|| PathBuf::from(DIR), Path::to_owned);
        for path in scenario.step.iter().filter_map(|step| step.fetch.as_deref()) {
            let target = dir.join(name(path).unwrap_or_default());
            if target.symlink_metadata().is_ok() {
                return Err(there(&target));
            }
        }
        Ok(Self { dir, written: BTreeSet::new() })
    }

    /// Writes the file that was at `path` in the host; returns where it is.
    ///
    /// # Errors
    /// When it cannot be written, or a file is there that this run has not written.
    pub(super) fn save(&mut self, path: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let name = name(path).map_err(|what| Error::missing(what, "name the file otherwise"))?;
        fs::create_dir_all(&self.dir).map_err(|error| Error::io("make", &self.dir, error))?;
        let target = self.dir.join(name);
        if self.written.contains(&target) {
            fs::remove_file(&target).map_err(|error| Error::io("replace", &target, error))?;
        }
        let mut file = fs::File::create_new(&target).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => there(&target),
            _ => Error::io("make", &target, error),
        })?;
        self.written.insert(target.clone());
        file.write_all(bytes).map_err(|error| {
            // Half of it would be in the way of the next run.
            let _ = fs::remove_file(&target);
            Error::io("write", &target, error)
        })?;
        Ok(target)
    }
}

fn there(target: &Path) -> Error {
    let what = format!("{} is there already and is not overwritten", target.display());
    Error::Refused { what, next: "move it away, or name another directory: --keep DIR".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let text = "about = 'x'\n[host]\ncores = 1\nmemory = '512MiB'\n\
                    [[step]]\nfetch = '/tmp/result'\n";
        Scenario::parse(text, "x").unwrap()
    }

    #[test]
    fn what_is_there_is_never_overwritten_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("mine"), "mine").unwrap();
        let mut fetched = Fetched::new(&scenario(), Some(dir.path())).unwrap();
        std::os::unix::fs::symlink(at("mine"), at("result")).unwrap();
        let error = fetched.save("/tmp/result", b"theirs").unwrap_err().to_string();
        assert!(error.contains("there already") && error.contains("--keep"), "{error}");
        assert_eq!(fs::read_to_string(at("mine")).unwrap(), "mine");
        let error = Fetched::new(&scenario(), Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("there already"), "before anything boots: {error}");
    }

    #[test]
    fn a_run_that_is_begun_again_replaces_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut fetched = Fetched::new(&scenario(), Some(dir.path())).unwrap();
        fetched.save("/tmp/result", b"first").unwrap();
        let target = fetched.save("/tmp/result", b"again").unwrap();
        assert_eq!(fs::read_to_string(target).unwrap(), "again");
    }

    #[test]
    fn without_a_directory_files_go_below_one_of_the_lab_s() {
        let fetched = Fetched::new(&scenario(), None).unwrap();
        assert_eq!(fetched.dir, Path::new("instep-lab"));
    }
}
