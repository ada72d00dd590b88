//! Caps: `csched_acct`, and parking by `vcpu_pause_nosync` and `vcpu_unpause` (schedule.c). A cap of 30 is worth 90
//! credits an accounting, whatever the host has.

use super::Pri::{Over, Under};
use super::*;
use crate::context::StopReason::{Preempted, SliceEnd};

const ACCT: &str = "csched_acct";
const PARK: &str = "csched_acct, CSCHED_FLAG_VCPU_PARKED";
const UNPARK: &str = "csched_acct, vcpu_unpause";
const KEPT: &[XenRelease] = &[V4_1_3, V4_17];

/// VM 0, capped at 30, has a vCPU that runs on CPU 0 with so many credits, and another VM's waits there; accounted.
fn owes(on: Board, credits: i64) -> Xen {
    let xen = on.cpus(1, &[1, 1]).caps(&[30]).runs(0, 0, Under).waits(1, 0, Under);
    xen.active(&[(0, &[credits])]).accounted()
}

/// The same vCPU waits, and was parked when it owed so many credits; accounted again.
fn parked(on: Board, credits: i64) -> Xen {
    let mut xen = on.cpus(1, &[1, 1]).caps(&[30]).runs(1, 0, Under).waits(0, 0, Under);
    xen = xen.active(&[(0, &[-181])]).accounted();
    assert!(xen.credit.svcs[0].parked);
    xen.svc(0).credit = credits;
    xen.accounted()
}

fn is_parked(xen: &Xen) -> bool {
    xen.credit.svcs[0].parked
}

