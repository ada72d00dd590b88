//! VMs as groups: weights, requests, protection and preemption among them, sleep.

use super::*;
use crate::context::StopReason::{Preempted, SliceEnd, Yield};
use crate::context::Waker::Timer;

const UPDATE: &str = "update_curr";
const SHARES: &str = "calc_group_shares";
const REWEIGHT: &str = "reweight_entity";
const WAKEUP: &str = "check_preempt_wakeup_fair";
const NEXT: &str = "pick_next_task_fair";
const DELAY: &str = "dequeue_entity";
const PLACE: &str = "place_entity";

/// VM 0 of one task, which runs, and VM 1 of two, of which task 1 waits, on one CPU; with these weights.
fn pair(on: Board, weights: [u32; 2]) -> Linux {
    let linux = on.cpus(1, &[1, 2]).weighs(0, weights[0]).weighs(1, weights[1]);
    linux.runs(0, 0, [0, 750]).waits(1, 0, [0, 750])
}

/// Weight of VM 0, of this `cpu.weight`, on CPU 0, with so many of its tasks there and on CPU 1.
fn weight(on: Board, weight: u32, here: u32, there: u32) -> String {
    let mut linux = on.cpus(2, &[here + there]).weighs(0, weight);
    for task in 0..here + there {
        linux = linux.waits(task, usize::from(task >= here), [0, 750]);
    }
    // The last one of them came when all others were there.
    linux.eevdf.reweigh(&mut linux.ctx, 0, 0);
    linux.vm_weight(0, 0)
}

/// VM 0 waits at this place beside VM 1 at 1000, twice as heavy as VM 0 is from now on.
fn heavier(on: Board, place: [i64; 2]) -> String {
    let linux = on.cpus(1, &[1, 1]).waits(0, 0, [0, 750]).waits(1, 0, [0, 750]);
    let mut linux = linux.vm_at(0, 0, place).vm_at(1, 0, [2000 - place[0], 9000]).weighs(0, 200);
    linux.eevdf.reweigh(&mut linux.ctx, 0, 0);
    linux.vm_place(0, 0)
}

