//! What this kernel offers for a scheduler of one's own, and what is dangerous on it.
//!
//! Reads `/sys/kernel/sched_ext` (kernel/sched/ext.c, Linux 6.12 and later) and the host's BTF, and
//! asks for core-scheduling cookies (prctl PR_SCHED_CORE, Linux 5.14 and later). It decides nothing.

use instep_core::units::Tid;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// The most that is read of a file of sysfs.
const MAX_LINE: usize = 4096;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The kernel's release.
    pub release: String,
    /// `/sys/kernel/sched_ext/state`; `None` when the kernel has no sched_ext.
    pub state: Option<State>,
    /// The name of the loaded scheduler, when there is one.
    pub ops: Option<String>,
    /// Whether the kernel describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// Whether the kernel's configuration can be read, which loading needs.
    pub config: bool,
    /// Threads of VMs with a core-scheduling cookie.
    pub cookies: Vec<Tid>,
    /// Whether some core has several threads.
    pub smt: bool,
}

/// Of sched_ext.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No scheduler is loaded.
    Disabled,
    /// One is.
    Enabled,
    /// One is coming or going, or something that is not known here.
    Other(String),
}

impl State {
    /// Reads the contents of `/sys/kernel/sched_ext/state`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "disabled" => Self::Disabled,
            "enabled" => Self::Enabled,
            other => Self::Other(other.chars().take(32).filter(|c| !c.is_control()).collect()),
        }
    }
}

/// The name of a scheduler as the kernel gives it, made fit to be printed: letters, digits, `_`
/// and what schedulers add to it (`_1.1.4_x86_64-linux-gnu`), 128 characters at most.
#[must_use]
pub fn ops_name(text: &str) -> Option<String> {
    let name: String = text.trim().chars().take(128).filter(|c| c.is_ascii_graphic()).collect();
    (!name.is_empty()).then_some(name)
}

impl Probe {
    /// Looks at the host under `root` (`/` for this one), and at the cookies of `threads` when
    /// `root` is this host.
    #[must_use]
    pub fn of(root: &Path, threads: &[Tid]) -> Self {
        let read = |path: &str| -> Option<String> {
            let bytes = fs::read(root.join(path)).ok()?;
            Some(String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LINE)]).into_owned())
        };
        let release = read("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let there = |path: &str| root.join(path).exists();
        let live = root == Path::new("/");
        let config = there("proc/config.gz") || there(&format!("boot/config-{release}"));
        Self {
            state: read("sys/kernel/sched_ext/state").map(|text| State::parse(&text)),
            ops: read("sys/kernel/sched_ext/root/ops").and_then(|text| ops_name(&text)),
            btf: there("sys/kernel/btf/vmlinux"),
            config,
            cookies: if live { with_cookie(threads) } else { Vec::new() },
            smt: read("sys/devices/system/cpu/smt/active").is_some_and(|text| text.trim() == "1"),
            release,
        }
    }

    /// Who schedules, in words.
    #[must_use]
    pub fn in_force(&self) -> String {
        match (&self.state, &self.ops) {
            (Some(State::Enabled), Some(ops)) => format!("sched_ext scheduler {ops}"),
            (Some(State::Enabled), None) => "an unnamed sched_ext scheduler".to_owned(),
            _ => "the kernel's default".to_owned(),
        }
    }
}

/// Those threads that have a core-scheduling cookie.
fn with_cookie(threads: &[Tid]) -> Vec<Tid> {
    threads.iter().copied().filter(|tid| cookie(*tid).is_some_and(|cookie| cookie != 0)).collect()
}

/// A thread's core-scheduling cookie; `None` when there is no such thread or no such feature.
fn cookie(tid: Tid) -> Option<u64> {
    const PR_SCHED_CORE: libc::c_int = 62;
    const PR_SCHED_CORE_GET: libc::c_ulong = 0;
    const PIDTYPE_PID: libc::c_ulong = 0;
    let mut cookie: u64 = 0;
    // SAFETY: the kernel writes one u64 to the address given (kernel/sched/core_sched.c), which
    // is that of a live local variable.
    let status = unsafe {
        libc::prctl(
            PR_SCHED_CORE,
            PR_SCHED_CORE_GET,
            libc::c_ulong::from(tid.0),
            PIDTYPE_PID,
            std::ptr::from_mut(&mut cookie),
        )
    };
    (status == 0).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_kernel_without_sched_ext_is_told() {
        let dir = host(&[("proc/sys/kernel/osrelease", "6.1.0\n")]);
        let probe = Probe::of(dir.path(), &[]);
        assert_eq!((probe.state.clone(), probe.release.as_str()), (None, "6.1.0"));
        assert_eq!(probe.in_force(), "the kernel's default");
    }

    #[test]
    fn another_scheduler_is_named() {
        let dir = host(&[
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/root/ops", "cosmos_1.1.4\n"),
        ]);
        let probe = Probe::of(dir.path(), &[]);
        assert_eq!(probe.state, Some(State::Enabled));
        assert_eq!(probe.in_force(), "sched_ext scheduler cosmos_1.1.4");
    }

    #[test]
    fn garbage_is_bounded_and_printable() {
        let long = "x\u{1b}[31m".repeat(1000);
        assert!(ops_name(&long).unwrap().len() <= 128);
        assert!(!ops_name(&long).unwrap().contains('\u{1b}'));
        assert!(matches!(State::parse(&long), State::Other(text) if text.len() <= 32));
        assert_eq!(ops_name("\n"), None);
    }

    #[test]
    fn a_thread_of_ones_own_has_no_cookie() {
        assert!(with_cookie(&[Tid(std::process::id())]).is_empty());
    }
}
