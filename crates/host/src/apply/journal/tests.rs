//! The file on a real file system, and whose doing an affinity is.

use super::*;
use std::io::Write as _;

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn entry(tid: u32) -> Entry {
    Entry {
        vm: "alpha".into(),
        kind: ThreadKind::Vcpu(0),
        thread: ThreadKey { pid: 7, pid_start: 1, tid: Tid(tid), tid_start: 2 },
        original: cpus("0-7"),
        unpinned: true,
        since: 100,
        set: CpuSet::new(),
        asked: CpuSet::new(),
        pending: cpus("2-3"),
    }
}

fn journal() -> Journal {
    let mut journal = Journal::new().unwrap();
    journal.entries.insert((7, Tid(9)), entry(9));
    let emulator = Entry { kind: ThreadKind::Emulator, set: cpus("1"), ..entry(10) };
    journal.entries.insert((7, Tid(10)), emulator);
    journal
}

fn locked() -> (tempfile::TempDir, InstanceLock) {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
    (dir, lock)
}

#[test]
fn what_is_stored_is_loaded() {
    let (_dir, lock) = locked();
    assert_eq!(Journal::load(lock.state()).unwrap(), None);
    let mut journal = journal();
    journal.store(&lock).unwrap();
    journal.holder = Holder::Kept;
    journal.store(&lock).unwrap();
    assert_eq!(Journal::load(lock.state()).unwrap().unwrap(), journal);
    let mode = fs::metadata(lock.state().file(FILE)).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(!journal.is_void().unwrap() && !journal.is_abandoned().unwrap());
    Journal::remove(&lock).unwrap();
    Journal::remove(&lock).unwrap();
    assert_eq!(Journal::load(lock.state()).unwrap(), None);
}

#[test]
fn cut_journal_is_an_error_that_names_and_keeps_the_file() {
    let (_dir, lock) = locked();
    journal().store(&lock).unwrap();
    let path = lock.state().file(FILE);
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        let text = parse(&path, &whole[..cut]).unwrap_err().to_string();
        assert!(text.contains("journal.json") && text.contains("--discard-damaged"), "{text}");
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    Journal::load(lock.state()).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), whole[..whole.len() / 2]);
}

#[test]
fn garbage_and_strange_entries_are_refused() {
    let (_dir, lock) = locked();
    journal().store(&lock).unwrap();
    let path = lock.state().file(FILE);
    let good = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"tid\":9", "\"tid\":0"),
        ("\"tid\":9", "\"tid\":10"),
        ("\"original\":\"0-7\"", "\"original\":\"\""),
        ("\"original\":\"0-7\"", "\"original\":\"7-0\""),
        ("\"original\":\"0-7\"", "\"original\":\"0-99999999\""),
        ("{\"schema\"", "[{\"schema\""),
    ] {
        assert!(good.contains(from), "{from}");
        let bad = good.replacen(from, to, 1);
        assert!(parse(&path, bad.as_bytes()).is_err(), "{from} -> {to}");
    }
    assert!(parse(&path, &[0xff; 64]).is_err());
    let later = good.replace("instep.journal/1", "instep.journal/9");
    let text = parse(&path, later.as_bytes()).unwrap_err().to_string();
    assert!(text.contains("instep.journal/9") && text.contains("version"), "{text}");
}

#[test]
fn fields_of_a_newer_version_are_passed_over() {
    let (_dir, lock) = locked();
    journal().store(&lock).unwrap();
    let path = lock.state().file(FILE);
    let mut newer = fs::read_to_string(&path).unwrap();
    for part in ["\"schema\":", "\"vm\":", "\"pid\":7"] {
        assert!(newer.contains(part), "{part}");
        newer = newer.replace(part, &format!("\"newer\":[{{\"a\":1}}],{part}"));
    }
    assert_eq!(parse(&path, newer.as_bytes()).unwrap(), journal());
}

#[test]
fn only_a_damaged_journal_is_set_aside() {
    let (_dir, lock) = locked();
    journal().store(&lock).unwrap();
    assert_eq!(Journal::discard_damaged(&lock).unwrap(), None);
    fs::write(lock.state().file(FILE), "{").unwrap();
    let aside = Journal::discard_damaged(&lock).unwrap().unwrap();
    assert_eq!(fs::read_to_string(aside).unwrap(), "{");
    assert_eq!(Journal::load(lock.state()).unwrap(), None);
}

