//! Who waits: bottlenecks go first, and the overdue, however many wait.

use super::*;

/// Boosts in 200 ms after vCPU 0, which siblings usually wake, went to sleep, while two others of its
/// VM (1 and 2) and one of another (3) want two CPUs; a timer wakes it after 1 ms, or nobody does.
fn boosts(timer: bool) -> u64 {
    let mut instep = loaded(&[(3, 300), (1, 100)], &[&[0], &[1], &[1], &[1]], 0);
    instep.kernel().wake(0, Waker::Other(0), 0);
    instep.kernel().wake(1, Waker::Other(1), 0);
    settle(&mut instep, 0);
    for at in 1..17 {
        instep.kernel().block(0, at * MS);
        instep.kernel().wake(0, Waker::Task(1), at * MS + MS / 2);
        settle(&mut instep, at * MS + MS / 2);
    }
    instep.kernel().block(0, 20 * MS);
    instep.kernel().wake(2, Waker::Other(1), 20 * MS);
    instep.kernel().wake(3, Waker::Other(1), 20 * MS);
    if timer {
        instep.kernel().wake(0, Waker::Interrupt(0), 21 * MS);
    }
    let before = instep.counter(Counter::Boost);
    for now in 21..221 {
        settle(&mut instep, now * MS);
        if now % 4 == 0 {
            (0..2).for_each(|cpu| instep.kernel().tick(cpu, now * MS));
        }
    }
    assert_eq!((instep.ejected(), instep.counter(Counter::WakeSibling)), (None, 16));
    instep.counter(Counter::Boost) - before
}

#[test]
fn a_wait_ends_with_whatever_wakes_the_vcpu() {
    assert!(boosts(false) > 0, "a sibling that nobody wakes is waited for");
    assert_eq!(boosts(true), 0);
}

/// After how many ms a vCPU gets its CPU back from seven equal VMs that came to it, while a sibling that it
/// usually wakes waits for it. On another CPU the host is further along.
fn until_it_is_back(without: u32) -> u64 {
    let mut vms = vec![(2, 100); 1];
    vms.extend([(1, 100); 7]);
    vms.push((1, 10));
    let (first, second): (&[usize], &[usize]) = (&[0], &[1]);
    let mut cpus = vec![second; 10];
    (cpus[0], cpus[9]) = (first, first);
    let mut instep = loaded(&vms, &cpus, without);
    for task in [0, 1] {
        instep.kernel().wake(task, Waker::Other(task), START);
    }
    settle(&mut instep, START);
    for at in 1..17 {
        instep.kernel().block(0, START + at * MS);
        instep.kernel().wake(0, Waker::Task(1), START + at * MS + MS / 2);
        settle(&mut instep, START + at * MS + MS / 2);
    }
    let begun = START + 20 * MS;
    instep.kernel().block(0, begun);
    (2..10).for_each(|task| instep.kernel().wake(task, Waker::Other(1), begun));
    settle(&mut instep, begun);
    let back = (1..1000).find(|at| {
        let now = begun + at * MS;
        settle(&mut instep, now);
        (0..2).filter(|_| at % 4 == 0).for_each(|cpu| instep.kernel().tick(cpu, now));
        instep.current(1) == Some(1)
    });
    assert_eq!(instep.ejected(), None);
    back.expect("it has its share")
}

#[test]
fn a_bottleneck_goes_before_its_equals_unless_that_is_off() {
    let boost = 1 << 4;
    let (with, without) = (until_it_is_back(0), until_it_is_back(boost));
    assert!(with + 12 < without, "{with} ms with it, {without} without");
}

