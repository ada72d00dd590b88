//! Holds a plan to the estimate of [`crate::score`]: its core sharing must not exceed that of
//! leaving everything to the kernel. While it does, units are widened, those whose memory gains
//! least first; then single changes that lose less CPU time are tried within a budget.

use super::cores::Apart;
use super::host::{Spot, Spots};
use super::plan::{Plan, Planner};
use super::unit::Unit;
use super::{relief, tolerated};
use crate::idset::CpuSet;
use crate::score::{Estimate, Estimator};
use std::cmp::Reverse;

/// How many vCPUs may be estimated in one decision: so a small host is searched thoroughly, and
/// a large one in [`LEAST_ESTIMATES`].
const BUDGET_VCPUS: usize = 24_000;
/// Estimates made on any host: enough to bisect.
const LEAST_ESTIMATES: usize = 6;
const MOST_ESTIMATES: usize = 400;

/// By how much vCPUs with cores of their own may lose more than the kernel would lose before they
/// are given up, in thousandths of all demand.
const KEEP_LOSS: u64 = 50;

/// What narrowing VMs that were left wide must save, in thousandths of their demand: a quarter of
/// what memory of which half is one hop away costs ([`crate::score::REMOTE`]).
const NARROWING_PAYS: u64 = 25;

/// Estimates plans, counting against a budget.
pub(super) struct Guard<'a, 'e> {
    estimator: &'e mut Estimator<'a>,
    spots: &'e Spots,
    units: &'e [Unit],
    /// The first vCPU of each VM among all vCPUs of the snapshot.
    first: Vec<usize>,
    /// Groups of the vCPUs that are not planned; those of units are overwritten.
    choice: Vec<usize>,
    /// Per unit the groups of its vCPUs on the spots tried so far.
    groups: Vec<Vec<(Spot, Vec<usize>)>>,
    /// What leaving everything to the kernel adds up to.
    pub(super) kernel: Estimate,
    budget: usize,
    left: usize,
}

impl<'a, 'e> Guard<'a, 'e> {
    /// `untouched` holds what the vCPUs of the snapshot have when Instep leaves them, by VM.
    pub(super) fn new(
        estimator: &'e mut Estimator<'a>,
        spots: &'e Spots,
        units: &'e [Unit],
        untouched: &[Vec<(CpuSet, usize)>],
    ) -> Self {
        let mut first = Vec::with_capacity(untouched.len());
        let mut choice = Vec::new();
        for sets in untouched {
            first.push(choice.len());
            let mut last: Option<(&CpuSet, usize)> = None;
            for (cpus, vcpus) in sets {
                let group = match last {
                    Some((same, group)) if same == cpus => group,
                    _ => estimator.group(cpus),
                };
                last = Some((cpus, group));
                choice.extend(std::iter::repeat_n(group, *vcpus));
            }
        }
        let kernel = estimator.estimate(&choice);
        let budget = (BUDGET_VCPUS / choice.len().max(1)).clamp(LEAST_ESTIMATES, MOST_ESTIMATES);
        let groups = vec![Vec::new(); units.len()];
        Self { estimator, spots, units, first, choice, groups, kernel, budget, left: budget }
    }

    /// What the plan adds up to.
    pub(super) fn estimate(&mut self, plan: &Plan) -> Estimate {
        self.left = self.left.saturating_sub(1);
        for (index, spot) in plan.iter().enumerate() {
            self.choose(index, *spot);
        }
        self.estimator.estimate(&self.choice)
    }

    /// Whether the plan still holds when vCPUs have cores of their own, with some slack when they
    /// have them already (`held`). With operators' limits on other VMs it need not.
    pub(super) fn holds_apart(&mut self, plan: &Plan, apart: &Apart, held: bool) -> bool {
        for (index, spot) in plan.iter().enumerate() {
            self.choose(index, *spot);
            let Some(sets) = &apart.vcpus[index] else { continue };
            let unit = &self.units[index];
            for (vcpu, cpus) in unit.vcpus.iter().zip(sets) {
                self.choice[self.first[unit.vm] + vcpu] = self.estimator.group(cpus);
            }
        }
        let estimate = self.estimator.estimate(&self.choice);
        let (sharing, lost) = (self.kernel.sharing, self.kernel.lost());
        if held {
            let slack = self.kernel.demand / 1000 * KEEP_LOSS;
            estimate.sharing <= tolerated(sharing) && estimate.lost() <= lost + slack
        } else {
            estimate.sharing <= sharing && estimate.lost() <= lost
        }
    }

    fn choose(&mut self, index: usize, spot: Spot) {
        let unit = &self.units[index];
        let cached = self.groups[index].iter().position(|(known, _)| *known == spot);
        let cached = cached.unwrap_or_else(|| {
            let sets = if unit.is_uniform() { 1 } else { unit.vcpus.len() };
            let groups =
                (0..sets).map(|k| self.estimator.group(&unit.cpus(self.spots, k, spot))).collect();
            self.groups[index].push((spot, groups));
            self.groups[index].len() - 1
        });
        let groups = &self.groups[index][cached].1;
        for (k, vcpu) in unit.vcpus.iter().enumerate() {
            self.choice[self.first[unit.vm] + vcpu] = *groups.get(k).unwrap_or(&groups[0]);
        }
    }

    fn holds(&self, estimate: &Estimate) -> bool {
        estimate.sharing <= self.kernel.sharing
    }

