//! Stacking (docs/systems.md, 3): time in which two or more siblings are runnable on one CPU,
//! running or waiting there, per VM and by CPU.

use instep_core::measure::VmMeter;
use instep_core::measure::skew::VcpuChange;
use instep_core::units::{CpuId, Nanos};

/// Of all VMs.
#[derive(Debug)]
pub(super) struct Stacking {
    vms: Vec<StackingTally>,
}

#[derive(Clone, Debug, Default)]
struct StackingTally {
    /// Runnable siblings by CPU, since when there are two or more, and for how long in all.
    cpus: Vec<(u32, Nanos, Nanos)>,
    meter: VmMeter,
}

impl Stacking {
    pub(super) fn new(vms: usize) -> Self {
        Stacking { vms: vec![StackingTally::default(); vms] }
    }

    pub(super) fn change(&mut self, change: &VcpuChange) {
        let vm = &mut self.vms[change.vm];
        if let Some(cpu) = change.from.cpu() {
            vm.step(cpu, change.time, false);
        }
        if let Some(cpu) = change.to.cpu() {
            vm.step(cpu, change.time, true);
        }
    }

    /// Time in which siblings of this VM were stacked, up to `now`, and the same by CPU.
    pub(super) fn of(&self, vm: usize, now: Nanos) -> (Nanos, Vec<(CpuId, Nanos)>) {
        let vm = &self.vms[vm];
        let total = vm.meter.clone().sums(now.0).stacked;
        let cpus = vm.cpus.iter().enumerate().map(|(cpu, (count, since, time))| {
            let open = if *count >= 2 { now.since(*since).0 } else { 0 };
            (CpuId(cpu as u32), Nanos(time.0 + open))
        });
        (Nanos(total), cpus.filter(|(_, time)| time.0 > 0).collect())
    }
}

impl StackingTally {
    fn step(&mut self, cpu: CpuId, time: Nanos, enters: bool) {
        let at = cpu.0 as usize;
        if self.cpus.len() <= at {
            self.cpus.resize(at + 1, (0, Nanos(0), Nanos(0)));
        }
        let (count, since, total) = &mut self.cpus[at];
        if enters {
            *count += 1;
            if *count == 2 {
                *since = time;
                self.meter.stacked(time.0, 1);
            }
        } else {
            if *count == 2 {
                total.0 += time.since(*since).0;
                self.meter.stacked(time.0, -1);
            }
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::measure::skew::SchedState;

    fn change(time: u64, from: SchedState, to: SchedState) -> VcpuChange {
        VcpuChange { time: Nanos(time), vcpu: 0, vm: 0, from, to, since: Nanos(0) }
    }

    #[test]
    fn two_siblings_on_one_cpu_are_stacked_until_one_leaves() {
        let mut stacking = Stacking::new(1);
        let (here, there) = (CpuId(1), CpuId(2));
        stacking.change(&change(0, SchedState::Unknown, SchedState::Running(here)));
        stacking.change(&change(10, SchedState::Blocked, SchedState::Waiting(here)));
        assert_eq!(stacking.of(0, Nanos(15)).0, Nanos(5));
        stacking.change(&change(20, SchedState::Waiting(here), SchedState::Running(there)));
        stacking.change(&change(40, SchedState::Running(there), SchedState::Blocked));
        assert_eq!(stacking.of(0, Nanos(50)), (Nanos(10), vec![(here, Nanos(10))]));
    }

    #[test]
    fn stacks_on_two_cpus_at_once_are_one_time() {
        let mut stacking = Stacking::new(1);
        for cpu in [0, 0, 1, 1] {
            stacking.change(&change(10, SchedState::Blocked, SchedState::Waiting(CpuId(cpu))));
        }
        let (total, cpus) = stacking.of(0, Nanos(30));
        assert_eq!((total, cpus.len()), (Nanos(20), 2));
    }
}
