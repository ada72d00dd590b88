//! What a schedule did to each VM, from the plain facts that checkers see ([`instep_check::Fact`]): how
//! long its vCPUs waited and who ran instead, how far they fell behind each other and behind their
//! share, and how much of each allocation period it used.
//!
//! *Skew* and the distribution of waits are [`instep_core::measure`]'s, as of `instep analyze`. *Who ran instead*: every
//! nanosecond in which a vCPU waits in a CPU's queue is charged to whoever has that CPU then. *Lag*
//! is by how much CPU time a vCPU is behind the rate that its VM's weight gives it, at most
//! (systems.md, 2). Knows no scheduler, no guest and no weights but the rates it is told.

pub use instep_core::measure::waits::Waits;

use instep_check::{Fact, FactKind};
use instep_core::measure::skew::{SchedState, Siblings, Skew};
use instep_core::units::CpuId;

/// Takes every run and every wait of a vCPU when it is over, for drawing.
pub trait Spans: Send {
    /// A vCPU (its VM and its number in it) ran or waited on `cpu` in this time, in nanoseconds
    /// since measuring began.
    fn span(&mut self, vm: usize, vcpu: usize, ran: bool, cpu: usize, since: u64, until: u64);
}

/// Draws nothing.
impl Spans for () {
    fn span(&mut self, _: usize, _: usize, _: bool, _: usize, _: u64, _: u64) {}
}

/// A VM as the recorder needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVm {
    /// Its vCPUs.
    pub vcpus: usize,
    /// Millionths of a CPU that each of them has by the VM's weight, for its lag.
    pub rate_micro: u64,
    /// Whether it stands for the host's own threads.
    pub hidden: bool,
}

/// What a schedule did to a VM. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmSchedule {
    /// Waits for a CPU that ended.
    pub waits: Waits,
    /// By vCPU: time runnable without a CPU.
    pub steal: Vec<u64>,
    /// By VM, then the host's own threads, then nobody: time it waited while that one had the CPU.
    pub instead: Vec<u64>,
    /// The largest skew of a vCPU.
    pub skew: u64,
    /// The largest lag of a vCPU.
    pub lag: u64,
    /// CPU time in each whole allocation period.
    pub used: Vec<u64>,
    siblings: Siblings,
    at: u64,
    period: u64,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    vm: usize,
    index: usize,
    place: SchedState,
    since: u64,
    /// When its present wait began, in whatever queue.
    waits_from: u64,
    /// Up to when its wait is charged to somebody.
    charged: u64,
    /// CPU time it had in runs that ended.
    had: u64,
    woken: bool,
    skew: Skew,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    from: u64,
    period: u64,
    begun: bool,
    known: Vec<WatchedVm>,
    tasks: Vec<Task>,
    vms: Vec<VmSchedule>,
    /// Group of whoever has each CPU: an index of `instead`.
    group: Vec<usize>,
    waiting: Vec<Vec<u32>>,
}

impl Recorder {
    /// Records from `from` nanoseconds on, with allocation periods of `period`; the tasks of `vms` are
    /// numbered one VM after the other.
    pub fn new(cpus: usize, vms: &[WatchedVm], from: u64, period: u64) -> Self {
        let task = |(vm, index)| Task {
            vm,
            index,
            place: SchedState::Blocked,
            since: 0,
            waits_from: 0,
            charged: 0,
            had: 0,
            woken: false,
            skew: Skew::default(),
        };
        let numbers = vms.iter().enumerate();
        let numbers = numbers.flat_map(|(vm, known)| (0..known.vcpus).map(move |at| (vm, at)));
        let fresh = |known: &WatchedVm| VmSchedule {
            steal: vec![0; known.vcpus],
            instead: vec![0; vms.len() + 2],
            ..VmSchedule::default()
        };
        Self {
            from,
            period: period.max(1),
            begun: false,
            tasks: numbers.map(task).collect(),
            vms: vms.iter().map(fresh).collect(),
            group: vec![vms.len() + 1; cpus],
            waiting: vec![Vec::new(); cpus],
            known: vms.to_vec(),
        }
    }

    /// Takes in a fact; facts come in order of time. Facts of unknown tasks or CPUs are passed over.
    pub fn see(&mut self, fact: &Fact, spans: &mut dyn Spans) {
        if fact.at >= self.from && !self.begun {
            self.begin();
        }
        let id = fact.what.task() as usize;
        let cpu = fact.what.cpu().map_or(0, |cpu| cpu as usize);
        if id >= self.tasks.len() || cpu >= self.group.len() {
            return;
        }
        let here = CpuId(cpu as u32);
        let to = match fact.what {
            FactKind::Start { .. } => SchedState::Running(here),
            FactKind::Stop { blocks: true, .. } => SchedState::Blocked,
            FactKind::Stop { .. } | FactKind::Wake { .. } => SchedState::Waiting(here),
            FactKind::Move { .. } if matches!(self.tasks[id].place, SchedState::Waiting(_)) => {
                SchedState::Waiting(here)
            }
            FactKind::Move { .. } | FactKind::Allowed { .. } => return,
        };
        self.leave(id, fact.at, spans);
        self.enter(id, to, fact);
    }

