//! Which CPUs gangs have, and that they have them at the same time.

use super::masks::{run, wake_all};
use super::*;

/// The gang sets of the first domain, as lanes.
fn sets(instep: &mut Instep, vms: usize) -> Vec<u64> {
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with, and only read.
    (1..=vms).map(|vm| unsafe { c::shim_vm_set(state, vm as u32) }).collect()
}

/// VMs of 2, 4 and 8 vCPUs that fill so many CPUs twice.
fn mixed(cpus: usize) -> Vec<(usize, u32)> {
    let sizes = [2, 4, 8, 2];
    let mut vms = Vec::new();
    let mut left = 2 * cpus;
    for size in sizes.into_iter().cycle() {
        let size = size.min(left);
        vms.push((size, 100));
        left -= size;
        if left == 0 {
            return vms;
        }
    }
    vms
}

/// One step of a millisecond, at whose end all CPUs tick if it is the fourth.
fn step(instep: &mut Instep, cpus: usize, at: u64) -> u64 {
    let now = START + at * MS;
    run_due_work(instep, now);
    (at.is_multiple_of(4)).then(|| tick(instep, cpus, now));
    now
}

#[test]
fn gang_sets_coincide_nest_or_are_disjoint() {
    for cpus in [8, 16, 32] {
        let vms = mixed(cpus);
        let mut instep = computing(cpus, &vms, 0);
        let mut crossed = 0;
        for at in 1..1500 {
            step(&mut instep, cpus, at);
            let sets = sets(&mut instep, vms.len());
            let crosses = |a: u64, b: u64| a & b != 0 && a & !b != 0 && b & !a != 0;
            let pairs = sets.iter().enumerate();
            let any = pairs.clone().any(|(at, a)| sets[..at].iter().any(|b| crosses(*a, *b)));
            // Until all have formed their gangs, and sets have found their places.
            crossed += u32::from(at > 500 && any);
            if at > 500 {
                let sizes = sets.iter().map(|set| set.count_ones() as usize);
                assert!(sizes.eq(vms.iter().map(|vm| vm.0)), "{cpus} CPUs: {sets:x?}");
            }
        }
        assert_eq!((instep.ejected(), crossed), (None, 0), "{cpus} CPUs");
    }
}

#[test]
fn vcpus_of_a_gang_run_each_on_its_own_cpu() {
    for cpus in [8, 16, 32] {
        // Two gangs for each set of CPUs: no holes, so that each vCPU runs in its own slot only.
        let vms = vec![(4, 100); cpus / 2];
        let mut instep = computing(cpus, &vms, 0);
        let mut places = vec![std::collections::BTreeSet::new(); 4 * vms.len()];
        let (mut torn, mut whole) = (0, 0);
        for at in 1..1500 {
            step(&mut instep, cpus, at);
            if at <= 500 {
                continue;
            }
            let mut running = vec![0; vms.len()];
            for cpu in 0..cpus {
                let task = instep.current(cpu).expect("nobody blocks");
                places[task].insert(cpu);
                running[task / 4] += 1;
            }
            torn += running.iter().filter(|count| (1..4).contains(*count)).count();
            whole += running.iter().filter(|count| **count == 4).count();
        }
        assert_eq!(instep.ejected(), None);
        assert!(torn * 50 <= whole, "{cpus} CPUs: {torn} torn, {whole} whole");
        assert!(places.iter().all(|cpus| cpus.len() == 1), "{cpus} CPUs: {places:?}");
    }
}

#[test]
fn gang_set_lies_in_one_last_level_cache() {
    // Caches of 8 CPUs, and of 12 for sets whose size divides that; VMs that fill them twice.
    for (cache, sizes) in [(8, vec![8, 4, 2, 8, 4, 6]), (12, vec![4, 2, 4, 2, 4, 4, 4])] {
        let cpus = 2 * cache;
        let machine = cores(cpus);
        let mut lanes = lanes(&machine);
        lanes[cache].first_of_cache = true;
        let task =
            |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
        let count: usize = sizes.iter().sum::<usize>() * 2;
        let tasks: Vec<TaskSetup> = (0..count).map(task).collect();
        let vms: Vec<(usize, u32)> = sizes.iter().chain(&sizes).map(|size| (*size, 100)).collect();
        let (settings, table) = (Settings::default(), table(&vms));
        let instep = Instep::new(machine, &lanes, &tasks, &table, &settings, 1, Release::V7_2);
        let mut instep = instep.expect("it fits");
        (0..count).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
        for at in 1..1500 {
            step(&mut instep, cpus, at);
        }
        let first = (1u64 << cache) - 1;
        let sets = sets(&mut instep, vms.len());
        let both = sets.iter().filter(|set| **set & first != 0 && **set & !first != 0);
        assert_eq!((instep.ejected(), both.count()), (None, 0), "{sets:x?}");
    }
}

