//! What a hypervisor scheduler sees and may ask for: tasks, CPUs, the clock, timers, randomness.
//!
//! The engine writes here what happened, the scheduler where tasks queue and which CPUs shall
//! choose again; neither sees the other's insides. It does not decide anything.
//!
//! ```text
//!             wake                    pick
//!   Blocked --------> Queued(cpu) <--------> Running(cpu)
//!      ^                    block     put         |
//!      +------------------------------------------+
//! ```

use crate::engine::CgroupSetup;
use crate::host::Host;
use crate::params::{LinuxRelease, XenRelease};
use crate::rng::Rng;
use crate::timers::Timers;
use instep_check::mask::Mask;
use instep_check::{Fact, FactKind};
use instep_core::measure::VmMeter;
use instep_scx::instep::VmSettings;

/// A schedulable thing: a vCPU, or with [`pm`](crate::sched::pm) a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// As an index into [`SchedContext::tasks`].
    #[inline]
    pub fn ix(self) -> usize {
        self.0 as usize
    }
}

/// Where a task is in its life. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for a wake-up.
    Blocked,
    /// Could run and waits for a CPU.
    Queued,
    /// Runs.
    Running,
}

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waker {
    /// The beginning of the simulation.
    Start,
    /// A vCPU of the same VM: an inter-processor interrupt, that is, synchronisation.
    Sibling(TaskId),
    /// Its own timer.
    Timer,
    /// A device.
    Io,
}

/// Why a running task is taken off its CPU though it could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its slice is over.
    SliceEnd,
    /// The scheduler asked for its CPU to choose again.
    Preempted,
    /// It gave way after spinning (pause-loop exit), in favour of a preempted sibling if KVM's
    /// directed yield would find one (`kvm_vcpu_on_spin`, virt/kvm/kvm_main.c, 6.12).
    Yield(Option<TaskId>),
}

/// A task as the scheduler knows it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The VM, an index into [`SchedContext::vms`].
    pub vm: usize,
    /// Which of the VM's tasks it is, from 0.
    pub index: u32,
    /// Where it is in its life.
    pub state: TaskState,
    /// The CPU in whose queue it is or was last.
    pub cpu: usize,
    /// CPUs it may use (hard affinity). Never empty.
    pub allowed: Mask,
    /// CPUs it should rather use (Xen's node affinity); all when there is no preference.
    pub preferred: Mask,
    /// Its part of its VM's time, for schedulers that give parts: by the sum of its siblings' parts.
    pub part: u32,
    /// CPU time it had, up to `since`, in nanoseconds.
    ran: u64,
    /// When it began to run or was last charged, in nanoseconds.
    since: u64,
    /// Whether it counts in the queue of `cpu`.
    counted: bool,
    /// Time it waited for a CPU, up to `ready`, and since when it waits, nanoseconds.
    waited: u64,
    ready: u64,
}

/// A VM as the scheduler knows it. Its tasks have consecutive numbers.
#[derive(Clone, Debug)]
pub struct VmTasks {
    /// Its first task.
    pub first: u32,
    /// How many tasks it has.
    pub count: u32,
    /// Its weight, as `cpu.weight`: 100 is usual.
    pub weight: u32,
    /// How much of one CPU all its vCPUs together may use, per cent, for schedulers of Xen; 0 is no cap.
    pub cap: u32,
    /// What else is set for it, for scheduler `instep`.
    pub own: VmSettings,
    /// Whether it stands for the host's own threads.
    pub hidden: bool,
    /// Whether it is no VM but processes of the host.
    pub service: bool,
    /// The number of its cgroup, one more than the index in [`SchedContext::cgroups`]; 0 without any.
    pub cgroup: u32,
    /// Whether it has come and not gone.
    pub is_there: bool,
}

impl VmTasks {
    /// Whether it is neither a service nor stands for the host's own threads. VMs come before these.
    pub fn is_vm(&self) -> bool {
        !self.hidden && !self.service
    }

    /// Its tasks.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = TaskId> + use<> {
        (self.first..self.first + self.count).map(TaskId)
    }
}

