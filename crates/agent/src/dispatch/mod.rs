//! The kernel scheduler in the loop: whether it is in force and why, what it is fed, and that it
//! comes back when it fell out.
//!
//! ```text
//! off(why) <--plan-- begin --plan--> loaded --fell out--> waiting --backoff over--> loaded
//!                                       ^                    |  CPU hotplug: at once
//!                                       +--------------------+
//! ```
//! It knows nothing of BPF: `instep-kernel` does. Without that crate's feature `kernel` it is
//! always off.

pub mod config;
pub mod table;

use crate::error::Error;
use config::DispatchConfig;
use instep_core::decision::Decision;
use instep_core::snapshot::Snapshot;
use instep_core::topology::Topology;
use instep_core::units::NodeId;
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner};
use instep_kernel::backoff::Backoff;
use instep_kernel::loaded::Loaded;
use instep_kernel::seen::VmSeen;
use instep_kernel::{Mode, Plan, Probe, plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the scheduler is looked after while the loop waits.
pub const LOOK: Duration = Duration::from_secs(1);
/// Looks between two scans for VMs that came and went.
const LOOKS_PER_SCAN: u32 = 2;
/// The file in the state directory that says what is in force.
const FILE: &str = "dispatch.json";
/// The most that is read of it.
const MAX_FILE: usize = 1 << 20;

/// What is in force and why, for `instep status` and records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Whether Instep's scheduler is in force.
    pub instep: bool,
    /// Why, or why not: one sentence.
    pub why: String,
    /// The process that loaded it, or would.
    pub pid: u32,
    /// How often it fell out since it was last sound.
    pub failures: usize,
    /// What it counted since it was loaded.
    pub counters: BTreeMap<String, u64>,
    /// What it knows of the VMs.
    pub vms: Vec<VmInForce>,
}

/// One VM as the kernel scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmInForce {
    /// Its name.
    pub name: String,
    /// Whether its siblings run together.
    pub together: bool,
    /// Time in which more than one of its vCPUs ran, since it is known.
    pub together_ns: u64,
    /// Time in which one ran while another waited for a CPU.
    pub apart_ns: u64,
    /// CPU time of its vCPUs since it is known.
    pub cpu_ns: u64,
    /// How often a vCPU blocked.
    pub blocks: u64,
    /// Virtual time by which it is ahead of the host.
    pub lead_ns: i64,
}

/// The kernel scheduler as the loop holds it.
#[derive(Debug)]
pub struct Dispatch {
    config: DispatchConfig,
    homes: BTreeMap<String, NodeId>,
    nodes: Vec<i32>,
    scanner: Scanner,
    backoff: Backoff,
    state: State,
    file: Option<PathBuf>,
    looks: u32,
    said: Vec<String>,
}

#[derive(Debug)]
enum State {
    Off(String),
    Loaded { kernel: Box<Loaded>, since: Instant },
    Waiting { until: Instant, why: String },
}

impl Dispatch {
    /// Probes, plans and loads. `state` is where what is in force is written.
    ///
    /// # Errors
    /// The mode is `kernel` and it cannot be loaded.
    pub fn begin(
        config: &DispatchConfig,
        topology: &Topology,
        state: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut quick = ScanOptions::default();
        quick.memory.enabled = false;
        let mut dispatch = Self {
            config: config.clone(),
            homes: BTreeMap::new(),
            nodes: nodes(topology),
            scanner: Scanner::new(Root::live(), quick),
            backoff: Backoff::default(),
            state: State::Off(String::new()),
            file: state.map(|dir| dir.join(FILE)),
            looks: 0,
            said: Vec::new(),
        };
        dispatch.try_load();
        match (&dispatch.state, config.mode) {
            (State::Off(why) | State::Waiting { why, .. }, Mode::Kernel) => {
                Err(Error::Dispatch { why: why.clone() })
            }
            _ => Ok(dispatch),
        }
    }

