//! Which placement policy suits an application, from the same work run in several places: two runs
//! whose threads share cores in one and not in the other tell what sharing costs, two within one node
//! and across nodes what distance costs.
//!
//! With two threads of a core apart, each time is `1`; together, `c` times that. So a core that two
//! share does `2 / c` times the work of one, and from `c = 2` on a second thread adds nothing: then its
//! CPU is best left empty (`spread`), even where there are more vCPUs than cores. Below, a core for each
//! vCPU while cores suffice, and both threads of a core when not, is best: `instep` does so
//! (docs/policies.md). It knows one run of each place, and not the host that the VM will be on.

use super::Watched;
use crate::idset::CpuSet;
use crate::policy::PolicyName;
use crate::topology::Topology;
use crate::units::{Milli, Nanos};

/// Times that differ by less than a tenth cost nothing that counts: there is one run of each.
const NOTICED: u64 = 100;
/// Times that differ by no more than this tell nothing: a command that runs for a time, and not for an
/// amount of work, always has such.
const EQUAL: u64 = 30;
/// Where sharing a core takes as long as taking turns on one CPU of it.
const NO_GAIN: u64 = 2000;
/// Others that had more than this part of the CPU time that was wanted spoil a time.
const DISTURBED: u64 = 50;

/// A run of the application on some CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Threads that worked, at most one for each CPU.
    pub threads: u32,
    /// Cores that its CPUs belong to.
    pub cores: u32,
    /// Nodes that its CPUs belong to.
    pub nodes: u32,
    /// How long it took.
    pub elapsed: Nanos,
    /// The part of the CPU time wanted that others had.
    pub taken: Milli,
}

/// What the runs tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placing {
    /// Time with threads that share cores, times that apart.
    pub sharing: Option<Milli>,
    /// Time across nodes, times that within one.
    pub across: Option<Milli>,
    /// The policy that suits it; `None` where the runs do not tell.
    pub policy: Option<PolicyName>,
}

impl Run {
    /// A run of `threads` threads for `elapsed` on `cpus` of this host.
    pub fn new(watched: &Watched, cpus: &CpuSet, topology: &Topology) -> Self {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let touched = topology.cores().iter().filter(|core| !core.and(cpus).is_empty()).count();
        let taken = watched.taken();
        let wanted = Nanos(watched.run().0.saturating_add(taken.0));
        Self {
            threads: watched.workers(),
            cores: number(touched),
            nodes: number(topology.nodes_of(cpus).len()),
            elapsed: watched.elapsed(),
            taken: taken.milli_of(wanted),
        }
    }

    /// Whether its time is of the application, and not of what else the machine did.
    fn is_sound(&self) -> bool {
        self.taken.0 <= DISTURBED && self.elapsed.0 > 0
    }

    /// Whether threads had to share cores.
    fn shares(&self) -> bool {
        self.cores < self.threads
    }
}

impl Placing {
    /// What these runs tell of a host with so many nodes.
    pub fn of(runs: &[Run], nodes: usize) -> Self {
        let sharing = ratio(runs, |shared, apart| {
            shared.nodes == apart.nodes && shared.shares() && !apart.shares()
        });
        let across = ratio(runs, |far, near| {
            far.nodes > 1 && near.nodes == 1 && !far.shares() && !near.shares()
        });
        Self { sharing, across, policy: policy(sharing, across, nodes) }
    }
}

/// The time of the first run over that of another with as many threads, the pair being as asked for;
/// the first such pair counts.
fn ratio(runs: &[Run], is: impl Fn(&Run, &Run) -> bool) -> Option<Milli> {
    let sound = || runs.iter().filter(|run| run.is_sound());
    sound().find_map(|first| {
        let other = sound().find(|other| first.threads == other.threads && is(first, other))?;
        Some(first.elapsed.milli_of(other.elapsed))
    })
}

