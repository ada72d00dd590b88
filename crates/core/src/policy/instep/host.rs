//! The host as the planner sees it: nodes with whole cores as capacity, the sets of nodes a VM
//! may be given (*spots*), and what a load on a node costs.
//!
//! A load's cost is a closed form of its sum and its sum of squares, so that trying a VM on a
//! node takes no more than a few divisions. The real check is [`crate::score`]'s estimate.

use crate::idset::{CpuSet, NodeSet};
use crate::score::SHARED;
use crate::snapshot::Snapshot;
use crate::topology::{CoreKind, Topology};
use crate::units::{Bytes, Nanos, NodeId};
use std::collections::BTreeMap;

/// What an efficiency core is worth, in thousandths of a performance core, when asking how much
/// demand a node can serve: Intel gives E-cores of its first hybrids (Alder Lake, Hot Chips
/// 2021) the speed of a Skylake core, about two thirds of their P-cores.
const EFFICIENT_CORE: u64 = 650;

/// What evenness is worth among nodes that are otherwise equal: thousandths of a CPU lost by a
/// CPU of demand on a node with all cores in use. A tie-breaker, an order below [`SHARED`].
const EVENNESS: u64 = 40;

/// The most load that is believed, milli: a thousand times what a million CPUs can do.
const MOST_LOAD: u64 = 1_000_000_000_000;

/// A node that has CPUs.
pub(super) struct Place {
    pub(super) id: NodeId,
    /// Its position in the topology.
    pub(super) position: usize,
    pub(super) cpus: CpuSet,
    /// Whole cores.
    pub(super) cores: u64,
    pub(super) threads: u64,
    /// Threads per core, rounded up.
    per_core: u64,
    /// Demand that finds a thread of its own, milli; an efficiency core counts less.
    pub(super) capacity: u64,
    /// Installed memory; zero where it is not known.
    pub(super) memory: Bytes,
}

/// A set of nodes, by its number in [`Spots`].
pub(super) type Spot = usize;

/// The host's nodes that have CPUs, ascending.
pub(super) struct Host<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) online: CpuSet,
    pub(super) places: Vec<Place>,
    /// For each place all places, the nearest first, then ascending.
    pub(super) near: Vec<Vec<usize>>,
    /// Load of everything that is not a placeable vCPU, milli.
    pub(super) other: u64,
    /// The part of it that no VM makes, milli: VMs that cannot be placed count by their vCPUs when
    /// asking whether there is a core for all.
    pub(super) other_than_vms: u64,
}

impl<'a> Host<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let topology = snapshot.topology.as_ref();
        let places: Vec<Place> = (0..topology.nodes().len())
            .filter(|position| !topology.nodes()[*position].cpus.is_empty())
            .map(|position| Place::new(topology, position))
            .collect();
        let near = places
            .iter()
            .map(|from| {
                let mut order: Vec<usize> = (0..places.len()).collect();
                let far = |to: &Place| topology.distance(from.id, to.id).unwrap_or(u32::MAX);
                order.sort_by_key(|to| {
                    (places[*to].id != from.id, far(&places[*to]), places[*to].id)
                });
                order
            })
            .collect();
        // A load that no host has would overflow sums of costs.
        let milli = |busy: Nanos| busy.milli_of(snapshot.window).0.min(MOST_LOAD);
        Self {
            snapshot,
            online: topology.all_cpus(),
            places,
            near,
            other: milli(snapshot.fixed_busy()),
            other_than_vms: milli(snapshot.other_busy),
        }
    }

    /// Memory on each node that no VM of the snapshot has, as far as it is known.
    pub(super) fn free_memory(&self) -> Vec<(NodeId, u64)> {
        let vms = &self.snapshot.vms;
        let used = |node| vms.iter().map(|vm| vm.memory_on(node).0).fold(0, u64::saturating_add);
        let nodes = self.snapshot.topology.nodes().iter();
        nodes.map(|node| (node.id, node.memory.0.saturating_sub(used(node.id)))).collect()
    }

    /// All cores of the host.
    pub(super) fn cores(&self) -> u64 {
        self.places.iter().map(|place| place.cores).sum()
    }
}

impl Place {
    fn new(topology: &Topology, position: usize) -> Self {
        let node = &topology.nodes()[position];
        let mut cores = 0;
        let mut capacity = 0;
        let mut last = None;
        let mut members: Vec<_> = node.cpus.iter().filter_map(|id| topology.cpu(id)).collect();
        members.sort_by_key(|cpu| cpu.core);
        for cpu in &members {
            cores += u64::from(last.replace(cpu.core) != Some(cpu.core));
            let efficient = cpu.kind == Some(CoreKind::Efficient);
            capacity += if efficient { EFFICIENT_CORE } else { 1000 };
        }
        let threads = members.len() as u64;
        Self {
            id: node.id,
            position,
            cpus: node.cpus.clone(),
            cores: cores.max(1),
            threads: threads.max(1),
            per_core: threads.div_ceil(cores.max(1)).max(1),
            capacity: capacity.max(1),
            memory: node.memory,
        }
    }
}