/// See the module.
#[derive(Debug)]
pub struct SchedContext {
    /// The time in nanoseconds since the start.
    pub now: u64,
    /// The host's shape.
    pub host: Host,
    /// The release of Xen, for its scheduler.
    pub xen: XenRelease,
    /// The release of Linux, for CFS.
    pub linux: LinuxRelease,
    /// All tasks.
    pub tasks: Vec<Task>,
    /// All VMs.
    pub vms: Vec<VmTasks>,
    /// The cgroups that they lie in, the root first.
    pub cgroups: Vec<CgroupSetup>,
    /// Whether VMs come and go.
    pub has_changes: bool,
    /// The run's one source of randomness.
    pub rng: Rng,
    /// CPUs on which nothing runs.
    pub idle: Mask,
    /// What runs on each CPU.
    pub(crate) running: Vec<Option<TaskId>>,
    /// Tasks that count in each CPU's queue, the running one included.
    load: Vec<u32>,
    /// Tasks in the queues of each node.
    node_load: Vec<u32>,
    /// Tasks of a VM in a CPU's queue: `vm * cpus + cpu`.
    together: Vec<u16>,
    /// CPUs that shall choose again.
    pub(crate) pending: Mask,
    pub(crate) any_pending: bool,
    pub(crate) timers: Timers,
    pub(crate) meters: Vec<VmMeter>,
    /// What happened to the schedule, if somebody watches.
    pub(crate) facts: Option<Vec<Fact>>,
    /// The slot of the scheduler's first timer.
    pub(crate) first_timer: u32,
}

/// Timers that a scheduler may use beside one for each CPU.
pub const SCHED_TIMERS: usize = 4;

impl SchedContext {
    /// A context at time 0, all tasks blocked, all CPUs idle, each task's last CPU as an idle host would
    /// have spread them ([`Host::spread`]). `timers` holds the engine's slots and,
    /// from `first_timer` on, [`SCHED_TIMERS`] and one for each CPU for the scheduler.
    pub(crate) fn new(
        host: Host,
        vms: Vec<VmTasks>,
        task: impl Fn(usize, u32) -> (Mask, Mask, u32),
        rng: Rng,
        timers: Timers,
        first_timer: u32,
    ) -> Self {
        let cpus = host.cpus();
        let order = host.spread();
        let mut tasks = Vec::new();
        for (at, vm) in vms.iter().enumerate() {
            for index in 0..vm.count {
                let (allowed, preferred, part) = task(at, index);
                let turn = tasks.len() % allowed.count().max(1) as usize;
                let cpu = order.iter().copied().filter(|cpu| allowed.has(*cpu)).nth(turn);
                let cpu = cpu.unwrap_or(0);
                let state = TaskState::Blocked;
                tasks.push(Task {
                    vm: at,
                    index,
                    state,
                    cpu,
                    allowed,
                    preferred,
                    part,
                    ran: 0,
                    since: 0,
                    counted: false,
                    waited: 0,
                    ready: 0,
                });
            }
        }
        Self {
            now: 0,
            idle: Mask::all(cpus),
            running: vec![None; cpus],
            load: vec![0; cpus],
            node_load: vec![0; host.nodes.len()],
            together: vec![0; cpus * vms.len()],
            pending: Mask::none(cpus),
            any_pending: false,
            meters: vec![VmMeter::default(); vms.len()],
            facts: None,
            xen: XenRelease::default(),
            linux: LinuxRelease::default(),
            host,
            tasks,
            vms,
            cgroups: Vec::new(),
            has_changes: false,
            rng,
            timers,
            first_timer,
        }
    }

