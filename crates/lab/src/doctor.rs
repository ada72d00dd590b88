//! What the lab needs of this machine, what is missing, and the command that installs it.
//!
//! It looks only: nothing is fetched.

use crate::apt::Apt;
use crate::cache::Cache;
use crate::error::Error;
use crate::host::emulator::{self, Emulator};
use crate::host::emulator::{INSTALL_QEMU, QEMU};
use crate::host::kernel;
use crate::host::programs::{self, PACKAGES};
use crate::host::xen;
use crate::stop::Stop;
use crate::{command, host, image};
use rustix::fs::statvfs;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The memory that this machine should have free, in MiB: a small host and its image.
const MEMORY_MIB: u64 = 3 << 10;
/// The space a fetched kernel and the images take, in MiB.
const CACHE_MIB: u128 = 600;
/// The space that the image of a running host takes, in MiB.
const IMAGE_MIB: u128 = 200;

/// The architecture whose packages the lab boots, in Debian's words.
const AMD64: &str = "amd64";

/// One thing the lab needs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DoctorFinding {
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

/// Looks at everything; `load` is the guest workload `instep-load`, when it is built.
pub fn examine(load: Option<&Path>, stop: &Stop) -> Vec<DoctorFinding> {
    let cache = Cache::open();
    let mut all = Vec::new();
    all.push(program("ldd", "--version", "apt-get install libc-bin", stop));
    match &cache {
        Ok(cache) => {
            let emulator = emulator::present(cache, stop);
            all.extend([qemu(emulator.as_ref()), firmware(emulator.as_ref())]);
            let source = Source::of_machine(stop);
            let busybox = image::present_busybox(cache).map(|path| path.display().to_string());
            all.push(busybox_from(busybox, &source));
            let cached = kernel::cached(cache).map(|kernel| kernel.release);
            all.push(kernel_from(cached, &source));
            all.push(xen_from(xen::cached(cache).map(|kernel| kernel.release), &source));
            let next = "run: instep lab clean; or set XDG_CACHE_HOME=DIR";
            all.push(space("space for the cache", &cache.path(""), CACHE_MIB, next));
        }
        Err(error) => all.push(DoctorFinding {
            need: "a cache directory",
            needed: true,
            fine: false,
            found: what(error),
            next: Some("set XDG_CACHE_HOME=DIR to one".to_owned()),
        }),
    }
    let temporary = std::env::temp_dir();
    all.push(space("space for a host's image", &temporary, IMAGE_MIB, "set TMPDIR=DIR"));
    all.push(memory());
    all.push(workload(load));
    all.extend(PACKAGES.iter().map(|(name, package)| optional(name, package)));
    all
}

/// Whether the lab can run with these findings.
pub fn can_run(findings: &[DoctorFinding]) -> bool {
    findings.iter().all(|finding| finding.fine || !finding.needed)
}

/// A program that only scenarios with `programs` use.
fn optional(name: &'static str, package: &str) -> DoctorFinding {
    let finding = match programs::find(name) {
        Ok((path, _)) => fine(name, path.display().to_string()),
        Err(_) => missing(
            name,
            "not found; some scenarios use it".to_owned(),
            &format!("apt-get install {package}"),
        ),
    };
    DoctorFinding { needed: false, ..finding }
}

fn qemu(found: Option<&Emulator>) -> DoctorFinding {
    match found {
        Some(qemu) => fine(QEMU, format!("{} ({})", qemu.version, qemu.program.display())),
        None => missing(QEMU, "not found".to_owned(), INSTALL_QEMU),
    }
}

fn program(name: &'static str, ask: &str, install: &str, stop: &Stop) -> DoctorFinding {
    let ran = command::succeed(Command::new(name).arg(ask), Duration::from_secs(30), stop);
    match ran {
        Ok(said) => fine(name, said.lines().next().unwrap_or_default().to_owned()),
        Err(_) => missing(name, "not found".to_owned(), install),
    }
}

/// Where packages could be fetched from.
#[derive(Clone, Debug)]
struct Source {
    /// Debian's word for the architecture, or why nothing can be fetched.
    architecture: Result<String, String>,
    /// Whether apt's sources name a Debian mirror, or why not.
    mirror: Result<(), String>,
}

