//! The load of other programs on this machine is what they want, not what they get.
#![cfg(test)]

use instep_core::units::Nanos;
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner, snapshot};
use instep_madehost::skip;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A program that computes without end, stopped with the test.
struct Hog(Child);

impl Hog {
    fn start() -> Self {
        let mut command = Command::new("sh");
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

#[test]
fn programs_that_compute_want_more_than_the_cpus_that_they_share() {
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
