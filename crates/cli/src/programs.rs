//! Where each of the two programs finds the other: beside itself first, then in PATH.

use crate::VERSION;
use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The operator's program.
pub const INSTEP: &str = "instep";

/// The program of the laboratory, and the package that has it.
pub const LABORATORY: &str = "instep-lab";

/// Why the other program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there.
    #[error(
        "{name} is neither in {} nor in PATH; install the package {name}, or build it: cargo \
         build --release -p instep-cli",
        .dir.display()
    )]
    Missing {
        /// The program.
        name: &'static str,
        /// The directory of this program, which is looked at first.
        dir: PathBuf,
    },
    /// It is there, and of another build.
    #[error(
        "{} is of another build ({says}) than this program ({VERSION}); install both packages \
         of one version, or build both: cargo build --release -p instep-cli",
        .path.display()
    )]
    OtherBuild {
        /// Its path.
        path: PathBuf,
        /// What it says of itself, or why it says nothing.
        says: String,
    },
}

/// The path of this program.
///
/// # Errors
/// Where the system does not tell it.
pub fn own_path() -> anyhow::Result<PathBuf> {
    env::current_exe()
        .map_err(|error| anyhow::anyhow!("cannot find the path of this program: {error}"))
}

/// The path of the program `name`.
///
/// # Errors
/// When it is neither beside this program nor in PATH.
pub fn find(name: &'static str) -> Result<PathBuf, Error> {
    let own = env::current_exe().unwrap_or_default();
    find_from(name, &own, &env::var_os("PATH").unwrap_or_default())
}

fn find_from(name: &'static str, own: &Path, path: &std::ffi::OsStr) -> Result<PathBuf, Error> {
    let dir = own.parent().unwrap_or(Path::new("/"));
    // A relative directory in PATH is whatever the user stands in.
    let dirs = env::split_paths(path).filter(|dir| dir.is_absolute());
    let mut candidates = std::iter::once(dir.to_owned()).chain(dirs).map(|dir| dir.join(name));
    candidates
        .find(|path| is_executable(path))
        .ok_or_else(|| Error::Missing { name, dir: dir.to_owned() })
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The path of the operator's program, of the same build as this one: reports of measurements name the commit of this
/// program.
///
/// # Errors
/// When it is missing or of another build.
pub fn find_instep() -> Result<PathBuf, Error> {
    let path = find(INSTEP)?;
    let asked = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let says = match asked {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let version = says.strip_prefix(INSTEP).map(str::trim_start);
    if version == Some(VERSION) {
        return Ok(path);
    }
    let says = version.map(str::to_owned).unwrap_or(says);
    Err(Error::OtherBuild { path, says: crate::text::printable(&says) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory with an executable file of this name.
    fn with_program(dir: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        let file = dir.join(name);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[test]
    fn program_beside_comes_before_one_in_path() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        let own = with_program(&here, INSTEP);
        let path = env::join_paths([Path::new("."), &there]).unwrap();
        let find = || find_from(LABORATORY, &own, &path);
        let said = find().unwrap_err().to_string();
        assert!(said.contains(&format!("neither in {} nor", here.display())), "{said}");
        assert!(said.contains("install the package instep-lab"), "{said}");
        let in_path = with_program(&there, LABORATORY);
        assert_eq!(find().unwrap(), in_path);
        // A directory or a file that cannot be run is not the program.
        fs::create_dir(here.join(LABORATORY)).unwrap();
        assert_eq!(find().unwrap(), in_path);
        fs::remove_dir(here.join(LABORATORY)).unwrap();
        let beside = with_program(&here, LABORATORY);
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find().unwrap(), in_path);
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find().unwrap(), beside);
    }
}
