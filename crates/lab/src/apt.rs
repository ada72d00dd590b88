//! Debian packages without installing them: `apt-get download` and `dpkg -x` by an ordinary user.
//!
//! The machine's own apt configuration says from where; nothing here knows a mirror. Fetching
//! from another suite of the same mirror would be another set of `-o Dir::...` options on the
//! same three commands, which is what the field `options` of [`Apt`] is for.

use crate::command;
use crate::error::Error;
use crate::stop::Stop;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const QUERY: Duration = Duration::from_secs(60);
const FETCH: Duration = Duration::from_secs(15 * 60);

/// How apt is called.
#[derive(Clone, Debug)]
pub struct Apt {
    /// Options put before every sub-command of apt-get and apt-cache.
    options: Vec<String>,
    updated: bool,
    stop: Stop,
}

impl Apt {
    /// The machine's own configuration; `stop` ends whatever runs.
    ///
    /// # Errors
    /// When apt or dpkg is not there.
    pub fn own(stop: &Stop) -> Result<Self, Error> {
        for tool in ["apt-get", "apt-cache", "dpkg"] {
            let ran = command::output(Command::new(tool).arg("--version"), QUERY, stop);
            stop.check()?;
            if ran.is_err() {
                let what = format!("this machine has no {tool}, so no package can be fetched");
                return Err(Error::missing(
                    what,
                    "give a kernel by hand: instep demo --kernel FILE",
                ));
            }
        }
        // Downloading happens as the calling user: there is no `_apt` to drop to.
        let options = vec!["-q".into(), "-o".into(), "APT::Sandbox::User=root".into()];
        Ok(Self { options, updated: false, stop: stop.clone() })
    }

    /// The machine's architecture in Debian's words, such as `amd64`.
    ///
    /// # Errors
    /// When dpkg fails.
    pub fn architecture(&self) -> Result<String, Error> {
        let mut dpkg = Command::new("dpkg");
        let printed = command::succeed(dpkg.arg("--print-architecture"), QUERY, &self.stop)?;
        Ok(printed.trim().to_owned())
    }

    /// The packages that `package` depends on, in order; `None` when apt knows no such package.
    ///
    /// # Errors
    /// When apt-cache cannot be run.
    pub fn depends(&self, package: &str) -> Result<Option<Vec<String>>, Error> {
        let mut query = self.call("apt-cache");
        query.args(["depends", "--important", package]);
        let ran = command::output(&mut query, QUERY, &self.stop)?;
        Ok(ran
            .status
            .success()
            .then(|| parse_depends(&ran.stdout))
            .filter(|_| !ran.stdout.is_empty()))
    }

    /// Renews the package lists, once: as root, or by sudo when that asks for no password.
    ///
    /// # Errors
    /// When neither is possible or apt-get fails.
    pub fn update(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
        if self.updated {
            return Ok(());
        }
        self.updated = true;
        say("reading the package lists (apt-get update)");
        let mut update = if is_root() {
            self.call("apt-get")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "apt-get"]).args(&self.options);
            sudo
        };
        match command::succeed(update.arg("update"), FETCH, &self.stop) {
            Ok(_) => Ok(()),
            Err(error) if is_root() || self.stop.raised() => Err(error),
            Err(_) => Err(Error::missing(
                "the package lists are missing or old, and renewing them needs root",
                "run: sudo apt-get update",
            )),
        }
    }

    /// Fetches packages and unpacks all of them into `into`; nothing is installed.
    ///
    /// # Errors
    /// When the download fails even after the lists were renewed, or dpkg does.
    pub fn unpack(
        &mut self,
        packages: &[String],
        into: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let debs =
            tempfile::tempdir_in(into).map_err(|e| Error::io("make a directory in", into, e))?;
        say(&format!("fetching {} (apt-get download)", packages.join(", ")));
        if self.download(packages, debs.path()).is_err() {
            self.stop.check()?;
            // Lists older than the archive name files that are gone.
            self.update(say)?;
            self.download(packages, debs.path())?;
        }
        for deb in files_in(debs.path())? {
            let mut dpkg = Command::new("dpkg");
            command::succeed(dpkg.arg("-x").arg(&deb).arg(into), FETCH, &self.stop)?;
        }
        Ok(())
    }

    fn download(&self, packages: &[String], into: &Path) -> Result<(), Error> {
        let mut get = self.call("apt-get");
        get.arg("download").args(packages).current_dir(into);
        command::succeed(&mut get, FETCH, &self.stop).map(drop)
    }

    fn call(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.args(&self.options).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// The packages named by `apt-cache depends --important`: the `Depends:` and `PreDepends:` lines,
/// of alternatives (marked `|`) the first. Virtual packages, in angle brackets, are left out.
#[must_use]
pub fn parse_depends(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut alternative_of_previous = false;
    for line in text.lines() {
        let line = line.trim();
        let (optional, line) = match line.strip_prefix('|') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let Some(name) = line.strip_prefix("Depends: ").or(line.strip_prefix("PreDepends: "))
        else {
            continue;
        };
        if !alternative_of_previous && is_package_name(name) && !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
        alternative_of_previous = optional;
    }
    names
}

/// Debian's rule for package names; keeps options and paths out of command lines.
fn is_package_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.:".contains(c);
    name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(allowed)
}

fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn files_in(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(dir).map_err(|error| Error::io("list", dir, error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_package_names_the_image_of_the_day() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(parse_depends(text), ["linux-image-6.1.0-56-cloud-amd64"]);
    }

    #[test]
    fn of_alternatives_the_first_is_taken_and_virtual_packages_are_not() {
        let text = "linux-image-6.1.0-56-cloud-amd64\n  Depends: kmod\n |Depends: initramfs-tools\n  \
                    Depends: <linux-initramfs-tool>\n    dracut\n  PreDepends: linux-base\n  \
                    Breaks: fwupdate\n";
        assert_eq!(parse_depends(text), ["kmod", "initramfs-tools", "linux-base"]);
    }

    #[test]
    fn a_name_that_looks_like_an_option_is_refused() {
        assert!(parse_depends("x\n  Depends: --foo\n  Depends: ../x\n").is_empty());
    }
}
