//! Chooses a spot for every unit: greedily in order of demand, then in a few passes in which each
//! unit may change its mind. Costs are estimates in thousandths of a CPU lost.

use super::MOVE_PAYS;
use super::host::{Crowd, Host, Spot, Spots};
use super::unit::{self, Unit};
use crate::score::{Estimator, REMOTE};
use std::cmp::Reverse;

/// How often every unit may change its mind. Nearly all settle in two passes; the bound keeps the
/// plan O(n log n).
const PASSES: usize = 4;

/// Moving memory costs a CPU a second per GiB (move_pages copies about 1 GiB/s), counted over
/// [`HORIZON_SECS`]: thousandths of a CPU per GiB.
const MOVE_PER_GIB: u64 = 1000 / HORIZON_SECS + 1;

/// How long a placement is expected to last, seconds: ten default periods.
const HORIZON_SECS: u64 = 600;

/// The spot of every unit.
pub(super) type Plan = Vec<Spot>;

/// What the planner knows of units and nodes.
pub(super) struct Planner<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) spots: &'a Spots,
    pub(super) units: &'a [Unit],
    /// Demand of vCPUs that are not planned, by place.
    fixed: Vec<Crowd>,
    /// `[unit * places + place]`.
    memory: Vec<MemoryCost>,
    /// Load on each place that is not planned at all, milli.
    other: u64,
}

/// What the memory of a unit costs at a place, milli.
#[derive(Clone, Copy)]
struct MemoryCost {
    /// All its demand being there while the memory lies as it does.
    remote: u64,
    /// Bringing the memory there.
    moving: u64,
    /// Whether it may be brought there, and has room.
    follows: bool,
}

/// Loads on the places while a plan is made.
struct Loads {
    /// Load and its cost, by place.
    places: Vec<(Crowd, u64)>,
    /// Where each unit is, if it is placed.
    spots: Vec<Option<Spot>>,
    /// `[unit * places + k]`: what each placed unit put on the place number k of its spot.
    parts: Vec<Crowd>,
}

impl<'a> Planner<'a> {
    /// `fixed` is the demand of VMs that are left alone, by place.
    pub(super) fn new(
        host: &'a Host<'a>,
        spots: &'a Spots,
        units: &'a [Unit],
        estimator: &Estimator,
        fixed: Vec<Crowd>,
    ) -> Self {
        let on = |unit: &Unit, place: usize| {
            let remote = |vcpu| estimator.remote(unit.vm, vcpu, host.places[place].position);
            let vm = &host.snapshot.vms[unit.vm];
            let lost: u64 = if unit.footprint.is_some() || estimator.is_one(unit.vm) {
                unit.crowd.sum * remote(unit.vcpus[0])
            } else {
                let demand = |vcpu| unit::planned_demand(host.snapshot, vm, vcpu);
                unit.vcpus.iter().map(|vcpu| demand(*vcpu) * remote(*vcpu)).sum()
            };
            lost / 1000 * REMOTE.0 / 1000
        };
        let free = host.free_memory();
        let mut memory = Vec::with_capacity(units.len() * host.places.len());
        for unit in units {
            let vm = &host.snapshot.vms[unit.vm];
            let its = unit.memory(vm);
            let total = its.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
            memory.extend((0..host.places.len()).map(|place| {
                let id = host.places[place].id;
                let away = total.saturating_sub(its.get(&id).map_or(0, |bytes| bytes.0));
                let room = free.iter().any(|(node, free)| *node == id && *free >= away);
                let follows = room && unit.memory_may_move(vm, &std::iter::once(id).collect());
                MemoryCost { remote: on(unit, place), moving: moving(away), follows }
            }));
        }
        let other = host.other / host.places.len().max(1) as u64;
        Self { host, spots, units, fixed, memory, other }
    }

    /// A plan that leaves units with `Some` where that says and chooses for the others.
    pub(super) fn complete(&self, given: &[Option<Spot>]) -> Plan {
        let mut loads = self.loads();
        let mut plan: Plan = self.units.iter().map(|unit| unit.wide).collect();
        for (index, spot) in given.iter().enumerate() {
            if let Some(spot) = spot {
                plan[index] = *spot;
                self.put(&mut loads, index, *spot);
            }
        }
        let mut open: Vec<usize> =
            (0..given.len()).filter(|index| given[*index].is_none()).collect();
        open.sort_by_key(|index| (Reverse(self.units[*index].crowd.sum), *index));
        for index in &open {
            plan[*index] = self.best(&loads, *index, None, |_, _| 0);
            self.put(&mut loads, *index, plan[*index]);
        }
        self.pass(&mut loads, &mut plan, &open, |_, _| 0);
        plan
    }

