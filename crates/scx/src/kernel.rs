//! A host's scheduling under one sched_ext scheduler: what happens is told, what runs is answered.
//!
//! Who drives it says when tasks wake, block, yield and when clocks tick; it then lets every CPU of
//! [`Kernel::take_resched`] choose ([`Kernel::schedule`]) and runs what [`Kernel::current`] says. All
//! else is as in the kernel. Instances share nothing: several run side by side.

use crate::abi::{
    CpuMask, DEQ_SCHED_CHANGE, DEQ_SLEEP, ENQ_WAKEUP, KICK_IDLE, KICK_PREEMPT, Ops, TaskStruct,
    WAKE_FORK, WAKE_SYNC, WAKE_TTWU,
};
use crate::inner::{Inner, Machine, Release, SchedulerEvent, TaskSetup};
use crate::order::{Call, Stand};
use crate::state::Context;
use std::ffi::c_void;
use std::ptr;

/// Who wakes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waker {
    /// The task that runs on this CPU.
    Task(usize),
    /// The task that runs on this CPU and is about to sleep, as a pipe's writer (WF_SYNC).
    Sleeper(usize),
    /// An interrupt on this CPU.
    Interrupt(usize),
    /// A thread that is none of the instance's, on this CPU.
    Other(usize),
}

/// A scheduler that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// Bytes of what a scheduler keeps: globals, storage of a task, an entry of the table of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Of its globals.
    pub globals: usize,
    /// Of a task's storage.
    pub storage: usize,
    /// Of an entry of the table of threads.
    pub thread: usize,
}

/// An instance. See the module.
#[derive(Debug)]
pub struct Kernel {
    inner: Box<Inner>,
    loaded: bool,
}

// SAFETY: an instance is used by one thread at a time (all methods that call C take `&mut self`), all
// its pointers lead to memory that it owns, and C keeps the only thread-local pointer to it just
// while an operation runs.
unsafe impl Send for Kernel {}

impl Kernel {
    /// A host with these tasks, all asleep, all CPUs idle, under these operations; they are not called
    /// before [`Kernel::load`]. `seed` is that of the scheduler's random numbers.
    ///
    /// # Errors
    /// When there are no CPUs, more than there is room for, or a task may use none.
    pub fn new(
        machine: Machine,
        tasks: &[TaskSetup],
        ops: Ops,
        sizes: Sizes,
        seed: u64,
        release: Release,
    ) -> Result<Self, Refused> {
        let cpus = machine.core.len();
        if cpus == 0 || cpus > crate::abi::MAX_CPUS || machine.node.len() != cpus {
            let most = crate::abi::MAX_CPUS;
            return Err(Refused(format!("{cpus} CPUs: possible are 1 to {most}")));
        }
        let all = CpuMask::of(0..cpus);
        let lost = |task: &TaskSetup| task.allowed.first_common(&all, 0).is_none();
        if let Some(task) = tasks.iter().position(|task| lost(task) || task.cpu >= cpus) {
            return Err(Refused(format!("task {task} may use no CPU")));
        }
        let Sizes { globals, storage, thread } = sizes;
        let sizes = [globals, storage, thread];
        let inner = Box::new(Inner::new(machine, tasks, ops, sizes, seed, release));
        Ok(Self { inner, loaded: false })
    }

    pub(crate) fn globals(&mut self) -> *mut c_void {
        crate::inner::address(&self.inner.globals)
    }

    pub(crate) fn threads(&mut self) -> *mut c_void {
        crate::inner::address(&self.inner.threads)
    }

    /// The scheduler begins: `init`, then `init_task` and `enable` of every task (scx_enable).
    ///
    /// # Errors
    /// When it does not want to.
    pub fn load(&mut self, now: u64) -> Result<(), Refused> {
        let k = &*self.inner;
        k.stand_on(0, now);
        if let Some(init) = k.ops.init {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            let code = k.call(Context::Other, || unsafe { init() });
            if code != 0 {
                return Err(Refused(format!("ops.init answered {code}")));
            }
        }
        let there = k.tasks_there();
        for task in &there {
            let code = k.init_task(*task, false);
            if code != 0 {
                return Err(Refused(format!("ops.init_task answered {code}")));
            }
        }
        for task in there {
            self.enable(task);
            self.tell_cpumask(task);
        }
        self.loaded = true;
        self.carry_out_kicks();
        self.ejected().map_or(Ok(()), |why| Err(Refused(why)))
    }

