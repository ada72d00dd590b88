//! What a task counts for in the load of its CPU, loads over time, and when a CPU that goes idle looks for tasks. A task that was always
//! runnable counts for 1024, a CPU has power 1024. Periods are of 1024 * 1024 ns.

use super::Puller::{Busy, Idle, Newly};
use super::*;

const CONTRIB: &str = "update_entity_load_avg";
const WOKEN: &str = "enqueue_entity_load_avg";
const PAST: &str = "update_cpu_load";
const BIAS: &str = "source_load, target_load";
const NEWIDLE: &str = "idle_balance";
const MEAN: &str = "ttwu_do_wakeup";
/// 32 periods, us, rounded up.
const HALF_LIFE: u64 = 33_555;

/// Loads of the CPUs' queues.
fn loads(linux: &Linux) -> Vec<u64> {
    linux.cfs.queues.iter().map(|queue| queue.load).collect()
}

/// Means of the loads of a CPU, each behind so many ticks.
fn means(linux: &Linux, cpu: usize) -> String {
    let queue = &linux.cfs.queues[cpu];
    format!("{:?}", [1, 2, 3].map(|mean| queue.biased_load(mean, true)))
}

/// Two CPUs that have been idle; now one runs three tasks and the other one.
fn has_just_come(on: Board) -> Linux {
    let mut linux = on.cpus(2, 4).busy(&[(0, 0), (1, 0), (2, 0), (3, 1)]);
    (0..2).for_each(|cpu| linux.cfs.queues[cpu].forget_load());
    linux
}

/// CPU 1 of two goes idle again and again, for so many us each time, 40 times; how long it does in the mean, us.
fn idles(on: Board, us: u64) -> (Linux, u64) {
    let mut linux = on.cpus(2, 3).blocked(0, 1, 0);
    for _ in 0..40 {
        linux =
            linux.chooses(1, crate::context::StopReason::SliceEnd).after(us).wakes(0, Waker::Timer);
        linux = linux.chooses(1, crate::context::StopReason::SliceEnd).blocks(1);
    }
    let mean = linux.cfs.queues[1].idles / US;
    (linux, mean)
}

/// The mean of idle times of a CPU, us, after one of `idle` us; `before` is the mean until then, else that of a new queue.
fn mean_after(on: Board, before: Option<u64>, idle: u64) -> String {
    let mut linux = on.cpus(1, 1).blocked(0, 0, 0);
    if let Some(before) = before {
        linux.cfs.queues[0].idles = before * US;
    }
    linux = linux.chooses(0, crate::context::StopReason::SliceEnd).after(idle);
    (linux.wakes(0, Waker::Timer).cfs.queues[0].idles / US).to_string()
}

