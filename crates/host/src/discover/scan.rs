//! The scanner: one pass over the processes of a host, with what is known from passes before.
//!
//! A process that was found to be no monitor is not looked into again while its id, start and
//! name stay, except in turn (one in [`TURNS`] in every scan) and while it is young; nor is a kernel thread, of which
//! a host of 384 CPUs has thousands.

mod modes;

use super::cgroup::{self, Hierarchies, Membership};
use super::debugfs::KvmDirs;
use super::definition::{self, Aside, Definition};
use super::examine::{self, Answer, Known, Means, Monitor, ThreadReader};
use super::facts::{Manager, OpaqueFacts, Scan, VcpuFacts, VmFacts, Vmm, name_uniquely};
use super::files::{Reader, numbered};
use super::gaps::{Lost, Unpinned};
use super::memory::Source;
use super::options::ScanOptions;
use super::proc_text::{self, Stat};
use super::rivals::{self, Rivals};
use super::trust::{Owner, UserMap};
use super::units::Units;
use super::waits::{self, Counters, Waits};
use super::{devices, isolated, process, qmp, vmm};
use crate::error::Error;
use crate::root::Root;
use crate::system;
use instep_core::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How long after its start a process is looked into in every scan.
const YOUNG: Nanos = Nanos::from_secs(10);
/// Old processes that are no monitors, and kernel threads, are looked into once in this many scans.
const TURNS: u64 = 16;
/// Scans between looks at the mount table.
const MOUNT_SCANS: u64 = 64;
/// The most warnings of a scan.
const MAX_WARNINGS: usize = 100;

/// Scans a host and remembers what it found.
#[derive(Debug)]
pub struct Scanner {
    root: Root,
    options: ScanOptions,
    reader: Reader,
    known: BTreeMap<u32, Process>,
    kernel_threads: BTreeSet<u32>,
    hierarchies: Hierarchies,
    qmp_turns: qmp::QmpBudget,
    aside: Aside,
    waits: Waits,
    rivals: Rivals,
    /// What user ids stand for outside; `None` for a copy, which has those of where it was made.
    users: Option<UserMap>,
    scans: u64,
    ticks_per_second: u64,
    page: u64,
    /// What lack of privilege hides, or a copy lacks, is said once.
    warned: Warned,
}

/// Which of those warnings were given.
#[derive(Clone, Copy, Debug, Default)]
struct Warned {
    descriptors: bool,
    memory: bool,
    cgroups: bool,
    definitions: bool,
}

/// A process as remembered.
#[derive(Debug)]
struct Process {
    start_ticks: u64,
    comm: String,
    /// Whether its descriptors could not be listed for lack of privilege.
    denied: bool,
    monitor: Option<Box<Monitor>>,
}

/// A VM that was found, before its memory is read.
struct Found {
    pid: u32,
    facts: VmFacts,
    membership: Membership,
}

impl Scanner {
    /// A scanner of the host under `root`.
    pub fn new(root: Root, options: ScanOptions) -> Self {
        let mut reader = Reader::new(&root);
        let Units { ticks_per_second, page } = Units::of(&root, &mut reader);
        Self {
            ticks_per_second,
            page,
            reader,
            options,
            known: BTreeMap::new(),
            kernel_threads: BTreeSet::new(),
            hierarchies: Hierarchies::default(),
            qmp_turns: qmp::QmpBudget::default(),
            aside: Aside::default(),
            waits: Waits::default(),
            rivals: Rivals::default(),
            users: root
                .is_live()
                .then(|| UserMap::parse(&root.read("proc/self/uid_map").unwrap_or_default())),
            root,
            scans: 0,
            warned: Warned::default(),
        }
    }

