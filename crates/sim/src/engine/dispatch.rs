//! CPUs and tasks: running, stopping, waking, halting, and what that costs. Carries out what the
//! scheduler picked.

use super::{Engine, Limit, SAMPLE, State};
use crate::context::{StopReason, TaskId, TaskState, Waker};
use crate::guest::kernel;
use crate::params::Profile;
use instep_check::FactKind;

impl Engine {
    /// What `cpu` did until now is done.
    #[inline]
    pub(super) fn account_elapsed(&mut self, cpu: usize) {
        let now = self.ctx.now;
        let state = &mut self.cpus[cpu];
        if now <= state.from {
            return;
        }
        let elapsed = now - state.from;
        state.from = now;
        let Some(task) = self.ctx.running[cpu] else { return };
        let vcpu = &mut self.vcpus[task.ix()];
        if vcpu.queued > 0 {
            vcpu.turn = vcpu.turn.saturating_sub(elapsed);
        }
        let Some(thread) = vcpu.current else { return };
        let thread = &mut self.threads[thread as usize];
        let tally = &mut self.tally[thread.vm];
        match thread.state {
            State::Work | State::Pool => {
                let done = elapsed.saturating_mul(state.speed).min(thread.left);
                thread.left -= done;
                tally.progress += elapsed;
                thread.did += elapsed;
                if thread.state == State::Pool && thread.measured {
                    tally.done += u128::from(done);
                }
            }
            State::Burn => {
                tally.progress += elapsed;
                thread.did += elapsed;
                if thread.measured {
                    tally.done += u128::from(elapsed) * u128::from(state.speed);
                }
            }
            State::Spin(_) => {
                tally.spun += elapsed;
                // What was before warming up ended is of no length.
                let since = (now - elapsed).saturating_sub(self.warmup);
                tally.spins(since, now.saturating_sub(self.warmup));
                if thread.left != u64::MAX {
                    thread.left = thread.left.saturating_sub(elapsed);
                }
            }
            State::Ready | State::Waking(_) | State::Asleep | State::Done => {}
        }
    }

    /// Sets the timer of `cpu` to what ends first. What it did is settled.
    pub(super) fn arm_run(&mut self, cpu: usize) {
        let Some(task) = self.ctx.running[cpu] else {
            self.ctx.timers.cancel(cpu as u32);
            return;
        };
        let state = &self.cpus[cpu];
        let vcpu = &self.vcpus[task.ix()];
        let mut end = state.slice_end;
        match vcpu.current {
            None => end = end.min(self.idles[task.ix()].until),
            Some(thread) => {
                let thread = &self.threads[thread as usize];
                let span = match thread.state {
                    State::Work | State::Pool => thread.left.div_ceil(state.speed),
                    State::Spin(_) => thread.left,
                    State::Burn => u64::MAX,
                    State::Ready | State::Waking(_) | State::Asleep | State::Done => 0,
                };
                end = end.min(state.from.saturating_add(span));
                if vcpu.queued > 0 {
                    end = end.min(state.from.saturating_add(vcpu.turn));
                }
                end = end.min(vcpu.tick_at);
            }
        }
        if end == u64::MAX {
            self.ctx.timers.cancel(cpu as u32);
        } else {
            self.ctx.timers.arm(cpu as u32, end.max(self.ctx.now));
        }
    }

    /// Keeps `cpu` busy with something else than work for `ns`. What it did is settled.
    #[inline]
    pub(super) fn cost(&mut self, cpu: usize, ns: u64) {
        let state = &mut self.cpus[cpu];
        state.from = state.from.max(self.ctx.now) + ns;
    }

    /// Says what `cpu` does now, and asks whom that disturbs for their speed.
    pub(super) fn set_speed(&mut self, cpu: usize) {
        let what = self.ctx.running[cpu].map(|task| {
            let profile = match self.vcpus[task.ix()].current {
                None => Profile::SPIN,
                Some(thread) => match self.threads[thread as usize].state {
                    State::Spin(_) => Profile::SPIN,
                    _ => self.threads[thread as usize].profile,
                },
            };
            (profile, self.ctx.tasks[task.ix()].vm)
        });
        let disturbed = self.speed.set(&self.ctx.host, cpu, what);
        self.cpus[cpu].speed = self.speed.of(&self.ctx.host, cpu);
        if disturbed.core {
            for at in 0..self.ctx.host.siblings[cpu].len() {
                self.rerate(self.ctx.host.siblings[cpu][at]);
            }
        }
        if disturbed.nodes {
            (0..self.cpus.len()).for_each(|other| self.rerate(other));
        } else if disturbed.llc {
            let (llc, mut next) = (self.ctx.host.llc[cpu], 0);
            while let Some(other) = self.ctx.host.llcs[llc].from(next) {
                self.rerate(other);
                next = other + 1;
            }
        }
    }

