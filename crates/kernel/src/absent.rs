//! Stands in for the loaded scheduler in builds without the feature `kernel`: there never is one.

use crate::exit::Exit;
use crate::settings::{CpuPlace, SchedulerSettings};
use crate::stats::{Cost, DomainSeen, LimitSeen, SchedulerEvent, VmSeen, Wants};
use crate::table::{VmEntry, VmTable};
use instep_core::units::Nanos;

/// A scheduler that cannot be.
#[derive(Debug)]
pub enum Loaded {}

impl Loaded {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: &SchedulerSettings, _: &[CpuPlace], _: usize) -> anyhow::Result<Self> {
        anyhow::bail!("this build of instep has no kernel scheduler (feature `kernel`)")
    }

    /// Takes over new settings.
    pub fn set(&mut self, _: &SchedulerSettings) {
        match *self {}
    }

    /// Whether it is to be loaded anew.
    #[must_use]
    pub fn is_outgrown(&self, _: usize) -> bool {
        match *self {}
    }

    /// Feeds it the VMs.
    ///
    /// # Errors
    /// Never.
    pub fn feed(&mut self, _: Vec<VmEntry>) -> anyhow::Result<Vec<String>> {
        match *self {}
    }

    /// The table it was last fed.
    #[must_use]
    pub fn table(&self) -> &VmTable {
        match *self {}
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        match *self {}
    }

    /// What it knows of each VM.
    pub fn vms(&self) -> std::vec::IntoIter<VmSeen> {
        match *self {}
    }

    /// For how long CPU limits held the threads of each VM.
    #[must_use]
    pub fn held(&self) -> Vec<(&VmEntry, Nanos)> {
        match *self {}
    }

    /// What it knows of each scheduling domain.
    #[must_use]
    pub fn domains(&self) -> Vec<DomainSeen> {
        match *self {}
    }

    /// CPU limits.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitSeen> {
        match *self {}
    }

    /// A cgroup whose limit it does not keep.
    #[must_use]
    pub fn lost_limit(&self) -> Option<u64> {
        match *self {}
    }

    /// How often it found a cgroup with another weight than before.
    #[must_use]
    pub fn reweighed(&self) -> u64 {
        match *self {}
    }

    /// Forgets cgroups and limits under which nothing ran.
    pub fn forget_idle(&mut self) {
        match *self {}
    }

    /// Whether it found cgroups for which it has no room.
    #[must_use]
    pub fn lost_groups(&self) -> bool {
        match *self {}
    }

    /// What threads want.
    #[must_use]
    pub fn wants(&self) -> Wants {
        match *self {}
    }

    /// Tells it what all weigh.
    ///
    /// # Errors
    /// Never.
    pub fn set_weights(&mut self, _: &[(u64, u32)], _: &[u32], _: u32) -> anyhow::Result<()> {
        match *self {}
    }

    /// What its programs cost.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        match *self {}
    }

    /// Events.
    pub fn drain(&mut self) -> Vec<SchedulerEvent> {
        match *self {}
    }

    /// Why it ended.
    pub fn exited(&mut self) -> Option<Exit> {
        match *self {}
    }
}
