//! The kernel scheduler as the loop uses it.

use crate::vm_key::VmKey;
use instep_core::units::{Nanos, NodeId};
use std::collections::BTreeMap;

/// The kernel scheduler as the loop uses it; a test implements it without a kernel.
pub(crate) trait Scheduler {
    /// Whether the scheduler keeps VMs on the home nodes that [`Self::note_homes`] names.
    fn keeps_homes(&self) -> bool;

    /// Whether the scheduler keeps this VM at home, or will after [`Self::note_homes`].
    fn keeps_home(&self, vm: VmKey) -> bool;

    /// Notes the home nodes of VMs; the next look passes them on to the kernel.
    fn note_homes(&mut self, homes: BTreeMap<VmKey, NodeId>);

    /// For how long CPU limits held the threads of each VM, by its name, since the scheduler was loaded.
    fn held(&self) -> BTreeMap<String, Nanos>;

    /// Notes that VMs came or ended; the next look passes the VMs on to the kernel.
    fn note_arrivals(&mut self);

    /// Writes the entitlements of VMs and cgroups if a weight has changed: that must not wait for the next look.
    fn follow_weights(&mut self);

    /// Checks that the scheduler is in force and passes noted changes on. Returns notices for the user.
    fn supervise(&mut self) -> Vec<String>;
}
