//! Co-run and skew of each VM of a trace, as [`instep_core::measure`] defines them.

use super::world::World;
use instep_core::measure::VmMeter;
use instep_core::measure::skew::{SchedState, Siblings, Skew, VcpuChange};
use instep_core::units::Nanos;

/// Of all VMs.
#[derive(Debug)]
pub(super) struct CoRun {
    vms: Vec<CoRunTally>,
    skew: Vec<Skew>,
}

#[derive(Clone, Debug, Default)]
struct CoRunTally {
    meter: VmMeter,
    siblings: Siblings,
    at: Nanos,
    max_skew: Nanos,
}

/// What it comes to for one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VmCoRun {
    /// Mean fraction, in thousandths, of the runnable that run while at least one runs; `None` when none ran.
    pub(super) milli: Option<u64>,
    /// Time of vCPUs that ran while a sibling waited.
    pub(super) beside_waiting: Nanos,
    pub(super) max_skew: Nanos,
}

impl CoRun {
    pub(super) fn new(vms: usize, vcpus: usize, begin: Nanos) -> Self {
        let vm = CoRunTally { at: begin, ..CoRunTally::default() };
        CoRun { vms: vec![vm; vms], skew: vec![Skew::default(); vcpus] }
    }

    pub(super) fn change(&mut self, change: &VcpuChange) {
        let vm = &mut self.vms[change.vm];
        vm.upto(change.time);
        let behind = self.skew[change.vcpu].advance(change.from, &vm.siblings);
        vm.max_skew = vm.max_skew.max(Nanos(behind));
        vm.siblings.leave(change.from);
        vm.siblings.enter(change.to);
        let [(was_runnable, ran), (is_runnable, runs)] = [change.from, change.to]
            .map(|place| (place.is_waiting(), matches!(place, SchedState::Running(_))))
            .map(|(waits, runs)| (i32::from(waits || runs), i32::from(runs)));
        vm.meter.runnable(change.time.0, is_runnable - was_runnable);
        vm.meter.running(change.time.0, runs - ran);
    }

    /// A VM's measures up to the end of the trace.
    pub(super) fn of(&mut self, vm: usize, now: Nanos, world: &World) -> VmCoRun {
        let state = &mut self.vms[vm];
        state.upto(now);
        for vcpu in &world.members[vm] {
            let place = world.vcpus[*vcpu].place;
            if place.is_waiting() {
                let behind = self.skew[*vcpu].advance(place, &state.siblings);
                state.max_skew = state.max_skew.max(Nanos(behind));
            }
        }
        state.measures(now)
    }
}

impl CoRunTally {
    fn upto(&mut self, time: Nanos) {
        self.siblings.pass(time.since(self.at).0);
        self.at = self.at.max(time);
    }

    fn measures(&mut self, now: Nanos) -> VmCoRun {
        let sums = self.meter.sums(now.0);
        VmCoRun {
            milli: (sums.active > 0).then(|| sums.co_run().0),
            beside_waiting: self.siblings.beside_waiting(),
            max_skew: self.max_skew,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    fn change(time: u64, vcpu: usize, from: SchedState, to: SchedState) -> VcpuChange {
        VcpuChange { time: Nanos(time), vcpu, vm: 0, from, to, since: Nanos(0) }
    }

    #[test]
    fn one_of_two_running_is_half_and_the_other_falls_behind() {
        let mut co_run = CoRun::new(1, 2, Nanos(0));
        let (run, wait) = (SchedState::Running(CpuId(0)), SchedState::Waiting(CpuId(1)));
        co_run.change(&change(0, 0, SchedState::Unknown, run));
        co_run.change(&change(0, 1, SchedState::Unknown, wait));
        co_run.change(&change(100, 1, wait, SchedState::Running(CpuId(1))));
        let vm = &mut co_run.vms[0];
        vm.upto(Nanos(200));
        let found = vm.measures(Nanos(200));
        let (beside_waiting, max_skew) = (Nanos(100), Nanos(100));
        assert_eq!(found, VmCoRun { milli: Some(750), beside_waiting, max_skew });
    }
}
