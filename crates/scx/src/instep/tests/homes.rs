//! Home nodes: who goes there, who waits there, who is taken away.

use super::*;

/// Nodes of CPUs, and never-sleeping VMs of one vCPU, each with the CPU where it sleeps and its home; what
/// runs on each CPU in each millisecond, what runs on the first going to sleep at `sleeps`, if ever. The clock sleeps at a second,
/// so that whoever comes has been away for long.
fn at_nodes(
    nodes: &[i32],
    vms: &[(usize, u32)],
    without: u32,
    ms: u64,
    sleeps: u64,
) -> (Instep, Vec<Vec<Option<usize>>>) {
    let cpus = nodes.len();
    let machine = Machine { core: (0..cpus).map(|cpu| vec![cpu]).collect(), node: nodes.to_vec() };
    let task =
        |(cpu, _): &(usize, u32)| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: *cpu, flags: 0 };
    let tasks: Vec<TaskSetup> = vms.iter().map(task).collect();
    let vm = |first| Vm { weight: 100, own: VmSettings::default(), first, count: 1 };
    let table: Vec<Vm> = (0..vms.len()).map(vm).collect();
    let mut instep = fits(&machine, &tasks, &table, without);
    // They begin without a home, so that each sleeps where it is told to.
    for (task, (cpu, _)) in vms.iter().enumerate() {
        instep.kernel().wake(task, Waker::Other(*cpu), START);
        settle(&mut instep, START);
    }
    for (vm, (_, home)) in vms.iter().enumerate() {
        instep.set_home(vm, Some(*home));
    }
    let mut ran = Vec::new();
    for now in 1..=ms {
        let at = START + now * MS;
        if now == sleeps {
            instep.kernel().block(0, at);
        }
        settle(&mut instep, at);
        ran.push((0..cpus).map(|cpu| instep.current(cpu)).collect());
        (0..cpus).for_each(|cpu| instep.kernel().tick(cpu, at));
    }
    assert_eq!(instep.ejected(), None);
    (instep, ran)
}

#[test]
fn of_several_that_find_one_idle_cpu_at_home_one_goes_and_the_others_run_on() {
    // CPU 0 at home, three on the other node with one of them each; slices end at the same ticks.
    let vms = [(0, 0), (1, 0), (2, 0), (3, 0)];
    let sleeps = 50;
    let (mut instep, ran) = at_nodes(&[0, 1, 1, 1], &vms, 0, 200, sleeps);
    assert_eq!(instep.counter(Counter::CameHome), 1);
    let busy = |at: &Vec<Option<usize>>| at.iter().flatten().count();
    // None of the three ever waits, and those that stay stay where they are.
    assert!(ran[50..].iter().all(|at| busy(at) == 3), "{:?}", &ran[48..70]);
    let home = ran[199][0].expect("one came home");
    let others = (1..4).filter(|task| *task != home);
    assert!(others.clone().all(|task| ran.iter().all(|at| at[task] == Some(task))), "{home}");
}

#[test]
fn who_finds_the_idle_cpu_at_home_taken_runs_on_at_once() {
    let vms = [(0, 0), (1, 0)];
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, 0, 50, u64::MAX);
    assert_eq!(ran[49], [Some(0), Some(1)]);
    // CPU 0 is idle from now on, and taken by another when the second has asked for it.
    instep.kernel().block(0, START + 50 * MS);
    settle(&mut instep, START + 50 * MS);
    instep.kernel().claims_between(0);
    for now in 51..80 {
        let at = START + now * MS;
        instep.kernel().tick(1, at);
        settle(&mut instep, at);
        assert_eq!((instep.current(0), instep.current(1)), (None, Some(1)), "{now} ms");
    }
    assert_eq!(instep.counter(Counter::CameHome), 0);
    assert_eq!(instep.ejected(), None);
}

#[test]
fn another_node_takes_a_waiter_from_its_home_only_when_it_is_far_behind() {
    // Three at home on CPU 0, one on CPU 1, which is due half of a CPU, too.
    let vms = [(1, 1), (0, 0), (0, 0), (0, 0)];
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, 0, 3000, u64::MAX);
    assert!(instep.counter(Counter::Stolen) == 0);
    let first = |ran: &[Vec<Option<usize>>]| ran.iter().position(|at| at[1] != Some(0));
    let share = |ran: &[Vec<Option<usize>>], task: usize| {
        let all = ran.iter().flatten().filter(|now| **now == Some(task)).count();
        all as f64 / ran.len() as f64
    };
    // They fall behind by two thirds of a millisecond in each: 36 ms further than without a home take 54 ms more.
    let (soft, shares) = (first(&ran), (0..4).map(|task| share(&ran, task)).collect::<Vec<_>>());
    assert!(shares.iter().all(|share| (share - 0.5).abs() < 0.06), "{shares:?}");
    let home = 1 << 3;
    let (_, ran) = at_nodes(&[0, 1], &vms, home, 3000, u64::MAX);
    let without = first(&ran);
    assert!(soft.unwrap() >= without.unwrap() + 40, "{soft:?} {without:?}");
}

/// For how long of the last 200 ms each ran at home, where home is the CPU of that number.
fn at_home(vms: &[(usize, u32)], ran: &[Vec<Option<usize>>]) -> Vec<usize> {
    let last = &ran[ran.len() - 200..];
    let time = |(task, (_, home)): (usize, &(usize, u32))| {
        last.iter().filter(|at| at[*home as usize] == Some(task)).count()
    };
    vms.iter().enumerate().map(time).collect()
}

#[test]
fn who_never_sleeps_comes_home_when_a_cpu_is_idle_there() {
    // The second begins away from home, as the first has its CPU, until that one sleeps.
    let vms = [(0, 0), (1, 0)];
    let sleeps = 10;
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, 0, 400, sleeps);
    assert_eq!((at_home(&vms, &ran), instep.counter(Counter::CameHome)), (vec![0, 200], 1));
    let home = 1 << 3;
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, home, 400, sleeps);
    assert_eq!((at_home(&vms, &ran), instep.counter(Counter::CameHome)), (vec![0, 0], 0));
    // While it does not, who is away stays: that is what idle CPUs of other nodes are for.
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, 0, 400, u64::MAX);
    let ran = at_home(&vms, &ran);
    assert_eq!((ran[0] + ran[1], instep.counter(Counter::CameHome)), (200, 0));
}

#[test]
fn who_must_wait_does_so_at_home() {
    // Two on each node, all away from home.
    let vms = [(0, 1), (1, 0), (0, 1), (1, 0)];
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, 0, 400, u64::MAX);
    let (ran, came) = (at_home(&vms, &ran), instep.counter(Counter::CameHome));
    assert!(ran.iter().all(|ran| *ran >= 80) && came >= 4, "{ran:?}, {came}");
    let home = 1 << 3;
    let (mut instep, ran) = at_nodes(&[0, 1], &vms, home, 400, u64::MAX);
    let (ran, came) = (at_home(&vms, &ran), instep.counter(Counter::CameHome));
    assert!(ran.iter().sum::<usize>() < 40 && came == 0, "{ran:?}, {came}");
}
