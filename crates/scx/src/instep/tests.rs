//! Instep's own C on the kernel's side, task by task.

use super::*;
use crate::Waker;
use crate::abi::{CpuMask, PF_KTHREAD};

mod changes;
mod clocks;
mod counts;
mod evidence;
mod frequency;
mod gangs;
mod groups;
mod homes;
mod known;
mod limits;
mod masks;
mod near;
mod races;
mod spans;
mod waits;

const MS: u64 = 1_000_000;
const START: u64 = 1000 * MS;
use instep_abi::{
    M_CORES as CORES, M_GANG as GANG, M_HOME as HOME, M_MOVES as MOVES, M_SPAN as SPAN,
    M_WAKE as WAKE,
};

/// So many cores of one CPU on one node.
fn cores(cpus: usize) -> Machine {
    Machine { core: (0..cpus).map(|cpu| vec![cpu]).collect(), node: vec![0; cpus] }
}

/// Two cores of two CPUs.
fn two_cores() -> Machine {
    let core = |cpu: usize| vec![cpu & !1, cpu | 1];
    Machine { core: (0..4).map(core).collect(), node: vec![0; 4] }
}

/// A node is a domain and a last-level cache; the CPUs of a core lie side by side.
fn lanes(machine: &Machine) -> Vec<Lane> {
    let mut cpus: Vec<usize> = (0..machine.core.len()).collect();
    cpus.sort_by_key(|cpu| (machine.node[*cpu], machine.core[*cpu][0], *cpu));
    let mut all = Vec::new();
    for (own, domain) in cpus.chunk_by(|a, b| machine.node[*a] == machine.node[*b]).zip(0u32..) {
        for (cpu, lane) in own.iter().zip(0u32..) {
            let of_core = own.iter().enumerate();
            let of_core = of_core.filter(|(_, other)| machine.core[*cpu].contains(other));
            let core = of_core.fold(0u64, |set, (at, _)| set | 1 << at);
            all.push(Lane { cpu: *cpu, domain, lane, core, first_of_cache: lane == 0 });
        }
    }
    all
}

/// A task that may use these CPUs and begins on the first.
fn task_on(allowed: &[usize], flags: u32) -> TaskSetup {
    TaskSetup { allowed: CpuMask::of(allowed.iter().copied()), cpu: allowed[0], flags }
}

/// VMs of so many vCPUs and such weights, whose vCPUs follow one another.
fn table(vms: &[(usize, u32)]) -> Vec<NativeVm> {
    let mut first = 0;
    let vm = |(count, weight): &(usize, u32)| {
        first += count;
        NativeVm {
            weight: *weight,
            own: VmSettings::default(),
            first: first - count,
            count: *count,
            later: false,
        }
    };
    vms.iter().map(vm).collect()
}

/// The scheduler on a machine with these tasks and VMs, without some mechanisms.
fn fits(machine: &Machine, tasks: &[TaskSetup], vms: &[NativeVm], without: u32) -> Instep {
    on_release(machine, tasks, vms, without, Release::V7_2)
}

fn on_release(
    machine: &Machine,
    tasks: &[TaskSetup],
    vms: &[NativeVm],
    without: u32,
    release: Release,
) -> Instep {
    let settings = Settings { without, ..Settings::default() };
    let lanes = lanes(machine);
    Instep::new(machine.clone(), &lanes, tasks, vms, &settings, 1, release).expect("it fits")
}

/// Two CPUs and VMs of so many vCPUs and such weights; `cpus` are those that each task may use.
fn loaded(vms: &[(usize, u32)], cpus: &[&[usize]], without: u32) -> Instep {
    let tasks: Vec<TaskSetup> = cpus.iter().map(|allowed| task_on(allowed, 0)).collect();
    fits(&cores(2), &tasks, &table(vms), without)
}

/// Timers that are due fire, and CPUs that were told to choose do so, until nothing is left to do.
fn run_due_work(instep: &mut Instep, now: u64) {
    loop {
        let mut done = !instep.kernel().fire_timer(0, now);
        while let Some(cpu) = instep.kernel().take_resched() {
            instep.kernel().schedule(cpu, now);
            done = false;
        }
        if done {
            return;
        }
    }
}

/// The clock ticks on all CPUs.
fn tick(instep: &mut Instep, cpus: usize, now: u64) {
    (0..cpus).for_each(|cpu| instep.kernel().tick(cpu, now));
    run_due_work(instep, now);
}

/// A quarter of a millisecond ends, of which it is number `step`. The clock ticks every 4 ms, on each CPU at another moment.
fn pass_quarter(instep: &mut Instep, cpus: usize, step: u64, now: u64) {
    run_due_work(instep, now);
    for cpu in (0..cpus).filter(|cpu| (step + *cpu as u64).is_multiple_of(16)) {
        instep.kernel().tick(cpu, now);
        run_due_work(instep, now);
    }
}