impl Source {
    fn of_machine(stop: &Stop) -> Self {
        match Apt::own(stop) {
            Ok(apt) => Self {
                architecture: apt.architecture().map_err(|error| what(&error)),
                mirror: apt.mirror().map(drop).map_err(|error| what(&error)),
            },
            Err(error) => {
                Self { architecture: Err(what(&error)), mirror: Err("no apt".to_owned()) }
            }
        }
    }
}

/// An error without the next step, which is another one here.
fn what(error: &Error) -> String {
    match error {
        Error::Missing { what, .. } => what.clone(),
        other => other.to_string(),
    }
}

fn busybox_from(present: Option<String>, source: &Source) -> DoctorFinding {
    const NEED: &str = "a static busybox";
    const INSTALL: &str = "apt-get install busybox-static, or your system's package of that kind";
    match (present, &source.architecture) {
        (Some(path), _) => fine(NEED, path),
        (None, Ok(name)) if name == AMD64 => {
            fine(NEED, "not installed: will be fetched by apt-get download".to_owned())
        }
        (None, Ok(other)) => missing(NEED, format!("not found, and not for {other}"), INSTALL),
        (None, Err(why)) => missing(NEED, format!("not found, and {why}"), INSTALL),
    }
}

fn kernel_from(cached: Option<String>, source: &Source) -> DoctorFinding {
    const NEED: &str = "a kernel with sched_ext";
    if let Some(release) = cached {
        return fine(NEED, format!("{release} in the cache"));
    }
    let why = match (&source.architecture, &source.mirror) {
        (Ok(name), Ok(())) if name == AMD64 => {
            let suite = kernel::SUITE;
            let found = format!("not in the cache: will be fetched from the suite {suite}");
            return fine(NEED, found);
        }
        (Ok(name), _) if name != AMD64 => format!("the lab has none for {name}"),
        (Err(why), _) | (_, Err(why)) => why.clone(),
        (Ok(_), Ok(())) => "it cannot be fetched".to_owned(),
    };
    missing(
        NEED,
        format!("not in the cache, and {why}"),
        "give one: instep lab run FILE --kernel VMLINUZ --modules /lib/modules/RELEASE",
    )
}

/// Xen, which scenarios with `hypervisor = "xen"` boot.
fn xen_from(cached: Option<String>, source: &Source) -> DoctorFinding {
    const NEED: &str = "Xen";
    let kind = "scenarios with hypervisor = \"xen\" use it";
    let finding = match (cached, &source.architecture, &source.mirror) {
        (Some(release), ..) => fine(NEED, format!("in the cache, with dom0's kernel {release}")),
        (None, Ok(name), Ok(())) if name == AMD64 => {
            let suite = xen::SUITE;
            fine(NEED, format!("not in the cache: will be fetched from the suite {suite}; {kind}"))
        }
        _ => missing(
            NEED,
            format!("not in the cache, and it cannot be fetched; {kind}"),
            "run the lab on Debian or with its mirror among apt's sources",
        ),
    };
    DoctorFinding { needed: false, ..finding }
}

fn firmware(qemu: Option<&Emulator>) -> DoctorFinding {
    const NEED: &str = "QEMU's firmware for microvm";
    let lacks = qemu.map(host::image::lacks_firmware);
    match lacks {
        Some(None) => fine(NEED, "found".to_owned()),
        Some(Some(error)) => missing(NEED, what(&error), INSTALL_QEMU),
        None => missing(NEED, "not found".to_owned(), INSTALL_QEMU),
    }
}

fn workload(load: Option<&Path>) -> DoctorFinding {
    const NEED: &str = "instep-load";
    let finding = match load {
        Some(path) => fine(NEED, path.display().to_string()),
        None => {
            missing(NEED, "not built; some scenarios use it".to_owned(), "run: cargo xtask load")
        }
    };
    DoctorFinding { needed: false, ..finding }
}