    /// A task is not there when the scheduler is loaded: [`Kernel::fork`] makes it.
    pub(crate) fn leave_out(&mut self, task: usize) {
        self.inner.state.borrow_mut().tasks[task].left_out = true;
    }

    /// A thread that was left out, or has ended, is made on this CPU and wants to run: `init_task` and `enable`, then as a
    /// task that wakes up, but for the flag (scx_fork, scx_post_fork, wake_up_new_task). It is of the leader's process, or one of
    /// its own. Its cgroup is set before.
    pub fn fork(&mut self, task: usize, leader: Option<usize>, cpu: usize, now: u64) {
        let process =
            leader.map(|leader| (self.inner.tasks[leader].pid.get(), self.inner.pointer(leader)));
        let new = &mut self.inner.tasks[task];
        (new.start_time, new.start_boottime) = (now, now);
        (new.tgid, new.group_leader) = process.unwrap_or((new.pid.get(), ptr::null()));
        self.enter_waker(Waker::Task(cpu), now);
        let code = self.inner.init_task(task, true);
        if code != 0 {
            self.inner.state.borrow_mut().eject(format!("ops.init_task answered {code}"));
        }
        self.enable(task);
        {
            let state = &mut *self.inner.state.borrow_mut();
            state.tasks[task].left_out = false;
            state.tasks[task].cpu = cpu;
        }
        let flags = self.inner.select(task, WAKE_FORK);
        self.inner.enqueue(task, flags);
        self.carry_out_kicks();
    }

    /// A sleeping thread ends, as one that was killed has gone to sleep for the last time (sched_ext_free).
    pub fn exit(&mut self, task: usize, now: u64) {
        let cpu = self.inner.state.borrow().tasks[task].cpu;
        self.inner.stand_on(cpu, now);
        self.inner.take_out(task);
        self.inner.free_storage(task);
        self.inner.state.borrow_mut().tasks[task].left_out = true;
        self.carry_out_kicks();
    }

    /// scx_enable_task.
    fn enable(&mut self, task: usize) {
        let k = &*self.inner;
        k.tasks[task].scx.weight.set(100);
        k.ordered(task, Call::Enable);
        let p = k.pointer(task);
        if let Some(enable) = k.ops.enable {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            k.call(Context::Other, || unsafe { enable(p) });
        }
        if let Some(set_weight) = k.ops.set_weight {
            k.ordered(task, Call::SetWeight);
            // SAFETY: as above.
            k.call(Context::Other, || unsafe { set_weight(p, 100) });
        }
    }

    fn tell_cpumask(&self, task: usize) {
        let k = &*self.inner;
        if let Some(set_cpumask) = k.ops.set_cpumask {
            k.ordered(task, Call::SetCpumask);
            let mask = &raw const k.allowed[task];
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            k.call(Context::Other, || unsafe { set_cpumask(k.pointer(task), mask) });
        }
    }

    /// The scheduler ends, for every task and as a whole. What is runnable stays where it is.
    pub fn unload(&mut self, now: u64) {
        if !std::mem::take(&mut self.loaded) {
            return;
        }
        let k = &*self.inner;
        k.stand_on(0, now);
        k.tasks_there().into_iter().for_each(|task| k.take_out(task));
        if let Some(exit) = k.ops.exit {
            let (reason, msg) = (ptr::null(), ptr::null());
            let mut info = crate::abi::ExitInfo { kind: 64, exit_code: 0, reason, msg };
            // SAFETY: as above.
            k.call(Context::Other, || unsafe { exit(&mut info) });
        }
        self.carry_out_kicks();
    }

    /// A sleeping task wakes up (try_to_wake_up).
    pub fn wake(&mut self, task: usize, by: Waker, now: u64) {
        let wake_flags = self.enter_waker(by, now);
        let flags = self.inner.select(task, wake_flags);
        self.inner.enqueue(task, ENQ_WAKEUP | flags);
        self.carry_out_kicks();
    }

    /// As [`Kernel::wake`], and what runs on `sleeps` goes to sleep between `ops.select_cpu` and `ops.enqueue`: here
    /// CPUs act one after the other, on a machine at once.
    #[cfg(test)]
    pub(crate) fn wake_while_blocking(&mut self, task: usize, by: Waker, sleeps: usize, now: u64) {
        let wake_flags = self.enter_waker(by, now);
        let flags = self.inner.select(task, wake_flags);
        self.block(sleeps, now);
        self.enter_waker(by, now);
        self.inner.enqueue(task, ENQ_WAKEUP | flags);
        self.carry_out_kicks();
    }

