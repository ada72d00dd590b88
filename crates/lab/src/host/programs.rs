//! Programs of this machine taken into the emulated host, with the shared libraries they need.
//!
//! `ldd` tells the libraries: it is run on programs of this machine only.

use crate::command;
use crate::error::Error;
use crate::image::is_static_elf;
use crate::stop::Stop;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Programs that scenarios like to use, and Debian's packages that have them.
pub const PACKAGES: [(&str, &str); 5] = [
    ("perf", "linux-perf"),
    ("trace-cmd", "trace-cmd"),
    ("stress-ng", "stress-ng"),
    ("hackbench", "rt-tests"),
    ("cyclictest", "rt-tests"),
];

/// A file to be put into the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packed {
    /// Its path inside, without a leading slash.
    pub inside: String,
    /// The file of this machine.
    pub file: PathBuf,
}

/// The program at `file` as `usr/bin/NAME`, and its libraries at the paths where it looks for them; those in
/// `first` go before this machine's.
///
/// # Errors
/// When it cannot be read or a library is not found.
pub fn with_libraries(
    file: &Path,
    name: &str,
    first: Option<&Path>,
    stop: &Stop,
) -> Result<Vec<Packed>, Error> {
    let bytes = fs::read(file).map_err(|error| Error::io("read", file, error))?;
    let mut all = vec![Packed { inside: format!("usr/bin/{name}"), file: file.to_owned() }];
    if is_static_elf(&bytes) || bytes.starts_with(b"#!") {
        return Ok(all);
    }
    let mut ldd = Command::new("ldd");
    if let Some(first) = first {
        ldd.env("LD_LIBRARY_PATH", first);
    }
    let printed = command::succeed(ldd.arg(file), LIMIT, stop)?;
    let libraries = parse_ldd(&printed).map_err(|library| {
        let what = format!("{} needs {library}, which is not found", file.display());
        Error::missing(what, "install its package")
    })?;
    all.extend(libraries.into_iter().map(|path| Packed {
        inside: path.trim_start_matches('/').to_owned(),
        file: PathBuf::from(path),
    }));
    Ok(all)
}

/// Where a library of this machine is that no program names.
///
/// # Errors
/// When it is not there.
pub fn library(name: &str) -> Result<PathBuf, Error> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = dirs.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let what = format!("the library {name} is not in {}", dirs.join(", "));
        Error::missing(what, "install its package")
    })
}

/// The file of a program named in a scenario (a path, or a name looked up in PATH), and its name.
///
/// # Errors
/// When there is no such file: with the package that has it, where that is known.
pub fn find(name: &str) -> Result<(PathBuf, String), Error> {
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|path| path.is_file())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
    };
    let Some(file) = found else {
        let install = PACKAGES.iter().find(|(known, _)| *known == name);
        let next = match install {
            Some((_, package)) => format!("install it: apt-get install {package}"),
            None => "install its package, or name its path".to_owned(),
        };
        return Err(Error::missing(format!("no program {name} found"), next));
    };
    let inside = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((file, inside))
}

/// The absolute paths of libraries in the output of `ldd`, each once, sorted; `Err` is the first
/// that is not found.
///
/// # Errors
/// The name of a library that is not found.
pub fn parse_ldd(text: &str) -> Result<Vec<String>, String> {
    let mut paths = BTreeSet::new();
    for line in text.lines() {
        let line = line.trim();
        let (name, target) = line.split_once(" => ").unwrap_or((line, line));
        if target.starts_with("not found") {
            return Err(name.to_owned());
        }
        let path = target.split(" (").next().unwrap_or(target).trim();
        if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
            paths.insert(path.to_owned());
        }
    }
    Ok(paths.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_listed_and_the_vdso_is_not() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x1)\n";
        assert_eq!(parse_ldd(text).unwrap(), ["/lib/x/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn a_missing_library_is_named() {
        assert_eq!(parse_ldd("\tlibx.so => not found\n"), Err("libx.so".to_owned()));
        assert_eq!(parse_ldd("\tstatically linked\n"), Ok(Vec::new()));
    }

    #[test]
    fn program_is_found_by_path_and_a_missing_one_names_its_package() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(find(own.to_str().unwrap()).unwrap().0, own);
        let error = find("no-such-program").unwrap_err().to_string();
        assert!(error.contains("install its package"), "{error}");
        if let Err(error) = find("hackbench") {
            assert!(error.to_string().contains("apt-get install rt-tests"), "{error}");
        }
    }

    #[test]
    fn this_test_needs_the_c_library() {
        let own = std::env::current_exe().unwrap();
        let all = with_libraries(&own, "test", None, &Stop::never()).unwrap();
        assert_eq!(all[0].inside, "usr/bin/test");
        assert!(all.iter().any(|packed| packed.inside.contains("libc.so")), "{all:?}");
    }
}
