//! Which thread is meant: ids are reused by the kernel, an id together with its start time is
//! not.
//!
//! Start times are field 22 of `stat` in clock ticks since boot (proc(5)); two threads of the
//! same id within one tick (10 ms) cannot be told apart.

use crate::discover::proc_text;
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One thread of one process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadKey {
    /// The process.
    pub pid: u32,
    /// Start of the process, clock ticks since boot.
    pub pid_start: u64,
    /// The thread.
    pub tid: Tid,
    /// Start of the thread, clock ticks since boot.
    pub tid_start: u64,
}

impl ThreadKey {
    /// Whether this very thread still exists.
    ///
    /// # Errors
    /// A `stat` file that cannot be read for another reason than absence, or cannot be parsed.
    pub fn is_alive(&self, root: &Root) -> Result<bool, Error> {
        match key_of(root, self.pid, self.tid) {
            Ok(now) => Ok(now == *self),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A cheap check: false only when no thread has these ids; true may be a later thread.
    pub fn may_be_alive(&self) -> bool {
        let (Ok(pid), Ok(tid)) =
            (libc::pid_t::try_from(self.pid), libc::pid_t::try_from(self.tid.0))
        else {
            return false;
        };
        if pid == 0 || tid == 0 {
            return false;
        }
        // SAFETY: signal 0 is never delivered; the call only looks the ids up.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
        result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }
}

/// The key of a thread that runs now.
///
/// # Errors
/// [`Error::is_gone`] when there is no such thread; a file that is not a `stat`.
pub fn key_of(root: &Root, pid: u32, tid: Tid) -> Result<ThreadKey, Error> {
    let pid_start = start_of(root, format!("proc/{pid}/stat").as_ref())?;
    let tid_start = start_of(root, format!("proc/{pid}/task/{tid}/stat").as_ref())?;
    Ok(ThreadKey { pid, pid_start, tid, tid_start })
}

fn start_of(root: &Root, relative: &Path) -> Result<u64, Error> {
    let text = root.read(relative)?;
    proc_text::start_ticks(text.as_bytes()).ok_or_else(|| {
        Error::parse(&root.join(relative), 0, text.trim_end(), "a stat line with a start time")
    })
}

/// Now, on the clock of start times: clock ticks since boot, from `proc/uptime`.
///
/// # Errors
/// An absent or strange `proc/uptime`.
pub fn now_ticks(root: &Root) -> Result<u64, Error> {
    let text = root.read("proc/uptime")?;
    // A hundredth of a second is a tick on every architecture Instep is built for.
    proc_text::uptime(text.as_bytes()).map(|time| time.0 / 10_000_000).ok_or_else(|| {
        Error::parse(&root.join("proc/uptime"), 1, text.trim(), "SECONDS.HUNDREDTHS")
    })
}

/// Keys of all threads of a process, ascending; those that end meanwhile are left out.
///
/// # Errors
/// [`Error::is_gone`] when the process is gone.
pub fn threads_of(root: &Root, pid: u32) -> Result<Vec<ThreadKey>, Error> {
    let path = root.join(format!("proc/{pid}/task"));
    let entries = std::fs::read_dir(&path).map_err(|source| Error::read(&path, source))?;
    let mut tids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    Ok(tids.into_iter().filter_map(|tid| key_of(root, pid, Tid(tid)).ok()).collect())
}

/// `Cpus_allowed_list` of a thread: its whole affinity, offline CPUs included, which
/// `sched_getaffinity` leaves out.
///
/// # Errors
/// [`Error::is_gone`] when there is no such thread; a file without the line.
pub fn allowed_of(root: &Root, pid: u32, tid: Tid) -> Result<CpuSet, Error> {
    let relative = format!("proc/{pid}/task/{tid}/status");
    let text = root.read(&relative)?;
    proc_text::allowed(text.as_bytes()).ok_or_else(|| {
        let start = text.lines().next().unwrap_or_default();
        Error::parse(&root.join(&relative), 0, start, "a status file with Cpus_allowed_list")
    })
}

/// The CPUs that are online.
///
/// # Errors
/// An absent or unreadable `sys/devices/system/cpu/online`.
pub fn online_cpus(root: &Root) -> Result<CpuSet, Error> {
    let relative = "sys/devices/system/cpu/online";
    let text = root.read(relative)?;
    CpuSet::parse_list(&text).map_err(|error| {
        Error::parse(&root.join(relative), 1, &error.part, "a list of CPUs such as 0-3,8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::testing::Sleeper;

    #[test]
    fn a_thread_is_alive_until_it_ends_and_never_with_another_start() {
        let mut sleeper = Sleeper::start();
        let key = sleeper.key();
        let root = Root::live();
        assert!(key.is_alive(&root).unwrap() && key.may_be_alive());
        let later = ThreadKey { tid_start: key.tid_start + 1, ..key };
        assert!(!later.is_alive(&root).unwrap());
        sleeper.stop();
        assert!(!key.is_alive(&root).unwrap() && !key.may_be_alive());
    }

    #[test]
    fn now_is_on_the_clock_of_start_times() {
        let root = Root::live();
        let before = now_ticks(&root).unwrap();
        let sleeper = Sleeper::start();
        let after = now_ticks(&root).unwrap();
        assert!((before..=after).contains(&sleeper.key().tid_start));
        assert_eq!(threads_of(&root, sleeper.key().pid).unwrap(), [sleeper.key()]);
    }

    #[test]
    fn the_allowed_list_is_read_from_a_real_status_file() {
        let sleeper = Sleeper::start();
        let root = Root::live();
        let allowed = allowed_of(&root, sleeper.key().pid, sleeper.tid()).unwrap();
        assert!(allowed.intersects(&online_cpus(&root).unwrap()));
    }
}
