//! The types and flags that C and Rust share, as shim/scx/common.bpf.h has them; a test compares the
//! layouts. Fields that both sides change are cells: C writes through pointers to them.

use std::cell::Cell;
use std::ffi::{c_char, c_void};

/// CPUs for which a mask has room.
pub const MAX_CPUS: usize = 1024;

/// A set of CPUs (`struct cpumask`).
#[repr(C)]
#[derive(Clone, Debug)]
pub struct CpuMask {
    bits: [Cell<u64>; MAX_CPUS / 64],
}

impl Default for CpuMask {
    fn default() -> Self {
        Self { bits: [const { Cell::new(0) }; MAX_CPUS / 64] }
    }
}

impl CpuMask {
    /// These CPUs; what there is no room for is left out.
    #[must_use]
    pub fn of(cpus: impl IntoIterator<Item = usize>) -> Self {
        let mask = Self::default();
        cpus.into_iter().filter(|cpu| *cpu < MAX_CPUS).for_each(|cpu| mask.set(cpu));
        mask
    }

    pub(crate) fn set(&self, cpu: usize) {
        let word = &self.bits[cpu / 64];
        word.set(word.get() | 1 << (cpu % 64));
    }

    pub(crate) fn clear(&self, cpu: usize) {
        let word = &self.bits[cpu / 64];
        word.set(word.get() & !(1 << (cpu % 64)));
    }

    /// Whether a CPU is in it.
    #[must_use]
    pub fn has(&self, cpu: usize) -> bool {
        self.bits.get(cpu / 64).is_some_and(|word| word.get() >> (cpu % 64) & 1 != 0)
    }

    /// How many CPUs are in it.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|word| word.get().count_ones()).sum()
    }

    pub(crate) fn copy(&self, other: &Self) {
        self.bits.iter().zip(&other.bits).for_each(|(own, other)| own.set(other.get()));
    }

    /// The first CPU from `start` on that is in both.
    pub(crate) fn first_common(&self, other: &Self, start: usize) -> Option<usize> {
        let mut keep = u64::MAX << (start % 64);
        for at in start / 64..self.bits.len() {
            let word = self.bits[at].get() & other.bits[at].get() & keep;
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            keep = u64::MAX;
        }
        None
    }
}

/// What sched_ext keeps in a task (`struct sched_ext_entity`).
#[repr(C)]
#[derive(Debug, Default)]
pub struct Entity {
    /// Nanoseconds it may still run.
    pub slice: Cell<u64>,
    /// Its key in an ordered queue.
    pub dsq_vtime: Cell<u64>,
    /// [`TASK_QUEUED`].
    pub flags: Cell<u32>,
    /// Its weight, as `cpu.weight`.
    pub weight: Cell<u32>,
}

/// A thread as schedulers see it (`struct task_struct`).
#[repr(C)]
#[derive(Debug)]
pub struct TaskStruct {
    /// Its number, which changes if it is not its process's first and executes another program.
    pub pid: Cell<i32>,
    /// Of its process.
    pub tgid: i32,
    /// `PF_*`.
    pub flags: u32,
    /// CPUs in its mask.
    pub nr_cpus_allowed: Cell<i32>,
    /// Its priority: 120, as all are of one class.
    pub prio: i32,
    /// Nanoseconds since boot when it started.
    pub start_time: u64,
    /// The same, time in suspend included.
    pub start_boottime: u64,
    /// CPUs that it may use.
    pub cpus_ptr: *const CpuMask,
    /// What sched_ext keeps.
    pub scx: Entity,
    /// CPU time that it has used, nanoseconds (`se.sum_exec_runtime`).
    pub(crate) used: Cell<u64>,
    /// How often it forbade to be moved.
    pub migration_disabled: Cell<u16>,
    /// Whether its storage was made.
    pub(crate) on_cpu: u8,
    pub(crate) stored: Cell<u8>,
    /// Whether it is in the kernel and does not return to user space soon.
    pub in_kernel: Cell<bool>,
    /// Which of the instance's tasks it is.
    pub index: u32,
    /// The number of its cgroup (`struct shim_group`); 0 for none.
    pub(crate) group: Cell<u32>,
    /// How often it entered a section that reads under RCU.
    pub rcu_read_lock_nesting: Cell<i32>,
    pub(crate) storage: *mut c_void,
    pub(crate) comm: [c_char; 16],
    /// Of a thread that leads its group, as all do here: never looked at.
    pub(crate) group_leader: *const TaskStruct,
}

