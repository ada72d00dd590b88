//! What this kernel offers for a scheduler of one's own, and what is dangerous on it.
//!
//! Reads `/sys/kernel/sched_ext` (kernel/sched/ext.c, Linux 6.12 and later), the host's BTF and which CPUs
//! are possible, and asks for core-scheduling cookies. It decides nothing.

use crate::btf::{self, Functions, MAX_BTF};
use crate::cookies;
use instep_core::units::Tid;
use rustix::thread::{CapabilitySet, capabilities};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The most that is read of a file of sysfs.
const MAX_LINE: u64 = 4096;

/// Functions of the kernel that `bpf/` calls on every kernel; of those in one line any one will do
/// (scx/compat.bpf.h of scx_cargo 1.1.4: names before and after Linux 6.13).
const NEEDED: [&[&str]; 8] = [
    &["scx_bpf_create_dsq"],
    &["scx_bpf_dsq_insert", "scx_bpf_dispatch"],
    &["scx_bpf_dsq_insert_vtime", "scx_bpf_dispatch_vtime", "__scx_bpf_dsq_insert_vtime"],
    &["scx_bpf_dsq_move_to_local", "scx_bpf_consume"],
    &["scx_bpf_dsq_nr_queued"],
    &["scx_bpf_kick_cpu"],
    &["scx_bpf_task_cpu"],
    &["scx_bpf_test_and_clear_cpu_idle"],
];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Probe {
    /// The kernel's release.
    pub release: String,
    /// `/sys/kernel/sched_ext/state`; `None` when the kernel has no sched_ext.
    pub state: Option<State>,
    /// The name of the loaded scheduler, when there is one.
    pub ops: Option<String>,
    /// Whether the kernel describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// Why that description cannot be read, where it cannot.
    pub btf_error: Option<String>,
    /// Functions of sched_ext whose description is wrong, so that no scheduler can be loaded.
    pub malformed: Vec<String>,
    /// Functions that Instep's scheduler calls and this kernel has not.
    pub missing: Vec<String>,
    /// Whether the kernel's configuration can be read, which loading needs.
    pub config: bool,
    /// Names of VMs with core-scheduling cookies.
    pub cookies: Vec<String>,
    /// Whether some core has several threads.
    pub smt: bool,
    /// Whether this process may load programs; of no interest to others.
    #[serde(skip)]
    pub may_load: bool,
    /// One more than the highest possible CPU, those included that are offline; 0 when not known.
    pub possible_cpus: u32,
}

