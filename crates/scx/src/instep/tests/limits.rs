//! CPU limits of cgroups: threads have as much CPU time as they leave, and none waits for ever.

use super::counts::{next_generation, number};
use super::races::Numbers;
use super::*;
use crate::abi::PF_EXITING;

/// A cgroup's limit: CPU time and period in milliseconds, what it may save, and the cgroup above.
#[derive(Clone, Copy)]
struct Limit {
    quota: u64,
    period: u64,
    burst: u64,
    above: u32,
}

/// In percent, of a cgroup without a limit.
const NONE: u64 = u64::MAX / MS;

fn limit(percent: u64) -> Limit {
    Limit { quota: percent, period: 100, burst: 0, above: 0 }
}

/// Sets a cgroup's limit in the kernel; `None` takes it away.
fn set(instep: &mut Instep, group: u32, own: Option<Limit>) {
    let Limit { quota, period, burst, above } = own.unwrap_or(limit(NONE));
    // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
    unsafe {
        let state = instep.kernel().globals();
        c::shim_set_group(state, group, quota * MS, period * MS, burst * MS, above);
    }
}

/// VMs of vCPUs that compute on so many CPUs, the first vCPUs of each in these cgroups; all asleep.
fn host(cpus: usize, vms: &[(usize, u32)], groups: &[(u32, Limit)]) -> Instep {
    let count: usize = vms.iter().map(|(count, _)| count).sum();
    let task = |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
    let tasks: Vec<TaskSetup> = (0..count).map(task).collect();
    let mut instep = fits(&cores(cpus), &tasks, &table(vms), 0);
    for (group, own) in groups {
        set(&mut instep, *group, Some(*own));
    }
    instep
}

/// Threads of the host that compute on so many CPUs; all asleep.
fn threads_on(cpus: usize, threads: usize, groups: &[(u32, Limit)]) -> Instep {
    let task = |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
    let tasks: Vec<TaskSetup> = (0..threads).map(task).collect();
    let mut instep = fits(&cores(cpus), &tasks, &[], 0);
    groups.iter().for_each(|(group, own)| set(&mut instep, *group, Some(*own)));
    instep
}

fn wake(instep: &mut Instep, task: usize, now: u64) {
    instep.kernel().wake(task, Waker::Other(0), now);
    run_due_work(instep, now);
}

/// So many milliseconds from `from` on, in steps of a quarter.
/// For how many milliseconds each task ran.
pub(super) fn run(instep: &mut Instep, cpus: usize, tasks: usize, from: u64, ms: u64) -> Vec<f64> {
    let mut ran = vec![0.0; tasks];
    for step in 1..=ms * 4 {
        let now = from + step * MS / 4;
        pass_quarter(instep, cpus, step, now);
        for task in (0..cpus).filter_map(|cpu| instep.current(cpu)) {
            ran[task] += 0.25;
        }
    }
    assert_eq!(instep.ejected(), None);
    ran
}

/// The whole of these tasks in percent of a CPU.
fn percent(ran: &[f64], ms: u64) -> f64 {
    ran.iter().sum::<f64>() * 100.0 / ms as f64
}

fn near(got: f64, wanted: f64) -> bool {
    (got - wanted).abs() <= wanted * 0.02
}

#[test]
fn one_thread_has_what_its_limit_leaves_on_an_idle_cpu() {
    for wanted in [1, 20, 50, 98] {
        let mut instep = host(2, &[(1, 100)], &[(1, limit(wanted))]);
        instep.kernel().set_group(0, 1);
        wake(&mut instep, 0, START);
        // A tick is 2 % of what 1 % of a CPU gives in this time.
        let got = percent(&run(&mut instep, 2, 1, START, 20_000), 20_000);
        assert!(near(got, wanted as f64), "{wanted} % wanted, {got}");
    }
}

