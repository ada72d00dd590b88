//! Notices VMs whose vCPU threads have just come to exist, and VMs that ended, by looking a few times a second at new
//! processes and at some of the known VMs.
//!
//! While no process or thread was made since the last look (the last number in `/proc/loadavg`) a look reads
//! one short file. The kernel gives numbers in ascending order and begins again at the end, so new processes have the
//! numbers between those of two looks. They are listed one look later, when most of those of a build have ended.
//! A new process is looked at a few times: it is made first, and runs its program later. A process with one thread has
//! no vCPU threads yet, and one system call tells that.
//! A kernel that tells of processes (the proc connector) would tell of every thread of every build on the host as well.
//!
//! Every look is bounded, so some VMs are not noticed here: what starts among very many new processes, what begins to
//! be a monitor later than two seconds after its process was made, and all VMs where `/proc/loadavg` is not that of
//! this host's processes (lxcfs). The next regular cycle finds these.
//!
//! A VM that was noticed is looked at in every third look, by one system call: it has ended when its process is gone,
//! or has one thread left, as one has that nobody has waited for. A descriptor for each process (pidfd) would tell at
//! once, and 1,000 VMs would need as many descriptors as a service has by default.

use super::facts::Vmm;
use super::files::Reader;
use super::names::{Role, role};
use super::new_processes::Processes;
use super::proc_text;
use super::process::{self, Thread};
use crate::root::Root;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

/// At which looks, counted from its first, a new process is looked at: two seconds, at five looks a second.
const DUE: [u32; 5] = [1, 2, 4, 7, 10];

/// In how many looks each known VM is looked at once.
const ROUND: u32 = 3;

/// How many looks a monitor has to make its vCPU threads.
const STARTING: u32 = 300;

/// The most new processes that are remembered, and the most whose files are read in one look.
const MOST_NEW: usize = 512;
const MOST_READ: u32 = 16;

/// The processes of a host as last seen.
#[derive(Debug)]
pub struct Arrivals {
    root: Root,
    reader: Reader,
    processes: Processes,
    /// `/proc/loadavg`, open once it was there.
    loadavg: Option<File>,
    /// The number that the kernel had given last to a process or thread at the last look.
    newest: u32,
    /// The last number that was looked for.
    last: u32,
    /// New processes that may become VMs.
    new: BTreeMap<u32, New>,
    /// When each VM that was noticed started, in ticks since boot.
    vms: BTreeMap<u32, u64>,
    /// Looks so far.
    looks: u32,
    /// Processes whose files were read so far.
    examined: u64,
}

/// A new process.
#[derive(Clone, Copy, Debug, Default)]
struct New {
    /// Looks since it is there.
    looks: u32,
    /// Whether it is to be looked at.
    is_due: bool,
    is_monitor: bool,
}

impl Arrivals {
    /// What runs now is no arrival, but may still be starting.
    pub fn new(root: Root) -> Self {
        let reader = Reader::new(&root);
        let mut arrivals = Self {
            root,
            reader,
            processes: Processes::default(),
            loadavg: None,
            newest: 0,
            last: 0,
            new: BTreeMap::new(),
            vms: BTreeMap::new(),
            looks: 0,
            examined: 0,
        };
        // Read before the listing: what comes meanwhile is looked for again.
        arrivals.newest = arrivals.newest_number().unwrap_or_default();
        arrivals.last = arrivals.newest;
        let (processes, pids) = Processes::open(&arrivals.root.join("proc"));
        arrivals.processes = processes;
        for pid in pids {
            match arrivals.examine(pid, true) {
                Stage::Vm => _ = arrivals.note_vm(pid),
                Stage::Monitor => {
                    arrivals.new.insert(pid, New { is_monitor: true, ..New::default() });
                }
                Stage::Other | Stage::Gone => {}
            }
        }
        arrivals
    }

