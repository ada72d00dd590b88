//! For how long threads wait, however many there are.

use super::masks::{run, wake_all};
use super::*;

/// The longest that the first of these VMs of one vCPU waits for the only CPU, in ms, with ticks of `tick` ms; the
/// others sleep for a moment now and then, so that not all slices begin at a tick.
fn longest_wait(vms: &[(usize, u32)], tick_ms: u64) -> u64 {
    let only: &[usize] = &[0];
    let mut instep = loaded(vms, &vec![only; vms.len()], 0);
    for task in 0..vms.len() {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    let (mut ran_at, mut longest) = (START, 0);
    for at in 1..6000 {
        let now = START + at * MS;
        (at % tick_ms == 0).then(|| tick(&mut instep, 1, now));
        run_due_work(&mut instep, now);
        if at % 50 == 0 && instep.current(0).is_some_and(|task| task > 0) {
            let task = instep.current(0).expect("one runs");
            instep.kernel().block(0, now);
            run_due_work(&mut instep, now);
            instep.kernel().wake(task, Waker::Other(0), now);
            run_due_work(&mut instep, now);
        }
        if instep.current(0) == Some(0) {
            ran_at = now;
        }
        longest = longest.max((now - ran_at) / MS);
    }
    assert_eq!(instep.ejected(), None);
    longest
}

/// Waits of a vCPU by the number of bits of their microseconds, and the longest in microseconds, as the scheduler counts them.
fn counted(instep: &mut Instep, slot: u32) -> (Vec<u32>, u32) {
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with, and only read.
    let count = |bits| unsafe { c::shim_wait_count(state, slot, bits) };
    // SAFETY: as above.
    ((0..32).map(count).collect(), unsafe { c::shim_longest_wait_us(state, slot) })
}

#[test]
fn waits_are_counted_per_vcpu_from_runnable_to_running() {
    let only: &[usize] = &[0];
    let mut instep = loaded(&[(1, 100), (1, 100)], &[only, only], 0);
    for task in 0..2 {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    let (mut since, mut waits, mut last) = ([Some(START); 2], [const { Vec::new() }; 2], None);
    for at in 0..1000 {
        let now = START + at * MS;
        (at > 0 && at % 4 == 0).then(|| tick(&mut instep, 1, now));
        run_due_work(&mut instep, now);
        let current = instep.current(0);
        if current != last {
            last.inspect(|task| since[*task] = Some(now));
            current
                .inspect(|task| waits[*task].extend(since[*task].take().map(|since| now - since)));
            last = current;
        }
    }
    for task in 0..2 {
        let mut expected = vec![0; 32];
        waits[task]
            .iter()
            .for_each(|ns| expected[(64 - (ns / 1000).leading_zeros()) as usize] += 1);
        let longest = (waits[task].iter().max().unwrap() / 1000) as u32;
        assert!(longest > 3000 && waits[task].len() > 50, "they take turns: {waits:?}");
        assert_eq!(counted(&mut instep, task as u32), (expected, longest), "task {task}");
    }
    // A sleep is no wait.
    let runs = instep.current(0).unwrap();
    let now = START + 1000 * MS;
    instep.kernel().block(0, now);
    run_due_work(&mut instep, now);
    let before = counted(&mut instep, runs as u32);
    run_due_work(&mut instep, now + 500 * MS);
    assert_eq!(counted(&mut instep, runs as u32), before);
}

#[test]
fn equal_vms_wait_for_100_ms_at_most_among_eight() {
    for tick in [1, 4] {
        let longest = longest_wait(&[(1, 100); 8], tick);
        assert!(longest <= 100, "{longest} ms with ticks of {tick} ms");
    }
}

#[test]
fn vm_of_the_least_weight_waits_a_bounded_time() {
    // A share is a 64th of a CPU at least, and a VM may owe the time of two gang slots of 6 ms.
    for (tick, bound) in [(1, 64 * 12), (4, 64 * 12)] {
        let vms: Vec<(usize, u32)> = (0..8).map(|vm| (1, if vm == 0 { 1 } else { 1000 })).collect();
        let longest = longest_wait(&vms, tick);
        assert!(longest <= bound, "{longest} ms with ticks of {tick} ms");
    }
}

#[test]
fn wait_grows_with_the_number_of_vms_only() {
    let vms: Vec<(usize, u32)> = (0..40).map(|_| (1, 100)).collect();
    let longest = longest_wait(&vms, 4);
    assert!(longest <= 100 * 40 / 8, "{longest} ms");
}

/// The longest that a host thread which computes waits for CPU 0, in ms: it is bound there beside a vCPU that never
/// sleeps and a kernel thread of that CPU that is woken every 20 ms, for a moment; two more fill other CPUs.
fn host_waits() -> u64 {
    let tasks = [(0, 0), (0, 0), (0, PF_KTHREAD), (1, 0), (2, 0)]
        .map(|(cpu, flags)| task_on(&[cpu], flags));
    let mut instep = fits(&cores(3), &tasks, &table(&[(1, 100)]), 0);
    [0, 1, 3, 4].iter().for_each(|task| instep.kernel().wake(*task, Waker::Other(0), START));
    run_due_work(&mut instep, START);
    let (mut ran_at, mut longest, mut sleeps) = (START, 0, true);
    for at in 1..8000 {
        let now = START + at * MS;
        if sleeps && at % 20 == 0 {
            instep.kernel().wake(2, Waker::Interrupt(0), now);
            sleeps = false;
        }
        run_due_work(&mut instep, now);
        if instep.current(0) == Some(2) {
            instep.kernel().block(0, now + MS / 50);
            sleeps = true;
        }
        run_due_work(&mut instep, now + MS / 2);
        (at % 4 == 0).then(|| tick(&mut instep, 3, now + MS / 2));
        if instep.current(0) == Some(1) {
            ran_at = now;
        }
        longest = longest.max((now - ran_at) / MS);
    }
    assert_eq!(instep.ejected(), None);
    longest
}

#[test]
fn bound_host_thread_runs_beside_kernel_threads() {
    let longest = host_waits();
    assert!(longest <= 100, "{longest} ms");
}

#[test]
fn idle_cpu_finds_a_thread_behind_many_bound_ones() {
    // Forty VMs' vCPUs wait for CPU 0, all but the last bound to it.
    let (only, any): (&[usize], &[usize]) = (&[0], &[1]);
    let mut cpus = vec![only; 41];
    cpus.push(any);
    let mut instep = loaded(&vec![(1, 100); 42], &cpus, 0);
    (0..42).for_each(|task| {
        instep.kernel().wake(task, Waker::Other(0), START + task as u64);
        run_due_work(&mut instep, START + task as u64);
    });
    assert_eq!(instep.current(1), Some(41));
    instep.kernel().set_affinity(40, &CpuMask::of([0, 1]), START + MS);
    run_due_work(&mut instep, START + MS);
    instep.kernel().block(1, START + 2 * MS);
    run_due_work(&mut instep, START + 2 * MS);
    assert_eq!(instep.current(1), Some(40));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn cpu_that_goes_idle_takes_what_waits() {
    // Four computing VMs on two CPUs; what runs on each CPU goes to sleep in turn.
    let mut instep = computing(2, &[(1, 100); 4], 0);
    for at in 1..3 {
        let now = START + at * MS;
        instep.kernel().block(at as usize % 2, now);
        run_due_work(&mut instep, now);
        assert!((0..2).all(|cpu| instep.current(cpu).is_some()), "after {at} ms");
    }
}

#[test]
fn siblings_beyond_the_cpus_share_evenly() {
    // Four computing vCPUs of one VM on two CPUs, and two of another.
    let mut instep = computing(2, &[(4, 100), (2, 100)], 0);
    let (mut ran, mut began, mut longest) = ([0u64; 6], [500; 6], 0);
    for at in 1..2500 {
        let now = START + at * MS;
        run_due_work(&mut instep, now);
        (at % 4 == 0).then(|| tick(&mut instep, 2, now));
        for cpu in (0..2).filter(|_| at > 500) {
            let task = instep.current(cpu).expect("nobody blocks");
            ran[task] += 1;
            longest = longest.max(at - began[task]);
            began[task] = at;
        }
    }
    assert_eq!(instep.ejected(), None);
    assert!(ran[..4].iter().all(|ms| (440..560).contains(ms)), "{ran:?}");
    assert!(ran[4..].iter().all(|ms| (900..1100).contains(ms)), "{ran:?}");
    assert!(longest <= 60, "a vCPU did not run for {longest} ms");
}

#[test]
fn three_siblings_on_two_cpus_have_equal_parts() {
    let mut instep = computing(2, &[(3, 100)], 0);
    let (mut ran, mut began, mut longest) = ([0u64; 3], [0; 3], 0);
    for at in 1..1000 {
        let now = START + at * MS;
        run_due_work(&mut instep, now);
        (at % 4 == 0).then(|| tick(&mut instep, 2, now));
        for cpu in 0..2 {
            let task = instep.current(cpu).expect("nobody blocks");
            ran[task] += 1;
            longest = longest.max(at - began[task]);
            began[task] = at;
        }
    }
    assert_eq!(instep.ejected(), None);
    assert!(longest <= 60, "a vCPU did not run for {longest} ms: {ran:?}");
    assert!(ran.iter().all(|ms| (630..700).contains(ms)), "{ran:?}");
}

/// All tasks compute for 4 s on so many CPUs; none waits for more than `most` milliseconds at a time.
fn none_waits_longer(most: u64, cpus: usize, tasks: &[TaskSetup], vms: &[(usize, u32)]) {
    let mut instep = fits(&cores(cpus), tasks, &table(vms), 0);
    wake_all(&mut instep, 0..tasks.len(), START);
    let (ran, longest) = run(&mut instep, cpus, tasks.len(), START, 4000);
    assert!(longest.iter().all(|ms| *ms <= most), "{longest:?} {ran:?}");
}

#[test]
fn pool_is_served_beside_bound_threads_that_are_all_overdue() {
    // Sixteen vCPUs are bound to each of two CPUs, so that each waits for longer than its share of the host lets it. A VM that may use both.
    let mut tasks: Vec<TaskSetup> = (0..32).map(|at| task_on(&[at % 2], 0)).collect();
    tasks.push(task_on(&[0, 1], 0));
    none_waits_longer(120, 16, &tasks, &[(1, 100); 33]);
}

#[test]
fn pool_is_served_beside_bound_threads_while_host_has_windows() {
    // Two vCPUs are bound to each of two CPUs. A gang may use both, as may a thread of the host that computes.
    let mut tasks: Vec<TaskSetup> = (0..4).map(|at| task_on(&[at % 2], 0)).collect();
    tasks.extend(vec![task_on(&[0, 1], 0); 3]);
    let vms = [(1, 100), (1, 100), (1, 100), (1, 100), (2, 100)];
    none_waits_longer(150, 2, &tasks, &vms);
}

#[test]
fn vcpu_on_its_seat_runs_beside_bound_threads_in_host_windows() {
    // Seven vCPUs of a VM are bound to one of two CPUs; a gang may use both, as may another VM and threads of the host that compute.
    let mut tasks = vec![task_on(&[1], 0); 7];
    tasks.extend(vec![task_on(&[0, 1], 0); 10]);
    let vms = [(7, 100), (2, 100), (3, 100), (3, 100)];
    none_waits_longer(150, 2, &tasks, &vms);
}

#[test]
fn bound_vcpu_that_wakes_up_waits_half_a_gang_slot_at_most() {
    // Two gangs compute on two CPUs, each vCPU bound to one; a vCPU that is bound, too, wants a quarter of a millisecond in ten.
    for host in [false, true] {
        let mut tasks: Vec<TaskSetup> = [0, 1, 0, 1, 0].map(|cpu| task_on(&[cpu], 0)).to_vec();
        tasks.push(task_on(&[0, 1], 0));
        let mut instep = fits(&cores(2), &tasks, &table(&[(2, 100), (2, 100), (1, 100)]), 0);
        wake_all(&mut instep, 0..4, START);
        wake_all(&mut instep, 5..5 + usize::from(host), START);
        let (mut woke, mut longest, mut ran) = (None, 0, [0; 6]);
        for step in 1..=20_000 {
            let now = START + step * MS / 4;
            if woke.is_none() && step > 4000 && step % 40 == 0 {
                wake_all(&mut instep, 4..5, now);
                woke = Some(step);
            }
            pass_quarter(&mut instep, 2, step, now);
            (0..2).filter_map(|cpu| instep.current(cpu)).for_each(|task| ran[task] += 1);
            if instep.current(0) == Some(4) {
                longest = longest.max((step - woke.take().expect("it woke up")) / 4);
                instep.kernel().block(0, now);
                run_due_work(&mut instep, now);
            }
        }
        assert_eq!(instep.ejected(), None);
        assert!(longest <= 3 && ran[4] > 390, "host {host}: {longest} ms, {ran:?}");
        // Equal gangs have equal parts of what it leaves.
        let gangs: [u64; 2] = [ran[0] + ran[1], ran[2] + ran[3]];
        assert!(gangs[0].abs_diff(gangs[1]) * 10 < gangs[0], "host {host}: {ran:?}");
    }
}

#[test]
fn thread_whose_cpus_change_again_and_again_waits_no_longer() {
    // It and 12 others of the host compute on three CPUs.
    for (weight, most) in [(1, 1050), (100, 100)] {
        let mut instep = fits(&cores(3), &vec![task_on(&[0, 1, 2], 0); 13], &[], 0);
        instep.kernel().set_weight(0, weight);
        wake_all(&mut instep, 0..13, START);
        let (mut last, mut longest) = (0, 0);
        for step in 1..20_000 {
            let now = START + step * MS / 4;
            pass_quarter(&mut instep, 3, step, now);
            if step % 320 == 0 {
                let allowed = CpuMask::of(0..2 + (step / 320 % 2) as usize);
                instep.kernel().set_affinity(0, &allowed, now);
                run_due_work(&mut instep, now);
            }
            if (0..3).any(|cpu| instep.current(cpu) == Some(0)) {
                last = step;
            }
            longest = longest.max((step - last) / 4);
        }
        assert_eq!(instep.ejected(), None);
        assert!(longest <= most, "weight {weight}: {longest} ms");
    }
}

/// Two threads of the host that wake each other up and sleep, 16 times in a millisecond, beside a VM that computes on both CPUs.
/// Milliseconds of CPU time that they had together in 2 s.
fn hand_over(waker: impl Fn(usize) -> Waker) -> (Instep, u64) {
    let tasks: Vec<TaskSetup> = (0..4).map(|_| task_on(&[0, 1], 0)).collect();
    let mut instep = fits(&cores(2), &tasks, &table(&[(2, 100)]), 0);
    wake_all(&mut instep, 0..3, START);
    let mut ran = 0;
    for step in 1..=32_000 {
        let now = START + step * MS / 16;
        run_due_work(&mut instep, now);
        for cpu in (0..2).filter(|cpu| (step + 32 * *cpu as u64).is_multiple_of(64)) {
            instep.kernel().tick(cpu, now);
            run_due_work(&mut instep, now);
        }
        let runs = |cpu: &usize| instep.current(*cpu).is_some_and(|task| task >= 2);
        let Some(cpu) = (0..2).find(runs) else { continue };
        ran += 1;
        let other = 5 - instep.current(cpu).expect("it runs");
        instep.kernel().wake(other, waker(cpu), now);
        instep.kernel().block(cpu, now);
        run_due_work(&mut instep, now);
    }
    assert_eq!(instep.ejected(), None);
    (instep, ran / 16)
}

#[test]
fn host_threads_that_block_often_have_their_share_beside_a_gang() {
    // One of them wants a CPU at any time, which is what they weigh.
    let (_, ran) = hand_over(Waker::Task);
    assert!(ran >= 800, "{ran} ms of 2000");
}

#[test]
fn thread_woken_by_one_that_is_about_to_sleep_takes_its_cpu() {
    let (mut instep, ran) = hand_over(Waker::Sleeper);
    assert!(ran >= 800, "{ran} ms of 2000");
    assert!(instep.counter(Counter::WakeSync) > 8_000, "{}", instep.counter(Counter::WakeSync));
}

#[test]
fn thread_woken_by_one_that_computes_does_not_wait_for_its_slice() {
    let tasks: Vec<TaskSetup> = (0..4).map(|_| task_on(&[0, 1], 0)).collect();
    let mut instep = fits(&cores(2), &tasks, &table(&[(2, 100)]), 0);
    wake_all(&mut instep, 0..3, START);
    run(&mut instep, 2, 3, START, 200);
    let (mut wakes, mut asleep) = (0, true);
    for step in 1..=8_000 {
        let now = START + 200 * MS + step * MS / 4;
        pass_quarter(&mut instep, 2, step, now);
        if let Some(cpu) = (0..2).find(|cpu| instep.current(*cpu) == Some(3)) {
            instep.kernel().block(cpu, now);
            run_due_work(&mut instep, now);
            asleep = true;
        }
        let computes = (0..2).find(|cpu| instep.current(*cpu) == Some(2));
        let Some(cpu) = computes.filter(|_| asleep && step % 32 == 0) else { continue };
        instep.kernel().wake(3, Waker::Sleeper(cpu), now);
        run_due_work(&mut instep, now);
        (wakes, asleep) = (wakes + 1, false);
    }
    assert_eq!(instep.ejected(), None);
    assert!(wakes > 50, "{wakes}");
    assert_eq!(instep.counter(Counter::WakeSync), 0);
}