#[test]
fn vms_under_limits_and_others_have_what_is_theirs_on_32_cpus() {
    // Gangs of 8 and 16, one of them limited to 150 %; four VMs of 16 that are not: 8 vCPUs a CPU at most.
    let vms = [(8, 100), (16, 100), (16, 100), (16, 100), (16, 100), (16, 100)];
    let mut instep = host(32, &vms, &[(1, limit(150)), (2, limit(400))]);
    (0..8).for_each(|task| instep.kernel().set_group(task, 1));
    (8..24).for_each(|task| instep.kernel().set_group(task, 2));
    (0..88).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 32, 88, START, 1000);
    let ran = run(&mut instep, 32, 88, START + 1000 * MS, 4000);
    let got: Vec<f64> =
        [0..8, 8..24, 24..40, 40..56, 56..72, 72..88].map(|of| percent(&ran[of], 4000)).to_vec();
    assert!(near(got[0], 150.0) && near(got[1], 400.0), "{got:?}");
    let part = (3200.0 - 550.0) / 4.0;
    assert!(near(got[2..].iter().sum(), 4.0 * part), "no CPU idles: {got:?}");
    assert!(got[2..].iter().all(|vm| *vm >= 0.85 * part), "{got:?}");
    // SAFETY: it is the state that this scheduler was loaded with.
    let mut held = |vm| unsafe { c::shim_vm_held(instep.kernel().globals(), vm) };
    assert!(held(1) > 0 && held(2) > 0 && held(3) == 0);
}

#[test]
fn limits_hold_at_each_level() {
    // Two VMs of two vCPUs under a slice of 150 %, one of them limited to 30 % itself.
    let own = Limit { above: 1, ..limit(30) };
    let plain = Limit { above: 1, ..limit(NONE) };
    let mut instep = host(8, &[(2, 100), (2, 100)], &[(1, limit(150)), (2, own), (3, plain)]);
    for task in 0..4 {
        instep.kernel().set_group(task, 2 + task as u32 / 2);
        wake(&mut instep, task, START);
    }
    let ran = run(&mut instep, 8, 4, START, 4000);
    let (first, both) = (percent(&ran[..2], 4000), percent(&ran, 4000));
    assert!(near(first, 30.0) && near(both, 150.0), "{first} % of {both}");
}

#[test]
fn limit_holds_however_deep_below_it_threads_lie() {
    // Any user may make cgroups below one that was handed over. 32 levels are read, that of the root included.
    for depth in [31, 32, 33, 200] {
        let mut instep = host(2, &[(1, 100)], &[(1, limit(20))]);
        for group in 2..=depth {
            set(&mut instep, group, Some(Limit { above: group - 1, ..limit(NONE) }));
        }
        instep.kernel().set_group(0, depth);
        wake(&mut instep, 0, START);
        let got = percent(&run(&mut instep, 2, 1, START, 4000), 4000);
        assert!(near(got, 20.0), "{got} % of 20 at level {depth}");
        assert_eq!(instep.counter(Counter::LimitLost), 0);
    }
}

#[test]
fn limit_deeper_than_is_read_is_lost_unless_a_user_made_it() {
    for (owner, is_lost) in [(0, true), (1000, false)] {
        let mut instep = host(2, &[(1, 100)], &[]);
        for group in 1..=40 {
            let percent = if group == 40 { 20 } else { NONE };
            set(&mut instep, group, Some(Limit { above: group - 1, ..limit(percent) }));
        }
        // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
        unsafe { c::shim_give_group(instep.kernel().globals(), 40, owner) }
        instep.kernel().set_group(0, 40);
        wake(&mut instep, 0, START);
        run(&mut instep, 2, 1, START, 500);
        assert_eq!(instep.counter(Counter::LimitLost) > 0, is_lost, "of user {owner}");
    }
}

