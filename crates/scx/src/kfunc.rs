//! The kernel's functions that schedulers call (kfuncs and helpers of BPF), as far as they need the
//! kernel's state; shim/scx/common.bpf.h has the rest. Only called from inside an operation.
//!
//! What the kernel throws a scheduler out for is noted ([`State::eject`](crate::state::State::eject));
//! what it answers with an error code is answered so.

use crate::abi::{CpuMask, DSQ_GLOBAL, DSQ_INVALID, Iter, KICK_IDLE, Task, TaskStruct};
use crate::inner::{FIRST_PID, Inner, SchedulerEvent};
use crate::state::{Context, Queue, Sent, Timer};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// At most so many insertions in one `ops.dispatch` (SCX_DSP_DFL_MAX_BATCH).
const BATCH: usize = 32;
/// Events that are kept until they are taken; later ones are lost, as in a full ring buffer.
pub(crate) const EVENTS: usize = 1024;

/// The instance whose operation runs.
///
/// # Safety
/// `kernel` is what [`Inner::call`] gave, and the call is not over.
unsafe fn instance<'a>(kernel: *const c_void) -> &'a Inner {
    // SAFETY: the caller's promise; only shared references to it exist meanwhile.
    unsafe { &*kernel.cast::<Inner>() }
}

macro_rules! kfuncs {
    ($($(#[$doc:meta])* fn $name:ident($kernel:ident $(, $arg:ident: $type:ty)*) $(-> $result:ty)? $body:block)*) => {
        $($(#[$doc])*
        ///
        /// # Safety
        /// `kernel` is the instance whose operation runs; pointers are those that it was given.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(kernel: *const c_void $(, $arg: $type)*) $(-> $result)? {
            // SAFETY: as this function demands.
            let $kernel = unsafe { instance(kernel) };
            $body
        })*
    };
}

kfuncs! {
    /// `scx_bpf_create_dsq`.
    fn shim_create_dsq(kernel, dsq: u64) -> i32 {
        let state = &mut *kernel.state.borrow_mut();
        if state.create(dsq) { 0 } else if state.user(dsq).is_some() { -EEXIST } else { -EINVAL }
    }

    /// `scx_bpf_destroy_dsq`.
    fn shim_destroy_dsq(kernel, dsq: u64) {
        let state = &mut *kernel.state.borrow_mut();
        if !state.destroy(dsq) {
            state.eject(format!("queue {dsq:#x} is missing or in use, and cannot be destroyed"));
        }
    }

    /// `scx_bpf_dsq_nr_queued`.
    fn shim_nr_queued(kernel, dsq: u64) -> i32 {
        let state = kernel.state.borrow();
        let own = kernel.here.cpu.get() as usize;
        let queue = state.resolve(dsq, own).and_then(|queue| state.queue(queue));
        queue.map_or(-ENOENT, |queue| queue.len() as i32)
    }

    /// `scx_bpf_dsq_insert` and `scx_bpf_dsq_insert_vtime`.
    fn shim_insert(kernel, p: Task, dsq: u64, slice: u64, vtime: u64, flags: u64, ordered: bool) {
        kernel.insert(p, Sent { dsq, flags, ordered }, slice, vtime);
    }

    /// `scx_bpf_dsq_move_to_local`.
    fn shim_move_to_local(kernel, dsq: u64, _flags: u64) -> bool {
        let context = kernel.state.borrow().context;
        let Context::Dispatch(cpu) = context else {
            kernel.state.borrow_mut().eject("move_to_local outside of ops.dispatch");
            return false;
        };
        kernel.flush();
        let known = kernel.state.borrow().user(dsq).is_some();
        if !known {
            kernel.state.borrow_mut().eject(format!("queue {dsq:#x} is none that was made"));
            return false;
        }
        let moved = kernel.consume(cpu, Queue::User(dsq));
        kernel.state.borrow_mut().dispatched += u32::from(moved);
        moved
    }

    /// `bpf_iter_scx_dsq_new`.
    fn shim_iter_begin(kernel, iter: *mut Iter) {
        // SAFETY: it is the caller's own.
        let iter = unsafe { &mut *iter };
        let state = kernel.state.borrow();
        if let Some(dsq) = state.user(iter.dsq_id) {
            dsq.begin(iter);
        }
    }

    /// `bpf_iter_scx_dsq_next`.
    fn shim_iter_next(kernel, iter: *mut Iter) -> Task {
        // SAFETY: it is the caller's own.
        let iter = unsafe { &mut *iter };
        let state = kernel.state.borrow();
        let task = state.user(iter.dsq_id).and_then(|dsq| dsq.next(iter));
        task.map_or(ptr::null(), |task| kernel.pointer(task))
    }

    /// `scx_bpf_dsq_move` and `scx_bpf_dsq_move_vtime`.
    fn shim_move(kernel, iter: *const Iter, p: Task, dsq: u64, flags: u64, ordered: bool) -> bool {
        // SAFETY: it is the caller's own.
        let iter = unsafe { *iter };
        let Some(task) = kernel.index(p) else { return false };
        kernel.move_task(&iter, task, Sent { dsq, flags, ordered })
    }

    /// `scx_bpf_kick_cpu`: carried out when the operation's caller is done, as from an irq_work.
    fn shim_kick(kernel, cpu: i32, flags: u64) {
        let cpus = kernel.machine.core.len();
        let state = &mut *kernel.state.borrow_mut();
        match usize::try_from(cpu).ok().filter(|cpu| *cpu < cpus) {
            None => state.eject(format!("CPU {cpu} was kicked, which is none")),
            Some(_) if flags & KICK_IDLE != 0 && flags & !KICK_IDLE != 0 => {
                state.eject("KICK_IDLE was joined with others");
            }
            Some(cpu) => state.kicks.push((cpu, flags)),
        }
    }

    /// `scx_bpf_cpuperf_set`.
    fn shim_ask_performance(kernel, cpu: i32, performance: u32) {
        let state = &mut *kernel.state.borrow_mut();
        match usize::try_from(cpu).ok().and_then(|cpu| state.rqs.get_mut(cpu)) {
            Some(rq) if performance <= 1024 => rq.performance = performance,
            _ => state.eject(format!("performance {performance} of 1024 was asked for CPU {cpu}")),
        }
    }

    /// `scx_bpf_task_cpu`.
    fn shim_task_cpu(kernel, p: Task) -> i32 {
        kernel.index(p).map_or(0, |task| kernel.state.borrow().tasks[task].cpu as i32)
    }

    /// `scx_bpf_task_running`.
    fn shim_task_running(kernel, p: Task) -> bool {
        let state = kernel.state.borrow();
        kernel.index(p).is_some_and(|task| state.rqs[state.tasks[task].cpu].curr == Some(task))
    }

    /// `bpf_task_from_pid`.
    fn shim_task_of_pid(kernel, pid: i32) -> Task {
        let at = usize::try_from(pid - FIRST_PID).ok();
        at.filter(|at| *at < kernel.tasks.len()).map_or(ptr::null(), |at| kernel.pointer(at))
    }

    /// `scx_bpf_cpu_curr`.
    fn shim_cpu_curr(kernel, cpu: i32) -> Task {
        let state = kernel.state.borrow();
        let rq = usize::try_from(cpu).ok().and_then(|cpu| state.rqs.get(cpu));
        let nobody: Task = &raw const *kernel.nobody;
        rq.map_or(ptr::null(), |rq| rq.curr.map_or(nobody, |task| kernel.pointer(task)))
    }

    /// `scx_bpf_pick_idle_cpu`.
    fn shim_pick_idle(kernel, allowed: *const CpuMask, flags: u64) -> i32 {
        // SAFETY: masks that schedulers have come from here.
        let allowed = unsafe { &*allowed };
        kernel.pick_idle(allowed, flags).map_or(-EBUSY, |cpu| cpu as i32)
    }

    /// `scx_bpf_test_and_clear_cpu_idle`.
    fn shim_claim_idle(kernel, cpu: i32) -> bool {
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < kernel.machine.core.len());
        cpu.is_some_and(|cpu| kernel.claim_idle(cpu))
    }

    /// `scx_bpf_cpu_node`.
    fn shim_cpu_node(kernel, cpu: i32) -> i32 {
        let node = usize::try_from(cpu).ok().and_then(|cpu| kernel.machine.node.get(cpu));
        node.copied().unwrap_or(-1)
    }

    /// `bpf_get_prandom_u32`: xorshift64* (Vigna, 2014), a stream for each instance. By hand, as results of the
    /// simulator hang on each number.
    fn shim_random(kernel) -> u32 {
        let mut state = kernel.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        kernel.random.set(state);
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// `bpf_cpumask_any_distribute` and `bpf_cpumask_any_and_distribute`.
    fn shim_any(kernel, a: *const CpuMask, b: *const CpuMask) -> u32 {
        // SAFETY: masks that schedulers have come from here; the second may be null.
        let (a, b) = unsafe { (&*a, b.as_ref().unwrap_or(&kernel.online)) };
        kernel.any(a, b).unwrap_or(kernel.machine.core.len()) as u32
    }

    /// `scx_bpf_error`.
    fn shim_error(kernel, what: *const c_char) {
        // SAFETY: a string constant of the scheduler's.
        let what = unsafe { CStr::from_ptr(what) };
        kernel.state.borrow_mut().eject(format!("scx_bpf_error: {}", what.to_string_lossy()));
    }

    /// An event for user space, that is, into a ring buffer.
    fn shim_emit(kernel, at_ns: u64, kind: u32, vm: u32, a: u64, b: u64) {
        let events = &mut *kernel.events.borrow_mut();
        if events.len() < EVENTS {
            events.push(SchedulerEvent { at_ns, kind, vm, a, b });
        }
    }

    /// `bpf_timer_start`, and without a callback `bpf_timer_cancel`.
    fn shim_timer(kernel, timer: *mut c_void, callback: *const c_void, map: *const c_void, _key: *const c_void, at: u64) {
        let (timer, callback, map) = (timer as usize, callback as usize, map as usize);
        let timers = &mut kernel.state.borrow_mut().timers;
        timers.retain(|other| other.timer != timer);
        if callback != 0 {
            let place = timers.partition_point(|other| other.at <= at);
            timers.insert(place, Timer { at, timer, callback, map });
        }
    }
}

impl Inner {
    /// Notes where a task is sent; carried out after the operation.
    fn insert(&self, p: *const TaskStruct, sent: Sent, slice: u64, vtime: u64) {
        let Some(task) = self.index(p) else {
            return self.state.borrow_mut().eject("a task that is none was inserted");
        };
        let state = &mut *self.state.borrow_mut();
        if sent.ordered && sent.dsq >= DSQ_INVALID {
            return state.eject("virtual times cannot order queues of the kernel's");
        }
        if !sent.ordered && sent.dsq == DSQ_INVALID {
            return state.eject("a task was inserted into no queue");
        }
        match state.context {
            Context::Select(own) | Context::Enqueue(own) => {
                if own != task {
                    let what = format!("task {task} was inserted in an operation of task {own}");
                    return state.eject(what);
                }
                if state.tasks[task].sent.is_some() {
                    return state.eject(format!("task {task} was inserted twice"));
                }
                state.tasks[task].sent = Some(sent);
            }
            Context::Dispatch(_) if state.buffer.len() < BATCH => state.buffer.push((task, sent)),
            Context::Dispatch(_) => return state.eject("too many insertions in one dispatch"),
            Context::Other => {
                return state.eject("a task was inserted in an operation that may not do so");
            }
        }
        let entity = &self.tasks[task].scx;
        // Without a number the slice stays, and is never none.
        entity.slice.set(if slice > 0 { slice } else { entity.slice.get().max(1) });
        if sent.ordered {
            entity.dsq_vtime.set(vtime);
        }
    }

    /// Moves a task out of the queue that is looked through; false if it is not there any more.
    fn move_task(&self, iter: &Iter, task: usize, sent: Sent) -> bool {
        let there = {
            let state = &mut *self.state.borrow_mut();
            if !matches!(state.context, Context::Dispatch(_) | Context::Other) {
                state.eject("dsq_move in an operation that holds a run queue");
            }
            if sent.ordered && (sent.dsq >= DSQ_INVALID || sent.dsq == DSQ_GLOBAL) {
                state.eject("virtual times cannot order queues of the kernel's");
            }
            state.tasks[task].on == Some(Queue::User(iter.dsq_id))
        };
        if !there || self.state.borrow().ejected.is_some() {
            return false;
        }
        {
            let state = &mut *self.state.borrow_mut();
            state.unqueue(task);
            state.dispatched += 1;
        }
        let entity = &self.tasks[task].scx;
        if iter.set & 1 != 0 {
            entity.slice.set(if iter.slice > 0 { iter.slice } else { entity.slice.get().max(1) });
        }
        if iter.set & 2 != 0 {
            entity.dsq_vtime.set(iter.vtime);
        }
        self.send(task, sent, 0);
        true
    }
}