    pub(super) fn rerate(&mut self, cpu: usize) {
        let speed = self.speed.of(&self.ctx.host, cpu);
        if speed != self.cpus[cpu].speed && self.ctx.running[cpu].is_some() {
            self.account_elapsed(cpu);
            self.cpus[cpu].speed = speed;
            self.arm_run(cpu);
        }
    }

    /// Adds the CPU time that `task` had on `cpu` since it was last charged.
    pub(super) fn charge(&mut self, cpu: usize, task: TaskId) {
        let delta = self.ctx.charge(task);
        self.busy[cpu] += delta;
        if self.warmth.is_on {
            self.warmth.note_run(task, self.ctx.host.llc[cpu], self.ctx.ran(task));
        }
        let vm = self.ctx.tasks[task.ix()].vm;
        let node = self.ctx.host.node[cpu];
        let part = self.memory[vm].get(node).copied().unwrap_or(0);
        let tally = &mut self.tally[vm];
        tally.on_node[node] += delta;
        tally.local += u128::from(delta) * u128::from(part);
    }

    /// The timer of `cpu`: its thread's work, its poll, its turn or its slice is over.
    pub(super) fn run_over(&mut self, cpu: usize) {
        let Some(task) = self.ctx.running[cpu] else { return };
        self.account_elapsed(cpu);
        let now = self.ctx.now;
        let mut armed = false;
        match self.vcpus[task.ix()].current {
            None if now >= self.idles[task.ix()].until => {
                self.block(cpu, task);
                return;
            }
            None => {}
            Some(thread) => {
                self.tick_guest(cpu, task);
                let this = &self.threads[thread as usize];
                let over =
                    this.state == State::Ready || this.state != State::Burn && this.left == 0;
                if over && now >= self.cpus[cpu].from {
                    if !self.segment_over(cpu, thread) {
                        return;
                    }
                    self.proceed(cpu);
                    armed = true;
                } else if self.vcpus[task.ix()].turn == 0 {
                    self.vcpus[task.ix()].rotate(&mut self.links);
                    self.proceed(cpu);
                    armed = true;
                }
            }
        }
        if self.ctx.running[cpu] == Some(task) {
            if now >= self.cpus[cpu].slice_end {
                self.schedule(cpu, StopReason::SliceEnd);
            } else if !armed {
                self.arm_run(cpu);
            }
        }
    }

    /// A CPU's clock tick.
    pub(super) fn tick(&mut self, cpu: usize) {
        let slot = (self.cpus.len() + cpu) as u32;
        let next = self.sched.next_tick(&mut self.ctx);
        self.ctx.timers.arm(slot, self.ctx.now + next);
        if self.ctx.running[cpu].is_some() {
            self.account_elapsed(cpu);
            self.cost(cpu, self.params.costs.tick);
            self.arm_run(cpu);
        }
        self.sched.tick(&mut self.ctx, cpu);
    }

    /// `cpu` chooses what to run.
    pub(super) fn schedule(&mut self, cpu: usize, why: StopReason) {
        let mut before = self.ctx.running[cpu];
        if let Some(task) = before {
            self.account_elapsed(cpu);
            if self.vcpus[task.ix()].current.is_none() {
                // KVM stops polling when something else wants the CPU.
                self.block(cpu, task);
                self.ctx.pending.clear(cpu);
                before = None;
            } else {
                self.charge(cpu, task);
                self.ctx.tasks[task.ix()].state = TaskState::Queued;
                self.ctx.note(FactKind::Stop { task: task.0, cpu: cpu as u32, blocks: false });
                self.sched.put(&mut self.ctx, cpu, task, why);
            }
        }
        let pick = self.sched.pick(&mut self.ctx, cpu);
        let slice_end = pick.map_or(u64::MAX, |pick| self.ctx.now.saturating_add(pick.slice));
        self.cpus[cpu].slice_end = slice_end;
        match (before, pick.map(|pick| pick.task)) {
            (Some(old), Some(new)) if old == new => {
                self.ctx.tasks[new.ix()].state = TaskState::Running;
                self.ctx.note(FactKind::Start { task: new.0, cpu: cpu as u32 });
                self.arm_run(cpu);
            }
            (old, new) => {
                if let Some(old) = old {
                    self.ctx.end(old, cpu, TaskState::Queued);
                    self.host_tally.preemptions += 1;
                }
                match new {
                    Some(new) => self.start(cpu, new, old.is_none()),
                    None => {
                        self.set_speed(cpu);
                        self.ctx.timers.cancel(cpu as u32);
                    }
                }
            }
        }
    }

