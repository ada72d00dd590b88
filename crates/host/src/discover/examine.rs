//! One monitor: tries the methods of telling its vCPU threads in their order and reads what those
//! threads used.

use super::debugfs::KvmDirs;
use super::facts::{Accel, EmulatorFacts, ThreadTime, VcpuFacts, VcpuSource, Vmm};
use super::files::Reader;
use super::guest::GuestArguments;
use super::identify::{self, ByName, Named, ONE_THREAD, Vcpus};
use super::process::{KvmFds, MAX_STATUS, Thread};
use super::{cgroup, definition, guest, memory, proc_text, process, qmp, vmm};
use crate::system;
use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use instep_core::wording::Count;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The most scans for which a QMP socket that gave nothing is left alone; the first times it is
/// one, two, four ...
const QMP_REST: u64 = 16;
/// How often the same threads must be identified alike before the answer is kept.
const SETTLED: u8 = 2;

/// Why a process that only looks like a VM of KVM is none.
const NO_KVM: &str = "its threads are named as vCPUs of KVM, but it holds no KVM descriptor";

/// A monitor as remembered from scan to scan.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    pub(super) ppid: u32,
    /// `/proc/PID` under the root.
    pub(super) dir: PathBuf,
    pub(super) vmm: Vmm,
    pub(super) arguments: Vec<String>,
    pub(super) guest: GuestArguments,
    /// Its KVM descriptors; `None` when they cannot be listed.
    pub(super) fds: Option<KvmFds>,
    /// Its real user, `None` where that is not known.
    pub(super) uid: Option<u32>,
    pub(super) memory: memory::State,
    pub(super) definition: definition::State,
    /// Threads of the scan before, their answer and how often it was the same.
    threads: Vec<Thread>,
    answer: Option<Answer>,
    settled: u8,
    /// QMP's last answer, each vCPU with the start of its thread.
    qmp_answer: Vec<(u32, u32, u64)>,
    /// What came of asking by QMP in vain since.
    qmp_refused: Option<Refused>,
}

/// A question by QMP that was not answered.
#[derive(Debug)]
struct Refused {
    /// The first scan in which it may be asked again.
    again: u64,
    /// How many scans the next rest lasts.
    rest: u64,
    why: String,
}

/// Which threads are vCPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) source: VcpuSource,
    pub(super) accel: Accel,
    pub(super) vcpus: Vcpus,
    /// Something about it that a reader should know.
    pub(super) warning: Option<String>,
}

/// What came of looking at a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its vCPUs are known.
    Known(Known),
    /// It runs a guest but its vCPUs cannot be told; why, and how many it has at least.
    Opaque(String, u32),
    /// It runs no guest (yet).
    NoGuest,
}

/// What identification may use besides the process.
pub(super) struct Means<'a> {
    pub(super) dirs: &'a KvmDirs,
    /// Whether QMP sockets may be tried.
    pub(super) qmp: bool,
    /// The number of this scan.
    pub(super) scan: u64,
    /// The time for that.
    pub(super) qmp_turns: &'a mut qmp::QmpBudget,
    /// Counts tries.
    pub(super) qmp_tries: &'a mut u32,
    /// Whether the process is so young that its threads are still being made.
    pub(super) young: bool,
}

impl Monitor {
    pub(super) fn new(pid: u32, dir: PathBuf, vmm: Vmm, arguments: Vec<String>) -> Self {
        let guest = super::guest::describe(&vmm, &arguments);
        Self {
            pid,
            start_ticks: 0,
            ppid: 0,
            dir,
            vmm,
            arguments,
            guest,
            fds: None,
            uid: None,
            memory: memory::State::default(),
            definition: definition::State::default(),
            threads: Vec::new(),
            answer: None,
            settled: 0,
            qmp_answer: Vec::new(),
            qmp_refused: None,
        }
    }

    /// What people call the VM in this cgroup.
    pub(super) fn name(&self, cgroup: Option<&str>) -> String {
        let by_path = || cgroup.and_then(|path| cgroup::told_by_path(path).1);
        let by_path = || by_path().map(|name| guest::readable(&name));
        let by_process = || format!("{}-{}", self.vmm, self.pid);
        self.guest.name.clone().or_else(by_path).unwrap_or_else(by_process)
    }

