//! Real threads for the tests of this module: child processes that sleep, stopped by their id.

use crate::apply::affinity::{Affinity, KernelAffinity};
use crate::apply::thread::{self, ThreadKey};
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use std::process::{Child, Command, Stdio};

/// A child that does nothing for a minute at most.
pub(crate) struct Sleeper {
    child: Child,
}

impl Sleeper {
    pub(crate) fn start() -> Self {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        // Wait until it sleeps: before, it has hardly any memory.
        let asleep = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        for _ in 0..500 {
            if asleep() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self { child }
    }

    pub(crate) fn tid(&self) -> Tid {
        Tid(self.child.id())
    }

    pub(crate) fn key(&self) -> ThreadKey {
        thread::key_of(&Root::live(), self.child.id(), self.tid()).unwrap()
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Two different CPUs this process may use, each as a set; `None` (told) on a one-CPU machine.
pub(crate) fn two_cpus() -> Option<(CpuSet, CpuSet)> {
    let own = KernelAffinity.get(Tid(std::process::id())).unwrap();
    let mut cpus = own.iter();
    match (cpus.next(), cpus.next()) {
        (Some(a), Some(b)) => Some((CpuSet::one(a), CpuSet::one(b))),
        _ => {
            instep_madehost::skip::note("one CPU is not enough to tell affinities apart");
            None
        }
    }
}
