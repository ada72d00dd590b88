//! Clocks of domains drift apart: what a thread has used and is owed counts by the clock of the domain where it runs or waits.

use super::*;

#[test]
fn thread_of_domain_whose_clock_is_slow_shares_cpu_of_another() {
    let machine = Machine {
        core: (0..4).map(|cpu| vec![cpu]).collect(),
        node: (0..4).map(|cpu| cpu / 2).collect(),
    };
    let allowed = [0..4, 0..2, 0..2, 0..2, 0..2, 2..3, 3..4];
    let task = |cpus: &std::ops::Range<usize>| TaskSetup {
        allowed: CpuMask::of(cpus.clone()),
        cpu: cpus.start,
        flags: 0,
    };
    let tasks: Vec<TaskSetup> = allowed.iter().map(task).collect();
    let mut instep = fits(&machine, &tasks, &table(&[(1, 100); 7]), MOVES);
    let wake = |instep: &mut Instep, task, now| {
        instep.kernel().wake(task, Waker::Other(0), now);
        run_due_work(instep, now);
    };
    (0..5).for_each(|task| wake(&mut instep, task, START));
    // Five compute in the first domain, one of them on CPUs of the second, where nothing else runs: its clock is faster.
    let runs_there = |instep: &Instep| (2..4).any(|cpu| instep.current(cpu) == Some(0));
    for at in (0..200_000).step_by(4) {
        tick(&mut instep, 4, START + at * MS);
    }
    assert!(runs_there(&instep));
    let mut had = [0; 7];
    for at in 200_000..202_000 {
        let now = START + at * MS;
        if at == 200_000 {
            (5..7).for_each(|task| wake(&mut instep, task, now));
        }
        run_due_work(&mut instep, now);
        (at % 4 == 0).then(|| tick(&mut instep, 4, now));
        (0..4).filter_map(|cpu| instep.current(cpu)).for_each(|task| had[task] += 1);
    }
    assert_eq!(instep.ejected(), None);
    assert!(had[5..].iter().all(|had| *had > 800), "{had:?}");
}
