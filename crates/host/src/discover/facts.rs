//! What a scan finds, as plain data: VMs, their threads, memory and cgroup limits.
//!
//! Nothing here is filtered through the topology and nothing is a rate: sets may name offline
//! CPUs, times count from the thread's start. A fact that could not be read is `None`.

use super::definition::Definition;
use super::quota::Quota;
use super::shares::GroupWeight;
use super::trust::Owner;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::GuestNode;
use instep_core::units::{Bytes, CpuId, Nanos, NodeId, Tid};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// One look at a host.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// When it began: CLOCK_MONOTONIC on the running machine, /proc/uptime of a copy (zero when
    /// the copy has none).
    pub at: Nanos,
    /// Time since boot on the clock that `start_ticks` counts (CLOCK_BOOTTIME on the running
    /// machine, /proc/uptime of a copy).
    pub boot: Option<Nanos>,
    /// Ticks in a second of `start_ticks`: sysconf(_SC_CLK_TCK), of a copy what it tells, else 100.
    /// Never zero.
    pub ticks_per_second: u64,
    /// CPUs that the host keeps from its scheduler: `isolcpus=` (`/sys/devices/system/cpu/isolated`) and
    /// isolated cpuset partitions (`cpuset.cpus.isolated` of the root cgroup, since Linux 6.7).
    pub isolated: CpuSet,
    /// Processes of root that place threads, memory or interrupts, too (numad, irqbalance), with their names.
    pub rivals: BTreeMap<u32, String>,
    /// VMs whose vCPU threads are known, ascending by process id.
    pub vms: Vec<VmFacts>,
    /// VMs whose vCPU threads cannot be told, ascending by process id.
    pub opaque: Vec<OpaqueFacts>,
    /// CPU time that all CPUs together have used since boot (/proc/stat): user, nice, system,
    /// irq, softirq and steal; neither idle nor iowait. Zero when /proc/stat is missing.
    pub host_busy: Nanos,
    /// How long threads waited for a CPU, `None` where that is not known.
    pub waited: Option<Waited>,
    /// What was wrong or could not be read, one sentence each.
    pub warnings: Vec<String>,
    /// What loads lack. Whether that matters depends on the scan that this one is compared with:
    /// [`load_warnings`](super::load_warnings) tells.
    pub gaps: Gaps,
    /// What was looked for and where.
    pub looked: ScanCoverage,
    /// What the scan itself cost.
    pub cost: ScanCost,
}

/// Time that threads waited for a CPU. Two of a kind show by their difference what waited in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// All threads, vCPUs included, since boot.
    All(Nanos),
    /// Processes that are no VMs, since the first scan of the same scanner, each up to what it got.
    Others(Nanos),
}

/// What a scan lacks for loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// `/proc/uptime` where it is missing or not readable.
    pub uptime: Option<PathBuf>,
    /// The first VMs with threads whose `stat` is missing or cut.
    pub stats: Vec<StatGap>,
    /// How many more VMs have such threads.
    pub more: u32,
}

/// A VM with threads whose `stat` is missing or cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatGap {
    /// The VM's name.
    pub vm: String,
    /// The first such file.
    pub file: PathBuf,
    /// How many of its threads that run vCPUs (all where those cannot be told) have none.
    pub unread: u32,
    /// How many of these have no schedstat either.
    pub unknown: u32,
    /// How many threads were looked at.
    pub threads: u32,
}