/// Of a place that needs so much.
fn space(need: &'static str, dir: &Path, least: u128, next: &str) -> DoctorFinding {
    let free = |of: rustix::fs::StatVfs| (u128::from(of.f_bavail) * u128::from(of.f_frsize)) >> 20;
    match statvfs(dir).ok().map(free) {
        Some(mib) if mib < least => {
            missing(need, format!("{mib} MiB are free in {}, not {least}", dir.display()), next)
        }
        Some(mib) => fine(need, format!("{mib} MiB are free in {}", dir.display())),
        None => fine(need, "not known".to_owned()),
    }
}

fn memory() -> DoctorFinding {
    const NEED: &str = "free memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok()
    });
    match kib.map(|kib| kib >> 10) {
        Some(mib) if mib < MEMORY_MIB => missing(
            NEED,
            format!("{mib} MiB are available; a small host takes {MEMORY_MIB}"),
            "see what takes it: ps -eo pid,rss,comm --sort=-rss | head",
        ),
        Some(mib) => fine(NEED, format!("{mib} MiB are available")),
        None => fine(NEED, "not known".to_owned()),
    }
}

fn fine(need: &'static str, found: String) -> DoctorFinding {
    DoctorFinding { need, needed: true, fine: true, found, next: None }
}

fn missing(need: &'static str, found: String, next: &str) -> DoctorFinding {
    DoctorFinding { need, needed: true, fine: false, found, next: Some(next.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_too_little_space_is_missing() {
        let found = |least| space("space", Path::new("/"), least, "make some");
        assert_eq!((found(0).fine, found(1 << 60).fine), (true, false));
        assert!(found(0).found.ends_with("MiB are free in /"), "{:?}", found(0));
    }

    #[test]
    fn what_is_missing_comes_with_a_command() {
        for finding in examine(None, &Stop::never()) {
            assert_eq!(finding.fine, finding.next.is_none(), "{finding:?}");
        }
    }

    fn source(architecture: Result<&str, &str>, mirror: Result<(), &str>) -> Source {
        Source {
            architecture: architecture.map(str::to_owned).map_err(str::to_owned),
            mirror: mirror.map_err(str::to_owned),
        }
    }

    #[test]
    fn what_is_to_be_fetched_is_fine_only_where_it_can_be() {
        let debian = source(Ok("amd64"), Ok(()));
        let arm = source(Ok("arm64"), Ok(()));
        let other = source(Ok("amd64"), Err("apt's sources name no Debian mirror"));
        let none = source(Err("this machine has no apt-get"), Err("no apt"));
        let fine =
            |source: &Source| (kernel_from(None, source).fine, busybox_from(None, source).fine);
        assert_eq!(fine(&debian), (true, true));
        assert_eq!(fine(&arm), (false, false));
        assert_eq!(fine(&other), (false, true), "busybox comes from any of apt's sources");
        assert_eq!(fine(&none), (false, false));
        assert!(kernel_from(None, &arm).found.contains("arm64"));
        assert!(kernel_from(None, &none).found.contains("has no apt-get"));
        assert!(kernel_from(Some("7.2".to_owned()), &none).fine);
    }

    #[test]
    fn a_machine_without_xen_s_packages_runs_all_other_labs() {
        let (debian, arm) = (source(Ok("amd64"), Ok(())), source(Ok("arm64"), Ok(())));
        assert!(xen_from(None, &debian).fine && xen_from(Some("6.1".to_owned()), &arm).fine);
        let lacking = xen_from(None, &arm);
        assert!(!lacking.fine && lacking.next.is_some() && can_run(&[lacking]));
    }

    #[test]
    fn the_workload_is_for_some_scenarios_only() {
        let finding = workload(None);
        assert!(!finding.fine && !finding.needed);
        assert_eq!(finding.next.as_deref(), Some("run: cargo xtask load"));
        assert!(workload(Some(Path::new("/x/instep-load"))).fine);
    }

    #[test]
    fn the_lab_runs_without_what_only_some_scenarios_use() {
        let mut findings = vec![optional("no-such-program", "a-package"), fine("x", String::new())];
        assert!(!findings[0].fine && can_run(&findings));
        findings.push(missing("y", String::new(), "install it"));
        assert!(!can_run(&findings));
    }
}
