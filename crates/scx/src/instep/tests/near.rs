//! Which CPU is near: of the same last-level cache before others of the domain, of the same node before other nodes.

use super::*;

/// One node of two caches of four CPUs each; `tasks` vCPUs of a VM of their own, asleep on their CPUs.
fn two_caches(cpus_of_tasks: &[usize]) -> Instep {
    let machine = cores(8);
    let mut lanes = lanes(&machine);
    lanes[4].first_of_cache = true;
    let task = |cpu: &usize| TaskSetup { allowed: CpuMask::of(0..8), cpu: *cpu, flags: 0 };
    let tasks: Vec<TaskSetup> = cpus_of_tasks.iter().map(task).collect();
    let vms = table(&vec![(1, 100); tasks.len()]);
    let settings = Settings::default();
    let instep = Instep::new(machine, &lanes, &tasks, &vms, &settings, 1, Release::V7_2);
    instep.expect("it fits")
}

/// The CPU on which a task runs.
fn place_of(instep: &Instep, cpus: usize, task: usize) -> Option<usize> {
    (0..cpus).find(|cpu| instep.current(*cpu) == Some(task))
}

fn wake(instep: &mut Instep, task: usize) {
    instep.kernel().wake(task, Waker::Other(0), START);
    run_due_work(instep, START);
}

#[test]
fn woken_thread_takes_an_idle_cpu_of_its_cache() {
    // Both were on CPU 5; the first has it again, and CPUs 0 to 3 are idle, too.
    let mut instep = two_caches(&[5, 5]);
    wake(&mut instep, 0);
    wake(&mut instep, 1);
    assert_eq!(place_of(&instep, 8, 0), Some(5));
    let second = place_of(&instep, 8, 1).expect("a CPU is idle");
    assert!((4..8).contains(&second), "on CPU {second}");
    assert_eq!(instep.ejected(), None);
}

#[test]
fn woken_threads_preempt_in_their_cache() {
    // Eight compute; two that were on CPU 6 and have had nothing wake up at the same moment.
    let mut instep = two_caches(&[0, 1, 2, 3, 4, 5, 6, 7, 6, 6]);
    (0..8).for_each(|task| wake(&mut instep, task));
    for at in 1..40 {
        tick(&mut instep, 8, START + at * MS);
    }
    (8..10).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START + 40 * MS));
    run_due_work(&mut instep, START + 40 * MS);
    let cpus = [8, 9].map(|task| place_of(&instep, 8, task).expect("it preempts"));
    assert!(cpus.iter().all(|cpu| (4..8).contains(cpu)), "on CPUs {cpus:?}");
    assert_eq!(instep.ejected(), None);
}

/// Two nodes of two domains each, of two CPUs; tasks asleep on their CPUs, each a VM of its own.
fn two_domains_a_node(cpus_of_tasks: &[usize]) -> Instep {
    let core = (0..8).map(|cpu| vec![cpu]).collect();
    let machine = Machine { core, node: vec![0, 0, 0, 0, 1, 1, 1, 1] };
    let lane = |cpu: usize| {
        let (domain, lane) = (cpu as u32 / 2, cpu as u32 % 2);
        Lane { cpu, domain, lane, core: 1 << lane, first_of_cache: lane == 0 }
    };
    let lanes: Vec<Lane> = (0..8).map(lane).collect();
    let task = |cpu: &usize| TaskSetup { allowed: CpuMask::of(0..8), cpu: *cpu, flags: 0 };
    let tasks: Vec<TaskSetup> = cpus_of_tasks.iter().map(task).collect();
    let settings = Settings::default();
    Instep::new(machine, &lanes, &tasks, &[], &settings, 1, Release::V7_2).expect("it fits")
}

#[test]
fn thread_that_finds_its_domain_busy_stays_on_its_node() {
    // The last domain of each node is full: the third thread takes a CPU of the node's other domain.
    for (full, node) in [([2, 3], 0..4), ([6, 7], 4..8)] {
        let mut instep = two_domains_a_node(&[full[0], full[1], full[0]]);
        (0..3).for_each(|task| wake(&mut instep, task));
        let cpu = place_of(&instep, 8, 2).expect("CPUs are idle");
        assert!(node.contains(&cpu), "on CPU {cpu}, not one of {node:?}");
    }
}

#[test]
fn host_thread_that_finds_its_node_busy_takes_idle_cpu_elsewhere() {
    // The host is at home nowhere: entry 0 of the table of VMs says nothing of it.
    for (full, node) in [([0, 1, 2, 3], 4..8), ([4, 5, 6, 7], 0..4)] {
        let mut instep = two_domains_a_node(&[full[0], full[1], full[2], full[3], full[0]]);
        (0..5).for_each(|task| wake(&mut instep, task));
        let cpu = place_of(&instep, 8, 4);
        assert!(cpu.is_some_and(|cpu| node.contains(&cpu)), "on CPU {cpu:?}, not one of {node:?}");
    }
}

/// Four cores of two threads, two on each node; `threads` of one VM, all asleep on CPU 0.
fn cores_of_two_nodes(threads: usize, home: Option<u32>) -> Instep {
    let core = (0..8).map(|cpu| vec![cpu, cpu ^ 1]).collect();
    let machine = Machine { core, node: vec![0, 0, 0, 0, 1, 1, 1, 1] };
    let lane = |cpu: usize| {
        let (domain, lane) = (cpu as u32 / 4, cpu as u32 % 4);
        Lane { cpu, domain, lane, core: 3 << (lane & !1), first_of_cache: lane == 0 }
    };
    let lanes: Vec<Lane> = (0..8).map(lane).collect();
    let task = TaskSetup { allowed: CpuMask::of(0..8), cpu: 0, flags: 0 };
    let tasks = vec![task; threads];
    let (vms, settings) = (table(&[(threads, 100)]), Settings::default());
    let instep = Instep::new(machine, &lanes, &tasks, &vms, &settings, 1, Release::V7_2);
    let mut instep = instep.expect("it fits");
    instep.set_home(0, home);
    instep
}

#[test]
fn vcpus_have_cores_of_their_own_before_halves_of_their_domain() {
    for (home, cores) in [(None, 4), (Some(0), 2)] {
        let mut instep = cores_of_two_nodes(4, home);
        (0..4).for_each(|task| wake(&mut instep, task));
        // They stay there when their slices end.
        for at in 1..200 {
            tick(&mut instep, 8, START + at * MS);
            run_due_work(&mut instep, START + at * MS);
        }
        let busy = (0..8).filter(|cpu| instep.current(*cpu).is_some());
        let used: std::collections::BTreeSet<usize> = busy.map(|cpu| cpu / 2).collect();
        assert_eq!((instep.ejected(), used.len()), (None, cores), "home {home:?}: {used:?}");
    }
}
