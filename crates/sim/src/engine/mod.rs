//! The engine: carries out what guests do and what the scheduler decides, event by event, in order
//! of time. It decides nothing: which task runs where is the scheduler's, what threads do is their
//! programs'.
//!
//! ```text
//! timer -> what it stands for (a CPU's work or slice is over, a tick, a thread's sleep, ...)
//!       -> threads that became ready go on, or wake their vCPU     (ready)
//!       -> CPUs whose scheduler asked for it choose again          (pending)
//! ```
//! Every CPU has one timer for whatever ends first of what it does now. When a neighbour changes
//! its speed, what was done so far is settled and the timer set anew. After the start nothing is
//! allocated.

mod dispatch;
mod lives;
mod place;
mod steal;
mod step;
mod tally;
mod ticks;
mod warmth;

pub use lives::Life;
pub use place::Placement;
pub use tally::{HostTally, RunTotals, VmTally};

use crate::context::{SCHED_TIMERS, SchedContext, TaskId, VmTasks, Waker};
use crate::guest::kernel::GuestVcpu;
use crate::guest::objects::{Links, NONE, Objects};
use crate::guest::program::{Op, Workload};
use crate::host::Host;
use crate::params::{ONE, PERIOD_NS, Params, Profile};
use crate::rng::Rng;
use crate::sched::Scheduler;
use crate::speed::Speed;
use crate::timers::Timers;
use instep_check::mask::Mask;
use instep_check::{Fact, FactKind};
use instep_scx::instep::{CpuLimit, VmSettings};
use std::collections::VecDeque;

/// A VM to simulate.
#[derive(Clone, Debug)]
pub struct VmSetup {
    /// Its name.
    pub name: String,
    /// Its weight, as `cpu.weight`.
    pub weight: u32,
    /// Its cap ([`VmTasks::cap`]).
    pub cap: u32,
    /// What else is set for it, for scheduler `instep`.
    pub own: VmSettings,
    /// For each vCPU what it may and what it should use.
    pub affinity: Vec<(Mask, Mask)>,
    /// Parts of its vCPUs in its time; equal when empty.
    pub parts: Vec<u32>,
    /// Part of its memory on each node, 1024ths.
    pub memory: Vec<u32>,
    /// Its memory, bytes.
    pub bytes: u64,
    /// What it runs.
    pub workload: Workload,
    /// Whether it stands for the host's own threads: it comes after all others, and is no VM in
    /// results.
    pub hidden: bool,
    /// Whether it is no VM but processes of the host: these come after the VMs.
    pub service: bool,
    /// The number of its cgroup, one more than the index in [`Setup::cgroups`]; 0 without any.
    pub cgroup: u32,
    /// When it exists.
    pub life: Life,
}

/// A cgroup of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSetup {
    /// Where it is; empty of the root.
    pub path: String,
    /// The number of the one above it; 0 of the root.
    pub above: u32,
    /// `cpu.weight`.
    pub weight: u32,
    /// `cpu.idle`.
    pub idle: bool,
    /// `cpu.max`.
    pub limit: Option<CpuLimit>,
}

/// Everything that fixes a run but the scheduler.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The host.
    pub host: Host,
    /// Its numbers.
    pub params: Params,
    /// The profiles that programs name by index.
    pub profiles: Vec<Profile>,
    /// The VMs.
    pub vms: Vec<VmSetup>,
    /// The cgroups that they lie in: first the root, each before those below it. None: all lie side by side.
    pub cgroups: Vec<CgroupSetup>,
    /// What places them; nothing with `None`.
    pub placement: Option<Placement>,
    /// The seed.
    pub seed: u64,
    /// Nanoseconds before measuring begins.
    pub warmup: u64,
    /// Nanoseconds measured.
    pub duration: u64,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Will go on with its next operation.
    Ready,
    /// Computes; `left` 1024ths of a nanosecond are left.
    Work,
    /// Computes for ever.
    Burn,
    /// Computes its part of a pool; `left` as in `Work`.
    Pool,
    /// Is about to wake the next sleeper of this barrier, which takes as long as its CPU's costs.
    Waking(u32),
    /// Waits on its CPU; `left` nanoseconds of spinning until `Limit`.
    Spin(Limit),
    /// Waits without a CPU.
    Asleep,
    /// Has ended.
    Done,
}

/// What happens when a thread has spun for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// It sleeps.
    Sleep,
    /// The hardware catches its vCPU.
    Caught,
    /// It asks another worker for work.
    Ask,
}

