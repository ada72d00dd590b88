//! Instep's own C on the kernel's side, task by task.

use super::*;
use crate::Waker;
use crate::abi::{CpuMask, PF_KTHREAD};

mod counts;
mod homes;
mod waits;

const MS: u64 = 1_000_000;
const START: u64 = 1000 * MS;

/// Two CPUs, two VMs of two vCPUs that never block, for `ms` milliseconds; then CPU time of each.
fn spinners(settings: &Settings, weights: [u32; 2], ms: u64) -> (Instep, [u64; 2]) {
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let task = TaskSetup { allowed: CpuMask::of(0..2), cpu: 0, flags: 0 };
    let vm =
        |at: usize| Vm { weight: weights[at], own: VmSettings::default(), first: 2 * at, count: 2 };
    let tasks = vec![task; 4];
    let mut instep =
        Instep::new(machine, &tasks, &[vm(0), vm(1)], settings, 1, Release::V7_2).expect("it fits");
    for task in 0..4 {
        instep.kernel().wake(task, Waker::Other(0), 0);
    }
    let mut ran = [0; 2];
    for now in 0..ms {
        while let Some(cpu) = instep.kernel().take_resched() {
            instep.kernel().schedule(cpu, now * MS);
        }
        for cpu in 0..2 {
            let task = instep.current(cpu).expect("nobody blocks");
            ran[task / 2] += 1;
            if now % 4 == 0 {
                instep.kernel().tick(cpu, now * MS);
            }
        }
    }
    assert_eq!(instep.ejected(), None);
    (instep, ran)
}

#[test]
fn insteps_own_c_runs_siblings_together_and_shares_by_weight() {
    let (mut instep, ran) = spinners(&Settings::default(), [100, 300], 4000);
    let part = ran[1] as f64 / (ran[0] + ran[1]) as f64;
    assert!((part - 0.75).abs() < 0.05, "{part}");
    assert!(instep.counter(Counter::GangOn) >= 2 && instep.counter(Counter::Episode) > 100);
    let events = instep.kernel().take_events();
    assert!(events.iter().any(|event| event.kind == 1 && event.vm == 1), "{events:?}");
    let gang = 1 << 5;
    let off = Settings { without: gang, ..Settings::default() };
    let (mut instep, _) = spinners(&off, [100, 300], 1000);
    assert_eq!(instep.counter(Counter::Episode), 0);
}

/// Two CPUs and VMs of so many vCPUs and such weights; `cpus` are those that each task may use.
fn loaded(vms: &[(usize, u32)], cpus: &[&[usize]], without: u32) -> Instep {
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let tasks: Vec<TaskSetup> = cpus.iter().map(|allowed| task_on(allowed, 0)).collect();
    let mut first = 0;
    let vms: Vec<Vm> = vms
        .iter()
        .map(|(count, weight)| {
            first += count;
            Vm { weight: *weight, own: VmSettings::default(), first: first - count, count: *count }
        })
        .collect();
    fits(&machine, &tasks, &vms, without)
}

/// A task that may use these CPUs and begins on the first.
fn task_on(allowed: &[usize], flags: u32) -> TaskSetup {
    TaskSetup { allowed: CpuMask::of(allowed.iter().copied()), cpu: allowed[0], flags }
}

/// Two cores of two CPUs.
fn two_cores() -> Machine {
    let core = |cpu: usize| vec![cpu & !1, cpu | 1];
    Machine { core: (0..4).map(core).collect(), node: vec![0; 4] }
}

/// The scheduler on a machine with these tasks and VMs, without some mechanisms.
fn fits(machine: &Machine, tasks: &[TaskSetup], vms: &[Vm], without: u32) -> Instep {
    let settings = Settings { without, ..Settings::default() };
    Instep::new(machine.clone(), tasks, vms, &settings, 1, Release::V7_2).expect("it fits")
}

fn settle(instep: &mut Instep, now: u64) {
    while let Some(cpu) = instep.kernel().take_resched() {
        instep.kernel().schedule(cpu, now);
    }
}

#[test]
fn who_is_too_far_ahead_of_a_sibling_gives_way_even_to_who_is_ahead_of_its_share() {
    assert!(skew_stops(0) > 0);
    let skew = 1 << 14;
    assert_eq!(skew_stops(skew), 0);
}

