//! What the loop needs of the kernel scheduler.

use crate::vm_key::VmKey;
use instep_core::units::{Nanos, NodeId};
use std::collections::BTreeMap;

/// What is needed of the kernel scheduler; a test has one of its own.
pub(crate) trait Scheduler {
    /// Whether it keeps VMs on the home nodes that it is told.
    fn keeps_homes(&self) -> bool;

    /// Whether it keeps this VM at home, or will as soon as it is told.
    fn keeps_home(&self, vm: VmKey) -> bool;

    /// Notes where VMs are at home; the next look tells it.
    fn note_homes(&mut self, homes: BTreeMap<VmKey, NodeId>);

    /// For how long CPU limits held the threads of each VM, by its name, since it is in force.
    fn held(&self) -> BTreeMap<String, Nanos>;

    /// VMs came or ended: the next look tells it of them.
    fn note_arrivals(&mut self);

    /// Tells it what VMs and cgroups are entitled to if a weight has changed, which must not wait for the next look.
    fn follow_weights(&mut self);

    /// Looks after it. Returns what is worth telling.
    fn supervise(&mut self) -> Vec<String>;
}
