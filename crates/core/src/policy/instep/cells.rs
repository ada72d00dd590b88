//! The host as the objective sees it: nodes divided into *cells*, and what the load of a cell costs.
//!
//! A cell is a last-level cache, or a whole node where the caches are not known. Inside a cell the
//! kernel is taken to run each vCPU that is active on the fastest free thread.

use crate::idset::CpuSet;
use crate::score::SHARED;
use crate::snapshot::Snapshot;
use crate::topology::CoreKind;
use crate::units::{Bytes, Nanos, NodeId};
use std::collections::BTreeMap;

/// Speed of an efficiency core, in thousandths of a performance core: Intel gives E-cores of its first
/// hybrids (Alder Lake, Hot Chips 2021) the speed of a Skylake core, about two thirds of their P-cores.
pub(super) const EFFICIENT_CORE: u64 = 650;

/// CPU time that a VM loses when other VMs keep all other cores of its last-level cache busy, in
/// thousandths of its demand. An assumption: programs that live in the cache lose more, others nothing.
const CACHE: i64 = 50;

/// The most load that is believed, milli: what a million CPUs can do.
const MOST_LOAD: u64 = 1_000_000_000;

/// CPUs that share a last-level cache, or those of a node.
pub(super) struct Cell {
    /// Position of its node in [`Host::places`].
    pub(super) place: usize,
    pub(super) cpus: CpuSet,
    /// Whole cores.
    pub(super) cores: u64,
    /// Work that all its CPUs together do, milli.
    pub(super) capacity: u64,
    /// How many vCPUs may be active before each further one is slower, milli, and by how much more,
    /// in thousandths of a CPU; these add up to a whole CPU at the last, where no thread is left.
    steps: Vec<(i64, i64)>,
}

/// A node that has CPUs.
pub(super) struct Place {
    pub(super) id: NodeId,
    pub(super) cells: std::ops::Range<usize>,
    pub(super) threads: u64,
    /// Installed memory; zero where it is not known.
    pub(super) memory: Bytes,
}

/// A set of cells that a VM may be given, by its number in [`Spots`](super::spots::Spots).
pub(super) type Spot = usize;

/// The host's nodes that have CPUs, ascending, and their cells.
pub(super) struct Host<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) online: CpuSet,
    pub(super) places: Vec<Place>,
    pub(super) cells: Vec<Cell>,
    /// For each place all places, the nearest first, then ascending.
    pub(super) near: Vec<Vec<usize>>,
    /// Load of everything that is not a placeable vCPU, milli.
    pub(super) other: u64,
    /// The least memory that a node has.
    pub(super) least_memory: Bytes,
    /// Mean of the weights of the VMs' cgroups, by vCPU.
    pub(super) mean_weight: i64,
}

impl<'a> Host<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let topology = snapshot.topology.as_ref();
        let (mut places, mut cells) = (Vec::new(), Vec::new());
        for node in topology.nodes() {
            let cpus = node.cpus.minus(&snapshot.isolated);
            let start = cells.len();
            cells.extend(
                divided(snapshot, &cpus)
                    .into_iter()
                    .map(|cpus| Cell::new(snapshot, places.len(), cpus)),
            );
            if !cpus.is_empty() {
                let threads = cpus.len() as u64;
                let range = start..cells.len();
                places.push(Place { id: node.id, cells: range, threads, memory: node.memory });
            }
        }
        let near = |from: &Place| {
            let far = |to: &usize| topology.distance(from.id, places[*to].id).unwrap_or(u32::MAX);
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|to| (places[*to].id != from.id, far(to), *to));
            order
        };
        let near = places.iter().map(near).collect();
        let milli = |busy: Nanos| busy.milli_of(snapshot.window).0.min(MOST_LOAD);
        let other = milli(snapshot.fixed_busy());
        let weights = snapshot.vms.iter().map(|vm| i64::from(vm.weight) * vm.vcpus.len() as i64);
        let vcpus: usize = snapshot.vms.iter().map(|vm| vm.vcpus.len()).sum();
        let mean_weight = weights.sum::<i64>() / vcpus.max(1) as i64;
        let least_memory = places.iter().map(|place| place.memory).min().unwrap_or_default();
        let online = topology.all_cpus();
        Self { snapshot, online, places, cells, near, other, least_memory, mean_weight }
    }

    /// Memory on each node that no VM of the snapshot has, as far as it is known.
    pub(super) fn free_memory(&self) -> Vec<(NodeId, u64)> {
        let vms = &self.snapshot.vms;
        let used = |node| vms.iter().map(|vm| vm.memory_on(node).0).fold(0, u64::saturating_add);
        let nodes = self.snapshot.topology.nodes().iter();
        nodes.map(|node| (node.id, node.memory.0.saturating_sub(used(node.id)))).collect()
    }

    /// Whether memory on this node is Instep's to move: that of a node without CPUs (CXL) is left to
    /// the kernel's tiering.
    pub(super) fn is_movable(&self, node: NodeId) -> bool {
        self.snapshot.topology.node(node).is_none_or(|node| !node.cpus.is_empty())
    }

    /// Loads before any VM is placed: that of other processes is everywhere.
    pub(super) fn loads(&self) -> Vec<Load> {
        let whole: u64 = self.cells.iter().map(|cell| cell.cpus.len() as u64).sum();
        let load = |cell: &Cell| {
            let sum = self.other * cell.cpus.len() as u64 / whole.max(1);
            let sum = sum.min(cell.cpus.len() as u64 * 1000) as i64;
            Load { sum, squares: sum * 1000, count: sum, weighted: sum * 1000, ..Load::default() }
        };
        self.cells.iter().map(load).collect()
    }
}

