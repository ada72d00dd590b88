//! An instance's memory, and the calls of its scheduler's operations: with what C may see while they
//! run, and in an order that is checked.

use crate::abi::{CpuMask, Here, Ops, SLICE_INF, TaskStruct};
use crate::order::Call;
use crate::state::{Context, State};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

unsafe extern "C" {
    fn shim_enter(here: *const Here);
    safe fn shim_where() -> *const Here;
}

/// Which kernel's rules hold where they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// `ops.dequeue` comes only for tasks that leave the scheduler's own data otherwise than by being
    /// dispatched.
    V6_12,
    /// It comes once whenever a task leaves the scheduler's custody, by being dispatched, too
    /// (7.1 and later).
    #[default]
    V7_2,
}

/// A task to be scheduled.
#[derive(Clone, Debug)]
pub struct TaskSetup {
    /// CPUs that it may use; at least one.
    pub allowed: CpuMask,
    /// The CPU on which it was last.
    pub cpu: usize,
    /// `PF_*`.
    pub flags: u32,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// For each CPU the CPUs of its core, itself included.
    pub core: Vec<Vec<usize>>,
    /// For each CPU its node.
    pub node: Vec<i32>,
}

/// Memory that C changes.
pub(crate) type Memory = Box<[Cell<u64>]>;

pub(crate) fn memory(bytes: usize) -> Memory {
    vec![Cell::new(0); bytes.div_ceil(8).max(1)].into()
}

pub(crate) fn address(memory: &Memory) -> *mut c_void {
    memory.as_ptr().cast_mut().cast()
}

/// An event that the scheduler told user space (`struct instep_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "bpf/intf.h")]
pub struct SchedulerEvent {
    pub at_ns: u64,
    pub kind: u32,
    pub vm: u32,
    pub a: u64,
    pub b: u64,
}

/// See the module. Shared references only: C comes back while an operation is called.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) here: Here,
    pub(crate) ops: Ops,
    pub(crate) release: Release,
    pub(crate) machine: Machine,
    pub(crate) smt: bool,
    pub(crate) idle: Box<CpuMask>,
    pub(crate) idle_cores: Box<CpuMask>,
    pub(crate) online: Box<CpuMask>,
    pub(crate) allowed: Box<[CpuMask]>,
    pub(crate) tasks: Box<[TaskStruct]>,
    /// Who is current where no task is.
    pub(crate) nobody: Box<TaskStruct>,
    pub(crate) state: RefCell<State>,
    pub(crate) events: RefCell<Vec<SchedulerEvent>>,
    pub(crate) random: Cell<u64>,
    /// Where the last search for any CPU ended, for each CPU.
    pub(crate) round: Box<[Cell<usize>]>,
    /// What BPF keeps: globals, table of threads, storage of tasks.
    pub(crate) globals: Memory,
    pub(crate) threads: Memory,
    storage: Memory,
    /// Words of a task's.
    storage_words: usize,
}

fn task(index: u32, pid: i32, flags: u32, allowed: *const CpuMask) -> TaskStruct {
    // Some nanoseconds apart, so that each has a start of its own.
    let start = (u64::from(index) + 1) * 10_000_000;
    TaskStruct {
        pid: Cell::new(pid),
        tgid: pid,
        flags,
        nr_cpus_allowed: Cell::new(0),
        prio: 120,
        start_time: start,
        start_boottime: start,
        cpus_ptr: allowed,
        scx: crate::abi::Entity::default(),
        used: Cell::new(0),
        migration_disabled: Cell::new(0),
        on_cpu: 0,
        stored: Cell::new(0),
        in_kernel: Cell::new(false),
        index,
        group: Cell::new(0),
        rcu_read_lock_nesting: Cell::new(0),
        storage: ptr::null_mut(),
        comm: [0; 16],
        group_leader: ptr::null(),
    }
}

/// The number of the first task; 0 is nobody's.
pub(crate) const FIRST_PID: i32 = 1;

