//! What was followed as a report: what the state and the measures add up to at the end of a trace.
//!
//! A vCPU without any event was in one state all the time, and the trace does not tell in which: its
//! times are the kernel's own counters', where the recording has them, and else not known.

use super::super::findings;
use super::super::moves::Moves;
use super::super::report::{
    AnalysedCulprit, AnalysedHost, AnalysedVcpu, AnalysedVm, AnalysisReport, HeldUpReport,
    Occupant, OnCpu, PeriodReport,
};
use super::super::throttle;
use super::super::waits::WaitTable;
use super::super::world::{FIRST_VM, IDLE, SchedState, WAKING};
use super::{AnalysisSettings, Engine, HELD_BACK, MAX_LATE, Sink, TopologyFrom};
use crate::stream::{Counter, EventStream, Header, counted};
use instep_core::units::Nanos;
use instep_core::wording::Count;

/// A vCPU without events that had at least this part of the time, in thousandths, ran.
const RAN: u64 = 10;

/// Time on a CPU, runnable, and asleep.
type Times = (u64, u64, u64);

impl Engine {
    pub(super) fn finish(
        mut self,
        stream: &dyn EventStream,
        header: &Header,
        settings: &AnalysisSettings,
        sink: &mut dyn Sink,
        mut warnings: Vec<String>,
    ) -> AnalysisReport {
        let now = self.world.now;
        if self.edges {
            self.close(now, sink);
        }
        warnings.extend(settings.inferred.clone());
        self.warn(stream, &mut warnings);
        let duration = now.since(self.world.begin);
        let begin = self.world.begin;
        let modules = self.modules.as_mut().map(|modules| modules.finish(begin, now));
        let has_single_cores = modules.is_none() && self.topology_from != TopologyFrom::Nowhere;
        // Where no core has two CPUs, nothing competes.
        let modules = modules.or(has_single_cores.then_some((0.0, Nanos(0))));
        let host = AnalysedHost {
            hostname: header.hostname.clone().filter(|name| name != "(none)"),
            release: header.release.clone(),
            format: header.format.clone(),
            cpus: self.cpus,
            begin_ns: begin.0,
            ideal_interval_ns: self.threshold.interval.0,
            period_ns: settings.period.0,
            competing_modules: modules.map(|(mean, _)| rounded(mean)),
            avoidable_sharing_ns: modules.map(|(_, avoidable)| avoidable.0),
            has_single_cores,
        };
        // Of VMs that `--vm` left out only runs are recorded, no wake-ups: nothing can be analysed.
        let wanted = |name: &String| header.only.is_empty() || header.only.contains(name);
        let wanted: Vec<usize> =
            (0..self.world.vms.len()).filter(|vm| wanted(&self.world.vms[*vm].name)).collect();
        let mut vms: Vec<AnalysedVm> =
            wanted.iter().map(|vm| self.vm_report(*vm, duration, stream.counters())).collect();
        for (vm, at) in vms.iter_mut().zip(wanted) {
            let its = stream.throttled().iter().find(|by| Some(by.pid) == vm.pid);
            let Some(by) = its else { continue };
            let members = self.world.members[at].iter();
            let vcpus: Vec<_> = members.map(|vcpu| self.culprits.of_vcpu(*vcpu)).collect();
            throttle::separate(vm, by, self.culprits.by_occupant(at), &vcpus);
        }
        let unseen = self.world.vcpus.iter().filter(|vcpu| !vcpu.is_told);
        let unseen = unseen.filter(|vcpu| vcpu.place == SchedState::Unknown);
        let unseen = unseen.map(|vcpu| vcpu.tid.0).collect();
        let is_there = |name: &String| self.world.vms.iter().any(|vm| vm.name == *name);
        let strangers = settings.weights.keys().filter(|name| !is_there(name)).cloned().collect();
        let findings = findings::find(&vms, &host, duration);
        AnalysisReport {
            schema: "instep.analysis/1",
            duration_ns: duration.0,
            events: stream.tally().records,
            lost: stream.tally().lost,
            trace: stream.tally().into(),
            vms,
            findings,
            host,
            warnings,
            unseen,
            strangers,
        }
    }

