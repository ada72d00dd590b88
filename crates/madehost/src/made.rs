//! A made host as a whole: written as one copy of /proc and /sys or as two some time apart, and
//! told as the snapshot that a faithful reader must come to.
//!
//! Rates are constant since each VM's start, so a single copy read with loads since start gives
//! the same load as two copies give over their window.

use crate::cgroup::{Cgroups, Groups};
use crate::host::HostSpec;
use crate::process::{self, Process, ProcessKind, Shape, Task};
use crate::procfs::{self, Spent};
use crate::tree::Tree;
use crate::vm::{Cgroup, MemPolicy, Thread, ThreadKind, VmSpec, Vmm};
use crate::{monitor, noise, sysfs};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{Emulator, GuestNode, OpaqueVm, Snapshot, Vcpu, Vm, wanted};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, CpuId, Id, Milli, Nanos, VmId};
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// A host and its VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeHost {
    /// The hardware.
    pub host: HostSpec,
    /// The VMs; ids ascending and apart when each was [pushed](MadeHost::push).
    pub vms: Vec<VmSpec>,
    /// Whether there are processes that are no VMs.
    pub noise: bool,
    /// CPU time used by all that is not a VM, of one CPU.
    pub other_load: Milli,
    /// Time since boot of a single copy, and of the second of two.
    pub uptime: Nanos,
    /// Tells one boot of this host from another.
    pub boot: u64,
    /// The version of its cgroups.
    pub cgroups: Cgroups,
    /// `kernel.numa_balancing`.
    pub numa_balancing: u32,
    /// Names of daemons of root that run besides the usual ones.
    pub daemons: Vec<&'static str>,
}

impl MadeHost {
    /// This hardware, up for 4600 s, with noise processes and no VMs.
    #[must_use]
    pub fn new(host: HostSpec) -> Self {
        Self {
            host,
            vms: Vec::new(),
            noise: true,
            other_load: Milli(0),
            uptime: Nanos::from_secs(4600),
            boot: 1,
            cgroups: Cgroups::V2,
            numa_balancing: 0,
            daemons: Vec::new(),
        }
    }

    /// Adds a VM. One without a process id gets the next free one. Returns the id.
    pub fn push(&mut self, mut vm: VmSpec) -> VmId {
        if vm.pid == 0 {
            let after = |vm: &VmSpec| vm.pid + monitor::pids_taken(vm) + 4;
            let next = self.vms.iter().map(after).max().unwrap_or(0);
            vm.pid = next.max(noise::FIRST_VM_PID);
        }
        let id = VmId(vm.pid);
        self.vms.push(vm);
        id
    }

