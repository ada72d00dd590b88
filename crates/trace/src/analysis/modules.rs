//! Competing modules (systems.md, 1): every second, for every core, the product of the utilisations
//! of its threads, summed over pairs and cores; the mean over the seconds. And the time in which two
//! threads of a core were busy while another core was wholly idle, which nobody needed.

use instep_core::topology::Topology;
use instep_core::units::{CpuId, Nanos};

const SECOND: Nanos = Nanos(1_000_000_000);
/// More seconds at a stretch without any switch are passed over.
const MAX_GAP: u64 = 100_000;

/// Of the host.
#[derive(Debug)]
pub(super) struct Modules {
    /// CPUs of each core with several.
    cores: Vec<Vec<usize>>,
    /// Core of each CPU.
    core_of: Vec<usize>,
    cpus: Vec<Cpu>,
    /// Busy threads of each core, and those of which anything is known yet.
    busy: Vec<u32>,
    known: Vec<usize>,
    /// Cores with two busy threads, and cores known to have none.
    shared: u32,
    idle: u32,
    avoidable: Nanos,
    last: Nanos,
    end: Nanos,
    begin: Nanos,
    /// Sum over windows of the sum over cores, times the window's length.
    weighted: f64,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    is_known: bool,
    is_busy: bool,
    since: Nanos,
    busy: Nanos,
}

impl Modules {
    /// `None` when no core has several threads: nothing can compete.
    pub(super) fn new(topology: &Topology, begin: Nanos) -> Option<Self> {
        let highest = topology.cpus().last()?.id.0 as usize;
        let mut core_of = vec![usize::MAX; highest + 1];
        let mut cores = Vec::new();
        for (core, cpus) in topology.cores().iter().enumerate() {
            let cpus: Vec<usize> = cpus.iter().map(|cpu| cpu.0 as usize).collect();
            cpus.iter().for_each(|cpu| core_of[*cpu] = core);
            cores.push(cpus);
        }
        cores.iter().any(|cpus| cpus.len() > 1).then(|| Modules {
            busy: vec![0; cores.len()],
            known: vec![0; cores.len()],
            shared: 0,
            idle: 0,
            cpus: vec![Cpu { since: begin, ..Cpu::default() }; core_of.len()],
            cores,
            core_of,
            avoidable: Nanos(0),
            last: begin,
            end: Nanos(begin.0.saturating_add(SECOND.0)),
            begin,
            weighted: 0.0,
        })
    }

    /// A CPU becomes busy or idle.
    pub(super) fn set(&mut self, cpu: CpuId, is_busy: bool, time: Nanos) {
        let at = cpu.0 as usize;
        let Some(core) = self.core_of.get(at).copied().filter(|core| *core != usize::MAX) else {
            return;
        };
        if time >= self.end {
            self.close(time);
        }
        let cpu = &mut self.cpus[at];
        if cpu.is_known && cpu.is_busy == is_busy {
            return;
        }
        if self.shared > 0 && self.idle > 0 {
            self.avoidable.0 += time.since(self.last).0;
        }
        self.last = time;
        let (was_shared, was_idle) = (self.busy[core] > 1, self.is_idle(core));
        let cpu = &mut self.cpus[at];
        cpu.upto(time);
        self.known[core] += usize::from(!cpu.is_known);
        self.busy[core] -= u32::from(cpu.is_busy);
        self.busy[core] += u32::from(is_busy);
        (cpu.is_known, cpu.is_busy) = (true, is_busy);
        self.shared = self.shared + u32::from(self.busy[core] > 1) - u32::from(was_shared);
        self.idle = self.idle + u32::from(self.is_idle(core)) - u32::from(was_idle);
    }

    /// Whether all threads of a core are known to be idle.
    fn is_idle(&self, core: usize) -> bool {
        self.busy[core] == 0 && self.known[core] == self.cores[core].len()
    }

    fn close(&mut self, time: Nanos) {
        if time.since(self.end).0 / SECOND.0 > MAX_GAP {
            self.window(time);
        }
        while time >= self.end && self.end.0 < u64::MAX {
            let end = self.end;
            self.window(end);
        }
    }

    /// Ends a window at `end` and begins the next.
    fn window(&mut self, end: Nanos) {
        self.cpus.iter_mut().for_each(|cpu| cpu.upto(end));
        let length = end.since(self.begin);
        if length.0 > 0 {
            let part = |cpu: &usize| self.cpus[*cpu].busy.0 as f64 / length.0 as f64;
            let core = |cpus: &Vec<usize>| -> f64 {
                let parts: Vec<f64> = cpus.iter().map(part).collect();
                let pairs = (0..parts.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
                pairs.map(|(a, b)| parts[a] * parts[b]).sum()
            };
            self.weighted += self.cores.iter().map(core).sum::<f64>() * length.0 as f64;
        }
        self.cpus.iter_mut().for_each(|cpu| cpu.busy = Nanos(0));
        self.begin = end;
        self.end = Nanos(end.0.saturating_add(SECOND.0));
    }

    /// The mean of competing modules from `begin` to `now`, and the avoidable time.
    pub(super) fn finish(&mut self, begin: Nanos, now: Nanos) -> (f64, Nanos) {
        self.close(now);
        self.window(now);
        if self.shared > 0 && self.idle > 0 {
            self.avoidable.0 += now.since(self.last).0;
        }
        let whole = now.since(begin).0 as f64;
        (if whole > 0.0 { self.weighted / whole } else { 0.0 }, self.avoidable)
    }
}

impl Cpu {
    fn upto(&mut self, time: Nanos) {
        if self.is_busy {
            self.busy.0 += time.since(self.since).0;
        }
        self.since = self.since.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::idset::IdSet;
    use instep_core::topology::CpuFacts;

    /// Cores 0-1 and 2-3.
    fn topology() -> Topology {
        let cpu = |id: u32| CpuFacts {
            id,
            thread_siblings: Some(IdSet::parse_list(if id < 2 { "0-1" } else { "2-3" }).unwrap()),
            ..CpuFacts::default()
        };
        Topology::build((0..4).map(cpu).collect(), Vec::new()).unwrap()
    }

    #[test]
    fn half_and_half_of_one_core_count_a_quarter() {
        let mut modules = Modules::new(&topology(), Nanos(0)).unwrap();
        let second = 1_000_000_000;
        modules.set(CpuId(0), true, Nanos(0));
        modules.set(CpuId(0), false, Nanos(second / 2));
        modules.set(CpuId(1), true, Nanos(second / 2));
        modules.set(CpuId(1), false, Nanos(second));
        let (mean, avoidable) = modules.finish(Nanos(0), Nanos(second));
        assert!((mean - 0.25).abs() < 1e-9, "{mean}");
        assert_eq!(avoidable, Nanos(0));
    }

    #[test]
    fn two_on_a_core_beside_an_idle_one_were_avoidable() {
        let mut modules = Modules::new(&topology(), Nanos(0)).unwrap();
        modules.set(CpuId(3), false, Nanos(0));
        modules.set(CpuId(2), false, Nanos(0));
        modules.set(CpuId(0), true, Nanos(0));
        modules.set(CpuId(1), true, Nanos(100));
        modules.set(CpuId(2), true, Nanos(150));
        let (_, avoidable) = modules.finish(Nanos(0), Nanos(400));
        assert_eq!(avoidable, Nanos(50));
    }
}
