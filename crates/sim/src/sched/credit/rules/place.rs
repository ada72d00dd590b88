//! CPUs: `__runq_tickle`, `_csched_cpu_pick`, `csched_load_balance`, `csched_runq_steal`, affinities.

use super::Pri::{Boost, Over, Under};
use super::*;
use crate::context::StopReason::SliceEnd;

const TICKLE: &str = "__runq_tickle";
const PICK: &str = "_csched_cpu_pick";
const STEAL: &str = "csched_runq_steal";
const BALANCE: &str = "csched_load_balance";
const AFFINITY: &str = "vcpu_set_affinity";

/// vCPU 0 runs on CPU 0 of four, UNDER; vCPU 1 wakes there, BOOST.
fn above(on: Board) -> Xen {
    on.cpus(4, &[8]).runs(0, 0, Under).blocked(1, 0, Under)
}

/// What CPU `cpu`, which idles, takes from the others.
fn taken(xen: Xen, cpu: usize) -> String {
    format!("{:?}", xen.chooses(cpu, SliceEnd).ctx.running[cpu].map(|task| task.0))
}

/// vCPU 0 and its affinity change.
fn bound(mut xen: Xen, cpus: &[usize]) -> Xen {
    xen = xen.allowed(0, cpus);
    xen.credit.affinity_changed(&mut xen.ctx, TaskId(0));
    xen
}

/// vCPU 0 runs on CPU 0 of two, where another one waits; the other CPU idles.
fn beside_an_idle_cpu(on: Board) -> Xen {
    on.cpus(2, &[2]).runs(0, 0, Under).waits(1, 0, Under)
}

/// Two cores of two threads; of the first core one thread idles, and vCPU 0 runs on the other.
fn on_half_a_core(on: Board) -> Xen {
    let xen = on.host([1, 2, 2], &[4]).runs(0, 0, Under).waits(1, 0, Under);
    xen.runs(2, 2, Under).runs(3, 3, Under)
}

