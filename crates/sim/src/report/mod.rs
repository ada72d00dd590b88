//! What a run means: the measures of each VM and of the host, as JSON (schema `instep.sim/1`) and as
//! tables. For the fair-share speed every VM is also simulated alone on the host ([`runs`]).
//!
//! Numbers are computed here, once, from the integers of a run; they do not act back on anything.

pub mod model;
mod pools;
mod runs;
mod table;
mod tree;

pub use model::LagModel;
pub use runs::{Alone, Observed, Progress, Stop};
pub use table::summary;

use crate::engine::{RunTotals, VmTally};
use crate::params::ONE;
use crate::scenario::build::SimulationPlan;
use crate::schedule::VmSchedule;
use schemars::JsonSchema;
use serde::Serialize;

/// A run's results, schema `instep.sim/1`. Times are nanoseconds of simulated time.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "Simulation")]
pub struct SimulationReport {
    /// `instep.sim/1`.
    #[schemars(extend("const" = "instep.sim/1"))]
    pub schema: &'static str,
    /// The seed.
    pub seed: u64,
    /// Events in all, warming up included, runs alone not.
    pub events: u64,
    /// Time measured.
    pub duration_ns: u64,
    /// The scheduler.
    pub scheduler: String,
    /// Why the host threw the scheduler out and scheduled by itself from then on; left out where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Whose costs and contention.
    pub machine: String,
    /// The VMs.
    pub vms: Vec<SimulatedVm>,
    /// The host.
    pub host: SimulatedHost,
}

/// One VM's measures. Fractions are 0 to 1.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SimulatedVm {
    /// Its name.
    pub name: String,
    /// For how long it existed of the time measured; what follows is of this time.
    pub lived_ns: u64,
    /// From the start of its first load to its end, warming up included; null when it did not end.
    pub took_ns: Option<u64>,
    /// Units of work a second.
    pub throughput: f64,
    /// What a unit is.
    pub unit: &'static str,
    /// Throughput when simulated alone on this host by this scheduler; null when that was not
    /// simulated to its end.
    pub alone: Option<f64>,
    /// Its fair share by weight of the CPUs that it shares with others, as a part of what it uses alone;
    /// null without that.
    pub fair_share: Option<f64>,
    /// Throughput / (fair share x throughput alone); null when it does nothing alone.
    pub fair_share_speed: Option<f64>,
    /// Bound: the part of its share of each allocation period (24 ms) that it could use, by what it
    /// uses alone without spinning (systems.md, 5).
    pub potential: Option<f64>,
    /// The part that it used without spinning: its efficiency.
    pub efficiency: Option<f64>,
    /// Bounds: the model of completion by Lag (systems.md, 2).
    pub lag: Option<LagModel>,
    /// Type of application by what it does alone (systems.md, 5).
    #[serde(rename = "type")]
    pub kind: Option<u8>,
    /// Part of the time in which two or more siblings are runnable on one CPU.
    pub stacking: f64,
    /// Mean part of the runnable vCPUs that run while one does.
    pub co_run: f64,
    /// CPU time per time, in CPUs.
    pub cpus: f64,
    /// Mean number of threads that make progress.
    pub parallelism: f64,
    /// CPU time per time in which threads spin.
    pub spinning: f64,
    /// Time runnable without a CPU per time, summed over vCPUs.
    pub steal: f64,
    /// The same by vCPU, nanoseconds.
    pub steal_by_vcpu_ns: Vec<u64>,
    /// Who had the CPU in whose queue its vCPUs waited, the longest first.
    pub culprits: Vec<SimulatedCulprit>,
    /// How long its vCPUs waited for a CPU each time.
    pub wait: WaitReport,
    /// How far a waiting vCPU fell behind its siblings at most.
    pub max_skew_ns: u64,
    /// Part of its memory, at the end, on its home: the node where it had most CPU time; 1 without any.
    pub locality: f64,
    /// Part of its memory that is local to where it ran: mean over its CPU time, 1 without any.
    pub local_access: f64,
    /// Blocked waits of vCPUs a second: the synchronisation frequency.
    pub blocks_per_s: f64,
    /// Migrations a second.
    pub migrations_per_s: f64,
    /// Blocked time by who ended it.
    pub waits: SimulatedWaits,
    /// The same of each vCPU.
    pub waits_by_vcpu: Vec<SimulatedWaits>,
    /// How late periodic threads woke: mean and latest; null without any.
    pub late_ns: Option<[u64; 2]>,
    /// Competing modules of the whole host, as with every VM.
    pub competing_modules: f64,
}

