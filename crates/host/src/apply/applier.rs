//! Carries out changes of affinity: checks that the thread is still as the decision saw it,
//! journals, sets, reads back.
//!
//! It decides nothing. A thread that someone else changed between the snapshot and now is left
//! for the next cycle, which sees the new affinity as the thread's own.

use crate::apply::affinity::{self, Affinity, KernelAffinity};
use crate::apply::damon::{self, Undone};
use crate::apply::journal::{self, AffinityNow, Entry, FileId, Holder, Journal, ThreadKind};
use crate::apply::restore::{self, RestoreReport};
use crate::apply::state::InstanceLock;
use crate::apply::thread::{self, ThreadKey};
use crate::discover::cgroup::Cpusets;
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

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
pub struct ChangeOutcome {
    /// The thread.
    pub tid: Tid,
    /// What became of it.
    pub applied: Applied,
}

/// See [`ChangeOutcome`].
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
    /// The file that was last read or written.
    file: Option<FileId>,
}

impl Applier {
    /// Takes up the journal found in the locked directory, or begins one. Look at
    /// [`Applier::journal`] first: when [`Journal::is_abandoned`], an instance crashed and
    /// [`Applier::restore`] is due; when its holder is [`Holder::Kept`], the placement is adopted.
    ///
    /// # Errors
    /// A damaged journal; an unreadable /proc; another living process answers for the journal, such as one
    /// of a version with other locks ([`Error::Taken`]).
    pub fn open(lock: InstanceLock) -> Result<Self, Error> {
        Self::with(lock, KernelAffinity)
    }
}

impl<A: Affinity> Applier<A> {
    /// As [`Applier::open`], with other system calls.
    ///
    /// # Errors
    /// As [`Applier::open`].
    pub fn with(lock: InstanceLock, affinity: A) -> Result<Self, Error> {
        let file = Journal::file_id(lock.state());
        let journal = match Journal::load(lock.state())? {
            Some(journal) => match journal.other_holder()? {
                Some(pid) => return Err(Error::Taken { pid: Some(pid) }),
                None => journal,
            },
            None => Journal::new()?,
        };
        Ok(Self { lock, journal, affinity, root: Root::live(), stale: false, file })
    }

    /// Checks that the journal and the locks are still where they were left, and puts them there again
    /// when somebody removed or replaced them. Without them nobody but this process could restore.
    /// Whether that was so.
    ///
    /// # Errors
    /// They cannot be put there again. With [`Error::Taken`] another instance has a lock by now: this one
    /// must change nothing more but restore.
    pub fn renew(&mut self) -> Result<bool, Error> {
        let is_new = self.lock.renew()?;
        let entries = !self.journal.entries.is_empty();
        if Journal::file_id(self.lock.state()) == self.file || !entries {
            return Ok(is_new);
        }
        self.store()?;
        Ok(true)
    }

    /// What was changed and not put back.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Applies the changes: one write of the journal, then the system calls. Changes of the same
    /// thread twice are a mistake of the caller; the later one counts.
    ///
    /// # Errors
    /// The journal cannot be written or the online CPUs not be read; then nothing was changed.
    pub fn apply(&mut self, changes: &[AffinityChange]) -> Result<Vec<ChangeOutcome>, Error> {
        let online = thread::online_cpus(&self.root)?;
        if self.journal.is_void()? {
            // Of an earlier boot: nothing in it is true any more, its boot id least of all.
            self.journal = Journal::new()?;
        }
        let now = thread::now_ticks(&self.root)?;
        let ready: Vec<Result<Option<Entry>, Applied>> =
            changes.iter().map(|change| self.prepare(change, &online, now)).collect();
        let before = self.journal.holder;
        if ready.iter().any(Result::is_ok) {
            self.journal.holder = journal::this_instance()?;
            self.journal.drop_dead();
            // What an earlier run meant to stand still does when this one can change nothing.
            self.store().inspect_err(|_| self.journal.holder = before)?;
        }
        let mut outcomes = Vec::with_capacity(changes.len());
        for (change, ready) in changes.iter().zip(ready) {
            let applied = ready.map_or_else(|done| done, |known| self.set(change, known, &online));
            outcomes.push(ChangeOutcome { tid: change.thread.tid, applied });
        }
        let changed =
            |done: &ChangeOutcome| matches!(done.applied, Applied::Set | Applied::Narrowed(_));
        if !outcomes.iter().any(changed) {
            self.stale |= self.journal.holder != before;
            self.journal.holder = before;
        }
        if self.stale {
            self.store()?;
        }
        Ok(outcomes)
    }

    /// Puts back what was found on every journalled thread, and on threads created by them since,
    /// and removes the journal when nothing failed. Removes the monitor of DAMON that is on record, too.
    /// Doing it twice does nothing more.
    ///
    /// # Errors
    /// The journal cannot be written or removed, or the online CPUs not be read.
    pub fn restore(&mut self) -> Result<RestoreReport, Error> {
        let pids: BTreeSet<u32> = self.journal.entries.keys().map(|(pid, _)| *pid).collect();
        let report = self.restore_processes(&pids);
        // After the affinities: the kernel may be busy with it for seconds.
        let monitor = self.remove_monitor();
        Ok(RestoreReport { monitor, ..report? })
    }

