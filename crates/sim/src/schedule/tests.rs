//! Schedules drawn by hand, and what the recorder must say of them.

use super::*;

fn two_vms() -> Recorder {
    let known = |vcpus, hidden| WatchedVm { vcpus, rate_micro: 500_000, hidden };
    // Tasks 0 and 1 are VM 0's, 2 is VM 1's, 3 the host's own.
    Recorder::new(2, &[known(2, false), known(1, false), known(1, true)], 1000, 100)
}

#[derive(Default)]
struct Drawn(Vec<(usize, usize, bool, usize, u64, u64)>);

impl Spans for Drawn {
    fn span(&mut self, vm: usize, vcpu: usize, ran: bool, cpu: usize, since: u64, until: u64) {
        self.0.push((vm, vcpu, ran, cpu, since, until));
    }
}

fn feed(recorder: &mut Recorder, spans: &mut dyn Spans, facts: &[(u64, FactKind)]) {
    for (at, what) in facts {
        recorder.see(&Fact { at: *at, what: what.clone() }, spans);
    }
}

fn start(task: u32, cpu: u32) -> FactKind {
    FactKind::Start { task, cpu }
}

fn stop(task: u32, cpu: u32, blocks: bool) -> FactKind {
    FactKind::Stop { task, cpu, blocks }
}

fn wake(task: u32, cpu: u32) -> FactKind {
    FactKind::Wake { task, cpu }
}

#[test]
fn wait_is_charged_to_the_thread_that_has_the_cpu() {
    let (mut recorder, mut drawn) = (two_vms(), Drawn::default());
    feed(
        &mut recorder,
        &mut drawn,
        &[
            (900, wake(2, 0)),
            (900, start(2, 0)),
            (950, wake(0, 0)),
            (1040, stop(2, 0, true)),
            (1040, start(3, 0)),
            (1060, stop(3, 0, true)),
            (1070, start(0, 0)),
        ],
    );
    let found = recorder.finish(1100, &mut drawn);
    // From 1000 on: 40 behind VM 1, 20 behind the host's thread, 10 behind nobody.
    assert_eq!(found[0].instead, [0, 40, 0, 20, 10]);
    assert_eq!(found[0].steal, [70, 0]);
    assert_eq!((found[0].waits.count(), found[0].waits.longest()), (1, 70));
    assert_eq!(
        drawn.0,
        [(1, 0, true, 0, 0, 40), (0, 0, false, 0, 0, 70), (0, 0, true, 0, 70, 100)]
    );
}

#[test]
fn stacked_siblings_charge_their_own_vm_and_fall_behind() {
    let mut recorder = two_vms();
    feed(
        &mut recorder,
        &mut (),
        &[
            (1000, wake(0, 0)),
            (1000, start(0, 0)),
            (1000, wake(1, 0)),
            (1060, stop(0, 0, false)),
            (1060, start(1, 0)),
            (1090, stop(1, 0, false)),
            (1090, start(0, 0)),
        ],
    );
    let found = recorder.finish(1200, &mut ());
    // Task 1 falls 60 behind, makes 30 good while 0 waits, and falls behind by 110 again.
    assert_eq!(found[0].skew, 140);
    assert_eq!(found[0].instead[0], 60 + 30 + 110);
    // Half a CPU each: task 1 had 30 of 100.
    assert_eq!(found[0].lag, 70);
    assert_eq!(found[0].used, [100, 100]);
}

#[test]
fn a_task_that_is_chosen_again_at_once_did_not_wait() {
    let mut recorder = two_vms();
    feed(
        &mut recorder,
        &mut (),
        &[(1000, wake(0, 0)), (1000, start(0, 0)), (1050, stop(0, 0, false)), (1050, start(0, 0))],
    );
    let found = recorder.finish(1100, &mut ());
    assert_eq!((found[0].waits.count(), found[0].waits.longest()), (1, 0));
    assert_eq!(found[0].steal, [0, 0]);
}

#[test]
fn a_wait_goes_on_in_another_queue() {
    let (mut recorder, mut drawn) = (two_vms(), Drawn::default());
    let moved = FactKind::Move { task: 0, cpu: 1 };
    feed(
        &mut recorder,
        &mut drawn,
        &[
            (1000, wake(2, 0)),
            (1000, start(2, 0)),
            (1010, wake(0, 0)),
            (1030, moved),
            (1035, start(0, 1)),
        ],
    );
    let found = recorder.finish(1100, &mut ());
    assert_eq!(found[0].waits.longest(), 25);
    assert_eq!(found[0].instead, [0, 20, 0, 0, 5]);
    assert_eq!(found[0].steal[0], 25);
}

#[test]
fn facts_of_unknown_tasks_are_ignored() {
    let mut recorder = two_vms();
    feed(&mut recorder, &mut (), &[(1000, start(9, 0)), (1000, wake(0, 7))]);
    assert_eq!(recorder.finish(1100, &mut ())[0].steal, [0, 0]);
}