    /// Looks at every process.
    ///
    /// # Errors
    /// When there is no /proc with processes under the root, or that of the running machine is of another
    /// pid namespace. Whatever else is missing or ends in the middle is left out.
    pub fn scan(&mut self) -> Result<Scan, Error> {
        let begun = Instant::now();
        if self.root.is_live() {
            system::check_pid_namespace()?;
        }
        let mut scan = self.begin();
        self.hierarchies.forget_weights();
        let pids = self.processes()?;
        if self.scans.is_multiple_of(MOUNT_SCANS) {
            self.hierarchies = Hierarchies::find(&self.root, &mut self.reader);
        }
        let dirs = KvmDirs::list(&self.root, &self.reader);
        scan.looked.kvm_debugfs = dirs.state;
        self.qmp_turns.begin(self.options.qmp_budget);
        self.aside.begin(definition::BUDGET);
        let mut found = Vec::new();
        for pid in &pids {
            self.look_at(*pid, &dirs, &mut scan, &mut found);
        }
        scan.warnings.extend(self.aside.warning());
        let mut unpinned = Unpinned::default();
        for vm in &found {
            let dir = examine::process_dir(&self.root.join(""), vm.pid);
            unpinned.note(&dir, &vm.facts.vcpus);
        }
        scan.warnings.extend(unpinned.warning());
        if self.reads_waits() {
            scan.waited = Some(self.waits.end());
        }
        let alive: BTreeSet<u32> = pids.into_iter().collect();
        self.known.retain(|pid, _| alive.contains(pid));
        self.kernel_threads.retain(|pid| alive.contains(pid));
        self.memory(&mut found, &mut scan);
        scan.vms = found.into_iter().map(|found| found.facts).collect();
        self.drop_forks(&mut scan);
        let opaque = scan.opaque.iter_mut().map(|vm| (&mut vm.name, vm.pid));
        name_uniquely(scan.vms.iter_mut().map(|vm| (&mut vm.name, vm.pid)).chain(opaque));
        if scan.looked.unreadable_fd_dirs != 0 && !self.warned.descriptors {
            self.warned.descriptors = true;
            scan.warnings.push(format!(
                "processes whose descriptors cannot be read: {}; VMs among them are found by name \
                 only (it takes root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, and no container or LSM that forbids it)",
                scan.looked.unreadable_fd_dirs
            ));
        }
        scan.warnings.extend(self.rivals.warnings(&scan, &self.root, &mut self.reader));
        scan.warnings.extend(self.reader.warnings());
        scan.warnings.truncate(MAX_WARNINGS);
        scan.cost.wall = Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.scans += 1;
        Ok(scan)
    }

    /// The clocks and the host's CPU time.
    fn begin(&mut self) -> Scan {
        let mut scan = Scan { ticks_per_second: self.ticks_per_second, ..Scan::default() };
        if self.root.is_live() {
            let (monotonic, boot) = system::clocks();
            (scan.at, scan.boot) = (monotonic, Some(boot));
        } else {
            let path = self.root.join("proc/uptime");
            scan.boot = self.reader.read_short(&path).ok().and_then(proc_text::uptime);
            scan.at = scan.boot.unwrap_or_default();
            scan.gaps.uptime = scan.boot.is_none().then_some(path);
        }
        let stat = self.reader.read(&self.root.join("proc/stat"), 4 << 20).ok();
        let ticks = stat.and_then(proc_text::host_ticks).unwrap_or_default().busy;
        scan.host_busy = proc_text::ticks_to_nanos(ticks, self.ticks_per_second);
        if !self.root.is_live() {
            scan.waited = waits::in_copy(&self.root, &mut self.reader);
        }
        scan.isolated = isolated::read(&self.root, &mut self.reader);
        scan
    }

    /// Whether the waits of each process are read. A copy has no scan before it to tell which are busy.
    fn reads_waits(&self) -> bool {
        self.options.waits && self.root.is_live()
    }

    fn processes(&self) -> Result<Vec<u32>, Error> {
        let path = self.root.join("proc");
        let next = if self.root.is_live() {
            "mount procfs on /proc, or give a copy of a host's /proc and /sys with --root DIR"
        } else {
            "a copy (--root DIR, --before DIR) is a directory with `proc` and `sys` in it"
        };
        let unusable = |what: String| Error::Unusable { what, next: next.to_owned() };
        let pids = numbered(&path)
            .map_err(|error| unusable(format!("{} cannot be listed: {error}", path.display())))?;
        if pids.is_empty() && !path.join("stat").exists() && !path.join("uptime").exists() {
            return Err(unusable(format!("{} holds no processes", path.display())));
        }
        Ok(pids)
    }

