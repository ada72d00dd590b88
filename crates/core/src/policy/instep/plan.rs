//! The objective: the CPU time that VMs are predicted to lose, in millionths of a CPU, each weighted by
//! its share of the host.
//!
//! ```text
//! loss = remote memory + moving it + siblings in different caches        of each VM on its spot
//!      + shared cores + waiting for a CPU + shared cache                 of each cell by its load
//! ```
//! Memory is where it will be: what may follow a VM to its home does, and costs what moving it takes.
//! Knows nothing of how a plan is found.

use super::cells::{Cost, Host, Load, Spot};
use super::memory::{MemoryCost, MemoryCosts};
use super::spots::{Area, Spots};
use super::unit::Unit;

/// CPU time lost by a VM whose siblings are spread over very many last-level caches, in thousandths of
/// its demand. An assumption between what cache-aware scheduling gains: 44 % of the run time of ChaCha20
/// on EPYC Genoa, 10 % on Sapphire Rapids, nothing on Milan (Chen Yu and Tim Chen, linux-kernel 2025).
const SPREAD: i64 = 200;

/// A change must still pay with each load this many deviations off. Two measurements differ by noise,
/// the one when a VM was placed and that of now.
const DEVIATIONS: i64 = 2;

/// The terms of the objective, in millionths of a CPU: what one plan loses, or saves against another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) remote: i64,
    pub(super) moving: i64,
    pub(super) spread: i64,
    pub(super) on_cells: Cost,
}

impl Terms {
    pub(super) fn sum(&self) -> i64 {
        self.remote + self.moving + self.spread + self.on_cells.sum()
    }

    /// These and `times` the others.
    pub(super) fn and(&self, other: &Terms, times: i64) -> Terms {
        Terms {
            remote: self.remote + other.remote * times,
            moving: self.moving + other.moving * times,
            spread: self.spread + other.spread * times,
            on_cells: Cost {
                cores: self.on_cells.cores + other.on_cells.cores * times,
                waiting: self.on_cells.waiting + other.on_cells.waiting * times,
                cache: self.on_cells.cache + other.on_cells.cache * times,
            },
        }
    }
}

/// Units on spots, and what that loses.
pub(super) struct Plan<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) spots: &'a Spots,
    pub(super) units: &'a [Unit],
    memory: MemoryCosts,
    pub(super) state: State,
    /// Whether there is no time to look at all options of all units.
    pub(super) is_large: bool,
}

/// Where units are.
#[derive(Clone)]
pub(super) struct State {
    /// The spot of each unit, if it is placed.
    pub(super) at: Vec<Option<Spot>>,
    /// How each unit is divided over the cells of its spot, in thousandths.
    shares: Vec<Vec<i64>>,
    /// By cell.
    loads: Vec<Load>,
    /// What each cell loses with its load.
    costs: Vec<i64>,
    /// Each load in thousandths of what the cell can do.
    used: Vec<i64>,
}

impl<'a> Plan<'a> {
    /// Nothing is placed but VMs that are left alone, whose loads are `fixed`.
    pub(super) fn new(
        host: &'a Host<'a>,
        spots: &'a Spots,
        units: &'a [Unit],
        fixed: Vec<Load>,
    ) -> Self {
        let memory = MemoryCosts::new(host, spots, units);
        let costs = host.cells.iter().zip(&fixed).map(|(cell, load)| cell.cost(load).sum());
        let costs = costs.collect();
        let used = host.cells.iter().zip(&fixed);
        let used = used.map(|(cell, load)| load.sum * 1000 / cell.capacity as i64).collect();
        let (at, shares) = (vec![None; units.len()], vec![Vec::new(); units.len()]);
        Self {
            host,
            spots,
            units,
            memory,
            state: State { at, shares, loads: fixed, costs, used },
            is_large: false,
        }
    }

    /// The load of a cell, in thousandths of what its CPUs can do.
    pub(super) fn used(&self, cell: usize) -> i64 {
        self.state.used[cell]
    }

    /// The demand on a node, milli.
    pub(super) fn demand_on(&self, place: usize) -> i64 {
        self.host.places[place].cells.clone().map(|cell| self.state.loads[cell].sum).sum()
    }

