//! What a unit loses by where its memory is, for each set of nodes that its vCPUs may be on.
//!
//! Memory is taken to be where it will be: what may follow a unit to its home does, as far as the home has
//! room, at a cost once. What lies on nodes without CPUs (CXL) is left to the kernel's tiering.

use super::cells::Host;
use super::spots::Spots;
use super::unit::Unit;
use crate::idset::NodeSet;
use crate::score::REMOTE;
use crate::units::{Bytes, NodeId};

/// How long a placement is expected to last, seconds: ten default periods. An assumption.
const HORIZON: i64 = 600;

/// CPU time that copying a GiB takes, milliseconds: move_pages copies about 1 GiB a second.
const COPY: i64 = 1000;

/// How fast memory comes home, MiB a second: by default a cycle of 60 s moves 4 GiB.
const FOLLOWS: i64 = 64;

/// The most memory of a unit on one node that is believed, KiB.
const MOST: u64 = 1 << 40;

/// What a unit loses on a set of nodes, in millionths of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryCost {
    /// Remote access, once all that follows is there.
    pub(super) remote: i64,
    /// Until then: copying, and using it from afar.
    pub(super) moving: i64,
}

/// A set of nodes, with what does not depend on the unit. By position of the node in the topology.
struct Home {
    nodes: NodeSet,
    is_home: Vec<bool>,
    /// Mean distance to the node beyond the local one, in hundredths of a hop, which is a distance of 10.
    hops: Vec<i64>,
    /// The same between nodes of the set.
    within: i64,
    /// Memory that it has room for, KiB.
    room: i64,
    /// Whether it is all nodes: then nothing follows.
    is_all: bool,
}

/// What units lose on all sets of nodes in use.
pub(super) struct MemoryCosts {
    homes: Vec<Home>,
    /// `[unit][set of nodes]`.
    costs: Vec<Vec<MemoryCost>>,
}

impl MemoryCosts {
    pub(super) fn new(host: &Host, spots: &Spots, units: &[Unit]) -> Self {
        let free = host.free_memory();
        let mut homes: Vec<Option<Home>> = Vec::new();
        for area in &spots.areas {
            homes.resize_with(homes.len().max(area.nodes + 1), || None);
            homes[area.nodes].get_or_insert_with(|| Home::new(host, &area.places, &free));
        }
        let homes: Vec<Home> = homes.into_iter().flatten().collect();
        let mut costs = Self { homes, costs: Vec::new() };
        costs.costs = units.iter().map(|unit| costs.of_unit(host, unit)).collect();
        costs
    }

    /// What a unit loses on the set of nodes of this number.
    pub(super) fn of(&self, unit: usize, nodes: usize) -> MemoryCost {
        self.costs[unit].get(nodes).copied().unwrap_or_default()
    }

    fn of_unit(&self, host: &Host, unit: &Unit) -> Vec<MemoryCost> {
        let vm = &host.snapshot.vms[unit.vm];
        let nodes = host.snapshot.topology.nodes();
        let memory = unit.memory(vm);
        let position = |id: NodeId| nodes.binary_search_by_key(&id, |node| node.id).ok();
        let on = |(id, bytes): (&NodeId, &Bytes)| {
            let kib = (bytes.0 >> 10).min(MOST) as i64;
            Some((position(*id)?, kib)).filter(|(_, kib)| *kib > 0)
        };
        let memory: Vec<(usize, i64)> = memory.iter().filter_map(on).collect();
        let total: i64 = memory.iter().map(|(_, kib)| kib).sum();
        if total == 0 {
            return Vec::new();
        }
        let cost = |home: &Home| {
            let away = memory.iter().filter(|(node, _)| home.may_take(host, *node));
            let away: i64 = away.map(|(_, kib)| kib).sum();
            let follows =
                !home.is_all && away <= home.room && unit.memory_may_move(vm, &home.nodes);
            let (mut now, mut then) = (0, 0);
            for (node, kib) in &memory {
                let hops = home.hops[*node];
                let moves = follows && home.may_take(host, *node);
                now += hops * kib;
                then += if moves { home.within } else { hops } * kib;
            }
            let lost = |hops: i64| {
                unit.load.weighted / 1000 * (hops * 10 / total) / 1000 * REMOTE.0 as i64
            };
            let (now, then) = (lost(now), lost(then));
            let moving = if follows && away > 0 { moving(away >> 10, now - then) } else { 0 };
            MemoryCost { remote: if follows { then } else { now }, moving }
        };
        self.homes.iter().map(cost).collect()
    }
}

impl Home {
    fn new(host: &Host, places: &[usize], free: &[(NodeId, u64)]) -> Self {
        let topology = host.snapshot.topology.as_ref();
        let nodes: NodeSet = places.iter().map(|place| host.places[*place].id).collect();
        let hops = |to: NodeId| -> i64 {
            let far = |from: NodeId| i64::from(topology.distance(from, to).unwrap_or(10));
            let beyond = nodes.iter().map(|from| (far(from).clamp(10, 255) - 10) * 10);
            beyond.sum::<i64>() / places.len() as i64
        };
        let within = nodes.iter().map(hops).sum::<i64>() / places.len() as i64;
        let room = free.iter().filter(|(node, _)| nodes.contains(*node));
        Self {
            is_home: topology.nodes().iter().map(|node| nodes.contains(node.id)).collect(),
            hops: topology.nodes().iter().map(|node| hops(node.id)).collect(),
            within,
            room: room.map(|(_, free)| (free >> 10).min(MOST) as i64).sum(),
            is_all: places.len() == host.places.len(),
            nodes,
        }
    }

    /// Whether memory on the node in this position would have to move here, and may.
    fn may_take(&self, host: &Host, node: usize) -> bool {
        !self.is_home[node] && !host.snapshot.topology.nodes()[node].cpus.is_empty()
    }
}

/// What moving so many MiB costs that save so much once they are there. They come at an even pace, and
/// are used from afar for half of that time.
fn moving(mib: i64, saves: i64) -> i64 {
    let taken = (mib / FOLLOWS).max(1);
    let part = if taken <= HORIZON { taken * 500 / HORIZON } else { 1000 - HORIZON * 500 / taken };
    let copying = mib.min(FOLLOWS * HORIZON) * COPY / 1024 * 1000 / HORIZON;
    saves.max(0) * part / 1000 + copying
}
