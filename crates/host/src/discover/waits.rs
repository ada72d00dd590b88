//! How long threads that are no vCPUs waited for a CPU: what they wanted and did not get.
//!
//! A thread's wait in `schedstat` is more than that in three cases, which are left out:
//!
//! * Threads of SCHED_IDLE run only where nothing else wants to. Any number of them may wait.
//! * Threads that run rarely wait for longer than they would run: of a process no more counts than it got.
//! * Threads of a cgroup that used up its CPU quota wait for the next period, whatever CPUs are free: what
//!   its `cpu.stat` tells is taken off.
//!
//! All threads are read once. Later those of a process are read only when it used CPU time since the scan
//! before: what got nothing counts for nothing. In a copy of a host there are only the waits of all threads
//! together, which the kernel adds up for each CPU in `/proc/schedstat`.

use super::cgroup::Hierarchies;
use super::facts::Waited;
use super::files::{Reader, numbered};
use super::proc_text::{self, Stat};
use crate::root::Root;
use instep_core::units::Nanos;
use std::collections::BTreeMap;
use std::path::Path;

/// A process that used less since the scan before is not read.
const LEAST: Nanos = Nanos(20_000_000);
/// The most threads that one scan reads.
const MAX_THREADS: usize = 8192;

/// Waits of processes, added up from scan to scan.
#[derive(Debug, Default)]
pub(super) struct Waits {
    known: BTreeMap<u32, Process>,
    seen: BTreeMap<u32, Process>,
    total: Nanos,
    scans: u64,
    /// Threads read in this scan.
    read: usize,
}

/// A process as last read.
#[derive(Debug)]
struct Process {
    start_ticks: u64,
    /// CPU time that it has used.
    used: Nanos,
    /// What its threads have waited and its cgroups were throttled; `None` until that is read.
    counters: Option<Counters>,
}

/// Counters of a process since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// How long each thread has waited, but those of SCHED_IDLE.
    waits: BTreeMap<u32, Nanos>,
    /// How long its cgroups were stopped by a CPU quota, those of all CPUs and levels added up.
    throttled: Nanos,
}

impl Counters {
    /// Reads those of a process.
    pub(super) fn read(
        dir: &Path,
        stat: &Stat,
        cgroups: &Hierarchies,
        reader: &mut Reader,
    ) -> Self {
        let mut waits = BTreeMap::new();
        let task = dir.join("task");
        // The one thread of most processes is as the process.
        let threads = if stat.threads > 1 { numbered(&task).unwrap_or_default() } else { vec![0] };
        for tid in threads {
            let (dir, own) = match tid {
                0 => (dir.to_owned(), None),
                _ => {
                    let dir = task.join(tid.to_string());
                    let own = reader.read_short(&dir.join("stat")).ok().and_then(proc_text::stat);
                    (dir, own)
                }
            };
            if own.as_ref().unwrap_or(stat).is_idle_policy {
                continue;
            }
            let schedstat = reader.read_short(&dir.join("schedstat")).ok();
            let wait = schedstat.and_then(proc_text::schedstat).map(|(_, wait)| wait);
            waits.extend(wait.map(|wait| (tid, wait)));
        }
        let text = reader.text(&dir.join("cgroup"), 64 << 10).unwrap_or_default();
        Self { waits, throttled: cgroups.throttled(&text, reader) }
    }

    /// What was waited since `before`, less what is for a quota. A thread that is new has waited since.
    fn since(&self, before: &Self) -> Nanos {
        let each = self
            .waits
            .iter()
            .map(|(tid, wait)| wait.since(before.waits.get(tid).copied().unwrap_or_default()).0);
        Nanos(each.fold(0, u64::saturating_add)).since(self.throttled.since(before.throttled))
    }
}

impl Waits {
    /// A process that is no VM; `read` reads its counters.
    pub(super) fn note(
        &mut self,
        pid: u32,
        (stat, used): (&Stat, Nanos),
        read: impl FnOnce() -> Counters,
    ) {
        let start_ticks = stat.start_ticks;
        let before = self.known.remove(&pid).filter(|process| process.start_ticks == start_ticks);
        // What began since the first scan has waited since then, too.
        let new = || Process {
            start_ticks,
            used: Nanos(0),
            counters: (self.scans != 0).then(Counters::default),
        };
        let before = before.unwrap_or_else(new);
        let got = used.since(before.used);
        let is_due = before.counters.is_none() || got >= LEAST;
        let counters = match is_due && self.read < MAX_THREADS {
            true => {
                let now = read();
                self.read += now.waits.len().max(1);
                let waited = before.counters.map(|before| now.since(&before).min(got));
                self.total = Nanos(self.total.0.saturating_add(waited.unwrap_or_default().0));
                Some(now)
            }
            false => before.counters,
        };
        self.seen.insert(pid, Process { start_ticks, used, counters });
    }

    /// The scan ends: what all of them waited since the first one.
    pub(super) fn end(&mut self) -> Waited {
        self.known = std::mem::take(&mut self.seen);
        self.scans += 1;
        self.read = 0;
        Waited::Others(self.total)
    }
}

