//! Pulls a trace through the analysis: holds back the first part until the VMs are found, then
//! hands every event to the state and every change to the measures.

mod finish;

use super::co_run::CoRun;
use super::culprits::Culprits;
use super::discover::{FoundVm, discover};
use super::modules::Modules;
use super::moves::Migrations;
use super::period::Periods;
use super::report::AnalysisReport;
use super::stacking::Stacking;
use super::threshold::Threshold;
use super::waits::Waits;
use super::world::{IDLE, SchedState, VcpuChange, World};
use crate::event::{Event, Fact, Left};
use crate::stream::{EventStream, Header, TracedGuest};
use instep_core::measure;
use instep_core::topology::Topology;
use instep_core::units::{CpuId, Nanos, Tid};
use std::collections::{BTreeMap, BTreeSet};

/// Events that are held back until the VMs are known: 20 MB.
const HELD_BACK: usize = 500_000;

/// The most vCPU threads that are counted one by one although they came too late: a bound on memory.
const MAX_LATE: usize = 4096;

/// The longest trace, 13 days, and the latest time that one can begin at, 146 years after the boot: what lies
/// beyond is damage. So sums over all vCPUs stay in 64 bits.
const LONGEST: u64 = 1 << 50;
const LATEST: u64 = 1 << 62;

/// What the caller knows besides the trace, and what the analysis uses as quantum and period.
#[derive(Clone, Debug)]
pub struct AnalysisSettings {
    /// VMs that are known beforehand.
    pub vms: Vec<FoundVm>,
    /// The host's topology; the trace's own when not given.
    pub topology: Option<Topology>,
    /// Why [`AnalysisSettings::topology`] is only inferred: a warning of the report.
    pub inferred: Option<String>,
    /// Weights of VMs by name, before those that the trace tells; 100 where neither does.
    pub weights: BTreeMap<String, u32>,
    /// The scheduler's quantum `T` of the ideal scheduling interval.
    pub quantum: Nanos,
    /// The allocation period.
    pub period: Nanos,
    /// Whether what a vCPU does before its first and after its last event is counted, as far as it
    /// can be told. Tools that look at pairs of events do not count it.
    pub edges: bool,
}

impl Default for AnalysisSettings {
    fn default() -> Self {
        AnalysisSettings {
            vms: Vec::new(),
            topology: None,
            inferred: None,
            weights: BTreeMap::new(),
            quantum: Nanos(3_000_000),
            period: Nanos(24_000_000),
            edges: true,
        }
    }
}

/// Who wants to see every state of every vCPU, for a drawing.
pub trait Sink {
    /// The VMs are known.
    fn begin(&mut self, vms: &[FoundVm], begin: Nanos);
    /// A vCPU, by VM and place in its list, was at `place` from `since` to `until`.
    fn span(&mut self, vm: usize, vcpu: usize, place: SchedState, since: Nanos, until: Nanos);
}

struct NoSink;

impl Sink for NoSink {
    fn begin(&mut self, _: &[FoundVm], _: Nanos) {}
    fn span(&mut self, _: usize, _: usize, _: SchedState, _: Nanos, _: Nanos) {}
}

/// Analyses a trace.
pub fn analyze(stream: &mut dyn EventStream, settings: &AnalysisSettings) -> AnalysisReport {
    analyze_into(stream, settings, &mut NoSink)
}

/// Analyses a trace and shows every state of its vCPUs to `sink`.
pub fn analyze_into(
    stream: &mut dyn EventStream,
    settings: &AnalysisSettings,
    sink: &mut dyn Sink,
) -> AnalysisReport {
    let (mut batch, mut held) = (Vec::new(), Vec::new());
    while held.len() < HELD_BACK && stream.next_batch(&mut batch) {
        held.append(&mut batch);
    }
    let header = stream.header().clone();
    let found = discover(&held, &header.guests, &settings.vms);
    let mut engine = Engine::new(found.vms, &held, &header, settings);
    sink.begin(&engine.world.vms, engine.world.begin);
    if settings.edges {
        engine.start(&held, sink);
    }
    held.iter().for_each(|event| engine.event(event, sink));
    drop(held);
    engine.is_found = true;
    while stream.next_batch(&mut batch) {
        batch.iter().for_each(|event| engine.event(event, sink));
    }
    let mut warnings = header.warnings.clone();
    warnings.extend(stream.tally().warnings(stream.header()));
    warnings.extend(found.warnings);
    engine.finish(stream, &header, settings, sink, warnings)
}

