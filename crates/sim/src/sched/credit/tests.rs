//! Rules of Xen's credit scheduler, each on a small host.

use super::place::Pass;
use super::*;
use crate::testing;

/// So many CPUs under a scheduler that has begun, and VMs of so many vCPUs.
fn started(cpus: u32, vms: &[u32]) -> (SchedContext, Credit) {
    let (mut ctx, mut credit) = (testing::ctx(cpus, vms), Credit::new(CreditTuning::default()));
    credit.start(&mut ctx);
    (ctx, credit)
}

fn queued(credit: &mut Credit, ctx: &mut SchedContext, task: u32, pri: Pri) {
    let task = TaskId(task);
    ctx.assign(task, 0);
    ctx.tasks[task.ix()].state = crate::context::TaskState::Queued;
    credit.svcs[task.ix()].pri = pri;
    credit.insert(ctx, task);
}

#[test]
fn queue_is_by_priority_then_arrival_and_yielder_lets_one_pass() {
    let (mut ctx, mut credit) = started(2, &[5]);
    queued(&mut credit, &mut ctx, 0, Pri::Over);
    queued(&mut credit, &mut ctx, 1, Pri::Under);
    queued(&mut credit, &mut ctx, 2, Pri::Boost);
    queued(&mut credit, &mut ctx, 3, Pri::Under);
    assert_eq!(credit.pcpus[0].queue, [2, 1, 3, 0].map(TaskId));
    credit.svcs[4].yielded = true;
    queued(&mut credit, &mut ctx, 4, Pri::Under);
    assert_eq!(credit.pcpus[0].queue, [2, 1, 3, 0, 4].map(TaskId));
}

#[test]
fn woken_vcpu_runs_before_one_that_lost_its_boost_waiting() {
    let (mut ctx, mut credit) = started(2, &[3]);
    queued(&mut credit, &mut ctx, 0, Pri::Boost);
    queued(&mut credit, &mut ctx, 1, Pri::Boost);
    // Accounting makes UNDER of what is active and queued, BOOST or not (csched_acct), and sorting knows UNDER
    // and OVER only (csched_runq_sort).
    credit.svcs[0].active = true;
    credit.pay(&mut ctx, 0, 0, None);
    credit.sort += 1;
    credit.tick(&mut ctx, 0);
    assert_eq!(credit.pcpus[0].queue, [0, 1].map(TaskId));
    for _ in 0..3 {
        queued(&mut credit, &mut ctx, 2, Pri::Boost);
        assert_eq!(credit.pcpus[0].queue, [2, 0, 1].map(TaskId));
        assert_eq!(credit.take_first(0), Some(TaskId(2)));
    }
    assert!(credit.promises().wakers_first);
}

#[test]
fn soft_affinity_counts_only_where_it_says_more_than_hard_one() {
    let (mut ctx, mut credit) = started(4, &[1]);
    let task = TaskId(0);
    assert!(!credit.affinity(&ctx, task, Pass::Node), "all are preferred");
    ctx.tasks[0].preferred = Mask::of(4, [0, 1]);
    ctx.tasks[0].allowed = Mask::of(4, [1, 2, 3]);
    assert!(credit.affinity(&ctx, task, Pass::Node));
    assert_eq!(credit.cpus, Mask::of(4, [1]));
    assert!(credit.affinity(&ctx, task, Pass::Vcpu));
    assert_eq!(credit.cpus, Mask::of(4, [1, 2, 3]));
    ctx.tasks[0].preferred = Mask::of(4, [0]);
    assert!(!credit.affinity(&ctx, task, Pass::Node), "none of the preferred is allowed");
}