/// The CPUs of a node by last-level cache; in one piece where a cache has just one core, as the
/// caches are not known then, or say nothing of which cores are near each other.
fn divided(snapshot: &Snapshot, cpus: &CpuSet) -> Vec<CpuSet> {
    let topology = snapshot.topology.as_ref();
    let llcs: BTreeMap<_, CpuSet> =
        cpus.iter().filter_map(|id| topology.cpu(id)).fold(BTreeMap::new(), |mut llcs, cpu| {
            llcs.entry(cpu.llc).or_insert_with(CpuSet::new).insert(cpu.id);
            llcs
        });
    let known = llcs.keys().all(|llc| {
        let all = &topology.llcs()[llc.0 as usize];
        let core = all.first().and_then(|id| topology.cpu(id)).map(|cpu| cpu.core);
        core.is_some_and(|core| !all.is_subset(&topology.cores()[core.0 as usize]))
    });
    if known { llcs.into_values().collect() } else { vec![cpus.clone()] }
}

impl Cell {
    fn new(snapshot: &Snapshot, place: usize, cpus: CpuSet) -> Self {
        let mut members: Vec<_> = cpus.iter().filter_map(|id| snapshot.topology.cpu(id)).collect();
        members.sort_by_key(|cpu| (cpu.core, cpu.id));
        let mut speeds: Vec<i64> = Vec::with_capacity(members.len());
        let mut cores = 0;
        for core in members.chunk_by(|a, b| a.core == b.core) {
            cores += 1;
            let efficient = core[0].kind == Some(CoreKind::Efficient);
            // Each further thread of a core adds less.
            let mut speed = if efficient { EFFICIENT_CORE } else { 1000 };
            for _ in core {
                speeds.push(speed as i64);
                speed = speed * (1000 - SHARED.0) / 1000;
            }
        }
        speeds.sort_unstable_by_key(|speed| -speed);
        let capacity = speeds.iter().sum::<i64>() as u64;
        // What is slower than a performance core is slower by a step.
        let mut steps = Vec::new();
        let (mut fast, mut count) = (1000, 0);
        for speed in speeds {
            if speed < fast {
                steps.push((count, fast - speed));
                fast = speed;
            }
            count += 1000;
        }
        steps.push((count, fast));
        Self { place, cpus, cores: cores.max(1), capacity: capacity.max(1), steps }
    }

