//! Static affinity (systems.md, 3): every vCPU is bound to one CPU, siblings apart, as many vCPUs on
//! each CPU as on any other. Over CFS, which then only chooses the order on each CPU.
//!
//! A vCPU that is sensitive to latency may be stuck on the busiest CPU: that is the point of
//! comparison.

use super::cfs::{Cfs, CfsTuning, Choice};
use crate::context::SchedContext;
use instep_check::mask::Mask;

/// The scheduler, with CFS's numbers.
pub fn new(rules: CfsTuning) -> Cfs {
    Cfs::with(rules, Choice::Bound, "affinity")
}

/// Binds every vCPU to one of the CPUs it may use: fewest siblings first, then fewest tasks, then in
/// the order in which an idle host is filled.
pub(super) fn bind(ctx: &mut SchedContext) {
    let (cpus, order) = (ctx.host.cpus(), ctx.host.spread());
    let mut rank = vec![0; cpus];
    order.iter().enumerate().for_each(|(at, cpu)| rank[*cpu] = at);
    let mut tasks = vec![0u32; cpus];
    for vm in 0..ctx.vms.len() {
        if ctx.vms[vm].hidden {
            continue;
        }
        let mut siblings = vec![0u32; cpus];
        for task in ctx.vms[vm].tasks() {
            let this = &mut ctx.tasks[task.ix()];
            let key = |cpu: &usize| (siblings[*cpu], tasks[*cpu], rank[*cpu]);
            let Some(cpu) = this.allowed.iter().min_by_key(key) else { continue };
            siblings[cpu] += 1;
            tasks[cpu] += 1;
            this.allowed = Mask::of(cpus, [cpu]);
            this.cpu = cpu;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ctx;

    #[test]
    fn vcpus_are_bound_and_the_hosts_own_threads_are_not() {
        let mut ctx = ctx(4, &[4]);
        bind(&mut ctx);
        let bound: Vec<u32> = ctx.tasks.iter().map(|task| task.allowed.count()).collect();
        // The vCPUs; the threads that are the CPUs' own; the one that roams.
        assert_eq!(bound, [1, 1, 1, 1, 1, 1, 1, 1, 4]);
    }
}