#[test]
fn two_gangs_on_one_set_take_slots_in_turn() {
    let mut instep = computing(8, &[(8, 100), (8, 100)], 0);
    let (mut ran, mut since, mut longest) = ([0u64; 2], [0u64; 2], 0);
    let (mut changes, mut before) = (0, 0);
    for at in 1..1500 {
        step(&mut instep, 8, at);
        if at <= 500 {
            since = [at; 2];
            continue;
        }
        let first = instep.current(0).expect("busy") / 8;
        changes += u64::from(first != before);
        before = first;
        for vm in 0..2 {
            let count = (0..8).filter(|cpu| instep.current(*cpu).expect("busy") / 8 == vm).count();
            ran[vm] += count as u64;
            longest = longest.max(at - since[vm]);
            if count == 8 {
                since[vm] = at;
            }
        }
    }
    assert_eq!(instep.ejected(), None);
    assert!(ran[0].abs_diff(ran[1]) * 20 < ran[0], "{ran:?}");
    assert!(longest <= 14, "{longest} ms without all eight CPUs");
    // Two slots of 6 ms each time.
    assert!(changes.abs_diff(1000 / 12) < 10, "{changes} changes in a second");
}

#[test]
fn pair_that_misses_slots_waits_in_the_pool_if_entitled_to_two() {
    // Beside two gangs of eight on eight CPUs one pair is entitled to two CPUs, and each of six to one.
    for (pairs, ends) in [(1, 1), (6, 0)] {
        let mut vms = vec![(8, 100), (8, 100)];
        vms.extend(vec![(2, 100); pairs]);
        let mut instep = computing(8, &vms, 0);
        for at in 1..1500 {
            step(&mut instep, 8, at);
        }
        let counts = [Counter::GangOn, Counter::GangOff].map(|what| instep.counter(what));
        assert_eq!((instep.ejected(), counts), (None, [pairs as u64 + 2, ends]), "{pairs} pairs");
    }
}

#[test]
fn vcpu_that_blocks_stays_outside_of_its_gang() {
    // Of four vCPUs the last sleeps for 1 ms of every two; another VM computes on all four CPUs.
    let mut instep = computing(4, &[(4, 100), (4, 100)], 0);
    let mut sleeps = false;
    for at in 1..1000 {
        let now = step(&mut instep, 4, at);
        if std::mem::take(&mut sleeps) {
            instep.kernel().wake(3, Waker::Interrupt(0), now);
        } else if let Some(cpu) = (0..4).find(|cpu| instep.current(*cpu) == Some(3)) {
            instep.kernel().block(cpu, now);
            sleeps = true;
        }
        run_due_work(&mut instep, now);
    }
    assert_eq!(instep.ejected(), None);
    let sizes: Vec<u32> = sets(&mut instep, 2).iter().map(|set| set.count_ones()).collect();
    assert_eq!(sizes, [3, 4]);
}

#[test]
fn vcpu_that_sleeps_for_long_leaves_its_gang_and_its_cpu() {
    // Five vCPUs and four on eight CPUs: side by side only once the fifth sleeps.
    let mut instep = computing(8, &[(5, 100), (4, 100)], 0);
    let mut sleeps = false;
    for at in 1..1500 {
        let now = step(&mut instep, 8, at);
        if let Some(cpu) = (0..8).find(|cpu| instep.current(*cpu) == Some(4))
            && at > 500
            && !std::mem::replace(&mut sleeps, true)
        {
            instep.kernel().block(cpu, now);
            run_due_work(&mut instep, now);
        }
    }
    let mut size = |vm: usize| sets(&mut instep, 2)[vm].count_ones();
    assert_eq!((size(0), size(1)), (4, 4));
    let state = sets(&mut instep, 2);
    assert_eq!((instep.ejected(), state[0] & state[1]), (None, 0));
}

#[test]
fn gangs_of_half_a_host_have_equal_parts_of_it() {
    // A single vCPU, four, and four gangs of 16 that compute: three of these cannot share one half for ever.
    let vms = [(1, 100), (4, 100), (16, 100), (16, 100), (16, 100), (16, 100)];
    let mut instep = computing(32, &vms, 0);
    let first: Vec<usize> =
        vms.iter().scan(0, |at, vm| Some(std::mem::replace(at, *at + vm.0))).collect();
    let mut ran = [0u64; 6];
    for at in 1..12_000 {
        step(&mut instep, 32, at);
        for task in (0..32).filter_map(|cpu| instep.current(cpu)).filter(|_| at > 2000) {
            ran[first.iter().rposition(|first| *first <= task).unwrap()] += 1;
        }
    }
    let (least, most) = (ran[2..].iter().min().unwrap(), ran[2..].iter().max().unwrap());
    assert_eq!(instep.ejected(), None);
    assert!(least * 5 >= most * 4, "{ran:?}");
}

