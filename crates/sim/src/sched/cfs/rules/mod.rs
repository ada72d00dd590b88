//! The rules of CFS (kernel/sched_fair.c of Linux 3.0, kernel/sched/fair.c of 3.13 and 3.19), each as a
//! small case whose outcome was worked out by hand from the source (the heads of the files above say what each
//! function does). A case names the function it comes from and the rule; the comment above it is the
//! calculation. Virtual runtimes are microseconds. On one CPU the latency is 6 ms, the least turn 0.75 ms and
//! the granularity of wake-ups 1 ms; on two they are twice, on four three times as much. A task weighs 1024.

mod balance;
mod load;
mod queue;
mod tries;
mod wake;

use super::groups::Puller;
use super::*;
use crate::params::LinuxRelease::{self, V3_0, V3_13, V3_19};
use crate::testing;

const US: u64 = 1000;
const ALL: &[LinuxRelease] = &[V3_0, V3_13, V3_19];
const OLD: &[LinuxRelease] = &[V3_0];
const NEWEST: &[LinuxRelease] = &[V3_19];
const BEFORE_3_19: &[LinuxRelease] = &[V3_0, V3_13];
const SINCE_3_13: &[LinuxRelease] = &[V3_13, V3_19];

type Case = testing::Case<LinuxRelease, Board>;

fn hold(cases: &[Case]) {
    testing::hold(cases, Board);
}

/// A release, on which hosts are made.
struct Board(LinuxRelease);

impl Board {
    /// So many CPUs of one cache, no two of a core, and so many tasks.
    fn cpus(self, cpus: u32, tasks: u32) -> Linux {
        self.host([1, cpus, 1], tasks)
    }

    /// Nodes, which are caches, cores of each and threads of each core; tasks.
    fn host(self, shape: [u32; 3], tasks: u32) -> Linux {
        self.far(shape, tasks, 20)
    }

    /// The same with nodes at this distance.
    fn far(self, [nodes, cores, threads]: [u32; 3], tasks: u32, distance: u32) -> Linux {
        let mut host = testing::host(nodes, cores, threads);
        for distances in host.distance.iter_mut().flatten().filter(|own| **own > 10) {
            *distances = distance;
        }
        let mut ctx = testing::ctx_of(host, &[tasks]);
        ctx.linux = self.0;
        let mut cfs = Cfs::new(CfsTuning::default());
        cfs.start(&mut ctx);
        Linux { ctx, cfs }
    }
}

/// A host with its scheduler.
struct Linux {
    ctx: SchedContext,
    cfs: Cfs,
}

impl Linux {
    fn entity(&mut self, task: u32) -> &mut Entity {
        &mut self.cfs.entities[task as usize]
    }

    /// A weight other than 1024; before the task comes anywhere.
    fn weighs(mut self, task: u32, weight: u64) -> Self {
        self.entity(task).weight = weight;
        self
    }

    /// What a task counts for in the load of its CPU, if that is not its weight.
    fn counts_for(mut self, task: u32, load: u64) -> Self {
        self.entity(task).average.load = load;
        self
    }

    fn allowed(mut self, task: u32, cpus: &[usize]) -> Self {
        let all = self.ctx.host.cpus();
        self.ctx.tasks[task as usize].allowed = Mask::of(all, cpus.iter().copied());
        self
    }

    fn comes(&mut self, task: u32, cpu: usize, us: u64) {
        let now = self.ctx.now;
        let entity = self.entity(task);
        entity.vruntime = us * US;
        if entity.average.load == 0 {
            // It was always runnable.
            entity.average = Average::new(u64::MAX, entity.weight, now);
            entity.average.load = entity.weight;
        }
        self.ctx.assign(TaskId(task), cpu);
        self.cfs.arrive(&self.ctx, cpu, TaskId(task));
        self.cfs.queues[cpu].settle_load();
        self.ctx.count(TaskId(task));
    }

    /// Runs on this CPU from now on, with this virtual runtime.
    fn runs(mut self, task: u32, cpu: usize, us: u64) -> Self {
        self.comes(task, cpu, us);
        self.ctx.begin(TaskId(task), cpu);
        self
    }

