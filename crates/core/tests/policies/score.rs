//! An estimate of placements that is not the policies' own: how a work-conserving kernel would spread the vCPUs over the
//! CPUs they may use, and what that costs in locality, core sharing and balance.
//!
//! The estimate is greedy and deterministic: sets of CPUs from the smallest to the largest, in
//! each the vCPUs by demand, each to the core with the least load per thread, there to the CPU
//! with the least. `Score::combined` then charges, in CPU time,
//!
//! ```text
//! lost     = REMOTE * sum(demand * remoteness) + SHARED * core_sharing + waiting
//! combined = 1 - lost / demand
//! ```
//!
//! It knows nothing of time, caches or communication, and takes memory as it lies.

use crate::made::{self, GIB, cpus, vm};
use instep_core::idset::CpuSet;
use instep_core::score::{REMOTE, SHARED};
use instep_core::snapshot::Snapshot;
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Milli, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How good a placement is. Fractions are in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    /// Memory on the node where it is used: share of each VM's memory on the node of each of its
    /// vCPUs (of its guest node's memory, where that is known), weighted by demand. 1000 without memory or load.
    pub(crate) locality: Milli,
    /// Competing modules (systems.md 1): products of the utilisations of pairs of CPUs of a core,
    /// summed over the host, in thousandths of a pair.
    pub(crate) core_sharing: Milli,
    /// Balance as it matters to the VMs: the share of the demand that finds a CPU with time.
    pub(crate) balance: Milli,
    /// The share of the demand that is done at full speed; see the module.
    pub(crate) combined: Milli,
}

/// Scores the affinities that threads have now. A wholly offline set stands for every CPU of the host.
pub(crate) fn measure(snapshot: &Snapshot) -> Score {
    let mut estimator = Estimator::new(snapshot);
    let all = snapshot.topology.all_cpus();
    let mut choice = Vec::new();
    for vcpu in snapshot.vms.iter().flat_map(|vm| &vm.vcpus) {
        let cpus = if vcpu.allowed.intersects(&all) { &vcpu.allowed } else { &all };
        choice.push(estimator.group(cpus));
    }
    estimator.estimate(&choice).score()
}

/// What an estimate adds up to. Sums of thousandths times thousandths are *micro*.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Estimate {
    /// Demand of all vCPUs, milli.
    demand: u64,
    /// Demand times the share of memory on the node it runs on, micro.
    local: u64,
    /// Demand times remoteness, micro; remoteness is 1000 when all memory is at distance 20.
    remote: u64,
    /// Competing modules, micro.
    sharing: u64,
    /// Demand beyond what its CPU has, milli.
    waiting: u64,
}

impl Estimate {
    /// CPU time lost, in thousandths of a CPU.
    fn lost(&self) -> u64 {
        let sharing = self.sharing / 1000 * SHARED.0 / 1000;
        self.remote / 1000 * REMOTE.0 / 1000 + sharing + self.waiting
    }

    /// The score, out of these sums.
    fn score(&self) -> Score {
        let of_demand = |part: u64| (part * 1000).checked_div(self.demand).unwrap_or(0).min(1000);
        Score {
            locality: Milli(self.local.checked_div(self.demand).unwrap_or(1000)),
            core_sharing: Milli(self.sharing / 1000),
            balance: Milli(1000 - of_demand(self.waiting)),
            combined: Milli(1000 - of_demand(self.lost())),
        }
    }
}

/// One vCPU with demand, in thousandths of a CPU and at most 1000.
#[derive(Clone)]
struct Load {
    /// Position among all vCPUs of the snapshot.
    slot: usize,
    footprint: usize,
    demand: u64,
}

/// A set of CPUs that vCPUs may be given, as ranges of positions by core.
struct Group {
    /// Positions of CPUs in the topology, by core.
    cpus: Vec<usize>,
    /// The core, and where its CPUs are in `cpus`.
    cores: Vec<(usize, std::ops::Range<usize>)>,
}

