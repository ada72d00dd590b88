//! The host as the objective sees it: nodes divided into *cells*, and what the load of a cell costs.
//!
//! A cell is a last-level cache, or a whole node where the caches are not known. Inside a cell the
//! kernel is taken to run each vCPU that is active on the fastest free thread.

use super::super::PolicySettings;
use crate::idset::{CpuSet, NodeSet};
use crate::measure::fair_shares;
use crate::score::SHARED;
use crate::snapshot::{Snapshot, Vm};
use crate::topology::{CoreKind, Topology};
use crate::units::{Nanos, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Speed of an efficiency core, in thousandths of a performance core: Intel gives E-cores of its first
/// hybrids (Alder Lake, Hot Chips 2021) the speed of a Skylake core, about two thirds of their P-cores.
const EFFICIENT_CORE: u64 = 650;

/// CPU time that a vCPU loses when all other cores of its last-level cache are busy, in thousandths of its
/// demand. An assumption: programs that live in the cache lose more, others nothing.
const CACHE: i64 = 50;

/// The least demand a vCPU is planned with, milli: one that rests may wake up. An assumption.
const IDLE_DEMAND: u64 = 50;

/// The most load that is believed, milli: what a million CPUs can do.
const MOST_LOAD: u64 = 1_000_000_000;

/// CPUs that share a last-level cache, or those of a node.
pub(super) struct Cell {
    /// Position of its node in [`Host::places`].
    pub(super) place: usize,
    pub(super) cpus: CpuSet,
    /// Whole cores.
    pub(super) cores: usize,
    /// Work that all its CPUs together do, milli.
    pub(super) capacity: i64,
    /// How many vCPUs may be active before each further one is slower, milli, and by how much more,
    /// in thousandths of a CPU; these add up to a whole CPU at the last, where no thread is left.
    steps: Vec<(i64, i64)>,
}

/// A node that has CPUs.
pub(super) struct Place {
    pub(super) id: NodeId,
    pub(super) cells: std::ops::Range<usize>,
    pub(super) threads: usize,
    /// Installed memory; a great deal where it is not known.
    pub(super) memory: u64,
}

/// A set of cells that a VM may be given, by its number in [`Spots`](super::spots::Spots).
pub(super) type Spot = usize;

/// The host's nodes that have CPUs, ascending, and their cells.
pub(super) struct Host<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) online: CpuSet,
    pub(super) places: Vec<Place>,
    pub(super) cells: Vec<Cell>,
    /// Memory on each node that no VM has, as far as it is known, in bytes.
    pub(super) free: BTreeMap<NodeId, u64>,
    /// Nodes without CPUs (CXL) whose memory is left to the kernel's tiering.
    left: NodeSet,
    /// Load of everything that is not a placeable vCPU, milli.
    pub(super) other: u64,
    /// Mean of the weights of the VMs' cgroups, by vCPU.
    pub(super) mean_weight: i64,
    /// By VM: what it can count on, its share by weight of the CPUs that other processes leave, in thousandths of its demand.
    pub(super) counts: Vec<i64>,
}