/// A thread of a guest.
#[derive(Clone, Debug)]
struct Thread {
    vm: usize,
    /// Its vCPU.
    task: TaskId,
    program: usize,
    /// Its number within its program.
    number: u32,
    /// Whether what it does is its VM's throughput.
    measured: bool,
    profile: usize,
    at: u32,
    state: State,
    left: u64,
    /// Rounds of `Turn`, misses of `Steal`.
    round: u64,
    /// Rounds of `Again`.
    rounds: u64,
    /// Of an adaptive wait: for how long it may spin now, and the mean of past spins, nanoseconds.
    spin: u64,
    usual: u64,
    /// Nanoseconds in which it made progress since warming up ended.
    did: u64,
    /// When a periodic thread is due, or a sleeper fell asleep.
    due: u64,
    /// When the timer of a periodic thread fires that has not run since; 0 without one.
    wakes_at: u64,
    /// Who asked this worker for work.
    asked: u32,
}

/// A CPU.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    /// Up to when its work is settled; in the future while it is busy with something else.
    from: u64,
    /// Work per nanosecond in 1024ths.
    speed: u64,
    /// When its task's slice ends.
    slice_end: u64,
    /// Which task it ran last.
    last: Option<TaskId>,
}

/// The run of a VM's measured threads, which may end.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Of those threads, how many have not ended.
    threads: u32,
    /// When the first began.
    began: u64,
    /// From then on to the end of the last one, nanoseconds.
    took: Option<u64>,
}

/// How a vCPU idles.
#[derive(Clone, Copy, Debug, Default)]
struct Idle {
    /// Until when it polls; meaningful while it runs without a thread.
    until: u64,
    /// When it had nothing more to do.
    since: u64,
    /// KVM's adaptive polling time.
    poll: u64,
    /// Whether it halted since it last ran.
    halted: bool,
    /// Where it ran last.
    last: Option<usize>,
}

/// A simulation under way.
#[derive(Debug)]
pub struct Engine {
    ctx: SchedContext,
    sched: Box<dyn Scheduler>,
    params: Params,
    speed: Speed,
    warmth: warmth::Warmth,
    cpus: Vec<Cpu>,
    vcpus: Vec<GuestVcpu>,
    idles: Vec<Idle>,
    threads: Vec<Thread>,
    links: Links,
    objects: Vec<Objects>,
    programs: Vec<Vec<Vec<Op>>>,
    floats: Vec<bool>,
    hidden: Vec<bool>,
    /// The first thread of each VM, and one more than the last of all.
    first_thread: Vec<usize>,
    lives: Vec<Life>,
    runs: Vec<Run>,
    /// VMs that come and go from now on, the last one first.
    changes: Vec<lives::Change>,
    names: Vec<String>,
    units: Vec<&'static str>,
    memory: Vec<Vec<u32>>,
    bytes: Vec<u64>,
    placement: Option<Placement>,
    placer: Option<Box<place::Placer>>,
    ready: VecDeque<(u32, Waker)>,
    tally: Vec<VmTally>,
    host_tally: HostTally,
    /// Of the scheduler, while warming up.
    boosts_before: u64,
    busy: Vec<u64>,
    sampled: u64,
    events: u64,
    bare: bool,
    warmup: u64,
    end: u64,
}

/// Between two samples of utilisation, as published: every second.
const SAMPLE: u64 = 1_000_000_000;

/// VMs start within so many nanoseconds, at random. Assumed: two periods of noise and of credit's tick, so
/// that seeds begin in different phases of both, and a fiftieth of the usual warm-up.
const START: u64 = 20_000_000;

/// Nanoseconds between the starts of two threads of a VM. Assumed: pthread_create takes some 20 us, with the
/// new thread's first wake-up.
const STAGGER: u64 = 20_000;

impl Thread {
    /// An adaptive wait ended after so many nanoseconds of spinning.
    fn spun(&mut self, ns: u64) {
        if std::mem::take(&mut self.spin) > 0 {
            self.usual = (self.usual * 7 + ns) / 8;
        }
    }
}