    /// The CPU and the context in which a task is woken; what `ops.select_cpu` hears of it.
    fn enter_waker(&self, by: Waker, now: u64) -> u64 {
        let k = &*self.inner;
        let (Waker::Task(cpu) | Waker::Sleeper(cpu) | Waker::Interrupt(cpu) | Waker::Other(cpu)) =
            by;
        k.stand_on(cpu, now);
        match by {
            Waker::Task(_) | Waker::Sleeper(_) => {}
            Waker::Interrupt(_) => k.here.in_interrupt.set(1),
            Waker::Other(_) => k.here.current.set(&raw const *k.nobody),
        }
        WAKE_TTWU | if matches!(by, Waker::Sleeper(_)) { WAKE_SYNC } else { 0 }
    }

    /// The task that runs on `cpu` goes to sleep; the CPU chooses at once.
    pub fn block(&mut self, cpu: usize, now: u64) {
        let k = &*self.inner;
        k.stand_on(cpu, now);
        let curr = k.state.borrow().rqs[cpu].curr;
        if let Some(task) = curr {
            k.dequeue(task, DEQ_SLEEP);
            k.choose(cpu);
        }
        self.carry_out_kicks();
    }

    /// `cpu` chooses what to run, if it was told to.
    pub fn schedule(&mut self, cpu: usize, now: u64) {
        let k = &*self.inner;
        k.stand_on(cpu, now);
        if k.state.borrow().rqs[cpu].resched {
            k.choose(cpu);
        }
        self.carry_out_kicks();
    }

    /// A thread of a higher class, such as a real-time one, takes `cpu` until it is given back.
    #[cfg(test)]
    pub(crate) fn take_cpu(&mut self, cpu: usize, now: u64) {
        self.inner.stand_on(cpu, now);
        self.inner.give_away(cpu);
        self.carry_out_kicks();
    }

    /// `cpu` chooses among the tasks of this class again.
    #[cfg(test)]
    pub(crate) fn give_cpu_back(&mut self, cpu: usize, now: u64) {
        self.inner.stand_on(cpu, now);
        let state = &mut *self.inner.state.borrow_mut();
        state.rqs[cpu].taken = false;
        state.resched(cpu);
    }

    /// A clock tick of a CPU (task_tick_scx), and the watchdog's.
    pub fn tick(&mut self, cpu: usize, now: u64) {
        let k = &*self.inner;
        k.stand_on(cpu, now);
        let curr = k.state.borrow().rqs[cpu].curr;
        if let Some(task) = curr {
            k.charge(cpu);
            let force = k.ordered(task, Call::Tick);
            if let Some(tick) = k.ops.tick.filter(|_| force) {
                // SAFETY: the operation is the scheduler's, called as the kernel does.
                k.call(Context::Other, || unsafe { tick(k.pointer(task)) });
            }
            if k.tasks[task].scx.slice.get() == 0 {
                k.state.borrow_mut().resched(cpu);
            }
        }
        self.watch(now);
        self.carry_out_kicks();
    }

    /// A runnable task that does not run for too long ends the scheduler (check_rq_for_timeouts).
    fn watch(&mut self, now: u64) {
        let k = &*self.inner;
        let timeout = u64::from(k.ops.timeout_ms) * 1_000_000;
        let state = &mut *k.state.borrow_mut();
        if timeout == 0 || now < state.looked + timeout / 2 {
            return;
        }
        state.looked = now;
        let stuck = |info: &crate::state::Info| {
            info.stand == Stand::Waiting && now.saturating_sub(info.since) > timeout
        };
        if let Some(task) = state.tasks.iter().position(stuck) {
            let (cpu, ms) = (state.tasks[task].cpu, (now - state.tasks[task].since) / 1_000_000);
            state.eject(format!("task {task} of CPU {cpu} did not run for {ms} ms"));
        }
    }