fn skew_stops(without: u32) -> u32 {
    // CPU 0: a vCPU of a VM that never blocks, and one of small weight; CPU 1: the first's sibling,
    // which has little of it beside a VM of ten times the weight.
    let vms = [(2, 100), (1, 20), (1, 1000)];
    let mut instep = loaded(&vms, &[&[0], &[1], &[0], &[1]], without);
    (0..4).for_each(|task| instep.kernel().wake(task, Waker::Other(0), 0));
    let mut stops = 0;
    for now in 0..2000 {
        settle(&mut instep, now * MS);
        if now % 4 > 0 {
            continue;
        }
        let before = instep.counter(Counter::SkewStop);
        let ahead = instep.current(0);
        instep.kernel().tick(0, now * MS);
        settle(&mut instep, now * MS);
        if instep.counter(Counter::SkewStop) > before {
            assert_eq!((ahead, instep.current(0)), (Some(0), Some(2)), "after {now} ms");
            stops += 1;
        }
        instep.kernel().tick(1, now * MS);
    }
    assert_eq!(instep.ejected(), None);
    stops
}

#[test]
fn who_never_sleeps_leaves_a_shared_core_when_another_is_idle() {
    // Two cores of two CPUs, full; then both vCPUs of the second core go to sleep.
    let machine = two_cores();
    let tasks: Vec<TaskSetup> =
        (0..4).map(|cpu| TaskSetup { allowed: CpuMask::of(0..4), cpu, flags: 0 }).collect();
    let vm = |first| Vm { weight: 100, own: VmSettings::default(), first, count: 2 };
    let cores = |without: u32| {
        let mut instep = fits(&machine, &tasks, &[vm(0), vm(2)], without);
        (0..4).for_each(|task| instep.kernel().wake(task, Waker::Other(0), 0));
        settle(&mut instep, 0);
        assert!((0..4).all(|cpu| instep.current(cpu).is_some()));
        (2..4).for_each(|cpu| instep.kernel().block(cpu, MS));
        for now in 1..20 {
            settle(&mut instep, now * MS);
            (0..4).for_each(|cpu| instep.kernel().tick(cpu, now * MS));
        }
        assert_eq!(instep.ejected(), None);
        let busy = (0..4).filter(|cpu| instep.current(*cpu).is_some());
        let cores: std::collections::BTreeSet<usize> = busy.map(|cpu| cpu / 2).collect();
        (cores.len(), instep.counter(Counter::CoreLeft))
    };
    assert_eq!(cores(0), (2, 1));
    let without_cores = 1 << 2;
    assert_eq!(cores(without_cores), (1, 0));
}

#[test]
fn a_per_cpu_kernel_thread_takes_the_cpu_at_once_unless_that_is_off() {
    // On CPU 0 a vCPU and a host thread that never sleep, and a kernel thread of that CPU that works for 100 us
    // of every 10 ms.
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let task = |flags| TaskSetup { allowed: CpuMask::of([0]), cpu: 0, flags };
    let tasks = [task(0), task(PF_KTHREAD), task(0)];
    let vm = Vm { weight: 100, own: VmSettings::default(), first: 0, count: 1 };
    let at_once = |without: u32| {
        let mut instep = fits(&machine, &tasks, std::slice::from_ref(&vm), without);
        [0, 2].into_iter().for_each(|task| instep.kernel().wake(task, Waker::Other(1), 0));
        let (mut at_once, mut sleeps) = (0, true);
        for round in 1..100 {
            let now = round * 10 * MS;
            settle(&mut instep, now - MS);
            instep.kernel().tick(0, now - MS);
            settle(&mut instep, now - MS);
            if std::mem::take(&mut sleeps) {
                instep.kernel().wake(1, Waker::Interrupt(0), now);
            }
            settle(&mut instep, now);
            at_once += u32::from(instep.current(0) == Some(1));
            // Until it had its turn.
            for later in 0..9 {
                if instep.current(0) == Some(1) {
                    instep.kernel().block(0, now + later * MS + MS / 10);
                    sleeps = true;
                }
                instep.kernel().tick(0, now + later * MS + MS / 2);
                settle(&mut instep, now + later * MS + MS / 2);
            }
        }
        assert_eq!(instep.ejected(), None);
        (at_once, instep.counter(Counter::Kthread))
    };
    let (now, first) = at_once(0);
    assert!(now >= 80 && first >= 80, "{now}, {first}");
    let host = 1 << 11;
    let (later, first) = at_once(host);
    assert!(later < now / 2 && first == 0, "{later}, {first}");
}