    /// Whether there is anything to look after.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !matches!(self.state, State::Off(_))
    }

    /// Takes over a new configuration.
    pub fn reload(&mut self, config: &DispatchConfig) {
        let was = self.config.mode;
        self.config = config.clone();
        if was != config.mode {
            self.state = State::Off(String::new());
            self.try_load();
        }
        if let State::Loaded { kernel, .. } = &mut self.state {
            kernel.set(&config.settings().unwrap_or_default());
            self.looks = 0;
        }
    }

    /// Notes where VMs are at home, from what was decided.
    pub fn note_homes(&mut self, snapshot: &Snapshot, decision: &Decision) {
        let home = |verdict: &instep_core::decision::Verdict| {
            let node = verdict.home.first().filter(|_| verdict.home.len() == 1)?;
            Some((snapshot.vm(verdict.vm)?.name.clone(), node))
        };
        self.homes = decision.vms.iter().filter(|v| v.selected).filter_map(home).collect();
    }

    /// Looks after it, once a second: notices that it fell out, loads it again when it is time,
    /// feeds it the VMs. Returns what is worth telling.
    pub fn look(&mut self) -> Vec<String> {
        match &self.state {
            State::Off(_) => return Vec::new(),
            State::Waiting { until, .. } if Instant::now() >= *until => self.try_load(),
            State::Waiting { .. } => {}
            State::Loaded { .. } => self.look_at_loaded(),
        }
        self.write();
        std::mem::take(&mut self.said)
    }

    /// What is in force.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        let base = InForce {
            pid: std::process::id(),
            failures: self.backoff.failures(),
            ..InForce::default()
        };
        match &self.state {
            State::Off(why) | State::Waiting { why, .. } => InForce { why: why.clone(), ..base },
            State::Loaded { kernel, .. } => InForce {
                instep: true,
                why: "loaded by instep run".to_owned(),
                counters: kernel.counters().iter().map(|(n, c)| ((*n).to_owned(), *c)).collect(),
                vms: kernel.vms().into_iter().map(VmInForce::from).collect(),
                ..base
            },
        }
    }

    fn try_load(&mut self) {
        let threads: Vec<_> = if self.config.mode == Mode::Off {
            Vec::new()
        } else {
            let scan = self.scanner.scan().map(|scan| scan.vms).unwrap_or_default();
            scan.iter().flat_map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid)).collect()
        };
        let probe = Probe::of(Path::new("/"), &threads);
        let cookies = self.config.despite_cookies;
        self.state = match plan(self.config.mode, &probe, plan::BUILT, cookies) {
            Plan::Stay(why) => State::Off(why),
            Plan::Load => self.load(),
        };
        if let (State::Off(why), true) = (&self.state, self.config.mode != Mode::Off) {
            self.said.push(format!("the kernel's default scheduler stays: {why}"));
        }
        self.write();
    }

    fn load(&mut self) -> State {
        let settings = self.config.settings().unwrap_or_default();
        match Loaded::load(&settings, &self.nodes) {
            Ok(kernel) => {
                self.said.push("Instep's kernel scheduler is in force".to_owned());
                self.looks = 0;
                State::Loaded { kernel: Box::new(kernel), since: Instant::now() }
            }
            Err(error) => self.wait(format!("it cannot be loaded: {error:#}"), Duration::ZERO),
        }
    }

    /// Waits before the next attempt.
    fn wait(&mut self, why: String, lasted: Duration) -> State {
        let wait = self.backoff.failed(lasted);
        self.said.push(format!(
            "the kernel's default scheduler is in force: {why}; trying again in {}",
            humantime::format_duration(wait)
        ));
        State::Waiting { until: Instant::now() + wait, why }
    }

    fn look_at_loaded(&mut self) {
        let State::Loaded { kernel, since } = &mut self.state else { return };
        if let Some((why, restart)) = kernel.exited() {
            let lasted = since.elapsed();
            self.state = State::Off(String::new());
            if restart {
                self.said.push("CPUs came or went: loading the scheduler again".to_owned());
                self.nodes = instep_host::topology::read(&Root::live())
                    .map_or_else(|_| self.nodes.clone(), |topology| nodes(&topology));
                self.try_load();
            } else {
                self.state = self.wait(format!("it fell out: {why}"), lasted);
            }
            return;
        }
        for event in kernel.drain() {
            tracing::debug!(?event, "kernel scheduler");
        }
        if self.looks.is_multiple_of(LOOKS_PER_SCAN)
            && let Ok(scan) = self.scanner.scan()
        {
            let entries = table::entries(&scan.vms, &self.homes, &self.config);
            match kernel.feed(entries) {
                Ok(warnings) => self.said.extend(warnings),
                Err(error) => self.said.push(format!("the VM table was not taken: {error:#}")),
            }
        }
        self.looks = self.looks.wrapping_add(1);
    }

    /// Leaves word for `instep status`; a directory that is full or gone is no reason to stop.
    fn write(&self) {
        let Some(file) = &self.file else { return };
        let written =
            serde_json::to_vec(&self.in_force()).map_err(std::io::Error::other).and_then(|bytes| {
                let part = file.with_extension("part");
                std::fs::write(&part, bytes)?;
                std::fs::rename(&part, file)
            });
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write {}", file.display());
        }
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Nothing is in force any more; that nobody is left to say so is what this says.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// What a running `instep run` with this state directory says is in force; `None` when none does.
#[must_use]
pub fn read(state: &Path) -> Option<InForce> {
    let bytes = std::fs::read(state.join(FILE)).ok().filter(|bytes| bytes.len() <= MAX_FILE)?;
    let in_force: InForce = serde_json::from_slice(&bytes).ok()?;
    Path::new("/proc").join(in_force.pid.to_string()).exists().then_some(in_force)
}