#[test]
fn a_journal_of_another_boot_or_a_dead_instance_is_reported() {
    let mut journal = journal();
    assert!(!journal.is_abandoned().unwrap());
    let Holder::Instance { pid, start } = journal.holder else { panic!() };
    journal.holder = Holder::Instance { pid, start: start + 1 };
    assert!(journal.is_abandoned().unwrap());
    journal.boot_id = "another".into();
    assert!(journal.is_void().unwrap());
}

#[test]
fn initial_affinity_is_the_original_while_no_other_set_it() {
    let journal = journal();
    let (online, ours) = (cpus("0-5"), cpus("2-3"));
    let initial = |key, present: &CpuSet| initial_of(&journal, key, present, &online);
    assert_eq!(initial(key(9, 2), &ours), cpus("0-5"));
    assert_eq!(initial(key(9, 3), &ours), ours, "a reused id");
    assert_eq!(initial(key(9, 2), &cpus("4")), cpus("4"), "an operator");
    assert_eq!(initial(key(8, 99), &ours), ours, "there before, never touched");
    assert_eq!(initial(key(8, 100), &ours), cpus("0-5"), "inherited");
    assert_eq!(initial(key(8, 100), &cpus("4")), cpus("4"), "new and pinned");
    let other = ThreadKey { pid: 6, ..key(8, 100) };
    assert_eq!(initial(other, &ours), ours, "another process");
    let (online, present) = (cpus("0-1"), cpus("0-1"));
    assert_eq!(initial_of(&journal, key(9, 2), &present, &online), present, "offlined");
}

fn key(tid: u32, tid_start: u64) -> ThreadKey {
    ThreadKey { pid: 7, pid_start: 1, tid: Tid(tid), tid_start }
}

/// Where no other thread of the process is known.
fn initial_of(journal: &Journal, key: ThreadKey, present: &CpuSet, online: &CpuSet) -> CpuSet {
    journal.initial_of(
        &key,
        &AffinityNow { present, online, cpuset: &CpuSet::new(), threads: &|| Vec::new().into() },
    )
}

#[test]
fn set_that_an_untouched_thread_has_was_not_inherited() {
    let initial = |original: &str, (other, its): (ThreadKey, &str)| {
        let mut journal = journal();
        journal.entries.values_mut().for_each(|entry| entry.original = cpus(original));
        let (online, ours) = (cpus("0-5"), cpus("2-3"));
        let threads = || vec![(key(8, 100), cpus("2-3")), (other, cpus(its))].into();
        let now = AffinityNow {
            present: &ours,
            online: &online,
            cpuset: &CpuSet::new(),
            threads: &threads,
        };
        journal.initial_of(&key(8, 100), &now).to_string()
    };
    assert_eq!(initial("2", (key(7, 1), "2-3")), "2-3", "a main thread of these CPUs");
    assert_eq!(initial("2", (key(7, 1), "0-5")), "2", "it has others");
    assert_eq!(initial("2", (key(11, 100), "2-3")), "2", "it may have inherited, too");
    assert_eq!(initial("2", (key(9, 2), "2-3")), "2", "it has them from Instep");
    assert_eq!(initial("0-3", (key(7, 1), "2-3")), "0-3", "nothing is taken from it");
}

#[test]
fn journal_that_somebody_wrote_into_is_not_one_that_was_left() {
    let (_dir, lock) = locked();
    journal().store(&lock).unwrap();
    let left = Journal::file_id(lock.state());
    assert_eq!(Journal::file_id(lock.state()), left);
    let path = lock.state().file(FILE);
    fs::File::options().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_ne!(Journal::file_id(lock.state()), left);
}

#[test]
fn what_a_narrower_cpuset_leaves_of_ours_is_no_operators_will() {
    let (journal, online) = (journal(), cpus("0-5"));
    let initial = |present: &str, cpuset: &str| {
        let (present, cpuset) = (&cpus(present), &cpus(cpuset));
        let now = AffinityNow { present, online: &online, cpuset, threads: &|| Vec::new().into() };
        journal.initial_of(&key(9, 2), &now).to_string()
    };
    assert_eq!(initial("3", "3-5"), "0-5");
    assert_eq!(initial("3", "2-5"), "3", "the cpuset has the other CPU, too: an operator");
    assert_eq!(initial("4-5", "4-5"), "4-5", "nothing of ours is left");
}
