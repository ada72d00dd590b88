//! vCPUs whose CPUs change while they run, wait and sleep.

use super::counts::next_generation;
use super::masks::{run, wake_all};
use super::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// Domains of so many CPUs each.
fn domains(count: usize, each: usize) -> Machine {
    let all = count * each;
    Machine {
        core: (0..all).map(|cpu| vec![cpu]).collect(),
        node: (0..all).map(|cpu| (cpu / each) as i32).collect(),
    }
}

/// Any CPUs: all, one, those of a domain, or some of all.
fn any_cpus(draw: &mut impl FnMut(usize) -> usize, count: usize, each: usize) -> Vec<usize> {
    let all = count * each;
    match draw(5) {
        0 => (0..all).collect(),
        1 => vec![draw(all)],
        2 => {
            let domain = draw(count);
            (domain * each..(domain + 1) * each).collect()
        }
        _ => {
            let some: Vec<usize> = (0..all).filter(|_| draw(2) == 0).collect();
            if some.is_empty() { vec![0] } else { some }
        }
    }
}

/// A host of some VMs and domains, on which for 5 of 6 seconds the CPUs of vCPUs change at random; the longest wait of each, ms.
fn longest_waits(seed: usize) -> Vec<u64> {
    let mut rng = SplitMix64::seed_from_u64(seed as u64);
    let mut draw = move |n: usize| (rng.next_u64() % n as u64) as usize;
    let (count, each) = (1 + draw(3), 2 + draw(3));
    let vms = 1 + draw(4);
    let sizes: Vec<(usize, u32)> = (0..vms).map(|_| (1 + draw(5), 100)).collect();
    let tasks: usize = sizes.iter().map(|size| size.0).sum();
    let mut vms = table(&sizes);
    for vm in &mut vms {
        let any = [Cosched::Auto, Cosched::Auto, Cosched::Relaxed, Cosched::Never];
        vm.own.cosched = any[draw(4)];
    }
    let setups: Vec<TaskSetup> =
        (0..tasks).map(|_| task_on(&any_cpus(&mut draw, count, each), 0)).collect();
    let mut instep = fits(&domains(count, each), &setups, &vms, 0);
    let (mut awake, mut last, mut longest) = (vec![false; tasks], vec![0; tasks], vec![0; tasks]);
    let every = if draw(2) == 0 { 1200 } else { 20 };
    for step in 1..=24_000 {
        let now = START + step * MS / 4;
        for task in 0..tasks {
            // In some cases one never runs.
            let wakes = !awake[task] && draw(if step < 10 { 3 } else { 200 }) == 0;
            if wakes && !(task == 1 && seed.is_multiple_of(3)) {
                wake_all(&mut instep, task..task + 1, now);
                awake[task] = true;
                last[task] = step;
            }
        }
        if seed.is_multiple_of(5) && draw(800) == 0 {
            next_generation(&mut instep);
        }
        if draw(every) == 0 && step < 20_000 {
            let task = draw(tasks);
            let cpus = any_cpus(&mut draw, count, each);
            instep.kernel().set_affinity(task, &CpuMask::of(cpus), now);
            run_due_work(&mut instep, now);
        }
        pass_quarter(&mut instep, count * each, step, now);
        for cpu in 0..count * each {
            let Some(task) = instep.current(cpu) else { continue };
            last[task] = step;
            if task % 4 == 3 && draw(300) == 0 {
                instep.kernel().block(cpu, now);
                run_due_work(&mut instep, now);
                awake[task] = false;
            }
        }
        for task in (0..tasks).filter(|task| awake[*task]) {
            longest[task] = longest[task].max((step - last[task]) / 4);
        }
    }
    assert_eq!(instep.ejected(), None);
    longest
}

#[test]
fn vcpus_whose_cpus_change_at_random_never_wait_for_long() {
    for seed in [42, 179, 2169, 4587, 2163, 2469, 3652, 563, 8770] {
        let longest = longest_waits(seed);
        assert!(longest.iter().all(|ms| *ms <= 300), "seed {seed}: {longest:?}");
    }
}

