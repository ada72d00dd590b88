//! Puts the affinity of one thread back to what Instep found, unless someone else set it since.
//!
//! ```text
//! gone, or another thread of that id         -> counted
//! has its original affinity                  -> restored (a crash before the system call)
//! has what Instep set                        -> original set, read back
//! has all that its cpuset leaves of it        -> the same
//! has anything else                          -> left alone: an operator's will is newer
//! ```
//! CPUs of the original that went offline are left out by the kernel; when none is left the
//! thread gets every CPU its cpuset allows.

use crate::apply::affinity::{self, Affinity};
use crate::apply::damon::Undone;
use crate::apply::journal::Entry;
use crate::apply::thread::ThreadKey;
use crate::discover::cgroup::Cpusets;
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use std::fmt;

/// What restoring did.
#[derive(Debug, Default)]
pub struct RestoreReport {
    /// Threads that have their original affinity again, those that inherited from them included.
    pub restored: usize,
    /// Threads that were not touched, each with the reason.
    pub left_alone: Vec<LeftAlone>,
    /// Threads that got less than their original affinity because their cpuset or the online
    /// CPUs are narrower now; counted in `restored` too.
    pub narrowed: Vec<LeftAlone>,
    /// Threads that no longer exist.
    pub gone: usize,
    /// Threads that could not be restored; they stay in the journal.
    pub failed: Vec<(Tid, Error)>,
    /// What became of DAMON's monitor that was on record; `None` when none was. One that could not be removed
    /// stays on record.
    pub monitor: Option<Result<Undone, Error>>,
}

/// A thread with another affinity than the original. `Display` is the whole story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// The VM's name.
    pub vm: String,
    /// The thread.
    pub tid: Tid,
    /// What it has now (online CPUs).
    pub present: CpuSet,
    /// What Instep had set last.
    pub set: CpuSet,
    /// What it had before Instep.
    pub original: CpuSet,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, tid, present, set, original } = self;
        write!(
            f,
            "thread {tid} of {vm} has CPUs {present}; Instep had set {set} and found {original}"
        )
    }
}

impl RestoreReport {
    /// Whether every thread was dealt with, and the monitor.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && !matches!(self.monitor, Some(Err(_)))
    }

    /// Whether nothing was on record.
    pub fn is_empty(&self) -> bool {
        let threads = self.restored + self.gone + self.left_alone.len() + self.failed.len();
        threads == 0 && self.monitor.is_none()
    }

    /// What became of the monitor, in words.
    pub fn monitor_told(&self) -> Option<String> {
        self.monitor.as_ref().map(|monitor| match monitor {
            Ok(undone) => undone.to_string(),
            Err(error) => format!("DAMON's monitor could not be removed: {error}"),
        })
    }
}

/// The host whose threads are restored.
pub(crate) struct RestoreContext<'a, A> {
    pub(crate) affinity: &'a A,
    pub(crate) root: &'a Root,
    pub(crate) online: &'a CpuSet,
    pub(crate) cpusets: Cpusets,
}

/// Restores one thread and counts it; false when the entry must stay in the journal.
pub(crate) fn restore_one(
    host: &mut RestoreContext<'_, impl Affinity>,
    entry: &Entry,
    report: &mut RestoreReport,
) -> bool {
    match try_restore(host, entry, report) {
        Ok(()) => true,
        Err(error) if error.is_gone() => {
            report.gone += 1;
            true
        }
        Err(error) => {
            report.failed.push((entry.thread.tid, error));
            false
        }
    }
}

fn try_restore(
    host: &mut RestoreContext<'_, impl Affinity>,
    entry: &Entry,
    report: &mut RestoreReport,
) -> Result<(), Error> {
    let RestoreContext { affinity, root, online, cpusets } = host;
    let ThreadKey { pid, tid, .. } = entry.thread;
    if !entry.thread.is_alive(root)? {
        report.gone += 1;
        return Ok(());
    }
    let get = || affinity.get(tid).map_err(|error| affinity::get_error(tid, error));
    let wanted = entry.original.and(online);
    let present = get()?;
    let ours = entry.is_ours(&present, online)
        || entry.is_left_of_ours(&present, &cpusets.of(pid, tid).and(online));
    if !ours && present == wanted {
        report.restored += 1;
        return Ok(());
    }
    if !ours {
        report.left_alone.push(left(entry, present));
        return Ok(());
    }
    if entry.unpinned {
        // All CPUs, cut by the kernel to the cpuset: the thread then follows later changes of its
        // cpuset again, as before. With the original set it would stay inside that for ever.
        put(*affinity, tid, &affinity::every_cpu())?;
        if get()? == wanted {
            report.restored += 1;
            return Ok(());
        }
    }
    put(*affinity, tid, &entry.original)?;
    let got = get()?;
    report.restored += 1;
    if got != wanted {
        report.narrowed.push(left(entry, got));
    }
    Ok(())
}

/// Sets `cpus`, or every CPU when none of them can be used any more.
fn put(affinity: &impl Affinity, tid: Tid, cpus: &CpuSet) -> Result<(), Error> {
    let result = match affinity.set(tid, cpus) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            affinity.set(tid, &affinity::every_cpu())
        }
        result => result,
    };
    result.map_err(|error| affinity::set_error(tid, cpus, error))
}

