//! Lists the processes of a host whose numbers are in a given range, without listing all of `/proc`.
//!
//! The kernel lists processes in the order of their numbers, and the position of a process in the directory is
//! its number and a constant (Linux 6.18, fs/proc/base.c, `proc_pid_readdir`). A seek to the position of a number
//! therefore leaves out all processes before it, and threads are never listed. The constant is measured by the first
//! listing. A directory without such a constant (a copy of /proc) is listed from its beginning.

use rustix::fs::{PROC_SUPER_MAGIC, RawDir, SeekFrom, fstatfs, seek};
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::path::Path;

/// Bytes that one read of the directory fills: about 30 processes, as those beyond a range are read in vain.
const BUFFER: usize = 1024;

/// The most processes of one range that are read.
const MOST: usize = 128;

/// `/proc`, open.
#[derive(Debug, Default)]
pub(super) struct Processes {
    dir: Option<File>,
    /// A process's position in the directory without its number.
    constant: Option<u64>,
    /// Entries of the directory that were read so far.
    pub(super) entries_read: u64,
}

impl Processes {
    /// Opens the directory, and returns all its processes, ascending.
    pub(super) fn open(proc: &Path) -> (Self, Vec<u32>) {
        let mut all = Self { dir: File::open(proc).ok(), constant: None, entries_read: 0 };
        let (mut pids, mut constants) = (Vec::new(), Vec::new());
        let mut position_after = None;
        all.read_entries(0, |pid, position| {
            // The position after a process is that of the next one.
            constants.extend(position_after.map(|at: u64| at.checked_sub(u64::from(pid))));
            position_after = Some(position);
            pids.push(pid);
            true
        });
        let is_procfs = |dir| fstatfs(dir).is_ok_and(|it| it.f_type == PROC_SUPER_MAGIC);
        let first = constants.first().copied().flatten().filter(|_| {
            let is_same = |constant: &Option<u64>| *constant == constants[0];
            constants.iter().all(is_same) && all.dir.as_ref().is_some_and(is_procfs)
        });
        all.constant = first;
        pids.sort_unstable();
        (all, pids)
    }

    /// The processes whose numbers are in `range`, ascending, and the last number that was looked for: the end of
    /// the range, or an earlier one where very many processes are in it.
    pub(super) fn list(&mut self, range: RangeInclusive<u32>) -> (Vec<u32>, u32) {
        let begin = self.constant.map_or(0, |constant| constant + u64::from(*range.start()));
        let is_sorted = self.constant.is_some();
        let mut pids = Vec::new();
        self.read_entries(begin, |pid, _| {
            pids.extend(range.contains(&pid).then_some(pid));
            !is_sorted || (pid < *range.end() && pids.len() < MOST)
        });
        pids.sort_unstable();
        let last = pids.last().filter(|_| is_sorted && pids.len() == MOST);
        let reached = last.copied().unwrap_or(*range.end());
        (pids, reached)
    }

    /// Calls `take` with each process from a position on, and the position after it, until that returns false.
    fn read_entries(&mut self, begin: u64, mut take: impl FnMut(u32, u64) -> bool) {
        let Some(dir) = &self.dir else { return };
        if seek(dir, SeekFrom::Start(begin)).is_err() {
            return;
        }
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            self.entries_read += 1;
            let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            if pid.is_some_and(|pid| !take(pid, entry.next_entry_cookie())) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_outside_the_range_are_not_read() {
        let mut old: Vec<_> =
            (0..100).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let (mut processes, all) = Processes::open(Path::new("/proc"));
        let listed = processes.entries_read;
        let pid = old[50].id();
        let (found, reached) = processes.list(pid..=pid);
        for child in &mut old {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((found, reached), (vec![pid], pid));
        assert!(all.len() > 100 && all.contains(&pid), "{all:?}");
        // 1,024 bytes hold no more than 42 entries.
        let read = processes.entries_read - listed;
        assert!(read <= 42, "{read} of {listed} entries were read");
    }

    #[test]
    fn threads_are_not_listed() {
        let (mut processes, _) = Processes::open(Path::new("/proc"));
        let (send, receive) = std::sync::mpsc::channel();
        let (hold, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        let tid = u32::try_from(receive.recv().unwrap()).unwrap();
        assert!(Path::new(&format!("/proc/{tid}")).exists());
        assert!(processes.list(tid..=tid).0.is_empty());
        drop(hold);
        thread.join().unwrap();
    }

    #[test]
    fn very_many_processes_are_listed_in_parts() {
        let dir = Path::new("/proc");
        let (mut processes, all) = Processes::open(dir);
        let mut found = Vec::new();
        let (mut from, last) = (1, *all.last().unwrap());
        while from <= last {
            let (pids, reached) = processes.list(from..=last);
            assert!(pids.len() <= MOST && reached >= from);
            found.extend(pids);
            from = reached + 1;
        }
        // Others begin and end meanwhile.
        let same = found.iter().filter(|pid| all.contains(pid)).count();
        assert!(found.is_sorted() && same * 10 > all.len() * 9, "{found:?} {all:?}");
    }

    #[test]
    fn a_copy_is_listed_from_its_beginning() {
        let dir = instep_madehost::scratch_dir().unwrap();
        for name in ["7", "300", "12", "self", "4711"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (mut copy, all) = Processes::open(dir.path());
        assert_eq!(all, [7, 12, 300, 4711]);
        assert_eq!(copy.list(8..=300), (vec![12, 300], 300));
        let (mut none, all) = Processes::open(Path::new("/nonexistent"));
        assert_eq!((none.list(1..=9), all), ((vec![], 9), vec![]));
    }
}
