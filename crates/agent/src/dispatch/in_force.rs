//! Which scheduler is in force and why: what `instep run` writes down for `instep status`.
//!
//! One file in the state directory, replaced as a whole. While the process that wrote it lives, it says
//! what is in force; an orderly end removes it, so that what is left of a process that is gone says that
//! it was killed. It does not ask the kernel.

use super::limits::LimitInForce;
use crate::state_file;
use instep_core::measure::waits::Waits;
use instep_core::units::{NodeId, Tid};
use instep_host::apply::{Instance, InstanceLife};
use instep_kernel::exit::Exit;
use instep_kernel::stats::{Cost, DomainSeen, VmSeen};
use instep_kernel::waits::WaitClasses;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The file in the state directory that says what is in force.
const FILE: &str = "dispatch.json";
/// The file with the kernel's dump of the last time that the scheduler was thrown out.
const DUMP: &str = "dispatch-exit.txt";

/// What is in force and why, for `instep status` and records.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InForce {
    /// Whether Instep's scheduler is in force.
    pub instep: bool,
    /// Why, or why not: one sentence.
    pub why: String,
    /// The process that loaded it, or would.
    pub instance: Instance,
    /// When it is loaded again if nothing bars it, in UTC, such as `2026-11-23T08:11:15Z`; null unless that is awaited.
    #[serde(default)]
    pub next_attempt: Option<String>,
    /// How often it ended by itself since it was last sound.
    pub failures: usize,
    /// What it counted since it was loaded.
    pub counters: BTreeMap<String, u64>,
    /// What it knows of the VMs.
    pub vms: Vec<VmInForce>,
    /// The scheduling domains.
    #[serde(default)]
    pub domains: Vec<DomainSeen>,
    /// CPU limits of cgroups in which threads ran of late, at most 64: those of cgroups in which VMs run, above and below, then others,
    /// those that held threads for longest first. One that is listed stays until another held threads for twice as long.
    #[serde(default)]
    pub limits: Vec<LimitInForce>,
    /// How many there are besides.
    #[serde(default)]
    pub more_limits: usize,
    /// Its programs; times only while `kernel.bpf_stats_enabled` is 1.
    #[serde(default)]
    pub programs: Vec<Program>,
    /// How it ended the last time that it did since this process runs.
    #[serde(default)]
    pub last_exit: Option<LastExit>,
}

/// One BPF program of the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Program {
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: String,
    /// Instructions that the verifier went through before it was accepted.
    pub instructions: u32,
    /// How often it ran.
    pub runs: u64,
    /// How long in all.
    pub run_ns: u64,
}

/// Why it was thrown out.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LastExit {
    /// One sentence.
    pub why: String,
    /// Where the kernel's dump is, if it made one.
    pub dump: Option<PathBuf>,
}

/// One VM as the kernel scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct VmInForce {
    /// Its name.
    pub name: String,
    /// Its weight, as the kernel has it.
    #[serde(default)]
    pub weight: u32,
    /// Its allocation period, such as `24ms`, as the kernel has it.
    #[serde(default)]
    pub period: String,
    /// Its co-scheduling: auto, never, relaxed.
    #[serde(default)]
    pub cosched: String,
    /// Its latency class: normal, prompt.
    #[serde(default)]
    pub latency: String,
    /// The node that it keeps the VM on while that has room; null without one.
    #[serde(default)]
    pub home_node: Option<NodeId>,
    /// Whether it forms a gang: vCPUs that run at the same time.
    pub together: bool,
    /// vCPUs of the gang; 0 without one.
    #[serde(default)]
    pub gang_vcpus: u32,
    /// CPUs of its gang set.
    #[serde(default)]
    pub gang_cpus: u32,
    /// Its scheduling domain; null before one of its threads woke up.
    #[serde(default)]
    pub domain: Option<u32>,
    /// CPUs that it is entitled to now, in thousandths of a CPU.
    #[serde(default)]
    pub share_milli: u32,
    /// What the scheduler last found out of it, in words.
    #[serde(default)]
    pub found: Option<String>,
    /// Time in which more than one of its vCPUs ran, since it is known.
    pub together_ns: u64,
    /// Time in which one ran while another waited for a CPU.
    pub apart_ns: u64,
    /// CPU time of its vCPUs since it is known.
    pub cpu_ns: u64,
    /// Time for which CPU limits of cgroups held its threads, summed over them, since it is known.
    #[serde(default)]
    pub held_ns: u64,
    /// Of its threads, how many limits held in the last second, on average, in thousandths.
    #[serde(default)]
    pub held_milli: u32,
    /// How often a vCPU blocked.
    pub blocks: u64,
    /// Virtual time by which it is behind its domain's clock; negative when it is ahead.
    #[serde(default)]
    pub lag_ns: i64,
    /// Gang slots that it had since it is known.
    #[serde(default)]
    pub gang_slots: u64,
    /// How often a CPU was taken from its gang in its slot.
    #[serde(default)]
    pub gang_tears: u64,
    /// How long its vCPUs waited for a CPU, together.
    #[serde(default)]
    pub waits: WaitsInForce,
    /// The same of each vCPU, in their order.
    #[serde(default)]
    pub vcpus: Vec<VcpuInForce>,
}

