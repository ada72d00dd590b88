//! Gangs that are wider than a domain: they have their CPUs in several domains at the same time.

use super::*;

/// `nodes` nodes of so many CPUs, and VMs of so many vCPUs of which none ever blocks.
fn on_nodes(nodes: usize, cpus: usize, vms: &[usize], without: u32) -> Instep {
    with_awake(nodes, cpus, vms, without, |_| true)
}

/// The same, but only these vCPUs are awake.
fn with_awake(
    nodes: usize,
    cpus: usize,
    vms: &[usize],
    without: u32,
    is_awake: impl Fn(usize) -> bool,
) -> Instep {
    from_cpu(0, nodes, cpus, vms, without, is_awake)
}

/// The same, and VMs may not use the CPUs before this one. All begin on the first node.
fn from_cpu(
    first: usize,
    nodes: usize,
    cpus: usize,
    vms: &[usize],
    without: u32,
    is_awake: impl Fn(usize) -> bool,
) -> Instep {
    let all = nodes * cpus;
    let machine = Machine {
        core: (0..all).map(|cpu| vec![cpu]).collect(),
        node: (0..all).map(|cpu| (cpu / cpus) as i32).collect(),
    };
    let count: usize = vms.iter().sum();
    let cpu = |at: usize| first + at % (cpus - first);
    let task = |at: usize| TaskSetup { allowed: CpuMask::of(first..all), cpu: cpu(at), flags: 0 };
    let tasks: Vec<TaskSetup> = (0..count).map(task).collect();
    let sizes: Vec<(usize, u32)> = vms.iter().map(|vcpus| (*vcpus, 100)).collect();
    let mut instep = fits(&machine, &tasks, &table(&sizes), without);
    for task in (0..count).filter(|task| is_awake(*task)) {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    instep
}

/// CPU time of each vCPU and of each VM, and of each VM the time with all its vCPUs on CPUs and the time with some, milliseconds.
struct Ran {
    tasks: Vec<usize>,
    cpu: Vec<usize>,
    whole: Vec<usize>,
    torn: Vec<usize>,
}

fn run(instep: &mut Instep, cpus: usize, vms: &[usize], from: u64, to: u64) -> Ran {
    let none = || vec![0; vms.len()];
    let tasks = vec![0; vms.iter().sum()];
    let mut ran = Ran { tasks, cpu: none(), whole: none(), torn: none() };
    let vm_of_task: Vec<usize> =
        vms.iter().enumerate().flat_map(|(vm, vcpus)| vec![vm; *vcpus]).collect();
    for at in from..to {
        let now = START + at * MS;
        run_due_work(instep, now);
        (at % 4 == 0).then(|| tick(instep, cpus, now));
        let mut running = none();
        for task in (0..cpus).filter_map(|cpu| instep.current(cpu)) {
            ran.tasks[task] += 1;
            running[vm_of_task[task]] += 1;
        }
        for (vm, on) in running.into_iter().enumerate() {
            ran.cpu[vm] += on;
            ran.whole[vm] += usize::from(on == vms[vm]);
            ran.torn[vm] += usize::from(on > 0 && on < vms[vm]);
        }
    }
    assert_eq!(instep.ejected(), None);
    ran
}

#[test]
fn gang_wider_than_a_domain_has_all_its_cpus_at_once() {
    // All wait for all CPUs, so that no hole is left beside a gang.
    let vms = [16, 8, 8];
    let mut instep = on_nodes(2, 8, &vms, 0);
    run(&mut instep, 16, &vms, 1, 500);
    let ran = run(&mut instep, 16, &vms, 500, 2500);
    assert!(instep.counter(Counter::Span) > 100, "{}", instep.counter(Counter::Span));
    assert!(ran.torn[0] * 20 < ran.whole[0], "{:?} {:?}", ran.whole, ran.torn);
    // Each is entitled to a third of 16 CPUs.
    for vm in 0..3 {
        let part = ran.cpu[vm] as f64 / (2000.0 * 16.0 / 3.0);
        assert!((part - 1.0).abs() < 0.1, "{:?}", ran.cpu);
    }
}

#[test]
fn gang_wider_than_a_domain_may_leave_cpus_to_the_host() {
    let vms = [14, 14];
    let mut instep = from_cpu(2, 2, 8, &vms, 0, |_| true);
    run(&mut instep, 16, &vms, 1, 500);
    let ran = run(&mut instep, 16, &vms, 500, 2500);
    assert!(ran.whole.iter().all(|ms| *ms > 900), "{:?} {:?}", ran.whole, ran.torn);
}

#[test]
fn vms_are_balanced_by_the_cpus_that_they_may_use() {
    // Nodes of four and of eight such CPUs for six VMs, each entitled to two.
    let vms = [4; 6];
    let mut instep = from_cpu(4, 2, 8, &vms, 0, |_| true);
    run(&mut instep, 16, &vms, 1, 1000);
    let ran = run(&mut instep, 16, &vms, 1000, 3000);
    assert!(ran.cpu.iter().all(|had| had.abs_diff(4000) < 200), "{:?}", ran.cpu);
}

#[test]
fn gangs_of_the_same_domains_have_equal_parts() {
    let vms = [12, 12, 12, 4, 4, 4, 4];
    let mut instep = on_nodes(2, 8, &vms, 0);
    run(&mut instep, 16, &vms, 1, 500);
    let ran = run(&mut instep, 16, &vms, 500, 4500);
    for vm in 0..3 {
        assert!(ran.torn[vm] * 5 < ran.whole[vm], "{:?} {:?}", ran.whole, ran.torn);
    }
    // Where 12 CPUs are a gang's, those of four fill the rest and have more than their share.
    let share = 4000.0 * 16.0 / 7.0;
    let parts: Vec<f64> = ran.cpu.iter().map(|had| *had as f64 / share).collect();
    assert!(parts.iter().all(|part| *part > 0.8), "{parts:?}");
}

#[test]
fn vm_of_no_gang_that_is_wider_than_domain_has_cpus_of_several() {
    let vms = [8, 4, 4];
    let mut instep = on_nodes(2, 4, &vms, GANG);
    run(&mut instep, 8, &vms, 1, 500);
    let ran = run(&mut instep, 8, &vms, 500, 2500);
    let share = 2000.0 * 8.0 / 3.0;
    assert!(ran.cpu.iter().all(|had| (*had as f64 / share - 1.0).abs() < 0.05), "{:?}", ran.cpu);
}

#[test]
fn vm_of_several_pools_that_may_use_one_domain_only_waits_there() {
    let vms = [8, 4];
    let mut instep = on_nodes(2, 4, &vms, GANG);
    run(&mut instep, 8, &vms, 1, 500);
    for task in 0..8 {
        instep.kernel().set_affinity(task, &CpuMask::of(0..4), START + 500 * MS);
    }
    // Its eight vCPUs share four CPUs; the others have the rest.
    run(&mut instep, 8, &vms, 500, 700);
    let ran = run(&mut instep, 8, &vms, 700, 2700);
    let wanted = |task: usize| if task < 8 { 1000.0 } else { 2000.0 };
    let near = |(task, had): (usize, &usize)| (*had as f64 / wanted(task) - 1.0).abs() < 0.1;
    assert!(ran.tasks.iter().enumerate().all(near), "{:?}", ran.tasks);
}

#[test]
fn vms_narrowed_to_one_node_while_they_run_share_it() {
    // One of them was on the other node.
    for at in [200, 201, 203, 300, 302] {
        let vms = [8, 8];
        let mut instep = on_nodes(2, 8, &vms, 0);
        run(&mut instep, 16, &vms, 1, at);
        for task in 0..16 {
            instep.kernel().set_affinity(task, &CpuMask::of(0..8), START + at * MS);
        }
        run(&mut instep, 16, &vms, at, at + 800);
        let ran = run(&mut instep, 16, &vms, at + 800, at + 4800);
        let share = 4000.0 * 8.0 / 2.0;
        let near = |had: &usize| (*had as f64 / share - 1.0).abs() < 0.05;
        assert!(ran.cpu.iter().all(near), "at {at} ms: {:?}", ran.cpu);
    }
}

#[test]
fn vm_of_several_pools_with_one_vcpu_that_computes_has_its_share() {
    // 61 VMs have equal parts of 16 CPUs.
    let vms: Vec<usize> = std::iter::once(16).chain([2; 60]).collect();
    let mut instep = with_awake(4, 4, &vms, GANG, |task| !(1..16).contains(&task));
    run(&mut instep, 16, &vms, 1, 1000);
    let ran = run(&mut instep, 16, &vms, 1000, 5000);
    let share = 4000.0 * 16.0 / 61.0;
    assert!(ran.cpu.iter().all(|had| (*had as f64 / share - 1.0).abs() < 0.1), "{:?}", ran.cpu);
}

#[test]
fn vm_wider_than_the_host_has_all_its_domains() {
    let vms = [12, 4];
    let mut instep = on_nodes(4, 2, &vms, GANG);
    run(&mut instep, 8, &vms, 1, 500);
    let ran = run(&mut instep, 8, &vms, 500, 4500);
    // Each VM is entitled to four CPUs, so that twelve siblings have a third of one each.
    let part = |had: &usize| *had as f64 / (4000.0 / 3.0);
    assert!(ran.tasks[..12].iter().all(|had| part(had) > 0.75), "{:?}", ran.tasks);
    assert!(ran.cpu[1] > 2 * 6400, "{:?}", ran.cpu);
}

#[test]
fn vcpu_of_several_pools_that_nothing_delays_stays_on_its_node() {
    let mut instep = with_awake(4, 4, &[12], 0, |task| task == 0);
    run(&mut instep, 16, &[12], 1, 500);
    let (mut before, mut changes) = (None, 0);
    for at in 500..4500 {
        run_due_work(&mut instep, START + at * MS);
        (at % 4 == 0).then(|| tick(&mut instep, 16, START + at * MS));
        let node = (0..16).find(|cpu| instep.current(*cpu) == Some(0)).map(|cpu| cpu / 4);
        changes += u32::from(before.is_some() && node != before);
        before = node;
    }
    assert_eq!((instep.ejected(), changes), (None, 0));
}

#[test]
fn wide_gang_stays_where_it_is_when_its_size_changes() {
    let vms = [8];
    let mut instep = on_nodes(4, 4, &vms, 0);
    run(&mut instep, 16, &vms, 1, 500);
    let cpus = |instep: &Instep| (0..16).filter(|cpu| instep.current(*cpu).is_some()).collect();
    let before: Vec<usize> = cpus(&instep);
    assert_eq!(before.len(), 8, "{before:?}");
    // One vCPU sleeps for so long that it belongs to the gang no longer.
    instep.kernel().block(before[7], START + 500 * MS);
    for at in 500..1000 {
        run_due_work(&mut instep, START + at * MS);
        (at % 4 == 0).then(|| tick(&mut instep, 16, START + at * MS));
    }
    let after: Vec<usize> = cpus(&instep);
    assert_eq!(after.len(), 7);
    assert!(after.iter().all(|cpu| before.contains(cpu)), "{before:?} {after:?}");
}

#[test]
fn without_flag_span_a_vm_wider_than_a_domain_forms_no_gang() {
    let vms = [16, 8, 8];
    let mut instep = on_nodes(2, 8, &vms, SPAN);
    run(&mut instep, 16, &vms, 1, 500);
    let ran = run(&mut instep, 16, &vms, 500, 2500);
    assert_eq!((instep.counter(Counter::Span), instep.counter(Counter::GangOn)), (0, 2));
    assert!(ran.torn[0] > ran.whole[0], "{:?} {:?}", ran.whole, ran.torn);
}

/// CPU time of VMs, in quarters of milliseconds of 4 s; each is bound to some CPUs of two nodes or to one of each, and computes.
fn bound_to_nodes(nodes: usize, cpus: usize, vms: &[Vec<Vec<usize>>]) -> Vec<u64> {
    let machine = Machine {
        core: (0..nodes * cpus).map(|cpu| vec![cpu]).collect(),
        node: (0..nodes * cpus).map(|cpu| (cpu / cpus) as i32).collect(),
    };
    let tasks: Vec<TaskSetup> = vms.iter().flatten().map(|allowed| task_on(allowed, 0)).collect();
    let sizes: Vec<(usize, u32)> = vms.iter().map(|vm| (vm.len(), 100)).collect();
    let mut instep = fits(&machine, &tasks, &table(&sizes), 0);
    masks::wake_all(&mut instep, 0..tasks.len(), START);
    masks::run(&mut instep, nodes * cpus, tasks.len(), START, 2000);
    let (ran, longest) =
        masks::run(&mut instep, nodes * cpus, tasks.len(), START + 2000 * MS, 4000);
    assert!(longest.iter().all(|ms| *ms <= 150), "{longest:?}");
    let mut ran = ran.into_iter();
    vms.iter().map(|vm| ran.by_ref().take(vm.len()).sum()).collect()
}

#[test]
fn gangs_that_have_one_of_their_domains_in_common_have_equal_parts() {
    // Two VMs on the first two of three nodes, two on the last two: two vCPUs on each of its nodes.
    let on = |node: usize| vec![2 * node, 2 * node + 1];
    let pair = |first: usize| vec![on(first), on(first), on(first + 1), on(first + 1)];
    let ran = bound_to_nodes(3, 2, &[pair(0), pair(0), pair(1), pair(1)]);
    assert!(ran.iter().all(|ran| ran.abs_diff(24_000) < 2400), "{ran:?}");
    // Two VMs are bound to all CPUs of a node and one of the other, where two more share it.
    let wide = || (0..4).map(|cpu| vec![cpu]).collect::<Vec<_>>();
    let narrow = || vec![vec![3], vec![4]];
    let ran = bound_to_nodes(2, 3, &[wide(), wide(), narrow(), narrow()]);
    assert!(
        ran[0].abs_diff(ran[1]) * 10 < ran[0] && ran[2].abs_diff(ran[3]) * 10 < ran[2],
        "{ran:?}"
    );
}

#[test]
fn gang_overdue_in_one_domain_gets_a_slot_before_promised_ones() {
    // Three VMs of six vCPUs on three nodes of five CPUs: one shares a single domain with the two others, and has another alone.
    let any = || vec![(0..15).collect::<Vec<_>>(); 6];
    let vms = [any(), any(), any()];
    let ran = bound_to_nodes(3, 5, &vms);
    assert!(ran.iter().all(|ran| *ran > 60_000), "{ran:?}");
}

#[test]
fn equal_gangs_of_several_domains_have_equal_parts_where_many_are_overdue() {
    // Two VMs on each two nodes of four that are neighbours in a ring: which is first in the table must not matter.
    let on = |node: usize| vec![2 * node, 2 * node + 1];
    let pair = |at: usize| [at % 4, at % 4, (at + 1) % 4, (at + 1) % 4].map(on).to_vec();
    let ran = bound_to_nodes(4, 2, &(0..8).map(pair).collect::<Vec<_>>());
    let equal = |at: usize| ran[at].abs_diff(ran[at + 4]) * 4 < ran[at].max(ran[at + 4]);
    assert!((0..4).all(equal), "{ran:?}");
}