impl Engine {
    /// A simulation at its beginning. With a scheduler for the bare machine the caller gives every
    /// thread a vCPU.
    pub fn new(setup: Setup, sched: Box<dyn Scheduler>) -> Self {
        let cpus = setup.host.cpus();
        let threads: usize = setup.vms.iter().map(|vm| vm.workload.threads.len()).sum();
        let mut first = 0;
        let vms: Vec<VmTasks> = setup
            .vms
            .iter()
            .map(|vm| {
                let count = vm.affinity.len() as u32;
                first += count;
                VmTasks {
                    first: first - count,
                    count,
                    weight: vm.weight,
                    cap: vm.cap,
                    own: vm.own,
                    hidden: vm.hidden,
                    service: vm.service,
                    cgroup: vm.cgroup,
                    is_there: vm.life.from == 0,
                }
            })
            .collect();
        let slots = 3 * cpus + SCHED_TIMERS + threads + 3;
        let task = |vm: usize, index: u32| {
            let (vm, index) = (&setup.vms[vm], index as usize);
            let (allowed, preferred) = vm.affinity[index].clone();
            (allowed, preferred, vm.parts.get(index).copied().unwrap_or(1))
        };
        let mut ctx = SchedContext::new(
            setup.host,
            vms,
            task,
            Rng::new(setup.seed),
            Timers::new(slots),
            2 * cpus as u32,
        );
        ctx.cgroups = setup.cgroups;
        ctx.has_changes = setup.vms.iter().any(|vm| vm.life != Life::WHOLE);
        ctx.xen = setup.params.xen;
        ctx.linux = setup.params.linux;
        let bare = sched.bare_metal();
        let memories = setup.vms.iter().map(|vm| vm.memory.clone()).collect();
        let base = if bare { 0 } else { setup.params.virtualisation };
        let warmth =
            warmth::Warmth::new(&ctx.host, &setup.params, &setup.profiles, ctx.tasks.len());
        let speed = Speed::new(&ctx.host, &setup.params, base, setup.profiles, memories);
        let idle_cpu = Cpu { from: 0, speed: ONE, slice_end: u64::MAX, last: None };
        let nodes = ctx.host.nodes.len();
        let periods = (setup.duration / PERIOD_NS) as usize;
        let tally = |vm: &VmSetup| VmTally::new(vm.affinity.len(), nodes, periods);
        let tallies = setup.vms.iter().map(tally).collect();
        let mut engine = Self {
            cpus: vec![idle_cpu; cpus],
            vcpus: vec![GuestVcpu::default(); ctx.tasks.len()],
            idles: vec![Idle::default(); ctx.tasks.len()],
            threads: Vec::with_capacity(threads),
            links: Links::new(threads),
            objects: setup.vms.iter().map(|vm| Objects::new(&vm.workload)).collect(),
            programs: Vec::new(),
            floats: setup.vms.iter().map(|vm| vm.workload.float).collect(),
            hidden: setup.vms.iter().map(|vm| vm.hidden).collect(),
            first_thread: vec![0],
            lives: setup.vms.iter().map(|vm| vm.life).collect(),
            runs: vec![Run::default(); setup.vms.len()],
            changes: lives::Change::all(setup.vms.iter().map(|vm| vm.life)),
            names: setup.vms.iter().map(|vm| vm.name.clone()).collect(),
            units: setup.vms.iter().map(|vm| vm.workload.unit).collect(),
            memory: setup.vms.iter().map(|vm| vm.memory.clone()).collect(),
            bytes: setup.vms.iter().map(|vm| vm.bytes).collect(),
            placement: setup.placement,
            placer: None,
            ready: VecDeque::with_capacity(threads + 1),
            tally: tallies,
            host_tally: HostTally::default(),
            boosts_before: 0,
            busy: vec![0; cpus],
            sampled: 0,
            events: 0,
            bare,
            warmup: setup.warmup,
            end: setup.warmup.saturating_add(setup.duration),
            params: setup.params,
            ctx,
            sched,
            speed,
            warmth,
        };
        for (vm, setup) in setup.vms.iter().enumerate() {
            engine.add_threads(vm, &setup.workload);
        }
        engine
    }

    fn add_threads(&mut self, vm: usize, workload: &Workload) {
        let (first, count) = (self.ctx.vms[vm].first, self.ctx.vms[vm].count);
        for (at, (program, number)) in workload.threads.iter().enumerate() {
            let plan = &workload.programs[*program];
            for op in &plan.ops {
                if let Op::Steal { pool } = op {
                    let members = &mut self.objects[vm].pools[*pool as usize].members;
                    members.push(self.threads.len() as u32);
                }
            }
            self.runs[vm].threads += u32::from(workload.measures(*program));
            self.threads.push(Thread {
                vm,
                task: TaskId(first + at as u32 % count),
                program: *program,
                number: *number,
                measured: workload.measures(*program),
                profile: plan.profile,
                at: 0,
                state: State::Asleep,
                left: 0,
                round: 0,
                rounds: 0,
                spin: 0,
                usual: 0,
                did: 0,
                due: 0,
                wakes_at: 0,
                asked: NONE,
            });
        }
        self.first_thread.push(self.threads.len());
        self.programs.push(workload.programs.iter().map(|program| program.ops.clone()).collect());
    }