const CASES: &[Case] = &[
    // 750 * 1024 / 3072.
    (
        V6_12,
        UPDATE,
        "virtual runtime is CPU time by weight",
        |on| pair(on, [300, 100]).after(749).tick(0).vm_place(0, 0),
        "249 250",
    ),
    (
        V6_12,
        "update_deadline",
        "requests of all weights are as long in CPU time",
        |on| told_after([749, 750], || pair(Board(on.0), [300, 100])),
        "[false, true]",
    ),
    // Of weight 1: 10.24, that is, 10; 750 * 1024 / 10 = 76,800.
    (
        V6_12,
        PLACE,
        "a light VM's deadline is far away in virtual time",
        |on| pair(on, [1, 100]).vm_place(0, 0),
        "0 76800",
    ),
    // Of the VM alone: its second task's request is what ends, at 400.
    (
        V6_12,
        UPDATE,
        "a tick ends the run of a task beside its sibling, though the VM is alone",
        |on| {
            told_after([399, 400], || {
                let linux = Board(on.0).cpus(1, &[2]).runs(0, 0, [0, 400]);
                linux.waits(1, 0, [10_000, 10_750])
            })
        },
        "[false, true]",
    ),
    // The task's own request ends at 400, the VM's at 750.
    (
        V6_12,
        UPDATE,
        "but not by its own request where it is its VM's only task",
        |on| {
            told_after([400, 750], || {
                let linux = Board(on.0).cpus(1, &[1, 1]).runs(0, 0, [0, 400]);
                linux.waits(1, 0, [0, 750])
            })
        },
        "[false, true]",
    ),
    (V6_12, SHARES, "a VM on one CPU has its weight there", |on| weight(on, 100, 2, 0), "1048576"),
    (V6_12, SHARES, "on two CPUs half on each", |on| weight(on, 100, 1, 1), "524288"),
    // 1048576 / 3.
    (V6_12, SHARES, "by the tasks on each", |on| weight(on, 100, 1, 2), "349525"),
    // 33 * 1024 / 100 = 337.9, to the nearest 338, times 1024.
    (
        V6_12,
        "sched_weight_from_cgroup",
        "cpu.weight is rounded to the nearest of 1024ths of 100",
        |on| weight(on, 33, 1, 0),
        "346112",
    ),
    // Of tasks 0 and 1 on CPU 0 and 2 on CPU 1, task 0 sleeps and stays: 2 of 3.
    (
        V6_12,
        SHARES,
        "a sleeper that stays in its queue counts",
        |on| {
            let linux = on.cpus(2, &[3]).runs(0, 0, [0, 750]).waits(1, 0, [0, 750]);
            let mut linux = linux.waits(2, 1, [0, 750]).after(400).blocks(0);
            linux.eevdf.reweigh(&mut linux.ctx, 0, 0);
            linux.vm_weight(0, 0)
        },
        "699050",
    ),
    // 600 behind virtual time 1000 becomes 300; the deadline, 400 ahead of virtual time, 200.
    (
        V6_12,
        REWEIGHT,
        "lag and what is left of a request stay the same in CPU time",
        |on| heavier(on, [400, 1400]),
        "700 1200",
    ),
    (
        V6_12,
        REWEIGHT,
        "at virtual time a member stays where it is",
        |on| heavier(on, [1000, 1400]),
        "1000 1200",
    ),
    // Of 9000 at most 4000 counts: 1000 - 4000 / 2.
    (
        V6_12,
        REWEIGHT,
        "lag is limited to a tick before",
        |on| heavier(on, [-8000, 1400]),
        "-1000 1200",
    ),
    // VM 0, protected, has weight 200 from the next tick on. Both at virtual time after 100 and 0, by weights of
    // 1024; VM 0 is ahead.
    (
        V6_12,
        REWEIGHT,
        "the VM that runs loses its protection when its weight changes",
        |on| {
            let of = |weight| {
                let linux = pair(Board(on.0), [100, 100]).vm_at(0, 0, [0, 2000]).weighs(0, weight);
                let linux = linux.after(100).tick(0).after(10).tick(0);
                linux.resched_cpus()
            };
            format!("{} {}", of(100), of(200))
        },
        "[] [0]",
    ),
    // VM 1 comes at virtual time 100, where VM 0 is.
    (
        V6_12,
        WAKEUP,
        "a task of another VM does not preempt a VM that is protected and eligible",
        |on| {
            let linux = on.cpus(1, &[1, 1]).runs(0, 0, [0, 750]).after(100);
            linux.blocked(1, 0, 0).wakes(1, Timer).resched_cpus()
        },
        "[]",
    ),
    // VM 1 waits at 0 and is first, as VM 0 is at 100; task 1 is before task 2 in it.
    (
        V6_12,
        WAKEUP,
        "it preempts if its VM comes first, even if another one of its tasks will run",
        |on| {
            let linux = pair(on, [100, 100]).vm_at(0, 0, [0, 750]).vm_at(1, 0, [0, 900]);
            let linux = linux.after(100).blocked(2, 0, 0).wakes(2, Timer);
            let told = linux.resched_cpus();
            format!("{told} {}", linux.chooses(0, Preempted).runs_on(0))
        },
        "[0] 1",
    ),
    // VM 1 is first; task 1, at 100, is ahead of its sibling, which comes at 100 - 10.
    (
        V6_12,
        WAKEUP,
        "of its own VM a task that wakes preempts whatever VM comes first",
        |on| {
            let linux = on.cpus(1, &[2, 1]).runs(0, 0, [0, 750]).waits(2, 0, [0, 750]);
            let linux = linux.vm_at(0, 0, [0, 750]).vm_at(1, 0, [0, 740]);
            linux.after(100).blocked(1, 0, 5).wakes(1, Timer).resched_cpus()
        },
        "[0]",
    ),
    // VM 0 runs on, protected up to 2000; task 0 is ahead of task 1.
    (
        V6_12,
        NEXT,
        "within the VM that goes on the next task is chosen",
        |on| {
            let linux = on.cpus(1, &[2, 1]).runs(0, 0, [0, 750]).waits(1, 0, [0, 750]);
            let linux = linux.waits(2, 0, [0, 750]).vm_at(0, 0, [0, 2000]).vm_at(1, 0, [900, 1000]);
            linux.after(400).chooses(0, Preempted).runs_on(0)
        },
        "1",
    ),
    // VM 0 has a new deadline of 1500 at 750, where it is eligible and VM 1, at 900 with 1000, is not. Its tasks
    // change. At 950 virtual time is 925: a tick sees that VM 0 is ahead and not protected.
    (
        V6_12,
        NEXT,
        "a change of tasks gives their VM no new protection",
        |on| {
            let linux = on.cpus(1, &[2, 1]).runs(0, 0, [0, 750]).waits(1, 0, [0, 9000]);
            let linux = linux.waits(2, 0, [0, 750]).vm_at(0, 0, [0, 750]).vm_at(1, 0, [900, 1000]);
            let linux = linux.after(750).chooses(0, SliceEnd);
            let runs = linux.runs_on(0);
            format!("{runs} {}", linux.after(200).tick(0).resched_cpus())
        },
        "1 [0]",
    ),
    // VM 0 at 100 is ahead of virtual time 50.
    (
        V6_12,
        DELAY,
        "a VM whose last task sleeps stays while it is ahead",
        |on| pair(on, [100, 100]).after(100).blocks(0).vm_place(0, 0),
        "100 750",
    ),
    (
        V6_12,
        DELAY,
        "though its task leaves, alone in its VM",
        |on| pair(on, [100, 100]).after(100).blocks(0).place(0),
        "gone",
    ),
    (
        V6_12,
        DELAY,
        "with the weight that it had",
        |on| pair(on, [300, 100]).after(100).blocks(0).vm_weight(0, 0),
        "3145728",
    ),
    // VM 1 at 200, virtual time 150: VM 0, deadline 750, is chosen and leaves.
    (
        V6_12,
        "pick_next_entity",
        "it leaves when it is chosen",
        |on| {
            let linux = pair(on, [100, 100]).after(100).blocks(0).after(200);
            let linux = linux.chooses(0, Preempted);
            format!("{} {}", linux.vm_place(0, 0), linux.runs_on(0))
        },
        "gone 1",
    ),
    (
        V6_12,
        "requeue_delayed_entity",
        "it keeps its place if its task wakes before",
        |on| pair(on, [100, 100]).after(100).blocks(0).after(50).wakes(0, Timer).vm_place(0, 0),
        "100 750",
    ),
    // VM 0 at 100 and VM 1 at 700: lag 300. It comes 600 behind the other's 700.
    (
        V6_12,
        PLACE,
        "a VM that left behind comes back as far behind",
        |on| {
            let linux = pair(on, [100, 100]).vm_at(1, 0, [700, 1450]).after(100).blocks(0);
            linux.wakes(0, Timer).vm_place(0, 0)
        },
        "100 850",
    ),
    // Lag 300 at 1024 is 150 at 2048; inflated by 3: 700 - 450.
    (
        V6_12,
        REWEIGHT,
        "its lag is the same in CPU time if it weighs more then",
        |on| {
            let linux = pair(on, [100, 100]).vm_at(1, 0, [700, 1450]).after(100).blocks(0);
            linux.weighs(0, 200).wakes(0, Timer).vm_place(0, 0)
        },
        "250 625",
    ),
    // Limits are 4000 in CPU time: 4000 * 1024 / 3072.
    (
        V6_12,
        "entity_lag",
        "a heavy VM's limit is less in virtual time",
        |on| {
            let linux = pair(on, [300, 100]).vm_at(1, 0, [90_000, 90_750]).blocks(0);
            (linux.eevdf.queues[0].groups[0].lag / US).to_string()
        },
        "1333",
    ),
    (
        V6_12,
        "yield_to_task_fair",
        "a task that yields does not give up its VM's request",
        |on| {
            let linux = pair(on, [100, 100]).vm_at(1, 0, [900, 1650]);
            linux.chooses(0, Yield(Some(TaskId(1)))).vm_place(0, 0)
        },
        "0 750",
    ),
    (
        V6_12,
        "yield_to_task_fair",
        "so that the VM goes on",
        |on| {
            let linux = pair(on, [100, 100]).vm_at(0, 0, [0, 1000]).vm_at(1, 0, [0, 750]);
            linux.chooses(0, Yield(Some(TaskId(1)))).runs_on(0)
        },
        "0",
    ),
];

#[test]
fn vms_share_a_cpu_as_groups_do_in_linux() {
    hold(CASES);
}