    /// Whether a VM's vCPU threads came to exist since the last look, or a VM was found to have ended.
    pub fn poll_changes(&mut self) -> bool {
        let ended = self.forget_ended();
        self.look_for_new() || ended
    }

    /// Forgets VMs that have ended, of those whose turn it is; whether there are any.
    fn forget_ended(&mut self) -> bool {
        let (before, turn) = (self.vms.len(), self.looks % ROUND);
        self.looks = self.looks.wrapping_add(1);
        let proc = self.root.join("proc");
        self.vms.retain(|pid, _| pid % ROUND != turn || threads(&proc, *pid) > 1);
        self.vms.len() != before
    }

    fn look_for_new(&mut self) -> bool {
        self.list_new();
        for new in self.new.values_mut() {
            new.looks += 1;
            new.is_due |= new.is_monitor || DUE.contains(&new.looks);
        }
        // Monitors first, and the newest first.
        let mut due: Vec<(bool, u32)> = self
            .new
            .iter()
            .filter(|(_, new)| new.is_due)
            .map(|(pid, n)| (n.is_monitor, *pid))
            .collect();
        due.sort_unstable_by(|a, b| b.cmp(a));
        let (mut arrived, most) = (false, self.examined + u64::from(MOST_READ));
        for (_, pid) in due {
            if self.examined >= most {
                break;
            }
            let looks = self.new[&pid].looks;
            let is_last = looks >= DUE[DUE.len() - 1];
            let (stays, is_monitor) = match self.examine(pid, is_last) {
                Stage::Vm => {
                    arrived |= self.note_vm(pid);
                    (false, true)
                }
                Stage::Monitor => (looks < STARTING, true),
                Stage::Other => (!is_last, false),
                Stage::Gone => (false, false),
            };
            if stays {
                self.new.insert(pid, New { looks, is_due: false, is_monitor });
            } else {
                self.new.remove(&pid);
            }
        }
        arrived
    }

    /// Remembers the processes that were made between the last look and the one before.
    fn list_new(&mut self) {
        let Some(newest) = self.newest_number() else { return };
        let newest = std::mem::replace(&mut self.newest, newest);
        if newest < self.last {
            // Numbers began again.
            let reached = self.list(self.last.saturating_add(1)..=u32::MAX);
            self.last = if reached == u32::MAX { 0 } else { reached };
        }
        if newest > self.last {
            self.last = self.list(self.last + 1..=newest);
        }
        while self.new.len() > MOST_NEW {
            self.new.pop_first();
        }
    }

    /// Remembers the processes with these numbers; the last number that was looked for.
    fn list(&mut self, numbers: RangeInclusive<u32>) -> u32 {
        let (pids, reached) = self.processes.list(numbers);
        self.new.extend(pids.into_iter().map(|pid| (pid, New::default())));
        reached
    }

    /// The number that the kernel gave last to a process or thread.
    fn newest_number(&mut self) -> Option<u32> {
        if self.loadavg.is_none() {
            self.loadavg = self.reader.open(&self.root.join("proc/loadavg")).ok();
        }
        let mut buffer = [0; 128];
        let length = self.loadavg.as_ref()?.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        text.split_ascii_whitespace().next_back()?.parse().ok()
    }

    /// Notes that a process is a VM; whether that is news. It is none where numbers began again and the process
    /// was there before.
    fn note_vm(&mut self, pid: u32) -> bool {
        let path = |pid: u32| self.root.join(format!("proc/{pid}"));
        let stat = self.reader.read_short(&path(pid).join("stat")).ok().and_then(proc_text::stat);
        let start = stat.map_or(0, |stat| stat.start_ticks);
        if self.vms.get(&pid) == Some(&start) {
            return false;
        }
        self.vms.insert(pid, start);
        true
    }

