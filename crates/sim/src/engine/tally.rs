//! What a run counts, and the sums at its end.

use super::Engine;
use crate::context::Waker;
use crate::params::{ONE, PERIOD_NS};
use instep_core::measure::{self, VmSums};
use std::cmp::Reverse;

/// Waits that ended so: how many, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// Nanoseconds in all.
    pub ns: u64,
}

/// What is counted of one VM since warming up ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmTally {
    /// Units of throughput that programs counted.
    pub units: u64,
    /// Work done in `Burn` and pools, in 1024ths of a nanosecond.
    pub done: u128,
    /// Nanoseconds in which threads made progress, summed.
    pub progress: u64,
    /// Of these, those of the thread that made most.
    pub longest: u64,
    /// Nanoseconds in which they spun.
    pub spun: u64,
    /// The same in each whole allocation period.
    pub spun_in: Vec<u64>,
    /// Times a vCPU blocked.
    pub blocks: u64,
    /// Times a vCPU began to run on another CPU than before.
    pub migrations: u64,
    /// Tasks given away under work stealing.
    pub steals: u64,
    /// CPU time times the part of the memory that was local to it, 1024ths of a nanosecond.
    pub local: u128,
    /// CPU time on each node, nanoseconds.
    pub on_node: Vec<u64>,
    /// Part of its memory, at the end, on the node where it had most CPU time: 1024ths.
    pub home: u32,
    /// Blocked time of each vCPU by who ended it: siblings, timers, devices; nanoseconds.
    pub by_vcpu: Vec<[u64; 3]>,
    /// Blocked time by who ended it: siblings.
    pub by_sibling: Waits,
    /// Timers.
    pub by_timer: Waits,
    /// Devices.
    pub by_io: Waits,
    /// How late periodic threads woke: how many, and nanoseconds.
    pub lateness: Waits,
    /// The latest, nanoseconds.
    pub latest: u64,
    /// Integrals over time.
    pub sums: VmSums,
    /// For how long it existed, nanoseconds.
    pub lived: u64,
    /// From the start of its first load to the end of it, nanoseconds, warming up included; nothing when it has
    /// no end, or did not come to it.
    pub took: Option<u64>,
}

impl VmTally {
    /// Of a VM of so many vCPUs on so many nodes, for so many allocation periods.
    pub(super) fn new(vcpus: usize, nodes: usize, periods: usize) -> Self {
        Self {
            on_node: vec![0; nodes],
            by_vcpu: vec![[0; 3]; vcpus],
            spun_in: vec![0; periods],
            ..Self::default()
        }
    }

    /// A thread spun in this time, nanoseconds since warming up ended.
    pub(super) fn spins(&mut self, since: u64, until: u64) {
        let mut from = since;
        while from < until {
            let period = from / PERIOD_NS;
            let to = until.min((period + 1).saturating_mul(PERIOD_NS));
            if let Some(sum) = self.spun_in.get_mut(period as usize) {
                *sum += to - from;
            }
            from = to;
        }
    }

    /// A wait of `ns` nanoseconds of a vCPU ended.
    pub(super) fn waited(&mut self, vcpu: u32, by: Waker, ns: u64) {
        let (waits, kind) = match by {
            Waker::Start => return,
            Waker::Sibling(_) => (&mut self.by_sibling, 0),
            Waker::Timer => (&mut self.by_timer, 1),
            Waker::Io => (&mut self.by_io, 2),
        };
        waits.count += 1;
        waits.ns += ns;
        self.by_vcpu[vcpu as usize][kind] += ns;
    }

    /// A periodic thread woke so late.
    pub(super) fn late(&mut self, ns: u64) {
        self.lateness.count += 1;
        self.lateness.ns += ns;
        self.latest = self.latest.max(ns);
    }
}

/// What is counted of the host since warming up ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTally {
    /// Times a CPU began to run another task than before.
    pub switches: u64,
    /// Times a task was taken off its CPU though it could go on.
    pub preemptions: u64,
    /// Pause-loop exits.
    pub yields: u64,
    /// Times a VM's bottleneck was put first, if the scheduler does that.
    pub boosts: Option<u64>,
    /// Busy time of each CPU, nanoseconds.
    pub busy: Vec<u64>,
    /// CPU time of the host's own threads, nanoseconds.
    pub own: u64,
    /// Competing modules, millionths times nanoseconds.
    pub competing: u128,
}