/// The node of each CPU by its number; -1 for CPUs that are offline.
fn nodes(topology: &Topology) -> Vec<i32> {
    let possible = possible_cpus().max(topology.cpus().last().map_or(0, |cpu| cpu.id.0 + 1));
    let mut nodes = vec![-1; possible as usize];
    for cpu in topology.cpus() {
        nodes[cpu.id.0 as usize] = i32::try_from(cpu.node.0).unwrap_or(-1);
    }
    nodes
}

/// One more than the highest possible CPU (`/sys/devices/system/cpu/possible`), 0 when not known.
fn possible_cpus() -> u32 {
    let text = Root::live().read("sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    last.map_or(0, |last| last.saturating_add(1)).min(4096)
}

impl From<VmSeen> for VmInForce {
    fn from(seen: VmSeen) -> Self {
        Self {
            name: seen.name,
            together: seen.gang,
            together_ns: seen.together_ns,
            apart_ns: seen.apart_ns,
            cpu_ns: seen.cpu_ns,
            blocks: seen.blocks,
            lead_ns: seen.lead_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        instep_host::topology::read(&Root::live()).unwrap()
    }

    #[test]
    fn off_is_off_and_says_why() {
        let dispatch = Dispatch::begin(&DispatchConfig::default(), &topology(), None).unwrap();
        assert!(!dispatch.is_active() && dispatch.in_force().why.contains("not asked for"));
    }

    #[test]
    fn what_is_in_force_is_told_as_long_as_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let dispatch =
            Dispatch::begin(&DispatchConfig::default(), &topology(), Some(dir.path())).unwrap();
        assert_eq!(read(dir.path()), Some(dispatch.in_force()));
        drop(dispatch);
        assert_eq!(read(dir.path()), None);
        let gone = InForce { pid: u32::MAX - 1, ..InForce::default() };
        std::fs::write(dir.path().join(FILE), serde_json::to_vec(&gone).unwrap()).unwrap();
        assert_eq!(read(dir.path()), None);
        std::fs::write(dir.path().join(FILE), b"{\"instep\":").unwrap();
        assert_eq!(read(dir.path()), None);
    }

    #[test]
    fn a_kernel_without_sched_ext_is_an_error_only_when_it_was_demanded() {
        if Path::new("/sys/kernel/sched_ext").exists() {
            instep_madehost::skip::note("this kernel has sched_ext: loading is the lab's to test");
            return;
        }
        let config = |mode| DispatchConfig { mode, ..DispatchConfig::default() };
        let auto = Dispatch::begin(&config(Mode::Auto), &topology(), None).unwrap();
        assert!(!auto.is_active());
        let error = Dispatch::begin(&config(Mode::Kernel), &topology(), None).unwrap_err();
        assert!(error.to_string().contains("--dispatch"), "{error}");
    }

    #[test]
    fn every_online_cpu_has_its_node() {
        let topology = topology();
        let nodes = nodes(&topology);
        assert!(topology.cpus().iter().all(|cpu| nodes[cpu.id.0 as usize] == cpu.node.0 as i32));
    }
}
