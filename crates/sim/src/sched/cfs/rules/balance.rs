//! Load balancing. A task weighs 1024, a CPU has power 1024.

use super::Puller::{Busy, Newly};
use super::*;

const GROUP: &str = "find_busiest_group";
const EXCESS: &str = "calculate_imbalance";
const SMALL: &str = "fix_small_imbalance";
const QUEUE: &str = "find_busiest_queue";
const MOVE: &str = "move_tasks";
const BALANCE: &str = "load_balance";
const TIMES: &str = "rebalance_domains";
/// Two nodes of two CPUs.
const NODES: [u32; 3] = [2, 2, 1];
/// The level of nodes there: the host.
const HOST: usize = 1;

/// Tasks from 0 on, so many on each CPU.
fn loads(linux: Linux, counts: &[u32]) -> Linux {
    let on_cpu = |(cpu, count): (usize, &u32)| std::iter::repeat_n(cpu, *count as usize);
    let cpus = counts.iter().enumerate().flat_map(on_cpu);
    let tasks: Vec<(u32, usize)> = cpus.enumerate().map(|(at, cpu)| (at as u32, cpu)).collect();
    linux.busy(&tasks)
}

/// How many tasks fit into the first group of the outermost span.
fn room(on: Board, shape: [u32; 3]) -> String {
    let mut linux = on.host(shape, 1);
    let level = linux.cfs.domains.levels(0) - 1;
    let at = linux.cfs.domains.turn(0, level).domain;
    linux.cfs.domains.domain(at).groups[0].capacity.to_string()
}

/// How often CPU 0 looks within its cache, ms, after it found nothing so many times.
fn intervals(on: Board) -> String {
    let mut linux = on.cpus(2, 1);
    let mut found = vec![linux.cfs.domains.turn(0, 0).interval / MS];
    for _ in 0..3 {
        linux.pulls(0, 0, Puller::Idle, 1);
        found.push(linux.cfs.domains.turn(0, 0).interval / MS);
    }
    format!("{found:?}")
}

/// At which tick, of 4 ms each, a busy CPU looks within its cache for the first time.
fn first_look(on: Board) -> String {
    let mut linux = on.cpus(2, 2).busy(&[(0, 0), (1, 1)]);
    for tick in 1..1000 {
        linux = linux.after(4000).tick(0);
        if linux.cfs.domains.turn(0, 0).last > 0 {
            return tick.to_string();
        }
    }
    "never".to_owned()
}

/// Of two tasks on CPU 0 one gave way so many us ago after 5 ms; CPU 1 idles.
fn ran_before(on: Board, us: u64) -> Linux {
    loads(on.cpus(2, 2), &[2])
        .after(5000)
        .chooses(0, crate::context::StopReason::SliceEnd)
        .after(us)
}

/// Whether a task that ran 0.1 ms ago counts as hot where another CPU has taken it.
fn taken_while_hot(on: Board) -> String {
    let mut linux = ran_before(on, 100);
    let task = linux.cfs.queues[0].newest().next().expect("one waits");
    linux.cfs.migrate(&mut linux.ctx, task, 1);
    linux.cfs.is_hot(&linux.ctx, task, 0).to_string()
}

