//! What the lab needs of this machine, what is missing, and the command that installs it.
//!
//! It looks only: nothing is fetched.

use crate::cache::Cache;
use crate::command;
use crate::guest::{INSTALL_QEMU, QEMU};
use crate::host::kernel;
use crate::host::programs::{self, PACKAGES};
use crate::image::first_static_busybox;
use crate::stop::Stop;
use serde::Serialize;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The memory that this machine should have free, in MiB: a small host and its image.
const MEMORY_MIB: u64 = 3 << 10;
/// The space a fetched kernel and the images take, in MiB.
const SPACE_MIB: u64 = 600;

/// One thing the lab needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is needed.
    pub need: &'static str,
    /// Whether the lab cannot run without it; else some scenarios use it.
    pub needed: bool,
    /// Whether it is there, or will be fetched when it is needed.
    pub fine: bool,
    /// What was found.
    pub found: String,
    /// What to do about it, when it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Looks at everything.
#[must_use]
pub fn examine(stop: &Stop) -> Vec<Finding> {
    let cache = Cache::open();
    let mut all = vec![qemu(stop)];
    all.push(busybox());
    all.push(program("ldd", "--version", "apt-get install libc-bin", stop));
    match &cache {
        Ok(cache) => {
            all.push(host_kernel(cache, stop));
            all.push(space(cache));
        }
        Err(error) => all.push(Finding {
            need: "a cache directory",
            needed: true,
            fine: false,
            found: error.to_string(),
            next: Some("set XDG_CACHE_HOME=DIR".to_owned()),
        }),
    }
    all.push(memory());
    all.extend(PACKAGES.iter().map(|(name, package)| optional(name, package)));
    all
}

/// Whether the lab can run with these findings.
#[must_use]
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.fine || !finding.needed)
}

/// A program that only scenarios with `programs` use.
fn optional(name: &'static str, package: &str) -> Finding {
    let finding = match programs::find(name) {
        Ok((path, _)) => fine(name, path.display().to_string()),
        Err(_) => missing(
            name,
            "not found; some scenarios use it".to_owned(),
            &format!("apt-get install {package}"),
        ),
    };
    Finding { needed: false, ..finding }
}

fn qemu(stop: &Stop) -> Finding {
    let ran = command::succeed(Command::new(QEMU).arg("--version"), Duration::from_secs(30), stop);
    match ran {
        Ok(said) => fine(QEMU, said.lines().next().unwrap_or_default().to_owned()),
        Err(_) => missing(QEMU, "not found".to_owned(), INSTALL_QEMU),
    }
}

fn program(name: &'static str, ask: &str, install: &str, stop: &Stop) -> Finding {
    let ran = command::succeed(Command::new(name).arg(ask), Duration::from_secs(30), stop);
    match ran {
        Ok(said) => fine(name, said.lines().next().unwrap_or_default().to_owned()),
        Err(_) => missing(name, "not found".to_owned(), install),
    }
}

fn busybox() -> Finding {
    const NEED: &str = "a static busybox";
    match first_static_busybox() {
        Some(path) => fine(NEED, path.display().to_string()),
        None => fine(NEED, "not installed: will be fetched by apt-get download".to_owned()),
    }
}

fn host_kernel(cache: &Cache, stop: &Stop) -> Finding {
    const NEED: &str = "a kernel with sched_ext";
    if let Some(kernel) = kernel::cached(cache) {
        return fine(NEED, format!("{} in the cache", kernel.release));
    }
    let apt =
        command::succeed(Command::new("apt-get").arg("--version"), Duration::from_secs(30), stop);
    match apt {
        Ok(_) => fine(
            NEED,
            format!("not in the cache: will be fetched from the suite {}", kernel::SUITE),
        ),
        Err(_) => missing(
            NEED,
            "not in the cache, and there is no apt to fetch it with".to_owned(),
            "give one: instep lab run FILE --kernel VMLINUZ --modules /lib/modules/RELEASE",
        ),
    }
}

fn space(cache: &Cache) -> Finding {
    const NEED: &str = "space for the cache";
    let dir = cache.path(".");
    let mut df = Command::new("df");
    let ran = command::succeed(df.arg("-Pm").arg(&dir), Duration::from_secs(30), &Stop::never());
    let free = ran.ok().and_then(|text| parse_df(&text));
    match free {
        Some(mib) if mib < SPACE_MIB => missing(
            NEED,
            format!("{mib} MiB are free in {}", dir.display()),
            "make room, or set XDG_CACHE_HOME=DIR",
        ),
        Some(mib) => fine(NEED, format!("{mib} MiB are free in {}", dir.display())),
        None => fine(NEED, "not known".to_owned()),
    }
}

/// The available MiB in the output of `df -Pm`.
fn parse_df(text: &str) -> Option<u64> {
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn memory() -> Finding {
    const NEED: &str = "free memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok()
    });
    match kib.map(|kib| kib >> 10) {
        Some(mib) if mib < MEMORY_MIB => missing(
            NEED,
            format!("{mib} MiB are available; a small host takes {MEMORY_MIB}"),
            "end something large",
        ),
        Some(mib) => fine(NEED, format!("{mib} MiB are available")),
        None => fine(NEED, "not known".to_owned()),
    }
}

fn fine(need: &'static str, found: String) -> Finding {
    Finding { need, needed: true, fine: true, found, next: None }
}

fn missing(need: &'static str, found: String, next: &str) -> Finding {
    Finding { need, needed: true, fine: false, found, next: Some(next.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read_from_df() {
        let text =
            "Filesystem 1048576-blocks Used Available Capacity Mounted on\n/dev/x 9 4 5 1% /\n";
        assert_eq!(parse_df(text), Some(5));
        assert_eq!(parse_df("rubbish"), None);
    }

    #[test]
    fn what_is_missing_comes_with_a_command() {
        for finding in examine(&Stop::never()) {
            assert_eq!(finding.fine, finding.next.is_none(), "{finding:?}");
        }
    }

    #[test]
    fn the_lab_runs_without_what_only_some_scenarios_use() {
        let mut findings = vec![optional("no-such-program", "a-package"), fine("x", String::new())];
        assert!(!findings[0].fine && can_run(&findings));
        findings.push(missing("y", String::new(), "install it"));
        assert!(!can_run(&findings));
    }
}