/// The longest that a VM of weight 1 waits for a CPU among forty others of weight 100, in ms, with ticks of
/// `tick` ms; the one after it sleeps for a moment now and then, so that not all turns begin at a tick.
fn longest_wait(tick: u64) -> u64 {
    let vms: Vec<(usize, u32)> = (0..40).map(|vm| (1, if vm == 0 { 1 } else { 100 })).collect();
    let only: &[usize] = &[0];
    let mut instep = loaded(&vms, &vec![only; vms.len()], 0);
    for task in 0..vms.len() {
        instep.kernel().wake(task, Waker::Other(0), START);
        settle(&mut instep, START);
    }
    let (mut ran_at, mut longest) = (START, 0);
    for at in 1..6000 {
        let now = START + at * MS;
        if at % tick == 0 {
            instep.kernel().tick(0, now);
        }
        settle(&mut instep, now);
        if at % 50 == 0 && instep.current(0).is_some_and(|task| task > 0) {
            let task = instep.current(0).expect("one runs");
            instep.kernel().block(0, now);
            settle(&mut instep, now);
            instep.kernel().wake(task, Waker::Other(0), now);
            settle(&mut instep, now);
        }
        if instep.current(0) == Some(0) {
            ran_at = now;
        }
        longest = longest.max((now - ran_at) / MS);
    }
    assert_eq!(instep.ejected(), None);
    longest
}

#[test]
fn whoever_is_overdue_is_found_behind_more_than_a_cpu_looks_at() {
    for tick in [1, 4] {
        let (longest, bound) = (longest_wait(tick), 240 + 20 * 41);
        assert!(longest < bound, "{longest} ms, more than {bound}, with ticks of {tick} ms");
    }
}

/// The longest that a host thread which computes waits for CPU 0, in ms: it is bound there beside a vCPU that never
/// sleeps and a kernel thread of that CPU that is woken every 20 ms, for a moment; two more fill other CPUs.
fn host_waits() -> u64 {
    let machine = Machine { core: (0..3).map(|cpu| vec![cpu]).collect(), node: vec![0; 3] };
    let tasks = [(0, 0), (0, 0), (0, PF_KTHREAD), (1, 0), (2, 0)]
        .map(|(cpu, flags)| task_on(&[cpu], flags));
    let vm = Vm { weight: 100, own: VmSettings::default(), first: 0, count: 1 };
    let mut instep = fits(&machine, &tasks, std::slice::from_ref(&vm), 0);
    [0, 1, 3, 4].iter().for_each(|task| instep.kernel().wake(*task, Waker::Other(0), START));
    settle(&mut instep, START);
    let (mut ran_at, mut longest, mut sleeps) = (START, 0, true);
    for at in 1..8000 {
        let now = START + at * MS;
        if sleeps && at % 20 == 0 {
            instep.kernel().wake(2, Waker::Interrupt(0), now);
            sleeps = false;
        }
        settle(&mut instep, now);
        if instep.current(0) == Some(2) {
            instep.kernel().block(0, now + MS / 50);
            sleeps = true;
        }
        settle(&mut instep, now + MS / 2);
        (0..3).filter(|_| at % 4 == 0).for_each(|cpu| instep.kernel().tick(cpu, now + MS / 2));
        settle(&mut instep, now + MS / 2);
        if instep.current(0) == Some(1) {
            ran_at = now;
        }
        longest = longest.max((now - ran_at) / MS);
    }
    assert_eq!(instep.ejected(), None);
    longest
}

#[test]
fn a_bound_host_thread_has_its_turn_beside_kernel_threads_that_interrupt() {
    let longest = host_waits();
    assert!(longest < 96 + 12, "{longest} ms");
}

#[test]
fn an_idle_cpu_finds_who_may_come_behind_many_who_may_not() {
    // Forty VMs' vCPUs wait for CPU 0, all but the last bound to it.
    let (only, any): (&[usize], &[usize]) = (&[0], &[1]);
    let mut cpus = vec![only; 41];
    cpus.push(any);
    let mut instep = loaded(&vec![(1, 100); 42], &cpus, 0);
    (0..42).for_each(|task| {
        instep.kernel().wake(task, Waker::Other(0), START + task as u64);
        settle(&mut instep, START + task as u64);
    });
    assert_eq!(instep.current(1), Some(41));
    instep.kernel().set_affinity(40, &CpuMask::of([0, 1]), START + MS);
    settle(&mut instep, START + MS);
    instep.kernel().block(1, START + 2 * MS);
    settle(&mut instep, START + 2 * MS);
    assert_eq!(instep.current(1), Some(40));
    assert_eq!(instep.ejected(), None);
}
