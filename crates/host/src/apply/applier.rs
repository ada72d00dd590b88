//! Carries out changes of affinity: checks that the thread is still as the decision saw it,
//! journals, sets, reads back.
//!
//! It decides nothing. A thread that someone else changed between the snapshot and now is left
//! for the next cycle, which sees the new affinity as the thread's own.

use crate::apply::affinity::{self, Affinity, KernelAffinity};
use crate::apply::journal::{self, Entry, Holder, Journal, ThreadKind};
use crate::apply::restore::{self, RestoreReport};
use crate::apply::state::InstanceLock;
use crate::apply::thread::{self, ThreadKey};
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use std::collections::BTreeSet;

/// One thread shall use other CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityChange {
    /// The VM's name, for the journal.
    pub vm: String,
    /// The thread's part in the VM.
    pub kind: ThreadKind,
    /// The thread; see [`thread::key_of`].
    pub thread: ThreadKey,
    /// Online CPUs it could use when the decision was made.
    pub seen: CpuSet,
    /// CPUs that the VM's cpuset allows, empty when not known. A thread that could use all of
    /// them counts as never pinned and is restored to whatever its cpuset then allows.
    pub cpuset: CpuSet,
    /// The CPUs it shall use, never empty.
    pub cpus: CpuSet,
}

/// What became of one change, in the order of the changes.
#[derive(Debug)]
pub struct Outcome {
    /// The thread.
    pub tid: Tid,
    /// What became of it.
    pub applied: Applied,
}

/// See [`Outcome`].
#[derive(Debug)]
pub enum Applied {
    /// The thread uses the CPUs asked for (those of them that are online).
    Set,
    /// It had them already.
    Unchanged,
    /// The kernel kept only these: the thread's cpuset excludes the others.
    Narrowed(CpuSet),
    /// Someone else set it to this since the snapshot; not touched.
    Changed(CpuSet),
    /// The thread is gone, or its id belongs to another one now.
    Gone,
    /// Not done, and why.
    Failed(Error),
}

/// The one instance's hands: affinities through the journal. Dropping it restores nothing; call
/// [`Applier::restore`] or [`Applier::keep`].
#[derive(Debug)]
pub struct Applier<A = KernelAffinity> {
    lock: InstanceLock,
    journal: Journal,
    affinity: A,
    root: Root,
    /// The journal in memory differs from the file in a way that restoring depends on.
    stale: bool,
}

impl Applier {
    /// Takes up the journal found in the locked directory, or begins one. Look at
    /// [`Applier::journal`] first: when [`Journal::is_abandoned`], an instance crashed and
    /// [`Applier::restore`] is due; when its holder is [`Holder::Kept`], the placement is adopted.
    ///
    /// # Errors
    /// A damaged journal; an unreadable /proc.
    pub fn open(lock: InstanceLock) -> Result<Self, Error> {
        Self::with(lock, KernelAffinity)
    }
}

impl<A: Affinity> Applier<A> {
    /// As [`Applier::open`], with other system calls.
    ///
    /// # Errors
    /// A damaged journal; an unreadable /proc.
    pub fn with(lock: InstanceLock, affinity: A) -> Result<Self, Error> {
        let journal = match Journal::load(lock.state())? {
            Some(journal) => journal,
            None => Journal::new()?,
        };
        Ok(Self { lock, journal, affinity, root: Root::live(), stale: false })
    }

    /// What was changed and not put back.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Applies the changes: one write of the journal, then the system calls. Changes of the same
    /// thread twice are a mistake of the caller; the later one counts.
    ///
    /// # Errors
    /// The journal cannot be written or the online CPUs not be read; then nothing was changed.
    pub fn apply(&mut self, changes: &[AffinityChange]) -> Result<Vec<Outcome>, Error> {
        let online = thread::online_cpus(&self.root)?;
        if self.journal.is_void()? {
            // Of an earlier boot: nothing in it is true any more, its boot id least of all.
            self.journal = Journal::new()?;
        }
        let now = thread::now_ticks(&self.root)?;
        let ready: Vec<Option<Applied>> =
            changes.iter().map(|change| self.prepare(change, &online, now)).collect();
        if ready.iter().any(Option::is_none) {
            self.journal.holder = journal::this_instance()?;
            self.journal.drop_dead();
            self.store()?;
        }
        let mut outcomes = Vec::with_capacity(changes.len());
        for (change, ready) in changes.iter().zip(ready) {
            let applied = ready.unwrap_or_else(|| self.set(change, &online));
            outcomes.push(Outcome { tid: change.thread.tid, applied });
        }
        if self.stale {
            self.store()?;
        }
        Ok(outcomes)
    }