/// A snapshot prepared for many estimates: each is O(v log c) for v vCPUs and c cores.
struct Estimator<'a> {
    topology: &'a Topology,
    /// By position of the CPU in the topology: its node's position.
    node_of: Vec<usize>,
    /// vCPUs with demand, the largest first, then by position.
    loads: Vec<Load>,
    /// Load per CPU of everything that is not a placeable vCPU, milli.
    base: u64,
    /// `[footprint * nodes + node]`: the share of memory there, and its [remoteness].
    memory: Vec<(u64, u64)>,
    groups: Vec<Group>,
    known: BTreeMap<CpuSet, usize>,
}

impl<'a> Estimator<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let topology = snapshot.topology.as_ref();
        let position = |id: NodeId| topology.nodes().partition_point(|node| node.id < id);
        let node_of = topology.cpus().iter().map(|cpu| position(cpu.node)).collect();
        let (mut loads, mut slot) = (Vec::new(), 0);
        let mut memory = Vec::new();
        let nodes = topology.nodes().len().max(1);
        for one in &snapshot.vms {
            let start = memory.len() / nodes;
            let mut guest = None;
            if let Some(footprints) = one.guest_footprints() {
                footprints.iter().for_each(|part| memory.extend(remoteness(topology, part)));
                guest = Some(one.guest_node_of_vcpus());
            } else {
                memory.extend(remoteness(topology, &one.memory));
            }
            for (k, Milli(demand)) in one.demands(snapshot.window).into_iter().enumerate() {
                if demand > 0 {
                    let footprint = start + guest.as_ref().map_or(0, |guest: &Vec<usize>| guest[k]);
                    loads.push(Load { slot, footprint, demand });
                }
                slot += 1;
            }
        }
        let loads = by_demand(loads);
        let cpus = topology.cpus().len() as u64;
        let base = (snapshot.fixed_busy().milli_of(snapshot.window).0 / cpus.max(1)).min(1000);
        let (groups, known) = (Vec::new(), BTreeMap::new());
        Self { topology, node_of, loads, base, memory, groups, known }
    }

    /// The number that stands for this set of CPUs, which has an online one, in
    /// [`estimate`](Self::estimate).
    fn group(&mut self, cpus: &CpuSet) -> usize {
        if let Some(group) = self.known.get(cpus) {
            return *group;
        }
        let all = self.topology.cpus();
        let mut found: Vec<(usize, usize)> = cpus
            .iter()
            .filter_map(|id| all.binary_search_by_key(&id, |cpu| cpu.id).ok())
            .map(|position| (all[position].core.0 as usize, position))
            .collect();
        found.sort_unstable();
        let mut group = Group { cpus: Vec::with_capacity(found.len()), cores: Vec::new() };
        for part in found.chunk_by(|a, b| a.0 == b.0) {
            let start = group.cpus.len();
            group.cpus.extend(part.iter().map(|(_, position)| *position));
            group.cores.push((part[0].0, start..group.cpus.len()));
        }
        self.groups.push(group);
        self.known.insert(cpus.clone(), self.groups.len() - 1);
        self.groups.len() - 1
    }

    /// Where the kernel would run everything when vCPU number k may use the CPUs of group
    /// `choice[k]`, and what that adds up to.
    fn estimate(&self, choice: &[usize]) -> Estimate {
        // A counting sort by group, which keeps the order of demand.
        let mut ends = vec![0; self.groups.len()];
        self.loads.iter().for_each(|load| ends[choice[load.slot]] += 1);
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        let mut members = vec![(0, 0); self.loads.len()];
        for load in &self.loads {
            let end = &mut ends[choice[load.slot]];
            members[*end] = (load.demand, load.footprint);
            *end += 1;
        }
        let members_of = |group: usize| {
            let start = if group == 0 { 0 } else { ends[group - 1] };
            &members[start..ends[group]]
        };
        let mut order: Vec<usize> = (0..ends.len()).collect();
        order.retain(|group| !members_of(*group).is_empty());
        order.sort_by(|a, b| {
            let (a, b) = (&self.groups[*a], &self.groups[*b]);
            a.cpus.len().cmp(&b.cpus.len()).then_with(|| a.cpus.cmp(&b.cpus))
        });
        let mut state = State::new(self);
        for group in order {
            state.fill(&self.groups[group], members_of(group));
        }
        state.sum_up()
    }
}