#[test]
fn thread_bound_to_a_cpu_is_limited_too() {
    let tasks = [task_on(&[0], 0), task_on(&[0], 0)];
    let mut instep = fits(&cores(1), &tasks, &[], 0);
    set(&mut instep, 1, Some(limit(20)));
    instep.kernel().set_group(0, 1);
    (0..2).for_each(|task| wake(&mut instep, task, START));
    let ran = run(&mut instep, 1, 2, START, 4000);
    assert!(near(ran[0], 800.0) && near(ran[1], 3200.0), "{ran:?}");
}

#[test]
fn limit_that_changes_acts_within_a_quarter_of_a_second() {
    let mut instep = host(2, &[(2, 100)], &[(1, limit(1))]);
    (0..2).for_each(|task| instep.kernel().set_group(task, 1));
    (0..2).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 2, 2, START, 1000);
    set(&mut instep, 1, Some(limit(100)));
    run(&mut instep, 2, 2, START + 1000 * MS, 300);
    let got = percent(&run(&mut instep, 2, 2, START + 1300 * MS, 1000), 1000);
    assert!(near(got, 100.0), "{got} % after it was raised to 100");
    set(&mut instep, 1, None);
    run(&mut instep, 2, 2, START + 2300 * MS, 300);
    let got = percent(&run(&mut instep, 2, 2, START + 2600 * MS, 1000), 1000);
    assert!(near(got, 200.0), "{got} % without a limit");
    set(&mut instep, 1, Some(limit(50)));
    run(&mut instep, 2, 2, START + 3600 * MS, 300);
    let got = percent(&run(&mut instep, 2, 2, START + 3900 * MS, 1000), 1000);
    assert!(near(got, 50.0), "{got} % with a new one");
}

#[test]
fn what_is_saved_is_a_burst_at_most() {
    let own = Limit { burst: 20, ..limit(20) };
    let mut instep = host(1, &[(1, 100)], &[(1, own)]);
    instep.kernel().set_group(0, 1);
    wake(&mut instep, 0, START);
    run(&mut instep, 1, 1, START, 200);
    // It sleeps for long, and then has 40 ms before the next period begins.
    let mut now = START + 200 * MS;
    while instep.current(0).is_none() {
        now += MS;
        run_due_work(&mut instep, now);
    }
    instep.kernel().block(0, now);
    run_due_work(&mut instep, now);
    // Periods began at the start, 100 ms apart.
    let again = START + (now - START).div_ceil(100 * MS) * 100 * MS + 1000 * MS + MS;
    wake(&mut instep, 0, again);
    let ran = run(&mut instep, 1, 1, again, 98);
    assert!((39.5..=44.5).contains(&ran[0]), "{} ms of 40", ran[0]);
}

#[test]
fn many_threads_have_no_more_than_their_limit() {
    // The watchdog looks after 20 s. With a tick for each thread once in 8 s they had 1.5 % and 50 %.
    for (wanted, threads, ms) in [(0.1, 40, 60_000), (20.0, 1000, 10_000)] {
        let own = Limit { quota: (wanted * 10.0) as u64, period: 1000, burst: 0, above: 0 };
        let mut instep = threads_on(4, threads, &[(1, own)]);
        (0..threads).for_each(|task| instep.kernel().set_group(task, 1));
        (0..threads).for_each(|task| wake(&mut instep, task, START));
        // A tick on each CPU, for which they wait afterwards.
        run(&mut instep, 4, threads, START, 20_000);
        let got = percent(&run(&mut instep, 4, threads, START + 20_000 * MS, ms), ms);
        assert!((got - wanted).abs() < 0.05 * wanted, "{got} % of {wanted}");
    }
}

#[test]
fn threads_under_a_tiny_limit_take_turns() {
    // Each runs until the clock ticks, after 4 ms at most, for which they then wait for 4 s.
    let own = Limit { quota: 1, period: 1000, burst: 0, above: 0 };
    let mut instep = host(4, &[(8, 100)], &[(1, own)]);
    (0..8).for_each(|task| instep.kernel().set_group(task, 1));
    (0..8).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 4, 8, START, 20_000);
    let ran = run(&mut instep, 4, 8, START + 20_000 * MS, 160_000);
    assert!(ran.iter().all(|ran| (14.0..=26.0).contains(ran)), "20 ms each: {ran:?}");
}