struct Engine {
    world: World,
    stacking: Stacking,
    co_run: CoRun,
    culprits: Culprits,
    waits: Waits,
    moves: Migrations,
    threshold: Threshold,
    periods: Periods,
    modules: Option<Modules>,
    topology_from: TopologyFrom,
    cpus: usize,
    /// Whether the trace has sched_wakeup: when a woken thread is on a queue, and on which.
    /// Without (`perf sched record`), it is on the queue where it was last until it is moved.
    has_wakeups: bool,
    /// Whether anything in the trace says when a thread is woken.
    has_wakers: bool,
    edges: bool,
    shares: Vec<Nanos>,
    /// Of each VM, where anybody told it.
    weights: Vec<Option<u32>>,
    /// Whether the events by which VMs were found have gone by.
    is_found: bool,
    /// vCPU threads that came after these.
    late: BTreeSet<Tid>,
    /// Switches away from another thread than the one that was put there: one between is missing.
    breaks: u64,
    /// Events that came after the longest trace's end.
    beyond: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopologyFrom {
    User,
    Header,
    Nowhere,
}

/// What is known of the VMs' weights: told by the user, else by the trace.
fn weights(vms: &[FoundVm], header: &Header, settings: &AnalysisSettings) -> Vec<Option<u32>> {
    let of = |vm: &FoundVm| {
        let told = settings.weights.get(&vm.name).copied();
        let is_same = |guest: &&TracedGuest| guest.name == vm.name;
        told.or_else(|| header.guests.iter().find(is_same).and_then(|guest| guest.weight))
    };
    vms.iter().map(of).collect()
}

/// CPU time per period by weight, at most one CPU a vCPU; what one cannot use the others share.
fn shares(vms: &[FoundVm], weights: &[Option<u32>], cpus: usize, period: Nanos) -> Vec<Nanos> {
    let claim = |(vm, weight): (&FoundVm, &Option<u32>)| {
        let weight = u64::from(weight.unwrap_or(100).max(1));
        (weight, period.0.saturating_mul(vm.vcpus.len() as u64))
    };
    let claims: Vec<(u64, u64)> = vms.iter().zip(weights).map(claim).collect();
    let capacity = period.0.saturating_mul(cpus as u64);
    measure::fair_shares(capacity, &claims).into_iter().map(Nanos).collect()
}

/// Whether a fact is one of scheduling, whose time counts.
fn is_scheduling(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Switch { .. } | Fact::Waking { .. } | Fact::Wakeup { .. } | Fact::Migrate { .. }
    )
}

impl Engine {
    fn new(
        vms: Vec<FoundVm>,
        held: &[Event],
        header: &Header,
        settings: &AnalysisSettings,
    ) -> Self {
        let begin = held.iter().find(|event| is_scheduling(&event.fact));
        let begin = begin.map_or(Nanos(0), |event| event.time.min(Nanos(LATEST)));
        let is_wake = |fact: &Fact| matches!(fact, Fact::Wakeup { .. } | Fact::Waking { .. });
        let has_wakers = held.iter().any(|event| is_wake(&event.fact));
        let is_queued = |fact: &Fact| matches!(fact, Fact::Wakeup { is_new: false, .. });
        let has_wakeups = held.iter().any(|event| is_queued(&event.fact));
        let (topology, topology_from) = match (&settings.topology, &header.topology) {
            (Some(topology), _) => (Some(topology.clone()), TopologyFrom::User),
            (None, Some(topology)) => (Some(topology.clone()), TopologyFrom::Header),
            (None, None) => (None, TopologyFrom::Nowhere),
        };
        let seen = held.iter().filter(|event| is_scheduling(&event.fact));
        let seen = seen.map(|event| event.cpu.0 as usize + 1).max().unwrap_or(1);
        let told = topology.as_ref().map(|topology| topology.cpus().len());
        let cpus = told.or(header.cpus.map(|cpus| cpus as usize)).unwrap_or(0).max(seen);
        let world = World::new(vms, begin);
        let (vms, vcpus) = (world.vms.len(), world.vcpus.len());
        let weights = weights(&world.vms, header, settings);
        let shares = shares(&world.vms, &weights, cpus, settings.period);
        Engine {
            stacking: Stacking::new(vms),
            co_run: CoRun::new(vms, vcpus, begin),
            culprits: Culprits::new(vms, vcpus),
            waits: Waits::new(vcpus),
            modules: topology.as_ref().and_then(|topology| Modules::new(topology, begin)),
            moves: Migrations::new(vcpus, topology),
            threshold: Threshold::new(vms, settings.quantum, vcpus, cpus, begin),
            periods: Periods::new(settings.period, shares.clone(), begin),
            topology_from,
            cpus,
            has_wakers,
            has_wakeups,
            edges: settings.edges,
            shares,
            weights,
            is_found: false,
            late: BTreeSet::new(),
            breaks: 0,
            beyond: 0,
            world,
        }
    }

