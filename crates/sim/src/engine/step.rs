//! One operation of a thread's program: what it begins, whom it wakes, what it waits for.

use super::{Engine, Limit, State};
use crate::context::{TaskState, Waker};
use crate::guest::program::{Op, Waiting};
use crate::params::ONE;

/// What an adaptive wait spins at least: glibc's 10 rounds.
const ADAPTIVE_LEAST: u64 = 500;

impl Engine {
    /// The thread computes `ns` nanoseconds of work.
    pub(super) fn begin_work(&mut self, thread: u32, ns: u64) {
        let thread = &mut self.threads[thread as usize];
        thread.left = ns.saturating_mul(ONE);
        thread.state = State::Work;
    }

    /// Carries out the next operation of the thread that runs on `cpu`.
    pub(super) fn step(&mut self, cpu: usize, thread: u32) {
        let state = &mut self.threads[thread as usize];
        let (vm, number) = (state.vm, state.number);
        let wakes_at = std::mem::take(&mut state.wakes_at);
        if wakes_at != 0 {
            self.tally[vm].late(self.ctx.now.saturating_sub(wakes_at));
        }
        let program = &self.programs[vm][state.program];
        let Some(op) = program.get(state.at as usize).copied() else {
            self.end_thread(thread);
            return;
        };
        state.at += 1;
        match op {
            Op::Work { ns, spread } => {
                let ns = self.ctx.rng.around(ns, spread);
                if ns > 0 {
                    self.begin_work(thread, ns);
                }
            }
            Op::Burn => state.state = State::Burn,
            Op::Barrier { barrier, wait } => self.barrier(cpu, thread, barrier as usize, wait),
            Op::Lock { lock, wait } => self.lock(cpu, thread, lock as usize, wait),
            Op::Unlock { lock } => self.unlock(cpu, thread, lock as usize),
            Op::Push { queue } => self.push(cpu, thread, queue as usize),
            Op::Pop { queue } => self.pop(cpu, thread, queue as usize),
            Op::Sleep { ns, spread } | Op::Io { ns, spread } => {
                let ns = self.ctx.rng.around(ns, spread);
                self.sleep_until(cpu, thread, self.ctx.now.saturating_add(ns));
            }
            Op::Periodic { ns } => self.periodic(cpu, thread, ns.max(1)),
            Op::Turn { of, rotating, skip } => {
                let turn = if rotating { state.round % u64::from(of.max(1)) } else { 0 };
                state.round += 1;
                if turn != u64::from(number) {
                    state.at += skip;
                }
            }
            Op::Steal { pool } => self.join_pool(thread, pool as usize),
            Op::Count { units } if state.measured => self.tally[vm].units += units,
            Op::Count { .. } => {}
            Op::Jump { to } => state.at = to,
            Op::Again { times, to } => {
                state.rounds += 1;
                if state.rounds < times {
                    state.at = to;
                }
            }
            Op::End => self.end_thread(thread),
        }
    }

    /// The thread has done all that it had to do.
    fn end_thread(&mut self, thread: u32) {
        let state = &mut self.threads[thread as usize];
        state.state = State::Done;
        let run = &mut self.runs[state.vm];
        run.threads -= u32::from(state.measured);
        if state.measured && run.threads == 0 {
            run.took = Some(self.ctx.now - run.began);
        }
    }

    /// `cpu` uses a cache line that `writer` wrote last: one under its own cache, or, farther away, of the
    /// caches of another node, which takes as long as that node's memory does.
    pub(super) fn take_line(&mut self, cpu: usize, writer: Option<usize>) {
        let (host, near) = (&self.ctx.host, self.params.costs.line);
        let far = writer.filter(|writer| host.llc[*writer] != host.llc[cpu]);
        let paths = self.speed.paths();
        let far = far.map_or(0, |other| paths.unloaded(host.node[cpu], host.node[other]));
        self.cost(cpu, near.max(far));
    }

