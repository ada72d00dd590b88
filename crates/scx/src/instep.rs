//! Instep's scheduler (bpf/main.bpf.c) on a [`Kernel`]: its settings, its table of VMs, its queues.
//!
//! The layout of what it keeps is known in C only (shim/shim.c).

use crate::abi::Ops;
use crate::kernel::{Kernel, Refused, Sizes};
use crate::{Machine, Release, TaskSetup};
pub use instep_abi::Counter;
use instep_abi::defaults;
use std::ffi::c_void;

mod cgroups;
mod lives;
#[cfg(test)]
mod tests;

pub use cgroups::{Cgroup, CpuLimit, GroupSeen, Weights};

mod c {
    use super::{Ops, c_void};

    // SAFETY: the signatures are those of shim/shim.c, which is compiled with this crate.
    unsafe extern "C" {
        pub(super) static instep_ops: Ops;
        pub(super) safe fn shim_state_size() -> usize;
        pub(super) safe fn shim_storage_size() -> usize;
        pub(super) safe fn shim_thread_size() -> usize;
        pub(super) safe fn shim_mechanisms() -> u32;
        pub(super) safe fn shim_max_cpus() -> u32;
        pub(super) safe fn shim_max_vms() -> u32;
        pub(super) safe fn shim_max_slots() -> u32;
        pub(super) safe fn shim_max_vcpus() -> u32;
        pub(super) fn shim_set_times(
            state: *mut c_void,
            slice: u64,
            slot: u64,
            wake_slack: u64,
            lag: u64,
        );
        pub(super) fn shim_set_host(
            state: *mut c_void,
            weight: u32,
            without: u32,
            cpus: u32,
            domains: u32,
            slots: u32,
        );
        pub(super) fn shim_set_cpu(
            state: *mut c_void,
            cpu: u32,
            node: i32,
            domain: u32,
            lane: u32,
            core: u64,
            first_of_cache: bool,
        );
        pub(super) fn shim_set_vm(
            state: *mut c_void,
            vm: u32,
            weight: u32,
            period: u64,
            cosched: u32,
            latency: u32,
            first_slot: u32,
            vcpus: u32,
        );
        pub(super) fn shim_begin_vm(state: *mut c_void, vm: u32);
        #[cfg(test)]
        pub(super) fn shim_end_vm(state: *mut c_void, vm: u32);
        pub(super) fn shim_next_generation(state: *mut c_void);
        #[cfg(test)]
        pub(super) fn shim_vm_waiting(state: *const c_void, vm: u32) -> u32;
        #[cfg(test)]
        pub(super) fn shim_vm_running(state: *const c_void, vm: u32) -> u32;
        #[cfg(test)]
        pub(super) fn shim_vm_blocks(state: *const c_void, vm: u32) -> u64;
        #[cfg(test)]
        pub(super) fn shim_forget_threads(state: *mut c_void, vm: u32);
        #[cfg(test)]
        pub(super) fn shim_forget_cpus(state: *mut c_void, domain: u32);
        #[cfg(test)]
        pub(super) fn shim_isolate(state: *mut c_void, domain: u32);
        #[cfg(test)]
        pub(super) fn shim_wait_count(state: *const c_void, slot: u32, bits: u32) -> u32;
        #[cfg(test)]
        pub(super) fn shim_longest_wait_us(state: *const c_void, slot: u32) -> u32;
        #[cfg(test)]
        pub(super) fn shim_vm_set(state: *const c_void, vm: u32) -> u64;
        #[cfg(test)]
        pub(super) safe fn shim_words(written: u32, at: u32, end: u32) -> usize;
        pub(super) fn shim_set_group(
            state: *mut c_void,
            group: u32,
            quota: u64,
            period: u64,
            burst: u64,
            above: u32,
        );
        pub(super) fn shim_weigh_group(state: *mut c_void, group: u32, weight: u32, above: u32);
        pub(super) fn shim_share_group(state: *mut c_void, group: u32, shares: u64);
        #[cfg(test)]
        pub(super) fn shim_give_group(state: *mut c_void, group: u32, owner: u32);
        #[cfg(test)]
        pub(super) fn shim_refuse_limits(state: *mut c_void, refused: bool);
        pub(super) fn shim_group_want(state: *const c_void, group: u32) -> u64;
        pub(super) fn shim_group_shares(state: *const c_void, group: u32) -> u64;
        pub(super) fn shim_group_most(state: *const c_void, group: u32) -> u64;
        pub(super) fn shim_group_parent(state: *const c_void, group: u32) -> u64;
        pub(super) fn shim_note_change(state: *mut c_void, vm: u32);
        pub(super) safe fn shim_max_groups() -> u32;
        pub(super) fn shim_vm_wanted(state: *const c_void, vm: u32) -> u64;
        pub(super) fn shim_set_thread_weight(state: *mut c_void, group: u32, weight: u32);
        pub(super) fn shim_set_mean_weight(state: *mut c_void, weight: u32);
        pub(super) fn shim_set_vm_weight(state: *mut c_void, vm: u32, weight: u32);
        #[cfg(test)]
        pub(super) fn shim_vm_held(state: *const c_void, vm: u32) -> u64;
        #[cfg(test)]
        pub(super) fn shim_group_held(state: *const c_void, group: u32) -> u64;
        pub(super) fn shim_set_home(state: *mut c_void, vm: u32, node: i32);
        pub(super) fn shim_set_thread(
            threads: *mut c_void,
            tid: u32,
            start_ticks: u64,
            vm: u32,
            slot: u32,
        );
        pub(super) fn shim_counter(state: *const c_void, what: u32) -> u64;
    }
}