    fn look_at(&mut self, pid: u32, dirs: &KvmDirs, scan: &mut Scan, found: &mut Vec<Found>) {
        let turn = (u64::from(pid) + self.scans).is_multiple_of(TURNS);
        if !turn && self.kernel_threads.contains(&pid) {
            return;
        }
        let dir = examine::process_dir(&self.root.join(""), pid);
        let Some(stat) = self.process_stat(&dir, pid) else { return };
        if stat.is_kernel_thread() {
            self.kernel_threads.insert(pid);
            return;
        }
        self.kernel_threads.remove(&pid);
        if stat.is_dead() {
            return;
        }
        scan.looked.processes += 1;
        let started = proc_text::ticks_to_nanos(stat.start_ticks, self.ticks_per_second);
        // A `numad -w` that answers libvirt is soon over.
        let is_old = scan.boot.is_none_or(|boot| boot.since(started) >= YOUNG);
        if is_old && rivals::is_name(&stat.comm) {
            rivals::note((pid, &stat.comm), &dir, scan, &mut self.reader);
        }
        let may_be_young = self.root.is_live() && pid != std::process::id();
        let young = may_be_young && scan.boot.is_some_and(|b| b.since(started) < YOUNG);
        let before = self
            .known
            .remove(&pid)
            .filter(|process| process.start_ticks == stat.start_ticks && process.comm == stat.comm);
        let mut denied = before.as_ref().is_some_and(|process| process.denied);
        let monitor = match before.map(|process| process.monitor) {
            Some(None) if !young && !turn => None,
            Some(Some(monitor)) if !young => Some(monitor),
            before => {
                scan.cost.examined += 1;
                self.classify(pid, &dir, before.flatten(), &mut denied)
            }
        };
        scan.looked.unreadable_fd_dirs += u32::from(denied);
        let monitor = monitor.map(|mut monitor| {
            monitor.start_ticks = stat.start_ticks;
            monitor.ppid = stat.ppid;
            self.look_at_monitor(&mut monitor, young, dirs, (&mut *scan, &mut *found));
            monitor
        });
        if monitor.is_none() && self.reads_waits() {
            let used = proc_text::ticks_to_nanos(stat.cpu_ticks, self.ticks_per_second);
            let (cgroups, reader) = (&self.hierarchies, &mut self.reader);
            let read = || Counters::read(&dir, &stat, cgroups, reader);
            self.waits.note(pid, (&stat, used), read);
        }
        let process = Process { start_ticks: stat.start_ticks, comm: stat.comm, denied, monitor };
        self.known.insert(pid, process);
    }

    /// What a monitor runs: a VM, one whose vCPUs cannot be told, or no guest.
    fn look_at_monitor(
        &mut self,
        monitor: &mut Monitor,
        young: bool,
        dirs: &KvmDirs,
        (scan, found): (&mut Scan, &mut Vec<Found>),
    ) {
        let mut means = Means {
            dirs,
            qmp: self.options.qmp && self.root.is_live(),
            scan: self.scans,
            qmp_turns: &mut self.qmp_turns,
            qmp_tries: &mut scan.cost.qmp_tries,
            young,
        };
        let answer = monitor.identify_vcpus(&mut means, &mut self.reader);
        let threads = u32::try_from(monitor.threads().len()).unwrap_or(u32::MAX);
        scan.cost.threads = scan.cost.threads.saturating_add(threads);
        match answer {
            Answer::Known(known) => found.extend(self.vm(monitor, known, scan)),
            Answer::Opaque(why, vcpus) => {
                let facts = self.opaque(monitor, why, vcpus, scan);
                let counted = facts.threads.iter().map(|time| time.run != Nanos(0));
                let threads = monitor.threads().iter().zip(counted);
                scan.gaps.note(&facts.name, &monitor.dir, threads);
                scan.opaque.push(facts);
            }
            Answer::NoGuest => {}
        }
    }

