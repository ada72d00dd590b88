//! The placement policy that the places measured speak for, in words with its numbers. Where no two were
//! measured, the default with what is known, said not to be measured, and the command that would tell.

use super::numbers::{fraction, times};
use crate::text::plural;
use instep_core::idset::CpuSet;
use instep_core::policy::PolicyName;
use instep_core::profile::placing::{Placing, Run, near_and_far, shared_and_apart};
use instep_core::topology::{Node, Topology};
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
    whose: PlacedProgram,
    host: HostShape,
}

/// Who is to be placed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacedProgram {
    pub(super) threads: u32,
    /// Threads active at a time.
    pub(super) parallelism: Milli,
    /// Whether it is a VM that runs: no command that can be run again.
    pub(super) is_vm: bool,
}

/// What this host has.
#[derive(Clone, Copy, Debug, Default)]
struct HostShape {
    cpus: usize,
    cores: usize,
    nodes: usize,
    /// Cores of the node that has most.
    node_cores: usize,
}

impl HostShape {
    fn of(topology: &Topology) -> Self {
        let cores_of = |node: &Node| {
            let inside = |core: &&CpuSet| !core.and(&node.cpus).is_empty();
            topology.cores().iter().filter(inside).count()
        };
        Self {
            cpus: topology.cpus().len(),
            cores: topology.cores().len(),
            nodes: topology.nodes().len(),
            node_cores: topology.nodes().iter().map(cores_of).max().unwrap_or(0),
        }
    }
}

impl Advice {
    /// Of an application from its runs on this machine.
    pub(super) fn new(runs: &[Run], topology: &Topology, whose: PlacedProgram) -> Self {
        let (told, threads) = (Placing::of(runs, topology.nodes().len()), whose.threads);
        // What is known need not be measured again.
        let shared = || shared_and_apart(topology, threads).filter(|_| told.sharing.is_none());
        let far = || near_and_far(topology, threads).filter(|_| told.across.is_none());
        let proposed = shared().or_else(far);
        Self { told, measured: runs.len(), proposed, whose, host: HostShape::of(topology) }
    }

    /// Whether places were measured that could tell.
    pub(super) fn is_measured(&self) -> bool {
        self.measured > 1
    }

    /// The policy that is advised: what the places tell, and the default where none were compared.
    pub(super) fn policy(&self) -> Option<PolicyName> {
        self.told.policy.or((!self.is_measured()).then_some(PolicyName::Instep))
    }

