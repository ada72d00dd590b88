//! The plan that the search finds against the best of all plans, on hosts small enough to try every one.

use super::cells::Spot;
use super::{search, with_plan};
use crate::policy::PolicySettings;
use crate::snapshot::Snapshot;

/// What the plan found for a host on which nothing is in force loses, and what the best does, in millionths
/// of a CPU; `None` on a host with more than `most` plans.
pub(in super::super) fn against_exact(snapshot: &Snapshot, most: usize) -> Option<(i64, i64)> {
    let every = |_| Ok(false);
    with_plan(snapshot, &PolicySettings::default(), every, |mut plan, _| {
        let options = plan.units.iter().map(|unit| unit.options.concat()).collect::<Vec<_>>();
        let plans = options.iter().try_fold(1usize, |all, own| all.checked_mul(own.len()))?;
        if plans > most {
            return None;
        }
        search::search(&mut plan);
        let found: Vec<Spot> = plan.state.at.iter().copied().flatten().collect();
        let found = search::loss_on(&mut plan, &found);
        let choose = |mut number: usize| -> Vec<Spot> {
            let one = |own: &Vec<Spot>| {
                let at = number % own.len();
                number /= own.len();
                own[at]
            };
            options.iter().map(one).collect()
        };
        let best = (0..plans).map(|number| search::loss_on(&mut plan, &choose(number))).min()?;
        Some((found, best.min(found)))
    })
}