/// For how long vCPUs waited for a CPU since they are known: from when one could run to when it did, without the time for which
/// CPU limits held it. Quantiles are upper bounds, at most 2.25 times the exact ones where these are 1 us or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct WaitsInForce {
    /// How many waits there were.
    pub count: u64,
    /// Half of them took at most so long, in microseconds.
    pub p50_us: u64,
    /// 99 % of them.
    pub p99_us: u64,
    /// The longest.
    pub longest_us: u64,
}

/// A vCPU as the kernel scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct VcpuInForce {
    /// Its thread.
    pub tid: Tid,
    /// How long it waited for a CPU.
    pub waits: WaitsInForce,
}

/// A run that had loaded Instep's scheduler and is gone without a word: it was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KilledRun {
    /// Its process.
    pub pid: u32,
    /// When it last said what was in force, as it does every second.
    pub heard: Option<SystemTime>,
}

impl KilledRun {
    /// Why the default scheduler is in force: one sentence.
    #[must_use]
    pub fn why(&self) -> String {
        let heard =
            self.heard_at().map_or_else(String::new, |at| format!(", last heard of at {at}"));
        format!(
            "the `instep run` that had loaded Instep's (process {}{heard}) ended without saying so; \
             start it again",
            self.pid
        )
    }

    /// That moment in UTC, such as `2026-11-23T08:11:15Z`.
    #[must_use]
    pub fn heard_at(&self) -> Option<String> {
        self.heard.map(|heard| humantime::format_rfc3339_seconds(heard).to_string())
    }
}

/// What a running `instep run` with this state directory says is in force; `None` when none does.
#[must_use]
pub fn read(state: &Path) -> Option<InForce> {
    stored(state).filter(|in_force| matches!(in_force.instance.life(), Ok(InstanceLife::Runs)))
}

/// The run that had loaded Instep's scheduler and was killed, until a run with this state directory
/// begins or something is restored there. One that the machine's end ended is none.
#[must_use]
pub fn gone(state: &Path) -> Option<KilledRun> {
    let ended = |in_force: &InForce| matches!(in_force.instance.life(), Ok(InstanceLife::Ended));
    let told = stored(state).filter(|in_force| in_force.instep && ended(in_force))?;
    let written = std::fs::metadata(state.join(FILE)).and_then(|file| file.modified());
    Some(KilledRun { pid: told.instance.pid, heard: written.ok() })
}

fn stored(state: &Path) -> Option<InForce> {
    state_file::stored(state, FILE)
}

/// Writes down what is in force, all at once.
///
/// # Errors
/// The directory is full or gone.
pub(super) fn write(state: &Path, in_force: &InForce) -> io::Result<()> {
    state_file::write(state, FILE, in_force)
}

/// Forgets what was in force: a run begins, or all was restored.
pub fn forget(state: &Path) {
    state_file::remove(state, FILE);
}

/// This run ends in order. What another instance tells that has the directory by now stays.
pub(super) fn withdraw(state: &Path) {
    _ = state_file::withdraw(state, FILE);
}

/// Keeps the kernel's dump, over the one before; where it is.
pub(super) fn keep_dump(state: &Path, exit: &Exit) -> Option<PathBuf> {
    if exit.dump.is_empty() {
        return None;
    }
    let path = state.join(DUMP);
    let text = format!("{}\n\n{}\n", exit.why(), exit.dump.trim_end());
    state_file::replace(&path, text.as_bytes(), state_file::OWNERS).ok()?;
    Some(path)
}

impl From<Cost> for Program {
    fn from(cost: Cost) -> Self {
        let Cost { name, runs, ns, instructions } = cost;
        Self { name, instructions, runs, run_ns: ns }
    }
}

/// 1024ths of a CPU in thousandths.
fn milli_cpus(share: u32) -> u32 {
    u32::try_from(u64::from(share) * 1000 / 1024).unwrap_or(u32::MAX)
}

/// VMs as the scheduler sees them. The measure of waits takes 4 KiB, so all vCPUs use the same.
pub(super) fn vms_in_force(seen: impl Iterator<Item = VmSeen>) -> Vec<VmInForce> {
    let (mut vm, mut vcpu) = (Waits::default(), Waits::default());
    seen.map(|seen| vm_in_force(seen, &mut vm, &mut vcpu)).collect()
}

