//! Threads that are made in a cgroup, and more cgroups than there is room for.

use super::groups::{Host, assert_near};
use super::*;

/// Entries of the table of cgroups here (`SHIM_MAX_GROUPS`), of which those of ordinary users take half.
const ROOM: u32 = 4096;

/// CPUs and a task that computes in cgroup 1, which lies in no other.
fn host(cpus: usize, tasks: usize, vms: &[(usize, u32)]) -> Instep {
    let task = |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
    let tasks: Vec<TaskSetup> = (0..tasks).map(task).collect();
    let mut instep = fits(&cores(cpus), &tasks, &table(vms), 0);
    add(&mut instep, 1, 0, 0);
    instep
}

/// A cgroup of weight 100 below another, of this user.
fn add(instep: &mut Instep, group: u32, above: u32, owner: u32) {
    instep.set_cgroup(group, &Cgroup { above, shares: Cgroup::SHARES, limit: None });
    // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
    unsafe { c::shim_give_group(instep.kernel().globals(), group, owner) }
}

/// The running task looks at its cgroup when the clock ticks.
fn visit(instep: &mut Instep, group: u32, now: u64) {
    instep.put_into(0, group);
    tick(instep, 2, now);
}

#[test]
fn cgroups_of_users_leave_half_of_the_table_to_others() {
    let mut instep = host(2, 1, &[]);
    instep.put_into(0, 1);
    instep.kernel().wake(0, Waker::Other(0), START);
    run_due_work(&mut instep, START);
    let last = 2 + ROOM / 2 + 100;
    for group in 2..=last {
        add(&mut instep, group, 1, 1000);
        visit(&mut instep, group, START + u64::from(group) * MS);
    }
    let known = (2..=last).filter(|group| instep.group_seen(*group).is_some()).count();
    assert_eq!(known, ROOM as usize / 2);
    let mut now = START + 10_000 * MS;
    // In one that is not known its time counts in the nearest that is.
    visit(&mut instep, last, now);
    let want = |instep: &mut Instep| instep.group_seen(1).expect("it was visited").want_ns;
    let before = want(&mut instep);
    for _ in 0..25 {
        now += 4 * MS;
        tick(&mut instep, 2, now);
    }
    assert_eq!(want(&mut instep) - before, 100 * MS);
    // There is room for one of the host.
    add(&mut instep, ROOM - 1, 1, 0);
    visit(&mut instep, ROOM - 1, now + 4 * MS);
    assert!(instep.group_seen(ROOM - 1).is_some());
    assert_eq!(instep.ejected(), None);
}

#[test]
fn weight_of_the_cgroup_above_holds_for_those_not_known() {
    // Services of weights 300 and 100; the second one's eight threads lie in cgroups below it for which there is no room.
    let mut host =
        Host::new(&cores(4), &[], 16, &[(0, 300, 0..8), (0, 100, 0..0), (2, 100, 8..16)]);
    for task in 8..16 {
        // Read as cgroup 3, but its number is beyond the table.
        host.instep.put_into(task, ROOM + 3);
    }
    host.wake(0..16);
    let ran = host.ran(3, 4);
    assert_near(&[ran[..8].iter().sum(), ran[8..].iter().sum()], &[3.0, 1.0], 0.05);
    assert!(host.instep.group_seen(3).is_none());
}

#[test]
fn threads_that_live_for_moments_are_charged_to_their_cgroups_limit() {
    // A cgroup of half a CPU. On each of four CPUs threads are made that compute for 2 ms and end before the clock ticks.
    let mut instep = host(4, 100, &[]);
    let limit = CpuLimit { quota: 50 * MS, period: 100 * MS, burst: 0 };
    instep.set_cgroup(1, &Cgroup { above: 0, shares: Cgroup::SHARES, limit: Some(limit) });
    // Those that were there when the scheduler came have ended.
    (0..100).for_each(|task| instep.kernel().exit(task, START));
    let mut ran = 0;
    let (mut free, mut until): (Vec<usize>, Vec<Option<u64>>) =
        ((0..100).collect(), vec![None; 100]);
    for step in 1..=4000 {
        let now = START + step * MS / 2;
        run_due_work(&mut instep, now);
        for cpu in 0..4 {
            let Some(task) = instep.current(cpu) else { continue };
            ran += 1;
            let end = *until[task].get_or_insert(now + 2 * MS);
            if now >= end {
                instep.kernel().block(cpu, now);
                instep.kernel().exit(task, now);
                until[task] = None;
                free.push(task);
                run_due_work(&mut instep, now);
            }
        }
        if let Some(task) = free.pop() {
            instep.put_into(task, 1);
            instep.kernel().fork(task, None, step as usize % 4, now);
            run_due_work(&mut instep, now);
        }
        (step % 8 == 0).then(|| tick(&mut instep, 4, now));
    }
    assert_eq!(instep.ejected(), None);
    let percent = f64::from(ran) / 2.0 / 2000.0 * 100.0;
    assert!((47.0..=54.0).contains(&percent), "{percent} % of 50");
}

