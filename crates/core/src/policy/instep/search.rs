//! Finds a plan that loses little: what is in force stays, new units are added greedily, the largest
//! first, and then single units change places, or two swap, as long as that saves something.
//!
//! A unit leaves the spot where it is in force only if the change saves more than noise could make it
//! seem to ([`Plan::noise`]). Without new units and with equal loads, what comes out is what went in.

use super::cells::Spot;
use super::plan::Plan;
use std::cell::Cell;
use std::cmp::Reverse;

/// Passes over all units at most. Nearly all settle in three; the bound keeps the search O(n log n).
const PASSES: usize = 12;

/// Prices of a decision at most, in each pass: on hosts beyond that only the emptiest caches of each
/// node are looked at.
const PRICES: usize = 20_000;

/// Prices of a decision at most to explore with.
const EXPLORED: usize = 40_000;

/// With how many of the units next to it in order of demand a unit tries to swap.
const SWAPS: usize = 16;

/// Puts every unit of the plan somewhere.
pub(super) fn search(plan: &mut Plan) {
    let units = plan.units;
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|unit| (Reverse(units[*unit].load.sum), *unit));
    // Those on one cell first: others are divided over what they leave free.
    for alone in [true, false] {
        for unit in &order {
            let current = units[*unit].current;
            if let Some(spot) = current.filter(|spot| (plan.cells_of(*spot) == 1) == alone) {
                plan.put(*unit, spot);
            }
        }
    }
    let new: Vec<usize> =
        order.iter().copied().filter(|unit| units[*unit].current.is_none()).collect();
    let mut search = Search::new(plan);
    let before = search.plan.state.clone();
    search.add(&new);
    search.settle(&order);
    // What is in force does not change for plans that only a longer search would find.
    if new.is_empty() {
        return;
    }
    let first = search.explore(&order, EXPLORED / 2);
    let found = std::mem::replace(&mut search.plan.state, before);
    search.add(&new.iter().rev().copied().collect::<Vec<_>>());
    search.settle(&order);
    if search.explore(&order, EXPLORED) >= first {
        search.plan.state = found;
    }
}

/// The spot where a unit that is not placed would cost least if it were not on `spot`: on other nodes if
/// that is possible.
pub(super) fn second_best(plan: &mut Plan, unit: usize, spot: Spot) -> Option<Spot> {
    let areas = &plan.spots.areas;
    let search = Search::new(plan);
    let mut others = search.candidates(unit);
    others.retain(|other| *other != spot);
    let price =
        |other: &Spot| (areas[*other].nodes == areas[spot].nodes, search.plan.price(unit, *other));
    others.into_iter().min_by_key(price)
}

struct Search<'p, 'a> {
    plan: &'p mut Plan<'a>,
    /// Prices looked at so far.
    spent: Cell<usize>,
    /// Whether to look at the emptiest caches only.
    narrow: bool,
}

impl<'p, 'a> Search<'p, 'a> {
    fn new(plan: &'p mut Plan<'a>) -> Self {
        let prices: usize = plan.units.iter().map(|unit| unit.options.all.len()).sum();
        Self { plan, spent: Cell::new(0), narrow: prices > PRICES }
    }

    /// Moves and swaps units until nothing is gained by it.
    fn settle(&mut self, order: &[usize]) {
        for _ in 0..PASSES {
            let moved = order.iter().filter(|unit| self.move_one(**unit)).count();
            if moved == 0 && !self.swap_some(order) {
                break;
            }
        }
    }

    /// Puts units one by one where each costs least.
    fn add(&mut self, units: &[usize]) {
        for unit in units {
            let spot = self.best(*unit).0;
            self.plan.put(*unit, spot);
        }
    }

    /// Puts single units elsewhere, lets all others find new places, and keeps what then loses less, until
    /// `budget` prices were looked at: on a small host this finds what no single change does. What the
    /// plan loses then.
    fn explore(&mut self, order: &[usize], budget: usize) -> i64 {
        let mut best = self.loss();
        let changes = |unit: &usize| {
            let spots = self.plan.units[*unit].options.all.iter();
            spots.map(|spot| (*unit, *spot)).collect::<Vec<_>>()
        };
        let changes: Vec<(usize, Spot)> = order.iter().flat_map(changes).collect();
        let mut since = 0;
        for (unit, spot) in changes.iter().cycle() {
            if since > changes.len() || self.spent.get() > budget {
                break;
            }
            let before = self.plan.state.clone();
            self.force(order, *unit, *spot);
            let loss = self.loss();
            since += 1;
            if loss < best {
                (best, since) = (loss, 0);
            } else {
                self.plan.state = before;
            }
        }
        best
    }

    /// Puts a unit on a spot, and lets all others find new places.
    fn force(&mut self, order: &[usize], unit: usize, spot: Spot) {
        self.plan.take(unit);
        self.plan.put(unit, spot);
        for _ in 0..2 {
            let others = order.iter().filter(|other| **other != unit);
            others.for_each(|other| _ = self.move_one(*other));
        }
        self.settle(order);
    }

