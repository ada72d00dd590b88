//! Notices VMs whose vCPU threads have just come to exist, by looking at new processes a few times a second.
//!
//! While no process or thread was made since the last look (the last number in `/proc/loadavg`) a look reads
//! one short file; else it lists `/proc` and looks at processes that were not there before. A kernel that tells
//! of processes (the proc connector) would tell of every thread of every build on the host as well.

use super::facts::Vmm;
use super::files::{Reader, numbered};
use super::names::{Role, role};
use super::process::{self, Thread};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How many looks a new process has to become a monitor: it is made first, and runs its program later.
const YOUNG: u32 = 10;

/// How many looks a monitor has to make its vCPU threads.
const STARTING: u32 = 300;

/// The most new processes that are looked at, which bounds the time of a look.
const MOST: usize = 200;

/// The processes of a host as last seen.
#[derive(Debug)]
pub struct Arrivals {
    root: Root,
    reader: Reader,
    /// What `/proc/loadavg` said.
    last: String,
    known: BTreeSet<u32>,
    /// New processes that may become VMs, with the number of looks at each.
    new: BTreeMap<u32, u32>,
}

impl Arrivals {
    /// What runs now is no arrival, but may still be starting.
    #[must_use]
    pub fn new(root: Root) -> Self {
        let (reader, last) = (Reader::new(&root), String::new());
        let mut arrivals =
            Self { root, reader, last, known: BTreeSet::new(), new: BTreeMap::new() };
        arrivals.look();
        arrivals
    }

    /// Whether a VM's vCPU threads came to exist since the last look.
    pub fn look(&mut self) -> bool {
        let loadavg = self.reader.text(&self.root.join("proc/loadavg"), 256).unwrap_or_default();
        let last = loadavg.split_ascii_whitespace().next_back().unwrap_or_default();
        if last != self.last || last.is_empty() {
            self.last = last.to_owned();
            let now: BTreeSet<u32> =
                numbered(&self.root.join("proc")).unwrap_or_default().into_iter().collect();
            self.new.extend(now.difference(&self.known).map(|pid| (*pid, 0)));
            self.new.retain(|pid, _| now.contains(pid));
            self.known = now;
        }
        let mut arrived = false;
        let pids: Vec<u32> = self.new.keys().rev().take(MOST).copied().collect();
        for pid in pids {
            let dir = self.root.join(format!("proc/{pid}"));
            let stage = stage(&dir, &mut self.reader);
            arrived |= stage == Stage::Vm;
            let looks = self.new.get_mut(&pid).expect("one of its keys");
            *looks += 1;
            let waits = match stage {
                Stage::Vm => false,
                Stage::Monitor => *looks < STARTING,
                Stage::Other => *looks < YOUNG,
            };
            if !waits {
                self.new.remove(&pid);
            }
        }
        arrived
    }
}

/// How far a process is on the way to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Other,
    Monitor,
    Vm,
}

fn stage(dir: &Path, reader: &mut Reader) -> Stage {
    let vmm = process::program(dir, reader).vmm;
    let fds = process::read_fds(dir, reader).unwrap_or_default();
    if vmm.is_none() && !fds.vm {
        return Stage::Other;
    }
    let vmm = vmm.unwrap_or(Vmm::Other(String::new()));
    let is_vcpu = |thread: &Thread| role(&vmm, &thread.stat.comm) != Role::Other;
    let has_vcpus = fds.vcpus > 0 || process::threads(dir, reader).iter().any(is_vcpu);
    if has_vcpus { Stage::Vm } else { Stage::Monitor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Host(tempfile::TempDir, Arrivals);

    impl Host {
        fn new(processes: impl FnOnce(&Path)) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("proc")).unwrap();
            processes(dir.path());
            let arrivals = Arrivals::new(Root::at(dir.path()));
            Self(dir, arrivals)
        }
    }

    fn process(host: &Path, pid: u32, cmdline: &str) {
        let dir = host.join(format!("proc/{pid}/task/{pid}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(host.join(format!("proc/{pid}/cmdline")), cmdline.replace(' ', "\0")).unwrap();
        fs::write(host.join("proc/loadavg"), format!("0.1 0.1 0.1 1/9 {pid}\n")).unwrap();
    }

    fn thread(host: &Path, pid: u32, tid: u32, name: &str) {
        let dir = host.join(format!("proc/{pid}/task/{tid}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("comm"), name).unwrap();
    }

    #[test]
    fn a_vm_arrives_once_when_it_has_vcpu_threads() {
        let mut host = Host::new(|host| {
            process(host, 5, "/usr/bin/qemu-system-x86_64 -smp 2");
            thread(host, 5, 6, "CPU 0/KVM");
        });
        assert!(!host.1.look(), "it was there before");
        process(host.0.path(), 50, "/usr/sbin/libvirtd");
        assert!(!host.1.look());
        process(host.0.path(), 50, "/usr/bin/qemu-system-x86_64 -smp 2");
        assert!(!host.1.look(), "no vCPU thread yet");
        thread(host.0.path(), 50, 51, "CPU 0/KVM");
        assert!(host.1.look());
        assert!(!host.1.look(), "only once");
    }

    #[test]
    fn a_monitor_of_any_name_arrives_with_its_kvm_descriptors() {
        let mut host = Host::new(|_| {});
        process(host.0.path(), 60, "/opt/own-monitor");
        let fd = host.0.path().join("proc/60/fd");
        fs::create_dir_all(&fd).unwrap();
        symlink("anon_inode:kvm-vm", fd.join("8")).unwrap();
        assert!(!host.1.look());
        symlink("anon_inode:kvm-vcpu:0", fd.join("9")).unwrap();
        assert!(host.1.look());
    }

    #[test]
    fn other_processes_are_looked_at_a_few_times_only() {
        let mut host = Host::new(|_| {});
        process(host.0.path(), 70, "/bin/sh");
        assert!((0..YOUNG + 1).all(|_| !host.1.look()));
        assert!(host.1.new.is_empty());
    }
}