    /// Writes one copy, taken at [`MadeHost::uptime`], with `proc` and `sys` in `dir`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        self.write_at(dir, self.uptime)
    }

    /// Makes the VM with this index, in a copy that was written, one that `uid` runs in this cgroup.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn give_to_user(
        &self,
        dir: &Path,
        vm: usize,
        (uid, cgroup): (u32, &str),
    ) -> io::Result<()> {
        let process = dir.join(format!("proc/{}", self.vms[vm].pid));
        let status = std::fs::read_to_string(process.join("status"))?;
        let given = status.replace("Uid:\t0\t", &format!("Uid:\t{uid}\t"));
        assert_ne!(given, status, "it is another user's already");
        std::fs::write(process.join("status"), given)?;
        std::fs::write(process.join("cgroup"), format!("0::{cgroup}\n"))
    }

    /// Writes two copies: `after` at [`MadeHost::uptime`] and `before` taken `elapsed` earlier.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_pair(&self, before: &Path, after: &Path, elapsed: Nanos) -> io::Result<()> {
        self.write_at(before, self.uptime.since(elapsed))?;
        self.write_at(after, self.uptime)
    }

    /// Writes one copy as of `now`, in time since boot.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_at(&self, dir: &Path, now: Nanos) -> io::Result<()> {
        let (proc, sys) = (Tree::new(&dir.join("proc"))?, Tree::new(&dir.join("sys"))?);
        sysfs::write(&self.host, &sys)?;
        let vms: Vec<(usize, &VmSpec)> =
            self.vms.iter().enumerate().filter(|(_, vm)| vm.exists(now)).collect();
        let online: Vec<CpuId> = self.host.online().iter().collect();
        let mut guests = Vec::new();
        for (order, vm) in &vms {
            for (index, _) in (0..).zip(&vm.vcpus) {
                let cpu = self.cpu_of(vm, *order, index, &online);
                guests.push((cpu, busy(vm, index, now)));
            }
        }
        let mut other: Vec<(CpuId, Nanos)> =
            online.iter().map(|cpu| (*cpu, self.other_time(now, online.len()))).collect();
        for (_, vm) in &vms {
            other.push((online[0], rate(vm.emulator_load, now.since(vm.started))));
        }
        let spent = Spent::new(&self.host, now, &guests, &other);
        procfs::write(&self.host, now, &spent, self.boot, self.cgroups, &proc)?;
        proc.sub("sys/kernel")?.line("numa_balancing", self.numa_balancing)?;
        let nodes = self.host.node_ids();
        let mut groups = Groups::default();
        self.write_noise(&proc, &mut groups)?;
        self.write_vms(&vms, now, &proc)?;
        for (_, vm) in &vms {
            join_group(vm, now, &mut groups);
            write_debugfs(vm, now, &sys)?;
        }
        groups.write(self.cgroups, &sys.sub("fs/cgroup")?, &self.host.online(), &nodes)
    }

    /// What a reader must make of the host over the `window` before [`MadeHost::uptime`], given
    /// the topology made of its [facts](HostSpec::cpu_facts). VMs are those that ran at the end.
    #[must_use]
    pub fn snapshot(&self, topology: Arc<Topology>, window: Nanos) -> Snapshot {
        let now = self.uptime;
        let online: Vec<CpuId> = self.host.online().iter().collect();
        let mut vms = Vec::new();
        let mut opaque = Vec::new();
        for (order, vm) in self.vms.iter().enumerate().filter(|(_, vm)| vm.exists(now)) {
            if vm.is_transparent() {
                vms.push(self.vm_snapshot(vm, order, &online, window));
            } else {
                opaque.push(OpaqueVm {
                    id: VmId(vm.pid),
                    name: vm.name.clone(),
                    // Without KVM nothing tells how many there are: what such a process says of itself does not count.
                    vcpus: if vm.vmm.is_kvm() { vm.vcpus.len() as u32 } else { 0 },
                    busy: process_demand(vm, now.since(window), now),
                    why: "made opaque".to_owned(),
                });
            }
        }
        vms.sort_by_key(|vm| vm.id);
        opaque.sort_by_key(|vm| vm.id);
        let before = now.since(window);
        let others = online.len() as u64
            * self.other_time(now, online.len()).since(self.other_time(before, online.len())).0;
        let transparent = self.vms.iter().filter(|vm| vm.is_transparent());
        let emulators: u64 = transparent.map(|vm| emulator_time(vm, before, now)).sum();
        let other_busy = Nanos(others + emulators);
        Snapshot { at: now, window, topology, isolated: CpuSet::new(), other_busy, vms, opaque }
    }

    fn vm_snapshot(&self, vm: &VmSpec, order: usize, online: &[CpuId], window: Nanos) -> Vm {
        let now = self.uptime;
        let before = now.since(window);
        let start_ticks = process::start_ticks(vm.started);
        let mut vcpus = Vec::new();
        let mut emulators = Vec::new();
        for thread in vm.threads(now) {
            let allowed = self.allowed(vm, thread.kind);
            match thread.kind {
                ThreadKind::Vcpu(index) => vcpus.push(Vcpu {
                    index,
                    tid: thread.tid,
                    start_ticks,
                    cpu: Some(self.cpu_of(vm, order, index, online)),
                    initial: allowed.clone(),
                    allowed,
                    busy: busy(vm, index, now).since(busy(vm, index, before)),
                    steal: steal(vm, index, now).since(steal(vm, index, before)),
                }),
                ThreadKind::Main | ThreadKind::Emulator => {
                    let (tid, initial) = (thread.tid, allowed.clone());
                    emulators.push(Emulator { tid, start_ticks, allowed, initial });
                }
            }
        }
        vcpus.sort_by_key(|vcpu| vcpu.index);
        let nodes: NodeSet = self.host.node_ids().into_iter().collect();
        let mems = vm.mems.clone().filter(|mems| own_group(vm) && *mems != nodes);
        let (bound, preferred) = match &vm.policy {
            MemPolicy::Bind(nodes) => (Some(nodes.clone()), None),
            MemPolicy::Prefer(node) => (None, Some(NodeSet::one(*node))),
            // Interleaving spreads memory; it says nothing of where to run.
            MemPolicy::Interleave(_) | MemPolicy::Default => (None, None),
        };
        Vm {
            id: VmId(vm.pid),
            start_ticks,
            uuid: monitor::told_uuid(vm),
            name: vm.name.clone(),
            vcpus,
            emulators,
            memory: vm.memory.clone(),
            cpuset: self.cpuset(vm),
            memory_bound: bound.or(mems),
            preferred,
            soft: None,
            guest_threads_per_core: if vm.vmm.tells_guest_topology() {
                vm.guest_threads_per_core.max(1)
            } else {
                1
            },
            guest_nodes: if vm.vmm.is_qemu() { guest_nodes(vm) } else { Vec::new() },
            weight: if own_group(vm) { vm.weight } else { 100 },
            quota: None,
            devices: Vec::new(),
            throttled: Nanos(0),
            noise: None,
            placed: NodeSet::new(),
        }
    }

    /// CPU time of one CPU that went to no VM until `now`.
    fn other_time(&self, now: Nanos, cpus: usize) -> Nanos {
        Nanos(rate(self.other_load, now).0 / cpus.max(1) as u64)
    }

    /// CPUs that the VM's cgroup allows.
    fn cpuset(&self, vm: &VmSpec) -> CpuSet {
        let online = self.host.online();
        let own = vm.cpuset.as_ref().filter(|_| own_group(vm)).map(|own| own.and(&online));
        own.filter(|own| !own.is_empty()).unwrap_or(online)
    }

    /// CPUs that a thread may use: its affinity within the cpuset, or the cpuset if nothing is
    /// left.
    fn allowed(&self, vm: &VmSpec, kind: ThreadKind) -> CpuSet {
        let own = match kind {
            ThreadKind::Vcpu(index) => {
                vm.vcpus.get(index as usize).and_then(|vcpu| vcpu.affinity.as_ref())
            }
            ThreadKind::Main | ThreadKind::Emulator => vm.emulator_affinity.as_ref(),
        };
        let cpuset = self.cpuset(vm);
        own.map(|own| own.and(&cpuset)).filter(|own| !own.is_empty()).unwrap_or(cpuset)
    }

    /// The CPU a vCPU was last on: the given one, or one of those it may use.
    fn cpu_of(&self, vm: &VmSpec, order: usize, index: u32, online: &[CpuId]) -> CpuId {
        let vcpu = vm.vcpus.get(index as usize);
        if let Some(cpu) = vcpu.and_then(|vcpu| vcpu.cpu) {
            return cpu;
        }
        let turn = order + index as usize;
        if vm.cpuset.is_none() && vcpu.is_none_or(|vcpu| vcpu.affinity.is_none()) {
            return online[turn % online.len()];
        }
        let allowed: Vec<CpuId> = self.allowed(vm, ThreadKind::Vcpu(index)).iter().collect();
        allowed[turn % allowed.len()]
    }

    fn shape(&self) -> Shape {
        let cpus = self.host.present().iter().last().map_or(1, |cpu| cpu.raw() + 1);
        Shape { cpus, cgroups: self.cgroups }
    }

    fn write_noise(&self, proc: &Tree, groups: &mut Groups) -> io::Result<()> {
        groups.at("/");
        if !self.noise {
            return Ok(());
        }
        let nodes = self.host.node_ids().into_iter().collect();
        let usual = noise::processes(&self.host.online(), &nodes).into_iter();
        for process in usual.chain(noise::daemons(&self.daemons, &self.host.online(), &nodes)) {
            process::write(&process, self.shape(), proc)?;
            groups.at(&process.tasks[0].cgroup).procs.push(process.pid);
        }
        Ok(())
    }

    /// Writes the VMs' processes, on all CPUs of this machine.
    fn write_vms(&self, vms: &[(usize, &VmSpec)], now: Nanos, proc: &Tree) -> io::Result<()> {
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let part = vms.len().div_ceil(workers).max(1);
        let (shape, online) = (self.shape(), self.host.online().iter().collect::<Vec<_>>());
        let online = &online;
        let write_part = |vms: &[(usize, &VmSpec)]| -> io::Result<()> {
            for (order, vm) in vms {
                process::write(&self.process(vm, *order, now, online), shape, proc)?;
            }
            Ok(())
        };
        let write_part = &write_part;
        thread::scope(|scope| {
            let started: Vec<_> =
                vms.chunks(part).map(|vms| scope.spawn(move || write_part(vms))).collect();
            started.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked")))
            })
        })
    }

    fn process(&self, vm: &VmSpec, order: usize, now: Nanos, online: &[CpuId]) -> Process {
        let task = |thread: Thread| self.task(vm, order, thread, now, online);
        let all = self.host.node_ids().into_iter().collect();
        Process {
            pid: vm.pid,
            parent: 1,
            started: vm.started,
            cmdline: monitor::cmdline(vm),
            memory: vm.memory_total(),
            fds: vm.fds.then(|| monitor::fds(vm)),
            numa_maps: crate::memory::numa_maps(vm),
            maps: crate::memory::maps(vm),
            huge: crate::memory::huge(vm),
            exe: Some(monitor::exe(vm.vmm)),
            mems: vm.mems.clone().filter(|_| own_group(vm)).unwrap_or(all),
            tasks: vm.threads(now).into_iter().map(task).collect(),
            kind: ProcessKind::User,
        }
    }

    fn task(
        &self,
        vm: &VmSpec,
        order: usize,
        thread: Thread,
        now: Nanos,
        online: &[CpuId],
    ) -> Task {
        let allowed = self.allowed(vm, thread.kind);
        let group = group_path(vm);
        let (cpu, busy, steal, below) = match thread.kind {
            ThreadKind::Vcpu(index) => (
                self.cpu_of(vm, order, index, online),
                busy(vm, index, now),
                steal(vm, index, now),
                format!("/libvirt/vcpu{index}"),
            ),
            ThreadKind::Main | ThreadKind::Emulator => {
                let load =
                    if thread.kind == ThreadKind::Main { vm.emulator_load } else { Milli(0) };
                let busy = rate(load, now.since(vm.started));
                (allowed.first().unwrap_or(CpuId(0)), busy, Nanos(0), "/libvirt/emulator".into())
            }
        };
        let threaded = vm.vmm == Vmm::Libvirt && own_group(vm);
        Task {
            tid: thread.tid.0,
            name: thread.name,
            cgroup: if threaded { format!("{group}{below}") } else { group },
            state: if busy.0 > now.since(vm.started).0 / 2 { 'R' } else { 'S' },
            busy,
            steal,
            guest: matches!(thread.kind, ThreadKind::Vcpu(_)) && vm.vmm.is_kvm(),
            cpu,
            allowed,
        }
    }
}

