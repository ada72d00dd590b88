//! The load of other programs on this machine is what they want, not what they get.
#![cfg(test)]

use instep_core::units::Nanos;
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner, Waited, snapshot};
use instep_madehost::skip;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A program that computes without end, stopped with the test.
struct Hog(Child);

impl Hog {
    fn start() -> Self {
        Self::started_by(&mut Command::new("sh"))
    }

    fn started_by(command: &mut Command) -> Self {
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tests here fill the CPUs: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What programs waited for, and counts as wanted, within a second.
fn waited() -> Nanos {
    let mut options = ScanOptions::default();
    options.memory.enabled = false;
    let mut scanner = Scanner::new(Root::live(), options);
    let before = scanner.scan().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    match (before.waited, scanner.scan().unwrap().waited) {
        (Some(Waited::Others(before)), Some(Waited::Others(now))) => now.since(before),
        other => panic!("{other:?}"),
    }
}

/// As a user may start them to have the VMs of others released.
#[test]
fn programs_of_sched_idle_on_one_cpu_are_no_load_of_many() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus = instep_host::topology::read(&Root::live()).unwrap().cpus().len() as u64;
    if cpus > 8 {
        return skip::note("on so many CPUs twenty programs are not many");
    }
    let idle = |_| {
        let mut command = Command::new("chrt");
        Hog::started_by(command.args(["--idle", "0", "taskset", "-c", "0", "sh"]))
    };
    let hogs: Vec<Hog> = (0..20).map(idle).collect();
    std::thread::sleep(Duration::from_millis(300));
    let is_idle = |hog: &Hog| {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", hog.0.id())).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38)) == Some("5")
    };
    if !hogs.iter().all(is_idle) {
        return skip::note("chrt and taskset cannot start a program of SCHED_IDLE here");
    }
    // Other programs count no more than they got; twenty that share one CPU wait for nineteen seconds.
    let waited = waited();
    assert!(waited < Nanos(cpus * Nanos::SECOND.0 * 3 / 2), "{waited:?} on {cpus} CPUs");
}

#[test]
fn programs_that_compute_want_more_than_cpus_that_they_share() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let root = Root::live();
    let topology = Arc::new(instep_host::topology::read(&root).unwrap());
    let cpus = topology.cpus().len();
    if cpus > 16 {
        return skip::note("so many CPUs are not to be filled by a test");
    }
    let _hogs: Vec<Hog> = (0..2 * cpus).map(|_| Hog::start()).collect();
    let mut options = ScanOptions::default();
    options.memory.enabled = false;
    let mut scanner = Scanner::new(root, options);
    let before = scanner.scan().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let after = scanner.scan().unwrap();
    let taken = snapshot(&topology, Some(&before), &after, None);
    let wanted = taken.other_busy.milli_of(taken.window).0;
    // All CPUs together have no more than 1,000 each to give.
    let given = 1000 * cpus as u64;
    assert!(wanted > given * 5 / 4, "{wanted} of {given}: {:?} {:?}", before.waited, after.waited);
    assert_ne!(taken.window, Nanos(0));
}