    /// `task` begins to run on `cpu`.
    fn start(&mut self, cpu: usize, task: TaskId, from_idle: bool) {
        self.ctx.assign(task, cpu);
        self.ctx.begin(task, cpu);
        let costs = &self.params.costs;
        let (idle, host) = (&mut self.idles[task.ix()], &self.ctx.host);
        let mut cost = if from_idle { costs.idle_exit } else { 0 };
        if self.cpus[cpu].last != Some(task) {
            cost += costs.context_switch;
            self.host_tally.switches += 1;
        }
        if let Some(last) = idle.last.filter(|last| *last != cpu) {
            let near = host.llc[last] == host.llc[cpu];
            // What lies in the farther cache is counted below.
            let is_llc = near || self.warmth.is_on;
            cost += if is_llc { costs.migrate_llc } else { costs.migrate_far };
            self.tally[self.ctx.tasks[task.ix()].vm].migrations += 1;
        }
        let is_vcpu = !self.bare && !self.ctx.vms[self.ctx.tasks[task.ix()].vm].service;
        let was_idle = std::mem::take(&mut idle.halted);
        if was_idle && is_vcpu {
            cost += costs.resume;
        }
        idle.last = Some(cpu);
        cost += self.missed_tick(task, was_idle);
        self.cpus[cpu].last = Some(task);
        if self.warmth.is_on {
            cost += self.refill(cpu, task, cost);
        }
        self.cpus[cpu].from = self.ctx.now + cost;
        self.proceed(cpu);
    }

    /// Nanoseconds until the cache of `cpu` is as warm to `task`, which begins to run there, as it left it. Lines come back after
    /// `lead` nanoseconds.
    fn refill(&mut self, cpu: usize, task: TaskId, lead: u64) -> u64 {
        let Some(thread) = self.vcpus[task.ix()].current else { return 0 };
        let (profile, host) = (self.threads[thread as usize].profile, &self.ctx.host);
        let llc = host.llc[cpu];
        // Neighbours that go on running have brought lines in, too.
        for beside in host.llcs[llc].iter().filter(|beside| *beside != cpu) {
            if let Some(other) = self.ctx.running[beside] {
                self.warmth.note_run(other, llc, self.ctx.ran(other));
            }
        }
        let wanted = self.speed.wanted_beside(host, cpu);
        self.warmth.refill(task, llc, profile, (wanted, lead))
    }

    /// The vCPU on `cpu` goes on with its threads until one of them needs time.
    pub(super) fn proceed(&mut self, cpu: usize) {
        let Some(task) = self.ctx.running[cpu] else { return };
        let mut steps = 0u32;
        loop {
            let Some(thread) = self.vcpus[task.ix()].current else {
                self.idle(cpu, task);
                return;
            };
            match self.threads[thread as usize].state {
                State::Ready => {
                    steps += 1;
                    if steps.is_multiple_of(64) {
                        // A program that never needs time shall not stop the clock.
                        self.cost(cpu, 100);
                        self.begin_work(thread, 100);
                    } else {
                        self.step(cpu, thread);
                    }
                }
                State::Asleep | State::Done => self.vcpus[task.ix()].leave(&self.links),
                State::Pool => {
                    self.serve(cpu, thread);
                    break;
                }
                State::Work | State::Burn | State::Spin(_) | State::Waking(_) => break,
            }
        }
        self.set_speed(cpu);
        self.arm_run(cpu);
    }

