//! Credits: `csched_acct`, `burn_credits`, `csched_vcpu_acct`. A slice is worth 300 credits on each CPU.

use super::Pri::{Boost, Under};
use super::*;

const ACCT: &str = "csched_acct";
const BURN: &str = "burn_credits";
const TICK: &str = "csched_vcpu_acct";

/// Credits that a vCPU burns by running in these stretches, us.
fn burnt(board: Board, stretches: &[u64]) -> String {
    let mut xen = board.cpus(1, &[1]).runs(0, 0, Under);
    let mut all = Vec::new();
    for us in stretches {
        xen = xen.after(us * US);
        xen.credit.burn(&xen.ctx, TaskId(0));
        all.push(-xen.credits(1)[0]);
    }
    format!("{all:?}")
}

fn order(xen: &Xen) -> &[usize] {
    &xen.credit.active
}

const CASES: &[Case] = &[
    // 2 CPUs: 600; of 4 equal ones (600 * 100 + 399) / 400 = 150.
    (
        ALL,
        ACCT,
        "equal weights earn alike",
        |on| {
            let xen = on.cpus(2, &[1, 1, 1, 1]);
            let xen = xen.active(&[(0, &[0]), (1, &[0]), (2, &[0]), (3, &[0])]).accounted();
            format!("{:?}", xen.credits(4))
        },
        "[150, 150, 150, 150]",
    ),
    // 300: a third and two.
    (
        ALL,
        ACCT,
        "credits by weight",
        |on| {
            let xen = on.cpus(1, &[1, 1]).weights(&[100, 200]).active(&[(0, &[0]), (1, &[0])]);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[100, 200]",
    ),
    // Weights 200 and 100: 200 for two vCPUs, 100 for one.
    (
        ALL,
        ACCT,
        "a weight counts once for each active vCPU",
        |on| {
            let xen = on.cpus(1, &[2, 1]).active(&[(0, &[0, 0]), (1, &[0])]).accounted();
            format!("{:?}", xen.credits(3))
        },
        "[100, 100, 100]",
    ),
    // Weights 100 and 100.
    (
        ALL,
        ACCT,
        "a vCPU that is not active neither earns nor counts",
        |on| {
            let xen = on.cpus(1, &[2, 1]).active(&[(0, &[0]), (1, &[0])]).accounted();
            format!("{:?}", xen.credits(3))
        },
        "[150, 0, 150]",
    ),
    // 300 / 7 = 42.9.
    (
        ALL,
        ACCT,
        "shares are rounded up",
        |on| {
            let xen = on.cpus(1, &[1, 1, 1, 1, 1, 1, 1]);
            let all: Vec<(usize, &[i64])> = (0..7).map(|vm| (vm, &[0][..])).collect();
            format!("{:?}", xen.active(&all).accounted().credits(7))
        },
        "[43, 43, 43, 43, 43, 43, 43]",
    ),
    // 300 of two vCPUs of one VM beside another one's: 200 for both is 100 each; of 100 with three 34 each.
    (
        ALL,
        ACCT,
        "a VM's share is divided by its active vCPUs, rounded up",
        |on| {
            let xen = on.cpus(1, &[3, 1]).weights(&[100, 600]);
            let xen = xen.active(&[(0, &[0, 0, 0]), (1, &[0])]).accounted();
            format!("{:?}", xen.credits(4))
        },
        "[34, 34, 34, 200]",
    ),
    // 300 + 100 = 400, halved; without what is owed they would have 150.
    (
        ALL,
        ACCT,
        "what VMs owe is handed out again: the total grows by a negative balance",
        |on| {
            let xen = on.cpus(1, &[1, 1]).active(&[(0, &[0]), (1, &[0])]).balance(-100);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[200, 200]",
    ),
    // Peak 300 + 100 of 600 + 100: -200 + 400.
    (
        ALL,
        ACCT,
        "a VM may earn more than all of its vCPUs can use by its part of what is owed",
        |on| {
            let xen = on.cpus(2, &[1]).active(&[(0, &[-200])]).balance(-100).accounted();
            format!("{:?}", xen.credits(1))
        },
        "[200]",
    ),
    (
        ALL,
        ACCT,
        "a positive balance takes nothing away",
        |on| {
            let xen = on.cpus(1, &[1, 1]).active(&[(0, &[0]), (1, &[0])]).balance(500);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[150, 150]",
    ),
    // -350 + 150 = -200 and -100 + 150 = 50.
    (
        ALL,
        ACCT,
        "the balance is the sum of what the paid have then",
        |on| {
            let xen = on.cpus(1, &[1, 1]).active(&[(0, &[-350]), (1, &[-100])]).accounted();
            format!("{:?} {}", xen.credits(2), xen.credit.balance)
        },
        "[-200, 50] -150",
    ),
    // 100 + 300 = 400 is more than 300: halved, and its VM, which has no other, earns no more.
    (
        ALL,
        ACCT,
        "a vCPU with more than a slice's credits keeps half and stops earning",
        |on| {
            let xen = on.cpus(2, &[1]).active(&[(0, &[100])]).accounted();
            let active = xen.credit.svcs[0].active;
            format!("{:?} {active} {} {:?}", xen.credits(1), xen.credit.balance, order(&xen))
        },
        "[200] false 200 []",
    ),
    (
        ALL,
        ACCT,
        "exactly a slice's credits are not too many",
        |on| {
            let xen = on.cpus(1, &[1]).active(&[(0, &[0])]).accounted();
            format!("{:?} {}", xen.credits(1), xen.credit.svcs[0].active)
        },
        "[300] true",
    ),
    // -900 + 150 = -750, which is less than -300.
    (
        ALL,
        ACCT,
        "debt beyond a slice is forgiven, and the balance counts what is left",
        |on| {
            let xen = on.cpus(1, &[1, 1]).active(&[(0, &[-900]), (1, &[0])]).accounted();
            format!("{:?} {}", xen.credits(2), xen.credit.balance)
        },
        "[-300, 150] -150",
    ),
    (
        ALL,
        ACCT,
        "no credits is UNDER, less is OVER",
        |on| {
            let xen = on.cpus(1, &[1, 1]).active(&[(0, &[-150]), (1, &[-151])]).accounted();
            format!("{:?} {:?} {:?}", xen.credits(2), xen.pri_of(0), xen.pri_of(1))
        },
        "[0, -1] Under Over",
    ),
    (
        ALL,
        ACCT,
        "an active vCPU that waits with BOOST is UNDER afterwards",
        |on| {
            let xen = on.cpus(1, &[1]).waits(0, 0, Boost).active(&[(0, &[0])]).accounted();
            format!("{:?}", xen.pri_of(0))
        },
        "Under",
    ),
    (
        ALL,
        ACCT,
        "BOOST of a vCPU that does not earn stays",
        |on| {
            let xen = on.cpus(1, &[1, 1]).waits(1, 0, Boost).active(&[(0, &[0])]).accounted();
            format!("{:?}", xen.pri_of(1))
        },
        "Boost",
    ),
    (
        ALL,
        ACCT,
        "with nobody active the balance is forgotten and no queue is sorted",
        |on| {
            let xen = on.cpus(1, &[1]).balance(-70).accounted();
            format!("{} {}", xen.credit.balance, xen.credit.sort)
        },
        "0 0",
    ),
    // First: fair (600 * 300 + 399) / 400 = 450, peak 300; total 600 + (150 * 400 + 99) / 100 = 1200.
    // Second: fair (1200 * 100 + 399) / 400 = 300.
    (
        ALL,
        ACCT,
        "what a VM cannot use is divided among those after it",
        |on| {
            let xen = on.cpus(2, &[1, 1]).weights(&[300, 100]).active(&[(0, &[0]), (1, &[0])]);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[300, 300]",
    ),
    // First: 150, less than its peak; second: 450, of which it takes 300 and moves to the front.
    (
        ALL,
        ACCT,
        "those before it had their share, but it comes before them the next time",
        |on| {
            let xen = on.cpus(2, &[1, 1]).weights(&[300, 100]).active(&[(1, &[0]), (0, &[0])]);
            let xen = xen.accounted();
            format!("{:?} {:?}", xen.credits(2), order(&xen))
        },
        "[300, 150] [0, 1]",
    ),
    // 900 of weights 700: c 129 of 300; a 386, so 300, total 900 + (86 * 700 + 299) / 300 = 1101; b 472.
    (
        ALL,
        ACCT,
        "of two that leave credits the later one comes first the next time",
        |on| {
            let xen = on.cpus(3, &[1, 1, 1]).weights(&[300, 300, 100]);
            let xen = xen.active(&[(2, &[0]), (0, &[0]), (1, &[0])]).accounted();
            format!("{:?} {:?}", xen.credits(3), order(&xen))
        },
        "[300, 300, 129] [1, 0, 2]",
    ),
    // 250 + 100 = 350 of one, -100 + 100 of the other: one vCPU of two is left.
    (
        ALL,
        ACCT,
        "a VM stays as long as one of its vCPUs earns",
        |on| {
            let xen = on.cpus(1, &[2, 1]).active(&[(0, &[250, -100]), (1, &[0])]).accounted();
            format!("{:?} {:?} {}", xen.credits(3), order(&xen), xen.credit.counts[0])
        },
        "[175, 0, 100] [0, 1] 1",
    ),
    // 1.49 and 1.5 credits.
    (OLD, BURN, "to the nearest credit: 149 us", |on| burnt(on, &[149]), "[1]"),
    (OLD, BURN, "to the nearest credit: 150 us", |on| burnt(on, &[150]), "[2]"),
    // Paid for up to 200 us; at 190 us there is nothing to pay, at 249 us 0.49, at 250 us 0.5 credits.
    (
        OLD,
        BURN,
        "time that was paid for is not paid for again",
        |on| burnt(on, &[150, 40, 59, 1]),
        "[2, 2, 2, 3]",
    ),
    (NEW, BURN, "whole credits: 199 us", |on| burnt(on, &[199]), "[1]"),
    // 1.99: 1, paid up to 100 us, 0.99 kept; at 200 us 100 us more and these are 1.99: 1.
    (NEW, BURN, "what is left of a credit is kept", |on| burnt(on, &[199, 1]), "[1, 2]"),
    // 1.5: 1, 0.5 kept; 200 us and 0.5: 2.5: 2, 0.5 kept, paid up to 300 us; 50 us and 0.5: 1.
    (NEW, BURN, "kept parts add up", |on| burnt(on, &[150, 150, 50]), "[1, 3, 4]"),
    (ALL, BURN, "ten credits a millisecond", |on| burnt(on, &[30_000]), "[300]"),
    (
        ALL,
        TICK,
        "a tick ends BOOST of the vCPU that runs, and charges it",
        |on| {
            let xen = on.cpus(1, &[1]).runs(0, 0, Boost).after(4 * MS).tick(0);
            format!("{:?} {:?}", xen.pri_of(0), xen.credits(1))
        },
        "Under [-40]",
    ),
    (
        ALL,
        TICK,
        "a tick does not end BOOST of a vCPU that waits",
        |on| {
            let xen = on.cpus(1, &[2]).runs(0, 0, Boost).waits(1, 0, Boost).tick(0);
            format!("{:?}", xen.pri_of(1))
        },
        "Boost",
    ),
    (
        ALL,
        TICK,
        "credits below zero alone make nobody OVER before accounting",
        |on| {
            let xen = on.cpus(1, &[1]).runs(0, 0, Under).after(9 * MS).tick(0);
            format!("{:?} {:?}", xen.pri_of(0), xen.credits(1))
        },
        "Under [-90]",
    ),
    (
        ALL,
        "__csched_vcpu_acct_start",
        "the tick that finds a vCPU running makes it active; a new VM is accounted first",
        |on| {
            let xen = on.cpus(2, &[1, 1]).runs(0, 0, Under).runs(1, 1, Under).tick(0).tick(1);
            format!("{:?} {:?}", order(&xen), xen.credit.counts[..2].to_vec())
        },
        "[1, 0] [1, 1]",
    ),
    (
        ALL,
        TICK,
        "a vCPU that has just become active does not look for another CPU",
        |on| {
            let xen = on.host([1, 2, 2], &[3]);
            let xen = xen.runs(0, 0, Under).runs(1, 1, Under).tick(0);
            xen.resched_cpus()
        },
        "[]",
    ),
    // Of its core one CPU idles (its own counts), of the other two.
    (
        ALL,
        TICK,
        "an active one moves to a core that has more idle threads",
        |on| {
            let xen = on.host([1, 2, 2], &[3]).active(&[(0, &[0])]);
            let xen = xen.runs(0, 0, Under).runs(1, 1, Under).tick(0);
            xen.resched_cpus()
        },
        "[0], [0] leaves",
    ),
];

#[test]
fn credits_are_burnt_and_earned_as_in_the_source() {
    hold(CASES);
}
