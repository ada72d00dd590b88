//! Balance scheduling (systems.md, 3): CFS, but a vCPU that is woken or migrated goes only to CPUs
//! whose queue holds no sibling, of these to the one CFS would choose.
//!
//! Where a VM has more vCPUs than it may use CPUs, siblings must share: then the CPUs that hold the
//! fewest count. Nothing is co-scheduled. The rule itself is [`Choice::Apart`].

use super::cfs::{Cfs, CfsTuning, Choice};

/// The scheduler, with CFS's numbers.
pub fn new(rules: CfsTuning) -> Cfs {
    Cfs::with(rules, Choice::Apart, "balance")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{TaskId, Waker};
    use crate::sched::Scheduler as _;
    use crate::testing::ctx;

    #[test]
    fn woken_vcpu_goes_to_the_cpu_with_the_fewest_siblings() {
        // Two VMs of three vCPUs on two CPUs.
        let mut ctx = ctx(2, &[3, 3]);
        let mut balance = new(CfsTuning::default());
        balance.start(&mut ctx);
        let mut wake = |task: u32| {
            let task = TaskId(task);
            ctx.ready(task);
            // All were on CPU 0 last.
            ctx.assign(task, 0);
            balance.wake(&mut ctx, task, Waker::Timer);
            ctx.count(task);
            ctx.task(task).cpu
        };
        let first = wake(0);
        let second = wake(1);
        assert_ne!(first, second, "siblings are apart");
        let other = wake(3);
        assert_ne!(wake(4), other, "so are those of the other VM");
        wake(2);
        let most = (0..2).map(|cpu| ctx.siblings_on(0, cpu)).max();
        assert_eq!(most, Some(2), "three siblings on two CPUs: two and one");
    }
}