#[test]
fn whom_a_thread_bound_to_its_cpu_interrupts_stays_unless_that_is_off() {
    // Two cores of two CPUs with a vCPU each, on CPUs 0 and 2; host threads bound to CPUs 0 and 3.
    let machine = two_cores();
    let vcpu = |cpu| TaskSetup { allowed: CpuMask::of(0..4), cpu, flags: 0 };
    let bound = |cpu| TaskSetup { allowed: CpuMask::of([cpu]), cpu, flags: PF_KTHREAD };
    let tasks = [vcpu(0), vcpu(2), bound(0), bound(3)];
    let vm = Vm { weight: 100, own: VmSettings::default(), first: 0, count: 2 };
    let where_it_runs = |without: u32| {
        let mut instep = fits(&machine, &tasks, std::slice::from_ref(&vm), without);
        for task in 0..2 {
            instep.kernel().wake(task, Waker::Other(0), START);
        }
        settle(&mut instep, START);
        let at = |instep: &Instep| (0..4).position(|cpu| instep.current(cpu) == Some(0));
        let mut places = Vec::new();
        for round in 1..50 {
            let now = START + round * 20 * MS;
            (0..4).for_each(|cpu| instep.kernel().tick(cpu, now - MS));
            settle(&mut instep, now - MS);
            instep.kernel().wake(2, Waker::Interrupt(0), now);
            settle(&mut instep, now);
            assert_eq!(instep.current(0), Some(2));
            // Another CPU is awake meanwhile, and looks for work when that is done.
            instep.kernel().wake(3, Waker::Interrupt(3), now + MS / 100);
            settle(&mut instep, now + MS / 100);
            instep.kernel().block(3, now + MS / 50);
            settle(&mut instep, now + MS / 50);
            instep.kernel().block(0, now + MS / 20);
            settle(&mut instep, now + MS / 20);
            places.push(at(&instep));
        }
        assert_eq!(instep.ejected(), None);
        (places, instep.counter(Counter::Stayed))
    };
    let (places, stayed) = where_it_runs(0);
    assert!(places.iter().all(|place| *place == Some(0)) && stayed == 49, "{places:?}");
    let stay = 1 << 15;
    let (places, stayed) = where_it_runs(stay);
    assert!(places.iter().any(|place| *place != Some(0)) && stayed == 0, "{places:?}");
}

#[test]
fn whoever_waits_for_a_bound_thread_is_called_for_by_its_tick() {
    // Two cores of two CPUs. On CPU 0 a vCPU that may use CPUs 0 and 3, and the thread; the others idle.
    let machine = two_cores();
    let tasks = [task_on(&[0, 3], 0), task_on(&[0], PF_KTHREAD)];
    let vm = Vm { weight: 100, own: VmSettings::default(), first: 0, count: 1 };
    let mut instep = fits(&machine, &tasks, std::slice::from_ref(&vm), 0);
    instep.kernel().wake(0, Waker::Other(0), START);
    settle(&mut instep, START);
    assert_eq!(instep.current(0), Some(0));
    for at in 1..25 {
        instep.kernel().tick(0, START + at * 4 * MS);
        settle(&mut instep, START + at * 4 * MS);
    }
    let now = START + 97 * MS;
    instep.kernel().wake(1, Waker::Interrupt(0), now);
    settle(&mut instep, now);
    assert_eq!((instep.current(0), instep.current(3)), (Some(1), None));
    instep.kernel().tick(0, now + MS);
    settle(&mut instep, now + MS);
    assert_eq!((instep.current(0), instep.current(3)), (Some(1), Some(0)));
    assert_eq!((instep.ejected(), instep.counter(Counter::Stayed)), (None, 1));
}

