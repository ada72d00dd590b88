//! Debian packages without installing them: `apt-get download` and `dpkg -x` by an ordinary user.
//!
//! The machine's own apt configuration says from where; nothing here knows a mirror. Another suite
//! of the same mirror is a private list of sources and private package lists, given to the same
//! three commands by `-o Dir::...` options: see [`Apt::of_suite`].

use crate::command;
use crate::error::Error;
use crate::stop::Stop;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Debian's keys, by which apt checks what it reads.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What [`parse_mirror`] reads: one line for each configured list of packages.
const MIRROR_FORMAT: &str = "$(REPO_URI)|$(LABEL)|$(COMPONENT)";

const QUERY: Duration = Duration::from_secs(60);
const FETCH: Duration = Duration::from_secs(15 * 60);

/// How apt is called.
#[derive(Clone, Debug)]
pub struct Apt {
    /// Options put before every sub-command of apt-get and apt-cache.
    options: Vec<String>,
    /// Whether the package lists are our own, so that renewing them needs no root.
    private: bool,
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
                return Err(Error::missing(what, "give a kernel by hand: --kernel FILE"));
            }
        }
        // Downloading happens as the calling user: there is no `_apt` to drop to.
        let options = vec!["-q".into(), "-o".into(), "APT::Sandbox::User=root".into()];
        Ok(Self { options, private: false, updated: false, stop: stop.clone() })
    }

    /// Another suite of the machine's own Debian mirror, with package lists of its own in `dir`,
    /// which exists; the machine's lists and sources are not touched. Lists are not read before
    /// [`Apt::update`].
    ///
    /// # Errors
    /// When apt is not there, no Debian mirror is configured, or `dir` cannot be written.
    pub fn of_suite(suite: &str, dir: &Path, stop: &Stop) -> Result<Self, Error> {
        let mut apt = Self::own(stop)?;
        let mirror = apt.mirror()?;
        let sources = dir.join("sources.list");
        for path in [dir.join("lists/partial"), dir.join("cache/archives/partial")] {
            fs::create_dir_all(&path).map_err(|error| Error::io("make", path, error))?;
        }
        fs::write(&sources, source_line(&mirror, suite, Path::new(KEYRING).exists()))
            .map_err(|error| Error::io("write", &sources, error))?;
        for (option, value) in [
            ("Dir::Etc::SourceList", sources.display().to_string()),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            // What the machine prefers is of its own suites.
            ("Dir::Etc::Preferences", "/dev/null".to_owned()),
            ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
            ("APT::Default-Release", String::new()),
            ("Dir::State::Lists", dir.join("lists").display().to_string()),
            ("Dir::Cache", dir.join("cache").display().to_string()),
            ("Acquire::Languages", "none".to_owned()),
        ] {
            apt.options.extend(["-o".to_owned(), format!("{option}={value}")]);
        }
        apt.private = true;
        Ok(apt)
    }

    /// The Debian mirror that the machine's configuration names.
    ///
    /// # Errors
    /// When it names none, or apt-get fails.
    pub fn mirror(&self) -> Result<String, Error> {
        let mut targets = self.call("apt-get");
        targets.args(["indextargets", "--format", MIRROR_FORMAT, "Created-By: Packages"]);
        let printed = command::succeed(&mut targets, QUERY, &self.stop)?;
        parse_mirror(&printed).ok_or_else(|| {
            let what = "apt's sources name no Debian mirror, so another suite cannot be read";
            Error::missing(what, "give a kernel by hand: --kernel FILE")
        })
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

    /// The names of all packages that begin so.
    ///
    /// # Errors
    /// When apt-cache cannot be run.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let mut query = self.call("apt-cache");
        let printed = command::succeed(query.args(["pkgnames", prefix]), QUERY, &self.stop)?;
        Ok(printed.lines().filter(|name| is_package_name(name)).map(str::to_owned).collect())
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
        let mut update = if is_root() || self.private {
            self.call("apt-get")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "apt-get"]).args(&self.options);
            sudo
        };
        match command::succeed(update.arg("update"), FETCH, &self.stop) {
            Ok(_) => Ok(()),
            Err(error) if is_root() || self.private || self.stop.raised() => Err(error),
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

/// The Debian mirror among the lines `URI|label|component` of `apt-get indextargets`: the first
/// that is labelled `Debian`, or, while apt has not read a mirror's lists and so knows no labels,
/// whose path ends in `debian`. Security and third-party archives have other suites.
pub fn parse_mirror(text: &str) -> Option<String> {
    let line = |line: &str| -> Option<(String, String)> {
        let mut parts = line.split('|');
        let (uri, label, component) = (parts.next()?, parts.next()?, parts.next()?);
        // It goes into a list of sources: one word, no option.
        let word = !uri.starts_with('[') && !uri.chars().any(char::is_whitespace);
        (component == "main" && uri.contains(":/") && word)
            .then(|| (uri.to_owned(), label.to_owned()))
    };
    let all: Vec<(String, String)> = text.lines().filter_map(line).collect();
    let labelled = all.iter().find(|(_, label)| label == "Debian");
    let named = || {
        all.iter().find(|(uri, label)| {
            !label.starts_with("Debian") && uri.trim_end_matches('/').ends_with("/debian")
        })
    };
    labelled.or_else(named).map(|(uri, _)| uri.clone())
}

/// The line of a list of sources for the packages of a suite, and nothing but the packages.
fn source_line(mirror: &str, suite: &str, keyring: bool) -> String {
    let signed = if keyring { format!(" signed-by={KEYRING}") } else { String::new() };
    format!("deb [target=Packages{signed}] {mirror} {suite} main\n")
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
    fn of_alternatives_first_is_taken_and_virtual_packages_are_not() {
        let text = "linux-image-6.1.0-56-cloud-amd64\n  Depends: kmod\n |Depends: initramfs-tools\n  \
                    Depends: <linux-initramfs-tool>\n    dracut\n  PreDepends: linux-base\n  \
                    Breaks: fwupdate\n";
        assert_eq!(parse_depends(text), ["kmod", "initramfs-tools", "linux-base"]);
    }

    #[test]
    fn the_mirror_is_debian_s_own_and_not_the_security_archive() {
        let text = "http://a/debian-security/|Debian-Security|main\nhttp://b/node/|Node|main\n\
                    http://a/debian/|Debian|main\n";
        assert_eq!(parse_mirror(text).as_deref(), Some("http://a/debian/"));
        let unread = "http://a/x/|$(LABEL)|main\nhttp://a/debian|$(LABEL)|main\n";
        assert_eq!(parse_mirror(unread).as_deref(), Some("http://a/debian"));
    }

    #[test]
    fn a_mirror_that_would_break_the_list_of_sources_is_refused() {
        for bad in ["", "|Debian|main", "http://a b/debian|Debian|main", "x", "[x:/y|Debian|main"] {
            assert_eq!(parse_mirror(bad), None, "{bad}");
        }
        let line = source_line("http://m/debian/", "sid", true);
        assert!(line.contains("target=Packages signed-by=") && line.ends_with(" sid main\n"));
    }

    #[test]
    fn a_name_that_looks_like_an_option_is_refused() {
        assert!(parse_depends("x\n  Depends: --foo\n  Depends: ../x\n").is_empty());
    }
}