/// Times of the whole scheduler, nanoseconds, and what else it is told (`struct instep_settings`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a thread runs when others wait.
    pub slice: u64,
    /// Length of a gang slot.
    pub slot: u64,
    /// Virtual time by which a thread that wakes up must be behind what it preempts.
    pub wake_slack: u64,
    /// Most virtual time that an account may save.
    pub lag: u64,
    /// Allocation period of VMs.
    pub period: u64,
    /// Weight of the threads that belong to no VM, together, in each domain.
    pub host_weight: u32,
    /// Mechanisms that are off: `INSTEP_M_*`.
    pub without: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slice: defaults::SLICE_NS,
            slot: defaults::SLOT_NS,
            wake_slack: defaults::WAKE_SLACK_NS,
            lag: defaults::LAG_NS,
            period: defaults::PERIOD_NS,
            host_weight: defaults::HOST_WEIGHT,
            without: 0,
        }
    }
}

/// What it has room for: CPUs, VMs, vCPUs of all, vCPUs of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as what they limit")]
pub struct Limits {
    pub cpus: usize,
    pub vms: usize,
    pub vcpus: usize,
    pub vcpus_of_one: usize,
}

/// All mechanisms that it has: `INSTEP_M_ALL`.
#[must_use]
pub fn mechanisms() -> u32 {
    c::shim_mechanisms()
}

/// The limits of bpf/intf.h.
#[must_use]
pub fn limits() -> Limits {
    Limits {
        cpus: c::shim_max_cpus() as usize,
        // Entry 0 is the host's own.
        vms: c::shim_max_vms() as usize - 1,
        vcpus: c::shim_max_slots() as usize,
        vcpus_of_one: c::shim_max_vcpus() as usize,
    }
}

/// When the siblings of a VM run together (`enum instep_cosched`, whose numbers these are).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cosched {
    /// By what the VM does.
    #[default]
    Auto = instep_abi::COSCHED_AUTO as isize,
    /// Never.
    Never = instep_abi::COSCHED_NEVER as isize,
    /// Always, all of them.
    Relaxed = instep_abi::COSCHED_RELAXED as isize,
}

/// What is set for one VM (`[dispatch.vm.NAME]`, docs/dispatch.md) besides its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmSettings {
    /// When its siblings run together.
    pub cosched: Cosched,
    /// Virtual microseconds by which its wake-ups are preferred.
    pub latency_us: u32,
    /// Its allocation period, nanoseconds; that of [`Settings`] with `None`.
    pub period: Option<u64>,
    /// Index of the node where it is at home, if anywhere.
    pub home: Option<u32>,
}

/// A VM: its weight, its settings and its vCPUs, which are consecutive tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeVm {
    /// As `cpu.weight`.
    pub weight: u32,
    /// What else is set for it.
    pub own: VmSettings,
    /// Its first task.
    pub first: usize,
    /// How many vCPUs it has.
    pub count: usize,
    /// The VM comes later: [`Instep::fork`] makes its threads, and [`Instep::begin_vm`] adds its entry.
    pub later: bool,
}

/// Where a CPU is among the scheduling domains (instep-core, `topology::Lane`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The CPU.
    pub cpu: usize,
    /// Number of the domain.
    pub domain: u32,
    /// The CPU's number in the domain.
    pub lane: u32,
    /// Lanes of the CPU's core.
    pub core: u64,
    /// Whether it is the first lane of a last-level cache.
    pub first_of_cache: bool,
}

/// The scheduler, loaded on a host.
#[derive(Debug)]
pub struct Instep {
    kernel: Kernel,
    /// All VMs and the first slot of each.
    vms: Vec<(NativeVm, u32)>,
    /// Allocation period of VMs without one of their own.
    period: u64,
    /// Whether weights are those of the tree of cgroups.
    weighs_tree: bool,
}

impl Instep {
    /// Loads it on a host whose tasks are these; those of no VM belong to the host.
    ///
    /// # Errors
    /// When there is no room for so many.
    pub fn new(
        machine: Machine,
        lanes: &[Lane],
        tasks: &[TaskSetup],
        vms: &[NativeVm],
        settings: &Settings,
        seed: u64,
        release: Release,
    ) -> Result<Self, Refused> {
        let mut instep = Self::prepare(machine, lanes, tasks, vms, settings, seed, release)?;
        instep.load()?;
        Ok(instep)
    }

