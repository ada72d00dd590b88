//! The CPU of a task that wakes up.

use super::*;
use crate::context::Waker::{Sibling, Timer};

const SELECT: &str = "select_task_rq_fair";
const AFFINE: &str = "wake_affine";
const IDLE: &str = "select_idle_sibling";
const WIDE: &str = "wake_wide";
/// Two cores of two threads: CPUs 0 and 1, 2 and 3.
const SMT: [u32; 3] = [1, 2, 2];

/// Where task 0 goes, which was on the second CPU and is woken from the first, where task 1 runs.
fn woken(linux: Linux, [here, last]: [usize; 2]) -> String {
    let linux = linux.runs(1, here, 0).blocked(0, last, 0);
    linux.wakes(0, Sibling(TaskId(1))).cpu_of(0).to_string()
}

/// Where task 0 goes when its timer wakes it.
fn timed(linux: Linux, last: usize) -> String {
    linux.blocked(0, last, 0).wakes(0, Timer).cpu_of(0).to_string()
}

/// Task 0 of this weight was on a CPU where a task of 1024 runs, as on that of its waker.
fn light(on: Board, shape: [u32; 3], weight: u64) -> String {
    let mut linux = on.host(shape, 8).weighs(0, weight);
    for cpu in 1..linux.ctx.host.cpus() {
        linux = linux.runs(1 + cpu as u32, cpu, 0);
    }
    woken(linux, [0, 1])
}

/// The same of weight 1024 where two tasks are, with these turns of the waker and the woken task.
fn flips(on: Board, waker: u32, woken_task: u32) -> String {
    let mut linux = on.cpus(2, 4).busy(&[(2, 1), (3, 1)]);
    linux.entity(1).flips = waker;
    linux.entity(0).flips = woken_task;
    woken(linux, [0, 1])
}

/// Turns of a task that had nine, after it woke another one a second later.
fn turns_later(on: Board) -> String {
    let mut linux = on.cpus(4, 4).runs(1, 0, 0);
    linux.entity(1).flips = 9;
    let mut linux = linux.after(1_000_001);
    linux.cfs.note_wakeup(&linux.ctx, TaskId(2), Sibling(TaskId(1)));
    linux.entity(1).flips.to_string()
}