const CASES: &[Case] = &[
    // (30 * 300 + 99) / 100 = 90 of 300.
    (
        ALL,
        ACCT,
        "a capped VM earns its cap at most",
        |on| {
            format!(
                "{:?}",
                on.cpus(1, &[1]).caps(&[30]).active(&[(0, &[0])]).accounted().credits(1)
            )
        },
        "[90]",
    ),
    // (1 * 300 + 99) / 100 = 3; (7 * 300 + 99) / 100 = 21.
    (
        ALL,
        ACCT,
        "a cap is per cent of one CPU, also where there are more",
        |on| {
            let xen = on.cpus(4, &[1, 1]).caps(&[1, 7]).active(&[(0, &[0]), (1, &[0])]);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[3, 21]",
    ),
    // Half of 300 is less than 80 per cent: 240.
    (
        ALL,
        ACCT,
        "a cap above its share changes nothing",
        |on| {
            let xen = on.cpus(1, &[1, 1]).caps(&[80]).active(&[(0, &[0]), (1, &[0])]);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[150, 150]",
    ),
    // 150 - 90 = 60 of half the weights: total 300 + (60 * 200 + 99) / 100 = 420, of which half.
    (
        ALL,
        ACCT,
        "what a cap leaves is divided among those after",
        |on| {
            let xen = on.cpus(1, &[1, 1]).caps(&[30]).active(&[(0, &[0]), (1, &[0])]);
            format!("{:?}", xen.accounted().credits(2))
        },
        "[90, 210]",
    ),
    // (45 * 300 + 99) / 100 = 135, halved: 68.
    (
        ALL,
        ACCT,
        "a VM's cap is divided by its active vCPUs, rounded up",
        |on| {
            let xen = on.cpus(2, &[2]).caps(&[45]).active(&[(0, &[0, 0])]).accounted();
            format!("{:?}", xen.credits(2))
        },
        "[68, 68]",
    ),
    // Peak 300 + 100, and the cap 90.
    (
        ALL,
        ACCT,
        "of what is owed it has nothing beyond its cap",
        |on| {
            let xen = on.cpus(1, &[1]).caps(&[30]).active(&[(0, &[-50])]).balance(-100);
            format!("{:?}", xen.accounted().credits(1))
        },
        "[40]",
    ),
    // -180 + 90.
    (
        ALL,
        PARK,
        "a vCPU that owes its cap goes on",
        |on| {
            let xen = owes(on, -180);
            format!("{:?} {} {}", xen.credits(1), is_parked(&xen), xen.resched_cpus())
        },
        "[-90] false []",
    ),
    (
        ALL,
        PARK,
        "one that owes more leaves its CPU",
        |on| {
            let xen = owes(on, -181);
            let (parked, told) = (is_parked(&xen), xen.resched_cpus());
            format!("{parked} {told}: {}", xen.chooses(0, Preempted).chosen(0))
        },
        "true [0]: 1 for 30000 us",
    ),
    // 2 * 68 = 136 credits: each parks alone.
    (
        ALL,
        PARK,
        "each vCPU is parked by what it owes itself",
        |on| {
            let xen = on.cpus(2, &[2]).caps(&[45]).runs(0, 0, Under).runs(1, 1, Under);
            let xen = xen.active(&[(0, &[-136, -137])]).accounted();
            format!(
                "{:?} {} {}",
                xen.credits(2),
                xen.credit.svcs[0].parked,
                xen.credit.svcs[1].parked
            )
        },
        "[-68, -69] false true",
    ),
    (
        ALL,
        PARK,
        "the rate limit does not hold it",
        |on| {
            let xen = owes(on, -181).after(100 * US);
            xen.chooses(0, Preempted).chosen(0)
        },
        "1 for 30000 us",
    ),
    (
        ALL,
        PARK,
        "one that waits leaves its queue",
        |on| {
            let xen = on.cpus(1, &[1, 1]).caps(&[30]).runs(1, 0, Under).waits(0, 0, Under);
            format!("{:?}", xen.active(&[(0, &[-181])]).accounted().queue(0))
        },
        "[]",
    ),
    (
        ALL,
        PARK,
        "no vCPU of a VM without a cap is parked",
        |on| {
            let xen = on.cpus(1, &[1, 1]).runs(0, 0, Under).active(&[(0, &[-900])]).accounted();
            format!("{:?} {}", xen.credits(1), is_parked(&xen))
        },
        "[-300] false",
    ),
    (
        ALL,
        PARK,
        "a CPU without another vCPU idles",
        |on| {
            let xen = on.cpus(1, &[1]).caps(&[30]).runs(0, 0, Under).active(&[(0, &[-400])]);
            let xen = xen.accounted();
            format!("{:?} {}", xen.credits(1), xen.chooses(0, Preempted).chosen(0))
        },
        "[-300] nobody",
    ),
    // -91 + 90 = -1: still in debt.
    (
        ALL,
        UNPARK,
        "a parked vCPU that still owes does not come back",
        |on| {
            let xen = parked(on, -91);
            format!("{} {:?} {:?}", is_parked(&xen), xen.queue(0), xen.pri_of(0))
        },
        "true [] Over",
    ),
    (
        KEPT,
        UNPARK,
        "one that owes nothing more is queued, and UNDER",
        |on| {
            let xen = parked(on, -90);
            format!(
                "{} {:?} {:?} {}",
                is_parked(&xen),
                xen.queue(0),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "false [0] Under []",
    ),
    // test_and_clear_bit comes before vcpu_unpause there, so that csched_vcpu_wake sees no flag.
    (
        MIDDLE,
        UNPARK,
        "in 4.4.1 it is BOOST, against what the source says that it wants",
        |on| {
            let xen = parked(on, -90);
            format!(
                "{} {:?} {:?} {}",
                is_parked(&xen),
                xen.queue(0),
                xen.pri_of(0),
                xen.resched_cpus()
            )
        },
        "false [0] Boost [0]",
    ),
    (
        ALL,
        "vcpu_wake",
        "a parked vCPU that wakes is not queued",
        |on| {
            let xen = on.cpus(1, &[1, 1]).caps(&[30]).runs(1, 0, Under).blocked(0, 0, Over);
            let xen = xen.active(&[(0, &[-181])]).accounted().wakes(0, Waker::Timer);
            format!("{} {:?} {}", is_parked(&xen), xen.queue(0), xen.resched_cpus())
        },
        "true [] []",
    ),
    (
        ALL,
        UNPARK,
        "a blocked vCPU does not run when its debt is paid",
        |on| {
            let mut xen = on.cpus(1, &[1, 1]).caps(&[30]).runs(1, 0, Under).blocked(0, 0, Over);
            xen = xen.active(&[(0, &[-181])]).accounted();
            xen.svc(0).credit = -90;
            let xen = xen.accounted();
            format!("{} {:?} {:?}", is_parked(&xen), xen.queue(0), xen.pri_of(0))
        },
        "false [] Under",
    ),
    // -90 + 90, a slice of 300: then three accountings until it owes nothing: 30 % of four periods is 36 ms.
    (
        ALL,
        ACCT,
        "alone it runs one slice of three or four",
        |on| {
            let mut xen = on.cpus(1, &[1]).caps(&[30]).runs(0, 0, Under).active(&[(0, &[0])]);
            let mut ran = String::new();
            for _ in 0..10 {
                let runs = xen.ctx.running[0].is_some();
                ran.push(if runs { 'x' } else { '.' });
                xen = xen.after(30 * MS);
                if runs {
                    xen.credit.burn(&xen.ctx, TaskId(0));
                }
                xen = xen.accounted().chooses(0, SliceEnd);
            }
            ran
        },
        "x...x..x..",
    ),
];

#[test]
fn capped_vms_are_parked_as_in_the_source() {
    hold(CASES);
}