#[test]
fn whom_another_vm_preempts_after_a_bound_thread_is_gone_stays_no_longer() {
    // Two CPUs. On CPU 0 a vCPU that a bound thread interrupts, and then another VM's, which wakes up there; the one
    // on CPU 1 sleeps at that moment.
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let tasks =
        [task_on(&[0, 1], 0), task_on(&[1], 0), task_on(&[0], PF_KTHREAD), task_on(&[0], 0)];
    let vm = |first| Vm { weight: 100, own: VmSettings::default(), first, count: 1 };
    let mut instep = fits(&machine, &tasks, &[vm(0), vm(1), vm(3)], 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(task), START));
    settle(&mut instep, START);
    assert_eq!((instep.current(0), instep.current(1)), (Some(0), Some(1)));
    for at in 1..25 {
        (0..2).for_each(|cpu| instep.kernel().tick(cpu, START + at * 4 * MS));
        settle(&mut instep, START + at * 4 * MS);
    }
    let now = START + 98 * MS;
    instep.kernel().wake(2, Waker::Interrupt(0), now);
    settle(&mut instep, now);
    assert_eq!(instep.current(0), Some(2));
    instep.kernel().block(0, now + MS / 20);
    settle(&mut instep, now + MS / 20);
    assert_eq!((instep.current(0), instep.counter(Counter::Stayed)), (Some(0), 1));
    instep.kernel().wake(3, Waker::Interrupt(0), now + MS / 2);
    // Once more, with somebody who waits there.
    instep.kernel().wake(2, Waker::Interrupt(0), now + 3 * MS);
    settle(&mut instep, now + 3 * MS);
    assert_eq!(instep.current(0), Some(2));
    instep.kernel().block(0, now + 3 * MS + MS / 20);
    settle(&mut instep, now + 3 * MS + MS / 20);
    instep.kernel().tick(0, now + 4 * MS);
    settle(&mut instep, now + 4 * MS);
    assert_eq!((instep.current(0), instep.counter(Counter::Stayed)), (Some(3), 1));
    instep.kernel().block(1, now + 5 * MS);
    settle(&mut instep, now + 5 * MS);
    assert_eq!((instep.current(0), instep.current(1)), (Some(3), Some(0)));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn a_host_thread_that_mostly_sleeps_goes_first_unless_that_is_off() {
    // On CPU 0 a vCPU and a host thread that never sleep, and one that wants 1 ms of every 10.
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let tasks = vec![TaskSetup { allowed: CpuMask::of([0]), cpu: 0, flags: 0 }; 3];
    let vm = Vm { weight: 100, own: VmSettings::default(), first: 0, count: 1 };
    let waited = |without: u32| {
        let mut instep = fits(&machine, &tasks, std::slice::from_ref(&vm), without);
        (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(1), 0));
        let (mut wants, mut waited) = (false, 0);
        for now in 0..2000 {
            if now % 10 == 0 && !wants {
                instep.kernel().wake(2, Waker::Interrupt(1), now * MS);
                wants = true;
            }
            settle(&mut instep, now * MS);
            match instep.current(0) {
                Some(2) => {
                    instep.kernel().block(0, now * MS + MS / 2);
                    settle(&mut instep, now * MS + MS / 2);
                    wants = false;
                }
                _ => waited += u32::from(wants),
            }
            instep.kernel().tick(0, now * MS + 3 * MS / 4);
        }
        assert_eq!(instep.ejected(), None);
        waited
    };
    let host = 1 << 11;
    let (on, off) = (waited(0), waited(host));
    assert!(on * 4 < off, "{on} and {off} ms");
}

#[test]
fn what_waits_for_a_cpu_that_a_higher_class_has_is_fetched_unless_that_is_off() {
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    // The first two may run on either CPU, CPU 0 first; the third keeps CPU 1 busy.
    let task = |cpu: usize| TaskSetup { allowed: CpuMask::of(cpu..2), cpu, flags: 0 };
    let vm = |first, count| Vm { weight: 100, own: VmSettings::default(), first, count };
    let rescued = |without: u32| {
        let (tasks, vms) = ([task(0), task(0), task(1)], [vm(0, 2), vm(2, 1)]);
        let mut instep = fits(&machine, &tasks, &vms, without);
        instep.kernel().wake(2, Waker::Other(1), 0);
        settle(&mut instep, 0);
        (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(0), MS));
        // CPU 0 chooses nobody.
        let mut ran = [false; 3];
        for now in 1..100 {
            instep.kernel().tick(1, now * MS);
            instep.kernel().schedule(1, now * MS);
            ran[instep.current(1).expect("it is busy")] = true;
        }
        assert_eq!(instep.ejected(), None);
        (ran[0] || ran[1], instep.counter(Counter::Rescued) > 0)
    };
    // Both wait for CPU 0, and nothing else fetches them.
    let (balance, pull, rescue) = (1 << 1, 1 << 8, 1 << 12);
    assert_eq!(rescued(balance | pull), (true, true));
    assert_eq!(rescued(balance | pull | rescue), (false, false));
}