impl Inner {
    pub(crate) fn new(
        machine: Machine,
        setups: &[TaskSetup],
        ops: Ops,
        [globals, storage, thread]: [usize; 3],
        seed: u64,
        release: Release,
    ) -> Self {
        let cpus = machine.core.len();
        let smt = machine.core.iter().any(|core| core.len() > 1);
        let online = Box::new(CpuMask::of(0..cpus));
        let (idle, idle_cores) = (online.clone(), online.clone());
        let allowed: Box<[CpuMask]> = setups.iter().map(|setup| setup.allowed.clone()).collect();
        let each = storage.div_ceil(16) * 16;
        let storage = memory(each * setups.len());
        let mut tasks: Box<[TaskStruct]> = setups
            .iter()
            .zip(&allowed)
            .enumerate()
            .map(|(at, (setup, mask))| task(at as u32, FIRST_PID + at as i32, setup.flags, mask))
            .collect();
        for (at, (task, mask)) in tasks.iter_mut().zip(&allowed).enumerate() {
            task.nr_cpus_allowed.set(mask.count() as i32);
            task.storage = address(&storage).wrapping_byte_add(at * each);
        }
        let threads = memory(thread * (setups.len() + 1));
        let globals = memory(globals);
        let nobody = Box::new(task(u32::MAX, 0, 0, &raw const *online));
        let here = Here {
            kernel: Cell::new(ptr::null()),
            state: Cell::new(address(&globals)),
            threads: Cell::new(address(&threads)),
            current: Cell::new(&raw const *nobody),
            idle: &raw const *idle,
            // Without SMT the kernel answers with idle CPUs (scx_bpf_get_idle_smtmask).
            idle_cores: if smt { &raw const *idle_cores } else { &raw const *idle },
            online: &raw const *online,
            now: Cell::new(0),
            cpu: Cell::new(0),
            nr_cpus: cpus as u32,
            nr_threads: Cell::new(setups.len() as u32 + 1),
            in_interrupt: Cell::new(0),
        };
        let mut state = State::new(cpus, setups.len());
        for (info, setup) in state.tasks.iter_mut().zip(setups) {
            info.cpu = setup.cpu;
        }
        Self {
            here,
            ops,
            release,
            smt,
            idle,
            idle_cores,
            online,
            allowed,
            tasks,
            nobody,
            state: RefCell::new(state),
            events: RefCell::new(Vec::with_capacity(crate::kfunc::EVENTS)),
            random: Cell::new(seed | 1),
            round: vec![Cell::new(0); cpus].into(),
            globals,
            threads,
            storage,
            storage_words: each / 8,
            machine,
        }
    }

    /// The kernel frees what the scheduler keeps of a task.
    pub(crate) fn free_storage(&self, task: usize) {
        self.tasks[task].stored.set(0);
        let own = self.storage.iter().skip(task * self.storage_words).take(self.storage_words);
        own.for_each(|word| word.set(0));
    }

    /// Calls an operation, with C's view of this instance in place.
    pub(crate) fn call<R>(&self, context: Context, operation: impl FnOnce() -> R) -> R {
        let before = std::mem::replace(&mut self.state.borrow_mut().context, context);
        self.here.kernel.set(ptr::from_ref(self).cast());
        let outer = shim_where();
        // SAFETY: `here` lives as long as this instance, and the pointer is put back before this
        // returns: no operation is left by unwinding, as nothing that C calls does so.
        unsafe { shim_enter(&raw const self.here) };
        let result = operation();
        // SAFETY: `outer` is what was there before: null or an instance in whose call this is.
        unsafe { shim_enter(outer) };
        self.state.borrow_mut().context = before;
        result
    }

    /// An operation of a task is about to be called. Whether the scheduler is still in force.
    pub(crate) fn ordered(&self, task: usize, call: Call) -> bool {
        let state = &mut *self.state.borrow_mut();
        let info = &mut state.tasks[task];
        match info.stand.after(call) {
            Some(stand) => info.stand = stand,
            None => {
                let what = format!("{call:?} of task {task}, which is {:?}", info.stand);
                state.bug.get_or_insert(what);
            }
        }
        state.ejected.is_none()
    }

    /// Where an operation runs, and beside whom: the CPU's own task, or nobody.
    pub(crate) fn stand_on(&self, cpu: usize, now: u64) {
        let curr = self.state.borrow().rqs[cpu].curr;
        self.here.now.set(now);
        self.here.cpu.set(cpu as i32);
        self.here.in_interrupt.set(0);
        self.here
            .current
            .set(curr.map_or(&raw const *self.nobody, |task| &raw const self.tasks[task]));
    }

    pub(crate) fn now(&self) -> u64 {
        self.here.now.get()
    }

    /// Which task this is, if one of the instance's.
    pub(crate) fn index(&self, task: *const TaskStruct) -> Option<usize> {
        let at = (task as usize).checked_sub(self.tasks.as_ptr() as usize)?;
        let size = size_of::<TaskStruct>();
        (at.is_multiple_of(size) && at / size < self.tasks.len()).then_some(at / size)
    }

    pub(crate) fn may_use(&self, task: usize, cpu: usize) -> bool {
        self.allowed[task].has(cpu)
    }

    /// The CPU's task is charged up to now (update_curr_scx).
    pub(crate) fn charge(&self, cpu: usize) {
        let state = &mut *self.state.borrow_mut();
        let rq = &mut state.rqs[cpu];
        let ran = self.now().saturating_sub(rq.charged);
        rq.charged = self.now();
        if let Some(task) = rq.curr {
            let used = &self.tasks[task].used;
            used.set(used.get() + ran);
            let slice = &self.tasks[task].scx.slice;
            if slice.get() != SLICE_INF {
                slice.set(slice.get().saturating_sub(ran));
            }
        }
    }
}
