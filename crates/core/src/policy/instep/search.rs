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

/// Prices in a pass at most: on hosts beyond that only the emptiest cache of each node is looked at, in two
/// passes without swaps, of which more would save a thousandth.
const PRICES: usize = 20_000;

/// Prices of a decision at most to explore with.
const EXPLORED: usize = 40_000;

/// With how many of the units next to it in order of demand a unit tries to swap.
const SWAPS: usize = 16;

/// Swaps tried in a pass at most, but for two of each unit.
const SWAPPED: usize = 4_000;

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
    // What is in force does not change for plans that only a longer search would find, and on a large
    // host that search would find little in its time.
    let explores = !new.is_empty() && search.prices * units.len() <= EXPLORED;
    search.add(&new);
    search.settle(&order);
    if explores {
        search.explore(&order);
    }
}

/// The spot where a unit that is not placed would cost least if it were not on `spot`: on other nodes if
/// that is possible.
pub(super) fn second_best(plan: &mut Plan, unit: usize, spot: Spot) -> Option<Spot> {
    let areas = &plan.spots.areas;
    let search = Search { prices: 0, spent: Cell::new(0), plan };
    let mut others = search.candidates(unit);
    others.retain(|other| *other != spot);
    let price =
        |other: &Spot| (areas[*other].nodes == areas[spot].nodes, search.plan.price(unit, *other));
    others.into_iter().min_by_key(price)
}

struct Search<'p, 'a> {
    plan: &'p mut Plan<'a>,
    /// Prices of a pass over all units.
    prices: usize,
    /// Prices looked at so far.
    spent: Cell<usize>,
}

impl<'p, 'a> Search<'p, 'a> {
    fn new(plan: &'p mut Plan<'a>) -> Self {
        let prices: usize = plan.units.iter().map(|unit| unit.options.all.len()).sum();
        plan.is_large = prices > PRICES;
        Self { plan, prices, spent: Cell::new(0) }
    }

    /// Moves and swaps units until nothing is gained by it.
    fn settle(&mut self, order: &[usize]) {
        let (passes, swaps) = if self.plan.is_large { (2, false) } else { (PASSES, true) };
        for _ in 0..passes {
            let moved = order.iter().filter(|unit| self.move_one(**unit)).count();
            if moved == 0 && !(swaps && self.swap_some(order)) {
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
    /// [`EXPLORED`] prices were looked at: on a small host this finds what no single change does.
    fn explore(&mut self, order: &[usize]) {
        let mut best = self.loss();
        let changes = |unit: &usize| {
            let spots = self.plan.units[*unit].options.all.iter();
            spots.map(|spot| (*unit, *spot)).collect::<Vec<_>>()
        };
        let changes: Vec<(usize, Spot)> = order.iter().flat_map(changes).collect();
        let mut since = 0;
        for (unit, spot) in changes.iter().cycle() {
            if since > changes.len() || self.spent.get() > EXPLORED {
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
        if self.plan.is_large {
            spots.append(&mut self.emptiest(unit));
        } else {
            spots.extend(&own.options.all);
        }
        spots
    }

    /// The narrowest spot that begins with the emptiest cell of each node, and the wider ones of the
    /// emptiest node.
    fn emptiest(&self, unit: usize) -> Vec<Spot> {
        let (plan, options) = (&*self.plan, &self.plan.units[unit].options);
        let mut spots = Vec::with_capacity(options.nodes.len() + 4);
        let none: &[Spot] = &[];
        let mut best = (i64::MAX, none, none);
        for (place, nodes) in &options.nodes {
            let cells = plan.host.places[*place].cells.clone();
            let fits = |cell: &usize| !options.caches[*cell].is_empty();
            let least = cells.clone().filter(fits).min_by_key(|cell| plan.used(*cell));
            let caches = least.map_or(none, |cell| &options.caches[cell]);
            let (first, wider) = caches.split_first().map_or((None, none), |(a, b)| (Some(a), b));
            spots.extend(first.or(nodes.first()));
            let mean = cells.clone().map(|cell| plan.used(cell)).sum::<i64>() / cells.len() as i64;
            if mean < best.0 {
                best = (mean, wider, nodes);
            }
        }
        spots.extend(best.1.iter().chain(best.2));
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
        let next = (SWAPPED / order.len().max(1)).clamp(2, SWAPS);
        for (at, first) in order.iter().enumerate() {
            for second in order[at + 1..].iter().take(next) {
                swapped |= self.swap(*first, *second);
            }
        }
        swapped
    }

    /// Swaps the spots of two units on one cell each if that saves something.
    fn swap(&mut self, first: usize, second: usize) -> bool {
        let (units, at) = (self.plan.units, &self.plan.state.at);
        let (Some(here), Some(there)) = (at[first], at[second]) else { return false };
        if here == there {
            return false;
        }
        self.spent.set(self.spent.get() + 2);
        let price = self.plan.swap_price((first, here), (second, there));
        let may = |unit: usize, spot: Spot| units[unit].options.all.contains(&spot);
        if price.is_none_or(|price| price >= 0) || !may(first, there) || !may(second, here) {
            return false;
        }
        self.plan.take(first);
        self.plan.take(second);
        let more = self.noise(first, there) + self.noise(second, here);
        let noise = more - self.noise(first, here) - self.noise(second, there);
        let better = price.is_some_and(|price| price + noise < 0);
        let (first_to, second_to) = if better { (there, here) } else { (here, there) };
        self.plan.put(first, first_to);
        self.plan.put(second, second_to);
        better
    }
}