#[test]
fn a_sibling_that_is_yielded_to_runs_at_once_unless_that_is_off() {
    // CPU 0: a vCPU; CPU 1: its sibling, behind one of another VM that is far behind its share.
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let task = |cpu| TaskSetup { allowed: CpuMask::of([cpu]), cpu, flags: 0 };
    let vm = |first, count, weight| Vm { weight, own: VmSettings::default(), first, count };
    let after = |without: u32| {
        let (tasks, vms) = ([task(0), task(1), task(1)], [vm(0, 2, 100), vm(2, 1, 100)]);
        let mut instep = fits(&machine, &tasks, &vms, without);
        for task in [2, 0, 1] {
            instep.kernel().wake(task, Waker::Other(task.min(1)), 0);
            settle(&mut instep, 0);
        }
        assert_eq!((instep.current(0), instep.current(1)), (Some(0), Some(2)));
        instep.kernel().yield_to(0, Some(1), MS);
        settle(&mut instep, MS);
        assert_eq!(instep.ejected(), None);
        (instep.current(1), instep.counter(Counter::Yield))
    };
    let (gang, directed) = (1 << 5, 1 << 6);
    assert_eq!(after(gang), (Some(1), 1));
    assert_eq!(after(gang | directed), (Some(2), 0));
}

#[test]
fn more_siblings_than_cpus_are_spread_evenly_and_take_turns() {
    // Half of two CPUs, two by two: turns of 2 ms, as the clock here goes, and the other VM's episode.
    let (longest, turns) = most_apart(0);
    assert!(longest <= 14, "{longest} ms");
    // 300 ms on each CPU in such turns.
    assert!((240..=360).contains(&turns), "{turns}");
    // A tick each: a round is 16 ms, and what is left of another VM's turn.
    let by_timer = 1 << 13;
    let (longest, turns) = most_apart(by_timer);
    assert!(longest <= 24 && turns == 0, "{longest} ms, {turns}");
}

/// The longest in which one of four spinning siblings on two CPUs did not run, in ms, and turns that a timer ended.
fn most_apart(without: u32) -> (u64, u64) {
    // All four begin on CPU 0; another VM has a vCPU on each CPU.
    let machine = Machine { core: vec![vec![0], vec![1]], node: vec![0; 2] };
    let tasks = vec![TaskSetup { allowed: CpuMask::of(0..2), cpu: 0, flags: 0 }; 6];
    let vm = |first, count| Vm { weight: 100, own: VmSettings::default(), first, count };
    let vms = [vm(0, 4), vm(4, 2)];
    let mut instep = fits(&machine, &tasks, &vms, without);
    for task in [4, 5, 0, 1, 2, 3] {
        instep.kernel().wake(task, Waker::Other(0), START);
    }
    // When each of the four last began to run, and the longest that one of them did not.
    let (mut began, mut longest) = ([0; 4], 0);
    for now in 1..=600 {
        while instep.kernel().fire_timer(0, START + now * MS) {}
        settle(&mut instep, START + now * MS);
        for task in (0..2).filter_map(|cpu| instep.current(cpu)).filter(|task| *task < 4) {
            longest = longest.max(if now > 100 { now - began[task] } else { 0 });
            began[task] = now;
        }
        if now % 4 == 0 {
            (0..2).for_each(|cpu| instep.kernel().tick(cpu, START + now * MS));
        }
    }
    assert_eq!(instep.ejected(), None);
    longest = began.iter().map(|began| 600 - began).fold(longest, u64::max);
    (longest, instep.counter(Counter::Turn))
}