    /// How far a process is on the way to a VM. Of one with a single thread only the last look reads files.
    fn examine(&mut self, pid: u32, is_last: bool) -> Stage {
        let dir = self.root.join(format!("proc/{pid}"));
        let threads = threads(&self.root.join("proc"), pid);
        if threads == 0 {
            return Stage::Gone;
        }
        let has_one_thread = threads == 1;
        if has_one_thread && !is_last {
            return Stage::Other;
        }
        self.examined += 1;
        let vmm = process::program(&dir, &mut self.reader).vmm;
        if has_one_thread {
            return if vmm.is_some() { Stage::Monitor } else { Stage::Other };
        }
        stage(vmm, &dir, &mut self.reader)
    }
}

/// How many threads a process has; 0 where there is none. Some file systems of copies do not count: then it is one of
/// many.
fn threads(proc: &Path, pid: u32) -> u64 {
    let Ok(task) = proc.join(format!("{pid}/task")).metadata() else { return 0 };
    // The directory counts one link for each thread and two for itself.
    task.nlink().checked_sub(2).filter(|threads| *threads > 0).unwrap_or(u64::MAX)
}

/// How far a process is on the way to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Gone,
    Other,
    Monitor,
    Vm,
}

/// The same for a process with several threads.
fn stage(vmm: Option<Vmm>, dir: &Path, reader: &mut Reader) -> Stage {
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
            let dir = instep_madehost::scratch_dir().unwrap();
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

    impl Host {
        /// Whether a VM arrives within the looks that a new process has.
        fn arrives(&mut self) -> bool {
            (0..DUE[DUE.len() - 1]).any(|_| self.1.poll_changes())
        }
    }

    #[test]
    fn a_vm_arrives_once_when_it_has_vcpu_threads() {
        let mut host = Host::new(|host| {
            process(host, 5, "/usr/bin/qemu-system-x86_64 -smp 2");
            thread(host, 5, 6, "CPU 0/KVM");
        });
        assert!(!host.1.poll_changes(), "it was there before");
        process(host.0.path(), 50, "/usr/sbin/libvirtd");
        assert!(!host.1.poll_changes());
        process(host.0.path(), 50, "/usr/bin/qemu-system-x86_64 -smp 2");
        assert!(!host.arrives() && host.1.new[&50].is_monitor, "no vCPU thread yet");
        thread(host.0.path(), 50, 51, "CPU 0/KVM");
        assert!(host.1.poll_changes(), "a monitor is looked at every time");
        assert!(!host.arrives(), "only once");
    }

    #[test]
    fn a_vm_that_ended_is_noticed_once() {
        let mut host = Host::new(|host| {
            for pid in [5, 7, 9] {
                process(host, pid, "/usr/bin/qemu-system-x86_64 -smp 2");
                thread(host, pid, pid + 1, "CPU 0/KVM");
            }
        });
        assert!(!host.arrives(), "they run");
        fs::remove_dir_all(host.0.path().join("proc/7")).unwrap();
        assert_eq!((0..ROUND).filter(|_| host.1.poll_changes()).count(), 1);
        assert!(!host.arrives(), "only once");
        // A process that nobody has waited for is there, with one thread.
        fs::remove_dir_all(host.0.path().join("proc/9/task/10")).unwrap();
        if host.0.path().join("proc/9/task").metadata().unwrap().nlink() != 3 {
            return instep_madehost::skip::note("this file system does not count links of folders");
        }
        assert_eq!((0..ROUND).filter(|_| host.1.poll_changes()).count(), 1);
        assert_eq!(host.1.vms.keys().collect::<Vec<_>>(), [&5]);
    }

    #[test]
    fn a_monitor_of_any_name_arrives_with_its_kvm_descriptors() {
        let mut host = Host::new(|_| {});
        process(host.0.path(), 60, "/opt/own-monitor");
        thread(host.0.path(), 60, 61, "worker");
        let fd = host.0.path().join("proc/60/fd");
        fs::create_dir_all(&fd).unwrap();
        symlink("anon_inode:kvm-vm", fd.join("8")).unwrap();
        assert!(!host.1.poll_changes() && !host.1.poll_changes() && host.1.new[&60].is_monitor);
        symlink("anon_inode:kvm-vcpu:0", fd.join("9")).unwrap();
        assert!(host.1.poll_changes());
    }

    #[test]
    fn other_processes_are_looked_at_a_few_times_only() {
        let mut host = Host::new(|_| {});
        process(host.0.path(), 70, "/usr/bin/java");
        thread(host.0.path(), 70, 71, "worker");
        let before = host.1.examined;
        assert!(!host.1.poll_changes() && !host.arrives());
        assert!(host.1.new.is_empty());
        assert_eq!(host.1.examined - before, DUE.len() as u64);
    }

    #[test]
    fn files_of_a_process_with_one_thread_are_read_once() {
        let mut host = Host::new(|_| {});
        process(host.0.path(), 70, "/bin/sh");
        if host.0.path().join("proc/70/task").metadata().unwrap().nlink() != 3 {
            return instep_madehost::skip::note("this file system does not count links of folders");
        }
        let before = host.1.examined;
        assert!(!host.1.poll_changes() && !host.arrives() && host.1.new.is_empty());
        assert_eq!(host.1.examined - before, 1);
    }

    #[test]
    fn a_look_reads_files_of_a_bounded_number_of_processes() {
        let mut host = Host::new(|_| {});
        for pid in 100..1_000 {
            process(host.0.path(), pid, "/usr/bin/java");
            thread(host.0.path(), pid, 10_000 + pid, "worker");
        }
        host.1.poll_changes();
        for _ in 0..4 {
            let before = host.1.examined;
            assert!(!host.1.poll_changes());
            assert_eq!(host.1.examined - before, u64::from(MOST_READ));
            assert!(host.1.new.len() <= MOST_NEW);
        }
        // The newest come first, as those that wait longest may have to wait for the next cycle.
        process(host.0.path(), 1_000, "/usr/bin/qemu-system-x86_64");
        thread(host.0.path(), 1_000, 11_000, "CPU 0/KVM");
        assert!(!host.1.poll_changes() && host.1.poll_changes());
    }

    #[test]
    fn numbers_may_begin_again() {
        let mut host = Host::new(|host| {
            process(host, 30, "/usr/bin/qemu-system-x86_64");
            thread(host, 30, 31, "CPU 0/KVM");
            process(host, 32_000, "/bin/sh");
        });
        let vm = |host: &Path, pid| {
            process(host, pid, "/usr/bin/qemu-system-x86_64");
            thread(host, pid, pid + 1, "CPU 0/KVM");
        };
        vm(host.0.path(), 32_700);
        host.1.poll_changes();
        vm(host.0.path(), 12);
        assert!(host.1.poll_changes() && host.1.poll_changes());
        assert_eq!(host.1.vms.keys().copied().collect::<Vec<_>>(), [12, 30, 32_700]);
        // The next process gets a number beyond that of the first VM, which is no news.
        process(host.0.path(), 40, "/bin/sh");
        assert!(!host.arrives());
    }

    #[test]
    fn a_look_does_not_list_processes_that_were_there_before() {
        let mut old: Vec<_> = (0..100).map(|_| sleeper()).collect();
        let mut arrivals = Arrivals::new(Root::live());
        let listed = arrivals.processes.entries_read;
        // Others' processes begin meanwhile, too.
        for _ in 0..5 {
            old.push(sleeper());
            arrivals.poll_changes();
        }
        let read = arrivals.processes.entries_read - listed;
        for child in &mut old {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // As before, each look would have read all of them.
        assert!(read < 5 * listed / 2, "{read} entries, where a listing has {listed}");
    }

    fn sleeper() -> std::process::Child {
        std::process::Command::new("sleep").arg("60").spawn().unwrap()
    }
}