    /// What the first event of every CPU and vCPU tells of the time before it.
    fn start(&mut self, held: &[Event], sink: &mut dyn Sink) {
        let begin = self.world.begin;
        let mut places = vec![SchedState::Unknown; self.world.vcpus.len()];
        let mut note = |vcpu: Option<usize>, place| {
            if let Some(first) = vcpu.map(|vcpu| &mut places[vcpu])
                && *first == SchedState::Unknown
            {
                *first = place;
            }
        };
        for event in held {
            match event.fact {
                Fact::Named { tid, name } => self.world.named(tid, name),
                Fact::Member { tid, tgid } => self.world.member(tid, tgid),
                Fact::Switch { prev, next, .. } => {
                    note(self.world.vcpu_of(prev), SchedState::Running(event.cpu));
                    if self.has_wakers {
                        note(self.world.vcpu_of(next), SchedState::Waiting(event.cpu));
                    }
                    let group = self.world.group_of(prev);
                    let state = self.world.cpu(event.cpu);
                    if !state.is_known {
                        (state.group, state.is_known) = (group, true);
                        if let Some(modules) = &mut self.modules {
                            modules.set(event.cpu, group != IDLE, begin);
                        }
                    }
                }
                Fact::Waking { tid, .. } | Fact::Wakeup { tid, .. } => {
                    note(self.world.vcpu_of(tid), SchedState::Blocked);
                }
                _ => {}
            }
        }
        for (vcpu, place) in places.into_iter().enumerate() {
            self.go(vcpu, place, begin, sink);
        }
    }

    #[inline]
    fn event(&mut self, event: &Event, sink: &mut dyn Sink) {
        let Event { time, cpu, fact } = *event;
        match fact {
            Fact::Named { tid, name } => {
                self.world.named(tid, name);
                self.world.note_named(tid);
                if super::discover::vcpu_of_name(&name).is_some() {
                    self.runs_a_vcpu(tid);
                }
                return;
            }
            Fact::KvmEntry { tid, .. } => return self.runs_a_vcpu(tid),
            Fact::VcpuWakeup { tid, halted, slept } => {
                return self.waits.halted(self.world.vcpu_of(tid), halted, slept);
            }
            Fact::Member { tid, tgid } => {
                self.world.note_named(tid);
                return self.world.member(tid, tgid);
            }
            _ if !is_scheduling(&fact) => return,
            _ => {}
        }
        let end = Nanos(self.world.begin.0 + LONGEST);
        let time = if time > end {
            self.beyond += 1;
            end
        } else {
            time
        };
        self.world.now = self.world.now.max(time);
        self.threshold.upto(&self.world, time);
        self.periods.upto(time);
        match fact {
            Fact::Switch { prev, next, left } => self.switch(time, cpu, (prev, next), left, sink),
            Fact::Waking { tid, target, waker, context } => {
                if let Some(vcpu) = self.world.vcpu_of(tid) {
                    self.waits.waker(&self.world, vcpu, waker, context);
                    let queued = SchedState::Waiting(target);
                    let to = if self.has_wakeups { SchedState::Waking } else { queued };
                    self.wake(vcpu, to, time, sink);
                }
            }
            Fact::Wakeup { tid, target, waker, context, .. } => {
                if let Some(vcpu) = self.world.vcpu_of(tid) {
                    let slept = self.world.vcpus[vcpu].place == SchedState::Blocked;
                    if slept && !self.waits.has_waker(vcpu) {
                        self.waits.waker(&self.world, vcpu, waker, context);
                    }
                    self.wake(vcpu, SchedState::Waiting(target), time, sink);
                }
            }
            Fact::Migrate { tid, to, .. } => {
                let vcpu = self.world.vcpu_of(tid);
                self.moves.note_migration(vcpu);
                if let Some(vcpu) = vcpu
                    && matches!(self.world.vcpus[vcpu].place, SchedState::Waiting(_))
                {
                    self.go(vcpu, SchedState::Waiting(to), time, sink);
                }
            }
            _ => {}
        }
    }