fn policy(sharing: Option<Milli>, across: Option<Milli>, nodes: usize) -> Option<PolicyName> {
    let [sharing, across] =
        [sharing, across].map(|ratio| ratio.filter(|ratio| ratio.0.abs_diff(1000) > EQUAL));
    let costs = |ratio: Option<Milli>| ratio.is_some_and(|ratio| ratio.0 >= 1000 + NOTICED);
    let gains = |ratio: Option<Milli>| ratio.is_some_and(|ratio| ratio.0 + NOTICED <= 1000);
    if costs(across) {
        Some(PolicyName::Instep)
    } else if sharing.is_some_and(|ratio| ratio.0 >= NO_GAIN) {
        Some(PolicyName::Spread)
    } else if costs(sharing) {
        Some(PolicyName::Instep)
    } else if gains(across) || (sharing.is_some() && (across.is_some() || nodes < 2)) {
        // It gains from the caches and memory of several nodes, or nothing is gained by placing it.
        Some(PolicyName::None)
    } else {
        None
    }
}

/// Two places that would tell what sharing cores costs so many threads (as many as there is room for) on
/// this host: with cores shared, and apart. `None` where no two places differ so.
pub fn shared_and_apart(topology: &Topology, threads: u32) -> Option<(CpuSet, CpuSet)> {
    let cores = cores_of(topology, 0);
    let shared: Vec<&CpuSet> = cores.iter().copied().filter(|core| core.len() > 1).collect();
    let together = first(&shared, usize::MAX, count(threads).min(cores.len()));
    let room = together.len();
    (room > 1).then(|| (together, first(&cores, 1, room)))
}

/// Two places that would tell what distance costs: within a node, and across two. `None` where no two
/// places differ so.
pub fn near_and_far(topology: &Topology, threads: u32) -> Option<(CpuSet, CpuSet)> {
    let (near, far) = (cores_of(topology, 0), cores_of(topology, 1));
    let room = count(threads).min(near.len()).min(far.len() * 2);
    let half = room / 2;
    (half > 0).then(|| {
        let across = first(&near, 1, room - half).or(&first(&far, 1, half));
        (first(&near, 1, room), across)
    })
}

fn count(threads: u32) -> usize {
    usize::try_from(threads).unwrap_or(usize::MAX)
}

/// The cores of the node at this place in the order of nodes.
fn cores_of(topology: &Topology, node: usize) -> Vec<&CpuSet> {
    let Some(node) = topology.nodes().get(node) else { return Vec::new() };
    topology.cores().iter().filter(|core| core.is_subset(&node.cpus)).collect()
}

