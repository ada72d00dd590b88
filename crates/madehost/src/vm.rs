//! The VMs of a made host: what their monitor is, what their threads do, where their memory is.
//!
//! Loads are rates, so that any two copies of the host agree with each other. Knows nothing of
//! files; which threads a monitor has and what it calls them is in `monitor`.

use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid};
use std::collections::BTreeMap;

/// The virtual machine monitor, and how it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vmm {
    /// `qemu-system-x86_64` started by hand, with KVM.
    QemuKvm,
    /// `qemu-system-x86_64` started by hand, software emulation.
    QemuTcg,
    /// QEMU under libvirt, KVM.
    Libvirt,
    /// QEMU under Proxmox, KVM.
    Proxmox,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// crosvm.
    Crosvm,
}

impl Vmm {
    /// All monitors.
    pub const ALL: [Vmm; 7] = [
        Vmm::QemuKvm,
        Vmm::QemuTcg,
        Vmm::Libvirt,
        Vmm::Proxmox,
        Vmm::CloudHypervisor,
        Vmm::Firecracker,
        Vmm::Crosvm,
    ];

    /// Whether it is QEMU in any form.
    #[must_use]
    pub fn is_qemu(self) -> bool {
        matches!(self, Vmm::QemuKvm | Vmm::QemuTcg | Vmm::Libvirt | Vmm::Proxmox)
    }

    /// Whether its command line tells the guest's threads per core.
    #[must_use]
    pub fn tells_guest_topology(self) -> bool {
        self.is_qemu() || self == Vmm::CloudHypervisor
    }

    /// Whether it runs guests by KVM.
    #[must_use]
    pub fn is_kvm(self) -> bool {
        self != Vmm::QemuTcg
    }
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VcpuSpec {
    /// CPU time it uses, of one CPU.
    pub load: Milli,
    /// Time it is runnable and does not run, of one CPU.
    pub steal: Milli,
    /// The CPU it last ran on; `None` for one of those it may use.
    pub cpu: Option<CpuId>,
    /// CPUs it may use; `None` for all that the VM's cgroup allows.
    pub affinity: Option<CpuSet>,
    /// Its thread; `None` for the next after its neighbour's.
    pub tid: Option<Tid>,
    /// When it was plugged in, in time since boot; `None` for when the VM started.
    pub started: Option<Nanos>,
}

/// The cgroup a VM's processes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// One that holds just this VM, named as its kind of monitor does.
    Own,
    /// A cgroup of this path, shared with whoever else names it.
    Shared(String),
    /// The root: no cgroup of its own.
    Root,
}

/// NUMA memory policy of the guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemPolicy {
    /// None.
    #[default]
    Default,
    /// Bound to these nodes.
    Bind(NodeSet),
    /// This node while it has room.
    Prefer(NodeId),
    /// Spread over these nodes.
    Interleave(NodeSet),
}

/// What the guest's memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages.
    #[default]
    Small,
    /// 2 MiB pages of hugetlbfs.
    Huge,
}

/// A NUMA node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNodeSpec {
    /// Indices of its vCPUs.
    pub vcpus: Vec<u32>,
    /// Its memory as configured.
    pub memory: Bytes,
    /// Resident memory of it alone, which is part of [`VmSpec::memory`], in a mapping of its own as
    /// long as `memory` (4 KiB pages only); empty for a guest whose memory is not told apart.
    pub resident: BTreeMap<NodeId, Bytes>,
}

/// A virtual machine. Change the fields of a [`VmSpec::new`] as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSpec {
    /// Its name, in the characters a command line needs no quotes for.
    pub name: String,
    /// Process id of its monitor; 0 lets [`MadeHost::push`](crate::MadeHost::push) choose one.
    pub pid: u32,
    /// Its monitor.
    pub vmm: Vmm,
    /// Its vCPUs by index.
    pub vcpus: Vec<VcpuSpec>,
    /// CPU time its monitor's main thread uses, of one CPU.
    pub emulator_load: Milli,
    /// I/O threads, of QEMU.
    pub io_threads: u32,
    /// CPUs that threads other than vCPUs may use; `None` for all that the cgroup allows.
    pub emulator_affinity: Option<CpuSet>,
    /// Resident memory by node, in whole pages.
    pub memory: BTreeMap<NodeId, Bytes>,
    /// What that memory is made of.
    pub pages: Pages,
    /// NUMA policy of the guest's memory.
    pub policy: MemPolicy,
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// `cpuset.cpus` of its own cgroup.
    pub cpuset: Option<CpuSet>,
    /// `cpuset.mems` of its own cgroup.
    pub mems: Option<NodeSet>,
    /// `cpu.weight` of its own cgroup.
    pub weight: u32,
    /// `cpu.max` of its own cgroup, and the part of the time, summed over CPUs, in which that stops it.
    pub quota: Option<(Milli, Milli)>,
    /// `memory.numa_stat` of its own cgroup can be read.
    pub numa_stat: bool,
    /// `/proc/PID/fd` can be read.
    pub fds: bool,
    /// The KVM debugfs is mounted and has this VM.
    pub debugfs: bool,
    /// The thread that made the KVM VM, after which debugfs names its directory; `None` for the one
    /// that does so in this monitor.
    pub kvm_tid: Option<Tid>,
    /// QEMU: `debug-threads=on`, threads have names of their own. The others always name them.
    pub thread_names: bool,
    /// Threads a core that the guest sees, at least 1.
    pub guest_threads_per_core: u32,
    /// The guest's own nodes.
    pub guest_nodes: Vec<GuestNodeSpec>,
    /// When it started, in time since boot.
    pub started: Nanos,
    /// When it ended, if it did.
    pub ended: Option<Nanos>,
}

