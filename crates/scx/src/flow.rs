//! What the kernel does with a task between two operations of the scheduler: enqueue, dequeue, moves
//! between queues, and what runs next (kernel/sched/ext.c, Linux 6.12 to 7.2).
//!
//! ```text
//!  wake -> select_cpu -> runnable -> enqueue -> [a queue] -> dispatch -> running -> tick ...
//!             |              (skipped: sent already)             ^          |
//!             +--sent to a queue------------------------------->-+       stopping -> quiescent
//!                                                                           +-> enqueue
//! ```

use crate::abi::{
    DEQ_SLEEP, ENQ_CPU_SELECTED, ENQ_HEAD, ENQ_LAST, ENQ_PREEMPT, OPS_ENQ_LAST, SLICE_DFL,
    TASK_QUEUED, Task,
};
use crate::inner::{Inner, Release};
use crate::order::{Call, Stand};
use crate::state::{Context, Queue, Sent};
use std::ptr;

/// How often a CPU asks `ops.dispatch` again when what it got may not run there (SCX_DSP_MAX_LOOPS).
const LOOPS: u32 = 32;

impl Inner {
    pub(crate) fn pointer(&self, task: usize) -> Task {
        &raw const self.tasks[task]
    }

    // --- coming and going ---

    /// The tasks that have been made and have not ended.
    pub(crate) fn tasks_there(&self) -> Vec<usize> {
        let state = self.state.borrow();
        (0..self.tasks.len()).filter(|task| !state.tasks[*task].left_out).collect()
    }

    /// The scheduler gets to know a task; what it answers.
    pub(crate) fn init_task(&self, task: usize, fork: bool) -> i32 {
        self.ordered(task, Call::InitTask);
        let Some(init_task) = self.ops.init_task else { return 0 };
        let mut args = crate::abi::InitTaskArgs { fork };
        // SAFETY: the operation is the scheduler's, called as the kernel does.
        self.call(Context::Other, || unsafe { init_task(self.pointer(task), &mut args) })
    }