fn own_group(vm: &VmSpec) -> bool {
    vm.cgroup == Cgroup::Own
}

fn group_path(vm: &VmSpec) -> String {
    match &vm.cgroup {
        Cgroup::Own => monitor::own_cgroup(vm),
        Cgroup::Shared(path) => path.clone(),
        Cgroup::Root => "/".to_owned(),
    }
}

fn join_group(vm: &VmSpec, now: Nanos, groups: &mut Groups) {
    let path = group_path(vm);
    let group = groups.at(&path);
    group.procs.push(vm.pid);
    if !own_group(vm) {
        if vm.numa_stat && vm.cgroup != Cgroup::Root {
            let memory = group.memory.get_or_insert_default();
            for (node, bytes) in crate::memory::small(vm) {
                memory.entry(node).or_default().0 += bytes.0;
            }
        }
        return;
    }
    group.weight = Some(vm.weight);
    group.quota = vm
        .quota
        .map(|(most, throttled)| (most.0 * 100, rate(throttled, now.since(vm.started)).0 / 1000));
    group.cpus.clone_from(&vm.cpuset);
    group.mems.clone_from(&vm.mems);
    group.memory = vm.numa_stat.then(|| crate::memory::small(vm));
    if vm.vmm == Vmm::Libvirt {
        groups.at(&format!("{path}/libvirt")).threaded = true;
        groups.at(&format!("{path}/libvirt/emulator")).threaded = true;
        for index in 0..vm.vcpus.len() {
            groups.at(&format!("{path}/libvirt/vcpu{index}")).threaded = true;
        }
    }
}

