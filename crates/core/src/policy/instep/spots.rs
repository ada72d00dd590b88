//! The sets of cells that a VM may be given: caches side by side, a node, the nearest nodes, or all.

use super::cells::{Host, Spot};
use super::near::Home;
use crate::idset::CpuSet;
use std::collections::BTreeMap;
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
    /// Work that all its CPUs together do, milli.
    pub(super) capacity: i64,
}

/// What a unit needs: CPUs that its vCPUs may use, how many those are, and bytes.
type Need = (Vec<CpuSet>, usize, u64);

/// The spots that a unit may choose from, alike in nodes and number of cells, the widest, which is
/// everything usable, last; empty if no cell is usable.
pub(super) type Options = Vec<Vec<Spot>>;

/// The areas in use, each with a number, and the sets of nodes that they have.
#[derive(Default)]
pub(super) struct Spots {
    pub(super) areas: Vec<Area>,
    pub(super) homes: Vec<Home>,
    known: BTreeMap<Vec<usize>, Spot>,
    nodes: BTreeMap<Vec<usize>, usize>,
    shared: BTreeMap<Need, Rc<Options>>,
}

impl Spots {
    /// The number of this set of cells.
    fn number(&mut self, host: &Host, cells: &[usize]) -> Spot {
        let mut cells = cells.to_vec();
        cells.sort_unstable();
        if let Some(spot) = self.known.get(&cells) {
            return *spot;
        }
        let mut places: Vec<usize> = cells.iter().map(|cell| host.cells[*cell].place).collect();
        places.dedup();
        let nodes = *self.nodes.entry(places.clone()).or_insert(self.homes.len());
        if nodes == self.homes.len() {
            self.homes.push(Home::new(host, &places));
        }
        let cpus = cells.iter().fold(CpuSet::new(), |all, cell| all.or(&host.cells[*cell].cpus));
        let capacity = cells.iter().map(|cell| host.cells[*cell].capacity).sum();
        self.areas.push(Area { cells: cells.clone(), places, nodes, cpus, capacity });
        self.known.insert(cells, self.areas.len() - 1);
        self.areas.len() - 1
    }

    /// The spots that offer a CPU per vCPU and room for the memory: from each cell on as few side by side
    /// as fit, as few as have a core per vCPU, and one more; each node, and the nearest nodes that are
    /// needed; and everything usable.
    pub(super) fn options(
        &mut self,
        host: &Host,
        may: &[CpuSet],
        vcpus: usize,
        memory: u64,
    ) -> Rc<Options> {
        // Memory that any node has room for makes no difference.
        let least = host.places.iter().map(|place| place.memory).min().unwrap_or(0);
        let need = (may.to_vec(), vcpus, if memory <= least { 0 } else { memory });
        if let Some(options) = self.shared.get(&need) {
            return options.clone();
        }
        let options = Rc::new(self.find(host, &need));
        self.shared.insert(need, options.clone());
        options
    }

    fn find(&mut self, host: &Host, need: &Need) -> Options {
        let usable =
            |cell: &usize| need.0.iter().all(|may| may.intersects(&host.cells[*cell].cpus));
        let cells: Vec<usize> = (0..host.cells.len()).filter(usable).collect();
        let place = |cell: usize| host.cells[cell].place;
        let by_place: Vec<&[usize]> = cells.chunk_by(|a, b| place(*a) == place(*b)).collect();
        let mut found = Vec::new();
        for own in &by_place {
            for start in 0..own.len() {
                let side = own[start..].iter().chain(&own[..start]);
                found.extend(self.fitting(host, side.map(std::slice::from_ref), need, 1));
            }
            let far = |to: &&[usize]| {
                let [from, to] = [own[0], to[0]].map(|cell| host.places[place(cell)].id);
                (from != to, host.snapshot.topology.distance(from, to), to)
            };
            let mut near = by_place.clone();
            near.sort_by_key(far);
            found.extend(self.fitting(host, near.into_iter(), need, 0));
        }
        // The narrowest of each node are compared, and of wider ones the emptiest.
        let least = found.iter().map(|spot| self.areas[*spot].cells.len()).min().unwrap_or(0);
        let mut alike: BTreeMap<(usize, usize), Vec<Spot>> = BTreeMap::new();
        for spot in found {
            let (cells, nodes) = (self.areas[spot].cells.len(), self.areas[spot].nodes);
            let group = alike.entry((cells, if cells == least { nodes } else { 0 })).or_default();
            if !group.contains(&spot) {
                group.push(spot);
            }
        }
        if !cells.is_empty() {
            let wide = self.number(host, &cells);
            alike.retain(|_, group| group[..] != [wide]);
            alike.insert((usize::MAX, 0), vec![wide]);
        }
        alike.into_values().collect()
    }

    /// The beginnings of `parts` that fit: the shortest, the shortest with a core per vCPU, and with `more` parts
    /// than that.
    fn fitting<'c>(
        &mut self,
        host: &Host,
        parts: impl Iterator<Item = &'c [usize]>,
        (may, vcpus, memory): &Need,
        mut more: usize,
    ) -> Vec<Spot> {
        let union = may.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
        let (mut taken, mut found) = (Vec::new(), Vec::new());
        let (mut cpus, mut cores, mut room) = (0, 0, BTreeMap::new());
        for part in parts {
            for cell in part {
                let own = union.common(&host.cells[*cell].cpus);
                (cpus, cores) = (cpus + own, cores + host.cells[*cell].cores.min(own));
                let place = host.cells[*cell].place;
                room.insert(place, host.places[place].memory);
            }
            taken.extend(part);
            let (ample, room) =
                (cores >= *vcpus, room.values().copied().fold(0, u64::saturating_add));
            if cpus >= *vcpus && room >= *memory && (ample || found.is_empty()) {
                found.push(self.number(host, &taken));
                if ample && more == 0 {
                    break;
                }
                more -= usize::from(ample);
            }
        }
        found
    }
}
