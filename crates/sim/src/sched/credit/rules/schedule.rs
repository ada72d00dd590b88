//! Queues and the choice: `__runq_insert`, `csched_runq_sort`, `csched_schedule`, `csched_vcpu_wake`.

use super::Pri::{Boost, Over, Under};
use super::*;
use crate::context::StopReason::{Preempted, SliceEnd, Yield};

const INSERT: &str = "__runq_insert";
const SORT: &str = "csched_runq_sort";
const SCHEDULE: &str = "csched_schedule";
const WAKE: &str = "csched_vcpu_wake";
const TIMERS: &str = "timer_softirq_action";

/// Whether ticks of four CPUs begin together, and by how many us the next ones are later than 10 ms at least
/// and at most.
fn ticks(on: Board) -> String {
    let mut xen = on.cpus(4, &[1]);
    xen.credit.rules = CreditTuning::default();
    let firsts: Vec<u64> = (0..4).map(|_| xen.credit.first_tick(&mut xen.ctx)).collect();
    let together = firsts.iter().all(|first| *first == firsts[0]);
    let next = |_| (xen.credit.next_tick(&mut xen.ctx) - 10 * MS).div_ceil(10 * US) * 10;
    let late: Vec<u64> = (0..1000).map(next).collect();
    format!("{together} {:?} {:?}", late.iter().min(), late.iter().max())
}

/// vCPU 0 has run for 31 ms beside vCPU 1; its slice was over, and accounting due, 1 ms ago, as timers are late.
fn overdue(on: Board, slop: u64) -> Xen {
    let mut xen = on.cpus(1, &[1, 1]).runs(0, 0, Under).waits(1, 0, Under);
    xen = xen.active(&[(0, &[0]), (1, &[0])]);
    xen.credit.rules.slop = Some(slop);
    (xen.credit.pcpus[0].slice_end, xen.credit.account_at) = (30 * MS, 30 * MS);
    xen.after(31 * MS)
}