/// A virtual machine monitor with its vCPU threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmFacts {
    /// The monitor's process.
    pub pid: u32,
    /// When that process started, in ticks since boot: tells a reused process id.
    pub start_ticks: u64,
    /// What people call the VM; unique in a scan (`NAME@PID` where two share a name).
    pub name: String,
    /// Its UUID, if the command line gives one.
    pub uuid: Option<String>,
    /// The monitor.
    pub vmm: Vmm,
    /// What started it.
    pub manager: Option<Manager>,
    /// What runs its guest code.
    pub accel: Accel,
    /// Its cgroup below the mount point, beginning with `/`.
    pub cgroup: Option<String>,
    /// Its user and cgroups.
    pub owner: Owner,
    /// How its vCPU threads were told.
    pub identified_by: VcpuSource,
    /// When its vCPUs' counters were read, on the clock of [`Scan::at`]; equals that of a copy.
    /// A scan of thousands of threads takes a noticeable part of a short window.
    pub read_at: Nanos,
    /// Its vCPUs, ascending by index, at least one.
    pub vcpus: Vec<VcpuFacts>,
    /// Its other threads, ascending by thread id.
    pub emulators: Vec<EmulatorFacts>,
    /// Its memory, `None` when it was not read (yet).
    pub memory: Option<MemoryFacts>,
    /// Nodes the command line binds its memory backends to (`policy=bind,host-nodes=`).
    pub memory_bound: Option<NodeSet>,
    /// Nodes the command line prefers for them (`policy=preferred`).
    pub memory_preferred: Option<NodeSet>,
    /// Threads per core that the guest believes in, at least 1.
    pub guest_threads_per_core: u32,
    /// The guest's NUMA nodes that hold vCPUs; empty when it has none or they are not known.
    pub guest_nodes: Vec<GuestNode>,
    /// `cpu.weight` of its cgroup (v1: `cpu.shares` * 100 / 1024), 100 where unknown.
    pub weight: u32,
    /// The nearest cgroup that has a weight, its own or one above it, and those above that; empty where it lies in
    /// the root or that is unknown.
    pub groups: Vec<GroupWeight>,
    /// The CPU quotas of its cgroups, and how long they stopped it.
    pub quota: Quota,
    /// The kernel's node of each of its passthrough devices, vDPA devices and network cards behind its tap
    /// interfaces, ascending.
    pub devices: Vec<NodeId>,
    /// CPUs its cgroup may use; `None` when not known.
    pub cpuset: Option<CpuSet>,
    /// Nodes its cgroup may take memory from; `None` when not known.
    pub mems: Option<NodeSet>,
    /// What its own definition says of it.
    pub definition: Definition,
}

/// A monitor whose vCPU threads cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpaqueFacts {
    /// The monitor's process.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
    /// What people call the VM; unique in a scan.
    pub name: String,
    /// How many vCPUs it has at least, and not more than threads: what a command line claims is not
    /// believed.
    pub vcpus: u32,
    /// Why its vCPU threads cannot be told, one sentence.
    pub why: String,
    /// Its user and cgroups.
    pub owner: Owner,
    /// When its threads' counters were read, as [`VmFacts::read_at`].
    pub read_at: Nanos,
    /// What each of its threads used, ascending by thread id.
    pub threads: Vec<ThreadTime>,
}

/// What one thread used since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// The thread.
    pub tid: Tid,
    /// When it started, in ticks since boot; zero when its stat is missing or cut.
    pub start_ticks: u64,
    /// CPU time by schedstat; zero when the kernel does not count it.
    pub run: Nanos,
    /// Time on a run queue by schedstat, without running.
    pub wait: Nanos,
    /// User and system time by stat, to a tick.
    pub ticks: Nanos,
}

impl ThreadTime {
    /// CPU time: schedstat's, or stat's where the kernel prints zeros (no CONFIG_SCHED_INFO).
    pub fn busy(&self) -> Nanos {
        if self.run == Nanos(0) { self.ticks } else { self.run }
    }
}

/// One vCPU thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuFacts {
    /// The guest's CPU number.
    pub index: u32,
    /// The thread that runs it.
    pub tid: Tid,
    /// When the thread started, in ticks since boot; zero when its stat is missing or cut.
    pub start_ticks: u64,
    /// The CPU it last ran on.
    pub cpu: Option<CpuId>,
    /// CPUs it may use, `None` when not known.
    pub allowed: Option<CpuSet>,
    /// CPU time since its start by schedstat; zero when the kernel does not count it.
    pub run: Nanos,
    /// Time on a run queue since its start by schedstat, without running.
    pub wait: Nanos,
    /// User and system time since its start by stat, to a tick.
    pub ticks: Nanos,
}

impl VcpuFacts {
    /// What its thread used.
    pub fn time(&self) -> ThreadTime {
        let VcpuFacts { tid, start_ticks, run, wait, ticks, .. } = *self;
        ThreadTime { tid, start_ticks, run, wait, ticks }
    }
}

/// A thread of a monitor that runs no guest code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatorFacts {
    /// The thread.
    pub tid: Tid,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
    /// Its name, as the kernel cuts it.
    pub name: String,
    /// CPUs it may use, `None` when not known.
    pub allowed: Option<CpuSet>,
}

/// Where a VM's memory lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// Resident bytes by node; nodes without any may be missing.
    pub by_node: BTreeMap<NodeId, Bytes>,
    /// Where the figures come from.
    pub source: MemorySource,
    /// When they were read, on the clock of [`Scan::at`].
    pub taken_at: Nanos,
    /// Nodes that most of it is bound to by policy.
    pub bound: Option<NodeSet>,
    /// Nodes that most of it prefers by policy.
    pub preferred: Option<NodeSet>,
    /// Whether numa_maps was cut short, so that `by_node` is a part only.
    pub truncated: bool,
}

/// What memory figures were read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// `memory.numa_stat` of a cgroup that holds just this VM.
    CgroupNumaStat,
    /// `/proc/PID/numa_maps`.
    NumaMaps,
}