    /// Runs to the end.
    pub fn run(mut self) -> RunTotals {
        self.begin();
        let end = self.end;
        while self.advance(end) {}
        self.finish()
    }

    /// Everything that happens at time 0. Called once, before [`Engine::advance`].
    pub fn begin(&mut self) {
        self.sched.start(&mut self.ctx);
        self.note_affinities();
        if let Some(placement) = self.placement.take() {
            let bytes = std::mem::take(&mut self.bytes);
            self.begin_placing(placement, &bytes);
        }
        let cpus = self.cpus.len();
        for cpu in 0..cpus {
            let first = self.sched.first_tick(&mut self.ctx);
            self.ctx.timers.arm((cpus + cpu) as u32, first);
        }
        let first = if self.warmup == 0 { SAMPLE } else { self.warmup };
        self.ctx.timers.arm(self.sample_slot(), first);
        self.begin_guest_ticks();
        self.begin_vms();
    }

    /// The next event up to `until`; false when there is none.
    #[inline]
    pub fn advance(&mut self, until: u64) -> bool {
        let Some((at, slot)) = self.ctx.timers.pop(until) else { return false };
        self.ctx.now = at;
        self.events += 1;
        let (cpus, slot) = (self.cpus.len(), slot as usize);
        let threads = 3 * cpus + SCHED_TIMERS;
        if slot < cpus {
            self.run_over(slot);
        } else if slot < 2 * cpus {
            self.tick(slot - cpus);
        } else if slot < threads {
            self.sched.timer(&mut self.ctx, (slot - 2 * cpus) as u32);
        } else if slot < threads + self.threads.len() {
            self.slept(slot - threads);
        } else if slot == threads + self.threads.len() {
            self.sample();
        } else if slot == threads + self.threads.len() + 1 {
            self.place();
        } else {
            self.change();
        }
        self.settle_down();
        true
    }

    /// The time, nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.ctx.now
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What is on the scheduler's context: for checkers.
    pub fn ctx(&self) -> &SchedContext {
        &self.ctx
    }

    /// The scheduler, to be asked what it knows.
    pub fn scheduler(&self) -> &dyn Scheduler {
        &*self.sched
    }

    /// From now on keeps what happens to the schedule, for [`Engine::facts`]. Called before
    /// [`Engine::begin`].
    pub fn watch(&mut self) {
        self.ctx.facts = Some(Vec::new());
    }

    /// What happened since the last call, in order of time; nothing if nobody watches.
    pub fn facts(&mut self) -> impl Iterator<Item = Fact> + '_ {
        self.ctx.facts.iter_mut().flat_map(|facts| facts.drain(..))
    }

    /// Who may run where.
    fn note_affinities(&mut self) {
        if self.ctx.facts.is_none() {
            return;
        }
        for task in 0..self.ctx.tasks.len() {
            let cpus = self.ctx.tasks[task].allowed.clone();
            self.ctx.note(FactKind::Allowed { task: task as u32, cpus });
        }
    }

    /// Ends a simulation before or at its end.
    pub fn finish(mut self) -> RunTotals {
        self.ctx.now = self.ctx.now.max(self.end);
        self.sum_up()
    }

    /// Carries out what the event set off.
    fn settle_down(&mut self) {
        loop {
            if let Some((thread, by)) = self.ready.pop_front() {
                self.make_ready(thread, by);
            } else if self.ctx.any_pending {
                match self.ctx.pending.first() {
                    Some(cpu) => {
                        self.ctx.pending.clear(cpu);
                        self.schedule(cpu, crate::context::StopReason::Preempted);
                    }
                    None => self.ctx.any_pending = false,
                }
            } else {
                return;
            }
        }
    }

    fn thread_slot(&self, thread: u32) -> u32 {
        (3 * self.cpus.len() + SCHED_TIMERS) as u32 + thread
    }

    fn sample_slot(&self) -> u32 {
        self.thread_slot(self.threads.len() as u32)
    }

    fn place_slot(&self) -> u32 {
        self.sample_slot() + 1
    }

    fn change_slot(&self) -> u32 {
        self.sample_slot() + 2
    }
}