    /// The task that runs on `cpu` yields, in favour of another if one is named (yield_to and
    /// sched_yield, kernel/sched/syscalls.c). Whether its CPU chooses again.
    pub fn yield_to(&mut self, cpu: usize, to: Option<usize>, now: u64) -> bool {
        let k = &*self.inner;
        k.stand_on(cpu, now);
        let curr = k.state.borrow().rqs[cpu].curr;
        let Some(from) = curr else { return false };
        let other = to.map(|to| k.state.borrow().tasks[to].cpu);
        if let (Some(to), Some(other)) = (to, other) {
            let state = k.state.borrow();
            let alone = state.rqs[cpu].runnable == 1 && state.rqs[other].runnable == 1;
            if alone || state.tasks[to].stand != Stand::Waiting {
                return false;
            }
        }
        let force = k.ordered(from, Call::Yield);
        let yielded = match k.ops.yield_to.filter(|_| force) {
            Some(yield_to) => {
                let named = to.map_or(ptr::null(), |to| k.pointer(to));
                // SAFETY: the operation is the scheduler's, called as the kernel does.
                k.call(Context::Other, || unsafe { yield_to(k.pointer(from), named) })
            }
            None => {
                if to.is_none() {
                    k.tasks[from].scx.slice.set(0);
                }
                false
            }
        };
        // sched_yield always schedules; yield_to only when the class says so, and kicks the target.
        let again = yielded || to.is_none();
        {
            let state = &mut *k.state.borrow_mut();
            if let Some(other) = other.filter(|other| yielded && *other != cpu) {
                state.resched(other);
            }
            if again {
                state.resched(cpu);
            }
        }
        self.carry_out_kicks();
        again
    }

    /// A task has another nice value or policy: this weight, 100 for nice 0 and 1 for SCHED_IDLE.
    #[cfg(test)]
    pub(crate) fn set_weight(&mut self, task: usize, weight: u32) {
        let k = &*self.inner;
        k.tasks[task].scx.weight.set(weight);
        if let Some(set_weight) = k.ops.set_weight {
            k.ordered(task, Call::SetWeight);
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            k.call(Context::Other, || unsafe { set_weight(k.pointer(task), weight) });
        }
    }

    /// A task is in another cgroup (`struct shim_group`); the scheduler finds out when the task runs.
    pub(crate) fn set_group(&mut self, task: usize, group: u32) {
        self.inner.tasks[task].group.set(group);
    }

    /// A task may use other CPUs from now on (__set_cpus_allowed_ptr). It is moved if it must.
    pub fn set_affinity(&mut self, task: usize, allowed: &CpuMask, now: u64) {
        let k = &*self.inner;
        let (cpu, stand) = {
            let state = k.state.borrow();
            (state.tasks[task].cpu, state.tasks[task].stand)
        };
        if stand == Stand::New {
            // The scheduler does not know it yet.
            k.allowed[task].copy(allowed);
            k.tasks[task].nr_cpus_allowed.set(allowed.count() as i32);
            return;
        }
        k.stand_on(cpu, now);
        let runs = stand == Stand::Running;
        let queued = runs || stand == Stand::Waiting;
        if queued {
            k.dequeue(task, DEQ_SCHED_CHANGE);
        }
        k.allowed[task].copy(allowed);
        k.tasks[task].nr_cpus_allowed.set(allowed.count() as i32);
        self.tell_cpumask(task);
        let k = &*self.inner;
        if queued {
            k.state.borrow_mut().held = runs.then_some(task);
            k.enqueue(task, 0);
            k.state.borrow_mut().held = None;
        }
        if runs {
            k.set_next(cpu, Some(task));
        }
        let there = k.state.borrow().tasks[task].cpu;
        if queued && !k.may_use(task, there) {
            self.push_out(task);
        }
        self.carry_out_kicks();
    }

    /// The stopper moves a task away from a CPU that it may not use any more (migration_cpu_stop).
    fn push_out(&mut self, task: usize) {
        let k = &*self.inner;
        let cpu = k.state.borrow().tasks[task].cpu;
        if k.state.borrow().rqs[cpu].curr == Some(task) {
            k.stopping(task, true);
            let state = &mut *k.state.borrow_mut();
            state.rqs[cpu].curr = None;
            state.resched(cpu);
        }
        let Some(to) = k.any(&k.allowed[task], &k.online) else { return };
        k.release(task, 0, false);
        {
            let state = &mut *k.state.borrow_mut();
            state.unqueue(task);
            state.set_cpu(task, to);
        }
        k.hand_over(task, 0);
        let state = &mut *k.state.borrow_mut();
        if state.rqs[to].curr.is_none() {
            state.resched(to);
        }
    }