/// What a thread of a monitor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// The first thread.
    Main,
    /// Another thread that runs no guest code.
    Emulator,
    /// The vCPU of this index.
    Vcpu(u32),
}

/// One thread of a VM's monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub tid: Tid,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// What it is for.
    pub kind: ThreadKind,
}

impl VmSpec {
    /// A VM of `vcpus` idle vCPUs in a cgroup of its own, with `memory` on one node. All of its files can be read.
    #[must_use]
    pub fn new(name: &str, vmm: Vmm, vcpus: u32, node: NodeId, memory: Bytes) -> Self {
        Self {
            name: name.to_owned(),
            pid: 0,
            vmm,
            vcpus: vec![VcpuSpec::default(); vcpus as usize],
            emulator_load: Milli(0),
            io_threads: 0,
            emulator_affinity: None,
            memory: BTreeMap::from([(node, memory)]),
            pages: Pages::Small,
            policy: MemPolicy::Default,
            cgroup: Cgroup::Own,
            cpuset: None,
            mems: None,
            weight: 100,
            quota: None,
            numa_stat: true,
            fds: true,
            debugfs: false,
            kvm_tid: None,
            thread_names: true,
            guest_threads_per_core: 1,
            guest_nodes: Vec::new(),
            started: Nanos::from_secs(1000),
            ended: None,
        }
    }

    /// The same with every vCPU using `load` of a CPU.
    #[must_use]
    pub fn load(mut self, load: Milli) -> Self {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.load = load);
        self
    }

    /// The same with every vCPU waiting for `steal` of a CPU.
    #[must_use]
    pub fn steal(mut self, steal: Milli) -> Self {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.steal = steal);
        self
    }

    /// The same with every vCPU allowed to use `cpus`.
    #[must_use]
    pub fn pinned(mut self, cpus: &CpuSet) -> Self {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = Some(cpus.clone()));
        self
    }

    /// The same with `memory` on `node` as well or instead.
    #[must_use]
    pub fn memory_on(mut self, node: NodeId, memory: Bytes) -> Self {
        self.memory.insert(node, memory);
        self
    }

    /// Resident memory on all nodes.
    #[must_use]
    pub fn memory_total(&self) -> Bytes {
        Bytes(self.memory.values().map(|bytes| bytes.0).sum())
    }

    /// Whether it runs at `now`, in time since boot.
    #[must_use]
    pub fn exists(&self, now: Nanos) -> bool {
        self.started <= now && self.ended.is_none_or(|ended| now < ended)
    }

    /// The thread of the vCPU at `index`, which must be one of [`VmSpec::vcpus`].
    #[must_use]
    pub fn vcpu_tid(&self, index: u32) -> Tid {
        let set = self.vcpus.get(index as usize).and_then(|vcpu| vcpu.tid);
        set.unwrap_or(Tid(self.pid + crate::monitor::THREADS_BEFORE_VCPUS + index))
    }

    /// The thread that made the KVM VM: the one given, else Cloud Hypervisor's `vmm` thread and the
    /// main thread of the others.
    #[must_use]
    pub fn kvm_thread(&self) -> Tid {
        let usual = Tid(self.pid + u32::from(self.vmm == Vmm::CloudHypervisor));
        self.kvm_tid.unwrap_or(usual)
    }

    /// All threads at `now`, ascending by id: the main one first.
    #[must_use]
    pub fn threads(&self, now: Nanos) -> Vec<Thread> {
        crate::monitor::threads(self, now)
    }

    /// Whether anything on the host tells which threads its vCPUs are.
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        self.names_threads() || (self.debugfs && self.vmm.is_kvm())
    }

    /// Whether its threads have names of their own.
    #[must_use]
    pub fn names_threads(&self) -> bool {
        self.thread_names || !self.vmm.is_qemu()
    }
}
