//! Changes of affinity on real sleeping processes, with system calls that refuse or narrow.

mod kept;

use super::*;
use crate::apply::StateDir;
use crate::apply::testing::{Sleeper, two_cpus};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

fn change(sleeper: &Sleeper, seen: &CpuSet, cpus: &CpuSet) -> AffinityChange {
    AffinityChange {
        vm: "alpha".into(),
        kind: ThreadKind::Vcpu(0),
        thread: sleeper.key(),
        seen: seen.clone(),
        cpuset: seen.clone(),
        cpus: cpus.clone(),
    }
}

fn has(sleeper: &Sleeper) -> CpuSet {
    KernelAffinity.get(sleeper.tid()).unwrap()
}

/// Of a thread beside which no other is known.
fn initial_of(journal: &Journal, key: &ThreadKey, present: &CpuSet, online: &CpuSet) -> CpuSet {
    journal.initial_of(
        key,
        &AffinityNow { present, online, cpuset: &CpuSet::new(), threads: &|| Vec::new().into() },
    )
}

fn applier() -> (tempfile::TempDir, Applier) {
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    (dir, Applier::open(lock).unwrap())
}

#[test]
fn a_change_is_made_and_journalled_and_undone() {
    let Some((a, b)) = two_cpus() else { return };
    let (_dir, mut applier) = applier();
    let sleepers = [Sleeper::start(), Sleeper::start()];
    let found = has(&sleepers[0]);
    let changes = [change(&sleepers[0], &found, &a), change(&sleepers[1], &found, &b)];
    let outcomes = applier.apply(&changes).unwrap();
    assert!(outcomes.iter().all(|o| matches!(o.applied, Applied::Set)), "{outcomes:?}");
    assert_eq!((has(&sleepers[0]), has(&sleepers[1])), (a.clone(), b));

    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    assert_eq!(stored.entries.len(), 2);
    assert!(stored.entries.values().all(|entry| entry.unpinned));
    let online = thread::online_cpus(&Root::live()).unwrap();
    let key = sleepers[0].key();
    assert_eq!(initial_of(&stored, &key, &a, &online), found);

    assert_eq!(applier.restore().unwrap().restored, 2);
    assert_eq!((has(&sleepers[0]), has(&sleepers[1])), (found.clone(), found));
    assert_eq!(Journal::load(applier.lock.state()).unwrap(), None);
}