fn left(entry: &Entry, present: CpuSet) -> LeftAlone {
    let set = if entry.set.is_empty() { &entry.pending } else { &entry.set };
    LeftAlone {
        vm: entry.vm.clone(),
        tid: entry.thread.tid,
        present,
        set: set.clone(),
        original: entry.original.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::affinity::KernelAffinity;
    use crate::apply::journal::{Journal, ThreadKind};
    use crate::apply::testing::{Sleeper, two_cpus};
    use crate::apply::thread;
    use crate::apply::{AffinityChange, Applier, StateDir};

    fn entry(sleeper: &Sleeper, original: &CpuSet, set: &CpuSet) -> Entry {
        Entry {
            vm: "alpha".into(),
            kind: ThreadKind::Vcpu(0),
            thread: sleeper.key(),
            original: original.clone(),
            unpinned: false,
            since: 0,
            set: set.clone(),
            asked: CpuSet::new(),
            pending: CpuSet::new(),
        }
    }

    fn restore(entry: &Entry) -> RestoreReport {
        let root = &Root::live();
        let online = &thread::online_cpus(root).unwrap();
        let cpusets = Cpusets::new(root);
        let mut report = RestoreReport::default();
        let mut host = RestoreContext { affinity: &KernelAffinity, root, online, cpusets };
        restore_one(&mut host, entry, &mut report);
        report
    }

    fn has(sleeper: &Sleeper) -> CpuSet {
        KernelAffinity.get(sleeper.tid()).unwrap()
    }

    #[test]
    fn what_instep_set_is_undone() {
        let Some((a, b)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let report = restore(&entry(&sleeper, &a, &b));
        assert_eq!((report.restored, report.narrowed.len(), has(&sleeper)), (1, 0, a));
    }

    #[test]
    fn what_an_operator_set_since_is_left_alone_and_reported() {
        let Some((a, b)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        let both = a.or(&b);
        KernelAffinity.set(sleeper.tid(), &a).unwrap();
        let report = restore(&entry(&sleeper, &both, &b));
        assert_eq!((report.restored, has(&sleeper)), (0, a.clone()));
        let told = report.left_alone[0].to_string();
        assert!(told.contains(&format!("has CPUs {a}; Instep had set {b}")), "{told}");
    }

    #[test]
    fn a_reused_thread_id_is_not_touched() {
        let Some((a, b)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let mut entry = entry(&sleeper, &a, &b);
        entry.thread.tid_start -= 1;
        let report = restore(&entry);
        assert_eq!((report.gone, report.restored, has(&sleeper)), (1, 0, b));
    }

    #[test]
    fn offline_cpus_of_the_original_are_left_out_unless_all_are() {
        let Some((a, b)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        let all = has(&sleeper);
        let offline = CpuSet::parse_list("60000").unwrap();

        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let report = restore(&entry(&sleeper, &a.or(&offline), &b));
        assert_eq!((report.restored, report.narrowed.len(), has(&sleeper)), (1, 0, a));

        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let report = restore(&entry(&sleeper, &offline, &b));
        assert_eq!((report.restored, report.narrowed.len(), has(&sleeper)), (1, 1, all));
    }

    #[test]
    fn unpinned_thread_gets_its_cpuset_back_pinned_one_what_it_had() {
        let Some((a, b)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        let all = has(&sleeper);
        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let whole = Entry { unpinned: true, ..entry(&sleeper, &all, &b) };
        assert_eq!((restore(&whole).restored, has(&sleeper)), (1, all));

        KernelAffinity.set(sleeper.tid(), &b).unwrap();
        let wrong = Entry { unpinned: true, ..entry(&sleeper, &a, &b) };
        assert_eq!((restore(&wrong).restored, has(&sleeper)), (1, a));
    }

    #[test]
    fn crash_between_journal_and_call_restores_the_same() {
        const DIR: &str = "INSTEP_TEST_CRASH_DIR";
        const PID: &str = "INSTEP_TEST_CRASH_PID";
        struct Abort;
        impl Affinity for Abort {
            fn get(&self, tid: Tid) -> std::io::Result<CpuSet> {
                KernelAffinity.get(tid)
            }
            fn set(&self, _: Tid, _: &CpuSet) -> std::io::Result<()> {
                std::process::exit(3)
            }
        }
        let Some((_, b)) = two_cpus() else { return };
        if let (Ok(dir), Ok(pid)) = (std::env::var(DIR), std::env::var(PID)) {
            let pid: u32 = pid.parse().unwrap();
            let thread = thread::key_of(&Root::live(), pid, Tid(pid)).unwrap();
            let seen = KernelAffinity.get(Tid(pid)).unwrap();
            let mut applier = Applier::with(StateDir::at(dir).lock().unwrap(), Abort).unwrap();
            let (vm, kind) = ("alpha".into(), ThreadKind::Vcpu(0));
            let change = AffinityChange { vm, kind, thread, seen, cpuset: CpuSet::new(), cpus: b };
            let _ = applier.apply(&[change]);
            unreachable!("the system call ends the process");
        }
        let (dir, sleeper) = (instep_madehost::scratch_dir().unwrap(), Sleeper::start());
        let state = StateDir::at(dir.path().join("s"));
        let found = has(&sleeper);
        let name = "apply::restore::tests::\
                    crash_between_journal_and_call_restores_the_same";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(DIR, state.path())
            .env(PID, sleeper.tid().0.to_string())
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(3));

        let mut applier = Applier::open(state.lock().unwrap()).unwrap();
        assert!(applier.journal().is_abandoned().unwrap());
        assert_eq!(applier.journal().entries[&(sleeper.tid().0, sleeper.tid())].pending, b);
        assert_eq!((applier.restore().unwrap().restored, has(&sleeper)), (1, found));
        assert_eq!(Journal::load(&state).unwrap(), None);
        assert_eq!(applier.restore().unwrap().restored, 0, "twice does nothing more");
    }
}