    /// As a line of the advice.
    pub(super) fn line(&self) -> String {
        let Some(policy) = self.told.policy else {
            if !self.is_measured() {
                return self.unmeasured();
            }
            return format!("placement policy: not known: {}", self.untold());
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

    /// The default, by what is known without a measurement.
    fn unmeasured(&self) -> String {
        let (PlacedProgram { threads, parallelism, is_vm }, host) = (self.whose, self.host);
        let (wanted, default) =
            (usize::try_from(threads).unwrap_or(usize::MAX), PolicyName::Instep);
        let fits = if wanted <= host.node_cores {
            "a node has a core for each, which this policy gives it, near its memory"
        } else if wanted <= host.cores {
            "a core for each, which this policy gives it, takes several nodes"
        } else {
            "there are more of them than cores, so this policy binds none to a CPU and keeps them near \
             their memory"
        };
        let next = if is_vm {
            "`instep plan` says what it would do with this VM".to_owned()
        } else {
            self.next()
        };
        format!(
            "placement policy `{default}` (`instep run --policy {default}`), the default, not measured: {}, \
             {:.2} active, and {} of {} on {} here: {fits}; {next}",
            plural(wanted, if is_vm { "vCPU" } else { "thread" }),
            fraction(parallelism),
            plural(host.cores, "core"),
            plural(host.cpus, "CPU"),
            plural(host.nodes, "node"),
        )
    }

    /// What would tell.
    fn next(&self) -> String {
        match &self.proposed {
            Some((a, b)) => format!("`instep profile --on {a} --on {b} -- CMD` would show it"),
            None => "no two places of this machine differ in shared cores or nodes, and `instep profile \
                     --on CPUS --on CPUS -- CMD` on the host that is meant would tell"
                .to_owned(),
        }
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
        } else {
            "the places measured do not differ in shared cores or nodes alone, or other threads had the CPUs"
                .to_owned()
        };
        let next = match &self.proposed {
            None if sharing.or(across).is_some() => "give it an amount of work".to_owned(),
            _ => self.next(),
        };
        format!(
            "{why}; {next}. `instep plan` says what the default, `instep`, does with a VM that runs"
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn advice(sharing: Option<u64>, across: Option<u64>, policy: Option<PolicyName>) -> Advice {
        let (sharing, across) = (sharing.map(Milli), across.map(Milli));
        let told = Placing { sharing, across, policy };
        Advice { told, measured: 2, ..Advice::default() }
    }

    /// Of so many threads or vCPUs on a host of so many cores with two CPUs in each of so many nodes.
    fn unmeasured(threads: u32, is_vm: bool, node_cores: usize, nodes: usize) -> Advice {
        let cores = node_cores * nodes;
        let host = HostShape { cpus: 2 * cores, cores, nodes, node_cores };
        let whose = PlacedProgram { threads, parallelism: Milli(3210), is_vm };
        Advice { whose, host, ..Advice::default() }
    }

    #[test]
    fn without_places_the_default_policy_is_named_as_not_measured() {
        let advice = unmeasured(4, false, 4, 2);
        assert_eq!((advice.policy(), advice.is_measured()), (Some(PolicyName::Instep), false));
        let line = advice.line();
        let start = "placement policy `instep` (`instep run --policy instep`), the default, not measured: \
                     4 threads, 3.21 active, and 8 cores of 16 CPUs on 2 nodes here: a node has a core for each";
        assert!(line.starts_with(start), "{line}");
        assert!(line.contains("instep profile --on CPUS --on CPUS -- CMD"), "{line}");
        assert!(unmeasured(8, false, 4, 2).line().contains("takes several nodes"));
        let line = unmeasured(9, true, 4, 2).line();
        assert!(
            line.contains("9 vCPUs, 3.21 active") && line.contains("more of them than cores"),
            "{line}"
        );
        assert!(line.ends_with("`instep plan` says what it would do with this VM"), "{line}");
        assert!(!line.contains("CMD"), "a VM is no command: {line}");
        let measured = Advice { measured: 2, ..advice };
        assert_eq!((measured.policy(), measured.is_measured()), (None, true));
    }

    /// Every kind of line.
    pub(in super::super) fn every_line() -> Vec<String> {
        use PolicyName::{Instep, None as Kernel, Spread};
        let cpus = |list: &str| CpuSet::parse_list(list).unwrap();
        let told = [Spread, Instep, Kernel].map(|policy| advice(Some(1300), None, Some(policy)));
        let proposed = Some((cpus("0-1"), cpus("0,2")));
        let untold = [
            advice(None, None, None),
            advice(Some(1000), None, None),
            unmeasured(4, false, 4, 2),
            unmeasured(4, true, 4, 2),
            Advice { proposed, ..advice(None, None, None) },
        ];
        told.iter().chain(&untold).map(Advice::line).collect()
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
            untold.line().contains("no two places of this machine differ in shared cores"),
            "{}",
            untold.line()
        );
        untold.proposed = Some((cpus("0-1"), cpus("0,2")));
        let line = untold.line();
        assert!(line.contains("`instep profile --on 0-1 --on 0,2 -- CMD` would show it"), "{line}");
        let line = advice(Some(1000), None, None).line();
        assert!(line.contains("took 1.00 times") && line.contains("runs for a time"), "{line}");
    }
}