/// The sums of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTotals {
    /// Events in all, warming up included.
    pub events: u64,
    /// Nanoseconds measured.
    pub duration: u64,
    /// For each VM its name, what a unit of its throughput is, and its sums.
    pub vms: Vec<(String, &'static str, VmTally)>,
    /// The host.
    pub host: HostTally,
}

impl RunTotals {
    /// Throughput of a VM in thousandths of a unit a second. Work that programs do not count
    /// counts in microseconds.
    pub fn throughput_milli(&self, vm: usize) -> u64 {
        let tally = &self.vms[vm].2;
        let micros = tally.done / u128::from(ONE * 1000);
        let units = if micros > 0 { micros } else { u128::from(tally.units) };
        let rate = units * 1_000_000_000_000 / u128::from(tally.lived.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Mean competing modules in millionths.
    pub fn competing_micro(&self) -> u64 {
        let mean = self.host.competing / u128::from(self.duration.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }
}

impl Engine {
    /// Everything is counted from now on.
    pub(super) fn reset(&mut self) {
        let now = self.ctx.now;
        self.ctx.meters.iter_mut().for_each(|meter| meter.reset(now));
        for tally in &mut self.tally {
            let periods = tally.spun_in.len();
            *tally = VmTally::new(tally.by_vcpu.len(), tally.on_node.len(), periods);
        }
        self.boosts_before = self.sched.boosts().unwrap_or(0);
        self.threads.iter_mut().for_each(|thread| thread.did = 0);
        self.busy.iter_mut().for_each(|busy| *busy = 0);
        let cpus = self.busy.len();
        self.host_tally = super::HostTally { busy: vec![0; cpus], ..Default::default() };
    }

    /// The window since the last sample ends.
    pub(super) fn take_sample(&mut self) {
        let window = self.ctx.now - self.sampled;
        let cores = self.ctx.host.cores.iter().map(|core| core.iter());
        let competing = measure::competing_modules(&self.busy, window, cores);
        let sums = &mut self.host_tally;
        sums.competing += u128::from(competing) * u128::from(window);
        sums.busy.resize(self.busy.len(), 0);
        for (sum, busy) in sums.busy.iter_mut().zip(&mut self.busy) {
            *sum += std::mem::take(busy);
        }
    }

    /// The end.
    pub(super) fn sum_up(mut self) -> RunTotals {
        if self.sampled < self.ctx.now {
            self.sample();
        }
        let now = self.ctx.now;
        for thread in self.threads.iter().filter(|thread| thread.measured) {
            let longest = &mut self.tally[thread.vm].longest;
            *longest = (*longest).max(thread.did);
        }
        for (tally, memory) in self.tally.iter_mut().zip(&self.memory) {
            let most = tally.on_node.iter().enumerate().max_by_key(|(at, ns)| (**ns, Reverse(*at)));
            tally.home = most.and_then(|(node, _)| memory.get(node)).copied().unwrap_or(0);
        }
        self.host_tally.boosts = self.sched.boosts().map(|all| all - self.boosts_before);
        let sums = self.ctx.meters.iter_mut().map(|meter| meter.sums(now));
        let tallies =
            self.tally.into_iter().zip(sums).map(|(tally, sums)| VmTally { sums, ..tally });
        let (from, until) = (self.warmup.min(now), now);
        let tallies =
            tallies.zip(self.lives.into_iter().zip(self.runs)).map(|(tally, (life, run))| {
                VmTally { lived: life.within(from, until), took: run.took, ..tally }
            });
        let named = self.names.into_iter().zip(self.units).zip(tallies);
        let vms = named.map(|((name, unit), tally)| (name, unit, tally)).zip(self.hidden);
        let (hidden, vms): (Vec<_>, Vec<_>) = vms.partition(|(_, hidden)| *hidden);
        self.host_tally.own = hidden.iter().map(|(vm, _)| vm.2.sums.running).sum();
        RunTotals {
            events: self.events,
            duration: now - self.warmup.min(now),
            vms: vms.into_iter().map(|(vm, _)| vm).collect(),
            host: self.host_tally,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_is_reported_by_allocation_period() {
        let mut tally = VmTally::new(1, 1, 3);
        tally.spins(0, 0);
        tally.spins(PERIOD_NS - 5, 2 * PERIOD_NS + 7);
        tally.spins(2 * PERIOD_NS + 7, 2 * PERIOD_NS + 8);
        // The last period is not whole.
        tally.spins(3 * PERIOD_NS - 1, 3 * PERIOD_NS + 9);
        assert_eq!(tally.spun_in, [5, PERIOD_NS, 9]);
    }
}