#[test]
fn vm_in_several_pools_follows_a_vcpu_to_another_domain() {
    // A VM that forms no gang has two vCPUs on each of two nodes; one of them goes to a third. On each node four vCPUs compute.
    let on = |node: usize| [4 * node, 4 * node + 1, 4 * node + 2, 4 * node + 3];
    let mut tasks: Vec<TaskSetup> = [0, 0, 1, 1].map(|node| task_on(&on(node), 0)).to_vec();
    (0..3).for_each(|node| tasks.extend(vec![task_on(&on(node), 0); 4]));
    let mut vms = table(&[(4, 100); 4]);
    vms[0].own.cosched = Cosched::Never;
    let mut instep = fits(&domains(3, 4), &tasks, &vms, 0);
    wake_all(&mut instep, 0..16, START);
    run(&mut instep, 12, 16, START, 2000);
    instep.kernel().set_affinity(3, &CpuMask::of(on(2)), START + 2000 * MS);
    run(&mut instep, 12, 16, START + 2000 * MS, 1000);
    let (ran, longest) = run(&mut instep, 12, 16, START + 3000 * MS, 4000);
    // Quarters of ms: beside a gang that needs all CPUs it has about half of one.
    assert!(ran[3] > 6500, "{ran:?} {longest:?}");
}

#[test]
fn pinned_gangs_run_at_once_though_one_sleeps_now_and_then() {
    // Two VMs of a vCPU on each of four CPUs; the second one computes for 100 ms and sleeps for 20.
    let tasks: Vec<TaskSetup> = (0..8).map(|at| task_on(&[at % 4], 0)).collect();
    let mut vms = table(&[(4, 100), (4, 100)]);
    vms.iter_mut().for_each(|vm| vm.own.cosched = Cosched::Relaxed);
    let mut instep = fits(&cores(4), &tasks, &vms, 0);
    wake_all(&mut instep, 0..4, START);
    let (mut left, mut until, mut whole) = ([0; 4], 1, [0; 2]);
    for step in 1..=16_000 {
        let now = START + step * MS / 4;
        if left == [0; 4] && step >= until {
            wake_all(&mut instep, 4..8, now);
            left = [400; 4];
        }
        pass_quarter(&mut instep, 4, step, now);
        let running: Vec<Option<usize>> = (0..4).map(|cpu| instep.current(cpu)).collect();
        for (vm, quarters) in whole.iter_mut().enumerate() {
            let own = running.iter().filter(|task| task.is_some_and(|task| task / 4 == vm));
            *quarters += usize::from(own.count() == 4);
        }
        for cpu in (0..4).filter(|cpu| running[*cpu] == Some(cpu + 4)) {
            left[cpu] -= 1;
            if left[cpu] == 0 {
                instep.kernel().block(cpu, now);
                run_due_work(&mut instep, now);
                until = step + 80;
            }
        }
    }
    assert_eq!(instep.ejected(), None);
    assert!(whole.iter().all(|quarters| *quarters > 7000), "{whole:?} of 16,000");
}

#[test]
fn vm_whose_thread_changes_its_number_while_it_runs_is_not_charged_for_idle_time() {
    // execve by a thread that is not its process's first gives it the number of the first. Then it sleeps, and the CPU idles.
    let only: &[usize] = &[0];
    let mut instep = loaded(&[(1, 100), (1, 100)], &[only, only], 0);
    wake_all(&mut instep, 0..2, START);
    run(&mut instep, 1, 2, START, 1000);
    for _ in 0..2 {
        let task = instep.current(0).expect("one runs");
        let pid = &instep.kernel().task(task).pid;
        pid.set(pid.get() + 1000);
        instep.kernel().block(0, START + 1000 * MS);
        run_due_work(&mut instep, START + 1000 * MS);
    }
    wake_all(&mut instep, 0..2, START + 5000 * MS);
    let (ran, _) = run(&mut instep, 1, 2, START + 5000 * MS, 200);
    assert!(ran[0].abs_diff(400) < 40, "{ran:?} of 800");
}