const CASES: &[Case] = &[
    // Mean 1024: 1024 too much there, 1024 too little here, one task of two that does not fit.
    (
        ALL,
        BALANCE,
        "a CPU that goes idle takes a task that waits",
        |on| format!("{:?}", loads(on.cpus(2, 2), &[2]).pulls(1, 0, Newly, 1)),
        "[1]",
    ),
    (
        ALL,
        GROUP,
        "and nothing that runs",
        |on| format!("{:?}", loads(on.cpus(2, 1), &[1]).pulls(1, 0, Newly, 9)),
        "[0, 0, 0, 0, 0, 0, 0, 0, 0]",
    ),
    // 100 * 2048 is not more than 125 (117) * 2048.
    (
        ALL,
        GROUP,
        "two equal queues are left alone",
        |on| loads(on.cpus(2, 4), &[2, 2]).busiest(1, 0, Busy),
        "None",
    ),
    // 307,200 is more than 125 * 2048; mean 2560, 512 is less than a task; 3072 + 1024 is no less than 2048 + 2 *
    // 1024.
    (
        ALL,
        SMALL,
        "of three one moves to two, though that turns it round",
        |on| loads(on.cpus(2, 5), &[3, 2]).busiest(1, 0, Busy),
        "Some((0, 1024))",
    ),
    // 512,000 and 125 * 4096 = 512,000; 117 * 4096 = 479,232.
    (
        BEFORE_3_19,
        GROUP,
        "five against four are within 125 %",
        |on| loads(on.cpus(2, 9), &[5, 4]).busiest(1, 0, Busy),
        "None",
    ),
    (
        NEWEST,
        GROUP,
        "and not within the 117 % of 3.19",
        |on| loads(on.cpus(2, 9), &[5, 4]).busiest(1, 0, Busy),
        "Some((0, 1024))",
    ),
    // Mean 2048: 2048 too much there, 2048 too little here; three of four do not fit.
    (
        ALL,
        EXCESS,
        "as much moves as makes both even",
        |on| loads(on.cpus(2, 4), &[4]).busiest(1, 0, Newly),
        "Some((0, 2048))",
    ),
    // Weights 1024, 4096 and 1024 against 1024: mean (6144 + 1024) / 2 = 3584, 2560 too much. Two tasks of three do
    // not fit: 2048.
    (
        BEFORE_3_19,
        EXCESS,
        "no more moves than does not fit there",
        |on| loads(on.cpus(2, 4).weighs(1, 4096), &[3, 1]).busiest(1, 0, Busy),
        "Some((0, 2048))",
    ),
    (
        NEWEST,
        EXCESS,
        "in 3.19 that holds only if the own group has too many, too",
        |on| loads(on.cpus(2, 4).weighs(1, 4096), &[3, 1]).busiest(1, 0, Busy),
        "Some((0, 2560))",
    ),
    // Groups 2048 of 2 CPUs each: mean 512; one of two does not fit, as the idle node has room: 512 * 2.
    (
        ALL,
        GROUP,
        "a node gives one of two running tasks to a node that idles",
        |on| loads(on.host(NODES, 2), &[0, 0, 1, 1]).busiest(0, HOST, Puller::Idle),
        "Some((1, 1024))",
    ),
    // It runs, so that it is pushed, after more than two tries and two more have failed.
    (
        ALL,
        "need_active_balance",
        "after five tries the running task is pushed there",
        |on| {
            let mut linux = loads(on.host(NODES, 2), &[0, 0, 1, 1]);
            linux.pulls(0, HOST, Puller::Idle, 4);
            let four = linux.resched_cpus();
            linux.pulls(0, HOST, Puller::Idle, 1);
            format!("{four:?} {:?} {:?}", linux.resched_cpus(), linux.cfs.entities[0].push)
        },
        "[] [2] Some(0)",
    ),
    // 1 idle CPU here, none there: no more than one more in 3.0.
    (
        OLD,
        GROUP,
        "in 3.0 not to a node with one idle CPU more",
        |on| loads(on.host(NODES, 3), &[0, 1, 1, 1]).busiest(0, HOST, Puller::Idle),
        "None",
    ),
    // Mean 768, 256 * 2 = 512 is less than a task; 1024 + 512 is no less than 512 + 2 * 512.
    (
        SINCE_3_13,
        GROUP,
        "from 3.13 on to that, too",
        |on| loads(on.host(NODES, 3), &[0, 1, 1, 1]).busiest(0, HOST, Puller::Idle),
        "Some((1, 1024))",
    ),
    // 1536 a CPU here and there 2048: 3.0 sees 3072 and 0 of a node's CPUs. It has less than the mean, 1792, and
    // to move one would use no more power: nothing.
    (
        OLD,
        GROUP,
        "3.0 looks at a node whose CPUs differ by a task",
        |on| loads(on.host(NODES, 7), &[2, 2, 3, 0]).busiest(0, HOST, Busy),
        "Some((1, 0))",
    ),
    (
        SINCE_3_13,
        GROUP,
        "from 3.13 on not at one that has less than the own",
        |on| loads(on.host(NODES, 7), &[2, 2, 3, 0]).busiest(0, HOST, Busy),
        "None",
    ),
    // Tasks 1 and 2 may not go to CPU 1 from CPU 0; then the node as a whole counts as uneven one level up.
    (
        SINCE_3_13,
        "sg_imbalanced",
        "affinities that keep a node uneven are noted for the host",
        |on| {
            let mut linux = on.host(NODES, 4).allowed(1, &[0]).allowed(2, &[0]);
            linux = linux.busy(&[(0, 0), (1, 0), (2, 0)]);
            linux.pulls(1, 0, Newly, 1);
            linux.is_uneven(1, HOST).to_string()
        },
        "true",
    ),
    (
        OLD,
        "fix_small_capacity",
        "four cores of two threads have room for five in 3.0",
        |on| room(on, [2, 4, 2]),
        "5",
    ),
    // 8 CPUs of power 4712: two a core, four cores.
    (SINCE_3_13, "sg_capacity", "and for four from 3.13 on", |on| room(on, [2, 4, 2]), "4"),
    (ALL, "fix_small_capacity", "a thread has room for one", |on| room(on, [1, 1, 2]), "1"),
    // One task weighs 1024, the imbalance is 512.
    (
        ALL,
        QUEUE,
        "a queue of one task that is too heavy is passed over",
        |on| {
            let linux = loads(on.cpus(2, 1), &[1]);
            format!("{:?}", linux.cfs.busiest_queue(&linux.ctx, 0, 0, 512, 1))
        },
        "None",
    ),
    (
        ALL,
        QUEUE,
        "the heaviest queue of a group is taken",
        |on| {
            let linux = loads(on.host(NODES, 7), &[0, 0, 2, 3]);
            let at = linux.cfs.domains.turn_of(0, HOST).domain;
            format!("{:?}", linux.cfs.busiest_queue(&linux.ctx, at, 1, 1024, 0))
        },
        "Some(3)",
    ),
    // Mean 2048: 1024 too much and too little.
    (
        ALL,
        MOVE,
        "the task that came last moves first",
        |on| {
            let mut linux = loads(on.cpus(2, 4), &[3, 1]);
            linux.pulls(1, 0, Busy, 1);
            format!("{:?}", linux.queue(0))
        },
        "[1]",
    ),
    // 0 runs first, then 1; 2 came last, though 0 was queued after it.
    (
        ALL,
        "account_entity_enqueue",
        "a task that ran keeps its place among those that came",
        |on| {
            let linux = loads(on.cpus(2, 4), &[3, 1]).after(5000);
            let mut linux = linux.chooses(0, crate::context::StopReason::SliceEnd);
            linux.pulls(1, 0, Busy, 1);
            format!("{:?} {:?}", linux.runs_on(0), linux.queue(0))
        },
        "Some(1) [0]",
    ),
    // 1536 too much: 1024, then half of 1024 fits into 512.
    (
        ALL,
        MOVE,
        "a task moves if half of it fits",
        |on| format!("{:?}", loads(on.cpus(2, 3), &[3]).pulls(1, 0, Newly, 1)),
        "[2]",
    ),
    // 1024, 12,288 and 1024 against 1024: 6656 too much by the mean of 7680. In 3.0 and 3.13 2048 do not fit, less
    // than a mean task, 4778, which is taken then. Task 2 moves first, and half of 12,288 does not fit into the rest.
    (
        ALL,
        MOVE,
        "one of which half does not fit stays",
        |on| {
            let mut linux = loads(on.cpus(2, 4).weighs(1, 12_288), &[3, 1]);
            let moved = linux.pulls(1, 0, Busy, 1);
            format!("{moved:?} {:?}", linux.queue(0))
        },
        "[1] [1]",
    ),
    // It ran 0.1 ms ago, less than 0.5 ms. Each failed try counts; the third one has more than one behind it.
    (
        ALL,
        "task_hot",
        "a task that ran a moment ago moves after two tries have failed",
        |on| {
            let mut linux = ran_before(on, 100);
            format!("{:?}", linux.pulls(1, 0, Puller::Idle, 3))
        },
        "[0, 0, 1]",
    ),
    (
        ALL,
        BALANCE,
        "tries of a CPU that goes idle do not count",
        |on| {
            let mut linux = ran_before(on, 100);
            format!("{:?}", linux.pulls(1, 0, Newly, 5))
        },
        "[0, 0, 0, 0, 0]",
    ),
    (
        ALL,
        "task_hot",
        "half a millisecond later it is cold",
        |on| {
            let mut linux = ran_before(on, 500);
            format!("{:?}", linux.pulls(1, 0, Newly, 1))
        },
        "[1]",
    ),
    (
        NEWEST,
        "migrate_task_rq_fair",
        "a task that has changed its CPU is cold",
        taken_while_hot,
        "false",
    ),
    (BEFORE_3_19, "task_hot", "a task is as hot on another CPU", taken_while_hot, "true"),
    (
        ALL,
        "task_hot",
        "a buddy does not leave for a CPU that runs something",
        |on| {
            let mut linux = loads(on.cpus(2, 4), &[3, 1]);
            linux.cfs.queues[0].next = Some(TaskId(2));
            linux.pulls(1, 0, Busy, 1);
            format!("{:?}", linux.queue(0))
        },
        "[2]",
    ),
    // All of CPU 0 may use that only; without it CPU 1 is the busiest.
    (
        ALL,
        BALANCE,
        "if nothing of a queue may move the next one is asked",
        |on| {
            let linux = on.cpus(3, 4).allowed(0, &[0]).allowed(1, &[0]);
            let mut linux = loads(linux, &[2, 2]);
            let moved = linux.pulls(2, 0, Newly, 1);
            format!("{moved:?} {:?}", linux.queue(2))
        },
        "[1] [3]",
    ),
    (
        ALL,
        "can_migrate_task",
        "a task that may not use the CPU is passed over",
        |on| {
            let mut linux = loads(on.cpus(2, 4).allowed(2, &[0]), &[3, 1]);
            linux.pulls(1, 0, Busy, 1);
            format!("{:?}", linux.queue(0))
        },
        "[2]",
    ),
    (
        ALL,
        "should_we_balance",
        "of a group the first idle CPU balances",
        |on| {
            let mut linux = loads(on.host(NODES, 4), &[1, 0, 2, 1]);
            let does = |linux: &mut Linux, cpu| {
                let turn = *linux.cfs.domains.turn(cpu, HOST);
                linux.cfs.should_balance(&linux.ctx, cpu, turn)
            };
            format!("{} {} {}", does(&mut linux, 0), does(&mut linux, 1), does(&mut linux, 2))
        },
        "false true true",
    ),
    // min_interval 1, max_interval 4.
    (BEFORE_3_19, TIMES, "what is even is looked at more seldom", intervals, "[1, 2, 4, 4]"),
    // From as many milliseconds as CPUs to twice that.
    (NEWEST, TIMES, "in 3.19 by the number of CPUs", intervals, "[2, 4, 4, 4]"),
    // 64 * 1 ms; in 3.19 32 * 2 ms.
    (ALL, TIMES, "a busy CPU looks every 64 ms first", first_look, "16"),
];

#[test]
fn balancing_is_as_in_the_source() {
    hold(CASES);
}
