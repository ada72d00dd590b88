//! The placement policy that the places measured speak for, in words with its numbers; where they tell
//! nothing, the command that would.

use super::text::times;
use instep_core::idset::CpuSet;
use instep_core::policy::PolicyName;
use instep_core::profile::placing::{Placing, Run, near_and_far, shared_and_apart};
use instep_core::topology::Topology;
use instep_core::units::Milli;

/// What is known of placing it.
#[derive(Clone, Debug, Default)]
pub(super) struct Advice {
    /// What the places that were measured tell.
    pub(super) told: Placing,
    /// How many these were.
    measured: usize,
    /// Two that would tell on this machine.
    proposed: Option<(CpuSet, CpuSet)>,
}

impl Advice {
    /// Of an application with as many threads, from its runs on this machine.
    pub(super) fn new(runs: &[Run], topology: &Topology, threads: u32) -> Self {
        let told = Placing::of(runs, topology.nodes().len());
        // What is known need not be measured again.
        let shared = || shared_and_apart(topology, threads).filter(|_| told.sharing.is_none());
        let far = || near_and_far(topology, threads).filter(|_| told.across.is_none());
        Self { told, measured: runs.len(), proposed: shared().or_else(far) }
    }

    /// As a line of the advice.
    pub(super) fn line(&self) -> String {
        let Some(policy) = self.told.policy else {
            return format!("placement policy: cannot be told: {}", self.untold());
        };
        let by = self.evidence();
        let what = match policy {
            PolicyName::Spread => {
                "a core's second CPU adds nothing to it, and this policy gives it one CPU of each core"
            }
            PolicyName::Instep => {
                "this policy keeps a VM near its memory, and gives each vCPU a core of its own while \
                 there are enough"
            }
            _ => "it gains nothing by being placed, and this policy leaves it to the kernel",
        };
        format!("placement policy `{policy}` (`instep run --policy {policy}`): {by}; {what}")
    }

    fn evidence(&self) -> String {
        let ratio = |ratio: Option<Milli>, what: &str| {
            ratio.map(|ratio| format!("{what} it took {} as long", times(ratio)))
        };
        let sharing = ratio(self.told.sharing, "with cores shared");
        let across = ratio(self.told.across, "across nodes");
        let parts: Vec<String> = sharing.into_iter().chain(across).collect();
        parts.join(" and ") + " as without (one run each)"
    }

    /// Why not, and what would tell.
    fn untold(&self) -> String {
        let Placing { sharing, across, .. } = self.told;
        let why = if self.told != Placing::default() {
            format!("{}, but one that runs for a time shows no more", self.evidence())
        } else if self.measured > 1 {
            "the places measured do not differ in shared cores or nodes alone, or others had the CPUs"
                .to_owned()
        } else {
            "that takes the same work with cores shared and not, or within a node and across"
                .to_owned()
        };
        let next = match &self.proposed {
            Some((a, b)) => format!("`instep profile --on {a} --on {b} -- CMD` would tell"),
            None if sharing.or(across).is_some() => "give it an amount of work".to_owned(),
            None => {
                "no two places of this machine differ so, and `instep profile --on CPUS --on CPUS \
                     -- CMD` on the host that is meant would tell"
                    .to_owned()
            }
        };
        format!(
            "{why}; {next}. `instep plan` says what the default, `instep`, does with a VM that runs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(sharing: Option<u64>, across: Option<u64>, policy: Option<PolicyName>) -> Advice {
        let (sharing, across) = (sharing.map(Milli), across.map(Milli));
        Advice { told: Placing { sharing, across, policy }, measured: 2, proposed: None }
    }

    #[test]
    fn a_policy_comes_with_its_numbers() {
        let line = advice(Some(2100), None, Some(PolicyName::Spread)).line();
        assert!(
            line.starts_with("placement policy `spread` (`instep run --policy spread`)"),
            "{line}"
        );
        assert!(line.contains("with cores shared it took 2.10 times as long as without"), "{line}");
        let line = advice(Some(1300), Some(1200), Some(PolicyName::Instep)).line();
        assert!(
            line.contains("1.30 times") && line.contains("across nodes it took 1.20"),
            "{line}"
        );
    }

    #[test]
    fn without_evidence_it_says_which_command_would_tell() {
        let cpus = |list: &str| CpuSet::parse_list(list).unwrap();
        let mut untold = advice(None, None, None);
        assert!(
            untold.line().contains("no two places of this machine differ so"),
            "{}",
            untold.line()
        );
        untold.proposed = Some((cpus("0-1"), cpus("0,2")));
        let line = untold.line();
        assert!(line.contains("`instep profile --on 0-1 --on 0,2 -- CMD` would tell"), "{line}");
        let line = advice(Some(1000), None, None).line();
        assert!(line.contains("took 1.00 times") && line.contains("runs for a time"), "{line}");
    }
}
