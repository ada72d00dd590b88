//! How many vCPUs of a VM run and wait, whatever becomes of them.

use super::*;

/// How many of a VM's vCPUs run and wait, as it counts them.
fn counted(instep: &mut Instep, vm: u32) -> (u32, u32) {
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with, and only read.
    unsafe { (c::shim_vm_running(state, vm), c::shim_vm_waiting(state, vm)) }
}

#[test]
fn moved_waiting_vcpu_is_counted_once_on_any_kernel() {
    for release in [Release::V6_12, Release::V7_2] {
        let tasks: Vec<TaskSetup> = (0..5).map(|_| task_on(&[0, 1], 0)).collect();
        let vms = table(&[(3, 100), (2, 100)]);
        let mut instep = on_release(&cores(2), &tasks, &vms, 0, release);
        (0..5).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
        for at in 0..400 {
            let now = START + at * MS;
            run_due_work(&mut instep, now);
            // Each is bound to the other CPU in turn, as placement does.
            let (task, cpu) = ((at % 5) as usize, (at / 5 % 2) as usize);
            instep.kernel().set_affinity(task, &CpuMask::of([cpu]), now);
            run_due_work(&mut instep, now);
            (0..2).for_each(|cpu| instep.kernel().tick(cpu, now));
            run_due_work(&mut instep, now);
            let ran: Vec<usize> = (0..2).filter_map(|cpu| instep.current(cpu)).collect();
            let run = ran.iter().filter(|task| **task < 3).count() as u32;
            assert_eq!(counted(&mut instep, 1), (run, 3 - run), "{release:?}, {at} ms");
        }
        assert_eq!(instep.ejected(), None);
    }
}

/// How often the vCPUs of a VM blocked, as evidence has it.
pub(super) fn blocks(instep: &mut Instep, vm: u32) -> u64 {
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with, and only read.
    unsafe { c::shim_vm_blocks(state, vm) }
}

#[test]
fn only_sleep_counts_as_a_block() {
    let mut instep = loaded(&[(1, 100), (1, 100)], &[&[0, 1], &[0, 1]], 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
    run_due_work(&mut instep, START);
    // Taken off its queue and put back, as by a change of its settings, of its CPUs or of its class.
    for cpu in [1, 0] {
        instep.kernel().set_affinity(0, &CpuMask::of([cpu]), START + MS);
        run_due_work(&mut instep, START + MS);
    }
    assert_eq!(blocks(&mut instep, 1), 0);
    let cpu = (0..2).find(|cpu| instep.current(*cpu) == Some(0)).expect("it runs");
    instep.kernel().block(cpu, START + 2 * MS);
    assert_eq!((blocks(&mut instep, 1), blocks(&mut instep, 2)), (1, 0));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn directed_yield_leaves_the_spinner_its_slice() {
    // Two vCPUs of a VM run, two others of it wait; one that spins yields to one that waits.
    let mut instep = computing(2, &[(4, 100)], 0);
    let from = instep.current(0).expect("busy");
    let to = (0..4).find(|task| (0..2).all(|cpu| instep.current(cpu) != Some(*task)));
    let slice = |instep: &mut Instep| instep.kernel().task(from).scx.slice.get();
    let before = slice(&mut instep);
    assert!(before > 0 && !instep.kernel().yield_to(0, to, START + MS));
    run_due_work(&mut instep, START + MS);
    assert_eq!((instep.current(0), slice(&mut instep)), (Some(from), before));
    // One that names nobody ends it (sched_yield).
    assert!(instep.kernel().yield_to(0, None, START + MS));
    run_due_work(&mut instep, START + MS);
    assert_ne!(instep.current(0), Some(from));
}

/// A task has another place in the table of threads.
pub(super) fn number(instep: &mut Instep, task: usize, vm: u32, slot: u32) {
    let (tid, start) = {
        let task = instep.kernel().task(task);
        (task.pid.get() as u32, task.start_boottime / 10_000_000)
    };
    // SAFETY: the table has room for all tasks.
    unsafe { c::shim_set_thread(instep.kernel().threads(), tid, start, vm, slot) };
}

/// A VM's entry is begun anew; threads look themselves up again from the next generation on.
fn begin(instep: &mut Instep, vm: u32) {
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_begin_vm(instep.kernel().globals(), vm) };
}

pub(super) fn next_generation(instep: &mut Instep) {
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_next_generation(instep.kernel().globals()) };
}