    /// The same before it is loaded, so that tasks can be put into cgroups.
    ///
    /// # Errors
    /// When there is no room for so many.
    pub fn prepare(
        machine: Machine,
        lanes: &[Lane],
        tasks: &[TaskSetup],
        vms: &[NativeVm],
        settings: &Settings,
        seed: u64,
        release: Release,
    ) -> Result<Self, Refused> {
        let (cpus, room) = (machine.core.len(), limits());
        let vcpus: usize = vms.iter().map(|vm| vm.count).sum();
        let most = vms.iter().map(|vm| vm.count).max().unwrap_or(0);
        if cpus > room.cpus
            || vms.len() > room.vms
            || vcpus > room.vcpus
            || most > room.vcpus_of_one
        {
            return Err(Refused(format!("more than {room:?}")));
        }
        let sizes = Sizes {
            globals: c::shim_state_size(),
            storage: c::shim_storage_size(),
            thread: c::shim_thread_size(),
        };
        // SAFETY: a constant.
        let ops = unsafe { c::instep_ops };
        let nodes = machine.node.clone();
        let kernel = Kernel::new(machine, tasks, ops, sizes, seed, release)?;
        let ends = vms.iter().scan(0, |end, vm| {
            *end += vm.count as u32;
            Some(*end - vm.count as u32)
        });
        let vms: Vec<(NativeVm, u32)> = vms.iter().copied().zip(ends).collect();
        let mut instep = Self { kernel, vms, period: settings.period, weighs_tree: false };
        instep.tell_host(&nodes, lanes, settings);
        for vm in 0..instep.vms.len() {
            let this = instep.vms[vm].0;
            match this.later {
                true => (this.first..this.first + this.count)
                    .for_each(|task| instep.kernel.leave_out(task)),
                false => instep.tell_vm(vm, this.weight),
            }
        }
        Ok(instep)
    }

    /// Loads what was prepared.
    ///
    /// # Errors
    /// When it does not want to.
    pub fn load(&mut self) -> Result<(), Refused> {
        self.kernel.load(0)
    }

    /// What user space tells it of the host before it is loaded.
    fn tell_host(&mut self, nodes: &[i32], lanes: &[Lane], s: &Settings) {
        let state = self.kernel.globals();
        let domains = lanes.iter().map(|at| at.domain + 1).max().unwrap_or(0);
        let slots: usize = self.vms.iter().map(|(vm, _)| vm.count).sum();
        // SAFETY: `state` is memory of `shim_state_size` bytes, owned by the kernel; C checks the numbers of CPUs.
        unsafe {
            c::shim_set_times(state, s.slice, s.slot, s.wake_slack, s.lag);
            let cpus = nodes.len() as u32;
            c::shim_set_host(state, s.host_weight, s.without, cpus, domains, slots as u32);
            for at in lanes {
                let (cpu, node) = (at.cpu as u32, nodes[at.cpu]);
                let first = at.first_of_cache;
                c::shim_set_cpu(state, cpu, node, at.domain, at.lane, at.core, first);
            }
        }
    }

    /// The entries of a VM and of its threads.
    fn tell_vm(&mut self, vm: usize, weight: u32) {
        let (state, threads) = (self.kernel.globals(), self.kernel.threads());
        let (this, first_slot) = self.vms[vm];
        let number = vm as u32 + 1;
        // SAFETY: `state` is memory of `shim_state_size` bytes and `threads` a table with room for all
        // tasks, both owned by the kernel; C checks the number of the VM.
        unsafe {
            c::shim_set_vm(
                state,
                number,
                weight,
                this.own.period.unwrap_or(self.period),
                this.own.cosched as u32,
                this.own.latency_us,
                first_slot,
                this.count as u32,
            );
            if let Some(node) = this.own.home {
                c::shim_set_home(state, number, node as i32);
            }
            for (task, slot) in (this.first..this.first + this.count).zip(first_slot..) {
                let start = self.kernel.task(task).start_boottime / 10_000_000;
                let tid = self.kernel.task(task).pid.get() as u32;
                c::shim_set_thread(threads, tid, start, number, slot);
            }
        }
    }

    /// User space says on which node a VM is at home; on none with `None`.
    pub fn set_home(&mut self, vm: usize, node: Option<u32>) {
        let node = node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
        // SAFETY: it is the state that this scheduler was loaded with; C checks the VM's number.
        unsafe { c::shim_set_home(self.kernel.globals(), vm as u32 + 1, node) };
    }

    /// The host.
    pub fn kernel(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    /// What runs on a CPU.
    #[must_use]
    pub fn current(&self, cpu: usize) -> Option<usize> {
        self.kernel.current(cpu)
    }

    /// Why the kernel threw it out, if it did.
    #[must_use]
    pub fn ejected(&self) -> Option<String> {
        self.kernel.ejected()
    }

    /// A task that may be elsewhere than before, and the CPU whose run queue it belongs to.
    pub fn take_moved(&mut self) -> Option<(usize, usize)> {
        self.kernel.take_moved()
    }

    /// What a counter says, all CPUs together.
    #[must_use]
    pub fn counter(&mut self, which: Counter) -> u64 {
        // SAFETY: it is the state that this scheduler was loaded with, and only read.
        unsafe { c::shim_counter(self.kernel.globals(), which as u32) }
    }
}