    /// Accounts the last state of every vCPU up to the end.
    fn close(&mut self, now: Nanos, sink: &mut dyn Sink) {
        for vcpu in 0..self.world.vcpus.len() {
            self.culprits.settle_one(&mut self.world, vcpu, now);
            let state = &mut self.world.vcpus[vcpu];
            let span = now.since(state.since);
            match state.place {
                SchedState::Running(_) => state.run.0 += span.0,
                SchedState::Waking | SchedState::Waiting(_) => state.wait.0 += span.0,
                SchedState::Blocked => state.blocked.0 += span.0,
                SchedState::Unknown => continue,
            }
            let (vm, place, since) = (state.vm, state.place, state.since);
            sink.span(vm, vcpu - self.world.members[vm][0], place, since, now);
        }
    }

    fn warn(&self, stream: &dyn EventStream, warnings: &mut Vec<String>) {
        if self.world.vms.is_empty() {
            warnings.push(
                "no vCPU thread was found: none is named as VMMs name them and none entered a \
                 guest; name them with --vm NAME=TID,TID,..."
                    .to_owned(),
            );
        }
        let quiet = self.world.vcpus.iter().filter(|vcpu| vcpu.place == SchedState::Unknown);
        let (known, unknown): (Vec<_>, Vec<_>) =
            quiet.partition(|vcpu| counter(stream.counters(), vcpu.tid.0).is_some());
        if !unknown.is_empty() {
            warnings.push(format!(
                "{}: asleep, or undisturbed on a CPU, all the time; which of both is not known",
                without_events(unknown.len())
            ));
        }
        if !known.is_empty() {
            warnings.push(format!(
                "{}: the times are what the kernel counted, to a clock tick",
                without_events(known.len())
            ));
        }
        if self.topology_from == TopologyFrom::Nowhere {
            warnings.push(
                "cores, caches and nodes are unknown; give them with --topology FILE (instep \
                 topology --json on that host)"
                    .to_owned(),
            );
        }
        if !self.has_wakers && stream.tally().records > 0 {
            warnings.push(
                "the trace has no wake-ups (sched_wakeup, sched_waking): sleeping and waiting \
                 for a CPU cannot be told apart after a sleep"
                    .to_owned(),
            );
        }
        self.warn_of_gaps(stream, warnings);
    }

    /// Switches that are missing, and vCPUs that are.
    fn warn_of_gaps(&self, stream: &dyn EventStream, warnings: &mut Vec<String>) {
        if self.breaks > 0 {
            let tally = stream.tally();
            let is_told = tally.lost > 0 || tally.lost_places > 0 || tally.damaged > 0;
            warnings.push(format!(
                "{} missing{}: a thread left a CPU that another \
                 had been put on; it is taken to have come just after that one",
                counted(self.breaks, "switch is", "switches are"),
                if is_told { "" } else { " although no loss is reported" }
            ));
        }
        if self.beyond > 0 {
            warnings.push(format!(
                "{} more than 13 days after the first: the file is damaged there, and times \
                 that long after it are wrong",
                counted(self.beyond, "event came", "events came")
            ));
        }
        let reordered = stream.tally().reordered;
        // The clock of Instep's own recordings never steps.
        if self.breaks > 0 && reordered > 0 && !stream.header().is_own {
            warnings.push(format!(
                "{} after a later one of the same CPU and had to be put in order by time, and then \
                 switches are missing: if the clock stepped back, times near them are wrong",
                counted(reordered, "event came", "events came")
            ));
        }
        if !self.late.is_empty() {
            let count = self.late.len();
            warnings.push(format!(
                "{}{} after the first {HELD_BACK} events, too late to be found; name them with \
                 --vm NAME=TID,TID,...",
                if count == MAX_LATE { "at least " } else { "" },
                counted(count as u64, "vCPU thread came", "vCPU threads came"),
            ));
        }
    }

    /// Who occupied CPUs, seen from a VM.
    fn culprit(&self, vm: usize, group: usize, time: Nanos) -> AnalysedCulprit {
        let who = match group {
            IDLE => Occupant::Idle,
            WAKING => Occupant::Waking,
            group if group == FIRST_VM + vm => Occupant::Siblings,
            _ => Occupant::Other,
        };
        AnalysedCulprit { name: self.world.groups[group].clone(), ns: time.0, who }
    }

    /// The times of a vCPU, if anything tells them.
    fn times(&self, vcpu: usize, duration: Nanos, counters: &[Counter]) -> Option<Times> {
        let state = &self.world.vcpus[vcpu];
        if state.place != SchedState::Unknown {
            return Some((state.run.0, state.wait.0, state.blocked.0));
        }
        let counted = counter(counters, state.tid.0)?;
        let run = counted.run_ns.min(duration.0);
        let wait = counted.wait_ns.min(duration.0 - run);
        Some((run, wait, duration.0 - run - wait))
    }