#[test]
fn thread_made_in_a_vm_counts_as_the_vms_at_once() {
    // Two CPUs, a VM of one vCPU, whose process makes another thread that the table does not have.
    let mut instep = host(2, 2, &[(1, 100)]);
    instep.kernel().exit(1, START);
    instep.kernel().wake(0, Waker::Other(0), START);
    run_due_work(&mut instep, START);
    let running = |instep: &mut Instep| {
        // SAFETY: it is the state that this scheduler was loaded with.
        unsafe { c::shim_vm_running(instep.kernel().globals(), 1) }
    };
    assert_eq!(running(&mut instep), 1);
    instep.put_into(1, 1);
    instep.kernel().fork(1, Some(0), 0, START + MS);
    run_due_work(&mut instep, START + MS);
    assert_eq!((instep.current(0), instep.current(1)), (Some(0), Some(1)));
    assert_eq!(running(&mut instep), 2);
    assert!(instep.group_seen(1).is_some(), "its cgroup is known from its first moment");
    // A process of its own is the host's.
    instep.kernel().block(1, START + 2 * MS);
    instep.kernel().exit(1, START + 2 * MS);
    instep.kernel().fork(1, None, 1, START + 3 * MS);
    run_due_work(&mut instep, START + 3 * MS);
    assert_eq!(running(&mut instep), 1);
    assert_eq!(instep.ejected(), None);
}

#[test]
fn reused_thread_id_of_a_vcpu_is_the_hosts() {
    // Two CPUs, a VM of two vCPUs, one of which ends before user space notices: its entry is still in the table.
    let mut instep = host(2, 3, &[(2, 100)]);
    instep.kernel().exit(2, START);
    for task in 0..2 {
        instep.kernel().wake(task, Waker::Other(0), START);
        run_due_work(&mut instep, START);
    }
    // Threads of the VM that want a CPU, and for how long its second vCPU waited.
    let seen = |instep: &mut Instep| {
        let state = instep.kernel().globals();
        // SAFETY: it is the state that this scheduler was loaded with, and only read.
        unsafe {
            let wanting = c::shim_vm_running(state, 1) + c::shim_vm_waiting(state, 1);
            (wanting, c::shim_longest_wait_us(state, 1))
        }
    };
    let waited = seen(&mut instep).1;
    assert_eq!(seen(&mut instep).0, 2);
    let cpu = (0..2).find(|cpu| instep.current(*cpu) == Some(1)).expect("it runs");
    instep.kernel().block(cpu, START + 10 * MS);
    instep.kernel().exit(1, START + 10 * MS);
    run_due_work(&mut instep, START + 10 * MS);
    // A process of the host is made on the same thread id, and another thread in it.
    let mut now = START + 20 * MS;
    for (task, leader) in [(1, None), (2, Some(1))] {
        instep.put_into(task, 1);
        instep.kernel().fork(task, leader, cpu, now);
        run_due_work(&mut instep, now);
    }
    tick(&mut instep, 2, now);
    let wanted = |instep: &mut Instep| instep.group_seen(1).expect("its thread ran").want_ns;
    let before = wanted(&mut instep);
    for _ in 0..100 {
        now += 4 * MS;
        tick(&mut instep, 2, now);
        assert_eq!(seen(&mut instep), (1, waited));
    }
    // Three threads on two CPUs: those that wait of the host's count in its cgroup, too.
    assert_eq!(wanted(&mut instep) - before, 2 * 400 * MS);
    assert_eq!(instep.ejected(), None);
}
