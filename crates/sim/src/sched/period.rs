//! CPU time by allocation periods (systems.md, 5): in every period each vCPU has a slice of its own
//! CPU; what is not used expires. Slices of a VM are equal, or in proportion to
//! [`Task::part`](crate::context::Task::part), which is the host's way to match allocation to work.
//!
//! A VM's part of the period is its weight by all weights, of one CPU for each vCPU. A vCPU with time
//! left runs before those without, of equals the vCPU of the VM that was named first. A vCPU without runs
//! only when nobody else wants the CPU. The host's own threads have no part and go before all. vCPU i is on CPU
//! i modulo the number it may use. The model behind longer periods and matched slices, in its pure form: no load balancing, no wake-up rules.

use super::{Pick, Scheduler};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use instep_check::Promises;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodTuning {
    /// Nanoseconds of an allocation period: 24 ms, CFS's on 8 CPUs and more.
    pub period: u64,
}

impl Default for PeriodTuning {
    fn default() -> Self {
        Self { period: 24_000_000 }
    }
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Period {
    rules: PeriodTuning,
    /// Nanoseconds a period of each task.
    slices: Vec<u64>,
    /// CPU time of each task at the beginning of the period.
    begun: Vec<u64>,
    /// Tasks of each CPU.
    of: Vec<Vec<TaskId>>,
    /// The CPU of each task. A task that runs elsewhere, as affinities changed, goes there when it stops.
    cpu: Vec<usize>,
}

impl Period {
    /// With these numbers.
    pub fn new(rules: PeriodTuning) -> Self {
        Self { rules, slices: Vec::new(), begun: Vec::new(), of: Vec::new(), cpu: Vec::new() }
    }

    fn left(&self, ctx: &SchedContext, task: TaskId) -> u64 {
        self.slices[task.ix()].saturating_sub(ctx.ran(task) - self.begun[task.ix()])
    }

    fn share_out(&mut self, ctx: &SchedContext) {
        let shown = ctx.vms.iter().filter(|vm| !vm.hidden);
        let weights: u64 = shown.map(|vm| u64::from(vm.weight)).sum();
        for vm in &ctx.vms {
            if vm.hidden {
                // The host's own threads are no VM: they do not share, and go first.
                vm.tasks().for_each(|task| self.slices[task.ix()] = self.rules.period);
                continue;
            }
            let parts: u64 = vm.tasks().map(|task| u64::from(ctx.task(task).part)).sum();
            let whole = u128::from(self.rules.period) * u128::from(vm.count);
            let own = whole * u128::from(vm.weight) / u128::from(weights.max(1));
            for task in vm.tasks() {
                let part = u128::from(ctx.task(task).part) * own / u128::from(parts.max(1));
                self.slices[task.ix()] =
                    u64::try_from(part).unwrap_or(u64::MAX).min(self.rules.period);
            }
        }
    }

    fn bind(&mut self, ctx: &mut SchedContext) {
        self.of.iter_mut().for_each(Vec::clear);
        for at in 0..ctx.tasks.len() {
            let task = TaskId(at as u32);
            let this = ctx.task(task);
            let turn = this.index as usize % this.allowed.count().max(1) as usize;
            let cpu = this.allowed.iter().nth(turn).unwrap_or(0);
            if this.state != TaskState::Running {
                ctx.assign(task, cpu);
            }
            self.cpu[at] = cpu;
            self.of[cpu].push(task);
        }
        for tasks in &mut self.of {
            tasks.sort_by_key(|task| !ctx.vms[ctx.task(*task).vm].hidden);
        }
    }
}

impl Scheduler for Period {
    fn name(&self) -> &'static str {
        "period"
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        self.slices = vec![0; ctx.tasks.len()];
        self.begun = vec![0; ctx.tasks.len()];
        self.of = vec![Vec::new(); ctx.host.cpus()];
        self.cpu = vec![0; ctx.tasks.len()];
        self.bind(ctx);
        self.share_out(ctx);
        ctx.arm(0, self.rules.period);
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, _by: Waker) {
        let cpu = ctx.task(task).cpu;
        ctx.resched(cpu);
    }

    fn block(&mut self, ctx: &mut SchedContext, _cpu: usize, task: TaskId) {
        ctx.assign(task, self.cpu[task.ix()]);
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        let own = self.cpu[task.ix()];
        if own != cpu {
            ctx.assign(task, own);
            ctx.resched(own);
        }
        // Among those without time left, turns go round.
        if why == StopReason::SliceEnd
            && let Some(at) = self.of[cpu].iter().position(|other| *other == task)
            && self.slices[task.ix()] == 0
        {
            self.of[cpu][at..].rotate_left(1);
        }
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        let ready = |task: &TaskId| ctx.task(*task).state == TaskState::Queued;
        let mut others = self.of[cpu].iter().copied().filter(ready);
        let first = others.clone().find(|task| self.left(ctx, *task) > 0);
        match first {
            Some(task) => Some(Pick { task, slice: self.left(ctx, task) }),
            // Spare time goes to whom it finds, until somebody has time again.
            None => others.next().map(|task| Pick { task, slice: u64::MAX }),
        }
    }

    fn tick(&mut self, _ctx: &mut SchedContext, _cpu: usize) {}

    fn tick_period(&self) -> u64 {
        self.rules.period
    }

    fn timer(&mut self, ctx: &mut SchedContext, _id: u32) {
        for at in 0..self.begun.len() {
            self.begun[at] = ctx.ran(TaskId(at as u32));
        }
        (0..ctx.host.cpus()).for_each(|cpu| ctx.resched(cpu));
        ctx.arm(0, ctx.now + self.rules.period);
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, _task: TaskId) {
        self.bind(ctx);
        (0..ctx.host.cpus()).for_each(|cpu| ctx.resched(cpu));
    }

    fn work_conserving(&self) -> bool {
        false
    }

    fn promises(&self) -> Promises {
        // If the slices on a CPU exceed the period, the vCPU of the VM that was named last gets nothing.
        Promises { turn: None, ..Promises::usual(false, self.tick_period()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Scenario, build::SimulationPlan};

    #[test]
    fn the_hosts_own_threads_take_no_part_of_the_vms_time() {
        let text = |noise| {
            format!(
                "about = \"it\"\nscheduler = \"period\"\nduration = \"4s\"\n[host]\ncores = 2\n\
                 memory = \"8GiB\"\nnoise = {noise}\n[[guest]]\nname = \"a\"\nvcpus = 2\n\
                 memory = \"1GiB\"\nload = \"spin\"\nweight = 300\n[[guest]]\nname = \"b\"\n\
                 vcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n"
            )
        };
        let share = |noise| {
            let plan = SimulationPlan::new(&Scenario::parse(&text(noise)).unwrap(), &|_| {
                Err(String::new())
            });
            let outcome = plan.unwrap().run();
            let ran = |vm: usize| outcome.vms[vm].2.sums.running as f64;
            ran(0) / (ran(0) + ran(1))
        };
        assert!((share(false) - 0.75).abs() < 0.01, "{}", share(false));
        assert!((share(true) - 0.75).abs() < 0.02, "{}", share(true));
    }
}
