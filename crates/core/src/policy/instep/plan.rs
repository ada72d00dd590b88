//! The objective: the CPU time that VMs are predicted to lose, in millionths of a CPU. What a VM loses by its place
//! is weighted by its share of the host; what all on a core or a cache lose is not.
//!
//! ```text
//! loss = remote memory + moving it + devices + siblings in different caches   of each VM on its spot
//!      + shared cores + waiting for a CPU + shared cache                      of each cell by its load
//! ```
//! Knows nothing of how a plan is found.

use super::cells::{Host, Load, Spot};
use super::spots::{Area, Spots};
use super::unit::Unit;

/// CPU time lost by a VM whose siblings are spread over very many last-level caches, in thousandths of
/// its demand: the mean of what Linux' cache-aware scheduling gained on three processors with several, 44 %
/// (EPYC Genoa), 10 % (Sapphire Rapids) and 0 % (Milan; Chen Yu and Tim Chen, linux-kernel 2025).
const SPREAD: i64 = 180;

/// A change must still pay with the loads this many deviations off: in three of a thousand measurements they are more.
const DEVIATIONS: i64 = 3;

/// The terms of the objective in the order of [`Saved`](crate::reason::Saved).
pub(super) type Terms = [i64; 7];

/// Units on spots, and what that loses.
pub(super) struct Plan<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) spots: &'a Spots,
    pub(super) units: &'a [Unit],
    /// Where each unit is taken to be in force.
    pub(super) current: Vec<Option<Spot>>,
    pub(super) state: State,
}

/// Where units are.
#[derive(Clone)]
pub(super) struct State {
    /// The spot of each unit, if it is placed.
    pub(super) at: Vec<Option<Spot>>,
    /// How each unit is divided over the cells of its spot, in thousandths.
    shares: Vec<Vec<(usize, i64)>>,
    /// By cell, and what each loses with it.
    loads: Vec<Load>,
    costs: Vec<[i64; 3]>,
}

impl<'a> Plan<'a> {
    /// Nothing is placed but VMs that are left alone, whose loads are `fixed`.
    pub(super) fn new(
        host: &'a Host<'a>,
        spots: &'a Spots,
        units: &'a [Unit],
        fixed: Vec<Load>,
    ) -> Self {
        let costs = host.cells.iter().zip(&fixed).map(|(cell, load)| cell.cost(load)).collect();
        let (at, shares) = (vec![None; units.len()], vec![Vec::new(); units.len()]);
        let state = State { at, shares, loads: fixed, costs };
        let current = units.iter().map(|unit| unit.current).collect();
        Self { host, spots, units, current, state }
    }

    /// The load of a spot, in thousandths of what its CPUs can do.
    fn used(&self, spot: Spot) -> i64 {
        let area = &self.spots.areas[spot];
        area.cells.iter().map(|cell| self.state.loads[*cell].sum).sum::<i64>() * 1000
            / area.capacity
    }

