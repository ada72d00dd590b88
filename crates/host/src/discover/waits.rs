//! How long threads that are no vCPUs waited for a CPU: what they wanted and did not get.
//!
//! The kernel adds up the waits of all threads for each CPU in `/proc/schedstat`. Kernels without
//! CONFIG_SCHEDSTATS have no such file; then the first thread of each process is asked, which a program
//! that computes on one thread shows whole, and one of many threads in part.

use super::facts::Waited;
use super::proc_text;
use instep_core::units::Nanos;
use std::collections::BTreeMap;

/// Waits of processes, added up from scan to scan.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By process: when it started, in ticks since boot, and how long it has waited since.
    known: BTreeMap<u32, (u64, Nanos)>,
    seen: BTreeMap<u32, (u64, Nanos)>,
    total: Nanos,
    scans: u64,
}

impl Waits {
    /// A process that is no VM has waited for so long by its `schedstat`.
    pub(super) fn note(&mut self, pid: u32, start_ticks: u64, schedstat: &[u8]) {
        let Some((_, wait)) = proc_text::schedstat(schedstat) else { return };
        let before = match self.known.get(&pid) {
            Some((start, before)) if *start == start_ticks => *before,
            // It began since the scan before; in the first scan nothing is known of any.
            _ if self.scans != 0 => Nanos(0),
            _ => wait,
        };
        self.total = Nanos(self.total.0.saturating_add(wait.since(before).0));
        self.seen.insert(pid, (start_ticks, wait));
    }

    /// The scan ends: what all of them waited since the first one.
    pub(super) fn end(&mut self) -> Waited {
        self.known = std::mem::take(&mut self.seen);
        self.scans += 1;
        Waited::Others(self.total)
    }
}

/// The sum over all CPUs of `/proc/schedstat`: time that threads waited to run, in nanoseconds, the
/// eighth number of each (Documentation/scheduler/sched-stats.rst, versions 15 to 17). `None` where it
/// is no such file.
#[must_use]
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

    #[test]
    fn processes_that_come_and_go_leave_the_sum_true() {
        let mut waits = Waits::default();
        let scan = |waits: &mut Waits, processes: &[(u32, u64, u64)]| {
            for (pid, start, wait) in processes {
                waits.note(*pid, *start, format!("5 {wait} 1\n").as_bytes());
            }
            waits.end()
        };
        assert_eq!(scan(&mut waits, &[(7, 1, 100), (8, 1, 50)]), Waited::Others(Nanos(0)));
        assert_eq!(scan(&mut waits, &[(7, 1, 130), (9, 2, 4)]), Waited::Others(Nanos(34)));
        assert_eq!(scan(&mut waits, &[(7, 9, 20), (9, 2, 4)]), Waited::Others(Nanos(54)));
    }
}
