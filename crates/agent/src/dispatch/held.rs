//! For how many CPUs' worth of a VM's threads CPU limits hold them: rates of the scheduler's counters between two looks. To the
//! kernel such a thread waits for a CPU, so `status` and `top` take that time out of steal.

use super::VmInForce;
use instep_core::snapshot::Vm;
use instep_core::units::{Nanos, Tid};
use std::collections::BTreeMap;
use std::time::Instant;

/// The counters at the last look, and the rates since the one before.
#[derive(Debug, Default)]
pub(super) struct HeldRates {
    at: Option<Instant>,
    /// VMs by their first vCPU's thread: how long limits held it, and in thousandths of a CPU.
    vms: BTreeMap<Tid, (u64, u32)>,
}

impl HeldRates {
    /// Takes the counters at `now`, of VMs by their first vCPU's thread.
    pub(super) fn update(&mut self, counters: impl Iterator<Item = (Tid, Nanos)>, now: Instant) {
        let before = self.at.replace(now);
        let elapsed = before.map_or(0, |at| now.saturating_duration_since(at).as_nanos());
        let rate = |(tid, Nanos(held_ns))| {
            let before = self.vms.get(&tid).map_or(held_ns, |before| before.0);
            let held = u128::from(held_ns.saturating_sub(before)) * 1000;
            let milli = held.checked_div(elapsed).unwrap_or(0);
            (tid, (held_ns, u32::try_from(milli).unwrap_or(u32::MAX)))
        };
        self.vms = counters.map(rate).collect();
    }

    /// The same VMs with their rates.
    pub(super) fn add_to(&self, mut vms: Vec<VmInForce>) -> Vec<VmInForce> {
        for vm in &mut vms {
            let known = vm.vcpus.first().and_then(|vcpu| self.vms.get(&vcpu.tid));
            vm.held_milli = known.map_or(0, |known| known.1);
        }
        vms
    }
}

/// Counts what limits held of these VMs as throttled and no longer as steal, by the rates that the
/// run published last.
pub fn take_held(vms: &mut [Vm], window: Nanos, in_force: &[VmInForce]) {
    for told in in_force.iter().filter(|told| told.held_milli > 0) {
        let is_this = |vm: &&mut Vm| {
            let first = told.vcpus.first().map(|vcpu| vcpu.tid);
            vm.vcpus.iter().any(|vcpu| Some(vcpu.tid) == first)
        };
        if let Some(vm) = vms.iter_mut().find(is_this) {
            let held = u128::from(window.0) * u128::from(told.held_milli) / 1000;
            vm.count_as_throttled(Nanos(held as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::WaitsInForce;
    use crate::dispatch::in_force::VcpuInForce;
    use std::time::Duration;

    fn vm(tid: u32) -> VmInForce {
        let vcpus = vec![VcpuInForce { tid: Tid(tid), waits: WaitsInForce::default() }];
        VmInForce { vcpus, ..VmInForce::default() }
    }

    #[test]
    fn a_rate_is_that_of_the_last_look() {
        let mut rates = HeldRates::default();
        let rate = |rates: &HeldRates, tid| rates.add_to(vec![vm(tid)])[0].held_milli;
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let held = |tid, ns| (Tid(tid), Nanos(ns));
        rates.update([held(7, 5_000_000_000)].into_iter(), at(1));
        assert_eq!(rate(&rates, 7), 0, "nothing is known of a VM that is new");
        rates.update([held(7, 6_600_000_000), held(8, 9)].into_iter(), at(3));
        assert_eq!((rate(&rates, 7), rate(&rates, 8)), (800, 0));
        rates.update([held(7, 0)].into_iter(), at(4));
        assert_eq!(rate(&rates, 7), 0, "its entry was begun anew");
    }
}