fn write_debugfs(vm: &VmSpec, now: Nanos, sys: &Tree) -> io::Result<()> {
    if !vm.debugfs || !vm.vmm.is_kvm() {
        return Ok(());
    }
    let dir = sys.sub(&format!("kernel/debug/kvm/{}-{}", vm.kvm_thread(), monitor::VM_FD))?;
    dir.line("halt_exits", 1)?;
    for thread in vm.threads(now) {
        if let ThreadKind::Vcpu(index) = thread.kind {
            let vcpu = dir.child(&format!("vcpu{index}"))?;
            vcpu.line("pid", thread.tid)?;
            vcpu.line("guest_mode", 0)?;
        }
    }
    Ok(())
}

fn guest_nodes(vm: &VmSpec) -> Vec<GuestNode> {
    let whole = |bytes: Bytes| Bytes(bytes.0 >> 20 << 20);
    (0..)
        .zip(&vm.guest_nodes)
        .map(|(id, node)| GuestNode {
            id,
            vcpus: node.vcpus.clone(),
            memory: whole(node.memory),
            bound: match &vm.policy {
                MemPolicy::Bind(nodes) => Some(nodes.clone()),
                _ => None,
            },
            resident: node.resident.clone(),
        })
        .collect()
}

/// `load` of one CPU over `time`.
fn rate(load: Milli, time: Nanos) -> Nanos {
    Nanos((u128::from(time.0) * u128::from(load.0) / 1000).min(u128::from(u64::MAX)) as u64)
}