    /// A plan that holds, as close to `plan` as the budget finds, and its estimate.
    pub(super) fn enforce(&mut self, planner: &Planner, mut plan: Plan) -> (Plan, Estimate) {
        // The same budget whatever was estimated before: the same host, the same plan.
        self.left = self.budget;
        let mut best = self.estimate(&plan);
        let mut order = Vec::new();
        if !self.holds(&best) {
            order = self.widening_order(planner, &plan);
            let intended = plan.clone();
            (plan, best) = self.widen(&order, &intended);
            order.retain(|index| plan[*index] != intended[*index]);
            for index in order.iter().rev() {
                self.try_spot(planner, &mut plan, &mut best, *index, intended[*index]);
            }
        }
        self.improve(planner, &mut plan, &mut best, &order);
        if best.lost() > self.kernel.lost() {
            plan = self.units.iter().map(|unit| unit.wide).collect();
            best = self.estimate(&plan);
        }
        (plan, best)
    }

    /// A plan with as many of the narrower spots of `intended` as hold by half of what a plan in
    /// force is tolerated to share more, and save [`NARROWING_PAYS`] of the demand that is narrowed
    /// once memory has followed. And only those after which no move would pay: the next decision
    /// would make it before the memory follows, even back to what was just left.
    pub(super) fn narrowed(
        &mut self,
        planner: &Planner,
        (plan, now): (Plan, Estimate),
        intended: &Plan,
    ) -> (Plan, Estimate) {
        self.left = self.budget;
        let limit = self.kernel.sharing.midpoint(tolerated(self.kernel.sharing));
        let worth = |index: usize| planner.worth_in_time(index, intended[index]);
        let demand = |index: usize| self.units[index].crowd.sum.max(1);
        let mut order: Vec<usize> =
            (0..plan.len()).filter(|index| plan[*index] != intended[*index]).collect();
        order.sort_by_key(|index| (Reverse(worth(*index) * 1000 / demand(*index)), *index));
        // Those that gain most, and half as many when they do not hold.
        while !order.is_empty() && self.left > 0 {
            let mut tried = plan.clone();
            order.iter().for_each(|index| tried[*index] = intended[*index]);
            let estimate = self.estimate(&tried);
            let gains: u64 = order.iter().map(|index| worth(*index)).sum();
            let moved: u64 = order.iter().map(|index| demand(*index)).sum();
            let margin = moved * NARROWING_PAYS / 1000;
            let pays = estimate.lost_on_cpus() + margin < now.lost_on_cpus() + gains;
            let fits = estimate.sharing <= limit && pays;
            if fits && relief(planner, self, &tried, &estimate).is_none() {
                return (tried, estimate);
            }
            order.truncate(order.len() / 2);
        }
        (plan, now)
    }

    /// Bound units, those first whose memory loses least per demand when they are widened.
    fn widening_order(&self, planner: &Planner, plan: &Plan) -> Vec<usize> {
        let mut order: Vec<usize> =
            (0..plan.len()).filter(|index| plan[*index] != self.units[*index].wide).collect();
        let worth = |index: &usize| {
            planner.worth(*index, plan[*index]) * 1000 / self.units[*index].crowd.sum.max(1)
        };
        order.sort_by_key(|index| (worth(index), *index));
        order
    }

    /// Bisects for the shortest beginning of `order` that, widened, makes the plan hold. Widening
    /// all of them holds: that is what the limit is.
    fn widen(&mut self, order: &[usize], plan: &Plan) -> (Plan, Estimate) {
        let widened = |count: usize| {
            let mut plan = plan.clone();
            order[..count].iter().for_each(|index| plan[*index] = self.units[*index].wide);
            plan
        };
        let (mut low, mut high) = (0, order.len());
        let mut found = widened(high);
        let mut best = None;
        while high - low > 1 && self.left > 1 {
            let middle = low.midpoint(high);
            let tried = widened(middle);
            let estimate = self.estimate(&tried);
            if self.holds(&estimate) {
                (high, found, best) = (middle, tried, Some(estimate));
            } else {
                low = middle;
            }
        }
        let estimate = best.unwrap_or_else(|| self.estimate(&found));
        (found, estimate)
    }

    /// Tries every option of every unit, the units in `first` before the others.
    fn improve(
        &mut self,
        planner: &Planner,
        plan: &mut Plan,
        best: &mut Estimate,
        first: &[usize],
    ) {
        let mut later = vec![true; plan.len()];
        first.iter().for_each(|index| later[*index] = false);
        let mut order: Vec<usize> = (0..plan.len()).collect();
        order.sort_by_key(|index| (later[*index], Reverse(self.units[*index].crowd.sum), *index));
        for index in order {
            for spot in &self.units[index].options {
                if self.left == 0 {
                    return;
                }
                self.try_spot(planner, plan, best, index, *spot);
            }
        }
    }

    /// Moves one unit if the plan then holds and loses less; or as much, when it was left wide and
    /// its memory gains: that an estimate puts it there all the same is by chance, as the kernel
    /// does not know of memory.
    fn try_spot(
        &mut self,
        planner: &Planner,
        plan: &mut Plan,
        best: &mut Estimate,
        index: usize,
        spot: Spot,
    ) {
        if self.left == 0 || plan[index] == spot {
            return;
        }
        let before = std::mem::replace(&mut plan[index], spot);
        let estimate = self.estimate(plan);
        let narrows = before == self.units[index].wide && planner.worth(index, spot) > 0;
        let less = estimate.lost() < best.lost() || (narrows && estimate.lost() == best.lost());
        if self.holds(&estimate) && less {
            *best = estimate;
        } else {
            plan[index] = before;
        }
    }
}