/// `all` and `own` hold the waits of the VM and of each vCPU in turn.
fn vm_in_force(seen: VmSeen, all: &mut Waits, own: &mut Waits) -> VmInForce {
    all.clear();
    let vcpu = |(tid, classes): &(Tid, WaitClasses)| {
        own.clear();
        classes.add_to(own);
        all.merge(own);
        VcpuInForce { tid: *tid, waits: (&*own).into() }
    };
    let vcpus = seen.vcpus.iter().map(vcpu).collect();
    VmInForce {
        name: seen.name,
        weight: seen.weight,
        period: humantime::format_duration(Duration::from_nanos(seen.period_ns)).to_string(),
        cosched: seen.cosched.to_string(),
        latency: seen.latency.to_string(),
        home_node: seen.home,
        together: seen.seats > 0,
        gang_vcpus: seen.seats,
        gang_cpus: seen.gang_cpus,
        domain: seen.domain,
        share_milli: milli_cpus(seen.share),
        found: seen.found,
        together_ns: seen.together_ns,
        apart_ns: seen.apart_ns,
        cpu_ns: seen.cpu_ns,
        held_ns: seen.held_ns,
        held_milli: 0,
        blocks: seen.blocks,
        lag_ns: seen.lag_ns,
        gang_slots: seen.slots,
        gang_tears: seen.tears,
        waits: WaitsInForce::from(&*all),
        vcpus,
    }
}

impl From<&Waits> for WaitsInForce {
    fn from(waits: &Waits) -> Self {
        Self {
            count: waits.count(),
            p50_us: waits.quantile(500) / 1000,
            p99_us: waits.quantile(990) / 1000,
            longest_us: waits.longest() / 1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_kept_with_its_reason_and_none_leaves_no_file() {
        let dir = instep_madehost::scratch_dir().unwrap();
        assert_eq!(keep_dump(dir.path(), &Exit::of(67, 0, -1, b"sysrq", b"", b"")), None);
        let exit = Exit::of(1026, 0, 1, b"", b"job[3] failed to run", b"CPU 0 : nr_run=2\n\0");
        let path = keep_dump(dir.path(), &exit).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(
            text.starts_with("a thread waited longer") && text.ends_with("nr_run=2\n"),
            "{text}"
        );
    }

    #[test]
    fn file_of_an_earlier_version_is_read_if_its_process_is_certain() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let found = |instance: &str| {
            let rest = r#""why":"x","failures":0,"counters":{},"vms":[]"#;
            let text = format!(r#"{{"instep":true,{instance},{rest}}}"#);
            std::fs::write(dir.path().join(FILE), text).unwrap();
            read(dir.path())
        };
        let this = serde_json::to_string(&Instance::this().unwrap()).unwrap();
        let same = found(&format!(r#""pid":1,"instance":{this}"#));
        assert!(same.is_some_and(|found| found.instep && found.programs.is_empty()));
        // Any process may have that number by now.
        assert_eq!(found(&format!(r#""pid":{}"#, std::process::id())), None);
    }

    #[test]
    fn of_a_run_that_was_killed_it_is_known_until_it_is_forgotten() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let this = Instance::this().unwrap();
        let dead = Instance { start: this.start + 1, ..this.clone() };
        let left = |instep, instance: &Instance| {
            let instance = instance.clone();
            write(dir.path(), &InForce { instep, instance, ..InForce::default() }).unwrap();
            (read(dir.path()).is_some(), gone(dir.path()))
        };
        assert_eq!(left(true, &this), (true, None));
        assert_eq!(left(false, &dead), (false, None), "it had loaded nothing");
        let booted = Instance { boot_id: "another".to_owned(), ..this.clone() };
        assert_eq!(left(true, &booted), (false, None), "nobody killed it: the machine went down");
        let (read, found) = left(true, &dead);
        let found = found.unwrap();
        assert!(!read && found.pid == this.pid);
        let ago = SystemTime::now().duration_since(found.heard.unwrap()).unwrap();
        assert!(ago < Duration::from_secs(60), "{ago:?}");
        forget(dir.path());
        assert_eq!(gone(dir.path()), None);
    }

    #[test]
    fn why_default_is_in_force_after_a_kill_names_process_and_time() {
        let heard = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_421_475);
        let why = KilledRun { pid: 1234, heard: Some(heard) }.why();
        let said = "(process 1234, last heard of at 2026-11-23T";
        assert!(why.contains(said) && why.ends_with("; start it again"), "{why}");
        assert!(KilledRun { pid: 9, heard: None }.why().contains("(process 9) ended"));
    }
}