    /// `stat` of a process; in a copy where it is missing or cut that of its main thread, or an
    /// empty one where only the command line was copied.
    fn process_stat(&mut self, dir: &Path, pid: u32) -> Option<Stat> {
        let stat = self.reader.read_short(&dir.join("stat")).ok().and_then(proc_text::stat);
        if stat.as_ref().is_some_and(|stat| stat.whole) || self.root.is_live() {
            return stat;
        }
        let main = dir.join("task").join(pid.to_string()).join("stat");
        let of_main = self.reader.read_short(&main).ok().and_then(proc_text::stat);
        let stat = of_main.filter(|main| main.whole || stat.is_none()).or(stat);
        stat.or_else(|| dir.join("cmdline").exists().then(Stat::default))
    }

    /// Whether a process is a monitor that may run a guest. `before` is what it was in the scan
    /// before; its memory figures and QMP answers live on.
    fn classify(
        &mut self,
        pid: u32,
        dir: &Path,
        before: Option<Box<Monitor>>,
        denied: &mut bool,
    ) -> Option<Box<Monitor>> {
        let fds = process::read_fds(dir, &mut self.reader);
        *denied = fds.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let fds = fds.ok();
        let holds_vm = fds.as_ref().is_some_and(|fds| fds.vm);
        let program = process::program(dir, &mut self.reader);
        let vmm = match program.vmm {
            Some(vmm) if holds_vm || vmm::runs_guest(&vmm, &program.arguments) => vmm,
            None if holds_vm => {
                Vmm::Other(process::other_name(dir, &program.arguments, &mut self.reader))
            }
            _ => return None,
        };
        let mut monitor = match before {
            Some(same) if same.vmm == vmm && same.arguments == program.arguments => same,
            _ => Box::new(Monitor::new(pid, dir.to_owned(), vmm, program.arguments)),
        };
        monitor.fds = fds;
        monitor.uid = process::user(dir, &mut self.reader);
        Some(monitor)
    }

    fn vm(&mut self, monitor: &mut Monitor, known: Known, scan: &mut Scan) -> Option<Found> {
        let read_at = self.now(scan.at);
        let mut threads = self.thread_reader(monitor);
        let mut vcpus: Vec<VcpuFacts> = Vec::with_capacity(known.vcpus.len());
        let mut emulators = Vec::new();
        let indices: BTreeMap<u32, u32> =
            known.vcpus.iter().map(|(index, tid)| (*tid, *index)).collect();
        for thread in monitor.threads() {
            match indices.get(&thread.tid) {
                Some(index) => vcpus.extend(threads.vcpu(*index, thread)),
                None => emulators.extend(threads.emulator(thread)),
            }
        }
        if vcpus.is_empty() {
            return None;
        }
        vcpus.sort_by_key(|vcpu| vcpu.index);
        scan.warnings.extend(known.warning);
        let counted: BTreeMap<u32, bool> =
            vcpus.iter().map(|vcpu| (vcpu.tid.0, vcpu.run != Nanos(0))).collect();
        let (membership, owner) = self.membership(monitor, scan);
        let limits = self.hierarchies.limits(&membership, &mut self.reader);
        let cgroup = membership.path().map(str::to_owned);
        let (by_path, _) = cgroup.as_deref().map(cgroup::told_by_path).unwrap_or_default();
        let manager = by_path.or(monitor.guest.manager);
        let definition = self.definition(monitor, manager, scan);
        let guest = &monitor.guest;
        let name = monitor.name(cgroup.as_deref());
        let threads = monitor.threads().iter();
        let threads = threads.filter_map(|thread| Some((thread, *counted.get(&thread.tid)?)));
        scan.gaps.note(&name, &monitor.dir, threads);
        let open = monitor.fds.as_ref().map(|fds| &fds.devices);
        let devices = open.map(|open| devices::nodes(&self.root.join(""), open, &mut self.reader));
        let devices = devices.unwrap_or_default();
        let facts = VmFacts {
            pid: monitor.pid,
            start_ticks: monitor.start_ticks,
            name,
            uuid: guest.uuid.clone(),
            vmm: monitor.vmm.clone(),
            manager,
            accel: known.accel,
            cgroup,
            owner,
            identified_by: known.source,
            read_at,
            quota: self.hierarchies.quota(&membership, (monitor.pid, &vcpus), &mut self.reader),
            vcpus,
            emulators,
            memory: None,
            memory_bound: guest.memory_bound.clone(),
            memory_preferred: guest.memory_preferred.clone(),
            guest_threads_per_core: guest.smp.threads,
            guest_nodes: guest.nodes.clone(),
            weight: limits.weight,
            groups: limits.groups,
            devices,
            cpuset: limits.cpuset,
            mems: limits.mems,
            definition,
        };
        Some(Found { pid: monitor.pid, facts, membership })
    }