/// Sorts loads, which ascend by slot, by demand, the largest first, and then by slot: counted, as
/// demands are thousandths of a CPU.
fn by_demand(loads: Vec<Load>) -> Vec<Load> {
    let mut starts = vec![0usize; 1002];
    let key = |load: &Load| 1000 - load.demand.min(1000) as usize;
    loads.iter().for_each(|load| starts[key(load) + 1] += 1);
    for key in 1..starts.len() {
        starts[key] += starts[key - 1];
    }
    let mut sorted = loads.clone();
    for load in loads {
        let at = &mut starts[key(&load)];
        sorted[*at] = load;
        *at += 1;
    }
    sorted
}

/// For every node by position: the share of the memory on it, and its remoteness from it:
/// share of memory times (distance - 10) / 10, summed over nodes. Both in thousandths; without
/// known memory everything is local.
fn remoteness(topology: &Topology, memory: &BTreeMap<NodeId, Bytes>) -> Vec<(u64, u64)> {
    let nodes = topology.nodes();
    let on = |id: NodeId| u128::from(memory.get(&id).copied().unwrap_or_default().0);
    let bytes: Vec<u128> = nodes.iter().map(|node| on(node.id)).collect();
    let total: u128 = bytes.iter().sum();
    if total == 0 {
        return vec![(1000, 0); nodes.len()];
    }
    let shares: Vec<u64> = bytes.iter().map(|part| (part * 1000 / total) as u64).collect();
    nodes
        .iter()
        .zip(&shares)
        .map(|(node, local)| {
            let hops = node.distances.iter().map(|d| u64::from(d.saturating_sub(10).min(245)));
            (*local, shares.iter().zip(hops).map(|(share, hops)| share * hops / 10).sum())
        })
        .collect()
}

/// Orders cores by load per thread, then by their least loaded CPU, then by position.
fn rank(core: u64, cpu: u64, index: usize) -> u128 {
    u128::from(core) << 64 | u128::from(cpu.min(u64::from(u32::MAX))) << 32 | index as u128
}

/// Loads while an estimate is under way.
struct State<'a> {
    of: &'a Estimator<'a>,
    /// Demand on each CPU by position, milli, `base` included.
    cpus: Vec<u64>,
    /// The same on each core, times 840 / threads: comparable between cores of 1 to 8 threads.
    cores: Vec<u64>,
    /// 840 / threads of each core.
    scale: Vec<u64>,
    estimate: Estimate,
}

impl<'a> State<'a> {
    fn new(of: &'a Estimator<'a>) -> Self {
        let scale: Vec<u64> =
            of.topology.cores().iter().map(|core| 840 / core.len().max(1) as u64).collect();
        let cores = vec![0; scale.len()];
        let cpus = vec![of.base; of.topology.cpus().len()];
        Self { of, cpus, cores, scale, estimate: Estimate::default() }
    }

