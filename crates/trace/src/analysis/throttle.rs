//! Tells time in which a quota stopped a VM from time in which others kept it from a CPU.
//!
//! No event says that a thread is throttled: in a trace it is runnable and does not run, whatever its CPU does
//! meanwhile. The recording has for how long the VM's cgroups were throttled. A wait on an idle CPU is the
//! quota's first, as a runnable thread is not left waiting there otherwise. The rest is taken from the waits beside others.
//! The kernel counts the throttled time of a CPU once, however many vCPUs wait there. So that time is held against the time
//! of CPUs on which vCPUs waited, and each vCPU there was throttled for it. Where a sibling ran, the VM's cgroup was not
//! throttled. The cgroups that libvirt makes for single vCPUs count each vCPU by itself, beside siblings, too. More than all
//! waits cannot have been throttled. Which of the waits beside others are the quota's is not known: all have their part.
//! The kernel's count ends with the refill, and a CPU learns of that a moment later. So waits on idle CPUs are the quota's for up
//! to a twentieth more than was counted.

use super::culprits::{ByOccupant, Waited};
use super::report::{AnalysedVm, Occupant, ThrottledReport};
use crate::stream::Throttled;

/// For what part of the time that the kernel counted idle CPUs do not know of a refill yet, at most.
const AFTER_REFILLS: u64 = 20;

/// Throttled time that no wait accounts for yet.
struct Left {
    /// On CPUs, of cgroups that hold all vCPUs.
    of_vm: u64,
    /// Of cgroups that hold one vCPU each.
    of_vcpus: u64,
}

/// Waits of one kind, and how much of them is the quota's.
#[derive(Clone, Copy)]
struct Share {
    waited: u64,
    throttled: u64,
}

impl Left {
    /// Takes what waits on idle CPUs account for, the moments after refills last.
    fn take_idle(&mut self, waited: Waited) -> Share {
        let more =
            Self { of_vm: self.of_vm / AFTER_REFILLS, of_vcpus: self.of_vcpus / AFTER_REFILLS };
        self.of_vm = self.of_vm.saturating_add(more.of_vm);
        self.of_vcpus = self.of_vcpus.saturating_add(more.of_vcpus);
        let share = self.take(waited);
        self.of_vm = self.of_vm.saturating_sub(more.of_vm);
        self.of_vcpus = self.of_vcpus.saturating_sub(more.of_vcpus);
        share
    }

    /// Takes what these waits account for.
    fn take(&mut self, waited: Waited) -> Share {
        let of_vcpus = self.of_vcpus.min(waited.ns);
        self.of_vcpus -= of_vcpus;
        let rest = waited.ns - of_vcpus;
        let cpus = part(waited.on_cpus_ns, rest, waited.ns);
        let on_cpus = self.of_vm.min(cpus);
        self.of_vm -= on_cpus;
        Share { waited: waited.ns, throttled: of_vcpus + part(rest, on_cpus, cpus) }
    }
}

impl Share {
    /// The quota's part in some of these waits.
    fn of(self, waited: u64) -> u64 {
        part(waited, self.throttled, self.waited)
    }
}

/// Takes the time of a quota out of a VM's waits, which are these, those of each vCPU in the order of the report, and notes it.
pub(super) fn separate(
    vm: &mut AnalysedVm,
    by: &Throttled,
    mut waits: ByOccupant<Waited>,
    vcpus: &[ByOccupant<u64>],
) {
    let of_vcpus = by.vcpus_throttled_ns.min(by.throttled_ns);
    let mut left = Left { of_vm: by.throttled_ns - of_vcpus, of_vcpus };
    // Of a thread without events only the kernel's counter is known, and not beside whom it waited.
    let unseen: Vec<u64> = vm
        .vcpus
        .iter()
        .zip(vcpus)
        .map(|(vcpu, its)| {
            let seen = its.idle.saturating_add(its.others).saturating_add(its.siblings);
            vcpu.steal_ns.unwrap_or(0).saturating_sub(seen)
        })
        .collect();
    for more in &unseen {
        waits.others.ns = waits.others.ns.saturating_add(*more);
        waits.others.on_cpus_ns = waits.others.on_cpus_ns.saturating_add(*more);
    }
    let idle = left.take_idle(waits.idle);
    let others = left.take(waits.others);
    left.of_vm = 0;
    let siblings = left.take(waits.siblings);
    let mut ns: u64 = 0;
    for ((vcpu, its), unseen) in vm.vcpus.iter_mut().zip(vcpus).zip(unseen) {
        let Some(wait) = vcpu.steal_ns else { continue };
        let beside_others = its.others.saturating_add(unseen);
        let parts = [idle.of(its.idle), others.of(beside_others), siblings.of(its.siblings)];
        let throttled = parts.into_iter().fold(0, u64::saturating_add).min(wait);
        (vcpu.throttled_ns, vcpu.steal_ns) = (Some(throttled), Some(wait - throttled));
        ns = ns.saturating_add(throttled);
    }
    for culprit in &mut vm.culprits {
        let share = match culprit.who {
            Occupant::Idle => idle,
            Occupant::Siblings => siblings,
            Occupant::Waking | Occupant::Other => others,
        };
        culprit.ns -= share.of(culprit.ns);
    }
    vm.culprits.retain(|culprit| culprit.ns > 0);
    vm.culprits.sort_by_key(|culprit| std::cmp::Reverse(culprit.ns));
    vm.throttled = Some(ThrottledReport {
        ns,
        times: by.times,
        quota_milli_cpus: by.quota_milli_cpus,
        file: by.file.clone(),
        is_above: by.is_above,
        // Recordings of earlier versions tell the first one only.
        is_shared: by.is_shared || by.is_above,
    });
}

/// `of * taken / whole`, at most `of`.
fn part(of: u64, taken: u64, whole: u64) -> u64 {
    let part = u128::from(of) * u128::from(taken);
    part.checked_div(u128::from(whole)).map_or(0, |part| part.min(u128::from(of)) as u64)
}