    /// A task.
    #[inline]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.tasks[task.ix()]
    }

    /// What runs on a CPU.
    #[inline]
    pub fn current(&self, cpu: usize) -> Option<TaskId> {
        self.running[cpu]
    }

    /// Tasks in a CPU's queue, the running one included.
    #[inline]
    pub fn load(&self, cpu: usize) -> u32 {
        self.load[cpu]
    }

    /// Tasks in the queues of a node's CPUs, running ones included.
    #[inline]
    pub fn node_load(&self, node: usize) -> u32 {
        self.node_load[node]
    }

    /// Tasks of a VM in a CPU's queue, the running one included.
    #[inline]
    pub fn siblings_on(&self, vm: usize, cpu: usize) -> u32 {
        u32::from(self.together[vm * self.host.cpus() + cpu])
    }

    /// CPU time a task had so far, in nanoseconds, what it runs now included.
    #[inline]
    pub fn ran(&self, task: TaskId) -> u64 {
        let task = &self.tasks[task.ix()];
        let now = if task.state == TaskState::Running { self.now - task.since } else { 0 };
        task.ran + now
    }

    /// Time a task waited for a CPU so far, in nanoseconds.
    pub fn waited(&self, task: TaskId) -> u64 {
        let task = &self.tasks[task.ix()];
        task.waited + if task.state == TaskState::Queued { self.now - task.ready } else { 0 }
    }

    /// A blocked task waits for a CPU from now on.
    pub(crate) fn ready(&mut self, task: TaskId) {
        let now = self.now;
        let task = &mut self.tasks[task.ix()];
        (task.state, task.ready) = (TaskState::Queued, now);
    }

    /// For schedulers: `task` is in the queue of `cpu` from now on.
    #[inline]
    pub fn assign(&mut self, task: TaskId, cpu: usize) {
        let old = self.tasks[task.ix()].cpu;
        if old == cpu {
            return;
        }
        if self.tasks[task.ix()].counted {
            self.uncount(task);
            self.tasks[task.ix()].cpu = cpu;
            self.count(task);
            self.note(FactKind::Move { task: task.0, cpu: cpu as u32 });
        } else {
            self.tasks[task.ix()].cpu = cpu;
        }
    }

    /// For schedulers: `cpu` shall choose again as soon as this event is dealt with.
    #[inline]
    pub fn resched(&mut self, cpu: usize) {
        self.pending.set(cpu);
        self.any_pending = true;
    }

    /// For schedulers: calls [`timer`](crate::sched::Scheduler::timer) with `id` at time `at`. Ids
    /// are below [`SCHED_TIMERS`] plus the number of CPUs; arming again replaces.
    pub fn arm(&mut self, id: u32, at: u64) {
        self.timers.arm(self.first_timer + id, at);
    }

    /// For schedulers: forgets a timer.
    pub fn disarm(&mut self, id: u32) {
        self.timers.cancel(self.first_timer + id);
    }

    /// Something happened to the schedule.
    #[inline]
    pub(crate) fn note(&mut self, what: FactKind) {
        if let Some(facts) = &mut self.facts {
            facts.push(Fact { at: self.now, what });
        }
    }

    /// `task` counts in the queue of its CPU.
    pub(crate) fn count(&mut self, task: TaskId) {
        let (vm, cpu) = (self.tasks[task.ix()].vm, self.tasks[task.ix()].cpu);
        self.tasks[task.ix()].counted = true;
        self.load[cpu] += 1;
        self.node_load[self.host.node[cpu]] += 1;
        let place = vm * self.host.cpus() + cpu;
        self.together[place] += 1;
        if self.together[place] == 2 {
            self.meters[vm].stacked(self.now, 1);
        }
    }

    /// It counts nowhere.
    pub(crate) fn uncount(&mut self, task: TaskId) {
        let (vm, cpu) = (self.tasks[task.ix()].vm, self.tasks[task.ix()].cpu);
        self.tasks[task.ix()].counted = false;
        self.load[cpu] -= 1;
        self.node_load[self.host.node[cpu]] -= 1;
        let place = vm * self.host.cpus() + cpu;
        self.together[place] -= 1;
        if self.together[place] == 1 {
            self.meters[vm].stacked(self.now, -1);
        }
    }

    /// Adds what a running task ran since it was last charged; in nanoseconds.
    #[inline]
    pub(crate) fn charge(&mut self, task: TaskId) -> u64 {
        let task = &mut self.tasks[task.ix()];
        let delta = self.now - task.since;
        task.ran += delta;
        task.since = self.now;
        delta
    }

    /// A task begins to run on its CPU.
    pub(crate) fn begin(&mut self, task: TaskId, cpu: usize) {
        self.running[cpu] = Some(task);
        self.idle.clear(cpu);
        let (now, id) = (self.now, task.0);
        let task = &mut self.tasks[task.ix()];
        task.state = TaskState::Running;
        task.since = now;
        task.waited += now - task.ready;
        self.meters[task.vm].running(now, 1);
        self.note(FactKind::Start { task: id, cpu: cpu as u32 });
    }

    /// A task that was charged stops running.
    pub(crate) fn end(&mut self, task: TaskId, cpu: usize, state: TaskState) {
        self.running[cpu] = None;
        self.idle.set(cpu);
        self.tasks[task.ix()].state = state;
        self.tasks[task.ix()].ready = self.now;
        let vm = self.tasks[task.ix()].vm;
        self.meters[vm].running(self.now, -1);
    }
}
