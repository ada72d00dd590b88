//! The runs behind a report: the scenario itself, and every different VM alone, for any number of
//! seeds, side by side on the CPUs there are. Which ends first does not change a number.

use super::SimulationReport;
use super::pools::Pool;
use super::tree;
use crate::engine::{Engine, Life, RunTotals, VmSetup};
use crate::scenario::build::SimulationPlan;
use crate::schedule::{Recorder, Spans, VmSchedule, WatchedVm};
use rayon::prelude::*;
use std::sync::Mutex;

/// Events between two looks at whether to stop.
const LOOK: u64 = 4096;

/// Called with how many nanoseconds more were simulated.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);
/// Whether to stop.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// A run and what its schedule did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its seed.
    pub seed: u64,
    /// What the engine counted.
    pub outcome: RunTotals,
    /// What the schedule did to each VM; the host's own threads come last.
    pub schedule: Vec<VmSchedule>,
    /// Why the host threw the scheduler out, if it did.
    pub failed: Option<String>,
}

/// What a VM does alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alone {
    /// Throughput in thousandths of a unit a second.
    pub rate_milli: u64,
    /// CPU time per time in thousandths.
    pub cpus_milli: u64,
    /// Time in which the thread that made most progress did so, and not less than what each vCPU has
    /// to do where threads share them, nanoseconds.
    pub longest: u64,
    /// Mean number of threads that make progress.
    pub parallelism: f64,
    /// Waits for siblings a second in which a vCPU blocked.
    pub syncs_per_s: f64,
    /// CPU time without spinning in each whole allocation period, nanoseconds.
    pub used: Vec<u64>,
}

impl Observed {
    /// CPU time of a VM without spinning in each whole allocation period, nanoseconds.
    pub fn useful(&self, vm: usize) -> Vec<u64> {
        let (used, spun) = (&self.schedule[vm].used, &self.outcome.vms[vm].2.spun_in);
        let spun = spun.iter().copied().chain(std::iter::repeat(0));
        used.iter().zip(spun).map(|(used, spun)| used.saturating_sub(spun)).collect()
    }
}

impl Alone {
    fn of(observed: &Observed) -> Self {
        let (outcome, tally) = (&observed.outcome, &observed.outcome.vms[0].2);
        let duration = outcome.duration.max(1);
        let vcpus = observed.schedule[0].steal.len().max(1) as u64;
        let cpus = (u128::from(tally.sums.running) * 1000).div_ceil(u128::from(duration));
        Self {
            rate_milli: outcome.throughput_milli(0),
            cpus_milli: u64::try_from(cpus).unwrap_or(u64::MAX),
            longest: tally.longest.max(tally.progress / vcpus),
            parallelism: tally.progress as f64 / duration as f64,
            syncs_per_s: tally.by_sibling.count as f64 * 1e9 / duration as f64,
            used: observed.useful(0),
        }
    }
}

impl SimulationPlan {
    /// Simulates it once.
    pub fn run(&self) -> RunTotals {
        Engine::new(self.setup.clone(), self.scheduler()).run()
    }

    /// Simulates it once and looks at the schedule; nothing when it was stopped.
    pub fn observe(
        &self,
        spans: &mut dyn Spans,
        more: Progress<'_>,
        stop: Stop<'_>,
    ) -> Option<Observed> {
        let end = self.setup.warmup.saturating_add(self.setup.duration);
        let by_weight = self.by_weight();
        let known = |(at, vm): (usize, &VmSetup)| WatchedVm {
            vcpus: vm.affinity.len(),
            rate_micro: Self::rate_micro(vm, by_weight.get(at).copied().unwrap_or(0.0)),
            hidden: vm.hidden,
        };
        let known: Vec<WatchedVm> = self.setup.vms.iter().enumerate().map(known).collect();
        let (cpus, from) = (self.setup.host.cpus(), self.setup.warmup);
        let mut recorder = Recorder::new(cpus, &known, from, super::model::PERIOD_NS);
        let mut engine = Engine::new(self.setup.clone(), self.scheduler());
        engine.watch();
        engine.begin();
        let mut told = 0;
        loop {
            engine.facts().for_each(|fact| recorder.see(&fact, spans));
            if engine.events().is_multiple_of(LOOK) {
                more(engine.now() - told);
                told = engine.now();
                if stop() {
                    return None;
                }
            }
            if !engine.advance(end) {
                break;
            }
        }
        more(end - told.min(end));
        let schedule = recorder.finish(end, spans);
        let failed = engine.scheduler().failed();
        Some(Observed { seed: self.setup.seed, outcome: engine.finish(), schedule, failed })
    }

