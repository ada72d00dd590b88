//! What a run means: the measures of each VM and of the host, as JSON (schema `instep.sim/1`) and as a
//! table. For the fair-share speed every VM is also simulated alone on the host.
//!
//! Numbers are computed here, once, from the integers of a run; they do not act back on anything.

use crate::engine::{Engine, Outcome, VmSetup, VmTally};
use crate::params::ONE;
use crate::scenario::build::Plan;
use instep_core::measure;
use serde::Serialize;
use std::fmt::Write as _;

/// A run's results, schema `instep.sim/1`. Times are nanoseconds of simulated time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `instep.sim/1`.
    pub schema: &'static str,
    /// The seed.
    pub seed: u64,
    /// Events in all, warming up included, runs alone not.
    pub events: u64,
    /// Time measured.
    pub duration_ns: u64,
    /// The scheduler.
    pub scheduler: String,
    /// Whose costs and contention.
    pub machine: &'static str,
    /// The VMs.
    pub vms: Vec<VmReport>,
    /// The host.
    pub host: HostReport,
}

/// One VM's measures. Fractions are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// Units of work a second.
    pub throughput: f64,
    /// What a unit is.
    pub unit: &'static str,
    /// Throughput when simulated alone on this host by this scheduler.
    pub alone: f64,
    /// Its fair share of the CPUs by weight as a part of what it uses alone.
    pub fair_share: f64,
    /// Throughput / (fair share x throughput alone); null when it does nothing alone.
    pub fair_share_speed: Option<f64>,
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
    /// Part of its memory that is local to where it ran, by CPU time.
    pub locality: f64,
    /// Blocked waits of vCPUs a second: the synchronisation frequency.
    pub blocks_per_s: f64,
    /// Migrations a second.
    pub migrations_per_s: f64,
    /// Blocked time by who ended it.
    pub waits: WaitsReport,
    /// How late periodic threads woke: mean and latest; null without any.
    pub late_ns: Option<[u64; 2]>,
    /// Competing modules of the whole host, as with every VM.
    pub competing_modules: f64,
}

/// Blocked time of a VM's vCPUs, nanoseconds, by who ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitsReport {
    /// A sibling: synchronisation.
    pub sibling_ns: u64,
    /// A timer.
    pub timer_ns: u64,
    /// A device.
    pub io_ns: u64,
}

/// The host's measures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostReport {
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
}

impl Plan {
    /// Simulates it once.
    #[must_use]
    pub fn run(&self) -> Outcome {
        Engine::new(self.setup.clone(), self.scheduler()).run()
    }

    /// What one VM does alone on the host.
    #[must_use]
    pub fn alone(&self, vm: usize) -> Alone {
        let mut setup = self.setup.clone();
        let mut at = 0..;
        setup.vms.retain(|other| at.next() == Some(vm) || other.hidden);
        Alone::of(&Engine::new(setup, self.scheduler()).run(), 0)
    }

    /// Each VM's fair share of the CPUs by weight, in thousandths of a CPU: nobody more than it uses
    /// alone, and what one does not use goes to the others.
    #[must_use]
    pub fn fair_shares(&self, alone: &[Alone]) -> Vec<u64> {
        let claim = |(vm, alone): (&VmSetup, &Alone)| (u64::from(vm.weight), alone.cpus_milli);
        let claims: Vec<(u64, u64)> = self.setup.vms.iter().zip(alone).map(claim).collect();
        measure::fair_shares(self.setup.host.cpus() as u64 * 1000, &claims)
    }

    /// Simulates it, and every different VM alone, and says what came of it. `progress` is called
    /// with how many of how many runs are done.
    #[must_use]
    pub fn report(&self, progress: &mut dyn FnMut(usize, usize)) -> Report {
        let vms: Vec<&VmSetup> = self.setup.vms.iter().filter(|vm| !vm.hidden).collect();
        // VMs that are alike are alone alike.
        let mut alone: Vec<Alone> = Vec::with_capacity(vms.len());
        let same = |a: usize, b: usize| {
            vms[a].workload == vms[b].workload
                && vms[a].affinity == vms[b].affinity
                && vms[a].memory == vms[b].memory
        };
        let outcome = self.run();
        progress(1, vms.len() + 1);
        for vm in 0..vms.len() {
            let known = (0..vm).find(|other| same(*other, vm)).map(|other| alone[other]);
            alone.push(known.unwrap_or_else(|| match vms.len() {
                1 => Alone::of(&outcome, 0),
                _ => self.alone(vm),
            }));
            progress(vm + 2, vms.len() + 1);
        }
        Report::new(self, &outcome, &alone)
    }
}

/// What a VM does alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alone {
    /// Throughput in thousandths of a unit a second.
    pub rate_milli: u64,
    /// CPU time per time in thousandths.
    pub cpus_milli: u64,
}

