//! For how many CPUs' worth of a VM's threads CPU limits hold them: rates of the scheduler's counters between two looks. To the
//! kernel such a thread waits for a CPU; whoever shows steal takes it out.

use super::VmInForce;
use instep_core::snapshot::{Vm, take_from_steal};
use instep_core::units::{Nanos, Tid};
use std::collections::BTreeMap;
use std::time::Duration;

/// The counters at the last look, and the rates since the one before.
#[derive(Debug, Default)]
pub(super) struct HeldRates {
    at: Option<Duration>,
    /// VMs by their first vCPU's thread: how long limits held it, and in thousandths of a CPU.
    vms: BTreeMap<Tid, (u64, u32)>,
}

impl HeldRates {
    /// Takes the counters of these VMs at `now`, a clock that never goes back.
    pub(super) fn update(&mut self, vms: &[VmInForce], now: Duration) {
        let elapsed = self.at.replace(now).map_or(0, |at| now.saturating_sub(at).as_nanos() as u64);
        let rate = |vm: &VmInForce| {
            let tid = vm.vcpus.first()?.tid;
            let before = self.vms.get(&tid).map_or(vm.held_ns, |before| before.0);
            let held = u128::from(vm.held_ns.saturating_sub(before)) * 1000;
            let milli = held.checked_div(u128::from(elapsed)).unwrap_or(0);
            Some((tid, (vm.held_ns, u32::try_from(milli).unwrap_or(u32::MAX))))
        };
        self.vms = vms.iter().filter_map(rate).collect();
    }

    /// The same VMs with their rates.
    pub(super) fn add_to(&self, mut vms: Vec<VmInForce>) -> Vec<VmInForce> {
        for vm in &mut vms {
            let known = vm.vcpus.first().and_then(|vcpu| self.vms.get(&vcpu.tid));
            vm.held_milli_cpus = known.map_or(0, |known| known.1);
        }
        vms
    }
}

/// Counts what limits held of these VMs as throttled and no longer as steal, by the scheduler's last word on the VMs in force.
pub fn take_held(vms: &mut [Vm], window: Nanos, in_force: &[VmInForce]) {
    for told in in_force.iter().filter(|told| told.held_milli_cpus > 0) {
        let is_this = |vm: &&mut Vm| {
            let first = told.vcpus.first().map(|vcpu| vcpu.tid);
            vm.vcpus.iter().any(|vcpu| Some(vcpu.tid) == first)
        };
        if let Some(vm) = vms.iter_mut().find(is_this) {
            let held = u128::from(window.0) * u128::from(told.held_milli_cpus) / 1000;
            let held = take_from_steal(&mut vm.vcpus, Nanos(held as u64));
            vm.throttled = Nanos(vm.throttled.0 + held.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::in_force::VcpuInForce;

    fn vm(tid: u32, held_ns: u64) -> VmInForce {
        let vcpus =
            vec![VcpuInForce { tid: Tid(tid), waits: super::super::WaitsInForce::default() }];
        VmInForce { held_ns, vcpus, ..VmInForce::default() }
    }

    #[test]
    fn a_rate_is_that_of_the_last_look() {
        let mut rates = HeldRates::default();
        let rate = |rates: &HeldRates, tid| rates.add_to(vec![vm(tid, 0)])[0].held_milli_cpus;
        rates.update(&[vm(7, 5_000_000_000)], Duration::from_secs(1));
        assert_eq!(rate(&rates, 7), 0, "nothing is known of a VM that is new");
        rates.update(&[vm(7, 6_600_000_000), vm(8, 9)], Duration::from_secs(3));
        assert_eq!((rate(&rates, 7), rate(&rates, 8)), (800, 0));
        rates.update(&[vm(7, 0)], Duration::from_secs(4));
        assert_eq!(rate(&rates, 7), 0, "its entry was begun anew");
    }
}