    /// Threads as of the last look.
    pub(super) fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Reads the threads and tells which are vCPUs.
    pub(super) fn identify_vcpus(&mut self, means: &mut Means<'_>, reader: &mut Reader) -> Answer {
        let threads = process::threads(&self.dir, reader);
        let same = same_threads(&threads, &self.threads);
        self.threads = threads;
        if let Some(answer @ Answer::Known(known)) = self.answer.as_ref().filter(|_| same) {
            // QMP tells all at once; the other methods may have met a vCPU half made.
            let settled = self.settled >= SETTLED && !means.young;
            let told = known.source == VcpuSource::Qmp;
            if self.qmp_refused.is_none() && (settled || told) {
                return answer.clone();
            }
        }
        self.refresh_fds(reader);
        let mut answer = self.identify(means, reader, false);
        if answer.is_none() {
            // The numbers disagree: perhaps a vCPU was plugged in between the two reads.
            self.threads = process::threads(&self.dir, reader);
            self.refresh_fds(reader);
            answer = self.identify(means, reader, true);
        }
        let answer = answer.unwrap_or(Answer::NoGuest);
        self.settled = if same && self.answer.as_ref() == Some(&answer) {
            self.settled.saturating_add(1)
        } else {
            0
        };
        self.answer = Some(answer.clone());
        answer
    }

    fn refresh_fds(&mut self, reader: &mut Reader) {
        self.fds = process::read_fds(&self.dir, reader).ok();
    }

    /// The methods in their order. `None` asks for another look, unless `last`.
    fn identify(
        &mut self,
        means: &mut Means<'_>,
        reader: &mut Reader,
        last: bool,
    ) -> Option<Answer> {
        let names: Vec<(u32, String)> =
            self.threads.iter().map(|t| (t.tid, t.stat.comm.clone())).collect();
        let named: Vec<Named<'_>> =
            names.iter().map(|(tid, comm)| Named { tid: *tid, comm }).collect();
        let held = self.fds.as_ref().filter(|fds| fds.vm).map(|fds| fds.vcpus);

        let tids: Vec<u32> = self.threads.iter().map(|thread| thread.tid).collect();
        let vms = means.dirs.vms_of(&tids, reader);
        if vms.len() > 1 {
            let vcpus = vms.iter().map(Vec::len).sum::<usize>();
            let why = format!("its process runs {} VMs", vms.len());
            return Some(Answer::Opaque(why, u32::try_from(vcpus).unwrap_or(u32::MAX)));
        }
        if let Some(vcpus) = vms.first().and_then(|vm| identify::by_debugfs(&self.vmm, vm, &named))
        {
            return Some(known(VcpuSource::KvmDebugfs, Accel::Kvm, vcpus, None));
        }
        let by_names = identify::by_names(&self.vmm, &named);
        let accel = self.accel(&by_names);
        if matches!(by_names, ByName::Found(_, Accel::Kvm)) && self.fds.is_some() && held.is_none()
        {
            return Some(Answer::Opaque(NO_KVM.to_owned(), 0));
        }
        if let ByName::Found(vcpus, _) = &by_names {
            let count = u32::try_from(vcpus.len()).unwrap_or(u32::MAX);
            if held.is_none_or(|held| held == count) {
                return Some(known(VcpuSource::ThreadNames, accel, vcpus.clone(), None));
            }
            if !last {
                return None;
            }
        }
        if let ByName::AllInOne(tid) = by_names {
            return Some(if self.guest.smp.max == 1 {
                known(VcpuSource::ThreadNames, accel, vec![(0, tid)], None)
            } else {
                Answer::Opaque(ONE_THREAD.to_owned(), self.proven(self.guest.smp.cpus).max(1))
            });
        }
        if by_names == ByName::Nothing && !self.may_run_unnamed(held) {
            return Some(Answer::NoGuest);
        }
        let refusal = match self.ask(means, &named) {
            Ok(vcpus) => return Some(known(VcpuSource::Qmp, accel, vcpus, None)),
            Err(refusal) => refusal,
        };
        if let Some(vcpus) = self.told_before() {
            return Some(known(VcpuSource::Qmp, accel, vcpus, None));
        }
        Some(self.fall_back(by_names, accel, held, &refusal))
    }