    /// Removes DAMON's monitor that is on record in the state directory, which nobody else holds; `None` when none is.
    pub fn remove_monitor(&self) -> Option<Result<Undone, Error>> {
        damon::undo(&self.root, self.lock.state()).transpose()
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
        let (affinity, root, cpusets) = (&self.affinity, &self.root, Cpusets::new(&self.root));
        let mut host = restore::RestoreContext { affinity, root, online: &online, cpusets };
        let mut failed = Vec::new();
        let entries = self.journal.entries.iter().filter(|(key, _)| chosen(key));
        for (_, entry) in entries {
            if !restore::restore_one(&mut host, entry, &mut report) {
                failed.push(entry.clone());
            }
        }
        for entry in self.inherited(pids, &mut host) {
            if !restore::restore_one(&mut host, &entry, &mut report) {
                failed.push(entry);
            }
        }
        self.journal.entries.retain(|key, _| !chosen(key));
        let failed = failed.into_iter().map(|entry| ((entry.thread.pid, entry.thread.tid), entry));
        self.journal.entries.extend(failed);
        match self.lock.renew_journals() {
            // The journal there is another instance's, which needs it.
            Err(Error::Taken { .. }) => return Ok(report),
            renewed => _ = renewed?,
        }
        if self.journal.entries.is_empty() {
            Journal::remove(&self.lock)?;
            self.journal = Journal::new()?;
        } else {
            self.store()?;
        }
        Ok(report)
    }

    /// Puts back what this instance found in processes that live and are not among `placed`, each of those
    /// with its start.
    ///
    /// # Errors
    /// As [`Applier::restore`].
    pub fn restore_others(
        &mut self,
        placed: &BTreeSet<(u32, u64)>,
    ) -> Result<RestoreReport, Error> {
        let is_other = |thread: &ThreadKey| {
            let main = ThreadKey { tid: Tid(thread.pid), ..*thread };
            !placed.contains(&(thread.pid, thread.pid_start)) && main.may_be_alive()
        };
        let entries = self.journal.entries.values().filter(|entry| is_other(&entry.thread));
        let pids: BTreeSet<u32> = entries.map(|entry| entry.thread.pid).collect();
        if pids.is_empty() || self.journal.holder == Holder::Kept {
            return Ok(RestoreReport::default());
        }
        self.restore_processes(&pids)
    }

    /// Entries for threads that are not journalled and have inherited an affinity from one that is.
    /// Asked after those were restored, so that no thread inherits any more.
    fn inherited(
        &self,
        pids: &BTreeSet<u32>,
        host: &mut restore::RestoreContext<'_, A>,
    ) -> Vec<Entry> {
        let online = host.online;
        let mut found = Vec::new();
        let touched = |pid: &&u32| {
            self.journal.entries.range((**pid, Tid(0))..).next().is_some_and(|(k, _)| k.0 == **pid)
        };
        for pid in pids.iter().filter(touched) {
            let all = OnceCell::new();
            let threads = || Rc::clone(all.get_or_init(|| Rc::new(self.affinities_of(*pid))));
            // A process that is gone has no threads to restore.
            for thread in thread::threads_of(&self.root, *pid).unwrap_or_default() {
                let known = self.journal.entries.get(&(*pid, thread.tid));
                if known.is_some_and(|entry| entry.thread == thread) {
                    continue;
                }
                let Ok(present) = self.affinity.get(thread.tid) else { continue };
                let cpuset = host.cpusets.of(*pid, thread.tid);
                let now =
                    AffinityNow { present: &present, online, cpuset: &cpuset, threads: &threads };
                if let Some(origin) = self.journal.origin_of(&thread, &now)
                    && present != origin.original.and(online)
                {
                    let kind = ThreadKind::Emulator;
                    found.push(Entry { thread, kind, ..origin.clone() });
                }
            }
        }
        found
    }

    /// Every thread of a process with the CPUs that it may use, but those that end meanwhile.
    fn affinities_of(&self, pid: u32) -> Vec<(ThreadKey, CpuSet)> {
        let threads = thread::threads_of(&self.root, pid).unwrap_or_default();
        let with = |thread: ThreadKey| Some((thread, self.affinity.get(thread.tid).ok()?));
        threads.into_iter().filter_map(with).collect()
    }

