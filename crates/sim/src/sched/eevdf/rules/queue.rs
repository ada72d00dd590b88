//! Tasks of one VM on one CPU: virtual time, requests, the choice, preemption, places.

use super::*;
use crate::context::StopReason::{Preempted, SliceEnd, Yield};
use crate::context::Waker::{Start, Timer};

const AVERAGE: &str = "avg_vruntime";
const ELIGIBLE: &str = "entity_eligible";
const PICK: &str = "pick_eevdf";
const NEXT: &str = "pick_next_task_fair";
const UPDATE: &str = "update_curr";
const DEADLINE: &str = "update_deadline";
const PLACE: &str = "place_entity";
const LAG: &str = "entity_lag";
const WAKEUP: &str = "check_preempt_wakeup_fair";
const YIELD: &str = "yield_to_task_fair";

/// Tasks 0 to 2 at these places, of which the first runs.
fn three(on: Board, places: [[i64; 2]; 3]) -> Linux {
    let [a, b, c] = places;
    on.cpus(1, &[4]).runs(0, 0, a).waits(1, 0, b).waits(2, 0, c)
}

/// Tasks 0 and 1, of which the first runs.
fn two(on: Board, a: [i64; 2], b: [i64; 2]) -> Linux {
    on.cpus(1, &[3]).runs(0, 0, a).waits(1, 0, b)
}

/// The choice among tasks of which none runs.
fn first(on: Board, places: &[[i64; 2]]) -> String {
    let mut linux = on.cpus(1, &[4]);
    for (task, place) in places.iter().enumerate() {
        linux = linux.waits(task as u32, 0, *place);
    }
    linux.chooses(0, SliceEnd).runs_on(0)
}

/// Where task 2 comes that left with this lag, beside tasks 0 and 1 at 0 and 1000.
fn placed(on: Board, lag: i64, by: Waker) -> String {
    two(on, [0, 750], [1000, 1750]).blocked(2, 0, lag).wakes(2, by).place(2)
}

/// Task 0 used its request up and goes on as the other one is ahead: at 750 with deadline 1500.
fn went_on(on: Board) -> Linux {
    two(on, [0, 750], [1000, 1400]).after(750).chooses(0, SliceEnd)
}

/// On so many CPUs, the lag of a task that is so far behind another one, by twice its lag.
fn limited(on: Board, cpus: u32, distance: i64) -> String {
    let linux = on.cpus(cpus, &[2]).runs(0, 0, [distance, 100_000]);
    linux.waits(1, 0, [0, 750]).lag(1)
}

