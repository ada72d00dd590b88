//! The rules of EEVDF (kernel/sched/fair.c of Linux 6.12), each as a small case whose outcome was worked out by
//! hand from the source (the heads of the files above say what each function does). A case names the function it
//! comes from and the rule; the comment above it is the calculation. Virtual times are microseconds. On one CPU
//! a request is 0.75 ms, on two 1.5 ms, on four 2.25 ms, on eight 3 ms. A VM weighs 1024 unless said otherwise;
//! its tasks are equal.

mod groups;
mod queue;
mod sleep;
mod wake;

use super::*;
use crate::testing;

const US: i64 = 1000;
const V6_12: &[&str] = &["6.12"];

type Case = testing::Case<&'static str, Board>;

fn hold(cases: &[Case]) {
    testing::hold(cases, Board);
}

/// A release, on which hosts are made.
struct Board(&'static str);

impl Board {
    /// So many CPUs of one cache, no two of a core, and VMs of so many tasks.
    fn cpus(self, cpus: u32, vms: &[u32]) -> Linux {
        self.host([1, cpus, 1], vms)
    }

    /// Nodes, which are caches, cores of each and threads of each core; VMs of so many tasks.
    fn host(self, shape: [u32; 3], vms: &[u32]) -> Linux {
        self.far(shape, vms, 20)
    }

    /// The same with nodes at this distance.
    fn far(self, [nodes, cores, threads]: [u32; 3], vms: &[u32], distance: u32) -> Linux {
        let mut host = testing::host(nodes, cores, threads);
        for distances in host.distance.iter_mut().flatten().filter(|own| **own > 10) {
            *distances = distance;
        }
        let mut ctx = testing::ctx_of(host, vms);
        let mut eevdf = Eevdf::new(EevdfTuning::default());
        eevdf.start(&mut ctx);
        Linux { ctx, eevdf }
    }
}

/// A host with its scheduler.
struct Linux {
    ctx: SchedContext,
    eevdf: Eevdf,
}

impl Linux {
    /// `cpu.weight` of a VM other than 100; before its tasks come anywhere.
    fn weighs(mut self, vm: usize, weight: u32) -> Self {
        self.ctx.vms[vm].weight = weight;
        self
    }

    fn allowed(mut self, task: u32, cpus: &[usize]) -> Self {
        let all = self.ctx.host.cpus();
        self.ctx.tasks[task as usize].allowed = Mask::of(all, cpus.iter().copied());
        self
    }

    fn line_of(&mut self, task: u32) -> &mut Line {
        let this = &self.ctx.tasks[task as usize];
        let (cpu, vm) = (this.cpu, this.vm);
        self.eevdf.line(cpu, vm)
    }

    fn comes(&mut self, task: u32, cpu: usize, [v, deadline]: [i64; 2]) {
        self.ctx.assign(TaskId(task), cpu);
        self.ctx.tasks[task as usize].state = TaskState::Queued;
        self.eevdf.enqueue(&mut self.ctx, TaskId(task), false);
        self.line_of(task).put_at(task, v * US, deadline * US);
        self.ctx.count(TaskId(task));
    }

    /// Runs on this CPU from now on, with this virtual runtime and deadline.
    fn runs(mut self, task: u32, cpu: usize, place: [i64; 2]) -> Self {
        self.comes(task, cpu, place);
        self.ctx.begin(TaskId(task), cpu);
        let vm = self.ctx.tasks[task as usize].vm as u32;
        self.eevdf.set_next(cpu, Some((vm, TaskId(task))), self.ctx.now);
        self
    }

    /// Waits in this CPU's queue.
    fn waits(mut self, task: u32, cpu: usize, place: [i64; 2]) -> Self {
        self.comes(task, cpu, place);
        self
    }

    /// Runs or waits on each of these CPUs: task and CPU; the first on a CPU runs.
    fn busy(mut self, tasks: &[(u32, usize)]) -> Self {
        for (task, cpu) in tasks {
            self = match self.ctx.current(*cpu) {
                None => self.runs(*task, *cpu, [0, 750]),
                Some(_) => self.waits(*task, *cpu, [0, 750]),
            };
        }
        self
    }

    /// A VM's virtual runtime and deadline on a CPU.
    fn vm_at(mut self, vm: u32, cpu: usize, [v, deadline]: [i64; 2]) -> Self {
        self.eevdf.queues[cpu].root.put_at(vm, v * US, deadline * US);
        self
    }

    /// Blocked, having left CPU `cpu` with this lag.
    fn blocked(mut self, task: u32, cpu: usize, lag: i64) -> Self {
        self.ctx.assign(TaskId(task), cpu);
        self.eevdf.entities[task as usize].parked.lag = lag * US;
        self.eevdf.entities[task as usize].recent = cpu;
        self
    }

    /// All was so for long: mean loads are those of now, and `task`, which blocked just now, is part of its CPU's.
    fn steady(mut self, task: u32) -> Self {
        for queue in &mut self.eevdf.queues {
            queue.mean = queue.root.load() * balance::ONE;
        }
        let own = self.eevdf.part(&self.ctx, TaskId(task)) * balance::ONE;
        let cpu = self.ctx.tasks[task as usize].cpu;
        self.eevdf.queues[cpu].mean += own;
        self
    }

    /// Time passes.
    fn after(mut self, us: u64) -> Self {
        self.ctx.now += us * 1000;
        self
    }

    fn tick(mut self, cpu: usize) -> Self {
        self.eevdf.tick(&mut self.ctx, cpu);
        self
    }

    fn wakes(mut self, task: u32, by: Waker) -> Self {
        self.ctx.ready(TaskId(task));
        self.eevdf.wake(&mut self.ctx, TaskId(task), by);
        self.ctx.count(TaskId(task));
        self
    }

    /// CPU `cpu` chooses.
    fn chooses(mut self, cpu: usize, why: StopReason) -> Self {
        let pick = testing::choose((&mut self.ctx, &mut self.eevdf), cpu, why);
        // As the engine does with a task that goes on.
        if let Some(pick) = pick {
            self.ctx.tasks[pick.task.ix()].state = TaskState::Running;
        }
        self
    }

    /// The task on `cpu` blocks, and the CPU chooses.
    fn blocks(mut self, cpu: usize) -> Self {
        self.ctx.uncount(self.ctx.running[cpu].expect("it runs"));
        testing::block((&mut self.ctx, &mut self.eevdf), cpu);
        self
    }

    /// A task that waits moves to another CPU.
    fn moves(mut self, task: u32, to: usize) -> Self {
        self.eevdf.migrate(&mut self.ctx, TaskId(task), to);
        self
    }

    /// The task that runs on a CPU.
    fn runs_on(&self, cpu: usize) -> String {
        self.ctx.running[cpu].map_or("none".into(), |task| task.0.to_string())
    }

    /// A task's virtual runtime and deadline, us.
    fn place(&mut self, task: u32) -> String {
        show(self.line_of(task).place(task))
    }

    /// A VM's on a CPU.
    fn vm_place(&self, vm: u32, cpu: usize) -> String {
        show(self.eevdf.queues[cpu].root.place(vm))
    }

    /// A VM's weight on a CPU, with all its bits.
    fn vm_weight(&self, vm: u32, cpu: usize) -> String {
        self.eevdf.queues[cpu].root.weight(vm).to_string()
    }

    /// Virtual time among the tasks of a task's VM, us.
    fn time(&mut self, task: u32) -> String {
        (self.line_of(task).time() / US).to_string()
    }

    /// How far a task in a queue is behind virtual time, as it would keep it, us.
    fn lag(&mut self, task: u32) -> String {
        let times = self.eevdf.times;
        (self.line_of(task).lag_of(task, times) / US).to_string()
    }

    /// The lag that a task took along, us.
    fn kept(&self, task: u32) -> String {
        (self.eevdf.entities[task as usize].parked.lag / US).to_string()
    }

    /// The CPUs that have to choose again.
    fn resched_cpus(&self) -> String {
        format!("{:?}", self.ctx.pending.iter().collect::<Vec<_>>())
    }

    /// On which CPU a task is.
    fn cpu_of(&self, task: u32) -> String {
        self.ctx.tasks[task as usize].cpu.to_string()
    }
}

fn show(place: Option<(i64, i64)>) -> String {
    place.map_or("gone".into(), |(v, deadline)| format!("{v} {deadline}"))
}

/// Whether a tick after each of these times, us, has CPU 0 choose again.
fn told_after(times: [u64; 2], linux: impl Fn() -> Linux) -> String {
    let told = times.map(|us| linux().after(us).tick(0).resched_cpus() != "[]");
    format!("{told:?}")
}
