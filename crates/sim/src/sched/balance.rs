//! Balance scheduling (systems.md, 3): CFS, but a vCPU that is woken or migrated goes only to CPUs
//! whose queue holds no sibling, of these to the one CFS would choose.
//!
//! Where a VM has more vCPUs than it may use CPUs, siblings must share: then the CPUs that hold the
//! fewest count. Nothing is co-scheduled. The rule itself is [`Choice::Apart`].

use super::cfs::{Cfs, Choice, Rules};

/// The scheduler, with CFS's numbers.
#[must_use]
pub fn new(rules: Rules) -> Cfs {
    Cfs::with(rules, Choice::Apart, "balance")
}
