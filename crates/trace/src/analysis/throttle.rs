//! Tells time in which a quota stopped a VM from time in which others kept it from a CPU.
//!
//! No event says that a thread is throttled: in a trace it is runnable and does not run, whatever its CPU does
//! meanwhile. The recording has for how long the VM's cgroups were throttled. A wait on an idle CPU is the
//! quota's first, as a runnable thread is not left waiting there otherwise. The rest is taken from all other waits in
//! proportion, and from those of the vCPUs in proportion, too. More than all waits cannot have been throttled. The
//! kernel counts the throttled time of a CPU once, however many vCPUs wait there, so that waits on idle CPUs may be longer,
//! up to as many times as the VM has vCPUs.

use super::report::{AnalysedVm, Occupant, ThrottledReport};
use crate::rec::Throttled;

/// Takes the time of a quota out of a VM's waits and notes it.
pub(super) fn separate(vm: &mut AnalysedVm, by: &Throttled) {
    let waits = vm.vcpus.iter().filter_map(|vcpu| vcpu.steal_ns);
    let all = waits.fold(0, u64::saturating_add);
    let is_idle = |who: Occupant| who == Occupant::Idle;
    let (idle, rest): (u64, u64) =
        vm.culprits.iter().fold((0, 0), |(idle, rest), culprit| match is_idle(culprit.who) {
            true => (idle + culprit.ns, rest),
            false => (idle, rest + culprit.ns),
        });
    let most = by.throttled_ns.saturating_mul(vm.vcpus.len() as u64);
    let ns = by.throttled_ns.max(idle.min(most)).min(all);
    for vcpu in &mut vm.vcpus {
        let part = vcpu.steal_ns.map(|wait| part(wait, ns, all));
        vcpu.throttled_ns = part;
        vcpu.steal_ns = vcpu.steal_ns.zip(part).map(|(wait, part)| wait - part);
    }
    let of_idle = ns.min(idle);
    let of_rest = (ns - of_idle).min(rest);
    for culprit in &mut vm.culprits {
        let (whole, taken) = if is_idle(culprit.who) { (idle, of_idle) } else { (rest, of_rest) };
        culprit.ns -= part(culprit.ns, taken, whole);
    }
    vm.culprits.retain(|culprit| culprit.ns > 0);
    vm.culprits.sort_by_key(|culprit| std::cmp::Reverse(culprit.ns));
    vm.throttled = Some(ThrottledReport {
        ns,
        times: by.times,
        quota_milli_cpus: by.quota_milli_cpus,
        file: by.file.clone(),
        is_above: by.is_above,
    });
}

/// `of * taken / whole`, at most `of`.
fn part(of: u64, taken: u64, whole: u64) -> u64 {
    let part = u128::from(of) * u128::from(taken);
    part.checked_div(u128::from(whole)).map_or(0, |part| part.min(u128::from(of)) as u64)
}