/// What the CPU on which a program runs knows (`struct shim_here`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Here {
    pub(crate) kernel: Cell<*const c_void>,
    pub(crate) state: Cell<*mut c_void>,
    pub(crate) threads: Cell<*mut c_void>,
    pub(crate) current: Cell<*const TaskStruct>,
    pub(crate) idle: *const CpuMask,
    pub(crate) idle_cores: *const CpuMask,
    pub(crate) online: *const CpuMask,
    pub(crate) now: Cell<u64>,
    pub(crate) cpu: Cell<i32>,
    pub(crate) nr_cpus: u32,
    pub(crate) nr_threads: Cell<u32>,
    pub(crate) in_interrupt: Cell<u32>,
}

/// How far a program has come in a queue (`struct bpf_iter_scx_dsq`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Iter {
    /// The queue.
    pub dsq_id: u64,
    /// `SCX_DSQ_ITER_REV`.
    pub flags: u64,
    pub(crate) after_vtime: u64,
    pub(crate) after_place: i64,
    pub(crate) before_seq: u64,
    pub(crate) slice: u64,
    pub(crate) vtime: u64,
    pub(crate) begun: u32,
    pub(crate) set: u32,
}

/// What `ops.init_task` is told (`struct scx_init_task_args`).
#[repr(C)]
#[derive(Debug)]
pub struct InitTaskArgs {
    /// Whether the task is new; else it was there before the scheduler.
    pub fork: bool,
}

/// What `ops.exit_task` is told.
#[repr(C)]
#[derive(Debug)]
pub struct ExitTaskArgs {
    /// Whether the scheduler was not enabled for it.
    pub cancelled: bool,
}

/// Why a scheduler ends (`struct scx_exit_info`).
#[repr(C)]
#[derive(Debug)]
pub struct ExitInfo {
    /// What kind of end.
    pub kind: i32,
    /// A number to go with it.
    pub exit_code: i64,
    /// Text.
    pub reason: *const c_char,
    /// More text.
    pub msg: *const c_char,
}

/// A pointer to a task, as C passes it.
pub type Task = *const TaskStruct;

/// A scheduler's operations (`struct sched_ext_ops`); those it lacks are `None`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the kernel documents them: Documentation/scheduler/sched-ext.rst")]
pub struct Ops {
    pub select_cpu: Option<unsafe extern "C" fn(Task, i32, u64) -> i32>,
    pub enqueue: Option<unsafe extern "C" fn(Task, u64)>,
    pub dequeue: Option<unsafe extern "C" fn(Task, u64)>,
    pub dispatch: Option<unsafe extern "C" fn(i32, Task)>,
    pub tick: Option<unsafe extern "C" fn(Task)>,
    pub runnable: Option<unsafe extern "C" fn(Task, u64)>,
    pub running: Option<unsafe extern "C" fn(Task)>,
    pub stopping: Option<unsafe extern "C" fn(Task, bool)>,
    pub quiescent: Option<unsafe extern "C" fn(Task, u64)>,
    pub yield_to: Option<unsafe extern "C" fn(Task, Task) -> bool>,
    pub set_weight: Option<unsafe extern "C" fn(Task, u32)>,
    pub set_cpumask: Option<unsafe extern "C" fn(Task, *const CpuMask)>,
    pub update_idle: Option<unsafe extern "C" fn(i32, bool)>,
    pub init_task: Option<unsafe extern "C" fn(Task, *mut InitTaskArgs) -> i32>,
    pub exit_task: Option<unsafe extern "C" fn(Task, *mut ExitTaskArgs)>,
    pub enable: Option<unsafe extern "C" fn(Task)>,
    pub disable: Option<unsafe extern "C" fn(Task)>,
    pub init: Option<unsafe extern "C" fn() -> i32>,
    pub exit: Option<unsafe extern "C" fn(*mut ExitInfo)>,
    pub cpu_release: Option<unsafe extern "C" fn(i32, *mut c_void)>,
    pub flags: u64,
    pub dispatch_max_batch: u32,
    /// How long a task may be runnable without running before the kernel throws the scheduler out.
    pub timeout_ms: u32,
    pub name: [c_char; 128],
}

impl Ops {
    /// No operation at all.
    pub const NONE: Self = Self {
        select_cpu: None,
        enqueue: None,
        dequeue: None,
        dispatch: None,
        tick: None,
        runnable: None,
        running: None,
        stopping: None,
        quiescent: None,
        yield_to: None,
        set_weight: None,
        set_cpumask: None,
        update_idle: None,
        init_task: None,
        exit_task: None,
        enable: None,
        disable: None,
        init: None,
        exit: None,
        cpu_release: None,
        flags: 0,
        dispatch_max_batch: 0,
        timeout_ms: 0,
        name: [0; 128],
    };
}

