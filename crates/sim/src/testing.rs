//! Small hosts for tests and benchmarks. Not part of the product.

use crate::host::Host;
use crate::scenario::machine;

/// A host of `nodes` nodes, each with `cores` cores of `threads` threads; distance 20.
#[must_use]
pub fn host(nodes: u32, cores: u32, threads: u32) -> Host {
    Host::new(&machine::regular(nodes, nodes, cores, threads, 1 << 30))
}

/// A desk of so many CPUs and VMs of so many vCPUs, and the host's own threads: one bound to each
/// CPU, one for each VM that roams.
#[cfg(test)]
pub(crate) fn desk(cpus: u32, vms: &[u32]) -> crate::desk::Desk {
    desk_of(host(1, cpus, 1), vms)
}

/// The same on this host.
#[cfg(test)]
pub(crate) fn desk_of(host: Host, vms: &[u32]) -> crate::desk::Desk {
    use crate::desk::{Desk, SCHED_TIMERS, Vm};
    use crate::mask::Mask;
    let cpus = host.cpus();
    let hidden = [cpus as u32, vms.len() as u32];
    let mut first = 0;
    let all = vms.iter().map(|count| (*count, false)).chain(hidden.map(|count| (count, true)));
    let vm = |(count, hidden): (u32, bool)| {
        first += count;
        Vm { first: first - count, count, weight: 100, own: Default::default(), hidden }
    };
    let task = |vm: usize, index: u32| {
        let all = Mask::all(cpus);
        let bound = vm == vms.len();
        (if bound { Mask::of(cpus, [index as usize]) } else { all.clone() }, all, 1)
    };
    let timers = crate::timers::Timers::new(3 * cpus + SCHED_TIMERS);
    let rng = crate::rng::Rng::new(1);
    Desk::new(host, all.map(vm).collect(), task, rng, timers, 2 * cpus as u32)
}
