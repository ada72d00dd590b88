//! Cgroups of a simulated host: what the kernel has of them, and what user space reads and writes (bpf/group.bpf.h) as
//! crates/kernel does (`loaded/weights.rs`). What weights follow from what is wanted is not decided here.

use super::{Instep, c};

/// A cgroup as the kernel has it (`struct task_group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The number of the one above it; 0 of the root.
    pub above: u32,
    /// Its weight as the kernel has it: 1,048,576 for a `cpu.weight` of 100.
    pub shares: u64,
    /// `cpu.max`.
    pub limit: Option<CpuLimit>,
}

/// A CPU limit of a cgroup, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimit {
    /// CPU time for each period.
    pub quota: u64,
    /// The period.
    pub period: u64,
    /// What it may save (`cpu.max.burst`).
    pub burst: u64,
}

impl Cgroup {
    /// `shares` of a `cpu.weight` of 100.
    pub const SHARES: u64 = 1024 << 10;
    /// `shares` of a cgroup with `cpu.idle` (WEIGHT_IDLEPRIO).
    pub const IDLE_SHARES: u64 = 3 << 10;

    /// How many there may be, the root included; their numbers begin with 1.
    #[must_use]
    pub fn most() -> u32 {
        c::shim_max_groups() - 1
    }
}

/// A cgroup as the scheduler has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSeen {
    /// Its number.
    pub id: u32,
    /// That of the cgroup above it, 0 if there is none.
    pub parent: u64,
    /// Its weight, as in [`Cgroup`].
    pub shares: u64,
    /// CPUs that its own limit allows, thousandths; 0 if it has none.
    pub most: u64,
    /// Time for which threads of the host in it were runnable, summed over them, nanoseconds.
    pub want_ns: u64,
}

/// What user space says all weigh, thousandths of a CPU, at least 1 each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Each thread of these cgroups that belongs to no VM.
    pub threads: Vec<(u32, u32)>,
    /// These VMs.
    pub vms: Vec<(usize, u32)>,
    /// What threads that want a CPU weigh on average.
    pub mean: u32,
}

/// Of a VM until it is known what it is entitled to: a CPU (`UNKNOWN` of crates/kernel).
pub(super) const UNKNOWN: u32 = 1000;

impl Instep {
    /// A cgroup of this number, 1 or more, is so from now on. Threads find out when they run.
    pub fn set_cgroup(&mut self, number: u32, cgroup: &Cgroup) {
        let state = self.kernel.globals();
        // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
        unsafe {
            c::shim_weigh_group(state, number, 100, cgroup.above);
            c::shim_share_group(state, number, cgroup.shares);
            if let Some(CpuLimit { quota, period, burst }) = cgroup.limit {
                c::shim_set_group(state, number, quota, period, burst, cgroup.above);
            }
        }
    }

    /// A task lies in this cgroup from now on.
    pub fn put_into(&mut self, task: usize, number: u32) {
        self.kernel.set_group(task, number);
    }

    /// The cgroup of this number, if a thread below it has run.
    pub fn group_seen(&mut self, id: u32) -> Option<GroupSeen> {
        let state = self.kernel.globals();
        // SAFETY: as above.
        let (shares, most, parent, want_ns) = unsafe {
            (
                c::shim_group_shares(state, id),
                c::shim_group_most(state, id),
                c::shim_group_parent(state, id),
                c::shim_group_want(state, id),
            )
        };
        (shares > 0).then_some(GroupSeen { id, parent, shares, most, want_ns })
    }

    /// For how long threads of a VM were runnable, summed over them, nanoseconds, since its entry was begun.
    pub fn vm_wanted(&mut self, vm: usize) -> u64 {
        // SAFETY: as above; C checks the VM's number.
        unsafe { c::shim_vm_wanted(self.kernel.globals(), vm as u32 + 1) }
    }

    /// User space says what all weigh.
    pub fn set_weights(&mut self, weights: &Weights) {
        let state = self.kernel.globals();
        // SAFETY: as above.
        unsafe {
            for (id, weight) in &weights.threads {
                c::shim_set_thread_weight(state, *id, (*weight).max(1));
            }
            for (vm, weight) in &weights.vms {
                c::shim_set_vm_weight(state, *vm as u32 + 1, (*weight).max(1));
            }
            c::shim_set_mean_weight(state, weights.mean.max(1));
        }
        self.weighs_tree = true;
    }
}
