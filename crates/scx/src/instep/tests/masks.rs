//! Threads that may use some CPUs only, as management pins them.

use super::counts::{next_generation, number};
use super::*;

/// Two nodes of so many CPUs each.
fn nodes(each: usize) -> Machine {
    let node = |cpu: usize| i32::from(cpu >= each);
    Machine {
        core: (0..2 * each).map(|cpu| vec![cpu]).collect(),
        node: (0..2 * each).map(node).collect(),
    }
}

/// So many milliseconds from `from` on, in steps of a quarter; CPU time of each in quarters of one, and its longest wait.
pub(super) fn run(
    instep: &mut Instep,
    cpus: usize,
    tasks: usize,
    from: u64,
    ms: u64,
) -> (Vec<u64>, Vec<u64>) {
    let (mut ran, mut last, mut longest) = (vec![0; tasks], vec![0; tasks], vec![0; tasks]);
    for step in 1..=ms * 4 {
        let now = from + step * MS / 4;
        pass_quarter(instep, cpus, step, now);
        for task in (0..cpus).filter_map(|cpu| instep.current(cpu)) {
            ran[task] += 1;
            last[task] = step;
        }
        for task in 0..tasks {
            longest[task] = longest[task].max((step - last[task]) / 4);
        }
    }
    assert_eq!(instep.ejected(), None);
    (ran, longest)
}

pub(super) fn wake_all(instep: &mut Instep, tasks: std::ops::Range<usize>, now: u64) {
    for task in tasks {
        instep.kernel().wake(task, Waker::Other(0), now);
        run_due_work(instep, now);
    }
}

#[test]
fn helper_of_a_vm_runs_on_the_cpus_that_it_may_use() {
    // A VM on node 0, its emulator thread on node 1, where another VM computes.
    let mut tasks = vec![task_on(&[0, 1], 0), task_on(&[2, 3], 0)];
    tasks.extend(vec![task_on(&[2, 3], 0); 4]);
    let vms = table(&[(2, 100), (4, 100)]);
    let mut instep = fits(&nodes(2), &tasks, &vms, 0);
    number(&mut instep, 1, 1, u32::MAX);
    next_generation(&mut instep);
    wake_all(&mut instep, 0..1, START);
    wake_all(&mut instep, 2..6, START);
    run(&mut instep, 4, 6, START, 500);
    wake_all(&mut instep, 1..2, START + 500 * MS);
    let (ran, longest) = run(&mut instep, 4, 6, START + 500 * MS, 2000);
    assert!(longest[1] <= 100, "{ran:?} {longest:?}");
}

#[test]
fn vcpu_waits_where_it_may_run_before_it_has_run() {
    // Two VMs compute on node 1. A third one, on node 0, has a vCPU there.
    let mut tasks = vec![task_on(&[2, 3], 0); 4];
    tasks.extend([task_on(&[0, 1], 0), task_on(&[2, 3], 0)]);
    let mut instep = fits(&nodes(2), &tasks, &table(&[(2, 100), (2, 100), (2, 100)]), 0);
    wake_all(&mut instep, 0..5, START);
    run(&mut instep, 4, 6, START, 100);
    for round in 1..10 {
        let now = START + round * 1000 * MS;
        wake_all(&mut instep, 5..6, now);
        let (ran, longest) = run(&mut instep, 4, 6, now, 500);
        assert!(ran[5] > 0 && longest[5] <= 100, "{ran:?} {longest:?}");
        // It sleeps while the table of threads changes.
        let mut now = now + 501 * MS;
        while !(2..4).any(|cpu| instep.current(cpu) == Some(5)) {
            now += MS;
            run_due_work(&mut instep, now);
            tick(&mut instep, 4, now);
        }
        let cpu = (2..4).find(|cpu| instep.current(*cpu) == Some(5)).expect("it runs");
        instep.kernel().block(cpu, now);
        run_due_work(&mut instep, now);
        next_generation(&mut instep);
    }
}