/// Blocked time of a VM's vCPUs, nanoseconds, by who ended it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SimulatedWaits {
    /// A sibling: synchronisation.
    pub sibling_ns: u64,
    /// A timer.
    pub timer_ns: u64,
    /// A device.
    pub io_ns: u64,
}

/// Waits for a CPU, nanoseconds; quantiles are up to an eighth too long.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "WaitTimes")]
pub struct WaitReport {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// Nine of ten are not longer.
    pub p90_ns: u64,
    /// 99 of 100 are not longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The distribution: lengths and how many waits are not longer than one and longer than the one
    /// before.
    pub up_to_ns: Vec<(u64, u64)>,
}

/// What ran while a VM waited.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SimulatedCulprit {
    /// A VM, itself (stacked siblings), `host` (the host's own threads) or `idle`.
    pub name: String,
    /// For how long, vCPU nanoseconds.
    pub ns: u64,
}

/// The host's measures.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SimulatedHost {
    /// CPUs.
    pub cpus: usize,
    /// Mean busy part of each CPU.
    pub utilisation: Vec<f64>,
    /// Mean competing modules (systems.md, 1).
    pub competing_modules: f64,
    /// Switches of tasks a second.
    pub switches_per_s: f64,
    /// Preemptions a second.
    pub preemptions_per_s: f64,
    /// Pause-loop exits a second.
    pub yields_per_s: f64,
    /// Boosts of bottlenecks a second; null for schedulers that have none.
    pub boosts_per_s: Option<f64>,
}