    /// Leaves the placement standing after this instance ends: `restore` undoes it later, the next
    /// `run` adopts it.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn keep(&mut self) -> Result<(), Error> {
        // Only the placement stays. A monitor that cannot be removed stays on record, for `instep restore` and the next run.
        let _ = damon::undo(&self.root, self.lock.state());
        self.lock.renew_journals()?;
        if self.journal.entries.is_empty() {
            return Journal::remove(&self.lock);
        }
        self.journal.holder = Holder::Kept;
        self.store()
    }

    /// Answers for a placement that an earlier instance left standing: it is this one's from now on, put back when
    /// this one ends or is killed. How many threads of it there are; 0 when this one answers already.
    ///
    /// # Errors
    /// The journal cannot be written; the placement stands as before then.
    pub fn take_over(&mut self) -> Result<usize, Error> {
        if self.journal.holder != Holder::Kept || self.journal.is_void()? {
            return Ok(0);
        }
        self.journal.holder = journal::this_instance()?;
        self.journal.drop_dead();
        self.store().inspect_err(|_| self.journal.holder = Holder::Kept)?;
        Ok(self.journal.entries.len())
    }

    /// Journals the change in memory: the entry that was there before, or an answer when there is
    /// nothing to do.
    fn prepare(
        &mut self,
        change: &AffinityChange,
        online: &CpuSet,
        now: u64,
    ) -> Result<Option<Entry>, Applied> {
        match self.prepared_entry(change, online, now) {
            Ok(prepared) => prepared.map(|entry| {
                self.journal.entries.insert((entry.thread.pid, entry.thread.tid), entry)
            }),
            Err(error) if error.is_gone() => Err(Applied::Gone),
            Err(error) => Err(Applied::Failed(error)),
        }
    }

    fn prepared_entry(
        &self,
        change: &AffinityChange,
        online: &CpuSet,
        now: u64,
    ) -> Result<Result<Entry, Applied>, Error> {
        let ThreadKey { pid, tid, .. } = change.thread;
        if let Some(other) = self.is_as_seen(change, online)? {
            return Ok(Err(other));
        }
        let present = change.seen.and(online);
        if present == change.cpus.and(online) {
            return Ok(Err(Applied::Unchanged));
        }
        let threads = || Rc::new(self.affinities_of(pid));
        let seen =
            AffinityNow { present: &present, online, cpuset: &change.cpuset, threads: &threads };
        if let Some(entry) = self.journal.origin_of(&change.thread, &seen) {
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
            asked: CpuSet::new(),
            pending: change.cpus.clone(),
        }))
    }

    /// Makes the change; `known` is the thread's entry before it was prepared.
    fn set(&mut self, change: &AffinityChange, known: Option<Entry>, online: &CpuSet) -> Applied {
        let tid = change.thread.tid;
        // Writing the journal took a while on a slow disk: the id may be another thread's by now, or
        // an operator may have bound the thread. Only the call itself is still between this look and
        // the change.
        match self.is_as_seen(change, online) {
            Ok(None) => {}
            Ok(Some(other)) => {
                self.undo(change, known);
                return other;
            }
            Err(error) => return self.failed(change, known, error),
        }
        match self.put(change, online) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Applied::Gone,
            Err(error) => {
                let error = affinity::set_error(tid, &change.cpus, error);
                return self.failed(change, known, error);
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
            entry.pending = CpuSet::new();
            entry.set = if narrowed { got.clone() } else { change.cpus.clone() };
            entry.asked = if narrowed { change.cpus.clone() } else { CpuSet::new() };
        }
        if narrowed { Applied::Narrowed(got) } else { Applied::Set }
    }

    /// `None` while the thread is the one that the decision saw, with the affinity that it saw.
    fn is_as_seen(
        &self,
        change: &AffinityChange,
        online: &CpuSet,
    ) -> Result<Option<Applied>, Error> {
        if !change.thread.is_alive(&self.root)? {
            return Ok(Some(Applied::Gone));
        }
        let tid = change.thread.tid;
        let present = self.affinity.get(tid).map_err(|error| affinity::get_error(tid, error))?;
        Ok((present != change.seen.and(online)).then_some(Applied::Changed(present)))
    }

    /// The system call. A thread that nobody had pinned and that gets back what it had follows its
    /// cpuset again, as when it is restored.
    fn put(&self, change: &AffinityChange, online: &CpuSet) -> io::Result<()> {
        let tid = change.thread.tid;
        let entry = self.journal.entries.get(&(change.thread.pid, tid));
        let back = |entry: &&Entry| entry.unpinned && entry.original.and(online) == change.cpus;
        if entry.filter(back).is_some() {
            self.affinity.set(tid, &affinity::every_cpu())?;
            if self.affinity.get(tid)? == change.cpus {
                return Ok(());
            }
        }
        self.affinity.set(tid, &change.cpus)
    }

    /// Not done: the thread is as it was, so what was known of it is true again.
    fn failed(&mut self, change: &AffinityChange, known: Option<Entry>, why: Error) -> Applied {
        if why.is_gone() {
            return Applied::Gone;
        }
        self.undo(change, known);
        Applied::Failed(why)
    }

    /// Nothing was changed: the journal says again what it said before.
    fn undo(&mut self, change: &AffinityChange, known: Option<Entry>) {
        self.stale = true;
        let key = (change.thread.pid, change.thread.tid);
        match known {
            Some(known) => self.journal.entries.insert(key, known),
            None => self.journal.entries.remove(&key),
        };
    }

    fn store(&mut self) -> Result<(), Error> {
        self.lock.renew_journals()?;
        self.journal.store(&self.lock)?;
        self.file = Journal::file_id(self.lock.state());
        self.stale = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