#[test]
fn thread_that_ends_is_not_held() {
    // It may hold what others wait for, and returns to no user space where it could be stopped.
    let tasks = [0, PF_EXITING].map(|flags| task_on(&[0, 1], flags));
    let mut instep = fits(&cores(2), &tasks, &[], 0);
    set(&mut instep, 1, Some(Limit { quota: 1, period: 1000, burst: 0, above: 0 }));
    (0..2).for_each(|task| instep.kernel().set_group(task, 1));
    (0..2).for_each(|task| wake(&mut instep, task, START));
    let ran = run(&mut instep, 2, 2, START, 1000);
    assert!(ran[0] < 10.0 && ran[1] > 990.0, "{ran:?}");
    // Nor does it give way each tick, as it would only be chosen again.
    assert!(instep.counter(Counter::Switch) < 50, "{}", instep.counter(Counter::Switch));
}

#[test]
fn held_threads_take_turns_at_any_uptime() {
    // Turns are ordered by 16 bits of 134 ms: after 2.4 hours they begin anew.
    let begin = (1 << 43) - 40_000 * MS;
    let mut instep =
        host(4, &[(8, 100)], &[(1, Limit { quota: 1, period: 1000, burst: 0, above: 0 })]);
    (0..8).for_each(|task| instep.kernel().set_group(task, 1));
    (0..8).for_each(|task| wake(&mut instep, task, begin));
    run(&mut instep, 4, 8, begin, 20_000);
    let ran = run(&mut instep, 4, 8, begin + 20_000 * MS, 160_000);
    assert!(ran.iter().all(|had| *had > 10.0 && *had < 30.0), "of 160 ms: {ran:?}");
}

#[test]
fn thread_that_reads_under_rcu_has_a_tick_within_seconds() {
    // All grace periods wait for it. Each of 64 threads has a turn of a tick in minutes.
    let tiny = Limit { quota: 1, period: 1000, burst: 0, above: 0 };
    let mut instep = host(2, &[(64, 100)], &[(1, tiny)]);
    (0..64).for_each(|task| instep.kernel().set_group(task, 1));
    instep.kernel().task(63).rcu_read_lock_nesting.set(1);
    (0..64).for_each(|task| wake(&mut instep, task, START));
    let ran = run(&mut instep, 2, 64, START, 30_000);
    let others = ran[..63].iter().fold(0.0, |most: f64, had| most.max(*had));
    assert!(ran[63] > 8.0 && ran[63] > others, "{ran:?}");
}

#[test]
fn thread_in_the_kernel_is_held_once_it_leaves() {
    // It may hold a lock there. What it uses meanwhile is a debt.
    let mut instep = host(2, &[(1, 100), (1, 100)], &[(1, limit(10))]);
    instep.kernel().set_group(0, 1);
    instep.kernel().task(0).in_kernel.set(true);
    (0..2).for_each(|task| wake(&mut instep, task, START));
    let inside = run(&mut instep, 2, 2, START, 250);
    assert!(inside[0] > 245.0, "{inside:?}");
    instep.kernel().task(0).in_kernel.set(false);
    let after = run(&mut instep, 2, 2, START + 250 * MS, 2000);
    let paid = run(&mut instep, 2, 2, START + 2250 * MS, 2000);
    assert!(after[0] < 5.0, "{after:?} of 2 s, which pay for 225 ms");
    let all = percent(&[inside[0], after[0], paid[0]], 4250);
    assert!(near(all, 10.0), "{all} %, {paid:?} in the end");
}

