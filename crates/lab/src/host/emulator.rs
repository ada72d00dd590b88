//! The QEMU that runs emulated hosts: this machine's own where it is new enough, else the one of its
//! suite's backports, unpacked into the cache.
//!
//! QEMU 7.2 dies of kernels that change their own code and takes interrupts at the wrong time (docs/lab.md);
//! 10.0 was not seen to. Where none newer can be had, this machine's own does, and that is said. It must be there in any
//! case: its package brings the libraries.

use super::programs;
use crate::apt::Apt;
use crate::cache::Cache;
use crate::command;
use crate::error::Error;
use crate::stop::Stop;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program that runs machines.
pub const QEMU: &str = "qemu-system-x86_64";
/// What to do where it is not.
pub const INSTALL_QEMU: &str = "install it: apt-get install qemu-system-x86";

/// The least major version that is new enough.
const LEAST: u32 = 10;
/// The packages of the emulator, its firmware among them; its libraries are those of this machine.
const PACKAGES: [&str; 4] =
    ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];
/// What is kept of them: the program, and the directories that it reads firmware from.
const PROGRAM: &str = "usr/bin/qemu-system-x86_64";
const DATA: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];
const EMULATORS: &str = "emulators";
/// What says in the cache that none could be fetched, and for how long that holds.
const NONE: &str = ".none";
const FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A QEMU for x86.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// The program.
    pub program: PathBuf,
    /// Where it reads its firmware from before it looks where this machine's own does.
    pub data: Vec<PathBuf>,
    /// Its version, such as `10.0.2`.
    pub version: String,
}

impl Emulator {
    /// The command, without the machine's arguments.
    pub fn command(&self) -> Command {
        let mut qemu = Command::new(&self.program);
        for dir in &self.data {
            qemu.arg("-L").arg(dir);
        }
        qemu
    }
}

/// This machine has no QEMU: what to install.
pub fn no_qemu() -> Error {
    Error::missing(format!("no {QEMU} found"), INSTALL_QEMU)
}