const CASES: &[Case] = &[
    (
        ALL,
        TIMERS,
        "with a late accounting a slice ends that is over by then",
        |on| {
            let mut xen = overdue(on, 2 * MS);
            xen.credit.timer(&mut xen.ctx, 0);
            format!("{} {}", xen.resched_cpus(), xen.credit.account_at / MS)
        },
        "[0] 61",
    ),
    // 150 for each, and only then 310 burnt: UNDER.
    (
        ALL,
        TIMERS,
        "before a late slice ends the accounting comes that is due by then",
        |on| {
            let xen = overdue(on, 2 * MS).chooses(0, SliceEnd);
            format!("{:?} {:?}", xen.credits(2), xen.pri_of(0))
        },
        "[-160, 150] Under",
    ),
    (
        ALL,
        TIMERS,
        "timers on time are handled each at its own",
        |on| {
            let mut xen = overdue(on, 0);
            xen.credit.timer(&mut xen.ctx, 0);
            xen.resched_cpus()
        },
        "[]",
    ),
    // timer_softirq_action: the deadline and timer_slop, 50 us; each by some of it.
    (OLD, "csched_tick", "CPUs tick apart, and up to 50 us late", ticks, "false Some(10) Some(50)"),
    (MIDDLE, "csched_tick", "CPUs tick apart, on time", ticks, "false Some(0) Some(0)"),
    // now % tick_period: from the same multiples of 10 ms on.
    (NEWEST, "csched_schedule", "CPUs tick together, on time", ticks, "true Some(0) Some(0)"),
    (
        ALL,
        INSERT,
        "behind all of the same priority, before the first lower one",
        |on| {
            let xen = on.cpus(1, &[5]).waits(0, 0, Over).waits(1, 0, Under).waits(2, 0, Boost);
            format!("{:?}", xen.waits(3, 0, Under).waits(4, 0, Boost).queue(0))
        },
        "[2, 4, 1, 3, 0]",
    ),
    (
        ALL,
        INSERT,
        "one that yields lets one of lower priority pass, not two",
        |on| {
            let mut xen = on.cpus(1, &[4]).waits(0, 0, Under).waits(1, 0, Over).waits(2, 0, Over);
            xen.svc(3).yielded = true;
            format!("{:?}", xen.waits(3, 0, Under).queue(0))
        },
        "[0, 1, 3, 2]",
    ),
    (
        ALL,
        INSERT,
        "the idle vCPU is passed by nobody",
        |on| {
            let mut xen = on.cpus(1, &[2]).waits(0, 0, Under);
            xen.svc(1).yielded = true;
            format!("{:?}", xen.waits(1, 0, Over).queue(0))
        },
        "[0, 1]",
    ),
    (
        ALL,
        SORT,
        "after accounting UNDER and BOOST come before OVER, in the order they had",
        |on| {
            let mut xen = on.cpus(1, &[5]).waits(0, 0, Under).last(1, 0, Over).last(2, 0, Boost);
            xen = xen.last(3, 0, Over).last(4, 0, Under);
            xen.credit.sort += 1;
            format!("{:?}", xen.tick(0).queue(0))
        },
        "[0, 2, 4, 1, 3]",
    ),
    (
        ALL,
        SORT,
        "BOOST is not brought before UNDER",
        |on| {
            let mut xen = on.cpus(1, &[3]).waits(0, 0, Under).last(1, 0, Boost);
            xen.credit.sort += 1;
            format!("{:?}", xen.tick(0).queue(0))
        },
        "[0, 1]",
    ),
    (
        ALL,
        SORT,
        "once an accounting: not at a tick without one in between",
        |on| {
            let mut xen = on.cpus(1, &[3]).waits(0, 0, Over);
            xen.credit.sort += 1;
            format!("{:?}", xen.tick(0).last(1, 0, Under).tick(0).queue(0))
        },
        "[0, 1]",
    ),
    (
        BEFORE,
        SCHEDULE,
        "within the rate limit the vCPU that runs goes on, for a whole rate limit",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Boost).after(400 * US);
            xen.chooses(0, Preempted).chosen(0)
        },
        "0 for 1000 us",
    ),
    (
        NEWEST,
        SCHEDULE,
        "within the rate limit the vCPU that runs goes on, for what is left of it",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Boost).after(400 * US);
            xen.chooses(0, Preempted).chosen(0)
        },
        "0 for 600 us",
    ),
    // CSCHED_MIN_TIMER: 100 us; then 150 us have passed.
    (
        NEWEST,
        SCHEDULE,
        "but for 100 us where it began less than 100 us ago",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Boost).after(50 * US);
            let xen = xen.chooses(0, Preempted);
            let first = xen.slice / US;
            format!("{first} us, then {}", xen.after(100 * US).chooses(0, SliceEnd).chosen(0))
        },
        "100 us, then 0 for 850 us",
    ),
    // 0.4 ms, then 1 ms more: 1.4 ms.
    (
        ALL,
        SCHEDULE,
        "and at the end of that it gives way",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Boost).after(400 * US);
            xen.chooses(0, Preempted).after(MS).chooses(0, SliceEnd).chosen(0)
        },
        "1 for 30000 us",
    ),
    (
        ALL,
        SCHEDULE,
        "a vCPU that ran for exactly the rate limit is preempted",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Boost).after(MS);
            xen.chooses(0, Preempted).chosen(0)
        },
        "1 for 30000 us",
    ),
    // state_entry_time: 30.2 ms ago, though the slice began 0.2 ms ago.
    (
        ALL,
        SCHEDULE,
        "a new slice of the same vCPU begins no new rate limit",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).after(30 * MS).chooses(0, SliceEnd);
            xen.after(200 * US).waits(1, 0, Boost).chooses(0, Preempted).chosen(0)
        },
        "1 for 30000 us",
    ),
    (
        BEFORE,
        SCHEDULE,
        "a vCPU that comes to run again has a new rate limit",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).after(30 * MS).waits(1, 0, Under);
            let xen = xen.chooses(0, SliceEnd).after(30 * MS).chooses(0, SliceEnd);
            xen.after(200 * US).chooses(0, Preempted).chosen(0)
        },
        "0 for 1000 us",
    ),
    (
        NEWEST,
        SCHEDULE,
        "a vCPU that comes to run again has a new rate limit",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).after(30 * MS).waits(1, 0, Under);
            let xen = xen.chooses(0, SliceEnd).after(30 * MS).chooses(0, SliceEnd);
            xen.after(200 * US).chooses(0, Preempted).chosen(0)
        },
        "0 for 800 us",
    ),
    (
        ALL,
        SCHEDULE,
        "at the end of its slice a vCPU goes behind its equals",
        |on| {
            let xen = on.cpus(1, &[3]).runs(0, 0, Under).waits(1, 0, Under).waits(2, 0, Over);
            let xen = xen.after(30 * MS).chooses(0, SliceEnd);
            format!("{:?} then {:?}", xen.ctx.running[0].map(|task| task.0), xen.queue(0))
        },
        "Some(1) then [0, 2]",
    ),
    (
        ALL,
        SCHEDULE,
        "it goes on before those of lower priority",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Over).after(30 * MS);
            xen.chooses(0, SliceEnd).chosen(0)
        },
        "0 for 30000 us",
    ),
    (
        BEFORE,
        SCHEDULE,
        "a yield within the rate limit gives nobody the CPU",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Under).after(500 * US);
            xen.chooses(0, Yield(None)).chosen(0)
        },
        "0 for 1000 us",
    ),
    (
        NEWEST,
        SCHEDULE,
        "the rate limit does not hold a vCPU that yields",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Under).after(500 * US);
            xen.chooses(0, Yield(None)).chosen(0)
        },
        "1 for 30000 us",
    ),
    (
        BEFORE,
        SCHEDULE,
        "but its mark stays, and at the next choice one of lower priority passes",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Over).after(500 * US);
            let xen = xen.chooses(0, Yield(None)).after(MS).chooses(0, SliceEnd);
            format!("{:?} then {:?}", xen.ctx.running[0].map(|task| task.0), xen.queue(0))
        },
        "Some(1) then [0]",
    ),
    (
        ALL,
        SCHEDULE,
        "a vCPU that blocks loses the mark of its yield",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Over).waits(1, 0, Under).after(500 * US);
            let xen = xen.chooses(0, Yield(None)).blocks(0);
            format!("{}", xen.credit.svcs[0].yielded)
        },
        "false",
    ),
    (
        ALL,
        SCHEDULE,
        "the rate limit does not hold a vCPU that is to look for another CPU",
        |on| {
            let mut xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Over).after(100 * US);
            xen.svc(0).migrating = true;
            xen.chooses(0, Preempted).chosen(0)
        },
        "1 for 30000 us",
    ),
    // Not runnable until context_saved, then vcpu_migrate and csched_vcpu_wake.
    (
        BEFORE,
        "vcpu_migrate",
        "it is queued after the choice, with BOOST if it was UNDER",
        |on| {
            let mut xen = on.cpus(1, &[3]).runs(0, 0, Under).waits(1, 0, Over).waits(2, 0, Over);
            xen.svc(0).migrating = true;
            let xen = xen.after(2 * MS).chooses(0, Preempted);
            let running = xen.ctx.running[0].map(|task| task.0);
            format!(
                "{running:?} then {:?} {:?} {}",
                xen.queue(0),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "Some(1) then [0, 2] Boost [0]",
    ),
    (
        NEWEST,
        "sched_unit_migrate_finish",
        "it is queued after the choice, and UNDER stays UNDER",
        |on| {
            let mut xen = on.cpus(1, &[3]).runs(0, 0, Under).waits(1, 0, Over).waits(2, 0, Over);
            xen.svc(0).migrating = true;
            let xen = xen.after(2 * MS).chooses(0, Preempted);
            let running = xen.ctx.running[0].map(|task| task.0);
            format!(
                "{running:?} then {:?} {:?} {}",
                xen.queue(0),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "Some(1) then [0, 2] Under [0]",
    ),
    (
        NEWEST,
        WAKE,
        "once: the next time it wakes it is BOOST",
        |on| {
            let mut xen = on.cpus(1, &[2]).runs(0, 0, Under).waits(1, 0, Over);
            xen.svc(0).migrating = true;
            let xen = xen.after(2 * MS).chooses(0, Preempted).after(2 * MS).chooses(0, Preempted);
            let xen = xen.after(2 * MS).blocks(0).wakes(0, Waker::Timer);
            format!("{:?}", xen.pri_of(0))
        },
        "Boost",
    ),
    (
        ALL,
        WAKE,
        "UNDER wakes as BOOST, before UNDER",
        |on| {
            let xen = on.cpus(1, &[2]).waits(0, 0, Under).blocked(1, 0, Under);
            let xen = xen.wakes(1, Waker::Timer);
            format!("{:?} {:?}", xen.pri_of(1), xen.queue(0))
        },
        "Boost [1, 0]",
    ),
    // Neither release looks for a CPU in csched_vcpu_insert; idle CPUs are told by __runq_tickle.
    (
        BEFORE,
        "csched_vcpu_insert",
        "a new vCPU is queued where it was put, though other CPUs idle",
        |on| {
            let xen = on.cpus(4, &[2]).runs(0, 2, Boost).blocked(1, 2, Under);
            let xen = xen.wakes(1, Waker::Start);
            format!("{:?} {}", xen.queue(2), xen.resched_cpus())
        },
        "[1] [1]",
    ),
    // Its own CPU does not count as idle, as another one waits there; 3 comes next. csched_res_pick spares it BOOST.
    (
        NEWEST,
        "csched_unit_insert",
        "a new vCPU looks for a CPU, and is UNDER there",
        |on| {
            let xen = on.cpus(4, &[3]).runs(0, 2, Under).waits(1, 2, Under).blocked(2, 2, Under);
            let xen = xen.wakes(2, Waker::Start);
            format!("{:?} {:?} {}", xen.queue(3), xen.pri_of(2), xen.resched_cpus())
        },
        "[2] Under [3]",
    ),
    (
        ALL,
        WAKE,
        "OVER wakes as OVER",
        |on| {
            let xen = on.cpus(1, &[2]).waits(0, 0, Over).blocked(1, 0, Over);
            let xen = xen.wakes(1, Waker::Timer);
            format!("{:?} {:?}", xen.pri_of(1), xen.queue(0))
        },
        "Over [0, 1]",
    ),
    (
        ALL,
        WAKE,
        "BOOST that was not lost at a tick is kept over a sleep",
        |on| {
            let xen = on.cpus(1, &[1]).runs(0, 0, Boost).after(2 * MS).blocks(0);
            let xen = xen.after(9 * MS).wakes(0, Waker::Timer);
            format!("{:?} {:?}", xen.pri_of(0), xen.credits(1))
        },
        "Boost [-20]",
    ),
];

#[test]
fn queues_and_choices_are_as_in_the_source() {
    hold(CASES);
}