const CASES: &[Case] = &[
    (
        ALL,
        SELECT,
        "a timer's task stays where it was if that idles",
        |on| timed(on.cpus(2, 1), 1),
        "1",
    ),
    (
        ALL,
        SELECT,
        "a task that may use one CPU has no choice",
        |on| timed(on.cpus(2, 2).busy(&[(1, 1)]).allowed(0, &[1]), 1),
        "1",
    ),
    // 100 * (1024 + 1024) is more than 112 * 0.
    (
        ALL,
        AFFINE,
        "no task comes to a busy waker from an idle CPU",
        |on| woken(on.cpus(2, 2), [0, 1]),
        "1",
    ),
    // 100 * 2048 is less than 112 * 2048.
    (
        ALL,
        AFFINE,
        "it does from one that is twice as busy",
        |on| woken(on.cpus(2, 4).busy(&[(2, 1), (3, 1)]), [0, 1]),
        "0",
    ),
    // 100 * 2048 is more than 112 * 1024.
    (
        ALL,
        AFFINE,
        "not from one that is as busy",
        |on| woken(on.cpus(2, 3).busy(&[(2, 1)]), [0, 1]),
        "1",
    ),
    // 100 * (1024 + 100) = 112,400; 112 * 1024 = 114,688; half of 17 % is 8: 108 * 1024 = 110,592.
    (
        BEFORE_3_19,
        AFFINE,
        "a light task comes though its waker is as busy: slack 125 %",
        |on| light(on, [1, 2, 1], 100),
        "0",
    ),
    (
        NEWEST,
        AFFINE,
        "in 3.19 it does not: slack 117 % within a cache",
        |on| light(on, [1, 2, 1], 100),
        "1",
    ),
    // 115,200 and 114,688.
    (ALL, AFFINE, "nor does a heavier one", |on| light(on, [1, 2, 1], 128), "1"),
    // Half of 10 % is 5: 105 * 1024 = 107,520; 100 * (1024 + 51) = 107,500.
    (ALL, AFFINE, "within a core the slack is 110 %", |on| light(on, SMT, 51), "0"),
    (ALL, AFFINE, "which 52 exceed by 80 of 107,520", |on| light(on, SMT, 52), "1"),
    // 100 * 2048 and 112 * 2048 across nodes.
    (
        ALL,
        SELECT,
        "wake-ups bring tasks over from a near node",
        |on| woken(on.host([2, 1, 1], 4).busy(&[(2, 1), (3, 1)]), [0, 1]),
        "0",
    ),
    (
        OLD,
        SELECT,
        "3.0 brings them from any node",
        |on| woken(on.far([2, 1, 1], 4, 40).busy(&[(2, 1), (3, 1)]), [0, 1]),
        "0",
    ),
    (
        SINCE_3_13,
        SELECT,
        "from 3.13 on not from one that is farther than 30",
        |on| woken(on.far([2, 1, 1], 4, 40).busy(&[(2, 1), (3, 1)]), [0, 1]),
        "1",
    ),
    (
        BEFORE_3_19,
        SELECT,
        "one that may not use the waker's CPU stays, though another CPU idles",
        |on| woken(on.cpus(3, 3).busy(&[(2, 1)]).allowed(0, &[1, 2]), [0, 1]),
        "1",
    ),
    (
        NEWEST,
        SELECT,
        "in 3.19 it is put on that CPU",
        |on| woken(on.cpus(3, 3).busy(&[(2, 1)]).allowed(0, &[1, 2]), [0, 1]),
        "2",
    ),
    (
        NEWEST,
        SELECT,
        "in 3.19 a task from a far node looks for an idle CPU beside its last one",
        |on| woken(on.far([2, 2, 1], 4, 40).busy(&[(2, 2)]), [0, 2]),
        "3",
    ),
    (
        ALL,
        IDLE,
        "outside its cache no idle CPU is looked for",
        |on| timed(on.host([2, 1, 1], 2).busy(&[(1, 0)]), 0),
        "0",
    ),
    (
        OLD,
        IDLE,
        "3.0 takes an idle thread of the same core for a timer's task",
        |on| timed(on.host(SMT, 2).busy(&[(1, 0)]), 0),
        "1",
    ),
    (
        SINCE_3_13,
        IDLE,
        "from 3.13 on an idle core comes before that",
        |on| timed(on.host(SMT, 2).busy(&[(1, 0)]), 0),
        "2",
    ),
    // The span of the core holds both the waker's and the last CPU, and has nobody idle.
    (
        OLD,
        IDLE,
        "in 3.0 a timer's task does not leave its core for an idle one",
        |on| timed(on.host(SMT, 3).busy(&[(1, 0), (2, 1)]), 0),
        "0",
    ),
    (
        SINCE_3_13,
        IDLE,
        "from 3.13 on it does",
        |on| timed(on.host(SMT, 3).busy(&[(1, 0), (2, 1)]), 0),
        "2",
    ),
    // Target 2: CPU 3 of its core idles; but the core does not hold CPU 0, so that the first of the cache, 1, wins.
    (
        OLD,
        IDLE,
        "in 3.0 the first idle CPU of the span with both CPUs wins",
        |on| woken(on.host(SMT, 3).busy(&[(2, 2)]), [0, 2]),
        "1",
    ),
    // No core idles as a whole; then the target's own core.
    (
        SINCE_3_13,
        IDLE,
        "from 3.13 on an idle thread of the last CPU's core does",
        |on| woken(on.host(SMT, 3).busy(&[(2, 2)]), [0, 2]),
        "3",
    ),
    (
        OLD,
        IDLE,
        "3.0 begins with the first CPU of the cache",
        |on| timed(on.cpus(4, 3).busy(&[(1, 2), (2, 1)]), 2),
        "0",
    ),
    (
        SINCE_3_13,
        IDLE,
        "from 3.13 on the search begins behind the last CPU",
        |on| timed(on.cpus(4, 3).busy(&[(1, 2), (2, 1)]), 2),
        "3",
    ),
    (
        SINCE_3_13,
        IDLE,
        "an idle core is taken by a thread that the task may use",
        |on| timed(on.host(SMT, 2).busy(&[(1, 0)]).allowed(0, &[0, 3]), 0),
        "3",
    ),
    (
        ALL,
        IDLE,
        "without any idle CPU a task stays",
        |on| timed(on.cpus(2, 3).busy(&[(1, 0), (2, 1)]), 0),
        "0",
    ),
    // A cache of two CPUs: 3 is more than 2, 7 and this turn are more than 2 * 3.
    (
        SINCE_3_13,
        WIDE,
        "a task that wakes up many others does not draw them",
        |on| flips(on, 7, 3),
        "1",
    ),
    // This wake-up is one turn more: 6 is not more than 2 * 3.
    (SINCE_3_13, WIDE, "it draws those that wake up nearly as many", |on| flips(on, 5, 3), "0"),
    (SINCE_3_13, WIDE, "and those that wake up few", |on| flips(on, 7, 2), "0"),
    (OLD, WIDE, "3.0 does not ask", |on| flips(on, 7, 3), "0"),
    (
        SINCE_3_13,
        "record_wakee",
        "waking up the same task again is no turn",
        |on| {
            let linux = on.cpus(4, 4).runs(1, 0, 0).blocked(0, 1, 0).blocked(2, 2, 0);
            let linux = linux.wakes(0, Sibling(TaskId(1))).wakes(2, Sibling(TaskId(1)));
            let mut linux =
                linux.after(1).chooses(1, crate::context::StopReason::SliceEnd).blocks(1);
            linux.cfs.note_wakeup(&linux.ctx, TaskId(2), Sibling(TaskId(1)));
            linux.entity(1).flips.to_string()
        },
        "2",
    ),
    // 1.000001 s after the first one: 0, or half of 9, and this turn.
    (&[V3_13], "record_wakee", "turns of a second ago are forgotten", turns_later, "1"),
    (NEWEST, "record_wakee", "in 3.19 half of them", turns_later, "5"),
];

#[test]
fn cpus_of_woken_tasks_are_as_in_the_source() {
    hold(CASES);
}
