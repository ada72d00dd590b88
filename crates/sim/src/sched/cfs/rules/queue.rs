//! Virtual runtimes, slices, the choice and preemption.

use super::*;
use crate::context::StopReason::{Preempted, SliceEnd, Yield};
use crate::context::Waker::{Start, Timer};

const UPDATE: &str = "update_curr";
const MIN: &str = "update_min_vruntime";
const SLICE: &str = "sched_slice";
const TICK: &str = "check_preempt_tick";
const PLACE: &str = "place_entity";
const WAKEUP: &str = "check_preempt_wakeup";
const PICK: &str = "pick_next_entity";
const YIELD: &str = "yield_to_task_fair";

/// Whether a tick after each of these times, us, has the CPU choose again.
fn told_after(times: [u64; 2], linux: impl Fn() -> Linux) -> String {
    let told = times.map(|us| !linux().after(us).tick(0).resched_cpus().is_empty());
    format!("{told:?}")
}

/// Virtual runtime of a task of this weight after 4 ms.
fn ran(on: Board, weight: u64) -> String {
    let linux = on.cpus(1, 1).weighs(0, weight).runs(0, 0, 0).after(4000).tick(0);
    linux.virtual_time(0).to_string()
}

/// The least virtual runtime of CPU 0's queue after its tick.
fn least_at_tick(linux: Linux) -> String {
    (linux.tick(0).cfs.queues[0].min_vruntime / US).to_string()
}

/// Virtual runtime that task 0 has when it wakes up, beside task 1, which runs at 20 ms.
fn slept(on: Board, us: u64) -> String {
    let linux = on.cpus(1, 2).runs(1, 0, 20_000).least(0, 20_000).blocked(0, 0, us);
    linux.wakes(0, Timer).virtual_time(0).to_string()
}

/// Whether task 0, of this weight, preempts task 1, which runs at 20 ms.
fn preempts(on: Board, weight: u64, us: u64) -> String {
    let linux = on.cpus(1, 2).weighs(0, weight).runs(1, 0, 20_000).least(0, 20_000);
    format!("{:?}", linux.blocked(0, 0, us).wakes(0, Timer).resched_cpus())
}

/// Task 2 preempts task 0 at 20 ms though task 1 is first in line.
fn preempted(on: Board, first: u64) -> Linux {
    let linux = on.cpus(1, 3).runs(0, 0, 20_000).waits(1, 0, first).least(0, first);
    linux.blocked(2, 0, 18_000).wakes(2, Timer).chooses(0, Preempted)
}

/// Of so many tasks on a CPU the last one preempts task 0 at 20 ms, and blocks; the others are at 19.5 ms.
fn comes_back(on: Board, tasks: u32) -> String {
    let mut linux = on.cpus(1, tasks).runs(0, 0, 20_000).least(0, 19_500);
    for task in 1..tasks - 1 {
        linux = linux.waits(task, 0, 19_500);
    }
    let linux = linux.blocked(tasks - 1, 0, 18_000).wakes(tasks - 1, Timer);
    format!("{:?}", linux.chooses(0, Preempted).after(100).blocks(0).runs_on(0))
}

/// Which CPUs a tick has choose again, 5 ms after task 0 was picked and 1 ms after it was chosen again at the end of its slice.
fn chosen_again(on: Board) -> String {
    let linux = on.cpus(1, 2).runs(0, 0, 0).waits(1, 0, 10_000).after(4000).tick(0);
    format!("{:?}", linux.chooses(0, SliceEnd).after(1000).tick(0).resched_cpus())
}

/// The host after task 0 at 10 ms gave way to `to`, beside task 1 and 2.
fn gave_way(on: Board, to: Option<u32>, first: u64, second: u64) -> Linux {
    let linux = on.cpus(1, 3).runs(0, 0, 10_000).waits(1, 0, first).waits(2, 0, second);
    linux.chooses(0, Yield(to.map(TaskId)))
}