#[test]
fn vcpu_of_an_entry_begun_anew_is_counted_once() {
    let only: &[usize] = &[0];
    let mut instep = loaded(&[(1, 100), (1, 100)], &[only; 2], 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
    run_due_work(&mut instep, START);
    let waits = 1 - instep.current(0).expect("one runs");
    let vm = waits as u32 + 1;
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_end_vm(instep.kernel().globals(), vm) };
    // While user space clears the entry, nothing is counted in it.
    instep.kernel().block(0, START + MS / 2);
    run_due_work(&mut instep, START + MS / 2);
    assert_eq!((instep.current(0), counted(&mut instep, vm)), (Some(waits), (0, 1)));
    instep.kernel().wake(1 - waits, Waker::Other(0), START + MS / 2);
    instep.kernel().block(0, START + MS);
    run_due_work(&mut instep, START + MS);
    instep.kernel().wake(waits, Waker::Other(0), START + MS);
    assert_eq!((instep.current(0), counted(&mut instep, vm)), (Some(1 - waits), (0, 1)));
    begin(&mut instep, vm);
    instep.kernel().block(0, START + MS);
    run_due_work(&mut instep, START + MS);
    assert_eq!((instep.current(0), counted(&mut instep, vm)), (Some(waits), (1, 0)));
    next_generation(&mut instep);
    instep.kernel().block(0, START + 2 * MS);
    assert_eq!(counted(&mut instep, vm), (0, 0));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn vcpu_that_changes_its_vm_while_it_waits_is_counted_once() {
    // Where the kernel does not tell that a thread was taken from a queue.
    let tasks: Vec<TaskSetup> = (0..3).map(|_| task_on(&[0], 0)).collect();
    let vms = table(&[(2, 100), (1, 100)]);
    let mut instep = on_release(&cores(1), &tasks, &vms, 0, Release::V6_12);
    [2, 0].iter().for_each(|task| instep.kernel().wake(*task, Waker::Other(0), START));
    run_due_work(&mut instep, START);
    assert_eq!((instep.current(0), counted(&mut instep, 1)), (Some(2), (0, 1)));
    number(&mut instep, 0, 0, u32::MAX);
    next_generation(&mut instep);
    instep.kernel().block(0, START + MS);
    run_due_work(&mut instep, START + MS);
    assert_eq!((instep.current(0), counted(&mut instep, 1)), (Some(0), (0, 0)));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn entry_begun_anew_counts_no_thread_of_the_old_vm() {
    // One CPU; two vCPUs of a VM, and two tasks that are of none until it is gone.
    let only: &[usize] = &[0];
    let mut instep = loaded(&[(2, 100)], &[only; 4], 0);
    (0..2).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START));
    run_due_work(&mut instep, START);
    let runs = instep.current(0).expect("one runs");
    assert_eq!(counted(&mut instep, 1), (1, 1));
    for task in 0..4 {
        let (vm, slot) = if task < 2 { (0, u32::MAX) } else { (1, task as u32 - 2) };
        number(&mut instep, task, vm, slot);
    }
    begin(&mut instep, 1);
    next_generation(&mut instep);
    (2..4).for_each(|task| instep.kernel().wake(task, Waker::Other(0), START + MS));
    assert_eq!(counted(&mut instep, 1), (0, 2));
    // The old one's go to sleep: who ran, and then who waited.
    instep.kernel().block(0, START + 2 * MS);
    run_due_work(&mut instep, START + 2 * MS);
    for at in 3..40 {
        let now = START + at * MS;
        if instep.current(0).is_some_and(|task| task < 2) {
            assert_ne!(instep.current(0), Some(runs));
            instep.kernel().block(0, now);
        }
        (at % 4 == 0).then(|| instep.kernel().tick(0, now));
        run_due_work(&mut instep, now);
    }
    assert_eq!(counted(&mut instep, 1), (1, 1));
    instep.kernel().block(0, START + 41 * MS);
    run_due_work(&mut instep, START + 41 * MS);
    instep.kernel().block(0, START + 42 * MS);
    assert_eq!(counted(&mut instep, 1), (0, 0));
    assert_eq!(instep.ejected(), None);
}

#[test]
fn a_vm_that_blocks_is_tried_as_a_gang_now_and_then() {
    // Each vCPU of the first VM sleeps for a tenth of a millisecond after half a millisecond; another VM computes.
    let trials = |without: u32| {
        let mut instep = computing(2, &[(2, 100), (2, 100)], without);
        for at in 1..8000 {
            let now = START + at * MS / 2;
            run_due_work(&mut instep, now);
            (at % 8 == 0).then(|| tick(&mut instep, 2, now));
            let mut asleep = Vec::new();
            for cpu in 0..2 {
                if let Some(task) = instep.current(cpu).filter(|task| *task < 2) {
                    instep.kernel().block(cpu, now);
                    run_due_work(&mut instep, now);
                    asleep.push(task);
                }
            }
            for task in asleep {
                instep.kernel().wake(task, Waker::Interrupt(0), now + MS / 10);
                run_due_work(&mut instep, now + MS / 10);
            }
        }
        assert_eq!(instep.ejected(), None);
        instep.counter(Counter::Trial)
    };
    let some = trials(0);
    // Pauses between trials grow from 0.4 s.
    assert!((1..8).contains(&some), "{some}");
    assert_eq!(trials(TRIAL), 0);
}

/// INSTEP_M_TRIAL
pub(super) const TRIAL: u32 = 1 << 8;