/// A machine of so many CPUs and VMs of which no vCPU ever blocks, all of them awake.
fn computing(cpus: usize, vms: &[(usize, u32)], without: u32) -> Instep {
    let count: usize = vms.iter().map(|(count, _)| count).sum();
    let task = |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
    let tasks: Vec<TaskSetup> = (0..count).map(task).collect();
    let mut instep = fits(&cores(cpus), &tasks, &table(vms), without);
    for task in 0..count {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    instep
}

/// CPU time of each of two VMs of two vCPUs on two CPUs after so many milliseconds.
fn two_pairs(weights: [u32; 2], ms: u64, without: u32) -> (Instep, [u64; 2]) {
    let mut instep = computing(2, &weights.map(|weight| (2, weight)), without);
    let mut ran = [0; 2];
    for at in 1..ms {
        let now = START + at * MS;
        run_due_work(&mut instep, now);
        for cpu in 0..2 {
            ran[instep.current(cpu).expect("nobody blocks") / 2] += 1;
        }
        (at % 4 == 0).then(|| tick(&mut instep, 2, now));
    }
    assert_eq!(instep.ejected(), None);
    (instep, ran)
}

#[test]
fn siblings_run_together_and_vms_share_by_weight() {
    let (mut instep, ran) = two_pairs([100, 300], 4000, 0);
    let part = ran[1] as f64 / (ran[0] + ran[1]) as f64;
    assert!((part - 0.75).abs() < 0.03, "{part}");
    assert!(instep.counter(Counter::GangOn) == 2 && instep.counter(Counter::Grant) > 300);
    let events = instep.kernel().take_events();
    assert!(events.iter().any(|event| event.kind == 1 && event.vm == 1), "{events:?}");
}

#[test]
fn without_flag_gang_no_slot_is_planned() {
    let (mut instep, ran) = two_pairs([100, 300], 4000, GANG);
    let part = ran[1] as f64 / (ran[0] + ran[1]) as f64;
    assert!((part - 0.75).abs() < 0.03, "{part}");
    assert_eq!((instep.counter(Counter::GangOn), instep.counter(Counter::Slot)), (0, 0));
}

#[test]
fn vcpu_leaves_a_shared_core_for_an_idle_one() {
    // Two cores of two CPUs, full; then both vCPUs of the second core go to sleep.
    let tasks: Vec<TaskSetup> =
        (0..4).map(|cpu| TaskSetup { allowed: CpuMask::of(0..4), cpu, flags: 0 }).collect();
    let used = |without: u32| {
        let mut instep = fits(&two_cores(), &tasks, &table(&[(2, 100), (2, 100)]), without);
        (0..4).for_each(|task| {
            instep.kernel().wake(task, Waker::Other(0), START);
            run_due_work(&mut instep, START);
        });
        assert!((0..4).all(|cpu| instep.current(cpu).is_some()));
        (2..4).for_each(|cpu| instep.kernel().block(cpu, START + MS));
        for at in 1..20 {
            run_due_work(&mut instep, START + at * MS);
            tick(&mut instep, 4, START + at * MS);
        }
        assert_eq!(instep.ejected(), None);
        let busy = (0..4).filter(|cpu| instep.current(*cpu).is_some());
        let cores: std::collections::BTreeSet<usize> = busy.map(|cpu| cpu / 2).collect();
        (cores.len(), instep.counter(Counter::CoreLeft))
    };
    assert_eq!(used(0), (2, 1));
    assert_eq!(used(CORES), (1, 0));
}

#[test]
fn wakeup_takes_a_whole_core_before_a_shared_one() {
    // A vCPU runs on CPU 0; its sibling slept on CPU 1, the other thread of that core.
    let tasks: Vec<TaskSetup> =
        (0..2).map(|cpu| TaskSetup { allowed: CpuMask::of(0..4), cpu, flags: 0 }).collect();
    let where_it_runs = |without: u32| {
        let mut instep = fits(&two_cores(), &tasks, &table(&[(2, 100)]), without);
        for task in 0..2 {
            instep.kernel().wake(task, Waker::Other(0), START);
            run_due_work(&mut instep, START);
        }
        assert_eq!(instep.ejected(), None);
        (0..4).find(|cpu| instep.current(*cpu) == Some(1))
    };
    assert_eq!(where_it_runs(0), Some(2));
    assert_eq!(where_it_runs(CORES), Some(1));
}

#[test]
fn per_cpu_kernel_thread_preempts_a_vcpu_at_once() {
    // On CPU 0 a vCPU and a host thread that never sleep, and a kernel thread of that CPU that works for 100 us
    // of every 10 ms.
    let tasks = [task_on(&[0], 0), task_on(&[0], PF_KTHREAD), task_on(&[0], 0)];
    let mut instep = fits(&cores(2), &tasks, &table(&[(1, 100)]), 0);
    [0, 2].into_iter().for_each(|task| instep.kernel().wake(task, Waker::Other(1), START));
    for round in 1..100 {
        let now = START + round * 10 * MS;
        run_due_work(&mut instep, now - MS);
        tick(&mut instep, 2, now - MS);
        instep.kernel().wake(1, Waker::Interrupt(0), now);
        run_due_work(&mut instep, now);
        assert_eq!(instep.current(0), Some(1), "round {round}");
        instep.kernel().block(0, now + MS / 10);
        run_due_work(&mut instep, now + MS / 10);
    }
    assert_eq!(instep.ejected(), None);
    // All but the first, which found the CPU at a tick.
    assert!(instep.counter(Counter::Kthread) >= 90);
}

#[test]
fn per_cpu_kernel_thread_waits_half_a_gang_slot_at_most() {
    // Two gangs of two on two CPUs, and a kernel thread of CPU 0 that works for 100 us of every 17 ms.
    let mut tasks = vec![task_on(&[0, 1], 0); 4];
    tasks.push(task_on(&[0], PF_KTHREAD));
    let mut instep = fits(&cores(2), &tasks, &table(&[(2, 100), (2, 100)]), 0);
    (0..4).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
    let (mut woke, mut longest, mut runs) = (None, 0, 0);
    for at in 1..4000 {
        let now = START + at * MS / 2;
        run_due_work(&mut instep, now);
        (at % 8 == 0).then(|| tick(&mut instep, 2, now));
        if woke.is_none() && at > 400 && at % 34 == 0 {
            instep.kernel().wake(4, Waker::Interrupt(0), now);
            run_due_work(&mut instep, now);
            woke = Some(now);
        }
        if instep.current(0) == Some(4) {
            longest = longest.max(now - woke.take().expect("it woke up"));
            instep.kernel().block(0, now + MS / 10);
            run_due_work(&mut instep, now + MS / 10);
            runs += 1;
        }
    }
    assert_eq!(instep.ejected(), None);
    // Half a slot, and the steps of half a millisecond here.
    assert!(runs > 80 && longest <= 7 * MS / 2, "{runs} runs, at most {longest} ns late");
    assert!(instep.counter(Counter::HostWindow) > 40, "{}", instep.counter(Counter::HostWindow));
}

#[test]
fn vcpu_under_a_kernel_thread_takes_an_idle_cpu() {
    // Two cores of two CPUs. On CPU 0 a vCPU that may use CPUs 0 and 3, and the thread; the others idle.
    let tasks = [task_on(&[0, 3], 0), task_on(&[0], PF_KTHREAD)];
    let mut instep = fits(&two_cores(), &tasks, &table(&[(1, 100)]), 0);
    instep.kernel().wake(0, Waker::Other(0), START);
    run_due_work(&mut instep, START);
    assert_eq!(instep.current(0), Some(0));
    for at in 1..25 {
        tick(&mut instep, 4, START + at * 4 * MS);
    }
    let now = START + 97 * MS;
    instep.kernel().wake(1, Waker::Interrupt(0), now);
    run_due_work(&mut instep, now);
    tick(&mut instep, 4, now + MS);
    assert_eq!((instep.current(0), instep.current(3)), (Some(1), Some(0)));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn short_host_thread_goes_before_a_long_one() {
    // On CPU 0 a vCPU and a host thread that never sleep, and one that wants 1 ms of every 10.
    let tasks = vec![task_on(&[0], 0); 3];
    let mut instep = fits(&cores(2), &tasks, &table(&[(1, 100)]), 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(1), START));
    let (mut wants, mut waited) = (false, 0);
    for at in 0..2000 {
        let now = START + at * MS;
        if at % 10 == 0 && !wants {
            instep.kernel().wake(2, Waker::Interrupt(1), now);
            wants = true;
        }
        run_due_work(&mut instep, now);
        match instep.current(0) {
            Some(2) => {
                instep.kernel().block(0, now + MS / 2);
                run_due_work(&mut instep, now + MS / 2);
                wants = false;
            }
            _ => waited += u32::from(wants),
        }
        tick(&mut instep, 1, now + 3 * MS / 4);
    }
    assert_eq!(instep.ejected(), None);
    assert!(waited < 200, "it waited for {waited} ms of 2 s");
}

#[test]
fn wakeup_preempts_a_vm_that_is_further_along() {
    // A VM that computes on the only CPU, and one that wakes up for 1 ms of every 10.
    let late = |without: u32| {
        let tasks = vec![task_on(&[0], 0); 2];
        let mut instep = fits(&cores(1), &tasks, &table(&[(1, 100), (1, 100)]), without);
        instep.kernel().wake(0, Waker::Other(0), START);
        let (mut woke, mut late) = (None, 0);
        for at in 1..2000 {
            let now = START + at * MS;
            if woke.is_none() && at % 10 == 0 {
                instep.kernel().wake(1, Waker::Interrupt(0), now);
                woke = Some(now);
            }
            run_due_work(&mut instep, now);
            if instep.current(0) == Some(1) {
                late += (now - woke.take().expect("it woke up")) / MS;
                instep.kernel().block(0, now + MS / 2);
            }
            run_due_work(&mut instep, now + MS / 2);
            (at % 4 == 3).then(|| tick(&mut instep, 1, now + MS / 2));
        }
        assert_eq!(instep.ejected(), None);
        (late, instep.counter(Counter::WakePreempt))
    };
    let (with, preempted) = late(0);
    assert!(with <= 4 && preempted > 150, "{with} ms late in 2 s, {preempted}");
    let (without, preempted) = late(WAKE);
    assert!(without > 100 && preempted == 0, "{without} ms late in 2 s, {preempted}");
}