/// Demand on a node: the sum over vCPUs (milli) and the sum of squares (micro).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) sum: u64,
    pub(super) squares: u64,
}

impl Crowd {
    pub(super) fn plus(self, other: Crowd) -> Crowd {
        Crowd { sum: self.sum + other.sum, squares: self.squares + other.squares }
    }

    pub(super) fn minus(self, other: Crowd) -> Crowd {
        Crowd {
            sum: self.sum.saturating_sub(other.sum),
            squares: self.squares.saturating_sub(other.squares),
        }
    }

    /// The part `weight / whole` of it.
    pub(super) fn part(self, weight: u64, whole: u64) -> Crowd {
        let whole = whole.max(1);
        Crowd { sum: self.sum * weight / whole, squares: self.squares * weight / whole }
    }

    /// CPU time lost on this node, milli: nothing while every active vCPU has a core, then the
    /// competing modules of vCPUs that share cores, then what no thread has time for.
    ///
    /// The number of active vCPUs is `sum^2 / squares`, which counts an idle one as nothing.
    pub(super) fn cost(self, place: &Place, other: u64) -> u64 {
        if self.sum == 0 {
            return 0;
        }
        let mean = (self.squares / self.sum).clamp(1, 1000);
        let cores = place.cores * 1000;
        let active = (self.sum * 1000 / mean).min(place.threads * 1000);
        let full = active / cores;
        let pairs = cores * full * full.saturating_sub(1) / 2 + (active - full * cores) * full;
        let pairs = pairs.min(cores * place.per_core * (place.per_core - 1) / 2);
        let used = (self.sum * 1000 / active.max(1)).min(1000);
        let shared = pairs * used / 1000 * used / 1000 * SHARED.0 / 1000;
        let waiting = (self.sum + other).saturating_sub(place.capacity);
        let evenness = self.sum * (self.sum * EVENNESS / cores) / 1000;
        shared + waiting + evenness
    }
}

/// The sets of nodes in use, each with a number; the first are the single nodes.
pub(super) struct Spots {
    nodes: Vec<Vec<usize>>,
    cpus: Vec<CpuSet>,
    known: BTreeMap<Vec<usize>, Spot>,
}

impl Spots {
    pub(super) fn new(host: &Host) -> Self {
        let mut spots = Self { nodes: Vec::new(), cpus: Vec::new(), known: BTreeMap::new() };
        for place in 0..host.places.len() {
            spots.number(host, &[place]);
        }
        spots
    }

    /// The number of this set of places.
    pub(super) fn number(&mut self, host: &Host, places: &[usize]) -> Spot {
        if let [one] = *places
            && one < self.nodes.len()
        {
            return one;
        }
        if places.is_sorted()
            && let Some(spot) = self.known.get(places)
        {
            return *spot;
        }
        let mut places = places.to_vec();
        places.sort_unstable();
        if let Some(spot) = self.known.get(&places) {
            return *spot;
        }
        let cpus =
            places.iter().fold(CpuSet::new(), |all, place| all.or(&host.places[*place].cpus));
        self.known.insert(places.clone(), self.nodes.len());
        self.nodes.push(places);
        self.cpus.push(cpus);
        self.nodes.len() - 1
    }

    /// The places of a spot, ascending.
    pub(super) fn places(&self, spot: Spot) -> &[usize] {
        &self.nodes[spot]
    }

    /// CPUs of a spot.
    pub(super) fn cpus(&self, spot: Spot) -> &CpuSet {
        &self.cpus[spot]
    }

    /// Nodes of a spot.
    pub(super) fn node_set(&self, host: &Host, spot: Spot) -> NodeSet {
        self.nodes[spot].iter().map(|place| host.places[*place].id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::OpaqueVm;
    use crate::topology::CpuFacts;
    use crate::units::VmId;

    #[test]
    fn a_load_that_no_host_has_is_not_believed() {
        let cpus = (0..2).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
        let (name, why) = ("a".to_owned(), "a test".to_owned());
        let opaque = OpaqueVm { id: VmId(1), name, vcpus: 1, busy: Nanos(u64::MAX), why };
        let snapshot = Snapshot {
            at: Nanos(1),
            window: Nanos(1),
            topology: Topology::build(cpus, Vec::new()).unwrap().into(),
            other_busy: Nanos(u64::MAX),
            vms: Vec::new(),
            opaque: vec![opaque],
        };
        let host = Host::new(&snapshot);
        assert_eq!((host.other, host.other_than_vms), (MOST_LOAD, MOST_LOAD));
    }
}
