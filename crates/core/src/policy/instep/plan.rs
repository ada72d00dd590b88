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
    /// Cost of memory per unit and place when all its demand is there, milli.
    remote: Vec<Vec<u64>>,
}

/// Loads on the places while a plan is made.
struct Loads {
    /// Load and its cost, by place.
    places: Vec<(Crowd, u64)>,
    /// What each placed unit put where.
    parts: Vec<Vec<(usize, Crowd)>>,
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
        let remote = units
            .iter()
            .map(|unit| (0..host.places.len()).map(|place| on(unit, place)).collect())
            .collect();
        Self { host, spots, units, fixed, remote }
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

    /// Loads before any unit is placed.
    fn loads(&self) -> Loads {
        let place = |place: usize| (self.fixed[place], self.cost(self.fixed[place], place));
        let places = (0..self.fixed.len()).map(place).collect();
        Loads { places, parts: vec![Vec::new(); self.units.len()] }
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
        for spot in now.iter().chain(&unit.options) {
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
        let mut sum = 0;
        self.for_parts(loads, index, spot, |place, part, weight, whole| {
            let (before, cost) = loads.places[place];
            sum += self.cost(before.plus(part), place).saturating_sub(cost);
            sum += self.remote[index][place] * weight / whole;
            if spot != unit.wide {
                sum += moving(self.host, unit, place) * weight / whole;
            }
        });
        sum
    }

    fn put(&self, loads: &mut Loads, index: usize, spot: Spot) {
        let mut parts = Vec::with_capacity(1);
        self.for_parts(loads, index, spot, |place, part, _, _| parts.push((place, part)));
        for (place, part) in &parts {
            let crowd = loads.places[*place].0.plus(*part);
            loads.places[*place] = (crowd, self.cost(crowd, *place));
        }
        loads.parts[index] = parts;
    }

    fn take(&self, loads: &mut Loads, index: usize) {
        for (place, part) in std::mem::take(&mut loads.parts[index]) {
            let crowd = loads.places[place].0.minus(part);
            loads.places[place] = (crowd, self.cost(crowd, place));
        }
    }

    /// How the kernel would divide a unit over the nodes of a spot: by the room they have. Calls
    /// back with place, part, and the weight of the part in the whole.
    fn for_parts(
        &self,
        loads: &Loads,
        index: usize,
        spot: Spot,
        mut each: impl FnMut(usize, Crowd, u64, u64),
    ) {
        let crowd = self.units[index].crowd;
        let places = self.spots.places(spot);
        if let [place] = places {
            return each(*place, crowd, 1, 1);
        }
        let room = |place: &usize| {
            let cores = self.host.places[*place].cores * 1000;
            cores.saturating_sub(loads.places[*place].0.sum).max(cores / 16)
        };
        let whole: u64 = places.iter().map(room).sum();
        for place in places {
            let weight = room(place);
            each(*place, crowd.part(weight, whole), weight, whole);
        }
    }

    fn cost(&self, crowd: Crowd, place: usize) -> u64 {
        let other = self.host.other / self.host.places.len() as u64;
        crowd.cost(&self.host.places[place], other)
    }

    /// How much of a unit's memory cost the spot saves against leaving it wide, milli.
    pub(super) fn worth(&self, index: usize, spot: Spot) -> u64 {
        let mean = |spot: Spot| {
            let places = self.spots.places(spot);
            let sum: u64 = places.iter().map(|place| self.remote[index][*place]).sum();
            sum / places.len().max(1) as u64
        };
        mean(self.units[index].wide).saturating_sub(mean(spot))
    }
}

/// What bringing the unit's memory to a place costs, per second of the horizon.
fn moving(host: &Host, unit: &Unit, place: usize) -> u64 {
    let memory = unit.memory(&host.snapshot.vms[unit.vm]);
    let total = memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
    let there = memory.get(&host.places[place].id).map_or(0, |bytes| bytes.0);
    (total.saturating_sub(there) >> 20).saturating_mul(MOVE_PER_GIB) >> 10
}