    /// The spots to look at for a unit: where it is in force, and of those that are alike the emptiest.
    pub(super) fn candidates(&self, unit: usize) -> impl Iterator<Item = Spot> + '_ {
        let emptiest = |alike: &Vec<Spot>| match alike[..] {
            [only] => Some(only),
            _ => alike.iter().copied().min_by_key(|spot| self.used(*spot)),
        };
        let found = self.units[unit].options.iter().filter_map(emptiest);
        self.current[unit].into_iter().chain(found)
    }

    /// The demand of VMs on each node, milli.
    pub(super) fn demands(&self) -> Vec<i64> {
        let others = self.host.loads();
        let demand = |cell: usize| self.state.loads[cell].sum - others[cell].sum;
        let places = self.host.places.iter();
        places.map(|place| place.cells.clone().map(demand).sum()).collect()
    }

    /// How many cells a spot has.
    pub(super) fn cells_of(&self, spot: Spot) -> usize {
        self.spots.areas[spot].cells.len()
    }

    /// The spot where a unit is.
    pub(super) fn area(&self, unit: usize) -> &'a Area {
        &self.spots.areas[self.state.at[unit].unwrap_or(self.units[unit].wide)]
    }

    /// The demand of a unit by node, milli.
    pub(super) fn parts(&self, unit: usize) -> impl Iterator<Item = (usize, i64)> + '_ {
        let sum = self.units[unit].load.sum;
        self.state.shares[unit]
            .iter()
            .map(move |(cell, share)| (self.host.cells[*cell].place, sum * share / 1000))
    }

    /// Puts a unit on a spot, divided over its cells as the kernel would.
    pub(super) fn put(&mut self, unit: usize, spot: Spot) {
        let mut shares = std::mem::take(&mut self.state.shares[unit]);
        shares.clear();
        shares.extend(self.shares_on(unit, spot));
        self.state.shares[unit] = shares;
        self.shift(unit, Load::plus);
        self.state.at[unit] = Some(spot);
    }

    /// Takes a unit off its spot, which is returned.
    pub(super) fn take(&mut self, unit: usize) -> Option<Spot> {
        let spot = self.state.at[unit].take()?;
        self.shift(unit, Load::minus);
        Some(spot)
    }

    fn shift(&mut self, unit: usize, change: fn(Load, &Load) -> Load) {
        for (cell, share) in &self.state.shares[unit] {
            let load = change(self.state.loads[*cell], &self.units[unit].load.part(*share));
            self.state.loads[*cell] = load;
            self.state.costs[*cell] = self.host.cells[*cell].cost(&load);
        }
    }

    /// The cells of a spot, and how a unit that is not placed would be divided over them, in
    /// thousandths: the kernel runs more of it where others leave more free, and some everywhere.
    fn shares_on(&self, unit: usize, spot: Spot) -> impl Iterator<Item = (usize, i64)> + '_ {
        let area = &self.spots.areas[spot];
        let (cells, all) = (&area.cells, area.capacity);
        // What it fills is free for it, too; half of it for one that may be nowhere else, which gives way to others.
        let own = &self.units[unit];
        let own = own.load.sum / if own.options.len() == 1 { 2 } else { 1 };
        let free = move |cell: usize| self.free(cell) + own * self.host.cells[cell].capacity / all;
        let left = match cells[..] {
            [_] => 0,
            _ => cells.iter().map(|cell| free(*cell)).sum::<i64>().max(1),
        };
        let share = move |cell| if left == 0 { 1000 } else { free(cell) * 1000 / left };
        cells.iter().map(move |cell| (*cell, share(*cell)))
    }

    /// What the load of a cell leaves free of it, milli.
    fn free(&self, cell: usize) -> i64 {
        (self.host.cells[cell].capacity - self.state.loads[cell].sum).max(0)
    }

    /// What all lose more when a unit that is not placed is put on a spot, by terms, if the loads there are so
    /// many thousandths off; perhaps only a part of it where that is `limit` or more.
    pub(super) fn terms(&self, unit: usize, spot: Spot, off: i64, limit: i64) -> Terms {
        let own = &self.units[unit];
        let [remote, moving, devices] = own.near[self.spots.areas[spot].nodes];
        let mut terms = [remote, moving, devices, 0, 0, 0, 0];
        let mut sum = remote + moving + devices;
        if sum < limit && self.cells_of(spot) > 1 {
            terms[6] = self.spread(unit, self.shares_on(unit, spot));
            sum += terms[6];
        }
        for (cell, share) in self.shares_on(unit, spot) {
            if sum >= limit {
                break;
            }
            let part = own.load.part(share);
            let (mut load, mut before) = (self.state.loads[cell], self.state.costs[cell]);
            if off != 0 {
                load = load.part((1000 + off).max(0));
                before = self.host.cells[cell].cost(&load);
            }
            let after = self.host.cells[cell].cost(&load.plus(&part));
            for kind in 0..3 {
                terms[3 + kind] += after[kind] - before[kind];
                sum += after[kind] - before[kind];
            }
        }
        terms
    }

    /// What all lose more when a unit that is not placed is put on a spot, or anything beyond `limit`. Noise speaks
    /// for the spot in force: its own demand, and loads that are lower there and higher elsewhere.
    pub(super) fn price(&self, unit: usize, spot: Spot, limit: i64) -> i64 {
        let own = &self.units[unit];
        let sum = |off| self.terms(unit, spot, off, limit).iter().sum::<i64>();
        match self.current[unit] {
            None => sum(0),
            Some(current) if current == spot => sum(-DEVIATIONS * own.noise),
            // What it loses itself counts by its weight, what all in a cell lose does not.
            Some(_) => {
                sum(DEVIATIONS * own.noise) + own.load.sum.max(own.weighted / 1000) * own.noise
            }
        }
    }

    /// What the plan loses in all, with every unit placed.
    pub(super) fn loss(&self) -> i64 {
        let of = |(unit, spot): (usize, &Option<Spot>)| {
            let near = self.units[unit].near[self.spots.areas[(*spot)?].nodes];
            let own = near.iter().sum::<i64>()
                + self.spread(unit, self.state.shares[unit].iter().copied());
            Some(own)
        };
        let own = self.state.at.iter().enumerate().filter_map(of).sum::<i64>();
        own + self.state.costs.iter().flatten().sum::<i64>()
    }

    /// What a unit loses by siblings in different caches, divided over cells like this.
    fn spread(&self, unit: usize, shares: impl Iterator<Item = (usize, i64)>) -> i64 {
        let together: i64 = shares.map(|(_, share)| share * share / 1000).sum();
        self.units[unit].weighted / 1000 * SPREAD / 1000 * (1000 - together)
    }
}