    /// Puts back what was found on every journalled thread, and on threads created by them since,
    /// and removes the journal when nothing failed. Doing it twice does nothing more.
    ///
    /// # Errors
    /// The journal cannot be written or removed, or the online CPUs not be read.
    pub fn restore(&mut self) -> Result<RestoreReport, Error> {
        let pids: BTreeSet<u32> = self.journal.entries.keys().map(|(pid, _)| *pid).collect();
        self.restore_processes(&pids)
    }

    /// Puts back what was found in these processes only, such as a VM that is no longer placed.
    /// Processes that were never touched are passed over.
    ///
    /// # Errors
    /// As [`Applier::restore`].
    pub fn restore_processes(&mut self, pids: &BTreeSet<u32>) -> Result<RestoreReport, Error> {
        let online = thread::online_cpus(&self.root)?;
        let chosen = |key: &(u32, Tid)| pids.contains(&key.0);
        let mut report = RestoreReport::default();
        if self.journal.is_void()? {
            report.gone = self.journal.entries.keys().filter(|key| chosen(key)).count();
            self.journal.entries.retain(|key, _| !chosen(key));
        }
        let mut failed = Vec::new();
        let entries = self.journal.entries.iter().filter(|(key, _)| chosen(key));
        for (_, entry) in entries {
            if !restore::restore_one(&self.affinity, &self.root, entry, &online, &mut report) {
                failed.push(entry.clone());
            }
        }
        for entry in self.inherited(pids, &online) {
            if !restore::restore_one(&self.affinity, &self.root, &entry, &online, &mut report) {
                failed.push(entry);
            }
        }
        self.journal.entries.retain(|key, _| !chosen(key));
        let failed = failed.into_iter().map(|entry| ((entry.thread.pid, entry.thread.tid), entry));
        self.journal.entries.extend(failed);
        if self.journal.entries.is_empty() {
            Journal::remove(&self.lock)?;
            self.journal = Journal::new()?;
        } else {
            self.store()?;
        }
        Ok(report)
    }

    /// Entries for threads that are not journalled and have inherited an affinity from one that is.
    /// Asked after those were restored, so that no thread inherits any more.
    fn inherited(&self, pids: &BTreeSet<u32>, online: &CpuSet) -> Vec<Entry> {
        let mut found = Vec::new();
        let touched = |pid: &&u32| {
            self.journal.entries.range((**pid, Tid(0))..).next().is_some_and(|(k, _)| k.0 == **pid)
        };
        for pid in pids.iter().filter(touched) {
            // A process that is gone has no threads to restore.
            for thread in thread::threads_of(&self.root, *pid).unwrap_or_default() {
                let known = self.journal.entries.get(&(*pid, thread.tid));
                if known.is_some_and(|entry| entry.thread == thread) {
                    continue;
                }
                let Ok(present) = self.affinity.get(thread.tid) else { continue };
                if let Some(origin) = self.journal.origin_of(&thread, &present, online)
                    && present != origin.original.and(online)
                {
                    let kind = ThreadKind::Emulator;
                    found.push(Entry { thread, kind, ..origin.clone() });
                }
            }
        }
        found
    }