fn per_second(count: u64, duration: u64) -> f64 {
    count as f64 * 1e9 / duration.max(1) as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl SimulationReport {
    /// The report of a run; `alone` is what each VM does alone, as far as that was simulated.
    pub fn new(plan: &SimulationPlan, observed: &Observed, alone: &[Option<Alone>]) -> Self {
        let outcome = &observed.outcome;
        let (shares, by_weight) = (plan.fair_shares(alone), plan.by_weight());
        let one = |vm: usize| {
            let share = Share { fair_milli: shares[vm], by_weight: by_weight[vm] };
            SimulatedVm::new(plan, observed, vm, alone[vm].as_ref(), &share)
        };
        let vms = (0..outcome.vms.len()).map(one);
        let host = &outcome.host;
        let duration = outcome.duration;
        Self {
            schema: "instep.sim/1",
            seed: observed.seed,
            events: outcome.events,
            duration_ns: duration,
            scheduler: plan.scheduler.clone(),
            failed: observed.failed.clone(),
            machine: plan.setup.params.machine.clone(),
            vms: vms.collect(),
            host: SimulatedHost {
                cpus: plan.setup.host.cpus(),
                utilisation: host.busy.iter().map(|busy| ratio(*busy, duration)).collect(),
                competing_modules: outcome.competing_micro() as f64 / 1e6,
                switches_per_s: per_second(host.switches, duration),
                preemptions_per_s: per_second(host.preemptions, duration),
                yields_per_s: per_second(host.yields, duration),
                boosts_per_s: host.boosts.map(|boosts| per_second(boosts, duration)),
            },
        }
    }
}

/// What is due to a VM.
struct Share {
    /// Thousandths of a CPU.
    fair_milli: u64,
    /// CPUs, whether it can use them or not.
    by_weight: f64,
}

impl SimulatedVm {
    fn new(
        plan: &SimulationPlan,
        observed: &Observed,
        vm: usize,
        alone: Option<&Alone>,
        due: &Share,
    ) -> Self {
        let outcome = &observed.outcome;
        let (name, unit, tally): &(String, &'static str, VmTally) = &outcome.vms[vm];
        let (sums, duration) = (&tally.sums, tally.lived);
        let (schedule, rate) = (&observed.schedule[vm], outcome.throughput_milli(vm));
        let fair_share = alone.map(|alone| ratio(due.fair_milli, alone.cpus_milli));
        let deserved = alone.zip(fair_share);
        let deserved = deserved.map_or(0.0, |(alone, share)| share * alone.rate_milli as f64);
        let by_weight = due.by_weight;
        let vcpus = schedule.steal.len();
        let per_vcpu = (by_weight / vcpus.max(1) as f64).min(1.0);
        Self {
            name: name.clone(),
            lived_ns: tally.lived,
            took_ns: tally.took,
            throughput: rate as f64 / 1000.0,
            unit,
            alone: alone.map(|alone| alone.rate_milli as f64 / 1000.0),
            fair_share,
            fair_share_speed: (deserved > 0.0).then(|| rate as f64 / deserved),
            potential: alone.and_then(|alone| model::part_of_share(&alone.used, by_weight)),
            efficiency: model::part_of_share(&observed.useful(vm), by_weight),
            lag: alone.filter(|alone| alone.rate_milli > 0).and_then(|alone| {
                // What the busiest thread would have needed alone for what was done.
                let work = alone.longest as f64 * rate as f64 / alone.rate_milli as f64;
                LagModel::new(plan.quantum(), per_vcpu, work, schedule.lag)
            }),
            kind: alone.map(|alone| {
                // Of the vCPUs it has threads for.
                let n = plan.setup.vms[vm].workload.threads.len().clamp(1, vcpus.max(1));
                let slice = (by_weight / n as f64).min(1.0) * model::PERIOD_NS as f64;
                model::type_of(alone.parallelism, alone.syncs_per_s / n as f64, n, slice)
            }),
            stacking: ratio(sums.stacked, sums.elapsed),
            co_run: sums.co_run().0 as f64 / 1000.0,
            cpus: ratio(sums.running, duration),
            parallelism: ratio(tally.progress, duration),
            spinning: ratio(tally.spun, duration),
            steal: ratio(sums.waiting, duration),
            steal_by_vcpu_ns: schedule.steal.clone(),
            culprits: culprits(outcome, schedule),
            wait: WaitReport::new(schedule),
            max_skew_ns: schedule.skew,
            locality: match sums.running {
                0 => 1.0,
                _ => f64::from(tally.home) / ONE as f64,
            },
            local_access: match sums.running {
                0 => 1.0,
                ran => tally.local as f64 / (ran as f64 * ONE as f64),
            },
            blocks_per_s: per_second(tally.blocks, duration),
            migrations_per_s: per_second(tally.migrations, duration),
            waits: SimulatedWaits::new(
                [&tally.by_sibling, &tally.by_timer, &tally.by_io].map(|by| by.ns),
            ),
            waits_by_vcpu: tally.by_vcpu.iter().copied().map(SimulatedWaits::new).collect(),
            late_ns: (tally.lateness.count > 0)
                .then(|| [tally.lateness.ns / tally.lateness.count, tally.latest]),
            competing_modules: outcome.competing_micro() as f64 / 1e6,
        }
    }
}

/// Who had the CPU, the longest first. Behind the VMs come the host's own threads and nobody.
fn culprits(outcome: &RunTotals, schedule: &VmSchedule) -> Vec<SimulatedCulprit> {
    let end = schedule.instead.len();
    let name = |at: usize| match end - at {
        1 => "idle".to_owned(),
        2 => "host".to_owned(),
        _ => outcome.vms.get(at).map_or_else(|| "host".to_owned(), |vm| vm.0.clone()),
    };
    let times = schedule.instead.iter().enumerate().filter(|(_, ns)| **ns > 0);
    let mut list: Vec<SimulatedCulprit> =
        times.map(|(at, ns)| SimulatedCulprit { name: name(at), ns: *ns }).collect();
    list.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.name.cmp(&b.name)));
    list
}

impl SimulatedWaits {
    fn new([sibling_ns, timer_ns, io_ns]: [u64; 3]) -> Self {
        Self { sibling_ns, timer_ns, io_ns }
    }
}

impl WaitReport {
    fn new(schedule: &VmSchedule) -> Self {
        let waits = &schedule.waits;
        Self {
            count: waits.count(),
            mean_ns: waits.mean(),
            p50_ns: waits.quantile(500),
            p90_ns: waits.quantile(900),
            p99_ns: waits.quantile(990),
            max_ns: waits.longest(),
            up_to_ns: waits.slots().collect(),
        }
    }
}