#[test]
fn equal_gangs_have_equal_parts_of_holes() {
    // A VM that always forms a gang leaves most of its slots to others, as its vCPUs run for a moment and sleep; the others compute.
    for (cpus, gangs) in [(2, 4), (4, 3), (4, 5)] {
        let vcpus = cpus * (gangs + 1);
        let task = TaskSetup { allowed: CpuMask::of(0..cpus), cpu: 0, flags: 0 };
        let mut vms = table(&vec![(cpus, 100); gangs + 1]);
        vms[gangs].own.cosched = Cosched::Relaxed;
        let mut instep = fits(&cores(cpus), &vec![task; vcpus], &vms, 0);
        let (mut wakes, mut ran) = (vec![Some(1); vcpus], vec![0; gangs + 1]);
        for step in 1..=20_000 {
            let now = START + step * MS / 4;
            for (task, at) in wakes.iter_mut().enumerate().filter(|(_, at)| **at == Some(step)) {
                *at = None;
                instep.kernel().wake(task, Waker::Other(0), now);
                run_due_work(&mut instep, now);
            }
            pass_quarter(&mut instep, cpus, step, now);
            for cpu in 0..cpus {
                let Some(task) = instep.current(cpu) else { continue };
                ran[task / cpus] += u64::from(step > 4000);
                if task / cpus == gangs {
                    instep.kernel().block(cpu, now);
                    run_due_work(&mut instep, now);
                    wakes[task] = Some(step + 20 + task as u64 * 7 % 30);
                }
            }
        }
        assert_eq!(instep.ejected(), None);
        let (least, most) =
            (ran[..gangs].iter().min().unwrap(), ran[..gangs].iter().max().unwrap());
        assert!(most * 10 < least * 11, "{cpus} CPUs: {ran:?}");
    }
}

#[test]
fn gang_and_bound_vcpus_have_equal_parts() {
    // VMs of a vCPU that is bound to one of two CPUs, and a gang that may use both, with a thread of the host that computes and without.
    for (many, host) in [(2, 0), (2, 1), (1, 1), (3, 1)] {
        let mut tasks: Vec<TaskSetup> = (0..2 * many).map(|at| task_on(&[at % 2], 0)).collect();
        tasks.extend(vec![task_on(&[0, 1], 0); 2 + host]);
        let mut vms = vec![(1, 100); 2 * many];
        vms.push((2, 100));
        let mut instep = fits(&cores(2), &tasks, &table(&vms), 0);
        wake_all(&mut instep, 0..tasks.len(), START);
        run(&mut instep, 2, tasks.len(), START, 1000);
        let (ran, longest) = run(&mut instep, 2, tasks.len(), START + 1000 * MS, 3000);
        let gang = ran[2 * many] + ran[2 * many + 1];
        let part = 24_000 / (2 * many + 1 + host) as u64;
        let mut parts = ran[..2 * many].iter().chain([&gang]).chain(&ran[2 * many + 2..]);
        assert!(parts.all(|ran| ran.abs_diff(part) * 10 < part), "{many}, {host}: {ran:?}");
        assert!(longest.iter().all(|ms| *ms <= 60), "{many}, {host}: {longest:?}");
    }
}

#[test]
fn gangs_that_fit_side_by_side_have_cpus_of_their_own() {
    // Two of six vCPUs on twelve CPUs; four of three on six: two sets of CPUs, of which each is that of two gangs.
    for (cpus, gangs, vcpus) in [(12, 2, 6), (6, 4, 3)] {
        let mut instep = computing(cpus, &vec![(vcpus, 100); gangs], 0);
        let (ran, _) = run(&mut instep, cpus, gangs * vcpus, START, 4000);
        let sets = sets(&mut instep, gangs);
        let low = (1 << vcpus) - 1;
        let of_low = sets.iter().filter(|set| **set == low).count();
        assert_eq!(of_low, gangs / 2, "{sets:x?}");
        assert!(sets.iter().all(|set| [low, low << vcpus].contains(set)), "{sets:x?}");
        let part = (16_000 * cpus / gangs / vcpus) as u64;
        assert!(ran.iter().all(|ran| ran.abs_diff(part) * 10 < part), "{ran:?}");
    }
}