    /// What to make of names that do not agree with the descriptors, or of none, without QMP.
    fn fall_back(&self, names: ByName, accel: Accel, held: Option<u32>, qmp: &str) -> Answer {
        match (names, held) {
            (ByName::Found(vcpus, _), Some(held)) if vcpus.len() < held as usize => {
                let warning = format!(
                    "process {} holds {} but {} by name; the names are believed (unplugged \
                     vCPUs keep their descriptor)",
                    self.pid,
                    Count(held.into(), "KVM vCPU descriptor"),
                    Count::of(vcpus.len(), "vCPU thread")
                );
                known(VcpuSource::ThreadNames, accel, vcpus, Some(warning))
            }
            (ByName::Found(vcpus, _), held) => Answer::Opaque(
                format!(
                    "it has {} by name but holds {}; {qmp}",
                    Count::of(vcpus.len(), "vCPU thread"),
                    Count(held.unwrap_or(0).into(), "KVM vCPU descriptor")
                ),
                self.proven(1),
            ),
            (ByName::Twice(index), _) => Answer::Opaque(
                format!("two threads are named as vCPU {index}; {qmp}"),
                self.proven(self.guest.smp.cpus),
            ),
            (_, Some(0)) => Answer::Opaque("it has no vCPU yet".to_owned(), 0),
            (_, held) => {
                let vcpus = self.proven(self.guest.smp.cpus);
                let is_one = self.guest.smp.cpus > 1 && held.is_none();
                if is_one && vmm::one_thread_for_all(&self.arguments) {
                    return Answer::Opaque(ONE_THREAD.to_owned(), vcpus);
                }
                let advice = match self.vmm {
                    Vmm::Qemu if vmm::names_threads(&self.arguments) => {
                        " (QEMU names them as it starts them)"
                    }
                    Vmm::Qemu => " (start QEMU with -name NAME,debug-threads=on)",
                    _ => "",
                };
                Answer::Opaque(
                    format!("its threads do not say which of them run vCPUs{advice}; {qmp}"),
                    vcpus,
                )
            }
        }
    }

    /// How many vCPUs a VM counts for whose vCPU threads cannot be told: as many as it holds KVM descriptors
    /// of, and `claimed` by its command line only where those cannot be listed. What it claims costs
    /// nothing, and more vCPUs than CPUs change the placement of all VMs.
    fn proven(&self, claimed: u32) -> u32 {
        self.fds.as_ref().map_or(claimed, |fds| fds.vcpus)
    }

    /// Whether threads without vCPU names may hide a guest: certainly if it holds a KVM VM; for a
    /// QEMU process if more than one thread runs and it is not known to lack the descriptor that
    /// KVM would need. The other monitors always name their threads.
    fn may_run_unnamed(&self, held: Option<u32>) -> bool {
        let readable_without = self.fds.is_some() && held.is_none();
        if held.is_some() {
            return true;
        }
        if self.vmm != Vmm::Qemu || self.threads.len() == 1 {
            return false;
        }
        let kvm = vmm::accel(&self.vmm, &self.arguments) == Accel::Kvm;
        !(readable_without && kvm)
    }

    fn accel(&self, names: &ByName) -> Accel {
        if self.fds.as_ref().is_some_and(|fds| fds.vm) {
            return Accel::Kvm;
        }
        match names {
            ByName::Found(_, accel) if *accel != Accel::Unknown => *accel,
            ByName::AllInOne(_) => Accel::Tcg,
            _ => vmm::accel(&self.vmm, &self.arguments),
        }
    }

    fn remember(&mut self, vcpus: &Vcpus) {
        let start = |tid: u32| {
            let thread = self.threads.iter().find(|thread| thread.tid == tid);
            thread.map_or(0, |thread| thread.stat.start_ticks)
        };
        self.qmp_answer = vcpus.iter().map(|(index, tid)| (*index, *tid, start(*tid))).collect();
        self.qmp_refused = None;
    }

    /// QMP's last answer, if all threads in it are still there: QEMU makes and ends workers all the
    /// time, and a socket may be held by another client just then. It is asked again soon, since a
    /// vCPU may have been plugged in.
    fn told_before(&self) -> Option<Vcpus> {
        let there = |tid: u32, start: u64| {
            self.threads.iter().any(|t| t.tid == tid && t.stat.start_ticks == start)
        };
        let all = self.qmp_answer.iter().all(|(_, tid, start)| there(*tid, *start));
        let vcpus: Vcpus = self.qmp_answer.iter().map(|(index, tid, _)| (*index, *tid)).collect();
        (all && !vcpus.is_empty()).then_some(vcpus)
    }