const CASES: &[Case] = &[
    // 47,742 of 47,743 units; the sums of the past do not grow any more.
    (
        SINCE_3_13,
        CONTRIB,
        "a task that always runs counts for its weight, but for what rounding takes",
        |on| format!("{:?}", loads(&on.cpus(1, 1).busy(&[(0, 0)]).after(4000).tick(0))),
        "[1023]",
    ),
    (
        OLD,
        CONTRIB,
        "in 3.0 for its weight",
        |on| format!("{:?}", loads(&on.cpus(1, 1).busy(&[(0, 0)]).after(4000).tick(0))),
        "[1024]",
    ),
    // 47,742 units are 386 from the end of a period. 32 periods later (47,742 + 386) / 2 + 22,859 + 638 = 47,560 are counted, the sum
    // of 31 whole ones among them, and 47,742 / 2, rounded down twice, of its own: 23,870 * 1024 / 47,561.
    (
        SINCE_3_13,
        WOKEN,
        "one that slept for 32 periods for half of it",
        |on| {
            let linux = on.cpus(1, 1).busy(&[(0, 0)]).blocks(0).after(HALF_LIFE);
            format!("{:?}", loads(&linux.wakes(0, Waker::Timer)))
        },
        "[513]",
    ),
    (
        OLD,
        WOKEN,
        "in 3.0 for all of it",
        |on| {
            let linux = on.cpus(1, 1).busy(&[(0, 0)]).blocks(0).after(HALF_LIFE);
            format!("{:?}", loads(&linux.wakes(0, Waker::Timer)))
        },
        "[1024]",
    ),
    // A slice of 6 ms: 5,859 units of 5,860, times 1024.
    (
        SINCE_3_13,
        "init_task_runnable_average",
        "a new task counts as if it had run for a slice",
        |on| format!("{:?}", loads(&on.cpus(1, 1).wakes(0, Waker::Start))),
        "[1023]",
    ),
    // Of what waits nothing is brought up to date until it runs or leaves.
    (
        SINCE_3_13,
        CONTRIB,
        "a tick looks at the running task only",
        |on| {
            let linux = on.cpus(1, 2).counts_for(1, 500).busy(&[(0, 0), (1, 0)]);
            format!("{:?}", loads(&linux.after(4000).tick(0)))
        },
        "[1523]",
    ),
    (
        ALL,
        "dequeue_entity_load_avg",
        "what sleeps counts nowhere",
        |on| {
            let linux = on.cpus(1, 2).counts_for(1, 500).busy(&[(1, 0)]).blocks(0);
            format!("{:?}", loads(&linux))
        },
        "[0]",
    ),
    // (0 + 2048), (0 * 1 + 2048 + 1) / 2 and (0 * 3 + 2048 + 3) / 4, rounded down.
    (
        ALL,
        PAST,
        "means follow a load that comes by all, half and a quarter a tick",
        |on| {
            let mut linux = on.cpus(1, 2).busy(&[(0, 0), (1, 0)]);
            linux.cfs.queues[0].forget_load();
            linux.cfs.queues[0].remember_load();
            let queue = &linux.cfs.queues[0];
            format!("{:?}", [1, 2, 3].map(|mean| queue.biased_load(mean, false)))
        },
        "[2048, 1024, 512]",
    ),
    // (1024 * 1 + 0) / 2 and (1024 * 3 + 0) / 4.
    (
        ALL,
        PAST,
        "and one that goes",
        |on| {
            let mut linux = on.cpus(1, 1).busy(&[(0, 0)]).blocks(0);
            linux.cfs.queues[0].remember_load();
            means(&linux, 0)
        },
        "[0, 512, 768]",
    ),
    // The second mean of both is 0: 0 of CPU 0, and 1024, which it has now, of CPU 1.
    (
        ALL,
        BIAS,
        "tasks that have just come are not pulled by a busy CPU",
        |on| has_just_come(on).busiest(1, 0, Busy),
        "None",
    ),
    // 3072 and 1024 now: mean 2048.
    (
        ALL,
        BIAS,
        "a CPU that goes idle counts loads as they are",
        |on| has_just_come(on).busiest(1, 0, Newly),
        "Some((0, 1024))",
    ),
    (
        ALL,
        BIAS,
        "so does one that idles, within a cache",
        |on| has_just_come(on).busiest(1, 0, Idle),
        "Some((0, 1024))",
    ),
    // Tasks 0 to 2 count for 300 each: 900 against 1024.
    (
        SINCE_3_13,
        "find_busiest_group",
        "three tasks that mostly sleep are less than one that runs",
        |on| {
            let linux = on.cpus(2, 4).counts_for(0, 300).counts_for(1, 300).counts_for(2, 300);
            linux.busy(&[(0, 0), (1, 0), (2, 0), (3, 1)]).busiest(1, 0, Busy)
        },
        "None",
    ),
    // 1024 + 100 + 1024 against 0: mean 1074; 1074 too much. Task 2 moves, 50 are left, and half of 100 fits.
    (
        SINCE_3_13,
        "move_tasks",
        "half of a task's load must fit, whatever it weighs",
        |on| {
            let mut linux = on.cpus(2, 3).counts_for(1, 100).busy(&[(0, 0), (1, 0), (2, 0)]);
            format!("{:?} {:?}", linux.pulls(1, 0, Newly, 1), linux.queue(1))
        },
        "[2] [2, 1]",
    ),
    // Each of both nodes has four. One CPU of the first is idle, and 2048 a CPU run beside it; of the other two wait behind tasks that
    // count for 100.
    (
        SINCE_3_13,
        "find_busiest_group",
        "a CPU idles on beside light tasks of another node",
        |on| {
            let mut linux = on.host([2, 2, 1], 5).counts_for(1, 100).counts_for(2, 100);
            linux = linux.counts_for(3, 100).busy(&[(0, 0), (1, 2), (2, 2), (3, 3)]);
            format!("{} {}", linux.busiest(1, 1, Idle), linux.busiest(1, 1, Newly))
        },
        "None Some((1, 100))",
    ),
    // 50 and 1024: 100 * (50 + 1024) and 112 (3.19: 108) * 1024.
    (
        SINCE_3_13,
        "wake_affine",
        "a waker that mostly sleeps draws a task from a busy CPU",
        |on| {
            let linux = on.cpus(2, 3).counts_for(0, 50).busy(&[(0, 0), (1, 1)]).blocked(2, 1, 0);
            linux.wakes(2, Waker::Sibling(TaskId(0))).cpu_of(2).to_string()
        },
        "0",
    ),
    (
        ALL,
        MEAN,
        "idle times are averaged, an eighth of each new one",
        // 1000 + (200 - 1000) / 8
        |on| mean_after(on, None, 200),
        "900",
    ),
    // 900 + (9000 - 900) / 8 is more than twice 0.5 ms.
    (
        ALL,
        MEAN,
        "they are at most twice the cost of a migration",
        |on| mean_after(on, Some(900), 9000),
        "1000",
    ),
    // 100 + (1200 - 100) / 8 = 237.
    (
        SINCE_3_13,
        MEAN,
        "a long one counts for an eighth, too",
        |on| mean_after(on, Some(100), 1200),
        "237",
    ),
    (OLD, MEAN, "in 3.0 for all", |on| mean_after(on, Some(100), 1200), "1000"),
    // 0.3 ms in the mean is less than 0.5 ms, 0.6 ms more.
    (
        ALL,
        NEWIDLE,
        "a CPU that idles for short takes nothing when it goes idle",
        |on| {
            let (linux, mean) = idles(on, 300);
            let linux =
                linux.busy(&[(1, 0), (2, 0)]).chooses(1, crate::context::StopReason::SliceEnd);
            format!("{} {:?}", mean < 310, linux.runs_on(1))
        },
        "true None",
    ),
    (
        ALL,
        NEWIDLE,
        "one that idles for longer does",
        |on| {
            let (linux, mean) = idles(on, 600);
            let linux =
                linux.busy(&[(1, 0), (2, 0)]).chooses(1, crate::context::StopReason::SliceEnd);
            format!("{} {:?}", mean < 610, linux.runs_on(1))
        },
        "true Some(2)",
    ),
    // A search that finds nothing doubles the interval of the span: 2 to 4 ms.
    (
        NEWEST,
        NEWIDLE,
        "in 3.19 no CPU looks while none was seen with two tasks",
        |on| {
            let mut linux =
                on.cpus(2, 2).busy(&[(0, 0)]).chooses(1, crate::context::StopReason::SliceEnd);
            let before = linux.cfs.domains.turn(1, 0).interval / MS;
            let mut linux = linux.waits(1, 0, 0);
            linux.cfs.balance_new_idle(&mut linux.ctx, 1);
            format!("{before} {:?}", linux.queue(1))
        },
        "2 [1]",
    ),
    // As in the case of sg_imbalanced; then nothing is to be moved any more.
    (
        NEWEST,
        "sg_imbalanced",
        "in 3.19 a node is even again when nothing is to be moved in it",
        |on| uneven_after(on),
        "true false",
    ),
    (
        &[V3_13],
        "sg_imbalanced",
        "in 3.13 not before something was moved",
        |on| uneven_after(on),
        "true true",
    ),
];

/// Whether a node is uneven when two tasks may not leave its first CPU, and when these have gone.
fn uneven_after(on: Board) -> String {
    let mut linux = on.host([2, 2, 1], 4).allowed(1, &[0]).allowed(2, &[0]);
    linux = linux.busy(&[(0, 0), (1, 0), (2, 0)]);
    linux.pulls(1, 0, Newly, 1);
    let before = linux.is_uneven(1, 1);
    linux = linux.blocks(0).blocks(0).blocks(0);
    linux.pulls(1, 0, Newly, 1);
    format!("{before} {}", linux.is_uneven(1, 1))
}

#[test]
fn loads_are_as_in_the_source() {
    hold(CASES);
}