/// A virtual machine monitor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vmm {
    /// QEMU, under whichever name a distribution gives it.
    Qemu,
    /// cloud-hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// crosvm.
    Crosvm,
    /// Another program that holds a KVM VM, by its name.
    Other(String),
}

impl fmt::Display for Vmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vmm::Qemu => "qemu",
            Vmm::CloudHypervisor => "cloud-hypervisor",
            Vmm::Firecracker => "firecracker",
            Vmm::Crosvm => "crosvm",
            Vmm::Other(name) => name,
        })
    }
}

/// What starts and owns monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// libvirt, and what builds on it (OpenStack, KubeVirt, virt-manager).
    Libvirt,
    /// Proxmox VE.
    Proxmox,
    /// Incus or LXD.
    Incus,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Manager::Libvirt => "libvirt",
            Manager::Proxmox => "proxmox",
            Manager::Incus => "incus",
        })
    }
}

/// What runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accel {
    /// The kernel's KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
    /// Not told by descriptors, thread names or the command line.
    Unknown,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
            Accel::Unknown => "unknown",
        })
    }
}

/// How vCPU threads were told from others, most certain first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VcpuSource {
    /// `/sys/kernel/debug/kvm/PID-FD/vcpuN/pid`: exact.
    KvmDebugfs,
    /// Thread names: a hint that the monitor's owner can set, checked against the number of KVM
    /// vCPU descriptors where those can be read.
    ThreadNames,
    /// QEMU's own answer to query-cpus-fast.
    Qmp,
}

impl fmt::Display for VcpuSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VcpuSource::KvmDebugfs => "kvm debugfs",
            VcpuSource::ThreadNames => "thread names",
            VcpuSource::Qmp => "qmp",
        })
    }
}

/// Whether KVM's debugfs directory could be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Debugfs {
    /// Not mounted, not copied, or no KVM in the kernel.
    #[default]
    Absent,
    /// There, but not for this user.
    Denied,
    /// Listed.
    Read,
}

/// What was looked for: the text of an empty status is made of this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanCoverage {
    /// Processes seen, kernel threads and zombies not counted.
    pub processes: u32,
    /// Processes whose descriptors could not be listed for lack of privilege when last tried.
    pub unreadable_fd_dirs: u32,
    /// KVM's debugfs directory.
    pub kvm_debugfs: Debugfs,
}

impl fmt::Display for ScanCoverage {
    /// One sentence without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "looked through {} processes for a KVM descriptor (anon_inode:kvm-vm) and for QEMU, \
             cloud-hypervisor, Firecracker and crosvm by name",
            self.processes
        )?;
        if self.unreadable_fd_dirs != 0 {
            write!(
                f,
                "; the descriptors of {} were not readable (run as root, or with CAP_SYS_PTRACE and \
                 CAP_DAC_READ_SEARCH)",
                self.unreadable_fd_dirs
            )?;
        }
        f.write_str(match self.kvm_debugfs {
            Debugfs::Absent => "; KVM has no directory in debugfs",
            Debugfs::Denied => "; KVM's debugfs was not readable (run as root)",
            Debugfs::Read => "",
        })
    }
}

/// What a scan cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCost {
    /// Wall time of the whole scan.
    pub wall: Nanos,
    /// Wall time spent reading numa_maps.
    pub numa_maps: Nanos,
    /// How many numa_maps were read.
    pub numa_maps_reads: u32,
    /// Threads of VMs that were read.
    pub threads: u32,
    /// Processes whose descriptors or command lines were examined (not known from before).
    pub examined: u32,
    /// QMP sockets tried.
    pub qmp_tries: u32,
}

/// Appends `@PID` to every name that two VMs share.
pub fn name_uniquely<'a>(vms: impl Iterator<Item = (&'a mut String, u32)>) {
    let vms: Vec<(&mut String, u32)> = vms.collect();
    let mut count: BTreeMap<String, u32> = BTreeMap::new();
    for (name, _) in &vms {
        *count.entry((*name).clone()).or_default() += 1;
    }
    for (name, pid) in vms {
        if count.get(name.as_str()).is_some_and(|count| *count > 1) {
            *name = format!("{name}@{pid}");
        }
    }
}

/// The name that a VM shares with others, if [`name_uniquely`] made it unique; its whole name if not.
pub fn shared_name(pid: u32, name: &str) -> &str {
    name.strip_suffix(&format!("@{pid}")).unwrap_or(name)
}

/// Whether `wanted` means this VM: its unique name, or the part of it that it shares with others.
pub fn is_called((pid, name): (u32, &str), wanted: &str) -> bool {
    name == wanted || shared_name(pid, name) == wanted
}
