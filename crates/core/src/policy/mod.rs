//! Placement policies: a snapshot in, a decision with reasons out. Pure, deterministic and
//! independent of the order of their input.

pub mod idle;

use crate::decision::Decision;
use crate::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The placement policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Best Node with whole cores, load, hysteresis and the cost of moving memory.
    #[default]
    Instep,
    /// Best NUMA Node as published (systems.md 4).
    Bnn,
    /// Optimal affinity: one CPU of every core (systems.md 1, remedy c).
    Spread,
    /// Hand binding: equal VMs per node (systems.md 4, "bind").
    Bind,
    /// Leave everything to the kernel.
    None,
}

impl PolicyName {
    /// All policies, the default first.
    pub const ALL: [PolicyName; 5] = [
        PolicyName::Instep,
        PolicyName::Bnn,
        PolicyName::Spread,
        PolicyName::Bind,
        PolicyName::None,
    ];

    /// The name as written on a command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Instep => "instep",
            PolicyName::Bnn => "bnn",
            PolicyName::Spread => "spread",
            PolicyName::Bind => "bind",
            PolicyName::None => "none",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownPolicy { name: text.chars().take(40).collect() })
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{name}`; known are instep, bnn, spread, bind and none")]
pub struct UnknownPolicy {
    /// The name given, cut to 40 characters.
    pub name: String,
}

/// How a policy shall treat what operators have set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Which policy.
    pub policy: PolicyName,
    /// Mend affinity conflicts, even where that widens an initial affinity (never the cpuset).
    pub mend_conflicts: bool,
    /// Take charge of VMs whose vCPUs were pinned by hand, too.
    pub include_pinned: bool,
}

/// Decides for one snapshot.
///
/// The result holds one verdict per VM, and only actions that change something: applied to the
/// snapshot, a second decision has none.
#[must_use]
pub fn decide(snapshot: &Snapshot, settings: &Settings) -> Decision {
    let _ = (snapshot, settings);
    Decision::default()
}