    fn definition(
        &mut self,
        monitor: &mut Monitor,
        manager: Option<Manager>,
        scan: &mut Scan,
    ) -> Definition {
        if !self.options.definitions {
            return Definition::default();
        }
        let Monitor { pid, guest, definition, .. } = monitor;
        let process = definition::Process { pid: *pid, guest, manager, root: &self.root };
        let found = definition.refresh(&process, (&mut self.reader, &mut self.aside)).clone();
        if let Some(why) = definition.denied().filter(|_| !self.warned.definitions) {
            self.warned.definitions = true;
            scan.warnings.push(why.to_owned());
        }
        found
    }

    /// Its cgroups, and who runs it.
    fn membership(&mut self, monitor: &Monitor, scan: &mut Scan) -> (Membership, Owner) {
        let text = self.reader.text(&monitor.dir.join("cgroup"), 64 << 10).unwrap_or_default();
        if cgroup::lead_outside(&text) && !std::mem::replace(&mut self.warned.cgroups, true) {
            scan.warnings.push(cgroup::OUTSIDE.to_owned());
        }
        let outside = self.users.as_ref().zip(monitor.uid);
        let cgroups = cgroup::whole_paths(&text);
        let of_root = |path: &String| self.hierarchies.part_of(0, path);
        let is_live = self.root.is_live();
        let owner = Owner {
            uid: monitor.uid,
            is_ordinary_outside: outside.is_some_and(|(map, uid)| map.is_ordinary_outside(uid)),
            // Those who made a copy own its folders.
            roots_cgroups: cgroups.iter().filter(|_| is_live).filter_map(of_root).collect(),
            cgroups,
            is_of_no_login: process::is_of_no_login(&monitor.dir, &mut self.reader),
            holds_kvm: monitor.fds.as_ref().map(|fds| fds.vm),
        };
        (cgroup::membership(&text), owner)
    }

    fn opaque(
        &mut self,
        monitor: &Monitor,
        why: String,
        vcpus: u32,
        scan: &mut Scan,
    ) -> OpaqueFacts {
        let (membership, owner) = self.membership(monitor, scan);
        let name = monitor.name(membership.path());
        let read_at = self.now(scan.at);
        let mut reader = self.thread_reader(monitor);
        let threads: Vec<_> = monitor.threads().iter().map(|thread| reader.time(thread)).collect();
        // What it has no thread for does not run; a copy may lack all of them.
        let most = u32::try_from(threads.len()).unwrap_or(u32::MAX);
        let vcpus = if most == 0 { vcpus } else { vcpus.min(most) };
        let (pid, start_ticks) = (monitor.pid, monitor.start_ticks);
        OpaqueFacts { pid, start_ticks, name, vcpus, why, owner, read_at, threads }
    }

    /// The monotonic clock on the running machine; the time of a copy is that of its scan, `at`.
    fn now(&self, at: Nanos) -> Nanos {
        if self.root.is_live() { system::clocks().0 } else { at }
    }

