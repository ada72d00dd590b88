//! The sets of cells that a VM may be given: caches side by side, a node, the nearest nodes, or all.

use super::cells::{Host, Spot};
use crate::idset::{CpuSet, NodeSet};
use crate::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A set of cells that a VM may be given.
pub(super) struct Area {
    /// Ascending.
    pub(super) cells: Vec<usize>,
    /// Nodes, ascending.
    pub(super) places: Vec<usize>,
    /// The number of this set of nodes.
    pub(super) nodes: usize,
    pub(super) cpus: CpuSet,
}

/// The areas in use, each with a number.
#[derive(Default)]
pub(super) struct Spots {
    pub(super) areas: Vec<Area>,
    known: BTreeMap<Vec<usize>, Spot>,
    nodes: BTreeMap<Vec<usize>, usize>,
    /// Options of units that need the same: what their vCPUs may use, how many they are, and memory.
    shared: BTreeMap<(Vec<CpuSet>, usize, Bytes), Rc<Options>>,
}

/// The spots that a unit may choose from.
pub(super) struct Options {
    /// All of them, the widest, which is everything usable, last; empty if no node is usable.
    pub(super) all: Vec<Spot>,
    /// Caches side by side, by the cell that they begin with.
    pub(super) caches: Vec<Vec<Spot>>,
    /// A node, and the nearest nodes with it, by the node.
    pub(super) nodes: BTreeMap<usize, Vec<Spot>>,
}

impl Spots {
    /// The number of this set of cells.
    pub(super) fn number(&mut self, host: &Host, cells: &[usize]) -> Spot {
        let mut cells = cells.to_vec();
        cells.sort_unstable();
        if let Some(spot) = self.known.get(&cells) {
            return *spot;
        }
        let mut places: Vec<usize> = cells.iter().map(|cell| host.cells[*cell].place).collect();
        places.dedup();
        let numbered = self.nodes.len();
        let nodes = *self.nodes.entry(places.clone()).or_insert(numbered);
        let cpus = cells.iter().fold(CpuSet::new(), |all, cell| all.or(&host.cells[*cell].cpus));
        self.areas.push(Area { cells: cells.clone(), places, nodes, cpus });
        self.known.insert(cells, self.areas.len() - 1);
        self.areas.len() - 1
    }

    /// Nodes of a spot.
    pub(super) fn node_set(&self, host: &Host, spot: Spot) -> NodeSet {
        self.areas[spot].places.iter().map(|place| host.places[*place].id).collect()
    }

    /// The spots that offer a CPU per vCPU and room for the memory, of units whose vCPUs may use `may`:
    /// from each cell on as few side by side as fit, as few as have a core per vCPU, and one more; each
    /// node, and the nearest nodes that are needed; and everything usable.
    pub(super) fn options(
        &mut self,
        host: &Host,
        may: &[CpuSet],
        vcpus: usize,
        memory: Bytes,
    ) -> Rc<Options> {
        // Memory that any node has room for makes no difference.
        let memory = if memory <= host.least_memory { Bytes(0) } else { memory };
        let need = (may.to_vec(), vcpus, memory);
        if let Some(options) = self.shared.get(&need) {
            return Rc::clone(options);
        }
        let options = Rc::new(self.find(host, &need));
        self.shared.insert(need, Rc::clone(&options));
        options
    }

    fn find(&mut self, host: &Host, (may, vcpus, memory): &(Vec<CpuSet>, usize, Bytes)) -> Options {
        let usable = |cell: &usize| may.iter().all(|cpus| cpus.intersects(&host.cells[*cell].cpus));
        let union = may.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
        let cells: Vec<(usize, usize)> = (0..host.cells.len())
            .filter(usable)
            .map(|cell| (cell, union.common(&host.cells[cell].cpus)))
            .collect();
        let (mut caches, mut nodes) = (vec![Vec::new(); host.cells.len()], BTreeMap::new());
        let place_of = |own: &[(usize, usize)]| host.cells[own[0].0].place;
        let by_place: Vec<&[(usize, usize)]> =
            cells.chunk_by(|a, b| host.cells[a.0].place == host.cells[b.0].place).collect();
        for own in &by_place {
            let installed = host.places[place_of(own)].memory;
            let fits = installed >= *memory || installed.0 == 0;
            for start in 0..if own.len() > 1 && fits { own.len() } else { 0 } {
                let side = (0..own.len() - 1).map(|next| vec![own[(start + next) % own.len()]]);
                caches[own[start].0] = self.fitting(host, side, *vcpus, Bytes(0), 1);
            }
            let near = host.near[place_of(own)].iter();
            let near = near.filter_map(|place| by_place.iter().find(|own| place_of(own) == *place));
            let near = near.map(|own| own.to_vec());
            nodes.insert(place_of(own), self.fitting(host, near, *vcpus, *memory, 0));
        }
        if cells.is_empty() {
            return Options { all: Vec::new(), caches, nodes };
        }
        let usable: Vec<usize> = cells.iter().map(|(cell, _)| *cell).collect();
        let wide = self.number(host, &usable);
        let mut known = BTreeSet::from([wide]);
        let mut all: Vec<Spot> = caches.iter().chain(nodes.values()).flatten().copied().collect();
        all.retain(|spot| known.insert(*spot));
        all.push(wide);
        Options { all, caches, nodes }
    }

    /// The beginnings of `parts` that fit, that have a core per vCPU, and with `more` parts than that.
    fn fitting(
        &mut self,
        host: &Host,
        parts: impl Iterator<Item = Vec<(usize, usize)>>,
        vcpus: usize,
        memory: Bytes,
        more: usize,
    ) -> Vec<Spot> {
        let (mut taken, mut found) = (Vec::new(), Vec::new());
        let (mut cpus, mut cores, mut room, mut spare) = (0, 0, 0u64, more);
        for part in parts {
            for (cell, own) in &part {
                let cell_cores = host.cells[*cell].cores as usize;
                (cpus, cores) = (cpus + own, cores + cell_cores.min(*own));
                taken.push(*cell);
            }
            let installed = host.places[host.cells[part[0].0].place].memory.0;
            room = room.saturating_add(if installed == 0 { u64::MAX } else { installed });
            if cpus < vcpus || room < memory.0 {
                continue;
            }
            let ample = cores >= vcpus;
            if ample || found.is_empty() {
                found.push(self.number(host, &taken));
            }
            if ample && spare == 0 {
                break;
            }
            spare -= usize::from(ample);
        }
        found
    }
}