/// Two gangs of three of which each may use the first four of eight CPUs only, and eight threads of the host for the others.
fn gangs_on_half() -> Instep {
    let mut tasks = vec![task_on(&[0, 1, 2, 3], 0); 6];
    tasks.extend(vec![task_on(&[4, 5, 6, 7], 0); 8]);
    let mut instep = fits(&cores(8), &tasks, &table(&[(3, 100), (3, 100)]), 0);
    wake_all(&mut instep, 0..14, START);
    run(&mut instep, 8, 14, START, 1000);
    assert!(instep.counter(Counter::GangOn) == 2);
    instep
}

#[test]
fn vcpu_that_loses_its_seat_while_waiting_runs_where_allowed() {
    for later in 0..50 {
        let mut instep = gangs_on_half();
        run(&mut instep, 8, 14, START + 1000 * MS, later + 1);
        for (vm, first) in [(1, 0), (2, 3)] {
            // SAFETY: it is the state that this scheduler was loaded with.
            unsafe {
                let state = instep.kernel().globals();
                c::shim_set_vm(state, vm, 100, 24 * MS, Cosched::Never as u32, 0, first, 3);
            }
        }
        let (ran, longest) = run(&mut instep, 8, 14, START + (1001 + later) * MS, 1000);
        assert!(instep.counter(Counter::GangOff) == 2);
        assert!(longest.iter().all(|ms| *ms <= 200), "{later} {ran:?} {longest:?}");
    }
}

#[test]
fn vcpu_waiting_on_a_seat_while_its_vm_ends_runs_where_allowed() {
    for later in 0..12 {
        let mut instep = gangs_on_half();
        run(&mut instep, 8, 14, START + 1000 * MS, later + 1);
        for task in 0..6 {
            number(&mut instep, task, 0, u32::MAX);
        }
        // SAFETY: it is the state that this scheduler was loaded with.
        (1..3).for_each(|vm| unsafe { c::shim_begin_vm(instep.kernel().globals(), vm) });
        next_generation(&mut instep);
        let (ran, longest) = run(&mut instep, 8, 14, START + (1001 + later) * MS, 3000);
        assert!(longest.iter().all(|ms| *ms <= 200), "{ran:?} {longest:?}");
    }
}

#[test]
fn threads_that_may_use_some_cpus_only_leave_the_others_shared() {
    // VMs that may use two of four CPUs, and three that may use all: these have 2/3 of a CPU each.
    for many in [4, 12, 40] {
        let mut tasks = vec![task_on(&[0, 1], 0); many];
        tasks.extend(vec![task_on(&[0, 1, 2, 3], 0); 3]);
        let mut instep = fits(&cores(4), &tasks, &table(&vec![(1, 100); many + 3]), 0);
        wake_all(&mut instep, 0..many + 3, START);
        run(&mut instep, 4, many + 3, START, 2000);
        let (ran, longest) = run(&mut instep, 4, many + 3, START + 2000 * MS, 3000);
        assert!(ran[many..].iter().all(|ran| (7500..8500).contains(ran)), "{ran:?}");
        assert!(longest[many..].iter().all(|ms| *ms <= 12), "{longest:?}");
    }
}

