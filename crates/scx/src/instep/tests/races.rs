//! What two CPUs do at once, and words that they write side by side.

use super::counts::{next_generation, number};
use super::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// Whether a CPU idles beside a task that waits and may use it.
fn idles_beside_waiting(
    instep: &Instep,
    cpus: usize,
    allowed: &[Vec<usize>],
    awake: &[bool],
) -> bool {
    let running: Vec<Option<usize>> = (0..cpus).map(|cpu| instep.current(cpu)).collect();
    let waits = |task: usize| awake[task] && !running.contains(&Some(task));
    (0..cpus).any(|cpu| {
        let may = |task: usize| allowed[task].contains(&cpu);
        running[cpu].is_none() && (0..awake.len()).any(|task| waits(task) && may(task))
    })
}

#[test]
fn no_cpu_idles_after_the_thread_table_changed() {
    // A vCPU alone on a host of two cores, whose entry is out of date whenever its slice ends.
    let tasks = vec![TaskSetup { allowed: CpuMask::of(0..4), cpu: 0, flags: 0 }; 2];
    let mut instep = fits(&two_cores(), &tasks, &table(&[(2, 100)]), 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
    for at in 1..400 {
        let now = START + at * MS;
        next_generation(&mut instep);
        tick(&mut instep, 4, now);
        let running = (0..4).filter(|cpu| instep.current(*cpu).is_some()).count();
        assert_eq!(running, 2, "after {at} ms");
    }
    assert_eq!(instep.ejected(), None);
}

#[test]
fn vcpu_runs_on_when_another_claims_the_idle_core() {
    // Both vCPUs share a core, the other core is idle until somebody else claims it at the last moment.
    let tasks: Vec<TaskSetup> =
        (0..4).map(|cpu| TaskSetup { allowed: CpuMask::of(0..4), cpu, flags: 0 }).collect();
    let mut instep = fits(&two_cores(), &tasks, &table(&[(2, 100), (2, 100)]), 0);
    (0..4).for_each(|task| {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    });
    (2..4).for_each(|cpu| instep.kernel().block(cpu, START + MS));
    run_due_work(&mut instep, START + MS);
    instep.kernel().claims_between(2);
    for at in 1..8 {
        tick(&mut instep, 4, START + MS + at * MS);
        let running = (0..4).filter(|cpu| instep.current(*cpu).is_some()).count();
        assert_eq!(running, 2, "after {at} ms");
    }
    assert_eq!(instep.ejected(), None);
}

#[test]
fn siblings_woken_at_once_preempt_different_cpus() {
    // Four VMs of one vCPU compute on four CPUs. The vCPUs of another VM wake up at the same moment, all last on one CPU.
    let tasks: Vec<TaskSetup> = (0..8)
        .map(|at| TaskSetup {
            allowed: CpuMask::of(0..4),
            cpu: if at < 4 { at } else { 1 },
            flags: 0,
        })
        .collect();
    let vms = table(&[(1, 100), (1, 100), (1, 100), (1, 100), (4, 100)]);
    let mut instep = fits(&cores(4), &tasks, &vms, 0);
    for task in 0..4 {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    (1..200).for_each(|at| tick(&mut instep, 4, START + at * MS));
    let now = START + 200 * MS;
    for task in 4..8 {
        instep.kernel().wake(task, Waker::Other(0), now);
    }
    run_due_work(&mut instep, now);
    let mut running: Vec<Option<usize>> = (0..4).map(|cpu| instep.current(cpu)).collect();
    running.sort_unstable();
    assert_eq!(running, [4, 5, 6, 7].map(Some));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn thread_queued_while_a_cpu_goes_idle_runs_at_once() {
    // Two computing vCPUs on two CPUs; one of them sleeps after a third has found no idle CPU.
    for sleeps in 0..2 {
        let tasks = vec![task_on(&[0, 1], 0); 3];
        let mut instep = fits(&cores(2), &tasks, &table(&[(1, 100); 3]), WAKE);
        for task in 0..2 {
            instep.kernel().wake(task, Waker::Other(0), START);
            run_due_work(&mut instep, START);
        }
        let by = Waker::Other(1 - sleeps);
        instep.kernel().wake_while_blocking(2, by, sleeps, START + MS);
        run_due_work(&mut instep, START + MS);
        assert_eq!(instep.current(sleeps), Some(2), "CPU {sleeps}");
        assert_eq!(instep.ejected(), None);
    }
}

#[test]
fn seated_vcpu_queued_while_a_cpu_goes_idle_runs_at_once() {
    // Two gangs of two on two CPUs; all but one vCPU of the second sleep when it wakes up.
    for sleeps in 0..2 {
        let mut instep = computing(2, &[(2, 100), (2, 100)], 0);
        for at in 1..500 {
            let now = START + at * MS;
            run_due_work(&mut instep, now);
            (at % 4 == 0).then(|| tick(&mut instep, 2, now));
        }
        let now = START + 500 * MS;
        run_due_work(&mut instep, now);
        // One vCPU that waits goes to sleep when it runs, and then the others but one.
        let mut awake = [true; 4];
        let mut at = 500;
        while awake.iter().filter(|awake| **awake).count() > 2 && at < 700 {
            at += 1;
            let now = START + at * MS;
            run_due_work(&mut instep, now);
            let task = instep.current(0).expect("nobody else blocks");
            if task / 2 == 1 || !awake[2] {
                instep.kernel().block(0, now);
                awake[task] = false;
                run_due_work(&mut instep, now);
            }
        }
        let now = START + 701 * MS;
        run_due_work(&mut instep, now);
        let asleep = (0..4).find(|task| !awake[*task]).expect("one sleeps");
        if instep.current(sleeps).is_none() {
            continue;
        }
        instep.kernel().wake_while_blocking(asleep, Waker::Other(1 - sleeps), sleeps, now);
        run_due_work(&mut instep, now);
        let running = (0..2).filter(|cpu| instep.current(*cpu).is_some()).count();
        assert_eq!((running, instep.ejected()), (2, None), "CPU {sleeps}");
    }
}

/// A stream of numbers that is the same everywhere.
pub(super) struct Numbers(SplitMix64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() >> 32) as usize % bound
    }
}

#[test]
fn no_cpu_idles_beside_waiting_threads_whatever_happens() {
    for (seed, cpus) in (1..25).zip([2, 4, 8, 16, 8].into_iter().cycle()) {
        let mut numbers = Numbers::new(seed);
        let vms: Vec<(usize, u32)> = (0..5).map(|at| (1 + at % 4, 100)).collect();
        let count: usize = vms.iter().map(|vm| vm.0).sum::<usize>() + 3;
        let all: Vec<usize> = (0..cpus).collect();
        let mut allowed = vec![all.clone(); count];
        let mut tasks: Vec<TaskSetup> = allowed.iter().map(|cpus| task_on(cpus, 0)).collect();
        // Three threads of the host, the last a kernel thread of CPU 1.
        allowed[count - 1] = vec![1];
        tasks[count - 1] = task_on(&[1], PF_KTHREAD);
        let table = table(&vms);
        let mut instep = fits(&cores(cpus), &tasks, &table, 0);
        let mut awake = vec![false; count];
        for at in 1..6000u64 {
            let now = START + at * MS / 4;
            run_due_work(&mut instep, now);
            let task = numbers.below(count);
            let runs = (0..cpus).find(|cpu| instep.current(*cpu) == Some(task));
            match (numbers.below(40), runs) {
                (0..8, Some(cpu)) => {
                    instep.kernel().block(cpu, now);
                    awake[task] = false;
                }
                (0..20, None) if !awake[task] => {
                    instep.kernel().wake(task, Waker::Other(numbers.below(cpus)), now);
                    awake[task] = true;
                }
                (20, _) if task < count - 1 => {
                    let one = numbers.below(cpus);
                    allowed[task] = if numbers.below(2) == 0 { vec![one] } else { all.clone() };
                    let mask = CpuMask::of(allowed[task].iter().copied());
                    instep.kernel().set_affinity(task, &mask, now);
                }
                (21, _) => next_generation(&mut instep),
                (22, _) if task < count - 3 => {
                    // As if its VM's entry went and came again.
                    let (vm, slot) = ((1..).zip(&table))
                        .find(|(_, vm)| (vm.first..vm.first + vm.count).contains(&task))
                        .map(|(number, _)| (number, task as u32))
                        .expect("it is a vCPU");
                    let gone = numbers.below(2) == 0;
                    number(
                        &mut instep,
                        task,
                        if gone { 0 } else { vm },
                        if gone { u32::MAX } else { slot },
                    );
                    next_generation(&mut instep);
                }
                _ => {}
            }
            run_due_work(&mut instep, now);
            (at % 16 == 0).then(|| tick(&mut instep, cpus, now));
            assert_eq!(instep.ejected(), None, "seed {seed} after {at} steps");
            assert!(
                !idles_beside_waiting(&instep, cpus, &allowed, &awake),
                "seed {seed} after {at} steps: {:?}",
                (0..cpus).map(|cpu| instep.current(cpu)).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn settings_share_no_cache_line_with_words_that_cpus_write() {
    let line = |range: &std::ops::Range<usize>| range.start / 64..range.end.div_ceil(64);
    let ranges = |kind: u32| {
        let range = move |at| (c::shim_words(kind, at, 0), c::shim_words(kind, at, 1));
        let some = (0..).map(range).take_while(|range| range.1 > range.0);
        some.map(|(from, to)| from..to).collect::<Vec<_>>()
    };
    let (read, written) = (ranges(0), ranges(1));
    assert!(read.len() >= 4 && written.len() >= 6, "{read:?} {written:?}");
    for one in &read {
        for other in &written {
            let (a, b) = (line(one), line(other));
            assert!(a.end <= b.start || b.end <= a.start, "{one:?} and {other:?}");
        }
    }
}
