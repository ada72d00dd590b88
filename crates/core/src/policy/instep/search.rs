//! Finds a plan that loses little: what is in force stays, new units are added greedily, the largest
//! first, and then single units change places as long as that saves something.
//!
//! A unit leaves the spot where it is in force only if the change saves more than noise could make it
//! seem to ([`Plan::price`]). Without new units and with equal loads, what comes out is what went in.

use super::cells::Spot;
use super::plan::Plan;
use std::cmp::Reverse;

/// Passes over all units at most. Nearly all settle in three; the bound keeps the search O(n log n).
const PASSES: usize = 12;

/// Changes that a decision explores times those that there are, and the most that there may be: more are not
/// worth their time.
const EXPLORED: usize = 10_000;
const MOST_EXPLORED: usize = 100;

/// Puts every unit of the plan somewhere.
pub(super) fn search(plan: &mut Plan) {
    let units = plan.units;
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|unit| (Reverse(units[*unit].load.sum), *unit));
    let before = plan.current.clone();
    // After a search it is as it was put last.
    if plan.state.at != before {
        put_all(plan, &order, &before);
    }
    let loss = before.iter().all(Option::is_some).then(|| plan.loss());
    // New ones where they cost least.
    order.iter().filter(|unit| before[**unit].is_none()).for_each(|unit| _ = move_one(plan, *unit));
    improve(plan, &order);
    // What is in force does not change for plans that only a longer search would find.
    if before.iter().all(Option::is_none) {
        explore(plan, &order);
    }
    if plan.state.at != before {
        let found = plan.state.at.clone();
        put_all(plan, &order, &found);
        // Moves that each seemed to save something may not do so together.
        if loss.is_some_and(|loss| plan.loss() >= loss) {
            put_all(plan, &order, &before);
        }
    }
}

/// Puts units on these spots and takes all others off. How a unit is divided over several cells depends on
/// the spots only, not on how they were found: over what others leave free, which it sees the second time.
fn put_all(plan: &mut Plan, order: &[usize], spots: &[Option<Spot>]) {
    let has_several = |unit: &usize| spots[*unit].is_some_and(|spot| plan.cells_of(spot) > 1);
    let (several, rest): (Vec<usize>, Vec<usize>) = order.iter().copied().partition(has_several);
    several.iter().for_each(|unit| _ = plan.take(*unit));
    for unit in rest.into_iter().chain(several.repeat(2)) {
        plan.take(unit);
        spots[unit].iter().for_each(|spot| plan.put(unit, *spot));
    }
}

/// Moves units until nothing is gained by it.
fn improve(plan: &mut Plan, order: &[usize]) {
    for _ in 0..PASSES {
        let moved = order.iter().filter(|unit| move_one(plan, **unit)).count();
        // Of hundreds, what one in sixteen still gains is a thousandth of what all lose.
        if moved <= order.len().saturating_sub(100) / 16 {
            break;
        }
    }
}

/// Puts single units elsewhere, lets all others find new places, and keeps what then loses less: on a small
/// host this finds what no single change does.
fn explore(plan: &mut Plan, order: &[usize]) {
    let units = plan.units;
    let spots = order
        .iter()
        .flat_map(|unit| units[*unit].options.iter().flatten().map(move |spot| (*unit, *spot)));
    let changes: Vec<(usize, Spot)> = spots.take(MOST_EXPLORED + 1).collect();
    if changes.len() > MOST_EXPLORED {
        return;
    }
    let (mut best, mut since) = ((plan.loss(), plan.state.clone()), 0);
    for (unit, spot) in changes.iter().cycle().take(EXPLORED / changes.len().max(1)) {
        plan.take(*unit);
        plan.put(*unit, *spot);
        for other in order.iter().filter(|other| *other != unit) {
            move_one(plan, *other);
        }
        improve(plan, order);
        let loss = plan.loss();
        since += 1;
        if loss < best.0 {
            (best, since) = ((loss, plan.state.clone()), 0);
        } else {
            plan.state = best.1.clone();
        }
        if since > changes.len() {
            break;
        }
    }
}

/// What the plan loses with units on these spots.
pub(super) fn loss_on(plan: &mut Plan, spots: &[Spot]) -> i64 {
    let order: Vec<usize> = (0..spots.len()).collect();
    let spots: Vec<Option<Spot>> = spots.iter().copied().map(Some).collect();
    put_all(plan, &order, &spots);
    plan.loss()
}

/// The spot where a unit that is not placed would cost least if it were not on `spot`: on other nodes if
/// that is possible.
pub(super) fn second_best(plan: &Plan, unit: usize, spot: Spot) -> Option<Spot> {
    let nodes = |spot: Spot| plan.spots.areas[spot].nodes;
    let price = |other, limit| plan.terms(unit, other, 0, limit).iter().sum();
    let of = |same| {
        let others = plan.candidates(unit).filter(|other| *other != spot);
        let others = others.filter(|other| (nodes(*other) == nodes(spot)) == same);
        cheapest(others, (None, i64::MAX), price)
    };
    of(false).or_else(|| of(true))
}

/// The cheapest of these spots, the earliest of equals, unless what is given with its price is as cheap. A price is
/// exact below the limit that it is given.
fn cheapest(
    spots: impl Iterator<Item = Spot>,
    given: (Option<Spot>, i64),
    price: impl Fn(Spot, i64) -> i64,
) -> Option<Spot> {
    let cheaper = |best: (Option<Spot>, i64), spot| {
        let price = price(spot, best.1);
        if price < best.1 { (Some(spot), price) } else { best }
    };
    spots.fold(given, cheaper).0
}

/// Moves a unit where it costs least, if that is less than where it is.
fn move_one(plan: &mut Plan, unit: usize) -> bool {
    let now = plan.take(unit);
    let price = |spot, limit| plan.price(unit, spot, limit);
    let given = (now, now.map_or(i64::MAX, |now| price(now, i64::MAX)));
    let others = plan.candidates(unit).filter(|spot| Some(*spot) != now);
    let spot = cheapest(others, given, price).unwrap_or(plan.units[unit].wide);
    plan.put(unit, spot);
    now != Some(spot)
}