#[test]
fn vms_on_isolated_cpus_share_them() {
    // Two CPUs, and four that are isolated.
    let machine =
        Machine { core: (0..6).map(|cpu| vec![cpu]).collect(), node: vec![0, 0, 1, 1, 1, 1] };
    for vcpus in [4, 8] {
        let mut tasks = vec![task_on(&[2, 3, 4, 5], 0); 2 * vcpus];
        tasks.extend(vec![task_on(&[0, 1], 0); 4]);
        let lanes = lanes(&machine);
        let settings = Settings::default();
        let vms = table(&[(vcpus, 100), (vcpus, 100), (2, 100)]);
        let mut instep =
            Instep::prepare(machine.clone(), &lanes, &tasks, &vms, &settings, 1, Release::V7_2)
                .expect("it fits");
        // SAFETY: it is the state that this scheduler is loaded with.
        unsafe { c::shim_isolate(instep.kernel().globals(), 1) };
        instep.load().expect("it fits");
        let n = 2 * vcpus + 4;
        wake_all(&mut instep, 0..n, START);
        run(&mut instep, 6, n, START, 1000);
        let (ran, longest) = run(&mut instep, 6, n, START + 1000 * MS, 4000);
        let part = 32_000 / vcpus as u64;
        assert!(ran[..2 * vcpus].iter().all(|ran| ran.abs_diff(part) < 100), "{part}: {ran:?}");
        assert!(longest.iter().all(|ms| *ms <= 16), "{longest:?}");
    }
}

#[test]
fn many_threads_of_one_account_do_not_end_the_scheduler() {
    // They are entitled to 1/15 of a CPU, so that a turn of each takes 30 s; the watchdog looks after 20.
    let threads = 500;
    let tasks = vec![task_on(&[0, 1], 0); 4 + threads];
    let mut instep = fits(&cores(2), &tasks, &table(&[(2, 1450), (2, 1450)]), 0);
    wake_all(&mut instep, 0..4 + threads, START);
    // A thread that is new runs until the clock ticks before those that have run.
    run(&mut instep, 2, 4 + threads, START, 10_000);
    let (ran, longest) = run(&mut instep, 2, 4 + threads, START + 10_000 * MS, 20_000);
    let vms: u64 = ran[..4].iter().sum();
    assert!(vms >= 160_000 * 29 / 30 * 85 / 100, "{vms} quarters of ms of 154,666");
    assert!(longest[..4].iter().all(|ms| *ms < 60), "{:?}", &longest[..4]);
}

#[test]
fn host_has_its_share_beside_vms_of_much_weight() {
    // Each run of a thread until the clock ticks costs an account that is entitled to so little 256 ms of virtual time.
    let threads = 300;
    let tasks = vec![task_on(&[0, 1], 0); 4 + threads];
    let mut instep = fits(&cores(2), &tasks, &table(&[(2, 10_000), (2, 10_000)]), 0);
    wake_all(&mut instep, 0..4 + threads, START);
    run(&mut instep, 2, 4 + threads, START, 2000);
    let (ran, _) = run(&mut instep, 2, 4 + threads, START + 2000 * MS, 5500);
    let host: u64 = ran[4..].iter().sum();
    assert!(host > 44_000 / 201, "{host} quarters of ms, VMs {:?}", &ran[..4]);
    assert!(ran[0].abs_diff(ran[2]) < 500, "{:?}", &ran[..4]);
}

/// CPU time of these tasks together.
fn sum(ran: &[u64], of: std::ops::Range<usize>) -> u64 {
    ran[of].iter().sum()
}

#[test]
fn vm_pinned_to_two_nodes_has_its_share_on_each() {
    // The first VM has two vCPUs on each node, another four on the first, a third four on the second.
    let (first, second) = ([0, 1, 2, 3], [4, 5, 6, 7]);
    let mut tasks = vec![task_on(&first, 0); 2];
    tasks.extend(vec![task_on(&second, 0); 2]);
    tasks.extend(vec![task_on(&first, 0); 4]);
    tasks.extend(vec![task_on(&second, 0); 4]);
    for without in [0, GANG] {
        let vms = table(&[(4, 100), (4, 100), (4, 100)]);
        let mut instep = fits(&nodes(4), &tasks, &vms, without);
        wake_all(&mut instep, 0..12, START);
        run(&mut instep, 8, 12, START, 2000);
        let (ran, longest) = run(&mut instep, 8, 12, START + 2000 * MS, 4000);
        // Quarters of milliseconds: each VM is entitled to 8/3 CPUs, the first one to half of them on each node. Beside gangs that
        // need all CPUs of a node it has three quarters of that (bpf/slot.bpf.h).
        let on_second = sum(&ran, 2..4);
        assert!(on_second > 15_500, "{on_second} of 21,333 without {without}: {ran:?} {longest:?}");
    }
}