impl<'a> Host<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, settings: &PolicySettings) -> Self {
        let topology = snapshot.topology.as_ref();
        let (mut places, mut cells) = (Vec::new(), Vec::new());
        for node in topology.nodes() {
            let cpus = node.cpus.minus(&snapshot.isolated);
            if cpus.is_empty() {
                continue;
            }
            let (start, place) = (cells.len(), places.len());
            let parts = divided(topology, &cpus).into_iter();
            cells.extend(parts.map(|cpus| Cell::new(topology, place, cpus)));
            let memory = if node.memory.0 == 0 { u64::MAX } else { node.memory.0 };
            let (id, cells, threads) = (node.id, start..cells.len(), cpus.len());
            places.push(Place { id, cells, threads, memory });
        }
        let used = |node| {
            let all = snapshot.vms.iter().map(|vm| vm.memory_on(node).0);
            all.fold(0, u64::saturating_add)
        };
        let free = |node: NodeId, memory: u64| (node, memory.saturating_sub(used(node)));
        let free = topology.nodes().iter().map(|node| free(node.id, node.memory.0)).collect();
        let milli = |busy: Nanos| busy.milli_of(snapshot.window).0.min(MOST_LOAD);
        let (online, other) = (topology.all_cpus(), milli(snapshot.fixed_busy()));
        let weights = snapshot.vms.iter().map(|vm| i64::from(vm.weight) * vm.vcpus.len() as i64);
        let vcpus: usize = snapshot.vms.iter().map(|vm| vm.vcpus.len()).sum();
        let mean_weight = (weights.sum::<i64>() / vcpus.max(1) as i64).max(1);
        let left =
            if settings.memory_only_nodes { NodeSet::new() } else { topology.memory_only_nodes() };
        let demand = |vm: &Vm| planned(vm, snapshot.window).iter().sum::<u64>().max(1);
        let claims = snapshot.vms.iter().map(|vm| (u64::from(vm.weight), demand(vm)));
        let claims: Vec<(u64, u64)> = claims.collect();
        let cpus: usize = cells.iter().map(|cell: &Cell| cell.cpus.len()).sum();
        let shares = fair_shares((cpus as u64 * 1000).saturating_sub(other), &claims);
        let counts =
            shares.iter().zip(&claims).map(|(share, (_, all))| (share * 1000 / all) as i64);
        let counts = counts.collect();
        Self { snapshot, online, places, cells, free, left, other, mean_weight, counts }
    }

    /// Whether memory on this node is Instep's to move.
    pub(super) fn is_movable(&self, node: NodeId) -> bool {
        !self.left.contains(node)
    }

    /// Whether memory of a VM lies on a node without CPUs from where it is to come home.
    pub(super) fn has_memory_to_fetch(&self, vm: &Vm) -> bool {
        let only = self.snapshot.topology.memory_only_nodes();
        vm.memory.keys().any(|node| only.contains(*node) && self.is_movable(*node))
    }

    /// Loads before any VM is placed: that of other processes is everywhere.
    pub(super) fn loads(&self) -> Vec<Load> {
        let whole: usize = self.cells.iter().map(|cell| cell.cpus.len()).sum();
        let load = |cell: &Cell| {
            let cpus = cell.cpus.len() as u64;
            let sum = (self.other * cpus / whole.max(1) as u64).min(cpus * 1000) as i64;
            Load { squares: sum * 1000, count: sum, ..Load::of(sum, 1000) }
        };
        self.cells.iter().map(load).collect()
    }
}

/// What each vCPU of a VM is planned with, milli.
pub(super) fn planned(vm: &Vm, window: Nanos) -> Vec<u64> {
    vm.demands(window).iter().map(|demand| demand.0.max(IDLE_DEMAND)).collect()
}

/// The CPUs of a node by last-level cache; in one piece where each cache has just one core, as the
/// caches are not known then, or say nothing of which cores are near each other.
fn divided(topology: &Topology, cpus: &CpuSet) -> Vec<CpuSet> {
    let (mut caches, mut cores) = (BTreeMap::new(), BTreeSet::new());
    for cpu in cpus.iter().filter_map(|id| topology.cpu(id)) {
        caches.entry(cpu.llc).or_insert_with(CpuSet::new).insert(cpu.id);
        cores.insert(cpu.core);
    }
    let known = caches.len() < cores.len();
    if known { caches.into_values().collect() } else { vec![cpus.clone()] }
}

impl Cell {
    fn new(topology: &Topology, place: usize, cpus: CpuSet) -> Self {
        let (mut speeds, mut cores) = (Vec::new(), BTreeMap::new());
        for cpu in cpus.iter().filter_map(|id| topology.cpu(id)) {
            let threads = cores.entry(cpu.core).or_insert(0);
            let first = if cpu.kind == Some(CoreKind::Efficient) { EFFICIENT_CORE } else { 1000 };
            // Each further thread of a core adds less.
            let slower = |speed, _| speed * (1000 - SHARED.0) / 1000;
            speeds.push((0..*threads).fold(first, slower) as i64);
            *threads += 1;
        }
        speeds.sort_unstable_by_key(|speed| -speed);
        // What is slower than a performance core is slower by a step.
        let (mut steps, mut fast) = (Vec::new(), 1000);
        for (count, speed) in (0..).zip(&speeds).filter(|(_, speed)| **speed < 1000) {
            if *speed < fast {
                steps.push((count * 1000, fast - speed));
                fast = *speed;
            }
        }
        steps.push((speeds.len() as i64 * 1000, fast));
        let capacity = speeds.iter().sum::<i64>().max(1);
        Self { place, cpus, cores: cores.len().max(1), capacity, steps }
    }