    /// The plan with nothing but this VM and the host's own threads, all the time and without limits.
    pub(crate) fn only(&self, vm: usize) -> Self {
        let mut plan = self.clone();
        let mut at = 0..;
        plan.setup.vms.retain(|other| at.next() == Some(vm) || other.hidden);
        plan.setup.cgroups.clear();
        for vm in &mut plan.setup.vms {
            (vm.cgroup, vm.cap, vm.life) = (0, 0, Life::WHOLE);
        }
        plan
    }

    /// CPUs that each VM has by its weight, of those that it shares with others ([`Pool`]), over the time that it exists.
    /// It has no more than its cap, and with cgroups no more than its vCPUs and its limits.
    pub fn by_weight(&self) -> Vec<f64> {
        let shown = self.setup.vms.iter().filter(|vm| !vm.hidden).count();
        let mut all = vec![0.0; shown];
        for (from, until) in self.epochs() {
            for pool in Pool::all(&self.setup, from) {
                for (vm, cpus) in pool.vms.iter().zip(self.by_weight_of(&pool)) {
                    all[*vm] += cpus * (until - from) as f64 / self.lived(*vm) as f64;
                }
            }
        }
        all
    }

    fn by_weight_of(&self, pool: &Pool) -> Vec<f64> {
        let vms = &pool.vms;
        if !self.setup.cgroups.is_empty() {
            let vcpus: Vec<u64> = vms.iter().map(|vm| self.vcpus_milli(*vm)).collect();
            let shares = tree::divide(&self.setup, vms, pool.cpus(), &vcpus);
            return shares.into_iter().map(|milli| milli as f64 / 1000.0).collect();
        }
        let weight = |vm: &usize| f64::from(self.setup.vms[*vm].weight);
        let weights: f64 = vms.iter().map(weight).sum();
        let share = |vm: &usize| pool.cpus() as f64 * weight(vm) / weights.max(1.0);
        vms.iter().map(|vm| share(vm).min(self.cap_milli(*vm) as f64 / 1000.0)).collect()
    }

    /// What a VM's cap leaves it, thousandths of a CPU.
    fn cap_milli(&self, vm: usize) -> u64 {
        match self.setup.vms[vm].cap {
            0 => u64::MAX,
            cap => u64::from(cap) * 10,
        }
    }

    fn vcpus_milli(&self, vm: usize) -> u64 {
        self.setup.vms[vm].affinity.len() as u64 * 1000
    }

    /// Times in which the same VMs exist, of the time that is measured.
    fn epochs(&self) -> Vec<(u64, u64)> {
        let (begin, end) = (self.setup.warmup, self.setup.warmup + self.setup.duration);
        let lives = self.setup.vms.iter().flat_map(|vm| [vm.life.from, vm.life.until]);
        let mut at: Vec<u64> = lives.filter(|at| (begin..end).contains(at)).collect();
        at.extend([begin, end]);
        at.sort_unstable();
        at.dedup();
        at.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }

    /// For how long a VM exists of the time that is measured, nanoseconds; 1 at least.
    fn lived(&self, vm: usize) -> u64 {
        let (begin, end) = (self.setup.warmup, self.setup.warmup + self.setup.duration);
        self.setup.vms[vm].life.within(begin, end).max(1)
    }

    /// Millionths of a CPU that each of its vCPUs has of so many CPUs, a whole one at most.
    fn rate_micro(vm: &VmSetup, cpus: f64) -> u64 {
        let vcpus = vm.affinity.len().max(1) as f64;
        (cpus / vcpus * 1e6).min(1e6) as u64
    }

    /// The quantum of the Lag model.
    pub fn quantum(&self) -> u64 {
        self.scheduler().quantum(self.setup.host.cpus())
    }

