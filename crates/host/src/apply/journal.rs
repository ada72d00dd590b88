//! The journal: which affinity every touched thread had before, so that it can be put back after
//! anything, a crash included.
//!
//! One file, `journal.json`, schema `instep.journal/1`. It is replaced as a whole and on stable
//! storage before the first system call of a cycle, hence at any moment
//!
//! ```text
//! an entry's thread has `original`, `set`, `asked` or `pending`, or what its cpuset leaves of them
//!                     -> nobody else touched it: ours to undo
//! ... anything else   -> someone else set it since
//! ```
//!
//! A thread that is created later gets the affinity of the one that creates it, so a new thread of
//! the same process with a set of Instep's own has inherited it; it belongs to the original of that
//! entry (`since` tells later from earlier). Not so if the original is narrower and a thread that
//! Instep never touched has the same set: the new one may have it from that, or from libvirt, which gives
//! all CPUs to a vCPU that it adds.
//!
//! It does not know whether a thread is still alive; [`ThreadKey`] does.
//!
//! Fields that this version does not know are passed over: a newer version wrote them, and what it
//! changed can be put back all the same. What would be wrong without a field takes another schema.

use crate::apply::instance::{Instance, InstanceLife, boot_id};
use crate::apply::state::{InstanceLock, StateDir};
use crate::apply::thread::ThreadKey;
use crate::error::Error;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
pub use instep_state::Holder;
use instep_state::Outlives;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The version written and read.
pub const SCHEMA: &str = "instep.journal/1";
const FILE: &str = "journal.json";
/// About 200 bytes an entry: room for 300,000 threads.
const MAX_JOURNAL: u64 = 64 << 20;

/// What a thread does for its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// Runs the guest's CPU of this number.
    Vcpu(u32),
    /// Main loop, I/O or vhost thread of the monitor.
    Emulator,
}

/// One touched thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The VM's name, for messages.
    pub vm: String,
    /// Its part in the VM.
    pub kind: ThreadKind,
    /// The thread.
    pub thread: ThreadKey,
    /// Its affinity before Instep first touched it, offline CPUs included; never empty.
    #[serde(with = "instep_state::list")]
    pub original: CpuSet,
    /// Whether `original` was all that the thread's cpuset allowed: nobody had pinned it.
    pub unpinned: bool,
    /// When Instep first touched it, clock ticks since boot.
    #[serde(default)]
    pub since: u64,
    /// What the kernel made of the last finished change.
    #[serde(with = "instep_state::list", default, skip_serializing_if = "CpuSet::is_empty")]
    pub set: CpuSet,
    /// What that change asked for if the kernel kept only `set` of it: kernels from 6.2 on give the
    /// rest when the cpuset is widened (`user_cpus_ptr`, kernel/sched/core.c).
    #[serde(with = "instep_state::list", default, skip_serializing_if = "CpuSet::is_empty")]
    pub asked: CpuSet,
    /// What a change asks for that is under way.
    #[serde(with = "instep_state::list", default, skip_serializing_if = "CpuSet::is_empty")]
    pub pending: CpuSet,
}

impl Entry {
    /// What the thread may have from Instep.
    fn ours(&self) -> impl Iterator<Item = &CpuSet> {
        [&self.set, &self.asked, &self.pending].into_iter().filter(|ours| !ours.is_empty())
    }

    /// Whether an affinity of `present` (online CPUs only) is Instep's own doing.
    pub fn is_ours(&self, present: &CpuSet, online: &CpuSet) -> bool {
        self.ours().any(|ours| {
            let left = ours.and(online);
            // With none of its CPUs online a thread gets others from the kernel.
            left.is_empty() || left == *present
        })
    }

    /// Whether an affinity of `present` is what `reach`, the online CPUs of a cpuset that became
    /// narrower, leaves of Instep's own doing. An operator's set that is just that cannot be told
    /// from it; the thread may use no more CPUs then, whoever is right.
    pub(crate) fn is_left_of_ours(&self, present: &CpuSet, reach: &CpuSet) -> bool {
        !present.is_empty() && self.ours().any(|ours| ours.and(reach) == *present)
    }
}

/// Everything Instep has changed and not put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// `/proc/sys/kernel/random/boot_id` of the boot it speaks of; void after the next.
    pub boot_id: String,
    /// Who answers for it.
    pub holder: Holder,
    /// The touched threads by process and thread.
    pub entries: BTreeMap<(u32, Tid), Entry>,
}