    /// What a load costs, in millionths of a CPU: sharing cores and running on slow ones, waiting for a
    /// CPU, and sharing the capacity and the bandwidth of the last-level cache.
    ///
    /// What VMs can count on is the part of it that counts: CPU time that one has beyond its share is what another lacks.
    /// Weights count by their shares only: all on a cell are slowed by shared cores and caches alike, and the kernel
    /// divides the CPU time that there is by weight wherever VMs are.
    pub(super) fn cost(&self, load: &Load) -> [i64; 3] {
        if load.sum <= 0 {
            return [0; 3];
        }
        let shares_cache = |run: i64| run * run / self.cores as i64 * CACHE / 1000;
        let (part, all) = (i128::from(load.share), i128::from(load.sum));
        let counts = |loss: i64| (i128::from(loss) * part / all) as i64;
        let variance = (load.sum * 1000 - load.squares).max(0);
        // So far below the first step hardly ever more vCPUs are active: the table of `excess` ends there.
        let spare = (self.steps[0].0 - load.sum).max(0);
        if 16 * spare * spare > 289 * variance {
            return [0, 0, counts(shares_cache(load.sum))];
        }
        let deviation = (variance as f64).sqrt() as i64;
        // No more vCPUs are active than there are.
        let excess = |limit: i64| {
            let most = (load.count - limit).max(0) * load.sum / load.count.max(1);
            excess(load.sum - limit, deviation).min(most)
        };
        let (last, slower) = self.steps.split_last().expect("a step for each cell");
        let waiting = excess(last.0);
        let slow: i64 = slower.iter().map(|(limit, drop)| drop * (excess(*limit) - waiting)).sum();
        let dearer = dearer((slow + waiting * 1000) * 1000 / load.sum);
        let cache = shares_cache(load.sum - waiting);
        [slow * dearer / 1_000_000, waiting * dearer / 1000, cache].map(counts)
    }
}

/// Demand on a cell. Sums over the vCPUs there, each of which is active for its demand's part of the
/// time, whatever the others do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Demand, milli.
    pub(super) sum: i64,
    /// Squares of the demands, micro: what the variance of the number of active vCPUs is less.
    pub(super) squares: i64,
    /// vCPUs, milli.
    pub(super) count: i64,
    /// What their VMs can count on, milli.
    share: i64,
}

impl Load {
    /// That of one vCPU whose VM can count on so many thousandths of its demand.
    pub(super) fn of(demand: i64, counts: i64) -> Load {
        Load { sum: demand, squares: demand * demand, count: 1000, share: demand * counts / 1000 }
    }

    pub(super) fn plus(self, part: &Load) -> Load {
        self.each(part, |all, part| all + part)
    }

    pub(super) fn minus(self, part: &Load) -> Load {
        self.each(part, |all, part| all - part)
    }

    /// So many thousandths of it.
    pub(super) fn part(self, share: i64) -> Load {
        self.each(&self, |all, _| all * share / 1000)
    }

    fn each(self, other: &Load, f: impl Fn(i64, i64) -> i64) -> Load {
        Load {
            sum: f(self.sum, other.sum),
            squares: f(self.squares, other.squares),
            count: f(self.count, other.count),
            share: f(self.share, other.share),
        }
    }
}

/// By how much more a loss of this part of all demand counts, both in millionths: a VM that has little already misses the
/// rest the more. Shares by weight are those that make the weighted sum of the logarithms of speeds greatest
/// (proportional fairness; Kelly, Maulloo and Tan 1998). So a part `x` counts `-ln(1 - x)`, here by its Pade
/// approximant `x (6 - x) / (6 - 4 x)`.
fn dearer(part: i64) -> i64 {
    let part = part.clamp(0, 1_000_000);
    (6_000_000 - part) * 1_000_000 / (6_000_000 - 4 * part)
}

/// By how much a number of active vCPUs exceeds a limit on average, in thousandths: it has this mean, in
/// thousandths beyond the limit, and this deviation, in thousandths. The unit normal loss function (Hadley and
/// Whitin 1963), which is 0.4 at the limit and falls off with the distance in deviations.
fn excess(beyond: i64, deviation: i64) -> i64 {
    /// The function at 0, 1/4, 1/2 ... 4, in millionths.
    const LOSS: [i64; 17] = [
        398_942, 286_345, 197_797, 131_167, 83_315, 50_587, 29_307, 16_174, 8_491, 4_235, 2_004,
        899, 382, 154, 58, 21, 7,
    ];
    let distance = beyond.abs() * 4000 / deviation.max(1);
    let (at, rest) = ((distance / 1000) as usize, distance % 1000);
    let loss = |at: usize| LOSS.get(at).copied().unwrap_or(0);
    beyond.max(0) + deviation * (loss(at) + (loss(at + 1) - loss(at)) * rest / 1000) / 1_000_000
}
