//! Co-run and skew (docs/systems.md, 3): how many of a VM's runnable vCPUs run while at least
//! one does, and how far a waiting one falls behind.
//!
//! A vCPU's skew grows while it waits and a sibling runs, and shrinks while it runs and a sibling
//! waits, not below zero: what relaxed co-scheduling bounds.

use super::world::{Change, Place, World};
use instep_core::units::Nanos;

/// Of all VMs.
#[derive(Debug)]
pub(super) struct CoRun {
    vms: Vec<Vm>,
    skew: Vec<Skew>,
}

/// A VM's counts and what they add up to.
#[derive(Clone, Debug, Default)]
pub(super) struct Vm {
    running: u32,
    waiting: u32,
    at: Nanos,
    /// Time with at least one running, and the same weighted by the fraction of the runnable that
    /// run, in 1/1000.
    pub(super) active: Nanos,
    weighted: u128,
    /// Time of vCPUs that run while a sibling waits.
    pub(super) beside_waiting: Nanos,
    /// Time with at least one running, and with at least one waiting: the clocks of skew.
    any_running: Nanos,
    any_waiting: Nanos,
    pub(super) max_skew: Nanos,
}

/// A vCPU's skew, and its VM's two clocks when that was last brought up to date.
#[derive(Clone, Copy, Debug, Default)]
struct Skew {
    behind: Nanos,
    running: Nanos,
    waiting: Nanos,
}

impl CoRun {
    pub(super) fn new(vms: usize, vcpus: usize, begin: Nanos) -> Self {
        let vm = Vm { at: begin, ..Vm::default() };
        CoRun { vms: vec![vm; vms], skew: vec![Skew::default(); vcpus] }
    }

    pub(super) fn change(&mut self, change: &Change) {
        let vm = &mut self.vms[change.vm];
        vm.upto(change.time);
        let skew = &mut self.skew[change.vcpu];
        let ran = vm.any_running.since(skew.running);
        let waited = vm.any_waiting.since(skew.waiting);
        match change.from {
            Place::Waking | Place::Waiting(_) => skew.behind.0 += ran.0,
            Place::Running(_) => skew.behind = skew.behind.since(waited),
            // Who sleeps owes nobody anything.
            Place::Blocked | Place::Unknown => skew.behind = Nanos(0),
        }
        (skew.running, skew.waiting) = (vm.any_running, vm.any_waiting);
        vm.max_skew = vm.max_skew.max(skew.behind);
        vm.count(change.from, false);
        vm.count(change.to, true);
    }

    /// A VM's sums up to the end of the trace.
    pub(super) fn of(&mut self, vm: usize, now: Nanos, world: &World) -> &Vm {
        let vm_state = &mut self.vms[vm];
        vm_state.upto(now);
        for vcpu in &world.members[vm] {
            if world.vcpus[*vcpu].place.is_waiting() {
                let skew = &self.skew[*vcpu];
                let behind = skew.behind.0 + vm_state.any_running.since(skew.running).0;
                vm_state.max_skew = vm_state.max_skew.max(Nanos(behind));
            }
        }
        vm_state
    }
}

impl Vm {
    fn upto(&mut self, time: Nanos) {
        let span = time.since(self.at);
        self.at = self.at.max(time);
        if self.running > 0 {
            self.active.0 += span.0;
            let milli = u64::from(self.running) * 1000 / u64::from(self.running + self.waiting);
            self.weighted += u128::from(span.0) * u128::from(milli);
            self.any_running.0 += span.0;
        }
        if self.waiting > 0 {
            self.any_waiting.0 += span.0;
            self.beside_waiting.0 += span.0 * u64::from(self.running);
        }
    }

    fn count(&mut self, place: Place, enters: bool) {
        let count = match place {
            Place::Running(_) => &mut self.running,
            Place::Waking | Place::Waiting(_) => &mut self.waiting,
            Place::Blocked | Place::Unknown => return,
        };
        *count = if enters { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Mean fraction, in thousandths, of the runnable that run while at least one runs; `None` when
    /// none ran.
    pub(super) fn milli(&self) -> Option<u64> {
        self.weighted.checked_div(u128::from(self.active.0)).map(|milli| milli as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    fn change(time: u64, vcpu: usize, from: Place, to: Place) -> Change {
        Change { time: Nanos(time), vcpu, vm: 0, from, to, since: Nanos(0) }
    }

    #[test]
    fn one_of_two_running_is_half_and_the_other_falls_behind() {
        let mut co_run = CoRun::new(1, 2, Nanos(0));
        let (run, wait) = (Place::Running(CpuId(0)), Place::Waiting(CpuId(1)));
        co_run.change(&change(0, 0, Place::Unknown, run));
        co_run.change(&change(0, 1, Place::Unknown, wait));
        co_run.change(&change(100, 1, wait, Place::Running(CpuId(1))));
        let vm = &mut co_run.vms[0];
        vm.upto(Nanos(200));
        assert_eq!(vm.milli(), Some(750));
        assert_eq!((vm.beside_waiting, vm.max_skew), (Nanos(100), Nanos(100)));
    }
}