fn lived(vm: &VmSpec, index: u32, now: Nanos) -> Nanos {
    let plugged = vm.vcpus.get(index as usize).and_then(|vcpu| vcpu.started);
    now.since(plugged.unwrap_or(vm.started).max(vm.started))
}

/// CPU time of a vCPU since its start.
fn busy(vm: &VmSpec, index: u32, now: Nanos) -> Nanos {
    let load = vm.vcpus.get(index as usize).map_or(Milli(0), |vcpu| vcpu.load);
    rate(load, lived(vm, index, now))
}

/// Time a vCPU spent in run queues since its start.
fn steal(vm: &VmSpec, index: u32, now: Nanos) -> Nanos {
    let steal = vm.vcpus.get(index as usize).map_or(Milli(0), |vcpu| vcpu.steal);
    rate(steal, lived(vm, index, now))
}

/// CPU time that all threads of a VM wanted in the window.
fn process_demand(vm: &VmSpec, before: Nanos, now: Nanos) -> Nanos {
    let of_vcpus = |time: fn(&VmSpec, u32, Nanos) -> Nanos| -> u64 {
        (0..)
            .zip(&vm.vcpus)
            .map(|(index, _)| time(vm, index, now).since(time(vm, index, before)).0)
            .sum()
    };
    let got = Nanos(of_vcpus(busy) + emulator_time(vm, before, now));
    wanted(got, Nanos(of_vcpus(steal)))
}

fn emulator_time(vm: &VmSpec, before: Nanos, now: Nanos) -> u64 {
    if !vm.exists(now) {
        return 0;
    }
    let until = |time: Nanos| rate(vm.emulator_load, time.since(vm.started));
    until(now).since(until(before)).0
}
