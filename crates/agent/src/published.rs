//! What a running `instep run` tells others of itself: `instep status` its process, and when it acts again; everybody
//! what it found and did.

mod history;
mod host;
mod keeper;
mod moment;
mod recorder;

pub use history::{History, PlacementChange};
pub use host::PublishedHost;
pub(crate) use keeper::Keeper;
pub use keeper::WrittenMoment;
pub use moment::{MomentChange, MomentHost, MomentNode, MomentVcpu, MomentVm, PublishedCycle};

use crate::observe::note_placed;
use crate::state_file;
use instep_core::idset::CpuSet;
use instep_core::policy::PolicyName;
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::{Bytes, NodeId, Tid, VmId};
use instep_host::apply::{Instance, InstanceLife};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The file in the state directory.
const FILE: &str = "run.json";

/// Files in the state directory that everybody may read: the host after the last cycle, the last hour, metrics.
pub const HOST: &str = "host.json";
/// The last hour; it stays when a run ends.
pub const HISTORY: &str = "history.json";
/// The last day, a file in the directory of the history.
pub const DAY: &str = "day.json";
/// Metrics for Prometheus.
pub const METRICS: &str = "metrics.prom";

/// The state directory of the host's run.
pub const STATE_DIR: &str = "/run/instep";
/// Where its history is, which outlives a boot.
const HISTORY_DIR: &str = "/var/lib/instep/history";

/// Where the history of a run with this state directory is, unless another place is named.
#[must_use]
pub fn history_dir(state: &Path) -> PathBuf {
    if state == Path::new(STATE_DIR) { HISTORY_DIR.into() } else { state.join("history") }
}

/// A run between two cycles.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RunState {
    /// Its process.
    pub instance: Instance,
    /// Its placement policy.
    pub policy: String,
    /// Cycles that were done, from 1.
    pub cycle: u64,
    /// When the last one ended, in UTC, such as `2026-11-23T08:11:15Z`.
    pub cycle_at: String,
    /// When the next one begins unless something calls for it earlier, in UTC.
    pub next_cycle_at: String,
}

impl RunState {
    /// Of this process, which has just done that cycle and does the next one after `wait`.
    ///
    /// # Errors
    /// When this process cannot be read under /proc.
    pub(crate) fn now(
        policy: &str,
        cycle: u64,
        wait: Duration,
    ) -> Result<Self, instep_host::Error> {
        let now = SystemTime::now();
        let at = |time| humantime::format_rfc3339_seconds(time).to_string();
        Ok(Self {
            instance: Instance::this()?,
            policy: policy.to_owned(),
            cycle,
            cycle_at: at(now),
            next_cycle_at: at(now + wait),
        })
    }

    /// Tells `instep status` of this process, as [`RunState::now`].
    pub(crate) fn publish_now(state: &Path, policy: PolicyName, cycle: u64, wait: Duration) {
        if let Ok(run) = Self::now(policy.as_str(), cycle, wait) {
            run.publish(state);
        }
    }

    fn lives(&self) -> bool {
        matches!(self.instance.life(), Ok(InstanceLife::Runs))
    }

    /// Writes it down. What cannot be written is not shown, and that is all.
    pub(crate) fn publish(&self, state: &Path) {
        if let Err(error) = state_file::write(state, FILE, self) {
            tracing::debug!(%error, "cannot write to {}", state.display());
        }
    }
}

/// The run that uses this state directory now; `None` when there is none. Others than its owner know it by what it publishes, from
/// its first cycle on.
#[must_use]
pub fn running(state: &Path) -> Option<RunState> {
    let stored: Option<RunState> = state_file::stored(state, FILE);
    stored.filter(RunState::lives).or_else(|| Some(seen(state)?.run))
}

/// What everybody may read of a run, as far as `instep status` shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct SeenRun {
    /// The run.
    #[serde(flatten)]
    pub run: RunState,
    /// What it says of the kernel scheduler; `None` where it was not asked for one.
    pub scheduler: Option<SeenScheduler>,
    vms: Vec<SeenVm>,
}