#[test]
fn gangs_of_pinned_vcpus_run_at_once() {
    // Each vCPU on a CPU of its own; on one of two; pinned across another VM's; on one thread of each core.
    let cases: [&dyn Fn(usize, usize) -> Vec<usize>; 4] = [
        &|_, vcpu| vec![vcpu],
        &|_, vcpu| vec![2 * vcpu, 2 * vcpu + 1],
        &|vm, vcpu| vec![(2 * vm + vcpu) % 8],
        &|_, _| vec![0, 2, 4, 6],
    ];
    for (case, allowed) in cases.iter().enumerate() {
        let tasks: Vec<TaskSetup> = (0..8).map(|at| task_on(&allowed(at / 4, at % 4), 0)).collect();
        let mut instep = fits(&cores(8), &tasks, &table(&[(4, 100), (4, 100)]), 0);
        wake_all(&mut instep, 0..8, START);
        run(&mut instep, 8, 8, START, 1000);
        let mut whole = [0; 2];
        for at in 1000..3000 {
            run_due_work(&mut instep, START + at * MS);
            (at % 4 == 0).then(|| tick(&mut instep, 8, START + at * MS));
            for (vm, ms) in whole.iter_mut().enumerate() {
                let running = (0..8).filter_map(|cpu| instep.current(cpu));
                *ms += usize::from(running.filter(|task| task / 4 == vm).count() == 4);
            }
        }
        // Pinned to pairs they find CPUs side by side.
        let wanted = if case == 1 { 1900 } else { 900 };
        assert!(whole.iter().all(|ms| *ms > wanted), "case {case}: {whole:?}");
    }
}

#[test]
fn nice_holds_among_vcpus_that_share_the_cpus_they_are_bound_to() {
    let tasks = [task_on(&[3], 0), task_on(&[3], 0)];
    let mut instep = fits(&cores(4), &tasks, &table(&[(2, 100)]), 0);
    wake_all(&mut instep, 0..2, START);
    // Nice 5, as the kernel has it.
    instep.kernel().set_weight(1, 33);
    run(&mut instep, 4, 2, START, 1000);
    let (ran, _) = run(&mut instep, 4, 2, START + 1000 * MS, 4000);
    assert!((60..=80).contains(&(100 * ran[0] / (ran[0] + ran[1]))), "{ran:?}");
}

#[test]
fn node_whose_only_vm_is_pinned_to_few_cpus_is_not_full() {
    // A VM on two CPUs of node 0; one of six computes on node 1. One of four comes.
    let mut tasks = vec![task_on(&[0, 1], 0); 2];
    tasks.extend(vec![task_on(&(0..16).collect::<Vec<_>>(), 0); 10]);
    let mut instep = fits(&nodes(8), &tasks, &table(&[(2, 100), (6, 100), (4, 100)]), 0);
    wake_all(&mut instep, 0..2, START);
    run(&mut instep, 16, 12, START, 200);
    wake_all(&mut instep, 2..8, START + 200 * MS);
    run(&mut instep, 16, 12, START + 200 * MS, 500);
    wake_all(&mut instep, 8..12, START + 700 * MS);
    let (ran, _) = run(&mut instep, 16, 12, START + 700 * MS, 1000);
    let on = |cpus: std::ops::Range<usize>, tasks: std::ops::Range<usize>| {
        cpus.filter_map(|cpu| instep.current(cpu)).filter(|task| tasks.contains(task)).count()
    };
    assert_eq!((on(8..16, 2..8), on(0..8, 8..12)), (6, 4), "{ran:?}");
}
