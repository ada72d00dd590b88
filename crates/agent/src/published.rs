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

use crate::state_file;
use instep_core::policy::PolicyName;
use instep_core::units::VmId;
use instep_host::apply::{Instance, InstanceLife};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
const STATE_DIR: &str = "/run/instep";
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

    /// Writes it down. What cannot be written is not shown, and that is all.
    pub(crate) fn publish(&self, state: &Path) {
        if let Err(error) = state_file::write(state, FILE, self) {
            tracing::debug!(%error, "cannot write to {}", state.display());
        }
    }
}

/// The run that uses this state directory now; `None` when there is none.
#[must_use]
pub fn running(state: &Path) -> Option<RunState> {
    let stored: RunState = state_file::stored(state, FILE)?;
    matches!(stored.instance.life(), Ok(InstanceLife::Runs)).then_some(stored)
}

/// Processes of the VMs that count for the run that uses this state directory, which everybody may read; `None` when there is no run,
/// or it has not ended a cycle yet.
#[must_use]
pub fn counted(state: &Path) -> Option<BTreeSet<VmId>> {
    #[derive(Deserialize)]
    struct Vm {
        pid: VmId,
    }
    #[derive(Deserialize)]
    struct Host {
        instance: Instance,
        vms: Vec<Vm>,
    }
    let Host { instance, vms } = state_file::stored(state, HOST)?;
    let runs = matches!(instance.life(), Ok(InstanceLife::Runs));
    runs.then(|| vms.into_iter().map(|vm| vm.pid).collect())
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
