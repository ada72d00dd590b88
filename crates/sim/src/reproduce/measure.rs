//! What a row of an experiment measures in a run. Knows no interval and no published figure.

use crate::engine::{RunTotals, VmTally};
use std::str::FromStr;

/// A quantity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Part of the time with siblings runnable on one CPU, per cent: mean of the VMs.
    Stacking,
    /// Competing modules of the host (systems.md, 1).
    Competing,
    /// Units a second: mean of the VMs.
    Throughput,
    /// Whole runs of programs that end, an hour, by their run time: mean of the VMs. So a run that takes half
    /// the time counts twice, and nothing where one did not end.
    Runs,
    /// Units counted in the time measured: mean of the VMs.
    Units,
    /// How late periodic threads wake, microseconds: mean of the VMs.
    Late,
    /// Boosts of bottlenecks a second: of the host; 0 for schedulers that have none.
    Boosts,
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "stacking" => Self::Stacking,
            "competing" => Self::Competing,
            "throughput" => Self::Throughput,
            "runs" => Self::Runs,
            "units" => Self::Units,
            "late" => Self::Late,
            "boosts" => Self::Boosts,
            _ => {
                let known = "stacking, competing, throughput, runs, units, late, boosts";
                return Err(format!("measure {name}: known are {known}"));
            }
        })
    }
}

/// To what a row relates its quantity; the number is that of the other simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// To nothing.
    Alone,
    /// How many per cent it is above that of another simulation.
    PercentOver(usize),
    /// Divided by that of another simulation.
    Per(usize),
}

/// What a row measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The quantity.
    pub what: Quantity,
    /// Of the VMs whose names begin so.
    pub vm: String,
    /// Multiplied by this in the end.
    pub scale: f64,
    /// In which simulation.
    pub plan: usize,
    /// Related to what.
    pub relation: Relation,
}

impl Measure {
    /// The value in runs of one seed, by the number of the simulation; nothing when one is missing
    /// or there is nothing to divide by.
    pub fn of<'a>(&self, runs: &dyn Fn(usize) -> Option<&'a RunTotals>) -> Option<f64> {
        let own = self.quantity(runs(self.plan)?)?;
        let other = |plan: usize| runs(plan).and_then(|run| self.quantity(run));
        let value = match self.relation {
            Relation::Alone => own,
            Relation::PercentOver(plan) => (own / other(plan)? - 1.0) * 100.0,
            Relation::Per(plan) => own / other(plan)?,
        };
        Some(value * self.scale).filter(|value| value.is_finite())
    }

    fn quantity(&self, run: &RunTotals) -> Option<f64> {
        match self.what {
            Quantity::Competing => Some(run.competing_micro() as f64 / 1e6),
            Quantity::Boosts => {
                Some(run.host.boosts.unwrap_or(0) as f64 * 1e9 / run.duration.max(1) as f64)
            }
            Quantity::Stacking => self.mean(run, |_, tally| {
                tally.sums.stacked as f64 * 100.0 / tally.sums.elapsed.max(1) as f64
            }),
            Quantity::Throughput => {
                self.mean(run, |vm, _| run.throughput_milli(vm) as f64 / 1000.0)
            }
            Quantity::Runs => {
                self.mean(run, |_, tally| tally.took.map_or(f64::NAN, |ns| 3.6e12 / ns as f64))
            }
            Quantity::Units => self.mean(run, |_, tally| tally.units as f64),
            Quantity::Late => self.mean(run, |_, tally| {
                tally.lateness.ns as f64 / tally.lateness.count.max(1) as f64 / 1000.0
            }),
        }
    }

    fn mean(&self, run: &RunTotals, value: impl Fn(usize, &VmTally) -> f64) -> Option<f64> {
        let mine = run.vms.iter().enumerate().filter(|(_, vm)| vm.0.starts_with(&self.vm));
        let (sum, count) =
            mine.fold((0.0, 0u32), |(sum, count), (at, vm)| (sum + value(at, &vm.2), count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }
}