    /// Whether the events tell what a VM's vCPUs did: one at least has events, and none without ran.
    fn is_evident(&self, vm: usize, duration: Nanos, counters: &[Counter]) -> bool {
        let mut members = self.world.members[vm].iter();
        let is_seen = |vcpu: &usize| self.world.vcpus[*vcpu].place != SchedState::Unknown;
        let ran_unseen = |vcpu: &usize| {
            let run = self.times(*vcpu, duration, counters).map_or(0, |(run, ..)| run);
            !is_seen(vcpu) && Nanos(run).milli_of(duration).0 >= RAN
        };
        members.clone().any(is_seen) && !members.any(ran_unseen)
    }

    fn vm_report(&mut self, vm: usize, duration: Nanos, counters: &[Counter]) -> AnalysedVm {
        let now = self.world.now;
        let found = self.world.vms[vm].clone();
        let (stacked, stacked_on) = self.stacking.of(vm, now);
        let (mut wakeups, mut moves) = (WaitTable::default(), Moves::default());
        let (mut sleeps, mut waits) = ([0; 20], [0; 20]);
        let (mut vcpus, mut waits_by_vcpu) = (Vec::new(), Vec::new());
        for vcpu in self.world.members[vm].iter().copied() {
            let (state, times) = (&self.world.vcpus[vcpu], self.times(vcpu, duration, counters));
            let (migrations, by_distance) = self.moves.of(vcpu);
            let (table, slept, waited) = self.waits.of(vcpu);
            wakeups.add(&table);
            waits_by_vcpu.push((&table).into());
            moves.add(&by_distance);
            sleeps.iter_mut().zip(slept).for_each(|(sum, more)| *sum += more);
            waits.iter_mut().zip(waited).for_each(|(sum, more)| *sum += more);
            vcpus.push(AnalysedVcpu {
                index: state.index,
                tid: state.tid.0,
                run_ns: times.map(|(run, ..)| run),
                steal_ns: times.map(|(_, wait, _)| wait),
                throttled_ns: None,
                blocked_ns: times.map(|(.., blocked)| blocked),
                migrations,
            });
        }
        let culprits = self.culprits.of(vm).into_iter();
        let culprits = culprits.map(|(group, time)| self.culprit(vm, group, time)).collect();
        let evident = self.is_evident(vm, duration, counters);
        let co_run = self.co_run.of(vm, now, &self.world);
        let (held, used) = (self.threshold.of(vm), self.periods.of(vm));
        let begin = self.world.begin;
        AnalysedVm {
            name: found.name,
            pid: found.pid,
            vcpus,
            stacking: evident.then(|| fraction(stacked, duration)),
            co_run: co_run.milli.filter(|_| evident).map(|milli| milli as f64 / 1000.0),
            culprits,
            max_skew_ns: evident.then_some(co_run.max_skew.0),
            beside_waiting_ns: evident.then_some(co_run.beside_waiting.0),
            stacked_on: stacked_on
                .iter()
                .map(|(cpu, time)| OnCpu { cpu: cpu.0, ns: time.0 })
                .collect(),
            wakeups,
            waits_by_vcpu,
            halts: self.waits.halts(&self.world.members[vm]),
            sleeps,
            waits,
            moves,
            held_up: HeldUpReport {
                passes: held.passes,
                times_ns: held.times.iter().map(|time| time.since(begin).0).collect(),
                held_ns: held.held.0,
            },
            periods: PeriodReport {
                count: used.count,
                weight: self.weights[vm],
                share_ns: self.shares[vm].0,
                full: evident.then_some(used.full),
                mean_use_ns: used.total.0.checked_div(used.count).filter(|_| evident),
                efficiency: used.efficiency().filter(|_| evident).map(|of| of as f64 / 1000.0),
            },
            throttled: None,
        }
    }
}

/// `1 vCPU thread has no event`, `2 vCPU threads have no event`.
fn without_events(count: usize) -> String {
    let have = if count == 1 { "has" } else { "have" };
    format!("{} {have} no event", Count::of(count, "vCPU thread"))
}

/// What the kernel counted of a thread.
fn counter(counters: &[Counter], tid: u32) -> Option<&Counter> {
    counters.iter().find(|counter| counter.tid == tid)
}

fn fraction(part: Nanos, whole: Nanos) -> f64 {
    if whole.0 == 0 { 0.0 } else { rounded(part.0 as f64 / whole.0 as f64) }
}

/// To four places.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}
