//! The schedule as the facts so far draw it: who runs, waits or is blocked, where, and since when.
//! Takes every fact as it comes; what cannot be is for the checkers to say.

use super::{Fact, FactKind};
use crate::mask::Mask;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLife {
    /// Wants no CPU.
    Blocked,
    /// Wants one.
    Waiting,
    /// Has one.
    Running,
}

/// A task in the picture.
#[derive(Clone, Debug)]
pub struct TaskPicture {
    /// Its VM.
    pub vm: usize,
    /// Its VM's weight.
    pub weight: u32,
    /// Where it is in its life.
    pub life: TaskLife,
    /// Since when, nanoseconds. A wait that a run of no length interrupts goes on.
    pub since: u64,
    /// Since when, a run of no length being one, nanoseconds.
    pub queued: u64,
    /// Whether its wait began with a wake-up.
    pub woken: bool,
    /// The CPU on which it runs, or in whose queue it is or was last.
    pub cpu: usize,
    /// Since when it is there, nanoseconds.
    pub there: u64,
    /// CPUs it may use.
    pub allowed: Mask,
    /// Since when it may, nanoseconds.
    pub allowed_since: u64,
    /// CPU time it had in runs that ended, nanoseconds.
    pub ran: u64,
    waited_from: u64,
}

/// A CPU in the picture.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuPicture {
    /// Who runs on it.
    pub running: Option<u32>,
    /// Since when it is idle or busy, nanoseconds. Changing from one task to another is neither.
    pub since: u64,
    /// Time in which somebody ran on it, up to the last fact, nanoseconds.
    pub busy: u64,
    before: (bool, u64),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Up to when it is drawn, nanoseconds.
    pub now: u64,
    /// The tasks.
    pub tasks: Vec<TaskPicture>,
    /// The CPUs.
    pub cpus: Vec<CpuPicture>,
    /// How many tasks wait.
    pub waiting: usize,
}

impl Picture {
    /// At time 0: all tasks blocked on CPU 0, and free to use any of `cpus` CPUs. `tasks` has the VM
    /// of each and its weight.
    pub fn new(cpus: usize, tasks: &[(usize, u32)]) -> Self {
        let task = |(vm, weight): &(usize, u32)| TaskPicture {
            vm: *vm,
            weight: *weight,
            life: TaskLife::Blocked,
            since: 0,
            queued: 0,
            woken: false,
            cpu: 0,
            there: 0,
            allowed: Mask::all(cpus),
            allowed_since: 0,
            ran: 0,
            waited_from: 0,
        };
        let idle = CpuPicture::default();
        Self { now: 0, tasks: tasks.iter().map(task).collect(), cpus: vec![idle; cpus], waiting: 0 }
    }

    /// Whether a task and a CPU of these numbers exist.
    pub fn knows(&self, what: &FactKind) -> bool {
        (what.task() as usize) < self.tasks.len()
            && what.cpu().is_none_or(|cpu| (cpu as usize) < self.cpus.len())
    }

    /// Time goes on and nothing happens.
    pub fn pass(&mut self, to: u64) {
        let elapsed = to.saturating_sub(self.now);
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.running.is_some()) {
            cpu.busy += elapsed;
        }
        self.now = self.now.max(to);
    }

    /// Draws a fact. It must be of a task and a CPU that exist ([`Picture::knows`]).
    pub fn draw(&mut self, fact: &Fact) {
        self.pass(fact.at);
        let task = &mut self.tasks[fact.what.task() as usize];
        let was = task.life == TaskLife::Waiting;
        match &fact.what {
            FactKind::Start { task: id, cpu } => {
                if task.life != TaskLife::Running {
                    task.waited_from = task.since;
                }
                task.become_(TaskLife::Running, fact.at);
                task.go(*cpu as usize, fact.at);
                self.cpus[*cpu as usize].change(Some(*id), fact.at);
            }
            FactKind::Stop { cpu, blocks, .. } => {
                let ran = fact.at - task.since.min(fact.at);
                let (from, woken) = (task.waited_from, task.woken);
                if task.life == TaskLife::Running {
                    task.ran += ran;
                }
                task.become_(if *blocks { TaskLife::Blocked } else { TaskLife::Waiting }, fact.at);
                if ran == 0 && !*blocks {
                    (task.since, task.woken) = (from, woken);
                } else {
                    task.woken = false;
                }
                self.cpus[*cpu as usize].change(None, fact.at);
            }
            FactKind::Wake { cpu, .. } => {
                task.become_(TaskLife::Waiting, fact.at);
                task.woken = true;
                task.go(*cpu as usize, fact.at);
            }
            FactKind::Move { cpu, .. } => task.go(*cpu as usize, fact.at),
            FactKind::Allowed { cpus, .. } => {
                task.allowed = cpus.clone();
                task.allowed_since = fact.at;
            }
        }
        let is = self.tasks[fact.what.task() as usize].life == TaskLife::Waiting;
        self.waiting = self.waiting + usize::from(is) - usize::from(was);
    }
}

impl TaskPicture {
    /// CPU time it had up to `now`, nanoseconds.
    pub fn had(&self, now: u64) -> u64 {
        let current =
            if self.life == TaskLife::Running { now.saturating_sub(self.since) } else { 0 };
        self.ran + current
    }

    fn become_(&mut self, life: TaskLife, at: u64) {
        (self.life, self.since, self.queued) = (life, at, at);
    }

    fn go(&mut self, cpu: usize, at: u64) {
        if self.cpu != cpu {
            (self.cpu, self.there) = (cpu, at);
        }
    }
}

impl CpuPicture {
    fn change(&mut self, running: Option<u32>, at: u64) {
        let (was, is) = (self.running.is_some(), running.is_some());
        self.running = running;
        if was == is {
            return;
        }
        // What it was for no time it was not.
        let before = self.before;
        self.before = (was, self.since);
        self.since = if self.since == at && before.0 == is { before.1 } else { at };
    }
}