    /// Adds the (demand, footprint) of vCPUs that may use the CPUs of `group`.
    fn fill(&mut self, group: &Group, members: &[(u64, usize)]) {
        let key = |state: &Self, index: usize| {
            let (core, cpus) = &group.cores[index];
            let least = group.cpus[cpus.clone()].iter().map(|cpu| state.cpus[*cpu]).min();
            Reverse(rank(state.cores[*core], least.unwrap_or(0), index))
        };
        let nodes = self.of.topology.nodes().len();
        let mut heap: BinaryHeap<_> =
            (0..group.cores.len()).map(|index| key(self, index)).collect();
        for (demand, footprint) in members {
            let Some(mut top) = heap.peek_mut() else { return };
            let index = top.0 as u32 as usize;
            let (core, cpus) = &group.cores[index];
            let cpus = &group.cpus[cpus.clone()];
            let Some(cpu) = cpus.iter().copied().min_by_key(|cpu| self.cpus[*cpu]) else {
                continue;
            };
            self.cpus[cpu] += demand;
            self.cores[*core] += demand * self.scale[*core];
            *top = key(self, index);
            let (local, remote) = self.of.memory[footprint * nodes + self.of.node_of[cpu]];
            self.estimate.demand += demand;
            self.estimate.local += demand * local;
            self.estimate.remote += demand * remote;
        }
    }

    fn sum_up(mut self) -> Estimate {
        let mut used: Vec<(u64, u64)> = vec![(0, 0); self.cores.len()];
        for (position, cpu) in self.of.topology.cpus().iter().enumerate() {
            let load = self.cpus[position];
            self.estimate.waiting += load.saturating_sub(1000);
            // Sum and sum of squares: twice the sum over pairs is sum^2 - sum of squares.
            let core = &mut used[cpu.core.0 as usize];
            let busy = load.min(1000);
            *core = (core.0 + busy, core.1 + busy * busy);
        }
        self.estimate.sharing = used.iter().map(|(sum, squares)| (sum * sum - squares) / 2).sum();
        self.estimate
    }
}

/// 2 nodes x 2 cores x 2 threads; CPUs 0-1 and 4-5 are node 0, core k is CPUs k and k + 4.
fn one_vm(vcpus: u32, milli: u64, list: &str, mib: &[u64]) -> Score {
    let mut host = made::host(made::topology(2, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, vcpus, milli, mib)];
    made::confine(&mut host.vms[0], &cpus(list));
    measure(&host)
}

#[test]
fn lone_vm_on_its_memory_loses_nothing() {
    let score = one_vm(2, 1000, "0-1,4-5", &[100, 0]);
    assert_eq!((score.locality, score.core_sharing), (Milli(1000), Milli(0)));
    assert_eq!((score.balance, score.combined), (Milli(1000), Milli(1000)));
}

/// Half the memory at distance 16: 0.5 * 0.6 * 20 % = 6 % lost.
#[test]
fn remote_memory_costs_by_distance() {
    let score = one_vm(2, 1000, "0-1", &[100, 100]);
    assert_eq!((score.locality, score.combined), (Milli(500), Milli(940)));
}

/// 50 % and 50 % on the two CPUs of one core count 0.25 (systems.md 1); 0.7 of it is lost of 1.
#[test]
fn siblings_of_a_core_compete_by_their_product() {
    let score = one_vm(2, 500, "0,4", &[100, 0]);
    assert_eq!((score.core_sharing, score.combined), (Milli(250), Milli(825)));
}

#[test]
fn two_busy_vcpus_on_one_cpu_wait_for_each_other() {
    let score = one_vm(2, 1000, "0", &[100, 0]);
    assert_eq!((score.balance, score.combined), (Milli(500), Milli(500)));
}

#[test]
fn idle_host_scores_full_marks() {
    let score = one_vm(2, 0, "0-7", &[]);
    assert_eq!((score.locality, score.combined), (Milli(1000), Milli(1000)));
}

/// The bound vCPUs take their cores first, the free ones fill the idle cores.
#[test]
fn free_vcpus_avoid_cores_that_bound_ones_need() {
    let mut host = made::host(made::topology(2, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[]), vm(&host, 2, 2, 1000, &[])];
    made::confine(&mut host.vms[1], &cpus("0-1"));
    assert_eq!(measure(&host).core_sharing, Milli(0));
}
