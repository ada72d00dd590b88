//! What a try to balance looks at, what it leaves behind, and when the next one comes.

use super::Puller::{Busy, Idle, Newly};
use super::*;

const BALANCE: &str = "load_balance";
const MOVE: &str = "move_tasks";
/// Two nodes of two CPUs; the level of nodes there.
const NODES: [u32; 3] = [2, 2, 1];
const HOST: usize = 1;

/// Tasks 0 and 1 are on CPU 0 of a node; the first may not leave it, the second ran a moment ago.
fn pinned_beside_hot(on: Board) -> Linux {
    let mut linux = on.host(NODES, 2).allowed(0, &[0]).busy(&[(0, 0), (1, 0)]).after(5000);
    let now = linux.ctx.now;
    let hot = linux.entity(1);
    (hot.paid, hot.last_ran) = (1, now);
    linux
}

const CASES: &[Case] = &[
    // CPU 1 idles, so that it balances the host for its node.
    (
        OLD,
        BALANCE,
        "a CPU for which another one balances looks more seldom and forgets failures",
        after_tick_of_other,
        "1 2 0",
    ),
    (
        SINCE_3_13,
        BALANCE,
        "so it does later, where intervals are longer",
        after_tick_of_other,
        "4 8 0",
    ),
    (
        ALL,
        BALANCE,
        "beside tasks that may not come the interval grows to half a second",
        |on| {
            let mut linux = on.cpus(2, 2).allowed(0, &[0]).allowed(1, &[0]);
            linux = linux.busy(&[(0, 0), (1, 0)]);
            linux.pulls(1, 0, Idle, 15);
            (linux.cfs.domains.turn(1, 0).interval / MS).to_string()
        },
        "512",
    ),
    // 15,360 against 1024. 3072 of four tasks do not fit, less than a mean task, 3840, which is to move. Half of 12,288 is more.
    (
        BEFORE_3_19,
        "active_load_balance_cpu_stop",
        "the last that came and may move is pushed, not the running one",
        |on| {
            let mut linux = on.cpus(2, 5).weighs(1, 12_288).allowed(2, &[0]).allowed(3, &[0]);
            linux = linux.busy(&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)]);
            let moved = linux.pulls(1, 0, Busy, 4);
            format!("{moved:?} {:?} {:?}", linux.runs_on(0), linux.queue(1))
        },
        "[0, 0, 0, 0] Some(0) [1]",
    ),
    // 1024 too much. Task 3 stays and 2 moves.
    (
        SINCE_3_13,
        MOVE,
        "a task that was looked at and stays is the last that the next try looks at",
        looked_at,
        "[1, 0, 3]",
    ),
    (OLD, MOVE, "in 3.0 it keeps its place", looked_at, "[3, 1, 0]"),
    // 32 of 41 tasks may not move. Only the 33rd and those before it may.
    (OLD, MOVE, "3.0 looks at 33 tasks, and again after one has moved", behind_pinned, "[8, 0]"),
    (SINCE_3_13, MOVE, "later 32, and at others in the next try", behind_pinned, "[0, 8]"),
    (
        SINCE_3_13,
        "sg_imbalanced",
        "a running task that may not move makes its node uneven, too",
        |on| {
            let mut linux = pinned_beside_hot(on);
            linux.pulls(1, 0, Newly, 1);
            linux.is_uneven(1, HOST).to_string()
        },
        "true",
    ),
    // 2560 a CPU here, and of the other node's 3072 one CPU has all: 1536. With a task more it has 2048, still less.
    (
        OLD,
        "fix_small_imbalance",
        "3.0 pulls a task from an uneven node that has less by more than a task",
        |on| {
            let tasks: Vec<(u32, usize)> = [0, 0, 0, 1, 1, 2, 2, 2]
                .into_iter()
                .zip(0..)
                .map(|(cpu, task)| (task, cpu))
                .collect();
            on.host(NODES, 8).busy(&tasks).busiest(1, HOST, Busy)
        },
        "Some((1, 1024))",
    ),
    // Three cores of two threads, both of the first busy: mean 2048 * 1024 / 3534 = 593, which is no task of 1024.
    (
        &[V3_13],
        "sg_imbalanced",
        "in 3.13 both threads of a core stay beside idle cores while it counts as uneven",
        two_on_a_core,
        "[] None",
    ),
    // It has more tasks than room, which comes before uneven: 593 * 1178 / 1024 = 682 is less than a task, so one is to move.
    (NEWEST, "group_classify", "in 3.19 one of them leaves", two_on_a_core, "[0] Some(2)"),
];

/// Both threads of a core that counts as uneven run tasks, beside two idle cores: which CPU chooses again after nine tries, and where
/// its task is sent.
fn two_on_a_core(on: Board) -> String {
    let mut linux = on.host([1, 3, 2], 2).busy(&[(0, 0), (1, 1)]);
    linux.cfs.domains.set_uneven(0, 1, true);
    linux.pulls(2, 1, Idle, 9);
    format!("{:?} {:?}", linux.resched_cpus(), linux.cfs.entities[0].push)
}

/// CPU 0 runs a task while CPU 1 idles: its interval among nodes in ms before and after a tick, and tries that failed.
fn after_tick_of_other(on: Board) -> String {
    let mut linux = on.host(NODES, 1).busy(&[(0, 0)]);
    let turn = linux.cfs.domains.turn(0, HOST);
    turn.failed = 3;
    let before = turn.interval / MS;
    let mut linux = linux.after(1_000_000).tick(0);
    let turn = linux.cfs.domains.turn(0, HOST);
    format!("{before} {} {}", turn.interval / MS, turn.failed)
}

/// Of four tasks on CPU 0 the last ran a moment ago. The order in which they are looked at, after one has moved.
fn looked_at(on: Board) -> String {
    let tasks = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)];
    let mut linux = on.cpus(2, 6).busy(&tasks).after(5000);
    let now = linux.ctx.now;
    let hot = linux.entity(3);
    (hot.paid, hot.last_ran) = (1, now);
    linux.pulls(1, 0, Busy, 1);
    let order = linux.cfs.newest(&linux.ctx, 0, 9);
    format!("{:?}", order.iter().map(|task| task.0).collect::<Vec<_>>())
}

/// Two tries of CPU 1, beside CPU 0 with 41 tasks of which the last 32 may not move.
fn behind_pinned(on: Board) -> String {
    let mut linux = on.cpus(2, 41);
    for task in 9..41 {
        linux = linux.allowed(task, &[0]);
    }
    let tasks: Vec<(u32, usize)> = (0..41).map(|task| (task, 0)).collect();
    format!("{:?}", linux.busy(&tasks).pulls(1, 0, Newly, 2))
}

#[test]
fn tries_are_as_in_the_source() {
    hold(CASES);
}
