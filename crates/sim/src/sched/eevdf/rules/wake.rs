//! The CPU of a task that wakes up.

use super::*;
use crate::context::Waker::{Sibling, Timer};

const SELECT: &str = "select_task_rq_fair";
const AFFINE: &str = "wake_affine";
const WEIGHT: &str = "wake_affine_weight";
const IDLE: &str = "select_idle_sibling";
const WIDE: &str = "wake_wide";
/// Two cores of two threads: CPUs 0 and 1, 2 and 3.
const SMT: [u32; 3] = [1, 2, 2];

/// Where task 0 goes, which was on the second CPU and is woken from the first, where task 1 runs.
fn woken(linux: Linux, [here, last]: [usize; 2]) -> String {
    let linux = linux.busy(&[(1, here)]).blocked(0, last, 0).steady(0);
    linux.wakes(0, Sibling(TaskId(1))).cpu_of(0)
}

/// Where task 0 goes when its timer wakes it.
fn timed(linux: Linux, last: usize) -> String {
    linux.blocked(0, last, 0).wakes(0, Timer).cpu_of(0)
}

/// Where task 0 of a VM goes, whose other task runs on CPU 0, from CPU 1, where a VM of this weight runs. All
/// CPUs are busy.
fn heavy(on: Board, weight: u32) -> String {
    woken(on.cpus(2, &[2, 1]).weighs(1, weight).busy(&[(2, 1)]), [0, 1])
}

/// The same with a VM of three on the last CPU, in other nodes, and these turns of the waker and the woken task.
fn flips(on: Board, waker: u32, woken_task: u32) -> String {
    let mut linux = on.cpus(2, &[2, 1]).weighs(1, 1000).busy(&[(2, 1)]);
    // The wake-up itself counts as one.
    linux.eevdf.entities[1].flips = waker - 1;
    linux.eevdf.entities[0].flips = woken_task;
    woken(linux, [0, 1])
}