#[test]
fn held_thread_may_be_moved_and_leaves_its_limit() {
    let mut instep = host(2, &[(1, 100), (1, 100)], &[(1, limit(10))]);
    instep.kernel().set_group(0, 1);
    (0..2).for_each(|task| wake(&mut instep, task, START));
    let mut now = START;
    for round in 0..50 {
        run(&mut instep, 2, 2, now, 30);
        now += 30 * MS;
        instep.kernel().set_affinity(0, &CpuMask::of([round % 2]), now);
        run_due_work(&mut instep, now);
    }
    let held = percent(&run(&mut instep, 2, 2, now, 2000)[..1], 2000);
    assert!(near(held, 10.0), "{held} % while it was moved");
    instep.kernel().set_group(0, 0);
    instep.kernel().set_affinity(0, &CpuMask::of(0..2), now + 2000 * MS);
    let free = percent(&run(&mut instep, 2, 2, now + 2000 * MS, 1000), 1000);
    assert!(free > 198.0, "{free} % without a limit");
    // Nothing is counted twice: both sleep, and nobody waits.
    now += 3000 * MS;
    for cpu in 0..2 {
        instep.kernel().block(cpu, now);
        run_due_work(&mut instep, now);
    }
    // SAFETY: it is the state that this scheduler was loaded with.
    let mut left = |vm| unsafe { c::shim_vm_waiting(instep.kernel().globals(), vm) };
    assert_eq!([left(1), left(2)], [0, 0]);
}

#[test]
fn time_is_held_by_the_limit_under_which_the_thread_was() {
    let mut instep = host(2, &[(1, 100)], &[(1, limit(10)), (2, limit(90))]);
    instep.kernel().set_group(0, 1);
    wake(&mut instep, 0, START);
    // It is held from about the tenth to the hundredth millisecond of each period, and changes its cgroup meanwhile.
    run(&mut instep, 2, 1, START, 1030);
    instep.kernel().set_group(0, 2);
    run(&mut instep, 2, 1, START + 1030 * MS, 100);
    // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
    let mut held = |group| unsafe { c::shim_group_held(instep.kernel().globals(), group) } / MS;
    let (first, second) = (held(1), held(2));
    assert!((900..=1000).contains(&first), "the first limit held it for {first} ms");
    assert!(second < 15, "the second one for {second} ms");
    // Under a limit that holds it, too, the time counts there from the next look on.
    set(&mut instep, 2, Some(limit(10)));
    run(&mut instep, 2, 1, START + 1130 * MS, 50);
    instep.kernel().set_group(0, 1);
    run(&mut instep, 2, 1, START + 1180 * MS, 1000);
    // SAFETY: as above.
    let mut held = |group| unsafe { c::shim_group_held(instep.kernel().globals(), group) } / MS;
    let (after, other) = (held(1) - first, held(2) - second);
    assert!(after > 800 && other < 120, "the first held it for {after} ms, the second for {other}");
}

#[test]
fn limits_of_all_cpus_or_more_limit_nothing() {
    let mut instep = host(2, &[(2, 100)], &[(1, limit(200)), (2, limit(900))]);
    (0..2).for_each(|task| instep.kernel().set_group(task, 1 + task as u32));
    (0..2).for_each(|task| wake(&mut instep, task, START));
    assert_eq!(run(&mut instep, 2, 2, START, 1000), [1000.0, 1000.0]);
}