    /// The scheduler is done with a task (scx_exit_task).
    pub(crate) fn take_out(&self, task: usize) {
        let p = self.pointer(task);
        self.ordered(task, Call::Disable);
        if let Some(disable) = self.ops.disable {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { disable(p) });
        }
        self.ordered(task, Call::ExitTask);
        if let Some(exit_task) = self.ops.exit_task {
            let mut args = crate::abi::ExitTaskArgs { cancelled: false };
            // SAFETY: as above.
            self.call(Context::Other, || unsafe { exit_task(p, &mut args) });
        }
    }

    // --- leaving the scheduler's custody ---

    /// The scheduler is not responsible for a task any more.
    pub(crate) fn release(&self, task: usize, flags: u64, dispatched: bool) {
        let (before, queued) = {
            let info = &mut self.state.borrow_mut().tasks[task];
            (std::mem::take(&mut info.custody), info.on.is_some())
        };
        // Before 7.1 the kernel reports only tasks that are in the scheduler's own data, not in one of its queues.
        if !before || self.release == Release::V6_12 && (dispatched || queued) {
            return;
        }
        if let Some(dequeue) = self.ops.dequeue
            && self.ordered(task, Call::Dequeue)
        {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { dequeue(self.pointer(task), flags) });
        }
    }

    // --- into queues ---

    /// Puts a task into a queue (dispatch_enqueue).
    pub(crate) fn put_into(&self, task: usize, queue: Queue, flags: u64, ordered: bool) {
        if !matches!(queue, Queue::User(_)) {
            self.release(task, 0, true);
        }
        let state = &mut *self.state.borrow_mut();
        let vtime = self.tasks[task].scx.dsq_vtime.get();
        let head = flags & (ENQ_HEAD | ENQ_PREEMPT) != 0;
        let fits = state.queue_mut(queue).map(|dsq| match ordered {
            true => dsq.insert(task, vtime),
            false => dsq.push(task, head),
        });
        if fits != Some(true) {
            state.eject(format!("queue {queue:?} is missing, or of the other kind"));
            state.global.push(task, false);
            state.tasks[task].on = Some(Queue::Global);
            return;
        }
        state.tasks[task].on = Some(queue);
        state.tasks[task].custody |= matches!(queue, Queue::User(_));
        state.moved.push(task);
        let Queue::Local(cpu) = queue else { return };
        let curr = state.rqs[cpu].curr;
        if flags & ENQ_PREEMPT != 0
            && let Some(curr) = curr.filter(|curr| *curr != task)
        {
            self.tasks[curr].scx.slice.set(0);
            state.resched(cpu);
        }
        if curr.is_none() {
            state.resched(cpu);
        }
    }

    /// Puts a task into a CPU's local queue, wherever it was (dispatch_to_local_dsq).
    pub(crate) fn put_local(&self, task: usize, cpu: usize, flags: u64) {
        let own = self.state.borrow().tasks[task].cpu;
        if own != cpu {
            if let Err(why) = self.may_move(task, cpu) {
                let what = format!("task {task} {why} CPU {cpu}, but was sent there");
                self.state.borrow_mut().eject(what);
                self.put_into(task, Queue::Global, flags, false);
                return;
            }
            self.release(task, 0, true);
            self.state.borrow_mut().set_cpu(task, cpu);
        }
        self.put_into(task, Queue::Local(cpu), flags, false);
    }

    /// Whether a task may go to another CPU's run queue (task_can_run_on_remote_rq); else why not. A look through a queue asks
    /// for each task: nothing is allocated.
    pub(crate) fn may_move(&self, task: usize, cpu: usize) -> Result<(), &'static str> {
        if self.tasks[task].migration_disabled.get() > 0 {
            return Err("may not be moved now to");
        }
        if !self.may_use(task, cpu) {
            return Err("may not use");
        }
        Ok(())
    }

    /// Carries out where the scheduler sent a task (direct_dispatch, finish_dispatch).
    pub(crate) fn send(&self, task: usize, sent: Sent, flags: u64) {
        let own = self.state.borrow().tasks[task].cpu;
        let queue = self.state.borrow().resolve(sent.dsq, own);
        match queue {
            Some(Queue::Local(cpu)) => self.put_local(task, cpu, sent.flags | flags),
            Some(queue) => self.put_into(task, queue, sent.flags | flags, sent.ordered),
            None => {
                let why = format!("task {task} was sent to queue {:#x}, which is none", sent.dsq);
                self.state.borrow_mut().eject(why);
                self.put_into(task, Queue::Global, flags, false);
            }
        }
    }

    // --- becoming runnable ---

    /// Asks for the CPU of a task that wakes up or is new (select_task_rq). Flags for what follows.
    pub(crate) fn select(&self, task: usize, wake_flags: u64) -> u64 {
        let this = &self.tasks[task];
        let fallback = || self.allowed[task].first_common(&self.online, 0);
        let before = self.state.borrow().tasks[task].cpu;
        let movable = this.nr_cpus_allowed.get() > 1 && this.migration_disabled.get() == 0;
        let bypass = self.state.borrow().ejected.is_some();
        let (cpu, flags) = match self.ops.select_cpu.filter(|_| movable && !bypass) {
            Some(select_cpu) => {
                self.ordered(task, Call::SelectCpu);
                // SAFETY: the operation is the scheduler's, called as the kernel does.
                let answer = self.call(Context::Select(task), || unsafe {
                    select_cpu(self.pointer(task), before as i32, wake_flags)
                });
                let cpu = usize::try_from(answer).ok().filter(|cpu| *cpu < self.machine.core.len());
                if cpu.is_none() {
                    self.state.borrow_mut().eject(format!("select_cpu answered CPU {answer}"));
                }
                (cpu.unwrap_or(before), ENQ_CPU_SELECTED)
            }
            None if movable => (self.idle_for(task, before), ENQ_CPU_SELECTED),
            None => (fallback().unwrap_or(before), 0),
        };
        let cpu = if self.may_use(task, cpu) { cpu } else { fallback().unwrap_or(cpu) };
        self.state.borrow_mut().set_cpu(task, cpu);
        flags
    }

    /// An idle CPU or the one it was on, as the kernel chooses itself; sends it there.
    fn idle_for(&self, task: usize, before: usize) -> usize {
        let allowed = &self.allowed[task];
        let own = allowed.has(before) && self.claim_idle(before);
        let Some(cpu) = own.then_some(before).or_else(|| self.pick_idle(allowed, 0)) else {
            return before;
        };
        self.tasks[task].scx.slice.set(SLICE_DFL);
        let sent = Sent { dsq: crate::abi::DSQ_LOCAL, flags: 0, ordered: false };
        self.state.borrow_mut().tasks[task].sent = Some(sent);
        cpu
    }

    /// A task becomes runnable on its CPU (enqueue_task_scx).
    pub(crate) fn enqueue(&self, task: usize, flags: u64) {
        self.tasks[task].scx.flags.set(TASK_QUEUED);
        let cpu = {
            let state = &mut *self.state.borrow_mut();
            let cpu = state.tasks[task].cpu;
            state.rqs[cpu].runnable += 1;
            state.tasks[task].since = self.now();
            cpu
        };
        let force = self.ordered(task, Call::Runnable);
        if let Some(runnable) = self.ops.runnable.filter(|_| force) {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { runnable(self.pointer(task), flags) });
        }
        if self.state.borrow().held == Some(task) {
            // What runs is restored without ops.enqueue, for it is set to run at once (its sticky_cpu).
            self.put_into(task, Queue::Local(cpu), 0, false);
            return;
        }
        self.hand_over(task, flags);
        // wakeup_preempt: what runs is of a lower class, the idle one.
        let state = &mut *self.state.borrow_mut();
        if state.rqs[cpu].curr.is_none() {
            state.resched(cpu);
        }
    }

    /// The scheduler is asked what to do with a runnable task (do_enqueue_task).
    pub(crate) fn hand_over(&self, task: usize, flags: u64) {
        let sent = self.state.borrow_mut().tasks[task].sent.take();
        if let Some(sent) = sent {
            self.send(task, sent, flags);
            return;
        }
        let bypass = self.state.borrow().ejected.is_some();
        let own = self.state.borrow().tasks[task].cpu;
        if self.tasks[task].migration_disabled.get() > 0 {
            self.tasks[task].scx.slice.set(SLICE_DFL);
            self.put_into(task, Queue::Local(own), flags, false);
            return;
        }
        let Some(enqueue) = self.ops.enqueue.filter(|_| !bypass) else {
            self.tasks[task].scx.slice.set(SLICE_DFL);
            self.put_into(task, Queue::Global, flags, false);
            if let Some(idle) = self.pick_idle(&self.allowed[task], 0).filter(|_| bypass) {
                self.state.borrow_mut().resched(idle);
            }
            return;
        };
        self.ordered(task, Call::Enqueue);
        // SAFETY: the operation is the scheduler's, called as the kernel does.
        self.call(Context::Enqueue(task), || unsafe { enqueue(self.pointer(task), flags) });
        let sent = self.state.borrow_mut().tasks[task].sent.take();
        match sent {
            Some(sent) => self.send(task, sent, flags),
            None => self.state.borrow_mut().tasks[task].custody = true,
        }
    }

    // --- leaving the run queue ---

    /// A task leaves its run queue (dequeue_task_scx).
    pub(crate) fn dequeue(&self, task: usize, flags: u64) {
        self.release(task, if flags & DEQ_SLEEP != 0 { 0 } else { flags }, false);
        let cpu = self.state.borrow().tasks[task].cpu;
        if self.state.borrow().rqs[cpu].curr == Some(task) {
            self.charge(cpu);
            self.stopping(task, false);
        }
        self.state.borrow_mut().unqueue(task);
        let force = self.ordered(task, Call::Quiescent);
        if let Some(quiescent) = self.ops.quiescent.filter(|_| force) {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { quiescent(self.pointer(task), flags) });
        }
        self.tasks[task].scx.flags.set(0);
        self.state.borrow_mut().rqs[cpu].runnable -= 1;
    }

    pub(crate) fn stopping(&self, task: usize, runnable: bool) {
        let force = self.ordered(task, Call::Stopping { runnable });
        if let Some(stopping) = self.ops.stopping.filter(|_| force) {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { stopping(self.pointer(task), runnable) });
        }
    }

    // --- what runs ---

    /// A CPU chooses what to run (__schedule); what ran before may have left the run queue.
    pub(crate) fn choose(&self, cpu: usize) {
        if self.state.borrow().rqs[cpu].taken {
            self.state.borrow_mut().rqs[cpu].resched = false;
            return;
        }
        let before = self.state.borrow().rqs[cpu].curr;
        self.charge(cpu);
        let next = self.pick(cpu, before);
        if next != before || next.is_none() {
            if let Some(before) = before {
                self.put_prev(cpu, before, next);
            }
            self.set_next(cpu, next);
        }
        self.state.borrow_mut().rqs[cpu].resched = false;
    }

    /// balance_one and pick_task_scx.
    fn pick(&self, cpu: usize, before: Option<usize>) -> Option<usize> {
        let queued = |task: &usize| self.tasks[*task].scx.flags.get() & TASK_QUEUED != 0;
        let on = before.filter(queued);
        let goes_on = || on.filter(|task| self.tasks[*task].scx.slice.get() > 0);
        if let Some(task) = goes_on() {
            return Some(task);
        }
        let mut loops = LOOPS;
        loop {
            if let Some(task) = self.ready(cpu) {
                return Some(task);
            }
            let bypass = self.state.borrow().ejected.is_some();
            let Some(dispatch) = self.ops.dispatch.filter(|_| !bypass && loops > 0) else { break };
            loops -= 1;
            self.state.borrow_mut().dispatched = 0;
            let prev = before.map_or(ptr::null(), |task| self.pointer(task));
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Dispatch(cpu), || unsafe { dispatch(cpu as i32, prev) });
            self.flush();
            if let Some(task) = goes_on() {
                return Some(task);
            }
            if self.state.borrow().dispatched == 0 {
                break;
            }
        }
        let next = self.ready(cpu);
        let last = self.ops.flags & OPS_ENQ_LAST == 0 || self.state.borrow().ejected.is_some();
        let next = next.or(on.filter(|_| last))?;
        let slice = &self.tasks[next].scx.slice;
        if slice.get() == 0 {
            slice.set(SLICE_DFL);
        }
        Some(next)
    }

    /// The first of the CPU's own queue, filled from the global one.
    fn ready(&self, cpu: usize) -> Option<usize> {
        let first = || self.state.borrow().rqs[cpu].local.first();
        if first().is_none() {
            self.consume(cpu, Queue::Global);
        }
        let task = first()?;
        let slice = &self.tasks[task].scx.slice;
        if slice.get() == 0 {
            slice.set(SLICE_DFL);
        }
        Some(task)
    }

    /// Moves the first task that may run on `cpu` to its local queue (consume_dispatch_q).
    pub(crate) fn consume(&self, cpu: usize, queue: Queue) -> bool {
        let mut at = 0;
        loop {
            let (task, own) = {
                let state = self.state.borrow();
                let Some(task) = state.queue(queue).and_then(|dsq| dsq.at(at)) else {
                    return false;
                };
                (task, state.tasks[task].cpu == cpu)
            };
            if own || self.may_move(task, cpu).is_ok() {
                self.state.borrow_mut().unqueue(task);
                self.put_local(task, cpu, 0);
                return true;
            }
            at += 1;
        }
    }

    /// Carries out what `ops.dispatch` inserted.
    pub(crate) fn flush(&self) {
        let buffer = std::mem::take(&mut self.state.borrow_mut().buffer);
        self.state.borrow_mut().dispatched += buffer.len() as u32;
        for (task, sent) in &buffer {
            // A task that was dequeued meanwhile is not there any more.
            let waits = {
                let state = self.state.borrow();
                let info = &state.tasks[*task];
                info.stand == Stand::Waiting && info.on.is_none() && info.custody
            };
            if waits {
                self.send(*task, *sent, 0);
            }
        }
        let mut kept = buffer;
        kept.clear();
        self.state.borrow_mut().buffer = kept;
    }

    /// put_prev_task_scx.
    fn put_prev(&self, cpu: usize, task: usize, next: Option<usize>) {
        if self.tasks[task].scx.flags.get() & TASK_QUEUED == 0 {
            return;
        }
        self.stopping(task, true);
        self.state.borrow_mut().tasks[task].since = self.now();
        if self.tasks[task].scx.slice.get() > 0 {
            self.put_into(task, Queue::Local(cpu), ENQ_HEAD, false);
        } else {
            if next.is_none()
                && let Some(rival) = self.state.borrow_mut().rival.take()
            {
                self.set_idle(rival, false);
            }
            self.hand_over(task, if next.is_none() { ENQ_LAST } else { 0 });
        }
    }

    /// A CPU goes over to a thread of a higher class: what runs stays runnable (put_prev_task_scx).
    #[cfg(test)]
    pub(crate) fn give_away(&self, cpu: usize) {
        self.charge(cpu);
        let before = self.state.borrow().rqs[cpu].curr;
        match before {
            Some(task) => self.put_prev(cpu, task, Some(task)),
            None => {
                self.set_idle(cpu, false);
                self.tell_idle(cpu, false);
            }
        }
        let rq = &mut self.state.borrow_mut().rqs[cpu];
        (rq.curr, rq.taken) = (None, true);
    }

    /// A CPU begins or ends to idle (update_idle, of transitions only: kernel/sched/ext_idle.c).
    fn tell_idle(&self, cpu: usize, idle: bool) {
        let in_force = self.state.borrow().ejected.is_none();
        if let Some(update_idle) = self.ops.update_idle.filter(|_| in_force) {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { update_idle(cpu as i32, idle) });
        }
    }

    /// set_next_task_scx, or of the idle class.
    pub(crate) fn set_next(&self, cpu: usize, next: Option<usize>) {
        let was_idle =
            std::mem::replace(&mut self.state.borrow_mut().rqs[cpu].curr, next).is_none();
        self.set_idle(cpu, next.is_none());
        if was_idle != next.is_none() {
            self.tell_idle(cpu, next.is_none());
        }
        let Some(task) = next else { return };
        self.release(task, 0, false);
        {
            let state = &mut *self.state.borrow_mut();
            state.unqueue(task);
            state.rqs[cpu].charged = self.now();
            state.moved.push(task);
        }
        let force = self.ordered(task, Call::Running);
        if let Some(running) = self.ops.running.filter(|_| force) {
            // SAFETY: the operation is the scheduler's, called as the kernel does.
            self.call(Context::Other, || unsafe { running(self.pointer(task)) });
        }
    }
}