/// The first `count` CPUs when each core gives so many.
fn first(cores: &[&CpuSet], each: usize, count: usize) -> CpuSet {
    cores.iter().flat_map(|core| core.iter().take(each)).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{CpuFacts, NodeFacts};

    const SECOND: u64 = 1_000_000_000;

    fn run(threads: u32, cores: u32, nodes: u32, milli: u64) -> Run {
        let (elapsed, taken) = (Nanos(milli * SECOND / 1000), Milli(0));
        Run { threads, cores, nodes, elapsed, taken }
    }

    fn policy_of(runs: &[Run], nodes: usize) -> Option<PolicyName> {
        Placing::of(runs, nodes).policy
    }

    #[test]
    fn the_policy_follows_from_what_sharing_a_core_costs() {
        let with = |shared: u64| [run(2, 1, 1, shared), run(2, 2, 1, 1000)];
        assert_eq!(Placing::of(&with(1600), 1).sharing, Some(Milli(1600)));
        // 2 / 1.6: a shared core still does a quarter more than one thread of it.
        assert_eq!(policy_of(&with(1600), 1), Some(PolicyName::Instep));
        assert_eq!(policy_of(&with(2000), 1), Some(PolicyName::Spread));
        assert_eq!(policy_of(&with(1050), 1), Some(PolicyName::None));
        assert_eq!(policy_of(&with(1050), 2), None, "nobody asked what distance costs");
        assert_eq!(policy_of(&with(1010), 1), None, "it may run for a time, whatever it does");
        let [shared, apart] = with(1600);
        assert_eq!(Placing::of(&[apart, shared], 1), Placing::of(&[shared, apart], 1));
    }

    #[test]
    fn the_policy_follows_from_what_distance_costs() {
        let with = |far: u64| [run(4, 4, 1, 1000), run(4, 4, 2, far)];
        assert_eq!(Placing::of(&with(1300), 2).across, Some(Milli(1300)));
        assert_eq!(policy_of(&with(1300), 2), Some(PolicyName::Instep));
        assert_eq!(policy_of(&with(800), 2), Some(PolicyName::None));
        assert_eq!(policy_of(&with(1050), 2), None, "nobody asked what sharing costs");
        let both = [&with(1050)[..], &[run(4, 2, 1, 1050)]].concat();
        assert_eq!(policy_of(&both, 2), Some(PolicyName::None));
    }

    #[test]
    fn runs_that_cannot_be_compared_tell_nothing() {
        let good = run(2, 2, 1, 1000);
        for other in [
            run(2, 2, 1, 1600),
            run(4, 2, 1, 1600),
            run(2, 1, 2, 1600),
            run(2, 1, 1, 0),
            Run { taken: Milli(60), ..run(2, 1, 1, 1600) },
        ] {
            assert_eq!(Placing::of(&[good, other], 1), Placing::default(), "{other:?}");
        }
        assert_eq!(Placing::of(&[good], 1), Placing::default());
    }

    /// A host of nodes of two cores each, a core having so many CPUs that are next to each other.
    fn host(nodes: u32, threads: u32) -> Topology {
        let width = 2 * threads;
        let range = |from: u32, count: u32| {
            CpuSet::parse_list(&format!("{from}-{}", from + count - 1)).unwrap()
        };
        let cpu = |id: u32| CpuFacts {
            id,
            thread_siblings: Some(range(id / threads * threads, threads)),
            ..CpuFacts::default()
        };
        let node =
            |id: u32| NodeFacts { id, cpus: range(id * width, width), ..NodeFacts::default() };
        let (cpus, nodes) = ((0..nodes * width).map(cpu), (0..nodes).map(node));
        Topology::build(cpus.collect(), nodes.collect()).unwrap()
    }

    #[test]
    fn the_places_proposed_would_tell() {
        type Places = fn(&Topology, u32) -> Option<(CpuSet, CpuSet)>;
        let told = |places: Places, topology: &Topology, threads: u32| {
            let (a, b) = places(topology, threads)?;
            let cpus = u32::try_from(a.len()).unwrap();
            let watched = Watched { workers: Some(threads), cpus, ..Watched::default() };
            let of = |cpus: &CpuSet| Run {
                elapsed: Nanos(SECOND),
                ..Run::new(&watched, cpus, topology)
            };
            let found = Placing::of(&[of(&a), of(&b)], topology.nodes().len());
            Some((a.to_string(), b.to_string(), found.sharing.is_some(), found.across.is_some()))
        };
        let some =
            |a: &str, b: &str, sharing: bool| Some((a.to_owned(), b.to_owned(), sharing, !sharing));
        let sharing = |topology: &Topology, threads: u32| told(shared_and_apart, topology, threads);
        let across = |topology: &Topology, threads: u32| told(near_and_far, topology, threads);
        assert_eq!(sharing(&host(1, 2), 2), some("0-1", "0,2", true));
        assert_eq!(sharing(&host(1, 2), 16), some("0-1", "0,2", true), "as many as cores");
        assert_eq!((sharing(&host(2, 1), 2), sharing(&host(2, 2), 1)), (None, None));
        assert_eq!(across(&host(2, 1), 2), some("0-1", "0,2", false));
        assert_eq!(across(&host(2, 2), 8), some("0,2", "0,4", false));
        assert_eq!((across(&host(1, 2), 2), across(&host(2, 2), 1)), (None, None));
    }
}