    /// When the first of the scheduler's timers is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        self.inner.state.borrow().timers.first().map(|timer| timer.at)
    }

    /// Calls the first timer of the scheduler that is due, on this CPU; whether there was one.
    pub fn fire_timer(&mut self, cpu: usize, now: u64) -> bool {
        let k = &*self.inner;
        k.stand_on(cpu, now);
        k.here.in_interrupt.set(1);
        let timer = {
            let timers = &mut k.state.borrow_mut().timers;
            if timers.first().is_none_or(|timer| timer.at > now) {
                return false;
            }
            timers.remove(0)
        };
        type Callback = unsafe extern "C" fn(*mut c_void, *mut i32, *mut c_void) -> i32;
        let mut key = 0;
        // SAFETY: the address is that of the callback that the scheduler named for this timer, whose
        // type BPF fixes.
        k.call(Context::Other, || unsafe {
            let callback = std::mem::transmute::<*const c_void, Callback>(
                ptr::with_exposed_provenance(timer.callback),
            );
            callback(
                ptr::with_exposed_provenance_mut(timer.map),
                &mut key,
                ptr::with_exposed_provenance_mut(timer.timer),
            )
        });
        self.carry_out_kicks();
        true
    }

    /// Has another CPU claim this idle one between the next `ops.dispatch` that finds nothing and the `ops.enqueue`
    /// of who ran: here CPUs choose one after the other, on a machine at once.
    #[cfg(test)]
    pub(crate) fn claims_between(&mut self, cpu: usize) {
        self.inner.state.borrow_mut().rival = Some(cpu);
    }

    /// Carries out kicks (kick_cpus_irq_workfn).
    fn carry_out_kicks(&mut self) {
        let k = &*self.inner;
        let state = &mut *k.state.borrow_mut();
        for at in 0..state.kicks.len() {
            let (cpu, flags) = state.kicks[at];
            let curr = state.rqs[cpu].curr;
            if flags & KICK_IDLE != 0 && curr.is_some() {
                continue;
            }
            if let Some(curr) = curr.filter(|_| flags & KICK_PREEMPT != 0) {
                k.tasks[curr].scx.slice.set(0);
            }
            state.resched(cpu);
        }
        state.kicks.clear();
        if let Some(bug) = state.bug.take() {
            // Not the scheduler's fault, nor the caller's.
            panic!("the kernel cannot do this: {bug}");
        }
    }

    /// A CPU that was told to choose again since the last call, if there is one left.
    pub fn take_resched(&mut self) -> Option<usize> {
        let state = &mut *self.inner.state.borrow_mut();
        loop {
            let cpu = state.resched.pop()?;
            if state.rqs[cpu].resched {
                return Some(cpu);
            }
        }
    }

    /// Whether a CPU shall choose again.
    #[must_use]
    pub fn wants_schedule(&self, cpu: usize) -> bool {
        self.inner.state.borrow().rqs[cpu].resched
    }

    /// A task that may be in another queue than before, with the CPU whose run queue it belongs to.
    pub fn take_moved(&mut self) -> Option<(usize, usize)> {
        let state = &mut *self.inner.state.borrow_mut();
        let task = state.moved.pop()?;
        Some((task, state.tasks[task].cpu))
    }

    /// What runs on a CPU.
    #[must_use]
    pub fn current(&self, cpu: usize) -> Option<usize> {
        self.inner.state.borrow().rqs[cpu].curr
    }

    /// What the scheduler asked of a CPU, of 1024.
    #[cfg(test)]
    pub(crate) fn performance(&self, cpu: usize) -> u32 {
        self.inner.state.borrow().rqs[cpu].performance
    }

    /// Why the kernel threw the scheduler out, if it did: since then tasks run in turn, in slices of
    /// 20 ms, from one queue.
    #[must_use]
    pub fn ejected(&self) -> Option<String> {
        self.inner.state.borrow().ejected.clone()
    }

    /// Whether the scheduler takes a CPU for idle.
    #[must_use]
    pub fn is_idle(&self, cpu: usize) -> bool {
        self.inner.idle.has(cpu)
    }

    /// Whether it takes the whole core of a CPU for idle.
    #[must_use]
    pub fn is_core_idle(&self, cpu: usize) -> bool {
        if self.inner.smt { self.inner.idle_cores.has(cpu) } else { self.inner.idle.has(cpu) }
    }

    /// A task as the scheduler sees it.
    #[must_use]
    pub fn task(&self, task: usize) -> &TaskStruct {
        &self.inner.tasks[task]
    }

    /// Events since the last call, oldest first.
    pub fn take_events(&mut self) -> Vec<SchedulerEvent> {
        self.inner.events.borrow_mut().drain(..).collect()
    }
}
