//! Home nodes: a VM joins a domain of its home, and its vCPUs run elsewhere only when home is full.

use super::*;

/// Nodes of CPUs, and VMs of so many vCPUs that never sleep, each with its home.
fn at_nodes(nodes: &[i32], vms: &[(usize, Option<u32>)], without: u32) -> Instep {
    let cpus = nodes.len();
    let machine = Machine { core: (0..cpus).map(|cpu| vec![cpu]).collect(), node: nodes.to_vec() };
    let count: usize = vms.iter().map(|vm| vm.0).sum();
    let tasks = vec![TaskSetup { allowed: CpuMask::of(0..cpus), cpu: 0, flags: 0 }; count];
    let sizes: Vec<(usize, u32)> = vms.iter().map(|vm| (vm.0, 100)).collect();
    let mut instep = fits(&machine, &tasks, &table(&sizes), without);
    for (vm, (_, home)) in vms.iter().enumerate() {
        instep.set_home(vm, *home);
    }
    instep
}

fn wake(instep: &mut Instep, task: usize, now: u64) {
    instep.kernel().wake(task, Waker::Other(0), now);
    run_due_work(instep, now);
}

/// CPU time that each task had on each CPU, in milliseconds, from `from` to `to`.
fn run(instep: &mut Instep, cpus: usize, tasks: usize, from: u64, to: u64) -> Vec<Vec<u64>> {
    let mut ran = vec![vec![0; cpus]; tasks];
    for at in from..to {
        let now = START + at * MS;
        run_due_work(instep, now);
        let on = |cpu| instep.current(cpu).map(|task| (task, cpu));
        let running: Vec<(usize, usize)> = (0..cpus).filter_map(on).collect();
        running.into_iter().for_each(|(task, cpu)| ran[task][cpu] += 1);
        (at % 4 == 0).then(|| tick(instep, cpus, now));
    }
    assert_eq!(instep.ejected(), None);
    ran
}

#[test]
fn vm_runs_on_its_home_node() {
    // All sleep on CPU 0; each of three nodes is the home of a VM of two vCPUs.
    let nodes = [0, 0, 1, 1, 2, 2];
    let vms = [(2, Some(2)), (2, Some(0)), (2, Some(1))];
    let mut instep = at_nodes(&nodes, &vms, 0);
    (0..6).for_each(|task| wake(&mut instep, task, START));
    let ran = run(&mut instep, 6, 6, 1, 200);
    for (task, home) in [4, 4, 0, 0, 2, 2].into_iter().enumerate() {
        assert_eq!(ran[task][home] + ran[task][home + 1], 199, "task {task}: {ran:?}");
    }
}

#[test]
fn vcpus_that_find_home_full_take_idle_cpus_elsewhere() {
    let mut instep = at_nodes(&[0, 0, 1, 1], &[(3, Some(1))], 0);
    (0..3).for_each(|task| wake(&mut instep, task, START));
    assert_eq!(
        (instep.current(0), instep.current(1)),
        (None, None),
        "they have not run for a slice"
    );
    run(&mut instep, 4, 3, 1, 12);
    let ran = run(&mut instep, 4, 3, 12, 112);
    let all: u64 = ran.iter().flatten().sum();
    let at_home: u64 = ran.iter().map(|cpus| cpus[2] + cpus[3]).sum();
    assert!(all == 300 && at_home > 100, "{ran:?}");
}

#[test]
fn idle_node_takes_what_waits_at_home_of_others() {
    // Three at home on CPU 0 beside an idle CPU 1 of another node: two of them always run.
    let mut instep = at_nodes(&[0, 1], &[(1, Some(0)); 3], 0);
    (0..3).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 2, 3, 1, 6);
    let ran = run(&mut instep, 2, 3, 6, 1206);
    let all: u64 = ran.iter().flatten().sum();
    assert_eq!(all, 2 * 1200);
    let least = ran.iter().map(|cpus| cpus.iter().sum::<u64>()).min();
    assert!(least >= Some(700), "{ran:?}");
    // They change places seldom.
    assert!(instep.counter(Counter::Stolen) < 40);
}

