//! Sleep, moves and what a task keeps: delayed dequeue, lag, requests.

use super::*;
use crate::context::StopReason::{Preempted, SliceEnd};
use crate::context::Waker::Timer;

const DELAY: &str = "dequeue_entity";
const PICKED: &str = "pick_next_entity";
const REQUEUE: &str = "requeue_delayed_entity";
const PLACE: &str = "place_entity";

/// Task 0 ran ahead of task 1 and sleeps: at 400, deadline 750; task 1 at 0. Virtual time 200.
fn asleep(on: Board) -> Linux {
    let linux = on.cpus(2, &[3]).runs(0, 0, [0, 750]).waits(1, 0, [0, 750]);
    linux.after(400).blocks(0)
}

const CASES: &[Case] = &[
    (
        V6_12,
        DELAY,
        "a task that sleeps while it is ahead stays in its queue",
        |on| asleep(on).place(0),
        "400 750",
    ),
    (V6_12, DELAY, "others run meanwhile", |on| asleep(on).runs_on(0), "1"),
    (V6_12, DELAY, "it counts in virtual time", |on| asleep(on).time(1), "200"),
    // Task 1 is at 300, virtual time 350.
    (V6_12, DELAY, "until that has caught up", |on| asleep(on).after(300).tick(0).lag(0), "-50"),
    // Virtual time is 900.
    (
        V6_12,
        DELAY,
        "one that is not ahead leaves at once",
        |on| {
            let linux = on.cpus(1, &[2]).runs(0, 0, [0, 750]).waits(1, 0, [1000, 1750]);
            linux.after(400).blocks(0).place(0)
        },
        "gone",
    ),
    // (400 + 1000) / 2 - 400.
    (
        V6_12,
        DELAY,
        "and keeps what it is owed",
        |on| {
            let linux = on.cpus(1, &[2]).runs(0, 0, [0, 750]).waits(1, 0, [1000, 1750]);
            linux.after(400).blocks(0).kept(0)
        },
        "300",
    ),
    (
        V6_12,
        DELAY,
        "so does one that is alone, without lag",
        |on| {
            let mut linux = on.cpus(1, &[1]).runs(0, 0, [0, 750]).after(400).blocks(0);
            format!("{} {}", linux.place(0), linux.kept(0))
        },
        "gone 0",
    ),
    // Task 1 at 500, virtual time 450: task 0, deadline 750, is first, as 1 is ahead.
    (
        V6_12,
        PICKED,
        "a sleeper that is chosen leaves, and the next one is chosen",
        |on| {
            let mut linux = asleep(on).after(500).chooses(0, Preempted);
            format!("{} {}", linux.place(0), linux.runs_on(0))
        },
        "gone 1",
    ),
    // Virtual time 450 is 50 ahead of it.
    (
        V6_12,
        "finish_delayed_dequeue_entity",
        "it is owed nothing for what it waited to burn its debt off (DELAY_ZERO)",
        |on| asleep(on).after(500).chooses(0, Preempted).kept(0),
        "0",
    ),
    // Task 1 at 100, virtual time 250.
    (
        V6_12,
        REQUEUE,
        "one that wakes up before that keeps its place and its request",
        |on| asleep(on).after(100).wakes(0, Timer).place(0),
        "400 750",
    ),
    // Task 1 was charged at 500: virtual time 450. The others' is 500.
    (
        V6_12,
        REQUEUE,
        "one that would be owed something comes at the others' virtual time, with a new request",
        |on| asleep(on).after(500).tick(0).wakes(0, Timer).place(0),
        "500 2000",
    ),
    (
        V6_12,
        "ttwu_runnable",
        "one that is still in its queue stays there, though another CPU idles",
        |on| asleep(on).after(100).wakes(0, Timer).cpu_of(0),
        "0",
    ),
    // Task 1 at 500 is ahead of virtual time 466.7; task 0 is at 400 with deadline 750, task 2 ahead at 500.
    (
        V6_12,
        "ttwu_runnable",
        "and preempts as others do",
        |on| {
            let linux = on.cpus(1, &[3]).runs(0, 0, [0, 750]).waits(1, 0, [0, 750]);
            let linux = linux.waits(2, 0, [500, 900]).after(400).blocks(0);
            linux.after(500).wakes(0, Timer).resched_cpus()
        },
        "[0]",
    ),
    // Three tasks at 100, 0 and 500: virtual time 200. Task 0 moves with lag 100 and 650 of its request.
    (
        V6_12,
        PLACE,
        "a task that moves keeps what is left of its request (PLACE_REL_DEADLINE)",
        |on| {
            let linux = on.cpus(2, &[4]).runs(1, 0, [0, 750]).waits(0, 0, [100, 750]);
            linux.waits(2, 0, [500, 900]).moves(0, 1).place(0)
        },
        "0 650",
    ),
    // Beside one task its lag of 100 is inflated to 200 below 1000.
    (
        V6_12,
        PLACE,
        "and its lag",
        |on| {
            let linux = on.cpus(2, &[4]).runs(1, 0, [0, 750]).waits(0, 0, [100, 750]);
            let linux = linux.waits(2, 0, [500, 900]).runs(3, 1, [1000, 2500]);
            linux.moves(0, 1).place(0)
        },
        "800 1450",
    ),
    // Virtual time is 200.
    (
        V6_12,
        DELAY,
        "a task that moves leaves at once, though it is ahead",
        |on| {
            let linux = on.cpus(2, &[2]).runs(1, 0, [0, 750]).waits(0, 0, [400, 750]);
            let linux = linux.moves(0, 1);
            format!("{} {}", linux.eevdf.queues[0].count, linux.eevdf.queues[1].count)
        },
        "1 1",
    ),
    // Lag 4000 is the limit, of 10 ms.
    (
        V6_12,
        "update_entity_lag",
        "a task that leaves is owed a tick at most",
        |on| {
            let linux = on.cpus(1, &[2]).runs(0, 0, [0, 750]).waits(1, 0, [20_000, 20_750]);
            linux.blocks(0).kept(0)
        },
        "4000",
    ),
    // It leaves 125.5 behind virtual time 874.5, and comes back 251 behind 1000.
    (
        V6_12,
        PLACE,
        "a task that slept while nobody ran comes back where it was, with a new request",
        |on| {
            let linux = on.cpus(1, &[2]).runs(0, 0, [0, 750]).waits(1, 0, [1000, 1750]);
            linux.after(749).blocks(0).wakes(0, Timer).place(0)
        },
        "749 1499",
    ),
    (
        V6_12,
        "pick_task_fair",
        "a queue of sleepers alone empties, and the CPU idles",
        |on| {
            let mut linux = asleep(on).after(50).blocks(0);
            format!("{} {} {}", linux.place(0), linux.place(1), linux.runs_on(0))
        },
        "gone gone none",
    ),
    // Virtual time 0; nobody is ahead of the other.
    (
        V6_12,
        "pick_next_task_fair",
        "after a task that slept the next one is protected from its own deadline on",
        |on| {
            let linux = on.cpus(1, &[3]).runs(0, 0, [0, 750]).waits(1, 0, [0, 900]);
            let linux = linux.waits(2, 0, [0, 800]).blocks(0);
            linux.chooses(0, SliceEnd).runs_on(0)
        },
        "2",
    ),
];

#[test]
fn tasks_sleep_and_move_as_in_linux() {
    hold(CASES);
}
