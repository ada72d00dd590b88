//! What /proc knows and events do not tell: names and processes of the threads that were there
//! before, and the kernel's own counters of vCPU threads.

use instep_core::units::{Nanos, Tid};
use instep_host::Root;
use instep_host::discover::{Quota, Scanner, proc_text};
use instep_host::system;
use instep_trace::event::Comm;
use instep_trace::stream::{Counter, Throttled};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// More threads than this are not asked for: the rest has numbers only.
const MAX_THREADS: usize = 1 << 20;

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) tid: Tid,
    pub(crate) tgid: Tid,
    pub(crate) name: Comm,
}

/// Every thread of the host, ascending by process and number. Those that end meanwhile are missing.
pub(crate) fn threads(root: &Root) -> Vec<Thread> {
    let proc = root.join("proc");
    let mut threads = Vec::new();
    for tgid in numbers(&proc) {
        let tasks = proc.join(tgid.to_string()).join("task");
        for tid in numbers(&tasks) {
            if threads.len() >= MAX_THREADS {
                return threads;
            }
            if let Ok(mut name) = fs::read(tasks.join(tid.to_string()).join("comm")) {
                name.truncate(name.iter().position(|byte| *byte == b'\n').unwrap_or(name.len()));
                threads.push(Thread { tid: Tid(tid), tgid: Tid(tgid), name: Comm::new(&name) });
            }
        }
    }
    threads
}

fn numbers(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// One reading of a thread's schedstat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    tid: u32,
    at: Nanos,
    run: Nanos,
    wait: Nanos,
}

/// On a busy host the reader may lose its CPU between the clock and the counter, for far longer
/// than a reading takes: it is read again, so many times at most, until the two are as close.
const TRIES: usize = 20;
const CLOSE: Nanos = Nanos(200_000);

/// Reads the counters of these threads; of those that are gone there is none.
pub(crate) fn readings(root: &Root, tids: &[u32]) -> Vec<Reading> {
    let one = |tid: &u32| {
        let path = root.join(format!("proc/{tid}/schedstat"));
        let mut closest: Option<(Nanos, Reading)> = None;
        for _ in 0..TRIES {
            let before = system::clocks().0;
            let (run, wait) = proc_text::schedstat(&fs::read(&path).ok()?)?;
            let took = system::clocks().0.since(before);
            if closest.as_ref().is_none_or(|(best, _)| took < *best) {
                let at = Nanos(before.0 + took.0 / 2);
                closest = Some((took, Reading { tid: *tid, at, run, wait }));
            }
            if took <= CLOSE {
                break;
            }
        }
        closest.map(|(_, reading)| reading)
    };
    tids.iter().filter_map(one).collect()
}

/// What the kernel counted from one reading to another.
pub(crate) fn counters(from: &[Reading], to: &[Reading]) -> Vec<Counter> {
    let one = |from: &Reading| {
        let to = to.iter().find(|to| to.tid == from.tid)?;
        Some(Counter {
            tid: from.tid,
            from_ns: from.at.0,
            to_ns: to.at.0,
            run_ns: to.run.since(from.run).0,
            wait_ns: to.wait.since(from.wait).0,
        })
    };
    from.iter().filter_map(one).collect()
}

/// What CPU quotas did until now to VMs, each told by its process and when that started.
pub(crate) type Quotas = BTreeMap<(u32, u64), Quota>;

/// What CPU quotas did to VMs until now; of those with a quota.
pub(crate) fn quotas(scanner: &mut Scanner) -> Quotas {
    let vms = scanner.scan().map(|scan| scan.vms).unwrap_or_default();
    let quotas = vms.into_iter().map(|vm| ((vm.pid, vm.start_ticks), vm.quota));
    quotas.filter(|(_, quota)| quota.quota.is_some() || quota.times > 0).collect()
}

/// What they did from one reading to another. A quota that came meanwhile began with nothing.
pub(crate) fn throttled(from: &Quotas, to: Quotas) -> Vec<Throttled> {
    let one = |(key, to): ((u32, u64), Quota)| {
        let from = from.get(&key).cloned().unwrap_or_default();
        Throttled {
            pid: key.0,
            quota_milli_cpus: to.quota.map(|quota| quota.0),
            file: to.file.map(|file| file.display().to_string()),
            is_above: to.is_above,
            is_shared: to.is_shared,
            throttled_ns: to.throttled.since(from.throttled).0,
            vcpus_throttled_ns: to.of_vcpus.since(from.of_vcpus).0,
            times: to.times.saturating_sub(from.times),
        }
    };
    to.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Milli;

    #[test]
    fn this_test_is_among_the_threads_with_its_process() {
        let own = Tid(std::process::id());
        let threads = threads(&Root::live());
        let found = threads.iter().find(|thread| thread.tid == own).unwrap();
        assert_eq!(found.tgid, own);
        assert!(!found.name.as_bytes().is_empty());
    }

    #[test]
    fn counters_are_differences_and_need_both_readings() {
        let at = |tid, at, run| Reading { tid, at: Nanos(at), run: Nanos(run), wait: Nanos(run) };
        let counted = counters(&[at(1, 10, 5), at(2, 10, 5)], &[at(1, 30, 12)]);
        let expected = Counter { tid: 1, from_ns: 10, to_ns: 30, run_ns: 7, wait_ns: 7 };
        assert_eq!(counted, [expected]);
    }

    #[test]
    fn throttled_time_is_the_difference_of_two_readings() {
        let quota = |throttled, times| Quota {
            quota: Some(Milli(200)),
            file: Some("/sys/fs/cgroup/a/cpu.max".into()),
            is_above: false,
            is_shared: false,
            throttled: Nanos(throttled),
            of_vcpus: Nanos(throttled / 2),
            times,
        };
        let from = BTreeMap::from([((5, 1), quota(100, 2)), ((6, 1), quota(7, 7))]);
        let to = BTreeMap::from([((5, 1), quota(350, 5)), ((6, 2), quota(9, 1))]);
        let told = throttled(&from, to);
        let of = |at: usize| (told[at].pid, told[at].throttled_ns, told[at].times);
        assert_eq!((of(0), of(1)), ((5, 250, 3), (6, 9, 1)), "another process has the number");
        assert_eq!(told[0].vcpus_throttled_ns, 125, "cgroups of single vCPUs counted half");
        assert_eq!(told[0].file.as_deref(), Some("/sys/fs/cgroup/a/cpu.max"));
    }
}