#[test]
fn first_affinity_is_restored_after_many_changes_and_a_crash() {
    let Some((a, b)) = two_cpus() else { return };
    let (dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    applier.apply(&[change(&sleeper, &a, &b)]).unwrap();
    applier.apply(&[change(&sleeper, &b, &a)]).unwrap();
    let outcome = applier.apply(&[change(&sleeper, &a, &a)]).unwrap();
    assert!(matches!(outcome[0].applied, Applied::Unchanged));
    drop(applier);
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut next = Applier::open(lock).unwrap();
    assert_eq!((next.restore().unwrap().restored, has(&sleeper)), (1, found));
}

#[test]
fn affinity_changed_since_the_snapshot_becomes_the_original() {
    let Some((a, b)) = two_cpus() else { return };
    let (_dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    KernelAffinity.set(sleeper.tid(), &b).unwrap();
    let outcome = applier.apply(&[change(&sleeper, &a, &found)]).unwrap();
    assert!(matches!(&outcome[0].applied, Applied::Changed(now) if *now == b));
    assert_eq!(has(&sleeper), b);

    let again = AffinityChange { cpuset: found, ..change(&sleeper, &b, &a) };
    applier.apply(&[again]).unwrap();
    assert_eq!(has(&sleeper), a);
    assert_eq!((applier.restore().unwrap().restored, has(&sleeper)), (1, b));
}

#[test]
fn ended_or_reused_threads_are_reported_and_not_written() {
    let Some((a, _)) = two_cpus() else { return };
    let (_dir, mut applier) = applier();
    let mut sleeper = Sleeper::start();
    let mut reused = change(&sleeper, &has(&sleeper), &a);
    let gone = reused.clone();
    reused.thread.tid_start += 1;
    assert!(matches!(applier.apply(&[reused]).unwrap()[0].applied, Applied::Gone));
    sleeper.stop();
    assert!(matches!(applier.apply(&[gone]).unwrap()[0].applied, Applied::Gone));
    assert_eq!(Journal::load(applier.lock.state()).unwrap(), None);
}

#[test]
fn thread_that_reuses_an_id_meanwhile_is_not_touched() {
    /// A /proc in which the thread is replaced as soon as its affinity was read.
    struct Replaced(std::path::PathBuf, Cell<u32>);
    impl Replaced {
        fn write(&self, start: u32) {
            let stat = format!("7 (x) S {}{start} 0\n", "0 ".repeat(18));
            std::fs::write(self.0.join("proc/7/task/7/stat"), stat).unwrap();
        }
    }
    impl Affinity for Replaced {
        fn get(&self, _: Tid) -> io::Result<CpuSet> {
            self.write(200);
            CpuSet::parse_list("0-1").map_err(io::Error::other)
        }
        fn set(&self, _: Tid, _: &CpuSet) -> io::Result<()> {
            self.1.set(self.1.get() + 1);
            Ok(())
        }
    }
    let dir = instep_madehost::scratch_dir().unwrap();
    std::fs::create_dir_all(dir.path().join("proc/7/task/7")).unwrap();
    std::fs::create_dir_all(dir.path().join("sys/devices/system/cpu")).unwrap();
    for (file, text) in [
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("proc/uptime", "9.00 9.00\n"),
        ("proc/7/stat", &format!("7 (x) S {}50 0\n", "0 ".repeat(18))),
        ("proc/7/task/7/status", "Cpus_allowed_list:\t0-1\n"),
    ] {
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let affinity = Replaced(dir.path().to_owned(), Cell::new(0));
    affinity.write(100);
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut applier = Applier::with(lock, affinity).unwrap();
    applier.root = Root::at(dir.path());
    let change = AffinityChange {
        vm: "alpha".into(),
        kind: ThreadKind::Vcpu(0),
        thread: ThreadKey { pid: 7, pid_start: 50, tid: Tid(7), tid_start: 100 },
        seen: CpuSet::parse_list("0-1").unwrap(),
        cpuset: CpuSet::new(),
        cpus: CpuSet::parse_list("1").unwrap(),
    };
    let outcome = applier.apply(&[change]).unwrap();
    assert!(matches!(outcome[0].applied, Applied::Gone), "{outcome:?}");
    assert_eq!(applier.affinity.1.get(), 0);
}

#[test]
fn affinity_set_by_hand_while_the_journal_is_written_stays() {
    /// An operator binds the thread as soon as its affinity was read.
    struct Operator(CpuSet, Cell<bool>);
    impl Affinity for Operator {
        fn get(&self, tid: Tid) -> io::Result<CpuSet> {
            let found = KernelAffinity.get(tid)?;
            if !self.1.replace(true) {
                KernelAffinity.set(tid, &self.0)?;
            }
            Ok(found)
        }
        fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
            KernelAffinity.set(tid, cpus)
        }
    }
    let Some((a, b)) = two_cpus() else { return };
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut applier = Applier::with(lock, Operator(b.clone(), Cell::new(false))).unwrap();
    let sleeper = Sleeper::start();
    let outcome = applier.apply(&[change(&sleeper, &has(&sleeper), &a)]).unwrap();
    assert!(matches!(&outcome[0].applied, Applied::Changed(to) if *to == b), "{outcome:?}");
    assert_eq!(has(&sleeper), b);
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    assert!(stored.entries.is_empty(), "the thread is not Instep's: {stored:?}");
    assert_eq!((applier.restore().unwrap().restored, has(&sleeper)), (0, b));
}

#[test]
fn journal_of_another_living_process_is_refused() {
    let (dir, applier) = applier();
    let (other, state) = (Sleeper::start(), applier.lock.state().clone());
    let ThreadKey { pid, pid_start, .. } = other.key();
    let mut journal = Journal::new().unwrap();
    journal.holder = Holder::Instance { pid, start: pid_start };
    journal.store(&applier.lock).unwrap();
    drop(applier);
    let refused = Applier::open(state.lock().unwrap()).unwrap_err();
    assert!(matches!(refused, Error::Taken { pid: Some(of) } if of == pid), "{refused}");
    // Only its number is the same.
    journal.holder = Holder::Instance { pid, start: pid_start + 1 };
    journal.store(&state.lock().unwrap()).unwrap();
    Applier::open(state.lock().unwrap()).unwrap();
    drop(dir);
}

#[test]
fn vm_that_is_no_longer_placed_gets_its_affinity_back() {
    let Some((a, _)) = two_cpus() else { return };
    let (stays, leaves, (_dir, mut applier)) = (Sleeper::start(), Sleeper::start(), applier());
    let found = has(&stays);
    applier.apply(&[change(&stays, &found, &a), change(&leaves, &found, &a)]).unwrap();
    let placed = BTreeSet::from([(stays.key().pid, stays.key().pid_start)]);
    let report = applier.restore_others(&placed).unwrap();
    assert_eq!((report.restored, has(&leaves), has(&stays)), (1, found.clone(), a.clone()));
    assert_eq!(applier.restore_others(&placed).unwrap().restored, 0);
    // What was meant to stay does.
    applier.keep().unwrap();
    assert_eq!(applier.restore_others(&BTreeSet::new()).unwrap().restored, 0);
    assert_eq!(has(&stays), a);
    applier.restore().unwrap();
    assert_eq!(has(&stays), found);
}

#[test]
fn dead_threads_leave_the_journal_at_the_next_write() {
    let Some((a, b)) = two_cpus() else { return };
    let (_dir, mut applier) = applier();
    let (mut first, second) = (Sleeper::start(), Sleeper::start());
    let found = has(&first);
    applier.apply(&[change(&first, &found, &a)]).unwrap();
    first.stop();
    applier.apply(&[change(&second, &found, &b)]).unwrap();
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    assert_eq!(stored.entries.keys().map(|key| key.1).collect::<Vec<_>>(), [second.tid()]);
}

#[test]
fn originals_are_kept_after_a_journal_of_an_earlier_boot() {
    let Some((a, b)) = two_cpus() else { return };
    for restored_first in [false, true] {
        let (dir, mut applier) = applier();
        let sleepers = [Sleeper::start(), Sleeper::start()];
        let found = has(&sleepers[0]);
        applier.apply(&[change(&sleepers[0], &found, &b)]).unwrap();
        KernelAffinity.set(sleepers[0].tid(), &found).unwrap();
        applier.journal.boot_id = "of-another-boot".into();
        applier.keep().unwrap();
        drop(applier);
        let open = || Applier::open(StateDir::at(dir.path().join("s")).lock().unwrap());

        let mut applier = open().unwrap();
        assert!(applier.journal().is_void().unwrap());
        if restored_first {
            let report = applier.restore().unwrap();
            assert_eq!((report.restored, report.gone), (0, 1));
        }
        applier.apply(&[change(&sleepers[0], &found, &a)]).unwrap();
        applier.apply(&[change(&sleepers[1], &found, &b)]).unwrap();
        applier.keep().unwrap();
        drop(applier);
        let mut next = open().unwrap();
        let report = next.restore().unwrap();
        assert_eq!((report.restored, report.gone), (2, 0));
        assert_eq!((has(&sleepers[0]), has(&sleepers[1])), (found.clone(), found));
    }
}

#[test]
fn without_a_written_journal_nothing_is_changed() {
    let Some((a, _)) = two_cpus() else { return };
    let (dir, mut applier) = applier();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    std::fs::create_dir_all(dir.path().join("s/journal.json.part/x")).unwrap();
    let error = applier.apply(&[change(&sleeper, &found, &a)]).unwrap_err().to_string();
    assert!(error.contains("journal.json"), "{error}");
    assert_eq!(has(&sleeper), found);
}

/// Refuses, or lets the kernel keep only one CPU, as a cpuset would.
struct Strict {
    refuse: bool,
    only: CpuSet,
    sets: Cell<u32>,
}

impl Affinity for Strict {
    fn get(&self, tid: Tid) -> io::Result<CpuSet> {
        KernelAffinity.get(tid)
    }
    fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        self.sets.set(self.sets.get() + 1);
        if self.refuse {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        KernelAffinity.set(tid, &cpus.and(&self.only))
    }
}

#[test]
fn refusal_names_the_capability_and_keeps_the_journal() {
    let Some((a, _)) = two_cpus() else { return };
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let strict = Strict { refuse: true, only: CpuSet::new(), sets: Cell::new(0) };
    let mut applier = Applier::with(lock, strict).unwrap();
    let sleeper = Sleeper::start();
    let found = has(&sleeper);
    let outcome = applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    let Applied::Failed(error) = &outcome[0].applied else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("CAP_SYS_NICE"), "{error}");
    assert!(applier.journal().entries.is_empty(), "what was refused is not ours");

    applier.affinity = Strict { refuse: false, only: found.clone(), sets: Cell::new(0) };
    applier.apply(&[change(&sleeper, &found, &a)]).unwrap();
    applier.affinity.refuse = true;
    let report = applier.restore().unwrap();
    assert_eq!((report.failed.len(), report.is_complete()), (1, false));
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    assert_eq!(stored.entries.len(), 1);
    applier.affinity.refuse = false;
    assert_eq!((applier.restore().unwrap().restored, has(&sleeper)), (1, found));
}

#[test]
fn what_the_kernel_narrowed_is_reported_and_still_known_as_ours() {
    let Some((a, b)) = two_cpus() else { return };
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let strict = Strict { refuse: false, only: b.clone(), sets: Cell::new(0) };
    let mut applier = Applier::with(lock, strict).unwrap();
    let sleeper = Sleeper::start();
    KernelAffinity.set(sleeper.tid(), &a).unwrap();
    let outcome = applier.apply(&[change(&sleeper, &a, &a.or(&b))]).unwrap();
    assert!(matches!(&outcome[0].applied, Applied::Narrowed(got) if *got == b));
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    assert_eq!(stored.entries[&(sleeper.tid().0, sleeper.tid())].set, b);
    assert_eq!(applier.affinity.sets.get(), 1);
    // The cpuset is widened: the kernel gives what was asked for.
    let online = thread::online_cpus(&Root::live()).unwrap();
    let initial = initial_of(&stored, &sleeper.key(), &a.or(&b), &online);
    assert_eq!(initial, a);
}

#[test]
fn refused_change_is_not_journalled_as_ours() {
    struct Refuses;
    impl Affinity for Refuses {
        fn get(&self, tid: Tid) -> io::Result<CpuSet> {
            KernelAffinity.get(tid)
        }
        fn set(&self, _: Tid, _: &CpuSet) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
    }
    let Some((a, _)) = two_cpus() else { return };
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut applier = Applier::with(lock, Refuses).unwrap();
    let sleeper = Sleeper::start();
    let outcomes = applier.apply(&[change(&sleeper, &has(&sleeper), &a)]).unwrap();
    assert!(matches!(&outcomes[0].applied, Applied::Failed(error) if error.is_denied()));
    assert!(Journal::load(applier.lock.state()).unwrap().unwrap().entries.is_empty());
    assert_eq!(applier.restore().unwrap().restored, 0);
}

/// Threads in a cpuset: the kernel keeps what was asked for and gives what the cpuset has of it.
struct Fenced {
    asked: RefCell<BTreeMap<Tid, CpuSet>>,
    cpuset: RefCell<CpuSet>,
    sets: Cell<u32>,
}

impl Fenced {
    fn new(asked: &[(u32, &str)], cpuset: &str) -> Self {
        let asked = asked.iter().map(|(tid, list)| (Tid(*tid), cpus(list))).collect();
        let (asked, cpuset) = (RefCell::new(asked), RefCell::new(cpus(cpuset)));
        Self { asked, cpuset, sets: Cell::new(0) }
    }

    fn asked(&self, tid: u32) -> String {
        self.asked.borrow()[&Tid(tid)].to_string()
    }
}

impl Affinity for Fenced {
    fn get(&self, tid: Tid) -> io::Result<CpuSet> {
        Ok(self.asked.borrow()[&tid].and(&self.cpuset.borrow()))
    }
    fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        self.sets.set(self.sets.get() + 1);
        if !cpus.intersects(&self.cpuset.borrow()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.asked.borrow_mut().insert(tid, cpus.clone());
        Ok(())
    }
}

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// An applier on a made host of CPUs 0-7. Its one process, 7, has threads 7 to 9 in a cpuset; Instep
/// gave thread 7, which had all CPUs, CPUs 0-3, before it created the others.
fn fenced(affinity: Fenced) -> (tempfile::TempDir, Applier<Fenced>) {
    let dir = instep_madehost::scratch_dir().unwrap();
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let stat = |tid: u32| format!("{tid} (x) S {}{tid}00 0\n", "0 ".repeat(18));
    write("sys/devices/system/cpu/online", "0-7\n");
    write("sys/fs/cgroup/cgroup.controllers", "cpuset\n");
    write("sys/fs/cgroup/vm/cpuset.cpus.effective", &affinity.cpuset.borrow().to_string());
    write("proc/uptime", "9.00 9.00\n");
    write("proc/7/stat", &stat(7));
    for tid in 7..10 {
        write(&format!("proc/7/task/{tid}/stat"), &stat(tid));
        write(&format!("proc/7/task/{tid}/cgroup"), "0::/vm\n");
    }
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let mut applier = Applier::with(lock, affinity).unwrap();
    applier.root = Root::at(dir.path());
    let entry = Entry {
        vm: "alpha".into(),
        kind: ThreadKind::Emulator,
        thread: thread::key_of(&applier.root, 7, Tid(7)).unwrap(),
        original: cpus("0-7"),
        unpinned: true,
        since: 750,
        set: cpus("0-3"),
        asked: CpuSet::new(),
        pending: CpuSet::new(),
    };
    applier.journal.entries.insert((7, Tid(7)), entry);
    (dir, applier)
}

/// What came of restoring thread 7, which last was given `asked`: how many were restored and left
/// alone, what the kernel keeps for it and how often it was set.
fn restored(asked: &str, cpuset: &str) -> (usize, usize, String, u32) {
    let others = [(8, "0-7"), (9, "0-7")];
    let (_dir, mut applier) = fenced(Fenced::new(&[&[(7, asked)], &others[..]].concat(), cpuset));
    let report = applier.restore().unwrap();
    let affinity = &applier.affinity;
    (report.restored, report.left_alone.len(), affinity.asked(7), affinity.sets.get())
}

#[test]
fn cpuset_that_became_narrower_is_not_taken_for_operators_will() {
    assert_eq!(restored("0-3", "2-5"), (1, 0, "0-7".into(), 2));
    assert_eq!(restored("0-3", "0-7"), (1, 0, every_cpu(), 1));
}

fn every_cpu() -> String {
    affinity::every_cpu().to_string()
}

#[test]
fn an_operators_affinity_is_not_touched_even_for_a_moment() {
    let alone = |asked: &str, cpuset: &str| {
        assert_eq!(restored(asked, cpuset), (0, 1, asked.into(), 0), "{asked} in {cpuset}");
    };
    alone("2", "2-5");
    alone("4", "2-5");
    // CPU 9 is offline and comes back some day.
    alone("2,9", "0-7");
}

#[test]
fn what_threads_inherited_and_a_cpuset_then_cut_is_restored_too() {
    // Thread 9 was pinned by an operator.
    let affinity = Fenced::new(&[(7, "0-3"), (8, "0-3"), (9, "3")], "2-5");
    let (_dir, mut applier) = fenced(affinity);
    let report = applier.restore().unwrap();
    assert_eq!((report.restored, report.left_alone.len()), (2, 0), "{report:?}");
    assert_eq!([7, 8, 9].map(|tid| applier.affinity.asked(tid)), ["0-7", "0-7", "3"]);
}

#[test]
fn a_refused_change_forgets_nothing_of_the_one_before() {
    let Some((a, b)) = two_cpus() else { return };
    let sleeper = Sleeper::start();
    let dir = instep_madehost::scratch_dir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    let both = a.or(&b);
    let affinity = Fenced::new(&[(sleeper.tid().0, &both.to_string())], &b.to_string());
    let mut applier = Applier::with(lock, affinity).unwrap();
    let outcome = applier.apply(&[change(&sleeper, &b, &both)]).unwrap();
    assert!(matches!(&outcome[0].applied, Applied::Narrowed(got) if *got == b), "{outcome:?}");
    let outcome = applier.apply(&[change(&sleeper, &b, &a)]).unwrap();
    assert!(matches!(outcome[0].applied, Applied::Failed(_)), "{outcome:?}");

    // The cpuset is widened: the kernel gives what was asked for first.
    applier.affinity.cpuset.replace(both.clone());
    assert_eq!(applier.affinity.get(sleeper.tid()).unwrap(), both);
    let online = thread::online_cpus(&Root::live()).unwrap();
    let stored = Journal::load(applier.lock.state()).unwrap().unwrap();
    for journal in [applier.journal(), &stored] {
        assert_eq!(initial_of(journal, &sleeper.key(), &both, &online), b);
    }
}

#[test]
fn thread_that_gets_its_original_back_follows_its_cpuset_again() {
    // Thread 9 has its affinity from one that an operator had pinned.
    let back = |thread: u32| {
        let (_dir, mut applier) = fenced(Fenced::new(&[(7, "0-3"), (8, "0-3"), (9, "0-3")], "0-5"));
        let key = thread::key_of(&applier.root, 7, Tid(thread)).unwrap();
        if let Some(entry) = applier.journal.entries.get_mut(&(7, Tid(7))) {
            entry.original = cpus("0-5");
            entry.unpinned = thread != 9;
        }
        let [seen, cpuset, cpus] = ["0-3", "0-5", "0-5"].map(cpus);
        let (vm, kind) = ("alpha".into(), ThreadKind::Emulator);
        let change = AffinityChange { vm, kind, thread: key, seen, cpuset, cpus };
        let outcome = applier.apply(&[change]).unwrap();
        assert!(matches!(outcome[0].applied, Applied::Set), "{outcome:?}");
        applier.affinity.asked(thread)
    };
    assert_eq!([back(7), back(8), back(9)], [every_cpu(), every_cpu(), "0-5".into()]);
}

#[test]
fn journal_of_another_instance_is_neither_written_nor_removed() {
    let Some((a, b)) = two_cpus() else { return };
    let (dir, mut first) = applier();
    let (mine, theirs) = (Sleeper::start(), Sleeper::start());
    let found = has(&mine);
    first.apply(&[change(&mine, &found, &a)]).unwrap();
    // Somebody removes the directory, and another instance begins.
    let state = first.lock.state().clone();
    std::fs::remove_dir_all(state.path()).unwrap();
    let mut second = Applier::open(state.lock().unwrap()).unwrap();
    second.apply(&[change(&theirs, &found, &b)]).unwrap();
    let journal = || std::fs::read(state.path().join("journal.json")).unwrap();
    let written = journal();
    assert!(matches!(first.renew(), Err(Error::Taken { pid: Some(_) })));
    let refused = first.apply(&[change(&theirs, &b, &a)]).unwrap_err();
    assert!(matches!(refused, Error::Taken { .. }) && has(&theirs) == b, "{refused}");
    assert!(first.keep().is_err());
    first.restore().unwrap();
    assert_eq!((has(&mine), has(&theirs)), (found, b));
    assert_eq!(journal(), written);
    drop(dir);
}