    /// A plan in which units leave their spot only where that saves [`MOVE_PAYS`] of their demand,
    /// and any of it where they were left wide.
    pub(super) fn relieve(&self, start: &Plan) -> Plan {
        let mut loads = self.loads();
        for (index, spot) in start.iter().enumerate() {
            self.put(&mut loads, index, *spot);
        }
        let mut order: Vec<usize> = (0..start.len()).collect();
        order.sort_by_key(|index| (Reverse(self.units[*index].crowd.sum), *index));
        let mut plan = start.clone();
        self.pass(&mut loads, &mut plan, &order, |index, spot| {
            let moves = spot != start[index] && start[index] != self.units[index].wide;
            if moves { self.units[index].crowd.sum * MOVE_PAYS / 1000 } else { 0 }
        });
        plan
    }

    /// A plan in which units that were left wide have the spot that is best once their memory has
    /// followed them there.
    pub(super) fn narrow(&self, start: &Plan) -> Plan {
        let mut loads = self.loads();
        for (index, spot) in start.iter().enumerate() {
            self.put(&mut loads, index, *spot);
        }
        let is_wide = |index: &usize| start[*index] == self.units[*index].wide;
        let mut order: Vec<usize> = (0..start.len()).filter(is_wide).collect();
        order.sort_by_key(|index| (Reverse(self.units[*index].crowd.sum), *index));
        let mut plan = start.clone();
        self.pass(&mut loads, &mut plan, &order, |index, spot| {
            let most = self.memory_of(index).iter().map(|cost| cost.remote).max();
            most.unwrap_or(0).saturating_sub(self.follows(index, spot))
        });
        plan
    }

    /// What remote memory costs a unit at first that it will have followed to this spot.
    fn follows(&self, index: usize, spot: Spot) -> u64 {
        match *self.spots.places(spot) {
            [place] if spot != self.units[index].wide => {
                let cost = self.memory_of(index)[place];
                if cost.follows { cost.remote } else { 0 }
            }
            _ => 0,
        }
    }

    /// By place.
    fn memory_of(&self, index: usize) -> &[MemoryCost] {
        let places = self.host.places.len();
        &self.memory[index * places..][..places]
    }

    /// Loads before any unit is placed.
    fn loads(&self) -> Loads {
        let place = |place: usize| (self.fixed[place], self.cost(self.fixed[place], place));
        let places = (0..self.fixed.len()).map(place).collect();
        let (units, most) = (self.units.len(), self.host.places.len());
        Loads { places, spots: vec![None; units], parts: vec![Crowd::default(); units * most] }
    }

    /// Lets each unit of `order` change its mind, a few times; `more` is what a spot costs a unit
    /// besides.
    fn pass(
        &self,
        loads: &mut Loads,
        plan: &mut Plan,
        order: &[usize],
        more: impl Fn(usize, Spot) -> u64,
    ) {
        for _ in 0..PASSES {
            let mut moved = false;
            for index in order {
                self.take(loads, *index);
                let spot = self.best(loads, *index, Some(plan[*index]), &more);
                moved |= spot != plan[*index];
                plan[*index] = spot;
                self.put(loads, *index, spot);
            }
            if !moved {
                break;
            }
        }
    }

    /// The cheapest option; on a tie `now`, then the earliest.
    fn best(
        &self,
        loads: &Loads,
        index: usize,
        now: Option<Spot>,
        more: impl Fn(usize, Spot) -> u64,
    ) -> Spot {
        let unit = &self.units[index];
        let mut best = (u64::MAX, unit.wide);
        for spot in now.iter().chain(unit.options.iter().filter(|spot| now != Some(**spot))) {
            let cost = self.price(loads, index, *spot) + more(index, *spot);
            if cost < best.0 {
                best = (cost, *spot);
            }
        }
        best.1
    }