/// Of sched_ext.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "SchedExtState")]
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
    /// Looks at the host under `root` (`/` for this one), and at the cookies of these threads of
    /// VMs when `root` is this host.
    #[must_use]
    pub fn of(root: &Path, vcpus: &[(&str, Tid)]) -> Self {
        let read = |path: &str| read_line(root, path);
        let release = read("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let there = |path: &str| root.join(path).exists();
        let live = root == Path::new("/");
        let config = there("proc/config.gz") || there(&format!("boot/config-{release}"));
        let state = Self::state_of(root);
        // Some MiB, which say nothing on a kernel without sched_ext.
        let types = state.as_ref().map(|_| types(&root.join("sys/kernel/btf/vmlinux")));
        let (functions, btf_error) = match types {
            None => (None, None),
            Some(Ok(functions)) => (Some(functions), None),
            Some(Err(why)) => (None, Some(why)),
        };
        Self {
            ops: read("sys/kernel/sched_ext/root/ops").and_then(|text| ops_name(&text)),
            btf: there("sys/kernel/btf/vmlinux"),
            btf_error,
            missing: functions.as_ref().map_or_else(Vec::new, missing),
            malformed: functions.map_or_else(Vec::new, |f| f.malformed.into_iter().collect()),
            config,
            cookies: if live { cookies::of(vcpus.iter().copied()) } else { Vec::new() },
            smt: cookies::smt(root),
            // Who cannot ask is told by the kernel.
            may_load: capabilities(None).map_or(true, |sets| may_load(sets.effective)),
            possible_cpus: possible_cpus(root),
            release,
            state,
        }
    }

    /// The state of sched_ext alone; `None` when the kernel has none.
    #[must_use]
    pub fn state_of(root: &Path) -> Option<State> {
        read_line(root, "sys/kernel/sched_ext/state").map(|text| State::parse(&text))
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

/// Whether these suffice for maps and programs of sched_ext and for tracepoints (`map_create`,
/// `is_perfmon_prog_type`, kernel/bpf/syscall.c, Linux 6.12).
fn may_load(capabilities: CapabilitySet) -> bool {
    let both = CapabilitySet::BPF | CapabilitySet::PERFMON;
    capabilities.contains(both) || capabilities.contains(CapabilitySet::SYS_ADMIN)
}

/// One more than the highest possible CPU (`/sys/devices/system/cpu/possible`), 0 when not known.
#[must_use]
pub fn possible_cpus(root: &Path) -> u32 {
    let text = read_line(root, "sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    last.map_or(0, |last| last.saturating_add(1))
}

/// The beginning of a small file.
pub(crate) fn read_line(root: &Path, path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(root.join(path)).ok()?.take(MAX_LINE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the kernel's own types say of sched_ext.
fn types(path: &Path) -> Result<Functions, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        // That there is none is told apart.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Functions::default());
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BTF).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    btf::functions(&bytes).map_err(|error| error.to_string())
}

/// What of [`NEEDED`] is not among the functions; nothing when none is named at all.
fn missing(functions: &Functions) -> Vec<String> {
    if functions.named.is_empty() {
        return Vec::new();
    }
    // Later kernels have `NAME___v2` beside or in place of NAME.
    let bases: Vec<&str> =
        functions.named.iter().filter_map(|name| name.split("___").next()).collect();
    let lacks = |any: &&&[&str]| !any.iter().any(|name| bases.contains(name));
    NEEDED.iter().filter(lacks).map(|any| any[0].to_owned()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A host with these files.
    pub(crate) fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_kernel_without_sched_ext_is_reported() {
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
    fn possible_cpus_are_those_up_to_the_last() {
        for (text, count) in [("0-767\n", 768), ("0\n", 1), ("0-3,8-11\n", 12), ("x\n", 0)] {
            let dir = host(&[("sys/devices/system/cpu/possible", text)]);
            assert_eq!(Probe::of(dir.path(), &[]).possible_cpus, count, "{text}");
        }
        assert_eq!(Probe::of(host(&[]).path(), &[]).possible_cpus, 0);
    }

    #[test]
    fn programs_are_loaded_by_root_or_with_two_capabilities() {
        let (bpf, perfmon) = (CapabilitySet::BPF, CapabilitySet::PERFMON);
        assert!(may_load(CapabilitySet::all()) && may_load(bpf | perfmon));
        assert!(may_load(CapabilitySet::SYS_ADMIN));
        assert!(!may_load(bpf) && !may_load(perfmon) && !may_load(CapabilitySet::empty()));
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
    fn damaged_btf_is_reported_where_there_is_sched_ext() {
        let files =
            [("sys/kernel/btf/vmlinux", "no BTF"), ("sys/kernel/sched_ext/state", "disabled\n")];
        let probe = Probe::of(host(&files).path(), &[]);
        assert!(probe.btf && probe.btf_error.is_some_and(|why| why.contains("no BTF")));
        assert_eq!(Probe::of(host(&files[..1]).path(), &[]).btf_error, None);
    }

    #[test]
    fn a_function_under_its_old_name_is_not_missing() {
        let named = |names: &[&str]| Functions {
            named: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Functions::default()
        };
        let mut all: Vec<&str> = NEEDED.iter().map(|any| any[any.len() - 1]).collect();
        assert_eq!(missing(&named(&all)), [""; 0]);
        all.iter_mut().filter(|name| **name == "scx_bpf_kick_cpu").for_each(|name| {
            *name = "scx_bpf_kick_cpu___v2";
        });
        assert_eq!(missing(&named(&all)), [""; 0]);
        all.retain(|name| *name != "scx_bpf_dispatch");
        assert_eq!(missing(&named(&all)), ["scx_bpf_dsq_insert"]);
        assert_eq!(missing(&Functions::default()), [""; 0]);
    }
}
