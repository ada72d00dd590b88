//! Use of allocation periods (systems.md, 5): how much CPU time each VM used per period, against
//! its fair share, of which what is unused expires.
//!
//! The share is by weight, where weights are known, at most one CPU per vCPU.

use super::world::{SchedState, VcpuChange};
use instep_core::units::Nanos;

/// More periods at a stretch without any event are passed over.
const MAX_GAP: u64 = 100_000;

/// Of all VMs.
#[derive(Debug)]
pub(super) struct Periods {
    length: Nanos,
    end: Nanos,
    vms: Vec<Use>,
}

/// A VM's use of its periods.
#[derive(Clone, Debug, Default)]
pub(super) struct Use {
    running: u64,
    at: Nanos,
    /// CPU time in the present period.
    used: Nanos,
    share: Nanos,
    /// Whole periods.
    pub(super) count: u64,
    /// Periods in which the share was used up.
    pub(super) full: u64,
    pub(super) total: Nanos,
    /// Share that expired.
    pub(super) unused: Nanos,
    /// Sum of min(1, use / share) in thousandths.
    efficiency: u64,
}

impl Periods {
    /// `shares`: CPU time per period and VM.
    pub(super) fn new(length: Nanos, shares: Vec<Nanos>, begin: Nanos) -> Self {
        let of = |share| Use { share, at: begin, ..Use::default() };
        let end = Nanos(begin.0.saturating_add(length.0.max(1)));
        Periods { length: Nanos(length.0.max(1)), end, vms: shares.into_iter().map(of).collect() }
    }

    /// Called before the event at `time` changes anything.
    #[inline]
    pub(super) fn upto(&mut self, time: Nanos) {
        if time >= self.end {
            self.close(time);
        }
    }

    fn close(&mut self, time: Nanos) {
        if time.since(self.end).0 / self.length.0 > MAX_GAP {
            self.end = time;
            self.vms.iter_mut().for_each(|vm| (vm.at, vm.used) = (time, Nanos(0)));
        }
        while time >= self.end {
            for vm in &mut self.vms {
                vm.run_upto(self.end);
                vm.count += 1;
                vm.full += u64::from(vm.used >= vm.share);
                vm.total.0 += vm.used.0;
                vm.unused.0 += vm.share.since(vm.used).0;
                vm.efficiency += vm.used.milli_of(vm.share).0.min(1000);
                vm.used = Nanos(0);
            }
            self.end.0 = self.end.0.saturating_add(self.length.0);
            if self.end.0 == u64::MAX {
                return;
            }
        }
    }

    pub(super) fn change(&mut self, change: &VcpuChange) {
        let vm = &mut self.vms[change.vm];
        let step = |place| i64::from(matches!(place, SchedState::Running(_)));
        let difference = step(change.to) - step(change.from);
        if difference != 0 {
            vm.run_upto(change.time);
            vm.running = vm.running.saturating_add_signed(difference);
        }
    }

    pub(super) fn of(&self, vm: usize) -> &Use {
        &self.vms[vm]
    }
}

impl Use {
    fn run_upto(&mut self, time: Nanos) {
        self.used.0 =
            self.used.0.saturating_add(time.since(self.at).0.saturating_mul(self.running));
        self.at = self.at.max(time);
    }

    /// Mean of min(1, use / share), in thousandths: the potential of systems.md, 5. `None` where no
    /// period is whole.
    pub(super) fn efficiency(&self) -> Option<u64> {
        self.efficiency.checked_div(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    #[test]
    fn time_is_counted_to_the_period_in_which_it_was_used() {
        let mut periods = Periods::new(Nanos(100), vec![Nanos(50)], Nanos(0));
        let run = SchedState::Running(CpuId(0));
        let change = |time, from, to| VcpuChange {
            time: Nanos(time),
            vcpu: 0,
            vm: 0,
            from,
            to,
            since: Nanos(0),
        };
        periods.change(&change(80, SchedState::Blocked, run));
        periods.upto(Nanos(260));
        periods.change(&change(260, run, SchedState::Blocked));
        periods.upto(Nanos(300));
        let vm = periods.of(0);
        // 20, 100 and 60 of 50 each.
        assert_eq!((vm.count, vm.full, vm.total, vm.unused), (3, 2, Nanos(180), Nanos(30)));
        assert_eq!(vm.efficiency(), Some((400 + 1000 + 1000) / 3));
    }
}