    /// Each VM's fair share of the CPUs that it shares with others ([`Pool`]), in thousandths of a CPU, over the time that it
    /// exists: by weight at each level of the tree of cgroups, nobody more than it uses alone (or, where that is not known,
    /// than its vCPUs) or than its limits, and what one does not use goes to the others.
    pub fn fair_shares(&self, alone: &[Option<Alone>]) -> Vec<u64> {
        let mut shares = vec![0u128; alone.len()];
        let most = |vm: &usize| {
            let wants = alone[*vm].as_ref().map_or(self.vcpus_milli(*vm), |alone| alone.cpus_milli);
            wants.min(self.cap_milli(*vm))
        };
        for (from, until) in self.epochs() {
            for pool in Pool::all(&self.setup, from) {
                let most: Vec<u64> = pool.vms.iter().map(most).collect();
                let own = tree::divide(&self.setup, &pool.vms, pool.cpus(), &most);
                for (vm, share) in pool.vms.iter().zip(own) {
                    shares[*vm] += u128::from(share) * u128::from(until - from);
                }
            }
        }
        let mean = |(vm, sum): (usize, u128)| (sum / u128::from(self.lived(vm))) as u64;
        shares.into_iter().enumerate().map(mean).collect()
    }

    /// For each VM the first that is like it: alone they do the same.
    fn like(&self) -> Vec<usize> {
        let vms: Vec<&VmSetup> = self.setup.vms.iter().filter(|vm| !vm.hidden).collect();
        let same = |a: usize, b: usize| {
            vms[a].workload == vms[b].workload
                && vms[a].service == vms[b].service
                && vms[a].affinity == vms[b].affinity
                && vms[a].memory == vms[b].memory
        };
        (0..vms.len()).map(|vm| (0..vm).find(|other| same(*other, vm)).unwrap_or(vm)).collect()
    }

    /// Simulated nanoseconds of all runs behind the reports of so many seeds.
    pub fn work(&self, seeds: u64) -> u64 {
        let end = self.setup.warmup.saturating_add(self.setup.duration);
        end.saturating_mul(self.jobs().len() as u64).saturating_mul(seeds)
    }

    /// The runs of one seed: the scenario, then each different VM alone, if it is not alone anyway.
    fn jobs(&self) -> Vec<Option<usize>> {
        let like = self.like();
        let alone = (0..like.len()).filter(|vm| like.len() > 1 && like[*vm] == *vm).map(Some);
        std::iter::once(None).chain(alone).collect()
    }

    /// Simulates it with `seeds` seeds, from its own on, and every different VM alone, and says what
    /// came of each; `spans` has the first seed's schedule. Once `stop` says so no run goes on: the
    /// reports are those of scenarios that were finished, without VMs alone that were not.
    pub fn reports(
        &self,
        seeds: u64,
        spans: &mut dyn Spans,
        more: Progress<'_>,
        stop: Stop<'_>,
    ) -> Vec<SimulationReport> {
        let (jobs, spans) = (self.jobs(), Mutex::new(spans));
        let all: Vec<(u64, Option<usize>)> =
            (0..seeds).flat_map(|seed| jobs.iter().map(move |job| (seed, *job))).collect();
        let run = |(seed, job): &(u64, Option<usize>)| {
            let mut plan = job.map_or_else(|| self.clone(), |vm| self.only(vm));
            plan.setup.seed = self.setup.seed.wrapping_add(*seed);
            if stop() {
                return None;
            }
            if *seed == 0
                && job.is_none()
                && let Ok(mut spans) = spans.lock()
            {
                return plan.observe(*spans, more, stop);
            }
            plan.observe(&mut (), more, stop)
        };
        let runs: Vec<Option<Observed>> = all.par_iter().with_max_len(1).map(run).collect();
        let like = self.like();
        let report = |runs: &[Option<Observed>]| {
            let observed = runs.first()?.as_ref()?;
            let alone = |vm: &usize| {
                let job = jobs.iter().position(|job| *job == Some(*vm)).unwrap_or(0);
                runs.get(job)?.as_ref().map(Alone::of)
            };
            let alone: Vec<Option<Alone>> = like.iter().map(alone).collect();
            Some(SimulationReport::new(self, observed, &alone))
        };
        runs.chunks(jobs.len()).filter_map(report).collect()
    }

    /// The report of its own seed.
    pub fn report(&self) -> Option<SimulationReport> {
        self.reports(1, &mut (), &|_| (), &|| false).pop()
    }
}