const CASES: &[Case] = &[
    (
        V6_12,
        IDLE,
        "a timer's task stays where it was if that idles",
        |on| timed(on.cpus(2, &[1]), 1),
        "1",
    ),
    (
        V6_12,
        IDLE,
        "it leaves a busy CPU for an idle one of the same cache",
        |on| timed(on.cpus(3, &[2]).busy(&[(1, 0)]), 0),
        "1",
    ),
    (
        V6_12,
        IDLE,
        "the search begins behind the target and goes round",
        |on| timed(on.cpus(4, &[2]).busy(&[(1, 2)]), 2),
        "3",
    ),
    (
        V6_12,
        IDLE,
        "an idle CPU that it may not use is passed over",
        |on| timed(on.cpus(4, &[2]).busy(&[(1, 2)]).allowed(0, &[1, 2]), 2),
        "1",
    ),
    (
        V6_12,
        IDLE,
        "without an idle CPU it stays",
        |on| timed(on.cpus(2, &[3]).busy(&[(1, 0), (2, 1)]), 1),
        "1",
    ),
    (
        V6_12,
        IDLE,
        "outside its cache no idle CPU is looked for",
        |on| timed(on.host([2, 1, 1], &[2]).busy(&[(1, 0)]), 0),
        "0",
    ),
    // The CPU before the last one.
    (
        V6_12,
        IDLE,
        "a CPU that it used a short while ago comes before others that idle",
        |on| {
            let mut linux = on.cpus(4, &[2]).busy(&[(1, 0)]).blocked(0, 0, 0);
            linux.eevdf.entities[0].recent = 3;
            linux.wakes(0, Timer).cpu_of(0)
        },
        "3",
    ),
    (
        V6_12,
        IDLE,
        "an idle core comes before an idle thread beside it",
        |on| timed(on.host(SMT, &[2]).busy(&[(1, 0)]), 0),
        "2",
    ),
    (
        V6_12,
        "select_idle_smt",
        "without an idle core the idle thread beside the last CPU",
        |on| timed(on.host(SMT, &[3]).busy(&[(1, 0), (2, 2)]), 0),
        "1",
    ),
    // CPUs 1, 2 and 3 are looked at: none of a core that idles but 4.
    (
        V6_12,
        "select_idle_core",
        "of three cores the one that idles wholly",
        |on| timed(on.host([1, 3, 2], &[3]).busy(&[(1, 0), (2, 2)]), 0),
        "4",
    ),
    // The core of CPUs 2 and 3 idles, but only 1 may be used.
    (
        V6_12,
        "select_idle_core",
        "an idle thread that it met on the way, if it may use no CPU of the idle core",
        |on| timed(on.host(SMT, &[2]).busy(&[(1, 0)]).allowed(0, &[0, 1]), 0),
        "1",
    ),
    (
        V6_12,
        AFFINE,
        "no task comes to a busy waker from an idle CPU",
        |on| woken(on.cpus(2, &[2]), [0, 1]),
        "1",
    ),
    (
        V6_12,
        AFFINE,
        "a device's task stays on its last CPU, which takes the interrupt",
        |on| timed(on.cpus(2, &[3]).busy(&[(1, 1)]).allowed(0, &[1]), 1),
        "1",
    ),
    // Task 1 has half of 1024 on CPU 0, and so will task 0: 100 * (1024 + 512) is less than 108 * 10240.
    (V6_12, WEIGHT, "it comes from a CPU that is much heavier", |on| heavy(on, 1000), "0"),
    // 100 * 1536 is more than 108 * 1024.
    (V6_12, WEIGHT, "not from one that is as heavy", |on| heavy(on, 100), "1"),
    // 1536 * 100 / 108 = 1422.2: 1423 is 139 (1423.4, rounded), 138 is 1413.
    (
        V6_12,
        WEIGHT,
        "half of the slack of 17 % decides",
        |on| format!("{} {}", heavy(Board(on.0), 138), heavy(Board(on.0), 139)),
        "1 0",
    ),
    // In one core 105: 1536 * 100 / 105 = 1462.9; 142 is 1454, 143 is 1464.
    (
        V6_12,
        WEIGHT,
        "of 10 % between threads of a core",
        |on| {
            let of = |weight| {
                let linux = Board(on.0).host([1, 1, 2], &[2, 1]).weighs(1, weight);
                woken(linux.busy(&[(2, 1)]), [0, 1])
            };
            format!("{} {}", of(142), of(143))
        },
        "1 0",
    ),
    (
        V6_12,
        SELECT,
        "wake-ups bring tasks over from a near node",
        |on| woken(on.host([2, 1, 1], &[2, 1]).weighs(1, 1000).busy(&[(2, 1)]), [0, 1]),
        "0",
    ),
    (
        V6_12,
        SELECT,
        "not from one that is farther than 30",
        |on| woken(on.far([2, 1, 1], &[2, 1], 40).weighs(1, 1000).busy(&[(2, 1)]), [0, 1]),
        "1",
    ),
    (
        V6_12,
        SELECT,
        "one that may not use the waker's CPU looks for an idle one beside its last",
        |on| woken(on.cpus(3, &[2, 1]).busy(&[(2, 1)]).allowed(0, &[1, 2]), [0, 1]),
        "2",
    ),
    (
        V6_12,
        SELECT,
        "the search is in the waker's cache if it comes over",
        |on| woken(on.host([2, 2, 1], &[2, 1]).weighs(1, 1000).busy(&[(2, 3)]), [0, 3]),
        // Node 1 has CPU 2 idle, but the target is CPU 0; beside it CPU 1 idles.
        "1",
    ),
    // Two CPUs in the cache: the lesser at least 2, the other twice that.
    (
        V6_12,
        WIDE,
        "a task does not come to one that wakes many, as many do",
        |on| flips(on, 4, 2),
        "1",
    ),
    (V6_12, WIDE, "nor if it is the one that wakes many", |on| flips(on, 2, 4), "1"),
    (V6_12, WIDE, "it does to one that wakes few others", |on| flips(on, 3, 2), "0"),
    (V6_12, WIDE, "or if it wakes nobody itself", |on| flips(on, 100, 1), "0"),
    // 9 / 2 = 4, and one for the new one.
    (
        V6_12,
        "record_wakee",
        "turns are halved after a second",
        |on| {
            let mut linux = on.cpus(2, &[2]).busy(&[(1, 0)]).blocked(0, 1, 0).after(1_000_001);
            linux.eevdf.entities[1].flips = 9;
            linux.wakes(0, Sibling(TaskId(1))).eevdf.entities[1].flips.to_string()
        },
        "5",
    ),
    (
        V6_12,
        "record_wakee",
        "to wake the same task again is no turn",
        |on| {
            let mut linux = on.cpus(2, &[2]).busy(&[(1, 0)]).blocked(0, 1, 0);
            linux.eevdf.entities[1].wakee = Some(TaskId(0));
            linux.wakes(0, Sibling(TaskId(1))).eevdf.entities[1].flips.to_string()
        },
        "0",
    ),
];

/// Not of 6.12: VM 0's task on CPU 0 is ahead of VM 1's, which wakes up there.
#[test]
fn lazy_preemption_of_another_cpu_waits_for_its_tick() {
    let woken = |by| {
        let mut linux =
            Board("7.2").cpus(2, &[1, 2, 1]).busy(&[(0, 0), (2, 1)]).vm_at(0, 0, [0, 9000]);
        linux.eevdf.rules.is_lazy = true;
        // CPU 1 may not be used.
        linux
            .waits(3, 0, [0, 750])
            .vm_at(2, 0, [0, 9500])
            .allowed(1, &[0])
            .after(100)
            .blocked(1, 0, 50)
            .wakes(1, by)
    };
    assert_eq!(woken(Timer).resched_cpus(), "[0]", "its own interrupt");
    let asked = woken(Sibling(TaskId(2)));
    assert_eq!(asked.resched_cpus(), "[]");
    assert_eq!(asked.tick(0).resched_cpus(), "[0]");
}

#[test]
fn tasks_wake_up_on_the_cpu_that_linux_takes() {
    hold(CASES);
}
