//! What a unit loses by where its memory and its devices are, for each set of nodes that it may be on.
//!
//! Memory is taken to be where it will be: what may follow a unit to its home does, as far as the home has
//! room, at a cost once. What lies on nodes without CPUs (CXL) is left to the kernel's tiering, unless asked for.

use super::cells::Host;
use super::unit::Unit;
use crate::idset::NodeSet;
use crate::score::REMOTE;
use crate::units::NodeId;

/// How long a placement is expected to last, seconds: ten default periods. An assumption.
const HORIZON: i64 = 600;

/// CPU time that copying a GiB takes, milliseconds: move_pages copies about 1 GiB a second.
const COPY: i64 = 1000;

/// How fast memory comes home, MiB a second: by default a cycle of 60 s moves 4 GiB.
const FOLLOWS: i64 = 64;

/// What a device far away costs, in thousandths of what all of the VM's memory there would: what it reads
/// and writes crosses the link once, and the VM works on it from near. An assumption.
const DEVICE: i64 = 250;

/// The most memory on one node that is believed, KiB.
const MOST: u64 = 1 << 36;

/// A set of nodes where a VM may be at home.
pub(super) struct Home {
    pub(super) nodes: NodeSet,
    /// By number of a node: its mean distance beyond the local one, in thousandths of a hop, which is a distance
    /// of 10; and the same once memory has come from there, if it would have to come.
    hops: Vec<(i64, Option<i64>)>,
    /// Memory that it has room for, KiB.
    room: i64,
    /// Whether it is all nodes from which memory could come: then nothing follows.
    pub(super) is_all: bool,
}

impl Home {
    pub(super) fn new(host: &Host, places: &[usize]) -> Self {
        let topology = host.snapshot.topology.as_ref();
        let nodes: NodeSet = places.iter().map(|place| host.places[*place].id).collect();
        let mean = |to: NodeId| -> i64 {
            let far = |from: NodeId| i64::from(topology.distance(from, to).unwrap_or(10));
            let beyond = nodes.iter().map(|from| (far(from).clamp(10, 255) - 10) * 100);
            beyond.sum::<i64>() / places.len() as i64
        };
        let within = nodes.iter().map(mean).sum::<i64>() / places.len() as i64;
        let room = nodes.iter().map(|node| (host.free[&node] >> 10).min(MOST) as i64).sum();
        let mut hops = Vec::new();
        for node in topology.nodes() {
            hops.resize(hops.len().max(node.id.0 as usize + 1), (0, None));
            let away = !nodes.contains(node.id) && host.is_movable(node.id);
            hops[node.id.0 as usize] = (mean(node.id), away.then_some(within));
        }
        let fetches = topology.memory_only_nodes().iter().any(|node| host.is_movable(node));
        Self { hops, room, is_all: places.len() == host.places.len() && !fetches, nodes }
    }

    fn hops(&self, node: NodeId) -> (i64, Option<i64>) {
        self.hops.get(node.0 as usize).copied().unwrap_or_default()
    }

    /// Whether memory on this node would have to come here.
    pub(super) fn is_away(&self, node: NodeId) -> bool {
        self.hops(node).1.is_some()
    }

    /// What a unit loses here, in millionths of a CPU: remote access once all that follows is here; until
    /// then, copying and using it from afar; and access to its devices.
    pub(super) fn costs(&self, host: &Host, unit: &Unit) -> [i64; 3] {
        let vm = &host.snapshot.vms[unit.vm];
        let lost = |hops: i64| unit.weighted / 1000 * hops / 1000 * REMOTE.0 as i64;
        let devices = vm.devices.iter().map(|node| lost(self.hops(*node).0) * DEVICE / 1000).sum();
        let (mut total, mut away, mut now, mut then) = (0, 0, 0, 0);
        for (node, bytes) in &unit.memory {
            let kib = (bytes.0 >> 10).min(MOST) as i64;
            let (hops, moved) = self.hops(*node);
            away += moved.map_or(0, |_| kib);
            (total, now, then) =
                (total + kib, now + hops * kib, then + moved.unwrap_or(hops) * kib);
        }
        let mean = |hops: i64| lost(hops / total.max(1));
        let fits = away > 0 && away <= self.room && !self.is_all;
        if !fits || !unit.memory_may_move(vm, &self.nodes) {
            return [mean(now), 0, devices];
        }
        [mean(then), moving(away >> 10, mean(now) - mean(then)), devices]
    }
}

/// What moving so many MiB costs that save so much once they are there. They come at an even pace, and
/// are used from afar for half of that time.
fn moving(mib: i64, saves: i64) -> i64 {
    let taken = mib / FOLLOWS;
    let afar = saves.max(0) * taken.min(2 * HORIZON) / (2 * HORIZON);
    afar + mib.min(FOLLOWS * HORIZON) * COPY / 1024 * 1000 / HORIZON
}
