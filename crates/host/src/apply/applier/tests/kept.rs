//! Placements that an earlier instance left standing.

use super::*;

#[test]
fn a_kept_placement_is_adopted_and_restorable() {
    let Some((a, _)) = two_cpus() else { return };
    let (dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    applier.keep().unwrap();
    drop(applier);
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut next = Applier::open(lock).unwrap();
    assert_eq!(next.journal().holder, Holder::Kept);
    assert!(!next.journal().is_abandoned().unwrap());
    let pids = [sleeper.tid().0, 1].into_iter().collect();
    assert_eq!(next.restore_processes(&pids).unwrap().restored, 1);
    assert_eq!(has(&sleeper), found);
}

#[test]
fn kept_placement_stands_when_later_run_cannot_write_the_journal() {
    let Some((a, b)) = two_cpus() else { return };
    let (dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    applier.apply(&[change(&sleeper, &has(&sleeper), &a)]).unwrap();
    applier.keep().unwrap();
    std::fs::create_dir_all(dir.path().join("s/journal.json.part/x")).unwrap();
    applier.apply(&[change(&sleeper, &a, &b)]).unwrap_err();
    assert_eq!((applier.journal().holder, has(&sleeper)), (Holder::Kept, a));
}

#[test]
fn kept_placement_survives_a_later_run_that_is_refused() {
    let Some((a, _)) = two_cpus() else { return };
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let strict = Strict { refuse: false, only: a.clone(), sets: Cell::new(0) };
    let mut applier = Applier::with(lock, strict).unwrap();
    let (own, foreign) = (Sleeper::start(), Sleeper::start());
    let found = has(&own);
    applier.apply(&[change(&own, &found, &a)]).unwrap();
    applier.keep().unwrap();
    applier.affinity.refuse = true;
    applier.apply(&[change(&foreign, &found, &a)]).unwrap();
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    for journal in [applier.journal(), &stored] {
        assert_eq!((journal.holder, journal.entries.len()), (Holder::Kept, 1));
    }
    applier.affinity.refuse = false;
    applier.apply(&[change(&foreign, &found, &a)]).unwrap();
    assert_ne!(applier.journal().holder, Holder::Kept, "it answers for what it changed");
}

#[test]
fn a_kept_placement_is_this_instances_once_it_takes_it_over() {
    let Some((a, _)) = two_cpus() else { return };
    let (dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    assert_eq!(applier.take_over().unwrap(), 0, "it answers for it already");
    applier.keep().unwrap();
    let stored = || Journal::load(&StateDir::at(dir.path().join("s"))).unwrap().unwrap();
    let blocker = dir.path().join("s/journal.json.part");
    std::fs::create_dir_all(blocker.join("x")).unwrap();
    applier.take_over().unwrap_err();
    assert_eq!((applier.journal().holder, stored().holder), (Holder::Kept, Holder::Kept));
    std::fs::remove_dir_all(blocker).unwrap();
    assert_eq!(applier.take_over().unwrap(), 1);
    assert_eq!(stored().holder, journal::this_instance().unwrap());
    assert_eq!(has(&sleeper), a, "nothing was set");
    applier.restore().unwrap();
    assert_eq!(has(&sleeper), found);
}