    /// The cores of a node.
    pub(super) fn cores_of(&self, place: usize) -> i64 {
        self.host.places[place].cells.clone().map(|cell| self.host.cells[cell].cores as i64).sum()
    }

    /// How many cells a spot has.
    pub(super) fn cells_of(&self, spot: Spot) -> usize {
        self.spots.areas[spot].cells.len()
    }

    /// The spot where a unit is.
    pub(super) fn area(&self, unit: usize) -> &'a Area {
        &self.spots.areas[self.state.at[unit].unwrap_or(self.units[unit].wide)]
    }

    /// Puts a unit on a spot, divided over its cells as the kernel would.
    pub(super) fn put(&mut self, unit: usize, spot: Spot) {
        let mut shares = std::mem::take(&mut self.state.shares[unit]);
        shares.clear();
        shares.extend(self.shares_on(unit, spot).map(|(_, share)| share));
        self.state.shares[unit] = shares;
        self.shift(unit, spot, |load, part| load.plus(part));
        self.state.at[unit] = Some(spot);
    }

    /// Takes a unit off its spot, which is returned.
    pub(super) fn take(&mut self, unit: usize) -> Option<Spot> {
        let spot = self.state.at[unit].take()?;
        self.shift(unit, spot, |load, part| load.minus(part));
        Some(spot)
    }

    fn shift(&mut self, unit: usize, spot: Spot, change: impl Fn(Load, &Load) -> Load) {
        for (cell, share) in self.spots.areas[spot].cells.iter().zip(&self.state.shares[unit]) {
            let load = change(self.state.loads[*cell], &self.units[unit].load.part(*share));
            self.state.loads[*cell] = load;
            self.state.costs[*cell] = self.host.cells[*cell].cost(&load).sum();
            self.state.used[*cell] = load.sum * 1000 / self.host.cells[*cell].capacity as i64;
        }
    }

    /// Divides units on several cells anew over what those on one leave free, in their order.
    pub(super) fn divide(&mut self) {
        let several: Vec<(usize, Spot)> = (0..self.units.len())
            .filter_map(|unit| Some((unit, self.state.at[unit]?)))
            .filter(|(_, spot)| self.cells_of(*spot) > 1)
            .collect();
        several.iter().for_each(|(unit, _)| _ = self.take(*unit));
        several.iter().for_each(|(unit, spot)| self.put(*unit, *spot));
        for _ in 0..3 {
            for (unit, spot) in &several {
                self.take(*unit);
                self.put(*unit, *spot);
            }
        }
    }

    /// The cells of a spot, and how a unit that is not placed would be divided over them, in
    /// thousandths: the kernel runs more of it where others leave more free, and some everywhere.
    fn shares_on(&self, unit: usize, spot: Spot) -> impl Iterator<Item = (usize, i64)> + '_ {
        let cells = &self.spots.areas[spot].cells;
        let alone = cells.len() == 1;
        let capacity = |cell: usize| self.host.cells[cell].capacity as i64;
        // What it fills itself is free for it, too.
        let own = self.units[unit].load.sum;
        let (mut all, mut left) = (1, 1);
        let free = move |cell: usize, all: i64| {
            (capacity(cell) - self.state.loads[cell].sum).max(0) + own * capacity(cell) / all
        };
        if !alone {
            all = cells.iter().map(|cell| capacity(*cell)).sum();
            left = cells.iter().map(|cell| free(*cell, all)).sum::<i64>().max(1);
        }
        let share = move |cell| if alone { 1000 } else { free(cell, all) * 1000 / left };
        cells.iter().map(move |cell| (*cell, share(*cell)))
    }

    /// The cells where a unit is, and its parts on them, in thousandths.
    pub(super) fn parts(&self, unit: usize) -> impl Iterator<Item = (usize, i64)> + '_ {
        let cells = self.area(unit).cells.iter().copied();
        cells.zip(self.state.shares[unit].iter().copied())
    }

    /// What a unit loses on a spot by itself, divided over its cells like this.
    fn own(&self, unit: usize, spot: Spot, shares: impl Iterator<Item = i64>) -> Terms {
        let (area, load) = (&self.spots.areas[spot], &self.units[unit].load);
        let MemoryCost { remote, moving } = self.memory.of(unit, area.nodes);
        let spread = match area.cells[..] {
            [_] => 0,
            _ => 1000 - shares.map(|share| share * share / 1000).sum::<i64>(),
        };
        let spread = load.weighted / 1000 * SPREAD * spread / 1000;
        Terms { remote, moving, spread, on_cells: Cost::default() }
    }

    /// What all lose more when a unit that is not placed is put on a spot.
    pub(super) fn price(&self, unit: usize, spot: Spot) -> i64 {
        let own = self.own(unit, spot, self.shares_on(unit, spot).map(|(_, share)| share));
        let cells = self.shares_on(unit, spot).map(|(cell, share)| {
            let load = self.state.loads[cell].plus(&self.units[unit].load.part(share));
            self.host.cells[cell].cost(&load).sum() - self.state.costs[cell]
        });
        own.sum() + cells.sum::<i64>()
    }

    /// What all lose more when two units on one cell each swap their spots; `None` if one is on several.
    pub(super) fn swap_price(&self, first: (usize, Spot), second: (usize, Spot)) -> Option<i64> {
        let cell = |spot: Spot| match self.spots.areas[spot].cells[..] {
            [cell] => Some(cell),
            _ => None,
        };
        let (here, there) = (cell(first.1)?, cell(second.1)?);
        let own = |(unit, _): (usize, Spot), spot: Spot| {
            let MemoryCost { remote, moving } = self.memory.of(unit, self.spots.areas[spot].nodes);
            remote + moving
        };
        let memory = own(first, second.1) + own(second, first.1)
            - own(first, first.1)
            - own(second, second.1);
        let cost = |cell: usize, gone: usize, come: usize| {
            let load = self.state.loads[cell].minus(&self.units[gone].load);
            let load = load.plus(&self.units[come].load);
            self.host.cells[cell].cost(&load).sum() - self.state.costs[cell]
        };
        Some(memory + cost(here, first.0, second.0) + cost(there, second.0, first.0))
    }

    /// What all lose more when a unit that is not placed is put on a spot, by terms.
    pub(super) fn terms(&self, unit: usize, spot: Spot) -> Terms {
        let mut terms = self.own(unit, spot, self.shares_on(unit, spot).map(|(_, share)| share));
        for (cell, share) in self.shares_on(unit, spot) {
            let before = self.host.cells[cell].cost(&self.state.loads[cell]);
            let load = self.state.loads[cell].plus(&self.units[unit].load.part(share));
            let after = self.host.cells[cell].cost(&load);
            terms.on_cells.cores += after.cores - before.cores;
            terms.on_cells.waiting += after.waiting - before.waiting;
            terms.on_cells.cache += after.cache - before.cache;
        }
        terms
    }

    /// What a change of a unit that is not placed must save to be no work of noise, in millionths of a
    /// CPU: what its own demand is off, and by how much less the change would save with loads as much
    /// lower where it was, and as much higher where it would be, as noise makes them.
    pub(super) fn noise(&self, unit: usize, from: Spot, to: Spot) -> i64 {
        let own = &self.units[unit];
        let off = |spot: Spot, other: Spot, sign: i64| {
            let other = &self.spots.areas[other].cells;
            let only = self.shares_on(unit, spot).filter(|(cell, _)| !other.contains(cell));
            let less = only.map(|(cell, share)| {
                let (load, part) = (self.state.loads[cell], own.load.part(share));
                let noise = (load.noise + part.noise).isqrt() * DEVIATIONS * sign;
                let cell = &self.host.cells[cell];
                let more = |load: Load| cell.cost(&load.plus(&part)).sum() - cell.cost(&load).sum();
                (more(load) - more(load.shifted(noise))).abs()
            });
            less.sum::<i64>()
        };
        off(from, to, -1) + off(to, from, 1) + own.load.weighted / 1000 * own.noise
    }

    /// What the plan loses in all, with every unit placed.
    pub(super) fn loss(&self) -> i64 {
        let own = |(unit, spot): (usize, &Option<Spot>)| {
            Some(self.own(unit, (*spot)?, self.state.shares[unit].iter().copied()).sum())
        };
        let own: i64 = self.state.at.iter().enumerate().filter_map(own).sum();
        own + self.state.costs.iter().sum::<i64>()
    }
}