/// The emulator for hosts, fetched if need be.
///
/// # Errors
/// When this machine has no QEMU.
pub fn obtain(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<Emulator, Error> {
    obtain_with(cache, own(stop).ok_or_else(no_qemu)?, stop, say, fetch)
}

/// The emulator that [`obtain`] gives without fetching one, if there is any.
pub fn present(cache: &Cache, stop: &Stop) -> Option<Emulator> {
    let own = own(stop)?;
    ready(cache, &own).or(Some(own))
}

type Say<'a> = &'a mut dyn FnMut(&str);

fn obtain_with(
    cache: &Cache,
    own: Emulator,
    stop: &Stop,
    say: Say,
    fetch: impl FnOnce(&Path, &Stop, Say) -> Result<(), Error>,
) -> Result<Emulator, Error> {
    if let Some(found) = ready(cache, &own) {
        return Ok(found);
    }
    let _lock = cache.lock(EMULATORS, stop)?;
    if let Some(found) = cached(cache) {
        return Ok(found);
    }
    let none = cache.path(EMULATORS).join(NONE);
    if is_recent(&none) {
        return Ok(own);
    }
    let fetched = cache.fill_named(EMULATORS, |into| {
        fetch(into, stop, say)?;
        let version = version_of(&into.join(PROGRAM), stop);
        version.filter(|version| is_new(version)).ok_or_else(|| {
            let what = format!("the fetched one does not run here, or is older than {LEAST}");
            Error::missing(what, INSTALL_QEMU)
        })
    });
    fetched.map(|dir| in_directory(&dir)).or_else(|error| {
        stop.check()?;
        say(&format!("QEMU {} is old, and no newer one can be had ({error})", own.version));
        let _ = fs::create_dir_all(cache.path(EMULATORS)).and_then(|()| fs::write(none, ""));
        Ok(own)
    })
}

/// What is here already: this machine's own where it is new enough, else one of the cache.
fn ready(cache: &Cache, own: &Emulator) -> Option<Emulator> {
    if is_new(&own.version) { Some(own.clone()) } else { cached(cache) }
}

/// An emulator of the cache, whose directory is its version.
fn in_directory(dir: &Path) -> Emulator {
    let version = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let data = DATA.iter().map(|name| dir.join(name)).collect();
    Emulator { program: dir.join(PROGRAM), data, version }
}

/// The newest emulator of the cache.
fn cached(cache: &Cache) -> Option<Emulator> {
    let names = cache.newest_first(EMULATORS);
    let mut all = names.iter().map(|name| in_directory(&cache.path(EMULATORS).join(name)));
    all.find(|emulator| emulator.program.is_file())
}

/// This machine's own.
pub fn own(stop: &Stop) -> Option<Emulator> {
    let (program, _) = programs::find(QEMU).ok()?;
    let version = version_of(&program, stop)?;
    Some(Emulator { program, data: Vec::new(), version })
}

fn version_of(program: &Path, stop: &Stop) -> Option<String> {
    let mut ask = Command::new(program);
    let said = command::succeed(ask.arg("--version"), Duration::from_secs(30), stop).ok()?;
    parse_version(&said)
}

/// The version in what `qemu-system-x86_64 --version` prints.
fn parse_version(said: &str) -> Option<String> {
    let word = said.split_once("version ")?.1.split_whitespace().next()?;
    let version = word.trim_end_matches(',');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

fn is_new(version: &str) -> bool {
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= LEAST)
}

fn is_recent(file: &Path) -> bool {
    let made = fs::metadata(file).and_then(|meta| meta.modified()).ok();
    made.and_then(|at| at.elapsed().ok()).is_some_and(|age| age < FOR)
}

/// Fetches and unpacks the emulator of this suite's backports into `into`.
fn fetch(into: &Path, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(codename) = debian(&release) else {
        return Err(Error::missing("this machine's system is not Debian", INSTALL_QEMU));
    };
    let private = into.join("apt");
    fs::create_dir(&private).map_err(|error| Error::io("make", &private, error))?;
    let mut apt = Apt::of_suite(&format!("{codename}-backports"), &private, stop)?;
    apt.update(say)?;
    apt.unpack(&PACKAGES.map(str::to_owned), into, say)?;
    fs::remove_dir_all(&private).map_err(|error| Error::io("remove", private, error))
}

/// The suite of a Debian machine, by its os-release.
fn debian(release: &str) -> Option<String> {
    let value = |key: &str| {
        let mut lines =
            release.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.next().map(|value| value.trim_matches('"').to_owned())
    };
    let named = |name: &String| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
    (value("ID")? == "debian").then(|| value("VERSION_CODENAME"))?.filter(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulator(version: &str) -> Emulator {
        Emulator { program: "/x/qemu".into(), data: Vec::new(), version: version.to_owned() }
    }

    /// A program that says it is QEMU of this version.
    fn unpacks(into: &Path, version: &str) {
        let program = into.join(PROGRAM);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let script = format!("#!/bin/sh\necho QEMU emulator version {version}\n");
        instep_madehost::program(&program, script.as_bytes());
    }

    #[test]
    fn versions_are_read_as_qemu_prints_them() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright\n";
        assert_eq!(parse_version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(parse_version("QEMU emulator version 10.0.2, x").as_deref(), Some("10.0.2"));
        for bad in ["", "QEMU emulator", "version", "version ../x"] {
            assert_eq!(parse_version(bad), None, "{bad}");
        }
        assert!(is_new("10.0.2") && is_new("11.0.0") && !is_new("7.2.22") && !is_new("x"));
    }

    #[test]
    fn the_suite_is_debian_s_alone() {
        let text = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(debian(text).as_deref(), Some("bookworm"));
        for bad in ["", "ID=ubuntu\nVERSION_CODENAME=noble\n", "ID=debian\nVERSION_CODENAME=a b\n"]
        {
            assert_eq!(debian(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_s_own_is_taken_where_it_is_new_enough() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let never = |_: &Path, _: &Stop, _: Say| panic!("nothing is to be fetched");
        let own = emulator("10.1.0");
        let found = obtain_with(&cache, own.clone(), &Stop::never(), &mut |_| (), never);
        assert_eq!(found.unwrap(), own);
    }

    #[test]
    fn a_newer_one_is_fetched_once_and_found_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let old = || emulator("7.2.22");
        let mut fetches = 0;
        for _ in 0..2 {
            let fetch = |into: &Path, _: &Stop, _: Say| {
                fetches += 1;
                unpacks(into, "10.0.2");
                Ok(())
            };
            let found = obtain_with(&cache, old(), &Stop::never(), &mut |_| (), fetch).unwrap();
            assert_eq!(found.version, "10.0.2");
            assert!(found.program.is_file() && found.data[0].ends_with("usr/share/qemu"));
        }
        assert_eq!(fetches, 1);
    }

    #[test]
    fn old_emulator_is_used_with_a_daily_notice_if_none_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let stop = Stop::never();
        let old = |into: &Path, _: &Stop, _: Say| {
            unpacks(into, "7.2.22");
            Ok(())
        };
        let mut said = Vec::new();
        for _ in 0..2 {
            let mut say = |line: &str| said.push(line.to_owned());
            let found = obtain_with(&cache, emulator("7.2.22"), &stop, &mut say, old);
            assert_eq!(found.unwrap(), emulator("7.2.22"));
        }
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("older than 10"), "{said:?}");
        let error = no_qemu().to_string();
        assert!(error.contains("apt-get install qemu-system-x86"), "{error}");
    }
}