    /// What a load costs, in millionths of a CPU.
    pub(super) fn cost(&self, load: &Load) -> Cost {
        if load.sum <= 0 {
            return Cost::default();
        }
        let deviation = (load.sum * 1000 - load.squares).max(0).isqrt();
        // No more vCPUs are active than there are.
        let excess = |limit: i64| {
            let most = (load.count - limit).max(0) * load.sum / load.count.max(1);
            excess(load.sum, deviation, limit).min(most)
        };
        let (last, slower) = self.steps.split_last().expect("a step for each cell");
        let waiting = excess(last.0);
        let slow: i64 = slower.iter().map(|(limit, drop)| drop * (excess(*limit) - waiting)).sum();
        // Of those that run, the part that runs beside others' in the cache.
        let run = load.sum - waiting;
        let others = 1000 - (load.units / (load.sum * load.sum / 1000).max(1)).min(1000);
        let pairs = run * run / self.cores as i64 * others / 1000;
        let weight = load.weighted / load.sum;
        let weighted = |cost: i64| cost / 1000 * weight + cost % 1000 * weight / 1000;
        Cost {
            cores: weighted(slow),
            waiting: weighted(waiting * 1000),
            cache: weighted(pairs * CACHE / 1000),
        }
    }
}

/// What the load of a cell costs, by kind, in millionths of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Sharing cores, and running on slow ones.
    pub(super) cores: i64,
    /// Waiting for a CPU.
    pub(super) waiting: i64,
    /// Sharing the capacity and the bandwidth of the last-level cache with other VMs.
    pub(super) cache: i64,
}

impl Cost {
    pub(super) fn sum(self) -> i64 {
        self.cores + self.waiting + self.cache
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
    /// Squares of what single units demand here, micro.
    pub(super) units: i64,
    /// Demand times the weight of the VM, micro.
    pub(super) weighted: i64,
    /// Squares of the noise of what single units demand here, micro.
    pub(super) noise: i64,
}

impl Load {
    /// That of one vCPU, with the weight of its VM in thousandths of the mean.
    pub(super) fn of(demand: i64, weight: i64) -> Load {
        let (squares, weighted) = (demand * demand, demand * weight);
        Load { sum: demand, squares, count: 1000, weighted, ..Load::default() }
    }

    pub(super) fn plus(self, part: &Load) -> Load {
        self.and(part, 1)
    }

    pub(super) fn minus(self, part: &Load) -> Load {
        self.and(part, -1)
    }

    fn and(self, part: &Load, times: i64) -> Load {
        Load {
            sum: self.sum + part.sum * times,
            squares: self.squares + part.squares * times,
            count: self.count + part.count * times,
            units: self.units + part.units * times,
            weighted: self.weighted + part.weighted * times,
            noise: self.noise + part.noise * times,
        }
    }

    /// The load if its demand were higher by this, milli, and all else in proportion.
    pub(super) fn shifted(self, by: i64) -> Load {
        let sum = (self.sum + by).max(0);
        let scaled =
            |value: i64| (i128::from(value) * i128::from(sum) / i128::from(self.sum.max(1))) as i64;
        Load { sum, squares: scaled(self.squares), weighted: scaled(self.weighted), ..self }
    }

    /// The part of a unit that is on a cell with `share` thousandths of its spot.
    pub(super) fn part(&self, share: i64) -> Load {
        if share == 1000 {
            return *self;
        }
        let square = |value: i64| value / 1000 * share * share / 1000;
        Load {
            sum: self.sum * share / 1000,
            squares: self.squares / 1000 * share,
            count: self.count * share / 1000,
            units: square(self.units),
            weighted: self.weighted / 1000 * share,
            noise: square(self.noise),
        }
    }
}

/// By how much a number of active vCPUs of this mean and deviation exceeds `limit` on average, all in
/// thousandths: the unit normal loss function, as in inventory theory (Hadley and Whitin 1963).
fn excess(mean: i64, deviation: i64, limit: i64) -> i64 {
    /// The function at 0, 1/4, 1/2 ... 4, in millionths.
    const LOSS: [i64; 17] = [
        398_942, 286_345, 197_797, 131_167, 83_315, 50_587, 29_307, 16_174, 8_491, 4_235, 2_004,
        899, 382, 154, 58, 21, 7,
    ];
    let above = (mean - limit).max(0);
    let distance = (mean - limit).abs() * 4000 / deviation.max(1);
    let (at, rest) = ((distance / 1000) as usize, distance % 1000);
    if deviation == 0 || at + 1 >= LOSS.len() {
        return above;
    }
    let loss = LOSS[at] + (LOSS[at + 1] - LOSS[at]) * rest / 1000;
    above + deviation * loss / 1_000_000
}
