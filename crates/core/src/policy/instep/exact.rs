//! The plan that the search finds against the best of all plans, on hosts small enough to try every one.

use super::cells::{Host, Spot};
use super::plan::Plan;
use super::spots::Spots;
use super::{search, unit, with_plan};
use crate::policy::PolicySettings;
use crate::snapshot::Snapshot;

/// What the plan found for a host on which nothing is in force loses, and what the best does, in millionths
/// of a CPU; `None` on a host with more than `most` plans.
pub(in super::super) fn against_exact(snapshot: &Snapshot, most: usize) -> Option<(i64, i64)> {
    let units = |host: &Host, spots: &mut Spots, index: usize| {
        unit::units_of(host, spots, index, &PolicySettings::default(), false)
    };
    with_plan(snapshot, &PolicySettings::default(), units, |mut plan, _| {
        let options = plan.units.iter().map(|unit| unit.options.concat()).collect::<Vec<_>>();
        let plans = options.iter().try_fold(1usize, |all, own| all.checked_mul(own.len()))?;
        if plans > most {
            return None;
        }
        search::search(&mut plan);
        let found: Vec<Spot> = plan.state.at.iter().copied().flatten().collect();
        let found = loss(&mut plan, &found);
        let choose = |mut number: usize| -> Vec<Spot> {
            let one = |own: &Vec<Spot>| {
                let at = number % own.len();
                number /= own.len();
                own[at]
            };
            options.iter().map(one).collect()
        };
        let best = (0..plans).map(|number| loss(&mut plan, &choose(number))).min()?;
        Some((found, best.min(found)))
    })
}

/// What a plan loses with units on these spots, those on several cells divided over what others leave free.
fn loss(plan: &mut Plan, spots: &[Spot]) -> i64 {
    spots.iter().enumerate().for_each(|(unit, _)| _ = plan.take(unit));
    let several = |plan: &Plan, unit: usize| plan.cells_of(spots[unit]) > 1;
    let mut order: Vec<usize> = (0..spots.len()).collect();
    order.sort_by_key(|unit| several(plan, *unit));
    order.iter().for_each(|unit| plan.put(*unit, spots[*unit]));
    order.retain(|unit| several(plan, *unit));
    for unit in order.repeat(3) {
        plan.take(unit);
        plan.put(unit, spots[unit]);
    }
    plan.loss()
}