    /// The thread waits for others from now on.
    fn wait(&mut self, cpu: usize, thread: u32, wait: Waiting) {
        let this = &mut self.threads[thread as usize];
        if let Waiting::Adaptive(limit) = wait {
            this.spin = (this.usual * 2 + ADAPTIVE_LEAST).min(limit.max(1));
        }
        let adaptive = this.spin;
        let spin = |left, limit| (left, State::Spin(limit));
        let window = self.params.ple_window;
        let caught =
            window > 0 && !self.bare && !self.ctx.vms[self.threads[thread as usize].vm].service;
        let (left, what) = match wait {
            Waiting::Block => (0, State::Asleep),
            Waiting::SpinBlock(limit) => spin(limit.max(1), Limit::Sleep),
            Waiting::Adaptive(_) => spin(adaptive, Limit::Sleep),
            Waiting::KernelSpin if caught => spin(window, Limit::Caught),
            Waiting::Spin if caught && self.params.ple_user => spin(window, Limit::Caught),
            Waiting::Spin | Waiting::KernelSpin => spin(u64::MAX, Limit::Caught),
        };
        let state = &mut self.threads[thread as usize];
        (state.left, state.state) = (left, what);
        if what == State::Asleep {
            state.due = self.ctx.now;
            let task = state.task;
            self.cost(cpu, self.params.costs.futex);
            self.sched.sync_wait(&mut self.ctx, task);
        }
    }

    /// The thread that runs on `cpu` ended the wait of `other`.
    fn release(&mut self, cpu: usize, thread: u32, other: u32) {
        if self.threads[other as usize].state == State::Asleep {
            self.cost(cpu, self.params.costs.futex);
            self.wake_sleeper(cpu, thread, other);
        } else {
            let own = self.threads[thread as usize].task;
            self.ready.push_back((other, Waker::Sibling(own)));
        }
    }

    /// The thread that runs on `cpu` has called the kernel to wake `other`.
    fn wake_sleeper(&mut self, cpu: usize, thread: u32, other: u32) {
        let own = self.threads[thread as usize].task;
        let (vcpu, vm) = (self.threads[other as usize].task, self.threads[other as usize].vm);
        let blocked = self.ctx.tasks[vcpu.ix()].state == TaskState::Blocked;
        if blocked && !self.bare && vcpu != own {
            self.cost(cpu, self.params.costs.ipi_exit);
        }
        self.sched.sync_wake(&mut self.ctx, vm);
        self.ready.push_back((other, Waker::Sibling(own)));
    }

    fn barrier(&mut self, cpu: usize, thread: u32, at: usize, wait: Waiting) {
        let vm = self.threads[thread as usize].vm;
        let barrier = &mut self.objects[vm].barriers[at];
        let writer = barrier.writer.replace(cpu);
        barrier.arrived += 1;
        let waits = barrier.arrived < barrier.plan.parties;
        if waits {
            barrier.waiters.push(&mut self.links, thread);
        }
        self.take_line(cpu, writer);
        if waits {
            self.wait(cpu, thread, wait);
            return;
        }
        let barrier = &mut self.objects[vm].barriers[at];
        barrier.arrived = 0;
        let in_turn = barrier.plan.wakes_in_turn;
        while let Some(other) = self.objects[vm].barriers[at].waiters.pop(&self.links) {
            if in_turn && self.threads[other as usize].state == State::Asleep {
                self.objects[vm].barriers[at].sleepers.push(&mut self.links, other);
            } else {
                self.release(cpu, thread, other);
            }
        }
        self.prepare_wake(cpu, thread, at);
    }

    /// The thread begins to wake the next sleeper of a barrier that wakes in turn, if there is one.
    fn prepare_wake(&mut self, cpu: usize, thread: u32, barrier: usize) {
        let this = &mut self.threads[thread as usize];
        let has_more = !self.objects[this.vm].barriers[barrier].sleepers.is_empty();
        this.left = 0;
        this.state = if has_more { State::Waking(barrier as u32) } else { State::Ready };
        if has_more {
            self.cost(cpu, self.params.costs.futex);
        }
    }

    /// The thread has woken the next sleeper of its barrier.
    pub(super) fn wake_next(&mut self, cpu: usize, thread: u32, barrier: usize) {
        let vm = self.threads[thread as usize].vm;
        if let Some(other) = self.objects[vm].barriers[barrier].sleepers.pop(&self.links) {
            self.wake_sleeper(cpu, thread, other);
        }
        self.prepare_wake(cpu, thread, barrier);
    }