const CASES: &[Case] = &[
    // 4 ms * 1024 / 2048.
    (
        ALL,
        UPDATE,
        "virtual runtime is CPU time by weight: a heavy task's is slower",
        |on| ran(on, 2048),
        "2000",
    ),
    // 4 ms * 1024 / 512.
    (ALL, UPDATE, "a light task's is faster", |on| ran(on, 512), "8000"),
    (
        ALL,
        MIN,
        "a queue's least is that of the running task or the first in line",
        |on| least_at_tick(on.cpus(1, 2).runs(0, 0, 5000).waits(1, 0, 6000).after(4000)),
        "6000",
    ),
    (
        ALL,
        MIN,
        "it does not go back",
        |on| least_at_tick(on.cpus(1, 1).runs(0, 0, 3000).least(0, 10_000).after(1000)),
        "10000",
    ),
    // 6 ms / 2.
    (
        ALL,
        SLICE,
        "two equal tasks have half the latency each",
        |on| {
            let of = || Board(on.0).cpus(1, 2).runs(0, 0, 0).waits(1, 0, 0);
            told_after([3000, 3001], of)
        },
        "[false, true]",
    ),
    // 6 ms * 1024 / 4096.
    (
        ALL,
        SLICE,
        "a slice is by weight",
        |on| {
            let of = || Board(on.0).cpus(1, 2).weighs(1, 3072).runs(0, 0, 0).waits(1, 0, 0);
            told_after([1500, 1501], of)
        },
        "[false, true]",
    ),
    // 16 * 0.75 ms / 16; by the latency it were 0.375 ms.
    (
        ALL,
        "__sched_period",
        "with more than eight tasks the period is as many least turns",
        |on| {
            let of = || {
                let linux = Board(on.0).cpus(1, 16).runs(0, 0, 0);
                (1..16).fold(linux, |linux, task| linux.waits(task, 0, 0))
            };
            told_after([750, 751], of)
        },
        "[false, true]",
    ),
    (
        ALL,
        TICK,
        "a task that is alone runs on",
        |on| told_after([4000, 400_000], || Board(on.0).cpus(1, 1).runs(0, 0, 0)),
        "[false, false]",
    ),
    // 10 ms ahead, more than the slice of 3 ms.
    (
        ALL,
        TICK,
        "one that is far ahead of the first has its least turn still",
        |on| {
            let of = || Board(on.0).cpus(1, 2).runs(0, 0, 10_000).waits(1, 0, 0);
            told_after([749, 750], of)
        },
        "[false, true]",
    ),
    // 2.2 + 0.8 = 3 ms ahead, which is not more than the slice; 3.001 is.
    (
        ALL,
        TICK,
        "ahead by no more than a slice it runs on",
        |on| {
            let of = || Board(on.0).cpus(1, 2).runs(0, 0, 2200).waits(1, 0, 0);
            told_after([800, 801], of)
        },
        "[false, true]",
    ),
    // 5 ms are more than a slice of 3.
    (
        NEWEST,
        "pick_next_task_fair",
        "a task that is chosen again has no new slice",
        chosen_again,
        "[0]",
    ),
    (BEFORE_3_19, "set_next_entity", "a task that is chosen has a slice", chosen_again, "[]"),
    (
        ALL,
        TICK,
        "at the end of its slice a task is nobody's buddy",
        |on| {
            let mut linux = on.cpus(1, 2).runs(0, 0, 0).waits(1, 0, 0);
            linux.cfs.queues[0].last = Some(TaskId(0));
            format!("{:?}", linux.after(4000).tick(0).cfs.queues[0].last)
        },
        "None",
    ),
    // 20 - 6 / 2.
    (ALL, PLACE, "a sleep counts for half a latency at most", |on| slept(on, 1000), "17000"),
    (ALL, PLACE, "a short one for what it was", |on| slept(on, 19_000), "19000"),
    (ALL, PLACE, "a task that was ahead stays ahead", |on| slept(on, 25_000), "25000"),
    // 6 ms * 1024 / 2048.
    (
        ALL,
        PLACE,
        "a new task begins a slice behind",
        |on| {
            let linux = on.cpus(1, 2).runs(1, 0, 20_000).least(0, 20_000).wakes(0, Start);
            linux.virtual_time(0).to_string()
        },
        "23000",
    ),
    // Slice 6 ms * 512 / 1536 = 2 ms, virtual 2 ms * 1024 / 512.
    (
        ALL,
        "sched_vslice",
        "a light one by its slice in its own virtual time",
        |on| {
            let linux = on.cpus(1, 2).weighs(0, 512).runs(1, 0, 20_000).least(0, 20_000);
            linux.wakes(0, Start).virtual_time(0).to_string()
        },
        "24000",
    ),
    // Nine tasks: 9 * 0.75 / 9.
    (
        ALL,
        PLACE,
        "the new one counts among those that share the period",
        |on| {
            let mut linux = on.cpus(1, 9).runs(1, 0, 20_000).least(0, 20_000);
            for task in 2..9 {
                linux = linux.waits(task, 0, 20_000);
            }
            linux.wakes(0, Start).virtual_time(0).to_string()
        },
        "20750",
    ),
    // 2 ms behind the queue's least there, 2 ms here; half a latency is 6 ms on two CPUs.
    (
        ALL,
        "task_waking_fair",
        "on another CPU a task is as far behind as it was",
        |on| {
            let linux = on.cpus(2, 2).least(0, 10_000).least(1, 50_000).runs(1, 1, 50_000);
            let linux = linux.blocked(0, 0, 8000).allowed(0, &[1]).wakes(0, Timer);
            linux.virtual_time(0).to_string()
        },
        "48000",
    ),
    (
        ALL,
        WAKEUP,
        "a task behind by more than 1 ms preempts",
        |on| preempts(on, 1024, 18_999),
        "[0]",
    ),
    (ALL, WAKEUP, "by 1 ms it does not", |on| preempts(on, 1024, 19_000), "[]"),
    // 1 ms * 1024 / 2048.
    (ALL, "wakeup_gran", "a heavy one preempts sooner", |on| preempts(on, 2048, 19_499), "[0]"),
    // 1 ms * 1024 / 512.
    (ALL, "wakeup_gran", "a light one later", |on| preempts(on, 512, 18_000), "[]"),
    (
        ALL,
        WAKEUP,
        "an idle CPU has to choose again",
        |on| format!("{:?}", on.cpus(1, 1).blocked(0, 0, 0).wakes(0, Timer).resched_cpus()),
        "[0]",
    ),
    // 18 is within 1 ms of 17.5.
    (
        ALL,
        WAKEUP,
        "a task that preempts runs next, though another is first in line",
        |on| format!("{:?}", preempted(on, 17_500).runs_on(0)),
        "Some(2)",
    ),
    // 18 is not within 1 ms of 16.9.
    (
        ALL,
        PICK,
        "but not if it is too far ahead of the first",
        |on| format!("{:?}", preempted(on, 16_900).runs_on(0)),
        "Some(1)",
    ),
    (
        ALL,
        "clear_buddies",
        "the mark stays until the task runs or leaves",
        |on| format!("{:?}", preempted(on, 16_900).cfs.queues[0].next),
        "Some(TaskId(2))",
    ),
    (
        ALL,
        WAKEUP,
        "while a CPU is to choose again nobody else preempts",
        |on| {
            let linux = on.cpus(1, 3).runs(0, 0, 20_000).least(0, 17_000).blocked(1, 0, 18_000);
            let linux = linux.blocked(2, 0, 17_500).wakes(1, Timer).wakes(2, Timer);
            format!("{:?}", linux.chooses(0, Preempted).runs_on(0))
        },
        "Some(1)",
    ),
    // 20 is within 1 ms of 19.5.
    (
        ALL,
        "set_last_buddy",
        "with eight tasks the preempted one comes back first",
        |on| comes_back(on, 8),
        "Some(0)",
    ),
    (
        ALL,
        "set_last_buddy",
        "with seven the first in line comes",
        |on| comes_back(on, 7),
        "Some(1)",
    ),
    (
        ALL,
        "dequeue_entity",
        "a task that sleeps is nobody's buddy",
        |on| {
            let mut linux = on.cpus(1, 2).runs(0, 0, 0).waits(1, 0, 0);
            linux.cfs.queues[0].next = Some(TaskId(0));
            format!("{:?}", linux.blocks(0).cfs.queues[0].next)
        },
        "None",
    ),
    (
        ALL,
        "entity_before",
        "of equals the one that was queued first runs",
        |on| {
            let linux = on.cpus(1, 3).runs(2, 0, 0).waits(1, 0, 10_000).waits(0, 0, 10_000);
            format!("{:?}", linux.blocks(0).runs_on(0))
        },
        "Some(1)",
    ),
    (
        ALL,
        PICK,
        "the least virtual runtime runs",
        |on| {
            let linux = on.cpus(1, 3).runs(0, 0, 0).waits(1, 0, 3000).waits(2, 0, 2500);
            format!("{:?}", linux.after(3100).chooses(0, SliceEnd).runs_on(0))
        },
        "Some(2)",
    ),
    (
        ALL,
        "yield_task_fair",
        "a task that yields lets the second run if it is near",
        |on| format!("{:?}", gave_way(on, None, 10_500, 30_000).runs_on(0)),
        "Some(1)",
    ),
    // 11.001 is more than 1 ms after 10.
    (
        ALL,
        PICK,
        "and goes on itself if it is not",
        |on| format!("{:?}", gave_way(on, None, 11_001, 30_000).runs_on(0)),
        "Some(0)",
    ),
    // 1 blocks; 0 is first at 10, still passed over, and 2 within 1 ms.
    (
        ALL,
        "clear_buddies",
        "a task that yielded is passed over until it runs",
        |on| format!("{:?}", gave_way(on, None, 10_200, 10_400).blocks(0).runs_on(0)),
        "Some(2)",
    ),
    (
        ALL,
        YIELD,
        "the one it yields to runs, though another is nearer",
        |on| format!("{:?}", gave_way(on, Some(2), 10_100, 10_800).runs_on(0)),
        "Some(2)",
    ),
    // 11.2 is more than 1 ms after 10; the second, at 10.1, is not.
    (
        ALL,
        YIELD,
        "but not if it is too far ahead",
        |on| format!("{:?}", gave_way(on, Some(2), 10_100, 11_200).runs_on(0)),
        "Some(1)",
    ),
    (
        ALL,
        YIELD,
        "nothing happens if the other does not wait",
        |on| {
            let linux = on.cpus(1, 3).runs(0, 0, 10_000).waits(1, 0, 10_500).blocked(2, 0, 0);
            format!("{:?}", linux.chooses(0, Yield(Some(TaskId(2)))).runs_on(0))
        },
        "Some(0)",
    ),
    (
        ALL,
        "yield_task_fair",
        "a task that is alone has nobody to yield to",
        |on| {
            let linux = on.cpus(1, 1).runs(0, 0, 0).chooses(0, Yield(None));
            format!("{:?} {:?}", linux.runs_on(0), linux.cfs.queues[0].skip)
        },
        "Some(0) None",
    ),
];

#[test]
fn virtual_times_and_choices_are_as_in_the_source() {
    hold(CASES);
}
