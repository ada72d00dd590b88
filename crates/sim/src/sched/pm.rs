//! `pm`: guest threads straight on the host's CPUs under CFS, without any hypervisor. What published
//! comparisons call the physical machine.

use super::cfs::{Cfs, CfsTuning, Choice};

/// The scheduler, with CFS's numbers. Each task is a thread.
pub fn new(rules: CfsTuning) -> Cfs {
    Cfs::with(rules, Choice::Any, "pm").on_bare_metal()
}