#[test]
fn vms_share_a_full_node_and_leave_the_other_to_its_own() {
    // Two VMs at home on each node of two CPUs, all of two vCPUs.
    let nodes = [0, 0, 1, 1];
    let vms = [(2, Some(1)), (2, Some(1)), (2, Some(0)), (2, Some(0))];
    let at_home = |without: u32| {
        let mut instep = at_nodes(&nodes, &vms, without);
        (0..8).for_each(|task| wake(&mut instep, task, START));
        run(&mut instep, 4, 8, 1, 400);
        let ran = run(&mut instep, 4, 8, 400, 1200);
        let home = |task: usize| if task < 4 { 2..4 } else { 0..2 };
        (0..8).map(|task| ran[task][home(task)].iter().sum::<u64>()).collect::<Vec<_>>()
    };
    let with = at_home(0);
    assert!(with.iter().all(|ms| (350..450).contains(ms)), "{with:?}");
    let without = at_home(HOME);
    assert!(without.iter().sum::<u64>() < with.iter().sum::<u64>(), "{without:?}");
}

#[test]
fn vm_goes_to_its_new_home_where_cpus_are_idle() {
    let mut instep = at_nodes(&[0, 0, 1, 1], &[(2, Some(0))], 0);
    (0..2).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 4, 2, 1, 200);
    instep.set_home(0, Some(1));
    run(&mut instep, 4, 2, 200, 300);
    let ran = run(&mut instep, 4, 2, 300, 500);
    assert!(ran.iter().all(|cpus| cpus[2] + cpus[3] == 200), "{ran:?}");
}

#[test]
fn vms_of_full_nodes_exchange_their_homes() {
    // Two VMs of two vCPUs on each node; the first of each goes to the other.
    let vms = [(2, Some(0)), (2, Some(0)), (2, Some(1)), (2, Some(1))];
    let mut instep = at_nodes(&[0, 0, 1, 1], &vms, 0);
    (0..8).for_each(|task| wake(&mut instep, task, START));
    run(&mut instep, 4, 8, 1, 300);
    instep.set_home(0, Some(1));
    instep.set_home(2, Some(0));
    run(&mut instep, 4, 8, 300, 600);
    let ran = run(&mut instep, 4, 8, 600, 1400);
    for (task, home) in [2, 2, 0, 0, 0, 0, 2, 2].into_iter().enumerate() {
        let here = ran[task][home] + ran[task][home + 1];
        assert!((350..450).contains(&here), "task {task}: {ran:?}");
    }
}

#[test]
fn gang_from_full_node_leaves_another_node_to_those_at_home_there() {
    // Two gangs are at home on node 0. On node 1 each of eight vCPUs sleeps for 0.5 ms after 2 ms: it has a CPU when it wants it.
    let nodes: Vec<i32> = (0..16).map(|cpu| cpu / 8).collect();
    let mut instep = at_nodes(&nodes, &[(8, Some(0)), (8, Some(0)), (8, Some(1))], 0);
    (0..24).for_each(|task| wake(&mut instep, task, START));
    let (mut had, mut rests) = ((0..24).collect::<Vec<u64>>(), [0; 24]);
    for step in 1..12_000 {
        let now = START + step * MS / 4;
        pass_quarter(&mut instep, 16, step, now);
        for task in (16..24).filter(|task| rests[*task] == step) {
            wake(&mut instep, task, now);
        }
        for cpu in 0..16 {
            let Some(task) = instep.current(cpu) else { continue };
            had[task] += 1;
            if task >= 16 && had[task] % 8 == 0 {
                instep.kernel().block(cpu, now);
                run_due_work(&mut instep, now);
                rests[task] = step + 2;
            }
        }
    }
    let at_home: u64 = had[16..].iter().sum();
    assert_eq!(instep.ejected(), None);
    assert!(at_home > 8 * 12_000 * 4 / 5 * 95 / 100, "{at_home} of 76,800 quarters of a ms");
}