/// The kernel scheduler as a run tells everybody of it.
#[derive(Clone, Debug, Deserialize)]
pub struct SeenScheduler {
    /// Whether Instep's is in force.
    pub instep: bool,
    /// Why, or why not.
    pub why: String,
}

#[derive(Clone, Debug, Deserialize)]
struct SeenVm {
    name: String,
    pid: VmId,
    home_nodes: Vec<NodeId>,
    memory_bytes_by_node: BTreeMap<NodeId, Bytes>,
    vcpus: Vec<SeenVcpu>,
}

#[derive(Clone, Debug, Deserialize)]
struct SeenVcpu {
    tid: Tid,
    #[serde(with = "instep_state::list")]
    cpus: CpuSet,
    was: Option<String>,
}

/// What the run that uses this state directory publishes; `None` when there is no run, or it has not ended a cycle yet.
#[must_use]
pub fn seen(state: &Path) -> Option<SeenRun> {
    let seen: SeenRun = state_file::stored(state, HOST)?;
    seen.run.lives().then_some(seen)
}

impl SeenRun {
    /// Processes of the VMs that count for it.
    #[must_use]
    pub fn counted(&self) -> BTreeSet<VmId> {
        self.vms.iter().map(|vm| vm.pid).collect()
    }

    /// The node that Instep's kernel scheduler keeps a VM on, while that is in force.
    #[must_use]
    pub fn home_of(&self, name: &str) -> Option<NodeId> {
        let is_in_force = self.scheduler.as_ref().is_some_and(|scheduler| scheduler.instep);
        let vm = self.vms.iter().find(|vm| is_in_force && vm.name == name)?;
        let [home] = vm.home_nodes[..] else { return None };
        Some(home)
    }

    /// Fills in what it says of VMs, for users who may read neither the run's journal nor the memory of VMs.
    pub fn fill_in(&self, snapshot: &mut Snapshot) {
        let topology = Arc::clone(&snapshot.topology);
        let online = topology.all_cpus();
        for vm in &mut snapshot.vms {
            self.fill_in_vm(vm);
            note_placed(vm, &topology, &online);
        }
    }

    /// What vCPUs could use before Instep bound them to what they may use now, and where the VM's memory lay after the last cycle,
    /// if that is not known better.
    fn fill_in_vm(&self, vm: &mut Vm) {
        let Some(seen) = self.vms.iter().find(|it| it.pid == vm.id && it.name == vm.name) else {
            return;
        };
        if vm.memory.is_empty() {
            vm.memory.clone_from(&seen.memory_bytes_by_node);
        }
        for vcpu in &mut vm.vcpus {
            let seen = seen.vcpus.iter().find(|it| it.tid == vcpu.tid && it.cpus == vcpu.allowed);
            let was = seen.and_then(|it| CpuSet::parse_list(it.was.as_deref()?).ok());
            vcpu.initial = was.unwrap_or_else(|| vcpu.allowed.clone());
        }
    }
}

/// A run begins or has ended: what one told is no longer so.
pub fn forget(state: &Path) {
    [FILE, HOST, METRICS].iter().for_each(|name| state_file::remove(state, name));
}

/// This run ends. What another instance tells that has the directory by now stays.
pub(crate) fn withdraw(state: &Path) {
    if state_file::withdraw(state, FILE) {
        forget(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_known_while_its_process_lives() {
        let dir = instep_madehost::scratch_dir().unwrap();
        assert_eq!(running(dir.path()), None);
        let run = RunState::now("instep", 3, Duration::from_secs(60)).unwrap();
        run.publish(dir.path());
        assert_eq!(running(dir.path()), Some(run.clone()));
        assert!(run.next_cycle_at > run.cycle_at && run.cycle_at.ends_with('Z'), "{run:?}");
        let instance = Instance { start: run.instance.start + 1, ..run.instance.clone() };
        RunState { instance, ..run.clone() }.publish(dir.path());
        assert_eq!(running(dir.path()), None, "only a number is the same");
        withdraw(dir.path());
        assert!(dir.path().join(FILE).exists(), "it is another one's");
        run.publish(dir.path());
        withdraw(dir.path());
        assert!(!dir.path().join(FILE).exists());
        run.publish(Path::new("/nonexistent"));
    }
}