    /// Asks QEMU, if it may be asked; an answer is kept while it fits the threads, a refusal for
    /// some scans.
    fn ask(&mut self, means: &mut Means<'_>, named: &[Named<'_>]) -> Result<Vcpus, String> {
        if self.guest.qmp.is_empty() {
            return Err("its command line names no QMP socket that could be asked".to_owned());
        }
        if !means.qmp {
            return Err("its QMP socket was not asked".to_owned());
        }
        if let Some(refused) = self.qmp_refused.as_ref().filter(|r| means.scan < r.again) {
            return Err(refused.why.clone());
        }
        if !means.qmp_turns.has_time(self.pid) {
            return Err("its QMP socket was not asked yet, other monitors took too long".to_owned());
        }
        let mut why = "its QMP socket cannot be asked before the guest starts".to_owned();
        for socket in &self.guest.qmp {
            // A monitor that waits for its first client must not take Instep for it. Before the
            // guest starts QEMU has two threads, main and RCU.
            if socket.waits && named.len() < self.guest.smp.cpus as usize + 2 {
                continue;
            }
            if !means.qmp_turns.has_time(self.pid) {
                break;
            }
            *means.qmp_tries += 1;
            let begun = Instant::now();
            let answer = qmp::query(self.pid, &self.dir, &socket.path);
            means.qmp_turns.spend(begun.elapsed());
            match answer {
                Ok(answer) => match identify::by_qmp(&answer, named) {
                    Ok(vcpus) => {
                        self.remember(&vcpus);
                        return Ok(vcpus);
                    }
                    Err(refusal) => why = refusal,
                },
                Err(failure) => {
                    let path = super::guest::readable(&socket.path);
                    why = format!("its QMP socket {path} {failure}");
                }
            }
        }
        let rest = self.qmp_refused.as_ref().map_or(1, |refused| refused.rest);
        let next = (rest * 2).min(QMP_REST);
        self.qmp_refused = Some(Refused { again: means.scan + rest, rest: next, why: why.clone() });
        Err(why)
    }
}

fn known(source: VcpuSource, accel: Accel, vcpus: Vcpus, warning: Option<String>) -> Answer {
    Answer::Known(Known { source, accel, vcpus, warning })
}

fn same_threads(a: &[Thread], b: &[Thread]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.tid == b.tid && a.stat.start_ticks == b.stat.start_ticks && a.stat.comm == b.stat.comm
        })
}

/// Reads the load and the affinity of threads.
pub(super) struct ThreadReader<'a> {
    pub(super) task: PathBuf,
    pub(super) live: bool,
    pub(super) ticks_per_second: u64,
    pub(super) reader: &'a mut Reader,
}

impl ThreadReader<'_> {
    /// A vCPU's facts; `None` when the thread has gone.
    pub(super) fn vcpu(&mut self, index: u32, thread: &Thread) -> Option<VcpuFacts> {
        let allowed = self.allowed(thread.tid)?;
        let ThreadTime { tid, start_ticks, run, wait, ticks } = self.time(thread);
        let cpu = thread.stat.cpu;
        Some(VcpuFacts { index, tid, start_ticks, cpu, allowed, run, wait, ticks })
    }

    /// What a thread used.
    pub(super) fn time(&mut self, thread: &Thread) -> ThreadTime {
        let path = self.task.join(thread.tid.to_string()).join("schedstat");
        let read = self.reader.read_short(&path).ok().map(proc_text::schedstat);
        if read == Some(None) {
            self.reader.note_damaged(path);
        }
        let (run, wait) = read.flatten().unwrap_or_default();
        ThreadTime {
            tid: Tid(thread.tid),
            start_ticks: thread.stat.start_ticks,
            run,
            wait,
            ticks: proc_text::ticks_to_nanos(thread.stat.cpu_ticks, self.ticks_per_second),
        }
    }

    /// Another thread's facts; `None` when it has gone.
    pub(super) fn emulator(&mut self, thread: &Thread) -> Option<EmulatorFacts> {
        Some(EmulatorFacts {
            tid: Tid(thread.tid),
            start_ticks: thread.stat.start_ticks,
            name: super::guest::readable(&thread.stat.comm),
            allowed: self.allowed(thread.tid)?,
        })
    }

    /// CPUs the thread may use: by system call on the running machine, which costs a small part
    /// of reading `status`. The outer `None` says that the thread has gone.
    fn allowed(&mut self, tid: u32) -> Option<Option<CpuSet>> {
        if self.live {
            match system::affinity(Tid(tid)) {
                Ok(set) => return Some(Some(set)),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return None,
                Err(_) => {}
            }
        }
        let path = self.task.join(tid.to_string()).join("status");
        let status = self.reader.read(&path, MAX_STATUS).ok();
        Some(status.and_then(proc_text::allowed))
    }
}

/// `relative` below the root, as a directory of a process.
pub(super) fn process_dir(root: &Path, pid: u32) -> PathBuf {
    root.join("proc").join(pid.to_string())
}