    /// Leaves the placement standing after this instance ends: `restore` undoes it later, the next
    /// `run` adopts it.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn keep(&mut self) -> Result<(), Error> {
        if self.journal.entries.is_empty() {
            return Journal::remove(&self.lock);
        }
        self.journal.holder = Holder::Kept;
        self.store()
    }

    /// Journals the change in memory; an answer when there is nothing to do.
    fn prepare(&mut self, change: &AffinityChange, online: &CpuSet, now: u64) -> Option<Applied> {
        match self.prepared_entry(change, online, now) {
            Ok(Ok(entry)) => {
                self.journal.entries.insert((entry.thread.pid, entry.thread.tid), entry);
                None
            }
            Ok(Err(applied)) => Some(applied),
            Err(error) if error.is_gone() => Some(Applied::Gone),
            Err(error) => Some(Applied::Failed(error)),
        }
    }

    fn prepared_entry(
        &self,
        change: &AffinityChange,
        online: &CpuSet,
        now: u64,
    ) -> Result<Result<Entry, Applied>, Error> {
        let ThreadKey { pid, tid, .. } = change.thread;
        if !change.thread.is_alive(&self.root)? {
            return Ok(Err(Applied::Gone));
        }
        let present = self.affinity.get(tid).map_err(|error| affinity::get_error(tid, error))?;
        if present != change.seen.and(online) {
            return Ok(Err(Applied::Changed(present)));
        }
        if present == change.cpus.and(online) {
            return Ok(Err(Applied::Unchanged));
        }
        if let Some(entry) = self.journal.origin_of(&change.thread, &present, online) {
            let (vm, kind, thread) = (change.vm.clone(), change.kind, change.thread);
            let pending = change.cpus.clone();
            let since = if entry.thread == thread { entry.since } else { now };
            return Ok(Ok(Entry { vm, kind, thread, since, pending, ..entry.clone() }));
        }
        let whole = thread::allowed_of(&self.root, pid, tid)?;
        Ok(Ok(Entry {
            vm: change.vm.clone(),
            kind: change.kind,
            thread: change.thread,
            original: if whole.and(online) == present { whole } else { present.clone() },
            unpinned: !change.cpuset.is_empty() && present == change.cpuset.and(online),
            since: now,
            set: CpuSet::new(),
            pending: change.cpus.clone(),
        }))
    }

    fn set(&mut self, change: &AffinityChange, online: &CpuSet) -> Applied {
        let tid = change.thread.tid;
        match self.affinity.set(tid, &change.cpus) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Applied::Gone,
            Err(error) => {
                self.forget_pending(change.thread);
                return Applied::Failed(affinity::set_error(tid, &change.cpus, error));
            }
        }
        let got = match self.affinity.get(tid) {
            Ok(got) => got,
            Err(_) => return Applied::Gone,
        };
        let narrowed = got != change.cpus.and(online);
        // The file says `pending`; that is as good as `set` unless the kernel changed it.
        self.stale |= narrowed;
        if let Some(entry) = self.journal.entries.get_mut(&(change.thread.pid, tid)) {
            entry.set = if narrowed { got.clone() } else { change.cpus.clone() };
            entry.pending = CpuSet::new();
        }
        if narrowed { Applied::Narrowed(got) } else { Applied::Set }
    }

    /// The kernel refused: the thread is as it was, and one that was never changed is not ours.
    fn forget_pending(&mut self, thread: ThreadKey) {
        self.stale = true;
        let key = (thread.pid, thread.tid);
        if let Some(entry) = self.journal.entries.get_mut(&key) {
            entry.pending = CpuSet::new();
            if entry.set.is_empty() {
                self.journal.entries.remove(&key);
            }
        }
    }

    fn store(&mut self) -> Result<(), Error> {
        self.journal.store(&self.lock)?;
        self.stale = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::StateDir;
    use crate::apply::testing::{Sleeper, two_cpus};
    use std::cell::Cell;
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

    fn applier() -> (tempfile::TempDir, Applier) {
        let dir = tempfile::tempdir().unwrap();
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
        assert_eq!(stored.initial_of(&key, &a, &online), found);

        assert_eq!(applier.restore().unwrap().restored, 2);
        assert_eq!((has(&sleepers[0]), has(&sleepers[1])), (found.clone(), found));
        assert_eq!(Journal::load(applier.lock.state()).unwrap(), None);
    }

    #[test]
    fn the_first_affinity_is_restored_after_many_changes_and_a_crash() {
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
    fn an_affinity_changed_since_the_snapshot_is_respected_and_becomes_the_original() {
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
    fn threads_that_are_gone_or_reused_are_told_and_nothing_is_written() {
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
        std::fs::remove_dir_all(dir.path().join("s")).unwrap();
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
    fn a_refusal_names_the_capability_and_a_failed_restore_keeps_the_journal() {
        let Some((a, _)) = two_cpus() else { return };
        let dir = tempfile::tempdir().unwrap();
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
    fn what_the_kernel_narrowed_is_told_and_still_known_as_ours() {
        let Some((a, b)) = two_cpus() else { return };
        let dir = tempfile::tempdir().unwrap();
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
    }

    #[test]
    fn a_thread_that_the_kernel_refuses_to_change_is_not_journalled_as_ours() {
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
        let dir = tempfile::tempdir().unwrap();
        let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
        let mut applier = Applier::with(lock, Refuses).unwrap();
        let sleeper = Sleeper::start();
        let outcomes = applier.apply(&[change(&sleeper, &has(&sleeper), &a)]).unwrap();
        assert!(matches!(&outcomes[0].applied, Applied::Failed(error) if error.is_denied()));
        assert!(Journal::load(applier.lock.state()).unwrap().unwrap().entries.is_empty());
        assert_eq!(applier.restore().unwrap().restored, 0);
    }
}