/// In [`Entity::flags`]: runnable.
pub const TASK_QUEUED: u32 = 1;
/// In [`TaskStruct::flags`]: a thread that ends.
#[cfg(test)]
pub(crate) const PF_EXITING: u32 = 0x4;
/// In [`TaskStruct::flags`]: a thread of the kernel.
pub const PF_KTHREAD: u32 = 0x0020_0000;

/// No queue.
pub(crate) const DSQ_INVALID: u64 = 1 << 63;
/// The queue that every CPU looks into when its own is empty.
pub const DSQ_GLOBAL: u64 = 1 << 63 | 1;
/// The queue from which a CPU runs.
pub const DSQ_LOCAL: u64 = 1 << 63 | 2;
/// The same of a certain CPU, to be joined with its number.
pub const DSQ_LOCAL_ON: u64 = 1 << 63 | 1 << 62;

/// 20 ms, a slice where the scheduler gave none.
pub const SLICE_DFL: u64 = 20_000_000;
/// No end.
pub const SLICE_INF: u64 = u64::MAX;

/// A wake-up.
pub const ENQ_WAKEUP: u64 = 1;
/// To the head of a queue.
pub const ENQ_HEAD: u64 = 0x10;
/// `ops.select_cpu` was asked.
pub const ENQ_CPU_SELECTED: u64 = 0x400;
/// What runs there gives way.
pub const ENQ_PREEMPT: u64 = 1 << 32;
/// There is nothing else for the CPU to run.
pub const ENQ_LAST: u64 = 1 << 41;

/// It goes to sleep.
pub const DEQ_SLEEP: u64 = 1;
/// Its affinity or class changes.
pub const DEQ_SCHED_CHANGE: u64 = 1 << 33;

/// In `ops.select_cpu`: a new thread.
pub const WAKE_FORK: u64 = 4;
/// In `ops.select_cpu`: a wake-up.
pub const WAKE_TTWU: u64 = 8;
/// In `ops.select_cpu`: the waker is about to sleep.
pub const WAKE_SYNC: u64 = 16;

/// Only if the CPU is idle.
pub const KICK_IDLE: u64 = 1;
/// The running task's slice ends.
pub const KICK_PREEMPT: u64 = 2;

/// Only CPUs whose whole core is idle.
pub const PICK_IDLE_CORE: u64 = 1;

/// In [`Ops::flags`]: `ops.enqueue` is asked about the last runnable task of a CPU, too.
pub const OPS_ENQ_LAST: u64 = 1 << 1;

/// In [`Iter::flags`]: from the end.
pub const ITER_REV: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    unsafe extern "C" {
        safe fn shim_layout(at: u32) -> usize;
    }

    #[test]
    fn types_are_laid_out_as_c_has_them() {
        let own = [
            size_of::<CpuMask>(),
            size_of::<TaskStruct>(),
            offset_of!(TaskStruct, cpus_ptr),
            offset_of!(TaskStruct, scx) + offset_of!(Entity, slice),
            offset_of!(TaskStruct, scx) + offset_of!(Entity, flags),
            offset_of!(TaskStruct, used),
            offset_of!(TaskStruct, stored),
            offset_of!(TaskStruct, group),
            offset_of!(TaskStruct, storage),
            size_of::<Here>(),
            offset_of!(Here, online),
            offset_of!(Here, in_interrupt),
            size_of::<Ops>(),
            offset_of!(Ops, yield_to),
            offset_of!(Ops, init),
            offset_of!(Ops, timeout_ms),
            size_of::<Iter>(),
            offset_of!(Iter, set),
        ];
        let c: Vec<usize> =
            (0u32..).map(|at| shim_layout(at)).take_while(|size| *size > 0).collect();
        assert_eq!(c, own);
    }

    #[test]
    fn the_first_common_cpu_is_found_from_any_start() {
        let (a, b) = (CpuMask::of([1, 64, 200]), CpuMask::of([64, 200, 2000]));
        assert_eq!(a.first_common(&b, 0), Some(64));
        assert_eq!(a.first_common(&b, 65), Some(200));
        assert_eq!(a.first_common(&b, 201), None);
        assert_eq!((a.count(), b.count(), b.has(2000)), (3, 2, false));
    }
}