const CASES: &[Case] = &[
    (
        ALL,
        TICKLE,
        "a vCPU that wakes on an idle CPU has that CPU choose, and no other",
        |on| {
            let xen = on.cpus(4, &[2]).blocked(0, 2, Under);
            xen.wakes(0, Waker::Timer).resched_cpus()
        },
        "[2]",
    ),
    (
        OLD,
        TICKLE,
        "of higher priority: its CPU and an idle one, too",
        |on| above(on).wakes(1, Waker::Timer).resched_cpus(),
        "[0, 1]",
    ),
    (
        NEW,
        TICKLE,
        "of higher priority: an idle CPU, and what runs goes on",
        |on| above(on).wakes(1, Waker::Timer).resched_cpus(),
        "[1]",
    ),
    (
        ALL,
        TICKLE,
        "of the same priority: an idle CPU only",
        |on| {
            let xen = on.cpus(4, &[2]).runs(0, 0, Boost).blocked(1, 0, Under);
            xen.wakes(1, Waker::Timer).resched_cpus()
        },
        "[1]",
    ),
    (
        ALL,
        TICKLE,
        "without an idle CPU a vCPU of higher priority has its own CPU choose, and the one that ran stays",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 0, Under).runs(1, 1, Under).blocked(2, 1, Under);
            xen.wakes(2, Waker::Timer).resched_cpus()
        },
        "[1]",
    ),
    (
        ALL,
        TICKLE,
        "without an idle CPU a vCPU of the same priority has no CPU choose",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 0, Over).runs(1, 1, Over).blocked(2, 1, Over);
            xen.wakes(2, Waker::Timer).resched_cpus()
        },
        "[]",
    ),
    (
        OLD,
        TICKLE,
        "if it may use no idle CPU it preempts at its own",
        |on| above(on).allowed(1, &[0]).wakes(1, Waker::Timer).resched_cpus(),
        "[0]",
    ),
    (
        MIDDLE,
        TICKLE,
        "if it may use no idle CPU the vCPU that it preempts looks for one",
        |on| above(on).allowed(1, &[0]).wakes(1, Waker::Timer).resched_cpus(),
        "[0], [0] leaves",
    ),
    // Of the CPUs that the new one may use none idles, or this would not be asked.
    (
        NEWEST,
        TICKLE,
        "if it may use no idle CPU it preempts, and the one that ran stays",
        |on| above(on).allowed(1, &[0]).wakes(1, Waker::Timer).resched_cpus(),
        "[0]",
    ),
    (
        NEW,
        TICKLE,
        "a vCPU that may use no idle CPU and is no better has no CPU choose",
        |on| {
            let xen = on.cpus(4, &[2]).runs(0, 0, Boost).blocked(1, 0, Under).allowed(1, &[0]);
            xen.wakes(1, Waker::Timer).resched_cpus()
        },
        "[]",
    ),
    (
        OLD,
        TICKLE,
        "a CPU that it may not use any more is not told",
        |on| above(on).allowed(1, &[3]).wakes(1, Waker::Timer).resched_cpus(),
        "[3]",
    ),
    (
        NEW,
        TICKLE,
        "an idle CPU of its node affinity first",
        |on| above(on).prefers(1, &[2, 3]).wakes(1, Waker::Timer).resched_cpus(),
        "[2]",
    ),
    (
        NEW,
        TICKLE,
        "then one of its vCPU affinity",
        |on| above(on).prefers(1, &[0]).wakes(1, Waker::Timer).resched_cpus(),
        "[1]",
    ),
    (
        OLD,
        TICKLE,
        "4.1.3 knows no node affinity",
        |on| above(on).prefers(1, &[2, 3]).wakes(1, Waker::Timer).resched_cpus(),
        "[0, 1]",
    ),
    (
        MIDDLE,
        TICKLE,
        "idle CPUs in turn",
        |on| {
            let xen = above(on).blocked(2, 0, Under).blocked(3, 0, Under).blocked(4, 0, Under);
            let mut all = Vec::new();
            let mut xen = xen;
            for task in 1..5 {
                xen = xen.wakes(task, Waker::Timer);
                all.push(xen.resched_cpus());
                xen.ctx.pending = Mask::none(4);
            }
            all.join(" ")
        },
        "[1] [2] [3] [1]",
    ),
    // prv->idlers: without any idle CPU left its own one chooses.
    (
        NEWEST,
        TICKLE,
        "an idle CPU that was told counts as busy",
        |on| {
            let mut xen = above(on).blocked(2, 0, Under).blocked(3, 0, Under).blocked(4, 0, Under);
            let mut all = Vec::new();
            for task in 1..5 {
                xen = xen.wakes(task, Waker::Timer);
                all.push(xen.resched_cpus());
                xen.ctx.pending = Mask::none(4);
            }
            all.join(" ")
        },
        "[1] [2] [3] [0]",
    ),
    // last_tickle_cpu is the waking CPU's: 2 has told nobody yet, so that it begins after 0 as well.
    (
        MIDDLE,
        TICKLE,
        "the CPU that wakes the vCPU takes the turn, not the CPU that is to choose",
        |on| {
            let xen = on.cpus(4, &[5]).runs(0, 0, Under).runs(1, 2, Under);
            let xen = xen.blocked(2, 0, Under).blocked(3, 0, Under);
            let xen = xen.wakes(2, Waker::Sibling(TaskId(1)));
            let first = xen.resched_cpus();
            let mut xen = xen;
            xen.ctx.pending = Mask::none(4);
            let xen = xen.wakes(3, Waker::Timer);
            format!("{first} {}", xen.resched_cpus())
        },
        "[1] [1]",
    ),
    (
        ALL,
        PICK,
        "a CPU that is no less idle than others is kept",
        |on| {
            let xen = on.cpus(4, &[1]).runs(0, 1, Under);
            xen.goes(0)
        },
        "1",
    ),
    // Beside vCPU 1: one idle thread of its core against two.
    (
        ALL,
        PICK,
        "a whole idle core is better than half of one",
        |on| {
            let xen = on.host([1, 2, 2], &[2]).runs(0, 0, Under).runs(1, 1, Under);
            xen.goes(0)
        },
        "2",
    ),
    // idle_bias of CPU 2 is 3 at first, so that 2 comes; then 2, so that 3 comes.
    (
        ALL,
        PICK,
        "the next search from there begins behind what it found",
        |on| {
            let mut xen = on.host([1, 2, 2], &[2]).runs(0, 0, Under).runs(1, 1, Under);
            format!("{} {} {}", xen.picked(0, true), xen.picked(0, true), xen.picked(0, true))
        },
        "2 3 2",
    ),
    (
        ALL,
        PICK,
        "a tick's search is not noted",
        |on| {
            let mut xen = on.host([1, 2, 2], &[2]).runs(0, 0, Under).runs(1, 1, Under);
            format!("{} {}", xen.picked(0, false), xen.picked(0, false))
        },
        "2 2",
    ),
    // One idle CPU here (its own), two there: 1 * 2 < 2 does not hold.
    (
        ALL,
        PICK,
        "another package is better only with more than twice as many idle CPUs: two to one",
        |on| {
            let xen = on.host([2, 2, 1], &[2]).runs(0, 0, Under).runs(1, 1, Under);
            xen.goes(0)
        },
        "0",
    ),
    (
        ALL,
        PICK,
        "three to one",
        |on| {
            let xen = on.host([2, 3, 1], &[3]).runs(0, 0, Under).runs(1, 1, Under);
            xen.runs(2, 2, Under).goes(0)
        },
        "3",
    ),
    (
        OLD,
        PICK,
        "its own CPU counts as idle, although another vCPU waits there",
        |on| beside_an_idle_cpu(on).goes(0),
        "0",
    ),
    (
        NEW,
        PICK,
        "its own CPU does not count as idle if another vCPU waits there",
        |on| beside_an_idle_cpu(on).goes(0),
        "1",
    ),
    // Both threads of a core count the idle one, so that the search must begin there to end there.
    (
        NEW,
        PICK,
        "from a busy thread of a core it goes to the idle one",
        |on| on_half_a_core(on).goes(0),
        "1",
    ),
    // Its own counts as idle in 4.1.3: two idle threads of its core either way.
    (
        OLD,
        PICK,
        "from a busy thread of a core it does not go to the idle one",
        |on| on_half_a_core(on).goes(0),
        "0",
    ),
    (
        ALL,
        PICK,
        "without an idle CPU it stays",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 0, Under).runs(1, 1, Under).waits(2, 0, Under);
            xen.goes(0)
        },
        "0",
    ),
    (
        ALL,
        PICK,
        "from a CPU that it may not use it goes to the next that it may",
        |on| {
            let xen = on.cpus(4, &[1]).blocked(0, 1, Under).allowed(0, &[0, 3]);
            xen.goes(0)
        },
        "3",
    ),
    (
        NEW,
        PICK,
        "an idle CPU of the node affinity, though its own is idle, too",
        |on| {
            let xen = on.host([2, 2, 1], &[1]).blocked(0, 0, Under).prefers(0, &[2, 3]);
            xen.goes(0)
        },
        "2",
    ),
    (
        NEW,
        PICK,
        "with none idle in the node affinity one of the vCPU affinity",
        |on| {
            let xen = on.host([2, 2, 1], &[3]).runs(1, 2, Under).runs(2, 3, Under);
            xen.blocked(0, 0, Under).prefers(0, &[2, 3]).goes(0)
        },
        "0",
    ),
    (
        NEW,
        "__vcpu_has_node_affinity",
        "a node affinity of CPUs that it may not use does not count",
        |on| {
            let xen = on.host([2, 2, 1], &[1]).blocked(0, 0, Under).prefers(0, &[2, 3]);
            xen.allowed(0, &[0, 1]).goes(0)
        },
        "0",
    ),
    (
        OLD,
        PICK,
        "4.1.3 knows no node affinity",
        |on| {
            let xen = on.host([2, 2, 1], &[1]).blocked(0, 0, Under).prefers(0, &[2, 3]);
            xen.goes(0)
        },
        "0",
    ),
    (
        ALL,
        BALANCE,
        "with OVER first in its queue a CPU takes UNDER from another",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 1, Under).waits(1, 1, Under).waits(2, 0, Over);
            taken(xen, 0)
        },
        "Some(1)",
    ),
    (
        ALL,
        BALANCE,
        "with UNDER first in its queue it does not look at others' BOOST",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 1, Boost).waits(1, 1, Boost).waits(2, 0, Under);
            taken(xen, 0)
        },
        "Some(2)",
    ),
    (
        ALL,
        STEAL,
        "no vCPU of the same priority is taken",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 1, Over).waits(1, 1, Over).waits(2, 0, Over);
            taken(xen, 0)
        },
        "Some(2)",
    ),
    (
        ALL,
        STEAL,
        "an idle CPU takes OVER",
        |on| {
            let xen = on.cpus(2, &[2]).runs(0, 1, Under).waits(1, 1, Over);
            taken(xen, 0)
        },
        "Some(1)",
    ),
    (
        ALL,
        STEAL,
        "nothing from a CPU that idles: it is about to run that itself",
        |on| taken(on.cpus(2, &[1]).waits(0, 1, Under), 0),
        "None",
    ),
    (
        ALL,
        STEAL,
        "a queue is searched up to the first that is no better",
        |on| {
            let xen = on.cpus(2, &[4]).runs(0, 1, Under).waits(1, 1, Over).last(2, 1, Under);
            taken(xen.waits(3, 0, Over), 0)
        },
        "Some(3)",
    ),
    (
        ALL,
        STEAL,
        "one that may not use the CPU is passed over",
        |on| {
            let xen = on.cpus(2, &[3]).runs(0, 1, Under).waits(1, 1, Under).waits(2, 1, Under);
            taken(xen.allowed(1, &[1]), 0)
        },
        "Some(2)",
    ),
    (
        OLD,
        BALANCE,
        "4.1.3 begins behind its own CPU",
        |on| {
            let xen = on.cpus(3, &[4]).runs(0, 0, Under).waits(1, 0, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under), 1)
        },
        "Some(3)",
    ),
    (
        MIDDLE,
        BALANCE,
        "4.4.1 begins with the first CPU of a node",
        |on| {
            let xen = on.cpus(3, &[4]).runs(0, 0, Under).waits(1, 0, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under), 1)
        },
        "Some(1)",
    ),
    // balance_bias is the first CPU of the node, then the one that a vCPU was taken from.
    (
        NEWEST,
        BALANCE,
        "4.17 begins behind the CPU that was stolen from last",
        |on| {
            let xen = on.cpus(4, &[6]).runs(0, 0, Under).waits(1, 0, Under);
            let xen = xen.runs(2, 2, Under).waits(3, 2, Under).waits(4, 2, Under);
            let mut xen = xen.chooses(1, SliceEnd);
            let first = xen.ctx.running[1].map(|task| task.0);
            xen.credit.unqueue(0, TaskId(1));
            let xen = xen.waits(1, 0, Under);
            format!("{first:?} {}", taken(xen, 3))
        },
        "Some(3) Some(1)",
    ),
    (
        NEW,
        BALANCE,
        "its own node comes first",
        |on| {
            let xen = on.host([2, 2, 1], &[4]).runs(0, 0, Under).waits(1, 0, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under), 3)
        },
        "Some(3)",
    ),
    (
        OLD,
        BALANCE,
        "nodes make no difference in 4.1.3",
        |on| {
            let xen = on.host([2, 2, 1], &[4]).runs(0, 0, Under).waits(1, 0, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under), 3)
        },
        "Some(1)",
    ),
    (
        NEW,
        BALANCE,
        "one whose node affinity is here comes before any other",
        |on| {
            let xen = on.host([2, 2, 1], &[4]).runs(0, 1, Under).waits(1, 1, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under).prefers(3, &[0, 1]), 0)
        },
        "Some(3)",
    ),
    (
        OLD,
        BALANCE,
        "in 4.1.3 it does not",
        |on| {
            let xen = on.host([2, 2, 1], &[4]).runs(0, 1, Under).waits(1, 1, Under);
            taken(xen.runs(2, 2, Under).waits(3, 2, Under).prefers(3, &[0, 1]), 0)
        },
        "Some(1)",
    ),
    (
        BEFORE,
        AFFINITY,
        "a vCPU that may stay does not move",
        |on| {
            let xen = bound(on.cpus(2, &[2]).runs(0, 0, Under).waits(1, 0, Under), &[0]);
            format!("{} {:?}", xen.resched_cpus(), xen.queue(0))
        },
        "[] [1]",
    ),
    (
        NEWEST,
        AFFINITY,
        "a vCPU that may stay looks for a CPU, too",
        |on| {
            let xen = bound(on.cpus(2, &[2]).runs(0, 0, Under).waits(1, 0, Under), &[0]);
            format!("{} {:?}", xen.resched_cpus(), xen.queue(0))
        },
        "[0], [0] leaves [1]",
    ),
    (
        BEFORE,
        AFFINITY,
        "one that runs where it may not leaves at once, and is BOOST where it comes",
        |on| {
            let xen = bound(on.cpus(2, &[2]).runs(0, 0, Under), &[1]);
            let told = xen.resched_cpus();
            let xen = xen.chooses(0, SliceEnd);
            format!("{told}; {:?} {:?} {}", xen.queue(1), xen.pri_of(0), xen.resched_cpus())
        },
        "[0], [0] leaves; [0] Boost [1]",
    ),
    (
        NEWEST,
        AFFINITY,
        "one that runs where it may not leaves at once, and is UNDER where it comes",
        |on| {
            let xen = bound(on.cpus(2, &[2]).runs(0, 0, Under), &[1]);
            let told = xen.resched_cpus();
            let xen = xen.chooses(0, SliceEnd);
            format!("{told}; {:?} {:?} {}", xen.queue(1), xen.pri_of(0), xen.resched_cpus())
        },
        "[0], [0] leaves; [0] Under [1]",
    ),
    (
        BEFORE,
        AFFINITY,
        "one that waits where it may not is BOOST where it comes",
        |on| {
            let xen = on.cpus(2, &[3]).runs(1, 0, Under).runs(2, 1, Under).waits(0, 0, Under);
            let xen = bound(xen, &[1]);
            format!(
                "{:?} {:?} {:?} {}",
                xen.queue(0),
                xen.queue(1),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "[] [0] Boost [1]",
    ),
    (
        NEWEST,
        AFFINITY,
        "one that waits where it may not is UNDER where it comes",
        |on| {
            let xen = on.cpus(2, &[3]).runs(1, 0, Under).runs(2, 1, Under).waits(0, 0, Under);
            let xen = bound(xen, &[1]);
            format!(
                "{:?} {:?} {:?} {}",
                xen.queue(0),
                xen.queue(1),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "[] [0] Under []",
    ),
];

#[test]
fn cpus_are_chosen_and_reported_as_in_the_source() {
    hold(CASES);
}