/// What a thread and those beside it may use now.
pub struct AffinityNow<'a> {
    /// Online CPUs that the thread may use.
    pub present: &'a CpuSet,
    /// The online CPUs.
    pub online: &'a CpuSet,
    /// What the thread's cpuset allows, empty where that is not known.
    pub cpuset: &'a CpuSet,
    /// All threads of its process with the online CPUs that they may use. Asked only for a thread that may have
    /// inherited from another one.
    pub threads: &'a dyn Fn() -> Rc<Vec<(ThreadKey, CpuSet)>>,
}

/// A journal file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Device and inode.
    inode: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    schema: String,
    boot_id: String,
    holder: Holder,
    threads: Vec<Entry>,
}

impl Journal {
    /// A journal of nothing, held by this process.
    ///
    /// # Errors
    /// When this process cannot be read under /proc.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { boot_id: boot_id()?, holder: this_instance()?, entries: BTreeMap::new() })
    }

    /// Reads the journal, `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read, or it is damaged or of another version: the message names the file and
    /// the next step, and the file stays as it is.
    pub fn load(state: &StateDir) -> Result<Option<Self>, Error> {
        let path = state.file(FILE);
        let mut bytes = Vec::new();
        let read = instep_state::open(&path)
            .and_then(|file| file.take(MAX_JOURNAL + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => parse(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::read(path, source)),
        }
    }

    /// Where it is in this directory, if there is one.
    pub fn path_in(state: &StateDir) -> PathBuf {
        state.file(FILE)
    }

    /// Whether the boot it speaks of is over: none of its threads exists any more.
    ///
    /// # Errors
    /// An unreadable boot id.
    pub fn is_void(&self) -> Result<bool, Error> {
        Ok(self.boot_id != boot_id()?)
    }

    /// Whether the instance that held it ended without restoring.
    ///
    /// # Errors
    /// An unreadable /proc.
    pub fn is_abandoned(&self) -> Result<bool, Error> {
        match self.holder {
            Holder::Kept => Ok(false),
            Holder::Instance { pid, start } => {
                let boot_id = self.boot_id.clone();
                Ok(Instance { boot_id, pid, start }.life()? != InstanceLife::Runs)
            }
        }
    }

    /// The process that answers for it, if that is another one than this and lives.
    ///
    /// # Errors
    /// An unreadable /proc.
    pub(crate) fn other_holder(&self) -> Result<Option<u32>, Error> {
        let Holder::Instance { pid, .. } = self.holder else { return Ok(None) };
        let is_other = self.holder != this_instance()? && !self.is_abandoned()?;
        Ok(is_other.then_some(pid))
    }

    /// What the thread could use before Instep touched it, or the one it inherited from; what it may use now
    /// when Instep never did or someone else set it since.
    pub fn initial_of(&self, thread: &ThreadKey, now: &AffinityNow<'_>) -> CpuSet {
        match self.origin_of(thread, now) {
            Some(entry) => entry.original.and(now.online),
            None => now.present.clone(),
        }
    }

    /// The entry that explains why the thread has what it may use now: its own, or that of a thread of the
    /// same process from which it inherited.
    pub(crate) fn origin_of(&self, thread: &ThreadKey, now: &AffinityNow<'_>) -> Option<&Entry> {
        let reach = now.online.and(now.cpuset);
        let is_ours = |entry: &Entry| {
            entry.is_ours(now.present, now.online) || entry.is_left_of_ours(now.present, &reach)
        };
        if let Some(own) = self.entry_of(thread) {
            return is_ours(own).then_some(own);
        }
        let process = (thread.pid, Tid(0))..=(thread.pid, Tid(u32::MAX));
        // Of several the widest original: a thread created by one that was pinned may have been
        // created by one that was not.
        let entry = self
            .entries
            .range(process)
            .map(|(_, entry)| entry)
            .filter(|entry| entry.thread.pid_start == thread.pid_start)
            .filter(|entry| thread.tid_start >= entry.since && is_ours(entry))
            .max_by_key(|entry| entry.original.len())?;
        // Giving back an original that has all that it may use now takes nothing from a thread that has its set otherwise.
        if now.present.is_subset(&entry.original) {
            return Some(entry);
        }
        let is_from_elsewhere = |(other, cpus): &(ThreadKey, CpuSet)| {
            cpus == now.present && other.tid_start < entry.since && self.entry_of(other).is_none()
        };
        (!(now.threads)().iter().any(is_from_elsewhere)).then_some(entry)
    }

    /// The entry of this very thread.
    fn entry_of(&self, thread: &ThreadKey) -> Option<&Entry> {
        self.entries.get(&(thread.pid, thread.tid)).filter(|entry| entry.thread == *thread)
    }

    /// Drops entries of dead processes, and of dead threads except one for each set that threads
    /// created by them may have inherited.
    pub(crate) fn drop_dead(&mut self) {
        let alive = |thread: ThreadKey| thread.may_be_alive();
        let main = |thread: ThreadKey| ThreadKey { tid: Tid(thread.pid), ..thread };
        self.entries.retain(|_, entry| alive(entry.thread) || alive(main(entry.thread)));
        let sort = |entry: &Entry| {
            let ours: Vec<CpuSet> = entry.ours().cloned().collect();
            (entry.thread.pid, entry.thread.pid_start, ours, entry.original.clone())
        };
        let (living, mut dead): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.entries).into_iter().partition(|(_, e)| alive(e.thread));
        let mut known: BTreeSet<_> = living.values().map(sort).collect();
        dead.retain(|_, entry| known.insert(sort(entry)));
        self.entries = living;
        self.entries.append(&mut dead);
    }

    /// Replaces the file: after this returns, the new content survives a crash of the machine; if
    /// it fails, the old content stands.
    pub(crate) fn store(&self, lock: &InstanceLock) -> Result<(), Error> {
        let stored = Stored {
            schema: SCHEMA.into(),
            boot_id: self.boot_id.clone(),
            holder: self.holder,
            threads: self.entries.values().cloned().collect(),
        };
        let path = lock.state().file(FILE);
        let failed = |source| Error::system(format!("cannot write {}", path.display()), source);
        let bytes = serde_json::to_vec(&stored).map_err(|error| failed(error.into()))?;
        instep_state::replace(&path, &bytes, 0o600, Outlives::Machine).map_err(failed)
    }

    /// The identity of the file at its place, and of what it holds; `None` when
    /// there is none.
    pub(crate) fn file_id(state: &StateDir) -> Option<FileId> {
        let meta = fs::symlink_metadata(state.file(FILE)).ok()?;
        let modified = (meta.mtime(), meta.mtime_nsec());
        Some(FileId { inode: (meta.dev(), meta.ino()), size: meta.size(), modified })
    }

    /// Removes the file; fine when there is none.
    pub(crate) fn remove(lock: &InstanceLock) -> Result<(), Error> {
        let path = lock.state().file(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::system(format!("cannot remove {}", path.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// Sets a damaged journal aside as `journal.json.damaged` and tells where; `None` when there is
    /// none or it is sound. Only on the user's word: what it held can then not be restored.
    ///
    /// # Errors
    /// It cannot be read or renamed.
    pub fn discard_damaged(lock: &InstanceLock) -> Result<Option<PathBuf>, Error> {
        match Self::load(lock.state()) {
            Ok(_) => Ok(None),
            Err(error @ (Error::Read { .. } | Error::System { .. } | Error::Taken { .. })) => {
                Err(error)
            }
            Err(Error::Parse { .. } | Error::Unusable { .. }) => {
                let from = lock.state().file(FILE);
                let aside = lock.state().file("journal.json.damaged");
                fs::rename(&from, &aside).map_err(|source| {
                    Error::system(format!("cannot rename {}", from.display()), source)
                })?;
                Ok(Some(aside))
            }
        }
    }
}

/// Reads the bytes of a journal; `path` is for messages.
///
/// # Errors
/// Anything that is not a whole, consistent journal of this version.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Journal, Error> {
    let damaged = |why: String| Error::Unusable {
        what: format!("the journal {} is damaged: {why}", path.display()),
        next: format!(
            "nothing was changed; look at the file, then set it aside with `instep restore \
             --state-dir {} --discard-damaged` (affinities it recorded stay as they are now)",
            path.parent().unwrap_or(path).display()
        ),
    };
    if bytes.len() as u64 > MAX_JOURNAL {
        return Err(damaged("it is larger than 64MiB".into()));
    }
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if head.schema != SCHEMA {
        let schema: String = head.schema.chars().take(40).collect();
        return Err(Error::Unusable {
            what: format!("the journal {} has schema `{schema}`, not {SCHEMA}", path.display()),
            next: "restore with the version of Instep that wrote it".into(),
        });
    }
    let stored: Stored = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let mut entries = BTreeMap::new();
    for entry in stored.threads {
        let tid = entry.thread.tid;
        if tid.0 == 0 || entry.thread.pid == 0 || entry.original.is_empty() {
            return Err(damaged(format!("the entry of thread {tid} is impossible")));
        }
        if entries.insert((entry.thread.pid, tid), entry).is_some() {
            return Err(damaged(format!("thread {tid} is there twice")));
        }
    }
    Ok(Journal { boot_id: stored.boot_id, holder: stored.holder, entries })
}

/// This process as a holder.
///
/// # Errors
/// When this process cannot be read under /proc.
pub fn this_instance() -> Result<Holder, Error> {
    let Instance { pid, start, .. } = Instance::this()?;
    Ok(Holder::Instance { pid, start })
}

#[cfg(test)]
mod tests;