    /// Waits in this CPU's queue.
    fn waits(mut self, task: u32, cpu: usize, us: u64) -> Self {
        self.comes(task, cpu, us);
        self.ctx.tasks[task as usize].state = TaskState::Queued;
        self.cfs.enqueue(&self.ctx, TaskId(task));
        self
    }

    /// Runs or waits on each of these CPUs: task and CPU, at virtual runtime 0; the first on a CPU runs.
    fn busy(mut self, tasks: &[(u32, usize)]) -> Self {
        for (task, cpu) in tasks {
            self = match self.ctx.current(*cpu) {
                None => self.runs(*task, *cpu, 0),
                Some(_) => self.waits(*task, *cpu, 0),
            };
        }
        self
    }

    /// Blocked; this CPU is where it was last.
    fn blocked(mut self, task: u32, cpu: usize, us: u64) -> Self {
        self.entity(task).vruntime = us * US;
        self.ctx.assign(TaskId(task), cpu);
        self
    }

    /// The least virtual runtime of a queue so far.
    fn least(mut self, cpu: usize, us: u64) -> Self {
        self.cfs.queues[cpu].min_vruntime = us * US;
        self
    }

    /// Time passes.
    fn after(mut self, us: u64) -> Self {
        self.ctx.now += us * US;
        self
    }

    fn tick(mut self, cpu: usize) -> Self {
        self.cfs.tick(&mut self.ctx, cpu);
        self
    }

    fn wakes(mut self, task: u32, by: Waker) -> Self {
        self.ctx.ready(TaskId(task));
        self.cfs.wake(&mut self.ctx, TaskId(task), by);
        self.ctx.count(TaskId(task));
        self
    }

    /// CPU `cpu` chooses.
    fn chooses(mut self, cpu: usize, why: StopReason) -> Self {
        testing::choose((&mut self.ctx, &mut self.cfs), cpu, why);
        self
    }

    /// The task on `cpu` blocks, and the CPU chooses.
    fn blocks(mut self, cpu: usize) -> Self {
        self.ctx.uncount(self.ctx.running[cpu].expect("it runs"));
        testing::block((&mut self.ctx, &mut self.cfs), cpu);
        self
    }

    /// The task that runs on a CPU.
    fn runs_on(&self, cpu: usize) -> Option<u32> {
        self.ctx.running[cpu].map(|task| task.0)
    }

    /// Virtual runtime, us.
    fn virtual_time(&self, task: u32) -> u64 {
        self.cfs.entities[task as usize].vruntime / US
    }

    /// The tasks that wait, by virtual runtime.
    fn queue(&self, cpu: usize) -> Vec<u32> {
        self.cfs.queues[cpu].line().map(|(_, task)| task.0).collect()
    }

    /// The CPUs that have to choose again.
    fn resched_cpus(&self) -> Vec<usize> {
        self.ctx.pending.iter().collect()
    }

    /// On which CPU a task is.
    fn cpu_of(&self, task: u32) -> usize {
        self.ctx.tasks[task as usize].cpu
    }

    /// How many tasks come to `cpu` in each of so many tries within the span of this level.
    fn pulls(&mut self, cpu: usize, level: usize, idle: Puller, tries: u32) -> Vec<u32> {
        (0..tries).map(|_| self.cfs.balance(&mut self.ctx, cpu, level, idle)).collect()
    }

    /// The busiest group of the span of this level, and how much weight it has too much.
    fn busiest(&mut self, cpu: usize, level: usize, idle: Puller) -> String {
        let turn = *self.cfs.domains.turn(cpu, level);
        format!("{:?}", self.cfs.imbalance(&self.ctx, cpu, turn, idle))
    }

    /// Whether the group of `cpu` in the span of this level counts as uneven.
    fn is_uneven(&mut self, cpu: usize, level: usize) -> bool {
        let turn = *self.cfs.domains.turn(cpu, level);
        self.cfs.domains.domain(turn.domain).groups[turn.own].uneven
    }
}