    /// What the plan loses, and what is asked for besides because of noise.
    fn loss(&mut self) -> i64 {
        self.plan.divide();
        let mut noise = 0;
        for (unit, own) in self.plan.units.iter().enumerate() {
            if let (Some(current), Some(spot)) = (own.current, self.plan.state.at[unit])
                && current != spot
            {
                self.plan.take(unit);
                noise += self.plan.noise(unit, current, spot);
                self.plan.put(unit, spot);
            }
        }
        self.plan.loss() + noise
    }

    /// Moves a unit where it costs least, if that is elsewhere.
    fn move_one(&mut self, unit: usize) -> bool {
        if let [only] = self.plan.units[unit].options.all[..]
            && self.plan.cells_of(only) == 1
        {
            return false;
        }
        let Some(now) = self.plan.take(unit) else { return false };
        let (mut spot, price) = self.best(unit);
        // On a tie it stays.
        if spot != now && price >= self.price(unit, now) {
            spot = now;
        }
        self.plan.put(unit, spot);
        spot != now
    }

    /// The spot on which a unit costs least, the earliest of equals.
    fn best(&self, unit: usize) -> (Spot, i64) {
        let mut best = (self.plan.units[unit].wide, i64::MAX);
        let candidates = self.candidates(unit);
        self.spent.set(self.spent.get() + candidates.len());
        for spot in candidates {
            // What is not cheaper without what noise adds is not cheaper with it.
            let price = self.plan.price(unit, spot);
            if price < best.1 {
                let price = price + self.noise(unit, spot);
                if price < best.1 {
                    best = (spot, price);
                }
            }
        }
        best
    }

    /// The spots to look at for a unit: where it is in force first.
    fn candidates(&self, unit: usize) -> Vec<Spot> {
        let own = &self.plan.units[unit];
        let mut spots: Vec<Spot> = own.current.into_iter().collect();
        if self.narrow {
            spots.append(&mut self.emptiest(unit));
        } else {
            spots.extend(&own.options.all);
        }
        spots
    }

    /// Spots that begin with the emptiest cell of each node, and the emptiest node.
    fn emptiest(&self, unit: usize) -> Vec<Spot> {
        let (plan, options) = (&*self.plan, &self.plan.units[unit].options);
        let mut spots = Vec::new();
        let mut best = (i64::MAX, &Vec::new());
        for (place, nodes) in &options.nodes {
            let cells = plan.host.places[*place].cells.clone();
            let (mut sum, mut least) = (0, (i64::MAX, None));
            for cell in cells {
                let used = plan.used(cell);
                sum += used;
                if used < least.0
                    && let Some(caches) = options.caches.get(&cell)
                {
                    least = (used, Some(caches));
                }
            }
            spots.extend(least.1.into_iter().flatten());
            let mean = sum / plan.host.places[*place].cells.len() as i64;
            if least.1.is_none() {
                spots.extend(nodes);
            } else if mean < best.0 {
                best = (mean, nodes);
            }
        }
        spots.extend(best.1);
        if spots.is_empty() {
            spots.extend(&options.all);
        }
        spots
    }

    fn price(&self, unit: usize, spot: Spot) -> i64 {
        self.plan.price(unit, spot) + self.noise(unit, spot)
    }

    /// What a spot must save against the one in force.
    fn noise(&self, unit: usize, spot: Spot) -> i64 {
        match self.plan.units[unit].current {
            Some(current) if current != spot => self.plan.noise(unit, current, spot),
            _ => 0,
        }
    }

    /// Lets units swap with others of about their demand.
    fn swap_some(&mut self, order: &[usize]) -> bool {
        let mut swapped = false;
        for (at, first) in order.iter().enumerate() {
            for second in order[at + 1..].iter().take(SWAPS) {
                swapped |= self.swap(*first, *second);
            }
        }
        swapped
    }

    /// Swaps the spots of two units if that saves something.
    fn swap(&mut self, first: usize, second: usize) -> bool {
        let (units, at) = (self.plan.units, &self.plan.state.at);
        let (Some(here), Some(there)) = (at[first], at[second]) else { return false };
        self.spent.set(self.spent.get() + 4);
        let may = |unit: usize, spot: Spot| units[unit].options.all.contains(&spot);
        if here == there || !may(first, there) || !may(second, here) {
            return false;
        }
        self.plan.take(first);
        self.plan.take(second);
        let before = self.both((first, here), (second, there));
        let after = self.both((first, there), (second, here));
        let better = after < before;
        let (first_to, second_to) = if better { (there, here) } else { (here, there) };
        self.plan.put(first, first_to);
        self.plan.put(second, second_to);
        better
    }

    /// What two units cost on these spots.
    fn both(&mut self, first: (usize, Spot), second: (usize, Spot)) -> i64 {
        let one = self.price(first.0, first.1);
        self.plan.put(first.0, first.1);
        let other = self.price(second.0, second.1);
        self.plan.take(first.0);
        one + other
    }
}