    /// What came of it up to `until`, by VM.
    pub fn finish(mut self, until: u64, spans: &mut dyn Spans) -> Vec<VmSchedule> {
        if !self.begun {
            self.begin();
        }
        for id in 0..self.tasks.len() {
            let place = self.tasks[id].place;
            self.leave(id, until, spans);
            self.tasks[id].place = place;
        }
        for vm in &mut self.vms {
            vm.pass(until, self.from, self.period);
            vm.used.truncate(usize::try_from(vm.period).unwrap_or(usize::MAX));
        }
        self.vms
    }

    /// Measuring begins: what was before only says where everybody is.
    fn begin(&mut self) {
        self.begun = true;
        for task in &mut self.tasks {
            let from = self.from;
            (task.since, task.charged) = (task.since.max(from), from);
            task.waits_from = task.waits_from.max(from);
            (task.had, task.skew) = (0, Skew::default());
        }
        for vm in &mut self.vms {
            vm.waits.clear();
            vm.steal.fill(0);
            vm.instead.fill(0);
            vm.used.clear();
            (vm.skew, vm.lag) = (0, 0);
            vm.siblings.reset();
            (vm.at, vm.period) = (self.from, 0);
        }
    }

    /// The task's stay where it is ends now: what came of it is added.
    fn leave(&mut self, id: usize, now: u64, spans: &mut dyn Spans) {
        let task = self.tasks[id];
        let (period, from) = (self.period, self.from);
        let vm = &mut self.vms[task.vm];
        vm.pass(now, from, period);
        let span = now.saturating_sub(task.since);
        let this = &mut self.tasks[id];
        let behind = this.skew.advance(task.place, &vm.siblings);
        if task.place.is_waiting() {
            vm.skew = vm.skew.max(behind);
        }
        vm.siblings.leave(task.place);
        match task.place {
            SchedState::Waiting(CpuId(cpu)) => {
                let cpu = cpu as usize;
                vm.steal[task.index] += span;
                self.charge(id, cpu, now);
                self.waiting[cpu].retain(|other| *other as usize != id);
            }
            SchedState::Running(CpuId(cpu)) => {
                let cpu = cpu as usize;
                this.had += span;
                self.charge_waiting(cpu, now);
                self.group[cpu] = self.known.len() + 1;
            }
            SchedState::Blocked | SchedState::Waking | SchedState::Unknown => {}
        }
        let vm = &mut self.vms[task.vm];
        let this = &mut self.tasks[id];
        if self.begun && span > 0 && !self.known[task.vm].hidden {
            let since = task.since - from;
            if let Some(cpu) = task.place.cpu() {
                let (ran, cpu) = (!task.place.is_waiting(), cpu.0 as usize);
                spans.span(task.vm, task.index, ran, cpu, since, since + span);
            }
        }
        if self.begun && !matches!(task.place, SchedState::Running(_)) {
            let due =
                u128::from(now - from) * u128::from(self.known[task.vm].rate_micro) / 1_000_000;
            let due = u64::try_from(due).unwrap_or(u64::MAX);
            vm.lag = vm.lag.max(due.saturating_sub(this.had));
        }
    }

    fn enter(&mut self, id: usize, to: SchedState, fact: &Fact) {
        let now = fact.at;
        let task = &mut self.tasks[id];
        let was = std::mem::replace(&mut task.place, to);
        let vm = &mut self.vms[task.vm];
        vm.siblings.enter(to);
        match to {
            SchedState::Blocked | SchedState::Waking | SchedState::Unknown => {}
            SchedState::Waiting(CpuId(cpu)) => {
                task.charged = now;
                // Going to another queue, the wait goes on.
                if !matches!(was, SchedState::Waiting(_)) {
                    (task.waits_from, task.woken) = (now, was == SchedState::Blocked);
                }
                self.waiting[cpu as usize].push(id as u32);
            }
            SchedState::Running(CpuId(cpu)) => {
                let cpu = cpu as usize;
                let waited = now.saturating_sub(task.waits_from);
                // Chosen again at once, it never waited.
                if matches!(was, SchedState::Waiting(_)) && (waited > 0 || task.woken) {
                    vm.waits.add(waited);
                }
                let known = &self.known[task.vm];
                let group = if known.hidden { self.known.len() } else { task.vm };
                self.charge_waiting(cpu, now);
                self.group[cpu] = group;
            }
        }
        self.tasks[id].since = now;
    }

    /// Charges all who wait for this CPU to whoever had it up to now.
    fn charge_waiting(&mut self, cpu: usize, now: u64) {
        for at in 0..self.waiting[cpu].len() {
            let id = self.waiting[cpu][at] as usize;
            self.charge(id, cpu, now);
        }
    }

    fn charge(&mut self, id: usize, cpu: usize, now: u64) {
        let task = &mut self.tasks[id];
        let span = now.saturating_sub(task.charged);
        task.charged = task.charged.max(now);
        self.vms[task.vm].instead[self.group[cpu]] += span;
    }
}

impl VmSchedule {
    /// Time goes on.
    fn pass(&mut self, now: u64, from: u64, period: u64) {
        while now > self.at {
            let end = from + (self.period + 1) * period;
            let to = if self.at < from { now } else { now.min(end) };
            let span = to - self.at;
            self.siblings.pass(span);
            if self.at >= from {
                let used = span * u64::from(self.siblings.running());
                match self.used.get_mut(self.period as usize) {
                    Some(sum) => *sum += used,
                    None => self.used.push(used),
                }
                self.period += u64::from(to == end);
            }
            self.at = to;
        }
    }
}

#[cfg(test)]
mod tests;
