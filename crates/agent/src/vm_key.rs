//! The identity of a VM from one scan to the next.

use instep_core::snapshot::Vm;
use instep_core::units::VmId;
use instep_host::discover::VmFacts;

/// A VM by its process. The start time tells it from a later process of the same number. A name is none: it
/// changes when another VM of the same name comes or goes, and the next VM may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmKey {
    /// The monitor's process.
    pub id: VmId,
    /// When that process started, in ticks since boot.
    pub start_ticks: u64,
}

impl From<&Vm> for VmKey {
    fn from(vm: &Vm) -> Self {
        Self { id: vm.id, start_ticks: vm.start_ticks }
    }
}

impl From<&VmFacts> for VmKey {
    fn from(facts: &VmFacts) -> Self {
        Self { id: VmId(facts.pid), start_ticks: facts.start_ticks }
    }
}