const CASES: &[Case] = &[
    // (0 + 1000) / 2; the task that runs counts.
    (
        V6_12,
        AVERAGE,
        "virtual time is the mean of virtual runtimes",
        |on| two(on, [0, 750], [1000, 1750]).time(0),
        "500",
    ),
    (
        V6_12,
        AVERAGE,
        "it goes as fast as one of two equal tasks runs: half",
        |on| two(on, [0, 2000], [1000, 1750]).after(600).tick(0).time(0),
        "800",
    ),
    // All are at virtual time 100.
    (
        V6_12,
        ELIGIBLE,
        "a task at virtual time is eligible",
        |on| first(on, &[[100, 900], [100, 800], [100, 700]]),
        "2",
    ),
    // Virtual time is 33.3.
    (
        V6_12,
        ELIGIBLE,
        "one that is ahead is not, however early its deadline",
        |on| first(on, &[[0, 900], [0, 800], [100, 700]]),
        "1",
    ),
    // Virtual time is 100, of which 0 and 60 are behind; 240 is ahead.
    (
        V6_12,
        PICK,
        "of the eligible the one with the earliest deadline, not the one farthest behind",
        |on| first(on, &[[0, 900], [60, 800], [240, 990]]),
        "1",
    ),
    (
        V6_12,
        PICK,
        "of equal deadlines the one that came first",
        |on| first(on, &[[0, 800], [0, 750], [0, 750]]),
        "1",
    ),
    // 0 came back at 750 with deadline 1500, as 1 has it; both are at virtual time.
    (
        V6_12,
        PICK,
        "of equal deadlines one that waits comes before the one that runs",
        |on| two(on, [0, 750], [750, 1500]).after(750).chooses(0, SliceEnd).runs_on(0),
        "1",
    ),
    (
        V6_12,
        PICK,
        "the task that runs goes on though another one has an earlier deadline",
        |on| two(on, [0, 2000], [0, 1000]).chooses(0, Preempted).runs_on(0),
        "0",
    ),
    // Virtual time is 0.5, task 0 at 1.
    (
        V6_12,
        PICK,
        "but not once it is ahead of virtual time, long before its request is used up",
        |on| two(on, [0, 2000], [0, 5000]).after(1).chooses(0, Preempted).runs_on(0),
        "1",
    ),
    // At 740 with deadline 750, and virtual time 1147: eligible and protected.
    (
        V6_12,
        PICK,
        "an eligible one is protected up to the end of its request",
        |on| {
            let linux = three(on, [[0, 750], [700, 600], [2000, 9000]]);
            linux.after(740).chooses(0, Preempted).runs_on(0)
        },
        "0",
    ),
    // At 750 with deadline 1500, and virtual time 1150; task 1 has 600.
    (
        V6_12,
        PICK,
        "with a new request it is protected no more",
        |on| {
            let linux = three(on, [[0, 750], [700, 600], [2000, 9000]]);
            linux.after(750).chooses(0, Preempted).runs_on(0)
        },
        "1",
    ),
    // Virtual time 875; task 1 at 1000 is not eligible.
    (
        V6_12,
        NEXT,
        "a task whose request is used up goes on if nobody else is eligible",
        |on| went_on(on).runs_on(0),
        "0",
    ),
    // At 800 and 1000 virtual time is 900; lag 200 is inflated by 3/2: 600, deadline 1350. Virtual time is then
    // 800, so that task 0, deadline 1500, is eligible.
    (
        V6_12,
        NEXT,
        "one that goes on has no new protection: an earlier deadline preempts it",
        |on| went_on(on).after(50).blocked(2, 0, 200).wakes(2, Timer).resched_cpus(),
        "[0]",
    ),
    (
        V6_12,
        NEXT,
        "one that was chosen anew in that place has it",
        |on| {
            let linux = two(on, [750, 1500], [1000, 1400]).after(50);
            linux.blocked(2, 0, 200).wakes(2, Timer).resched_cpus()
        },
        "[]",
    ),
    // 4000 is beyond 750: the next deadline is 4000 + 750.
    (
        V6_12,
        UPDATE,
        "CPU time is virtual time among equal tasks",
        |on| on.cpus(1, &[1]).runs(0, 0, [0, 750]).after(4000).tick(0).place(0),
        "4000 4750",
    ),
    (
        V6_12,
        DEADLINE,
        "a request is used up when virtual runtime reaches the deadline",
        |on| told_after([749, 750], || two(Board(on.0), [0, 750], [10_000, 10_750])),
        "[false, true]",
    ),
    (
        V6_12,
        DEADLINE,
        "the next one begins where the last one really ended",
        |on| two(on, [0, 750], [10_000, 10_750]).after(1000).tick(0).place(0),
        "1000 1750",
    ),
    (
        V6_12,
        UPDATE,
        "a task that is alone is not disturbed",
        |on| told_after([750, 40_000], || Board(on.0).cpus(1, &[1]).runs(0, 0, [0, 750])),
        "[false, false]",
    ),
    // 1050 is ahead of virtual time, 1025.
    (
        V6_12,
        "did_preempt_short",
        "a tick does not disturb a protected task that is ahead",
        |on| two(on, [750, 1500], [1000, 1400]).after(300).tick(0).resched_cpus(),
        "[]",
    ),
    // 990 and 1010 to virtual times 995 and 1005.
    (
        V6_12,
        "did_preempt_short",
        "a tick ends the run of one that is not protected once it is ahead",
        |on| told_after([240, 260], || went_on(Board(on.0))),
        "[false, true]",
    ),
    // 0.75 ms times 1, 2, 3, 4 and 4.
    (
        V6_12,
        "update_sysctl",
        "a request is 0.75 ms times 1 + log2 of at most eight CPUs",
        |on| {
            let slice = |cpus| Board(on.0).cpus(cpus, &[1]).eevdf.times.slice / US;
            format!("{:?}", [1, 2, 7, 8, 64].map(slice))
        },
        "[750, 1500, 2250, 3000, 3000]",
    ),
    (
        V6_12,
        PLACE,
        "without lag a task comes at virtual time",
        |on| placed(on, 0, Timer),
        "500 1250",
    ),
    // 100 * 3 / 2 = 150.
    (
        V6_12,
        PLACE,
        "lag is inflated by what the task itself moves virtual time",
        |on| placed(on, 100, Timer),
        "350 1100",
    ),
    (
        V6_12,
        PLACE,
        "so that it has the lag that it left with",
        |on| two(on, [0, 750], [1000, 1750]).blocked(2, 0, 100).wakes(2, Timer).lag(2),
        "100",
    ),
    (
        V6_12,
        PLACE,
        "a task that left ahead comes back ahead",
        |on| placed(on, -100, Timer),
        "650 1400",
    ),
    (
        V6_12,
        PLACE,
        "where nobody is lag is lost",
        |on| on.cpus(1, &[1]).blocked(0, 0, 500).wakes(0, Timer).place(0),
        "0 750",
    ),
    // PLACE_DEADLINE_INITIAL.
    (V6_12, PLACE, "a new task begins with half a request", |on| placed(on, 0, Start), "500 875"),
    // Of 100 that it had left when it blocked nothing is kept.
    (
        V6_12,
        PLACE,
        "one that slept has a whole request",
        |on| {
            let linux = two(on, [0, 100], [0, 750]).blocks(0);
            linux.wakes(0, Timer).place(0)
        },
        "0 750",
    ),
    // The limit of 1.5 ms is less than a tick of 4 ms.
    (
        V6_12,
        LAG,
        "lag is at most a tick if two requests are less",
        |on| limited(on, 1, 20_000),
        "4000",
    ),
    (V6_12, LAG, "and two requests if that is more", |on| limited(on, 8, 20_000), "6000"),
    (V6_12, LAG, "either way", |on| limited(on, 1, -20_000), "-4000"),
    (V6_12, LAG, "within that it is exact", |on| limited(on, 1, 2_000), "1000"),
    // Virtual time 0; task 2 comes there with deadline 750.
    (
        V6_12,
        WAKEUP,
        "an earlier deadline does not preempt a protected, eligible task",
        |on| two(on, [0, 2000], [0, 3000]).blocked(2, 0, 0).wakes(2, Timer).resched_cpus(),
        "[]",
    ),
    // After 1 us task 0 is ahead of virtual time 0.5.
    (
        V6_12,
        WAKEUP,
        "it preempts one that is ahead, by a microsecond even: there is no granularity",
        |on| two(on, [0, 2000], [0, 3000]).after(1).blocked(2, 0, 0).wakes(2, Timer).resched_cpus(),
        "[0]",
    ),
    // Task 1 has deadline 700.
    (
        V6_12,
        WAKEUP,
        "nobody is preempted for a task that would not be chosen",
        |on| two(on, [0, 2000], [0, 700]).after(1).blocked(2, 0, 0).wakes(2, Timer).resched_cpus(),
        "[]",
    ),
    // It comes 375 ahead of virtual time 250.
    (
        V6_12,
        WAKEUP,
        "a task that comes back ahead preempts nobody",
        |on| {
            two(on, [0, 2000], [0, 3000])
                .after(500)
                .blocked(2, 0, -250)
                .wakes(2, Timer)
                .resched_cpus()
        },
        "[]",
    ),
    (
        V6_12,
        WAKEUP,
        "a request that is used up is noticed at a wake-up, whichever task comes next",
        |on| {
            two(on, [0, 750], [9000, 9700])
                .after(750)
                .blocked(2, 0, -900)
                .wakes(2, Timer)
                .resched_cpus()
        },
        "[0]",
    ),
    (
        V6_12,
        YIELD,
        "a task that yields gives up its next request, but keeps its virtual runtime",
        |on| two(on, [0, 750], [900, 1650]).chooses(0, Yield(Some(TaskId(1)))).place(0),
        "0 1500",
    ),
    // Task 1 is ahead of virtual time 450.
    (
        V6_12,
        YIELD,
        "and goes on if nobody else is eligible: the other one is not preferred",
        |on| two(on, [0, 750], [900, 1650]).chooses(0, Yield(Some(TaskId(1)))).runs_on(0),
        "0",
    ),
    // Deadlines are 1500, 900 and 800.
    (
        V6_12,
        YIELD,
        "the task that it yields to does not come before an earlier deadline",
        |on| {
            let linux = three(on, [[0, 750], [0, 900], [0, 800]]);
            linux.chooses(0, Yield(Some(TaskId(1)))).runs_on(0)
        },
        "2",
    ),
    (
        V6_12,
        "kvm_vcpu_on_spin",
        "without anyone to yield to a vCPU goes on, though it is ahead",
        |on| two(on, [0, 750], [0, 750]).after(100).chooses(0, Yield(None)).runs_on(0),
        "0",
    ),
    (
        V6_12,
        "yield_to",
        "nothing happens if both are alone on their CPUs",
        |on| {
            let linux = on.cpus(2, &[2]).runs(0, 0, [0, 750]).waits(1, 1, [0, 750]);
            let mut linux = linux.chooses(0, Yield(Some(TaskId(1))));
            format!("{} {}", linux.place(0), linux.resched_cpus())
        },
        "0 750 []",
    ),
    (
        V6_12,
        YIELD,
        "a task that is alone keeps its request, and the other one's CPU chooses again",
        |on| {
            let linux = on.cpus(2, &[3]).busy(&[(0, 0), (1, 1), (2, 1)]);
            let mut linux = linux.chooses(0, Yield(Some(TaskId(2))));
            format!("{} {}", linux.place(0), linux.resched_cpus())
        },
        "0 750 [1]",
    ),
];

#[test]
fn tasks_are_chosen_as_in_linux() {
    hold(CASES);
}
