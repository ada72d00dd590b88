//! What counts as a block, and so who forms a gang: real-time threads, halts for paravirtual locks, halts that KVM polls away. And
//! what becomes of a count that cannot be.

use super::counts::{TRIAL, blocks};
use super::*;

/// Gangs that were formed and dissolved.
fn gangs(instep: &mut Instep) -> (u64, u64) {
    (instep.counter(Counter::GangOn), instep.counter(Counter::GangOff))
}

#[test]
fn vcpu_preempted_by_a_real_time_thread_has_not_blocked() {
    // Two gangs; a thread of a higher class has CPU 0 for 1 ms of every 10.
    let mut instep = computing(2, &[(2, 100), (2, 100)], 0);
    let mut preempted = 0;
    for at in 1..4000 {
        let now = START + at * MS;
        match at % 10 {
            5 => {
                preempted += u32::from(instep.current(0).is_some());
                instep.kernel().take_cpu(0, now);
                assert_eq!(instep.current(0), None);
            }
            6 => instep.kernel().give_cpu_back(0, now),
            _ => {}
        }
        run_due_work(&mut instep, now);
        (at % 4 == 0).then(|| tick(&mut instep, 2, now));
    }
    assert_eq!(instep.ejected(), None);
    assert!(preempted > 390, "{preempted}");
    assert_eq!((blocks(&mut instep, 1), blocks(&mut instep, 2)), (0, 0));
    assert_eq!(gangs(&mut instep), (2, 0), "all vCPUs hardly ever block");
}

/// Two VMs of two vCPUs and one of one on two CPUs for 16 s: two compute, in the other a vCPU whose sibling lost its CPU halts after half a
/// millisecond, as for a paravirtual spinlock that the sibling holds, and goes on 20 us after the sibling does. With
/// `polled`, KVM polls for so long: the thread does not sleep. The first VM's blocks in the first and the last 4 s.
fn halts_for_a_lock(without: u32, polled: bool) -> (Instep, [u64; 2]) {
    let mut instep = computing(2, &[(2, 100), (2, 100), (1, 100)], without);
    let (mut halted, mut alone) = ([false; 2], [0; 2]);
    let mut at_end_of_second = [0; 17];
    for at in 1..64_000 {
        let now = START + at * MS / 4;
        run_due_work(&mut instep, now);
        (at % 16 == 0).then(|| tick(&mut instep, 2, now));
        for vcpu in 0..2 {
            let on = |instep: &Instep, task| (0..2).find(|cpu| instep.current(*cpu) == Some(task));
            let (own, sibling) = (on(&instep, vcpu), on(&instep, 1 - vcpu));
            if let (true, Some(cpu)) = (halted[vcpu], sibling) {
                instep.kernel().wake(vcpu, Waker::Task(cpu), now + MS / 50);
                run_due_work(&mut instep, now + MS / 50);
                halted[vcpu] = false;
            }
            let waits = own.is_some() && sibling.is_none() && !halted[1 - vcpu] && !polled;
            alone[vcpu] = if waits { alone[vcpu] + 1 } else { 0 };
            if let (2.., Some(cpu)) = (alone[vcpu], own) {
                instep.kernel().block(cpu, now);
                run_due_work(&mut instep, now);
                (halted[vcpu], alone[vcpu]) = (true, 0);
            }
        }
        at_end_of_second[(at / 4000) as usize + 1] = blocks(&mut instep, 1);
    }
    assert_eq!(instep.ejected(), None);
    let all = at_end_of_second;
    (instep, [all[4], all[16] - all[12]])
}

#[test]
fn vcpus_that_halt_for_a_preempted_sibling_become_a_gang() {
    // Each halt is a block, and so no gang is formed, until a trial shows that there is none while both run together.
    let (mut instep, [first, last]) = halts_for_a_lock(0, false);
    assert!(first > 100 && last == 0, "{first}, then {last}");
    assert_eq!((gangs(&mut instep), instep.counter(Counter::Trial)), ((2, 0), 1));
    let (mut instep, [first, last]) = halts_for_a_lock(TRIAL, false);
    assert!(first > 3000 && last > 3000, "{first}, then {last}");
    assert_eq!(gangs(&mut instep), (1, 0));
}

#[test]
fn halts_that_kvm_polls_away_are_cpu_time() {
    let (mut instep, blocks) = halts_for_a_lock(0, true);
    assert_eq!((gangs(&mut instep), blocks), ((2, 0), [0, 0]));
}

#[test]
fn account_that_counts_too_few_threads_ends_the_scheduler() {
    let mut instep = computing(2, &[(2, 100)], 0);
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_forget_threads(state, 1) };
    assert_eq!(instep.ejected(), None);
    instep.kernel().block(0, START + MS);
    let why = instep.ejected().expect("its vCPU left an account without threads");
    assert!(why.contains("scx_bpf_error: a thread leaves the account of VM"), "{why}");
    assert!(why.ends_with("which counts none"), "{why}");
}

#[test]
fn domain_without_cpus_ends_the_scheduler() {
    let mut instep = computing(2, &[(3, 100)], 0);
    let state = instep.kernel().globals();
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_forget_cpus(state, 0) };
    instep.kernel().block(0, START + MS);
    instep.kernel().wake(0, Waker::Other(0), START + MS);
    let why = instep.ejected().expect("its vCPU has no queue");
    assert!(why.contains("scx_bpf_error: CPU") && why.ends_with("which has no CPUs"), "{why}");
}