    /// The vCPU on `cpu` has nothing to do: it takes another's thread, polls, or halts.
    fn idle(&mut self, cpu: usize, task: TaskId) {
        let vm = self.ctx.tasks[task.ix()].vm;
        if self.floats[vm] {
            let range = self.ctx.vms[vm].first as usize..;
            let vcpus = &mut self.vcpus[range][..self.ctx.vms[vm].count as usize];
            let waiting = kernel::busiest(vcpus).and_then(|at| vcpus[at].take(&self.links));
            if let Some(thread) = waiting {
                self.threads[thread as usize].task = task;
                self.vcpus[task.ix()].ready(&mut self.links, thread);
                self.cost(cpu, self.params.costs.futex);
                self.proceed(cpu);
                return;
            }
        }
        let now = self.ctx.now;
        let alone = self.ctx.load(cpu) <= 1;
        let idle = &mut self.idles[task.ix()];
        idle.since = now;
        let from = self.cpus[cpu].from.max(now);
        // A thread of the host does not halt, and what was killed ends.
        let this = &self.ctx.vms[vm];
        let (halt, poll) = match self.bare || this.service || !this.is_there {
            true => (0, 0),
            false => (self.params.costs.halt, if alone { idle.poll } else { 0 }),
        };
        idle.until = from + halt + poll;
        if idle.until <= now {
            self.block(cpu, task);
        } else {
            self.set_speed(cpu);
            self.arm_run(cpu);
        }
    }

    /// The task on `cpu` blocks.
    pub(super) fn block(&mut self, cpu: usize, task: TaskId) {
        self.charge(cpu, task);
        self.ctx.uncount(task);
        self.ctx.end(task, cpu, TaskState::Blocked);
        let vm = self.ctx.tasks[task.ix()].vm;
        self.ctx.meters[vm].runnable(self.ctx.now, -1);
        self.tally[vm].blocks += 1;
        self.idles[task.ix()].halted = true;
        self.ctx.note(FactKind::Stop { task: task.0, cpu: cpu as u32, blocks: true });
        self.sched.block(&mut self.ctx, cpu, task);
        if !self.ctx.vms[vm].is_there {
            self.sched.ends(&mut self.ctx, task);
        }
        self.set_speed(cpu);
        self.ctx.timers.cancel(cpu as u32);
        self.ctx.resched(cpu);
    }

    /// A blocked task has something to do.
    fn wake_task(&mut self, task: TaskId, by: Waker) {
        let now = self.ctx.now;
        let vm = self.ctx.tasks[task.ix()].vm;
        let waited = now - self.idles[task.ix()].since;
        self.adapt_polling(task, waited);
        let index = self.ctx.tasks[task.ix()].index;
        self.tally[vm].waited(index, by, waited);
        self.ctx.ready(task);
        self.ctx.meters[vm].runnable(now, 1);
        self.sched.wake(&mut self.ctx, task, by);
        self.ctx.count(task);
        let cpu = self.ctx.tasks[task.ix()].cpu;
        self.ctx.note(FactKind::Wake { task: task.0, cpu: cpu as u32 });
        if let Some(other) = self.ctx.running[cpu]
            && self.vcpus[other.ix()].current.is_none()
        {
            self.account_elapsed(cpu);
            self.block(cpu, other);
        }
    }

    /// KVM's rule (kvm_vcpu_halt, virt/kvm/kvm_main.c, 6.12): a block that a longer poll would have
    /// caught makes polls longer, one that no poll could have caught ends polling.
    fn adapt_polling(&mut self, task: TaskId, waited: u64) {
        let (rule, poll) = (&self.params.polling, &mut self.idles[task.ix()].poll);
        if waited <= *poll {
            return;
        }
        if *poll > 0 && waited > rule.max {
            *poll = 0;
        } else if *poll < rule.max && waited < rule.max {
            *poll = (*poll * rule.grow).clamp(rule.start, rule.max);
        }
    }

    /// A thread's wait is over.
    pub(super) fn make_ready(&mut self, thread: u32, by: Waker) {
        let state = &mut self.threads[thread as usize];
        let task = state.task;
        match state.state {
            State::Spin(_) => {
                let cpu = self.running_thread(thread);
                if let Some(cpu) = cpu {
                    self.account_elapsed(cpu);
                }
                let this = &mut self.threads[thread as usize];
                this.spun(this.spin.saturating_sub(this.left));
                this.state = State::Ready;
                if let Some(cpu) = cpu {
                    self.take_line(cpu, self.cpu_of(by));
                    self.proceed(cpu);
                }
            }
            State::Asleep => {
                state.state = State::Ready;
                let task = if self.floats[state.vm] { self.choose_vcpu(thread) } else { task };
                self.threads[thread as usize].task = task;
                if !self.vcpus[task.ix()].ready(&mut self.links, thread) {
                    self.start_turn(task);
                    return;
                }
                match self.ctx.tasks[task.ix()].state {
                    TaskState::Blocked => self.wake_task(task, by),
                    TaskState::Running => self.end_poll(task, by),
                    TaskState::Queued => {}
                }
            }
            State::Ready
            | State::Work
            | State::Burn
            | State::Pool
            | State::Waking(_)
            | State::Done => {}
        }
    }