#[test]
fn counts_are_right_whatever_happens_to_threads_under_limits() {
    for (seed, cpus) in (1..25).zip([1, 2, 4, 8, 3].into_iter().cycle()) {
        let mut numbers = Numbers::new(seed);
        let vms: Vec<(usize, u32)> = (0..4).map(|at| (1 + at % 4, 100)).collect();
        let count: usize = vms.iter().map(|vm| vm.0).sum::<usize>();
        let mut instep = host(cpus, &vms, &[(1, limit(15)), (2, limit(40))]);
        set(&mut instep, 3, Some(Limit { above: 2, ..limit(20) }));
        let of: Vec<u32> =
            (1..).zip(&vms).flat_map(|(number, vm)| std::iter::repeat_n(number, vm.0)).collect();
        let mut awake = vec![false; count];
        let mut now = START;
        for at in 1..4000u64 {
            now = START + at * MS / 4;
            run_due_work(&mut instep, now);
            let task = numbers.below(count);
            let runs = (0..cpus).find(|cpu| instep.current(*cpu) == Some(task));
            match (numbers.below(40), runs) {
                (0..4, Some(cpu)) => {
                    instep.kernel().block(cpu, now);
                    awake[task] = false;
                }
                (0..20, None) if !awake[task] => {
                    instep.kernel().wake(task, Waker::Other(numbers.below(cpus)), now);
                    awake[task] = true;
                }
                (20, _) => {
                    let one = numbers.below(2) == 0;
                    let first = numbers.below(cpus);
                    let mask = if one { CpuMask::of([first]) } else { CpuMask::of(0..cpus) };
                    instep.kernel().set_affinity(task, &mask, now);
                }
                (21, _) => next_generation(&mut instep),
                (22, _) => {
                    // As if its VM's entry went and came again.
                    let (vm, slot) = match numbers.below(2) {
                        0 => (0, u32::MAX),
                        _ => (of[task], task as u32),
                    };
                    number(&mut instep, task, vm, slot);
                    next_generation(&mut instep);
                }
                (23..26, _) => {
                    // As when the kernel moves a thread: it is queued anew.
                    instep.kernel().set_group(task, numbers.below(4) as u32);
                    instep.kernel().set_affinity(task, &CpuMask::of(0..cpus), now);
                }
                (26, _) => {
                    let own = (numbers.below(3) > 0).then(|| limit(1 + numbers.below(90) as u64));
                    set(&mut instep, 1 + numbers.below(2) as u32, own);
                }
                _ => {}
            }
            run_due_work(&mut instep, now);
            (at % 16 == 0).then(|| tick(&mut instep, cpus, now));
            assert_eq!(instep.ejected(), None, "seed {seed} after {at} steps");
        }
        // Nobody stays held once there is no limit.
        (1..4).for_each(|group| set(&mut instep, group, None));
        (0..count).for_each(|task| {
            instep.kernel().set_affinity(task, &CpuMask::of(0..cpus), now);
            run_due_work(&mut instep, now);
        });
        let ran = run(&mut instep, cpus, count, now, 3000);
        let waits = (0..count).filter(|task| awake[*task] && ran[*task] == 0.0);
        assert_eq!(waits.collect::<Vec<_>>(), [] as [usize; 0], "seed {seed}: {ran:?}");
        now += 3000 * MS;
        while let Some(cpu) = (0..cpus).find(|cpu| instep.current(*cpu).is_some()) {
            instep.kernel().block(cpu, now);
            run_due_work(&mut instep, now);
        }
        for vm in 1..=vms.len() as u32 {
            // SAFETY: it is the state that this scheduler was loaded with.
            let left = unsafe {
                let state = instep.kernel().globals();
                (c::shim_vm_running(state, vm), c::shim_vm_waiting(state, vm))
            };
            assert_eq!(left, (0, 0), "seed {seed}, VM {vm}");
        }
    }
}

#[test]
fn limit_that_is_lowered_leaves_no_more_than_its_own_quota() {
    // Seven CPUs for a second are left when the limit becomes a tenth of a CPU.
    let before = Limit { quota: 7000, period: 1000, burst: 0, above: 0 };
    let mut instep = host(8, &[(8, 100)], &[(1, before)]);
    (0..8).for_each(|task| instep.kernel().set_group(task, 1));
    wake(&mut instep, 0, START);
    run(&mut instep, 8, 8, START, 1100);
    set(&mut instep, 1, Some(limit(10)));
    (1..8).for_each(|task| wake(&mut instep, task, START + 1100 * MS));
    run(&mut instep, 8, 8, START + 1100 * MS, 300);
    let got = percent(&run(&mut instep, 8, 8, START + 1400 * MS, 1000), 1000);
    assert!(got < 11.0, "{got} % of 10");
}