/// The waits of all threads of a copy.
pub(super) fn in_copy(root: &Root, reader: &mut Reader) -> Option<Waited> {
    let text = reader.text(&root.join("proc/schedstat"), 16 << 20)?;
    of_all_threads(&text).map(Waited::All)
}

/// The sum over all CPUs of `/proc/schedstat`: time that threads waited to run, in nanoseconds, the
/// eighth number of each (Documentation/scheduler/sched-stats.rst, versions 15 to 17). `None` where it
/// is no such file.
pub fn of_all_threads(text: &str) -> Option<Nanos> {
    let mut lines = text.lines();
    let version: u32 = lines.next()?.strip_prefix("version ")?.trim().parse().ok()?;
    if !(15..=17).contains(&version) {
        return None;
    }
    let is_cpu = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    let mut waits = lines.filter(is_cpu).map(|line| {
        let wait = line.split_ascii_whitespace().nth(8)?;
        wait.parse::<u64>().ok()
    });
    let sum =
        waits.try_fold((0u64, 0), |(sum, cpus), wait| Some((sum.saturating_add(wait?), cpus + 1)));
    sum.filter(|(_, cpus)| *cpus != 0).map(|(sum, _)| Nanos(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn waits_of_all_cpus_are_added_up() {
        let text = "version 17\ntimestamp 4295\ncpu0 0 0 10 5 7 3 900 70 8\ndomain0 MC 3 1 1\n\
                    cpu1 0 0 10 5 7 3 900 5 8\n";
        assert_eq!(of_all_threads(text), Some(Nanos(75)));
        for bad in
            ["", "version 17\n", "version 99\ncpu0 0 0 0 0 0 0 0 1 0\n", "version 17\ncpu0 1\n"]
        {
            assert_eq!(of_all_threads(bad), None, "{bad}");
        }
    }

    /// One scan of processes, each with its id, start, CPU time and its only thread's wait, in seconds.
    fn scan(waits: &mut Waits, processes: &[(u32, u64, u64, u64)]) -> u64 {
        let seconds = |count: u64| Nanos(count * 1_000_000_000);
        for (pid, start_ticks, used, wait) in processes {
            let stat = Stat { start_ticks: *start_ticks, ..Stat::default() };
            let waited = Counters { waits: [(0, seconds(*wait))].into(), ..Counters::default() };
            waits.note(*pid, (&stat, seconds(*used)), || waited);
        }
        match waits.end() {
            Waited::Others(total) => total.0 / 1_000_000_000,
            Waited::All(_) => panic!("those of VMs, too"),
        }
    }

    #[test]
    fn processes_that_come_and_go_leave_the_sum_true() {
        let mut waits = Waits::default();
        assert_eq!(scan(&mut waits, &[(7, 1, 900, 100), (8, 1, 900, 50)]), 0);
        assert_eq!(scan(&mut waits, &[(7, 1, 990, 130), (9, 2, 4, 4)]), 34);
        assert_eq!(scan(&mut waits, &[(7, 9, 20, 20), (9, 2, 4, 4)]), 54);
    }

    #[test]
    fn wait_of_each_process_counts_up_to_what_it_got() {
        let mut waits = Waits::default();
        scan(&mut waits, &[(7, 1, 0, 0), (8, 1, 0, 0)]);
        // One computes alone; twenty daemons' worth of waits belongs to the other.
        assert_eq!(scan(&mut waits, &[(7, 1, 20, 0), (8, 1, 1, 19)]), 1);
        // It waits on and gets nothing.
        assert_eq!(scan(&mut waits, &[(7, 1, 40, 0), (8, 1, 1, 39)]), 1);
    }

    #[test]
    fn threads_of_sched_idle_and_time_for_a_quota_do_not_count() {
        let host = instep_madehost::scratch_dir().unwrap();
        let root = Root::at(host.path());
        let write = |path: &str, text: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let line = |threads: u32, policy: u32| {
            let before = format!("7 (x) R{} {threads} 0 1", " 0".repeat(16));
            format!("{before}{} {policy} 0\n", " 0".repeat(18))
        };
        for (tid, policy, wait) in [(7, 0, 5), (8, 5, 700), (9, 3, 60)] {
            write(&format!("proc/7/task/{tid}/stat"), &line(3, policy));
            write(&format!("proc/7/task/{tid}/schedstat"), &format!("1 {wait}000 1\n"));
        }
        write("proc/7/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        write("sys/fs/cgroup/a/cpu.stat", "nr_throttled 3\nthrottled_usec 20\n");
        write("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 3\n");
        let mut reader = Reader::new(&root);
        let cgroups = Hierarchies::find(&root, &mut reader);
        let stat = proc_text::stat(line(3, 0).as_bytes()).unwrap();
        let now = Counters::read(&host.path().join("proc/7"), &stat, &cgroups, &mut reader);
        assert_eq!(now.since(&Counters::default()), Nanos(65_000 - 20_000));
        assert_eq!(now.since(&now), Nanos(0));
        let alone = proc_text::stat(line(1, 5).as_bytes()).unwrap();
        let idle = Counters::read(&host.path().join("proc/7"), &alone, &cgroups, &mut reader);
        assert!(idle.waits.is_empty());
    }
}