    fn choose_vcpu(&self, thread: u32) -> TaskId {
        let thread = &self.threads[thread as usize];
        let vm = &self.ctx.vms[thread.vm];
        let first = vm.first as usize;
        let vcpus = &self.vcpus[first..first + vm.count as usize];
        TaskId((first + kernel::place(vcpus, thread.task.ix() - first)) as u32)
    }

    /// A second thread waits for a vCPU: the current one's turn counts from now on.
    fn start_turn(&mut self, task: TaskId) {
        if self.vcpus[task.ix()].queued == 1
            && self.ctx.tasks[task.ix()].state == TaskState::Running
        {
            let cpu = self.ctx.tasks[task.ix()].cpu;
            self.account_elapsed(cpu);
            self.arm_run(cpu);
        }
    }

    /// A polling vCPU has something to do.
    fn end_poll(&mut self, task: TaskId, by: Waker) {
        let cpu = self.ctx.tasks[task.ix()].cpu;
        let waited = self.ctx.now - self.idles[task.ix()].since;
        let this = &self.ctx.tasks[task.ix()];
        self.tally[this.vm].waited(this.index, by, waited);
        self.account_elapsed(cpu);
        self.skip_ticks(task);
        self.take_line(cpu, self.cpu_of(by));
        self.proceed(cpu);
    }

    /// The CPU of the sibling that ended a wait.
    fn cpu_of(&self, by: Waker) -> Option<usize> {
        match by {
            Waker::Sibling(task) => Some(self.ctx.task(task).cpu),
            Waker::Start | Waker::Timer | Waker::Io => None,
        }
    }

    /// The CPU on which a thread is executed right now.
    pub(super) fn running_thread(&self, thread: u32) -> Option<usize> {
        let task = self.threads[thread as usize].task;
        let runs = self.ctx.tasks[task.ix()].state == TaskState::Running
            && self.vcpus[task.ix()].current == Some(thread);
        runs.then(|| self.ctx.tasks[task.ix()].cpu)
    }

    /// What the current thread of `cpu` did is over. False when its CPU chose again over it.
    fn segment_over(&mut self, cpu: usize, thread: u32) -> bool {
        let state = &mut self.threads[thread as usize];
        match state.state {
            State::Work => state.state = State::Ready,
            State::Pool => self.pool_over(thread),
            State::Spin(Limit::Sleep) => {
                state.spun(state.spin);
                state.state = State::Asleep;
                state.due = self.ctx.now;
                let task = state.task;
                self.cost(cpu, self.params.costs.futex);
                self.sched.sync_wait(&mut self.ctx, task);
            }
            State::Spin(Limit::Ask) => self.ask(thread),
            State::Waking(barrier) => self.wake_next(cpu, thread, barrier as usize),
            State::Spin(Limit::Caught) => {
                state.left = self.params.ple_window;
                self.cost(cpu, self.params.costs.ipi_exit);
                let to = self.preempted_sibling(thread);
                self.host_tally.yields += 1;
                self.schedule(cpu, StopReason::Yield(to));
                return false;
            }
            State::Ready | State::Burn | State::Asleep | State::Done => {}
        }
        true
    }

    /// Whom KVM's directed yield would choose: a runnable sibling that does not run, beginning after
    /// the vCPU that yields.
    fn preempted_sibling(&self, thread: u32) -> Option<TaskId> {
        let own = self.threads[thread as usize].task;
        let vm = &self.ctx.vms[self.threads[thread as usize].vm];
        let at = own.0 - vm.first;
        let others = (1..vm.count).map(|step| TaskId(vm.first + (at + step) % vm.count));
        others.into_iter().find(|task| self.ctx.tasks[task.ix()].state == TaskState::Queued)
    }

    /// Every second: utilisations of the second that ended. At the end of warming up: everything
    /// begins at zero.
    pub(super) fn sample(&mut self) {
        let now = self.ctx.now;
        for cpu in 0..self.cpus.len() {
            if let Some(task) = self.ctx.running[cpu] {
                self.account_elapsed(cpu);
                self.charge(cpu, task);
            }
        }
        if now == self.warmup && self.sampled == 0 && now > 0 {
            self.reset();
        } else {
            self.take_sample();
        }
        self.sampled = now;
        self.ctx.timers.arm(self.sample_slot(), now + SAMPLE);
    }
}
