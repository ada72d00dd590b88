//! What the kernel counted: context switches, and runs and time of a scheduler's BPF programs.
//!
//! These are `run_cnt` and `run_time_ns` of every program that the scheduler's process holds a descriptor
//! of (Linux 5.1 and later, with `kernel.bpf_stats_enabled`). A run of a program is a scheduling event:
//! the kernel asks for a decision or tells of one. A program that another one calls is not counted.

use super::read;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Context switches of the host.
    pub(super) switches: u64,
    /// What BPF programs did; none without a scheduler's process or without statistics.
    pub(super) bpf: Option<Ran>,
}

/// What programs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    /// Nanoseconds in them.
    pub(super) ns: u64,
    /// Their runs.
    pub(super) count: u64,
}

impl Counters {
    /// Reads them, with the programs of this process.
    pub(super) fn read(pid: Option<u32>) -> Option<Self> {
        let switches = switches(&read("/proc/stat"))?;
        Some(Self { switches, bpf: pid.and_then(bpf) })
    }

    /// The difference.
    pub(super) fn since(&self, before: &Self) -> Self {
        let bpf = self.bpf.zip(before.bpf).map(|(now, then)| Ran {
            ns: now.ns.saturating_sub(then.ns),
            count: now.count.saturating_sub(then.count),
        });
        Self { switches: self.switches.saturating_sub(before.switches), bpf }
    }

    /// Of a difference: time in programs by switch.
    pub(super) fn bpf_ns_per_switch(&self) -> Option<f64> {
        let ran = self.bpf.filter(|_| self.switches > 0)?;
        Some(ran.ns as f64 / self.switches as f64)
    }

    /// Of a difference: time of one run of a program.
    pub(super) fn bpf_ns_per_call(&self) -> Option<f64> {
        let ran = self.bpf.filter(|ran| ran.count > 0)?;
        Some(ran.ns as f64 / ran.count as f64)
    }

    /// Of a difference: the part of the time of so many CPUs that programs took.
    pub(super) fn bpf_cpu(&self, time: Duration, cpus: usize) -> Option<f64> {
        let all = time.as_nanos() as f64 * cpus as f64;
        let ran = self.bpf.filter(|_| all > 0.0)?;
        Some(ran.ns as f64 / all)
    }
}

/// Makes the kernel count; a kernel that cannot gives no times.
pub(super) fn enable() {
    // Without it there is no cost to report, and the report says so.
    let _ = fs::write("/proc/sys/kernel/bpf_stats_enabled", "1");
}

fn bpf(pid: u32) -> Option<Ran> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let mut programs: BTreeMap<u64, Ran> = BTreeMap::new();
    for entry in entries.flatten().take(4096) {
        programs.extend(program(&read(entry.path())));
    }
    let sum = |of: fn(&Ran) -> u64| programs.values().map(of).fold(0, u64::saturating_add);
    (!programs.is_empty()).then(|| Ran { ns: sum(|ran| ran.ns), count: sum(|ran| ran.count) })
}

/// The program's number and what it did, from the text of a descriptor's fdinfo; `None` for what is no
/// program.
fn program(text: &str) -> Option<(u64, Ran)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().parse::<u64>().ok()
    };
    // Links name a program, too, but have no run time.
    Some((field("prog_id")?, Ran { ns: field("run_time_ns")?, count: field("run_cnt")? }))
}

/// Context switches since boot, from /proc/stat.
fn switches(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("ctxt "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_time_is_read_and_other_descriptors_have_none() {
        let text = "pos:\t0\nflags:\t02000002\nprog_type:\t27\nprog_jited:\t1\nmemlock:\t4096\n\
                    prog_id:\t61\nrun_time_ns:\t123456\nrun_cnt:\t7\n";
        assert_eq!(program(text), Some((61, Ran { ns: 123_456, count: 7 })));
        assert_eq!(program("link_type:\tstruct_ops\nprog_id:\t61\n"), None);
        assert_eq!(program("pos:\t0\nprog_id: x\nrun_time_ns: 1\n"), None);
    }

    #[test]
    fn switches_are_those_of_the_whole_host() {
        assert_eq!(switches("cpu 1 2\nctxt 4711\nbtime 1\n"), Some(4711));
        assert_eq!(switches(""), None);
        assert!(Counters::read(None).is_some_and(|counters| counters.bpf.is_none()));
    }

    #[test]
    fn cost_is_by_switch_by_run_and_of_all_cpus() {
        let then = Counters { switches: 10, bpf: Some(Ran { ns: 100, count: 5 }) };
        let now = Counters { switches: 30, bpf: Some(Ran { ns: 2100, count: 45 }) };
        let spent = now.since(&then);
        assert_eq!(spent.bpf_ns_per_switch(), Some(100.0));
        assert_eq!(spent.bpf_ns_per_call(), Some(50.0));
        assert_eq!(spent.bpf_cpu(Duration::from_nanos(4000), 2), Some(0.25));
        let none = Counters::default();
        assert_eq!((none.bpf_ns_per_switch(), none.bpf_ns_per_call()), (None, None));
        assert_eq!(none.bpf_cpu(Duration::from_secs(1), 2), None);
        let idle = Counters { switches: 0, bpf: Some(Ran::default()) };
        assert_eq!((idle.bpf_ns_per_switch(), idle.bpf_ns_per_call()), (None, None));
        assert_eq!((idle.bpf_cpu(Duration::ZERO, 2), idle.bpf_cpu(Duration::MAX, 0)), (None, None));
    }
}