    /// CPU time lost by placing a unit there: its own and what it makes others lose.
    fn price(&self, loads: &Loads, index: usize, spot: Spot) -> u64 {
        let unit = &self.units[index];
        let memory = self.memory_of(index);
        let more = |place: usize, part: Crowd| {
            let (before, cost) = loads.places[place];
            self.cost(before.plus(part), place).saturating_sub(cost)
        };
        let moves = spot != unit.wide;
        if let [place] = *self.spots.places(spot) {
            let MemoryCost { remote, moving, .. } = memory[place];
            return more(place, unit.crowd) + remote + if moves { moving } else { 0 };
        }
        let mut sum = 0;
        self.for_parts(loads, index, spot, |_, place, part, weight, whole| {
            let MemoryCost { remote, moving, .. } = memory[place];
            sum += more(place, part) + remote * weight / whole;
            if moves {
                sum += moving * weight / whole;
            }
        });
        sum
    }

    fn put(&self, loads: &mut Loads, index: usize, spot: Spot) {
        let start = index * self.host.places.len();
        // All parts before the first is added: they go by the room there is without the unit.
        let mut parts = std::mem::take(&mut loads.parts);
        self.for_parts(loads, index, spot, |k, _, part, _, _| parts[start + k] = part);
        loads.parts = parts;
        for (k, place) in self.spots.places(spot).iter().enumerate() {
            let crowd = loads.places[*place].0.plus(loads.parts[start + k]);
            loads.places[*place] = (crowd, self.cost(crowd, *place));
        }
        loads.spots[index] = Some(spot);
    }

    fn take(&self, loads: &mut Loads, index: usize) {
        let Some(spot) = loads.spots[index].take() else { return };
        let start = index * self.host.places.len();
        for (k, place) in self.spots.places(spot).iter().enumerate() {
            let crowd = loads.places[*place].0.minus(loads.parts[start + k]);
            loads.places[*place] = (crowd, self.cost(crowd, *place));
        }
    }

    /// How the kernel would divide a unit over the nodes of a spot: by the room they have. Calls
    /// back with the number of the place in the spot, place, part, and the weight of the part in the
    /// whole.
    fn for_parts(
        &self,
        loads: &Loads,
        index: usize,
        spot: Spot,
        mut each: impl FnMut(usize, usize, Crowd, u64, u64),
    ) {
        let crowd = self.units[index].crowd;
        let places = self.spots.places(spot);
        if let [place] = places {
            return each(0, *place, crowd, 1, 1);
        }
        let room = |place: &usize| {
            let cores = self.host.places[*place].cores * 1000;
            cores.saturating_sub(loads.places[*place].0.sum).max(cores / 16)
        };
        let whole: u64 = places.iter().map(room).sum();
        for (k, place) in places.iter().enumerate() {
            let weight = room(place);
            each(k, *place, crowd.part(weight, whole), weight, whole);
        }
    }

    fn cost(&self, crowd: Crowd, place: usize) -> u64 {
        crowd.cost(&self.host.places[place], self.other)
    }

    /// How much of a unit's memory cost the spot saves against leaving it wide, milli.
    pub(super) fn worth(&self, index: usize, spot: Spot) -> u64 {
        self.mean_remote(index, self.units[index].wide)
            .saturating_sub(self.mean_remote(index, spot))
    }

    /// The same when its memory has followed it there, less what moving that costs.
    pub(super) fn worth_in_time(&self, index: usize, spot: Spot) -> u64 {
        let moving = match *self.spots.places(spot) {
            [place] => self.memory_of(index)[place].moving,
            _ => 0,
        };
        let there = self.mean_remote(index, spot).saturating_sub(self.follows(index, spot));
        self.mean_remote(index, self.units[index].wide).saturating_sub(there + moving)
    }

    fn mean_remote(&self, index: usize, spot: Spot) -> u64 {
        let (places, memory) = (self.spots.places(spot), self.memory_of(index));
        let sum: u64 = places.iter().map(|place| memory[*place].remote).sum();
        sum / places.len().max(1) as u64
    }
}

/// What bringing this many bytes to a place costs, per second of the horizon.
fn moving(bytes: u64) -> u64 {
    (bytes >> 20).saturating_mul(MOVE_PER_GIB) >> 10
}