    fn thread_reader(&mut self, monitor: &Monitor) -> ThreadReader<'_> {
        ThreadReader {
            task: monitor.dir.join("task"),
            live: self.root.is_live(),
            ticks_per_second: self.ticks_per_second,
            reader: &mut self.reader,
        }
    }

    /// Reads memory figures: the cgroup's for all VMs, then numa_maps within the budget.
    fn memory(&mut self, found: &mut [Found], scan: &mut Scan) {
        let options = self.options.memory.clone();
        if !options.enabled {
            return;
        }
        let live = self.root.is_live();
        let mut queue = Vec::new();
        let shared = self.shared_cgroups(found);
        for (index, vm) in found.iter().enumerate() {
            let Some(Process { monitor: Some(monitor), .. }) = self.known.get_mut(&vm.pid) else {
                continue;
            };
            let mut state = std::mem::take(&mut monitor.memory);
            let source = source(vm, &shared, monitor, &self.hierarchies, scan.at, self.page);
            state.read_cgroup(&source, &mut self.reader, self.scans);
            if !live || state.due(scan.at, &options) {
                // Those without any figures first, then the oldest.
                queue.push((state.facts().is_some(), state.last(), index));
            }
            monitor.memory = state;
        }
        queue.sort_unstable();
        let begun = Instant::now();
        let mut lost = Lost::default();
        for (_, _, index) in queue {
            let vm = &found[index];
            let Some(Process { monitor: Some(monitor), .. }) = self.known.get_mut(&vm.pid) else {
                continue;
            };
            let expected = begun.elapsed() + monitor.memory.expected();
            if live && expected > options.budget && scan.cost.numa_maps_reads != 0 {
                continue;
            }
            let mut state = std::mem::take(&mut monitor.memory);
            let source = source(vm, &shared, monitor, &self.hierarchies, scan.at, self.page);
            let read = state.read_maps(&source, &self.root, &options, &mut self.reader);
            if state.facts().is_none() {
                lost.note(&vm.facts.name, &monitor.dir, read.as_ref().err(), live);
            }
            scan.warnings.extend(read.unwrap_or_default());
            monitor.memory = state;
            scan.cost.numa_maps_reads += 1;
        }
        scan.cost.numa_maps = Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if !self.warned.memory {
            let warnings = lost.warnings();
            self.warned.memory = !warnings.is_empty();
            scan.warnings.extend(warnings);
        }
        for vm in found {
            if let Some(Process { monitor: Some(monitor), .. }) = self.known.get(&vm.pid) {
                vm.facts.memory = monitor.memory.facts();
                for (node, resident) in
                    vm.facts.guest_nodes.iter_mut().zip(monitor.memory.by_guest_node())
                {
                    node.resident.clone_from(resident);
                }
            }
        }
    }

    /// The directories of the memory controller that more than one VM is in.
    fn shared_cgroups(&self, found: &[Found]) -> BTreeSet<PathBuf> {
        let mut seen = BTreeSet::new();
        let dirs = found.iter().filter_map(|vm| self.hierarchies.memory_dir(&vm.membership));
        dirs.filter_map(|(dir, _)| (!seen.insert(dir.clone())).then_some(dir)).collect()
    }

    /// Leaves out a monitor's child between fork and exec of a helper, which looks like a VM without vCPUs.
    fn drop_forks(&self, scan: &mut Scan) {
        let monitors: BTreeSet<u32> =
            scan.vms.iter().map(|vm| vm.pid).chain(scan.opaque.iter().map(|vm| vm.pid)).collect();
        scan.opaque.retain(|vm| {
            let Some(Process { monitor: Some(child), .. }) = self.known.get(&vm.pid) else {
                return true;
            };
            let parent = self.known.get(&child.ppid).and_then(|p| p.monitor.as_ref());
            let forked = child.threads().len() == 1
                && monitors.contains(&child.ppid)
                && parent.is_some_and(|parent| parent.arguments == child.arguments);
            !forked
        });
    }
}

fn source<'a>(
    vm: &'a Found,
    shared: &BTreeSet<PathBuf>,
    monitor: &'a Monitor,
    hierarchies: &'a Hierarchies,
    at: Nanos,
    page: u64,
) -> Source<'a> {
    Source {
        pid: vm.pid,
        process: &monitor.dir,
        guest: &monitor.guest,
        membership: &vm.membership,
        hierarchies,
        shared: hierarchies
            .memory_dir(&vm.membership)
            .is_some_and(|(dir, _)| shared.contains(&dir)),
        managed: vm.membership.path().is_some_and(|p| cgroup::told_by_path(p).0.is_some()),
        at,
        page,
    }
}