    /// A thread turns out to run a vCPU: too late, if it is none of those that were found.
    fn runs_a_vcpu(&mut self, tid: Tid) {
        if self.is_found && self.late.len() < MAX_LATE && self.world.vcpu_of(tid).is_none() {
            self.late.insert(tid);
        }
    }

    #[inline]
    fn switch(
        &mut self,
        time: Nanos,
        cpu: CpuId,
        (prev, next): (Tid, Tid),
        left: Left,
        sink: &mut dyn Sink,
    ) {
        let before = self.world.cpu(cpu).thread.replace((next, time));
        let missing = before.filter(|(before, _)| *before != prev);
        self.breaks += u64::from(missing.is_some());
        if let Some((vcpu, (_, since))) = self.world.vcpu_of(prev).zip(missing) {
            self.came_unseen(vcpu, cpu, since, sink);
        }
        self.culprits.charge_waiting(&mut self.world, cpu, time);
        if let Some(vcpu) = self.world.vcpu_of(prev) {
            self.begin_as(vcpu, SchedState::Running(cpu), time, sink);
            self.go(vcpu, World::after(left, cpu), time, sink);
        }
        if let Some(vcpu) = self.world.vcpu_of(next) {
            if self.has_wakers {
                self.begin_as(vcpu, SchedState::Waiting(cpu), time, sink);
            }
            self.go(vcpu, SchedState::Running(cpu), time, sink);
        }
        let group = self.world.group_of(next);
        let state = self.world.cpu(cpu);
        (state.group, state.is_known) = (group, true);
        if let Some(modules) = &mut self.modules {
            modules.set(cpu, group != IDLE, time);
        }
    }

    /// A vCPU leaves a CPU on which the trace did not put it: it came after the last switch there, as
    /// a rule at once, and the time until now is no wait.
    fn came_unseen(&mut self, vcpu: usize, cpu: CpuId, since: Nanos, sink: &mut dyn Sink) {
        let state = &self.world.vcpus[vcpu];
        if state.place.is_waiting() {
            self.go(vcpu, SchedState::Running(cpu), since.max(state.since), sink);
        }
    }

    /// A vCPU becomes runnable; one that is already stays where it is.
    fn wake(&mut self, vcpu: usize, to: SchedState, time: Nanos, sink: &mut dyn Sink) {
        self.begin_as(vcpu, SchedState::Blocked, time, sink);
        let place = self.world.vcpus[vcpu].place;
        if matches!(place, SchedState::Blocked | SchedState::Unknown | SchedState::Waking) {
            self.go(vcpu, to, time, sink);
        }
    }

    /// A vCPU's first event tells what it did from the beginning.
    #[inline]
    fn begin_as(&mut self, vcpu: usize, place: SchedState, time: Nanos, sink: &mut dyn Sink) {
        if self.world.vcpus[vcpu].place == SchedState::Unknown {
            let since = if self.edges { self.world.begin } else { time };
            self.go(vcpu, place, since, sink);
        }
    }

    #[inline]
    fn go(&mut self, vcpu: usize, to: SchedState, time: Nanos, sink: &mut dyn Sink) {
        self.culprits.settle_one(&mut self.world, vcpu, time);
        let Some(change) = self.world.go(vcpu, to, time) else { return };
        self.changed(&change, sink);
    }

    fn changed(&mut self, change: &VcpuChange, sink: &mut dyn Sink) {
        self.stacking.change(change);
        self.co_run.change(change);
        self.waits.change(change);
        self.moves.change(change);
        self.periods.change(change);
        if change.from != SchedState::Unknown {
            let vcpu = change.vcpu - self.world.members[change.vm][0];
            sink.span(change.vm, vcpu, change.from, change.since, change.time);
        }
    }
}
