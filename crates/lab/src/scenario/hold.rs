//! The words for what must hold at an observation, and whether they fit their scenario. Nothing in
//! them says how it is observed: they are meant to serve the simulator, too.

use super::Scenario;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The least and the most that a part of a whole may be (0 to 1).
pub type Part = [f64; 2];

/// What must hold at an observation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// The guests it is about. When not given, every guest that was started and that no step ended,
    /// and each of them must run.
    #[serde(default)]
    pub guests: Vec<String>,
    /// Every vCPU may use CPUs of one node only, the same for all of a guest (its home).
    #[serde(default)]
    pub vcpus_on_home_node: bool,
    /// At least so many guests have such a home: for policies that leave some to the kernel.
    pub guests_with_home_at_least: Option<usize>,
    /// The home of each guest named.
    #[serde(default)]
    pub home: BTreeMap<String, u32>,
    /// At least this part (0 to 1) of a guest's touched memory lies on the nodes whose CPUs its
    /// vCPUs may use.
    pub memory_home_at_least: Option<f64>,
    /// At most this part of it lies there: what is misplaced.
    pub memory_home_at_most: Option<f64>,
    /// At least this part (0 to 1) of a guest's touched memory lies on the node where a vCPU is,
    /// in the mean over its vCPUs.
    pub locality_at_least: Option<f64>,
    /// No two vCPUs of a guest are on one core.
    #[serde(default)]
    pub siblings_on_distinct_cores: bool,
    /// All vCPUs of a guest are on one core.
    #[serde(default)]
    pub siblings_on_one_core: bool,
    /// No node is the home of more guests than this.
    pub guests_per_node_at_most: Option<usize>,
    /// The allowed CPUs of every thread are those of this earlier observation.
    pub affinities_as: Option<String>,
    /// Guests whose every thread may use every CPU.
    #[serde(default)]
    pub unbound: Vec<String>,
    /// No vCPU is on any of these CPUs. (An allowed set may name CPUs that went offline.)
    #[serde(default)]
    pub cpus_unused: Vec<u32>,
    /// The earlier observation from which CPU time and work are counted; all when not given.
    pub since: Option<String>,
    /// Of the CPU time that the guests named here used together, the part that each used.
    #[serde(default)]
    pub cpu_share: BTreeMap<String, Part>,
    /// Of the work that the loads of the guests named here did together (`work` of
    /// `instep-load`, in the same unit for all), the part that each did.
    #[serde(default)]
    pub work_share: BTreeMap<String, Part>,
    /// The load of each guest named has done at least so much work.
    #[serde(default)]
    pub work_at_least: BTreeMap<String, u64>,
}

impl Hold {
    /// Every guest that is named in it.
    pub fn named(&self) -> impl Iterator<Item = &String> {
        self.guests
            .iter()
            .chain(self.home.keys())
            .chain(&self.unbound)
            .chain(self.cpu_share.keys())
            .chain(self.work_share.keys())
            .chain(self.work_at_least.keys())
    }

    /// Checks it against its scenario and the names observed before.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, scenario: &Scenario, seen: &BTreeSet<&str>) -> Result<(), String> {
        for name in self.named() {
            scenario.guest_named(name).ok_or(format!("hold: there is no guest {name}"))?;
        }
        for (word, name) in [("affinities_as", &self.affinities_as), ("since", &self.since)] {
            if let Some(name) = name.as_deref().filter(|name| !seen.contains(name)) {
                return Err(format!("hold.{word}: nothing was observed as {name} before"));
            }
        }
        for (word, part) in [
            ("memory_home_at_least", self.memory_home_at_least),
            ("memory_home_at_most", self.memory_home_at_most),
            ("locality_at_least", self.locality_at_least),
        ] {
            if part.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
                return Err(format!("hold.{word}: a part is 0 to 1"));
            }
        }
        for (word, parts) in [("cpu_share", &self.cpu_share), ("work_share", &self.work_share)] {
            for (name, [least, most]) in parts {
                if !(0.0 <= *least && least <= most && *most <= 1.0) {
                    return Err(format!(
                        "hold.{word}: {name} = [{least}, {most}]; needed are the least and the most, 0 to 1"
                    ));
                }
            }
        }
        Ok(())
    }
}