impl Alone {
    fn of(outcome: &Outcome, vm: usize) -> Self {
        let ran = u128::from(outcome.vms[vm].2.sums.running) * 1000;
        let cpus = ran.div_ceil(u128::from(outcome.duration.max(1)));
        Self {
            rate_milli: outcome.throughput_milli(vm),
            cpus_milli: u64::try_from(cpus).unwrap_or(u64::MAX),
        }
    }
}

fn per_second(count: u64, duration: u64) -> f64 {
    count as f64 * 1e9 / duration.max(1) as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Report {
    /// The report of a run; `alone` is what each VM does alone.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome, alone: &[Alone]) -> Self {
        let shares = plan.fair_shares(alone);
        let competing = outcome.competing_micro() as f64 / 1e6;
        let vms = (0..outcome.vms.len()).map(|vm| {
            let rate = outcome.throughput_milli(vm);
            VmReport::new(outcome, vm, rate, alone[vm], shares[vm], competing)
        });
        let host = &outcome.host;
        let duration = outcome.duration;
        Self {
            schema: "instep.sim/1",
            seed: plan.setup.seed,
            events: outcome.events,
            duration_ns: duration,
            scheduler: plan.scheduler.clone(),
            machine: plan.setup.params.machine,
            vms: vms.collect(),
            host: HostReport {
                cpus: plan.setup.host.cpus(),
                utilisation: host.busy.iter().map(|busy| ratio(*busy, duration)).collect(),
                competing_modules: competing,
                switches_per_s: per_second(host.switches, duration),
                preemptions_per_s: per_second(host.preemptions, duration),
                yields_per_s: per_second(host.yields, duration),
            },
        }
    }

    /// A table for people, lines of up to 100 columns.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        let seconds = self.duration_ns as f64 / 1e9;
        let busy: f64 = self.host.utilisation.iter().sum();
        let _ = writeln!(
            out,
            "{} on {} CPUs ({}), {seconds} s simulated, seed {}, {} events",
            self.scheduler, self.host.cpus, self.machine, self.seed, self.events
        );
        let _ = writeln!(
            out,
            "{busy:.2} CPUs busy, competing modules {:.2}, {:.0} switches/s\n",
            self.host.competing_modules, self.host.switches_per_s
        );
        let width = self.vms.iter().map(|vm| vm.name.len()).max().unwrap_or(2).max(2);
        let _ = writeln!(
            out,
            "{:width$} {:>12} {:<12} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
            "VM",
            "throughput",
            "a second",
            "speed",
            "share",
            "CPUs",
            "stack",
            "co-run",
            "steal",
            "local"
        );
        for vm in &self.vms {
            let speed = vm.fair_share_speed.map_or("-".to_owned(), |speed| format!("{speed:.3}"));
            let _ = writeln!(
                out,
                "{:width$} {:>12.1} {:<12} {speed:>6} {:>6.3} {:>6.2} {:>6.3} {:>6.3} {:>6.2} {:>6.2}",
                vm.name,
                vm.throughput,
                vm.unit,
                vm.fair_share,
                vm.cpus,
                vm.stacking,
                vm.co_run,
                vm.steal,
                vm.locality
            );
        }
        out.push_str("\nspeed: throughput / (fair share x throughput alone)\n");
        out
    }
}

impl VmReport {
    fn new(
        outcome: &Outcome,
        vm: usize,
        rate: u64,
        alone: Alone,
        share: u64,
        competing: f64,
    ) -> Self {
        let (name, unit, tally): &(String, &'static str, VmTally) = &outcome.vms[vm];
        let (sums, duration) = (&tally.sums, outcome.duration);
        let fair_share = ratio(share, alone.cpus_milli);
        let deserved = fair_share * alone.rate_milli as f64;
        Self {
            name: name.clone(),
            throughput: rate as f64 / 1000.0,
            unit,
            alone: alone.rate_milli as f64 / 1000.0,
            fair_share,
            fair_share_speed: (deserved > 0.0).then(|| rate as f64 / deserved),
            stacking: ratio(sums.stacked, sums.elapsed),
            co_run: sums.co_run().0 as f64 / 1000.0,
            cpus: ratio(sums.running, duration),
            parallelism: ratio(tally.progress, duration),
            spinning: ratio(tally.spun, duration),
            steal: ratio(sums.waiting, duration),
            locality: match sums.running {
                0 => 1.0,
                ran => tally.local as f64 / (ran as f64 * ONE as f64),
            },
            blocks_per_s: per_second(tally.blocks, duration),
            migrations_per_s: per_second(tally.migrations, duration),
            waits: WaitsReport {
                sibling_ns: tally.by_sibling.ns,
                timer_ns: tally.by_timer.ns,
                io_ns: tally.by_io.ns,
            },
            late_ns: (tally.lateness.count > 0)
                .then(|| [tally.lateness.ns / tally.lateness.count, tally.latest]),
            competing_modules: competing,
        }
    }
}