    /// A lock that sleeps is taken by the first thread that asks (a woken one tries again); one that spins
    /// serves in order.
    fn lock(&mut self, cpu: usize, thread: u32, at: usize, wait: Waiting) {
        let vm = self.threads[thread as usize].vm;
        let writer = self.objects[vm].locks[at].writer.replace(cpu);
        self.take_line(cpu, writer);
        let lock = &mut self.objects[vm].locks[at];
        if !lock.held {
            lock.held = true;
            return;
        }
        lock.waiters.push(&mut self.links, thread);
        if sleeps(wait) {
            self.threads[thread as usize].at -= 1;
        }
        self.wait(cpu, thread, wait);
    }

    fn unlock(&mut self, cpu: usize, thread: u32, at: usize) {
        let vm = self.threads[thread as usize].vm;
        let lock = &mut self.objects[vm].locks[at];
        let Some(next) = lock.waiters.pop(&self.links) else {
            lock.held = false;
            return;
        };
        // Who sleeps and will try again does not have it yet; who spins or waits in order has.
        let program = self.threads[next as usize].program;
        let at_lock = self.programs[vm][program].get(self.threads[next as usize].at as usize);
        let again = matches!(at_lock, Some(Op::Lock { lock, wait }) if *lock as usize == at && sleeps(*wait));
        let asleep = self.threads[next as usize].state == State::Asleep;
        self.objects[vm].locks[at].held = !(asleep && again);
        if again && !asleep {
            self.threads[next as usize].at += 1;
        }
        self.release(cpu, thread, next);
    }

    fn push(&mut self, cpu: usize, thread: u32, at: usize) {
        let vm = self.threads[thread as usize].vm;
        let writer = self.objects[vm].queues[at].writer.replace(cpu);
        self.take_line(cpu, writer);
        let queue = &mut self.objects[vm].queues[at];
        if queue.items == queue.depth {
            queue.full.push(&mut self.links, thread);
            self.threads[thread as usize].at -= 1;
            self.wait(cpu, thread, Waiting::Block);
            return;
        }
        queue.items += 1;
        if let Some(other) = queue.empty.pop(&self.links) {
            self.release(cpu, thread, other);
        }
    }

    fn pop(&mut self, cpu: usize, thread: u32, at: usize) {
        let vm = self.threads[thread as usize].vm;
        let writer = self.objects[vm].queues[at].writer.replace(cpu);
        self.take_line(cpu, writer);
        let queue = &mut self.objects[vm].queues[at];
        if queue.items == 0 {
            queue.empty.push(&mut self.links, thread);
            self.threads[thread as usize].at -= 1;
            self.wait(cpu, thread, Waiting::Block);
            return;
        }
        queue.items -= 1;
        if let Some(other) = queue.full.pop(&self.links) {
            self.release(cpu, thread, other);
        }
    }

    /// Sleeps until its timer.
    fn sleep_until(&mut self, cpu: usize, thread: u32, at: u64) {
        self.threads[thread as usize].state = State::Asleep;
        self.cost(cpu, self.params.costs.futex);
        self.ctx.timers.arm(self.thread_slot(thread), at);
    }

    /// Sleeps until the next period; periods that passed meanwhile are skipped and counted.
    fn periodic(&mut self, cpu: usize, thread: u32, ns: u64) {
        let now = self.ctx.now;
        let state = &mut self.threads[thread as usize];
        if state.round == 0 {
            state.due = now + self.ctx.rng.below(ns);
        } else {
            self.tally[state.vm].units += u64::from(state.measured);
        }
        state.round += 1;
        state.due += ns * (now.saturating_sub(state.due) / ns + 1);
        state.wakes_at = state.due;
        let due = state.due;
        self.sleep_until(cpu, thread, due);
    }

    /// A thread's timer fires.
    pub(super) fn slept(&mut self, thread: usize) {
        let state = &self.threads[thread];
        let program = &self.programs[state.vm][state.program];
        let by = match (state.at as usize).checked_sub(1).map(|at| program[at]) {
            None => Waker::Start,
            Some(Op::Io { .. }) => Waker::Io,
            Some(_) => Waker::Timer,
        };
        self.ready.push_back((thread as u32, by));
    }
}

/// Whether a thread that waits so sleeps in the end, and tries again when woken.
fn sleeps(wait: Waiting) -> bool {
    matches!(wait, Waiting::Block | Waiting::SpinBlock(_) | Waiting::Adaptive(_))
}