#[test]
fn thread_that_may_use_few_cpus_goes_on_though_others_idle() {
    let tasks = [task_on(&[2, 3], 0)];
    let mut instep = fits(&cores(4), &tasks, &[], 0);
    set(&mut instep, 1, Some(limit(20)));
    instep.kernel().set_group(0, 1);
    wake(&mut instep, 0, START);
    let got = percent(&run(&mut instep, 4, 1, START, 4000), 4000);
    assert!(near(got, 20.0), "{got} % of 20");
}

/// What follows when there was no memory for the limit of a thread.
struct Without {
    /// How often the limit counted as lost meanwhile.
    lost: u64,
    /// What the thread has in the second after it, in percent of a CPU.
    got: f64,
}

/// There is no memory for the limit of 20 % of a thread while it computes and sleeps for so many milliseconds.
fn without_memory(spans: &[(bool, u64)]) -> Without {
    let mut instep = host(2, &[(1, 100)], &[(1, limit(20))]);
    let refuse = |instep: &mut Instep, refused: bool| {
        // SAFETY: it is the state that this scheduler was loaded with.
        unsafe { c::shim_refuse_limits(instep.kernel().globals(), refused) }
    };
    refuse(&mut instep, true);
    instep.kernel().set_group(0, 1);
    let mut now = START;
    let mut computes = false;
    for &(wanted, ms) in spans.iter().chain([&(true, 0)]) {
        match (computes, wanted) {
            (false, true) => wake(&mut instep, 0, now),
            (true, false) => {
                let on = |cpu: &usize| instep.current(*cpu) == Some(0);
                let cpu = (0..2).find(on).expect("the thread runs");
                instep.kernel().block(cpu, now);
                run_due_work(&mut instep, now);
            }
            _ => {}
        }
        computes = wanted;
        run(&mut instep, 2, 1, now, ms);
        now += ms * MS;
    }
    refuse(&mut instep, false);
    run(&mut instep, 2, 1, now, 1000);
    let got = percent(&run(&mut instep, 2, 1, now + 1000 * MS, 1000), 1000);
    Without { lost: instep.counter(Counter::LimitLost), got }
}

#[test]
fn limit_without_memory_is_kept_later_or_counts_as_lost() {
    // Nobody looked while the thread slept, so nobody knows that there was no memory then.
    for spans in [&[(true, 1500)][..], &[(true, 500), (false, 3000), (true, 500)]] {
        let Without { lost, got } = without_memory(spans);
        assert_eq!(lost, 0, "{spans:?}");
        assert!(near(got, 20.0), "{got} % of 20");
    }
    let sleeps_between = [(true, 900), (false, 3000), (true, 900), (false, 3000), (true, 900)];
    for spans in [&[(true, 3000)][..], &sleeps_between] {
        let Without { lost, .. } = without_memory(spans);
        assert!(lost > 0, "nobody says that the limit was not kept: {spans:?}");
    }
}

#[test]
fn user_space_sees_each_limit_as_it_is_now() {
    let mut instep = host(2, &[(1, 100)], &[]);
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_weigh_group(instep.kernel().globals(), 1, 100, 0) };
    set(&mut instep, 1, Some(limit(20)));
    instep.kernel().set_group(0, 1);
    wake(&mut instep, 0, START);
    run(&mut instep, 2, 1, START, 600);
    assert_eq!(instep.group_seen(1).expect("its thread ran").most, 200);
    let (mut now, before) = (START + 600 * MS, instep.counter(Counter::Reweighed));
    // A quota of all CPUs or more is no limit.
    for (own, most) in [(limit(150), 1500), (limit(200), 0), (limit(50), 500)] {
        set(&mut instep, 1, Some(own));
        run(&mut instep, 2, 1, now, 600);
        now += 600 * MS;
        assert_eq!(instep.group_seen(1).expect("its thread ran").most, most);
    }
    assert_eq!(instep.counter(Counter::Reweighed), before + 3, "what changed is told");
}
