//! One cycle: observe, decide, apply, and the record of it.

use crate::config::Config;
use crate::decide;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::memory::{Homes, Limits, LiveHost};
use crate::observe::{Observation, Observer, facts_of, keep_only};
use crate::record::{ActionRecord, Cost, MemoryRecord, Record};
use crate::signals::Events;
use crate::view;
use instep_core::decision::{Action, Decision};
use instep_core::idset::CpuSet;
use instep_core::snapshot::Vm;
use instep_core::units::{Nanos, Tid};
use instep_host::apply::{AffinityChange, Applied, Applier, Journal, ThreadKey, ThreadKind};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

/// What a cycle is done with.
#[derive(Debug)]
pub(crate) struct Tools<'a> {
    pub(crate) observer: &'a mut Observer,
    /// On a dry run, what an earlier run changed.
    pub(crate) known: Option<&'a Journal>,
    /// `None` on a dry run.
    pub(crate) applier: Option<&'a mut Applier>,
    pub(crate) homes: &'a mut Homes,
    pub(crate) host: &'a mut LiveHost,
    pub(crate) events: &'a mut Events,
    /// Cycles since the start, this one included.
    pub(crate) count: u64,
}

/// A cycle that was done; [`Done::record`] tells it.
#[derive(Debug)]
pub(crate) struct Done {
    observation: Observation,
    decision: Decision,
    outcomes: Vec<String>,
    memory: Vec<MemoryRecord>,
    cost: Cost,
    time: SystemTime,
    /// Changes that failed, other than by the thread's end.
    pub(crate) failed: usize,
}

/// Does one cycle.
///
/// # Errors
/// The host cannot be read, the journal not written, or every change was refused.
pub(crate) fn cycle(tools: &mut Tools<'_>, config: &Config, once: bool) -> Result<Done, Error> {
    let (time, cpu_before, began) = (SystemTime::now(), cpu_time(), Instant::now());
    let journal = tools.applier.as_deref().map(Applier::journal).or(tools.known);
    let mut observation = tools.observer.look(journal, None)?;
    let missing = keep_only(&mut observation.snapshot, &config.vms);
    if once && let Some(name) = missing.first() {
        return Err(Error::NoSuchVm { name: name.clone() });
    }
    let warnings = missing.iter().map(|name| format!("no VM is called `{name}` now"));
    observation.scan.warnings.extend(warnings);
    let observed = Instant::now();
    let decision = decide(&observation.snapshot, config, tools.count);
    let decided = Instant::now();
    let mut done = Done {
        observation,
        decision,
        outcomes: Vec::new(),
        memory: Vec::new(),
        cost: Cost::default(),
        time,
        failed: 0,
    };
    match tools.applier.as_deref_mut() {
        Some(applier) => {
            done.apply(applier)?;
            if config.memory.home {
                let (seen, limits) = (&done.observation, Limits::of(&config.memory, once));
                let mut stopping = || tools.events.stopping();
                let decided = (seen, &done.decision);
                done.memory = tools.homes.bring_home(tools.host, decided, limits, &mut stopping);
            } else {
                tools.homes.clear();
            }
        }
        None => done.outcomes = vec!["dry run".to_owned(); done.decision.actions.len()],
    }
    let cpu_after = cpu_time();
    done.cost = Cost {
        cpu_ns: cpu_after.since(cpu_before),
        cpu_total_ns: cpu_after,
        observe_ns: nanos(observed.duration_since(began)),
        decide_ns: nanos(decided.duration_since(observed)),
        apply_ns: nanos(decided.elapsed()),
    };
    Ok(done)
}

impl Done {
    /// The record of this cycle.
    pub(crate) fn record<'a>(&'a self, cycle: u64, config: &Config, dry_run: bool) -> Record<'a> {
        let snapshot = &self.observation.snapshot;
        let actions = self.decision.actions.iter().zip(&self.outcomes);
        Record {
            schema: "instep.record/1",
            cycle,
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            policy: config.policy,
            dry_run,
            window_ns: snapshot.window,
            vms: view::verdicts(snapshot, &self.decision),
            actions: actions
                .map(|(action, outcome)| ActionRecord {
                    action: view::action(snapshot, action),
                    outcome: outcome.clone(),
                })
                .collect(),
            conflicts: view::conflicts(snapshot, &self.decision.conflicts),
            memory: &self.memory,
            warnings: &self.observation.scan.warnings,
            cost: self.cost,
        }
    }

    /// Tells the kernel scheduler where the VMs are at home.
    pub(crate) fn tell_homes(&self, dispatch: &mut Dispatch) {
        dispatch.note_homes(&self.observation.snapshot, &self.decision);
    }

    /// Ends the cycle: the next one goes on from here. Nothing was placed on a dry run.
    pub(crate) fn settle(self, observer: &mut Observer, dry_run: bool) {
        let decision = if dry_run { Decision::default() } else { self.decision };
        observer.settle(self.observation, &decision);
    }

    /// Carries out the changes of affinity and notes what came of each action.
    fn apply(&mut self, applier: &mut Applier) -> Result<(), Error> {
        let changes: Vec<AffinityChange> =
            self.decision.actions.iter().filter_map(|action| self.change(action)).collect();
        let mut applied: BTreeMap<Tid, Applied> = BTreeMap::new();
        let mut refused = Vec::new();
        if !changes.is_empty() {
            for outcome in applier.apply(&changes)? {
                if let Applied::Failed(error) = &outcome.applied {
                    self.failed += 1;
                    if error.is_denied() {
                        refused.push(error.to_string());
                    }
                }
                applied.insert(outcome.tid, outcome.applied);
            }
        }
        if refused.len() == changes.len()
            && let Some(first) = refused.first()
        {
            return Err(Error::Denied { first: first.clone(), count: refused.len() });
        }
        let outcome = |action: &Action| match action {
            Action::SetVcpuAffinity { tid, .. } | Action::SetEmulatorAffinity { tid, .. } => {
                applied.get(tid).map_or_else(|| "gone".to_owned(), said)
            }
            Action::MoveMemory { .. } => "see memory".to_owned(),
        };
        self.outcomes = self.decision.actions.iter().map(outcome).collect();
        Ok(())
    }

    /// What the host adapter needs to change one thread; `None` for what is no affinity and for
    /// a thread the scan no longer knows.
    fn change(&self, action: &Action) -> Option<AffinityChange> {
        let vm = self.observation.snapshot.vm(action.vm())?;
        let facts = facts_of(&self.observation.scan, vm)?;
        let (kind, tid, start, seen, cpus) = match action {
            Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
                let start = facts.vcpus.iter().find(|v| v.tid == *tid)?.start_ticks;
                let seen = &vm.vcpus.iter().find(|v| v.tid == *tid)?.allowed;
                (ThreadKind::Vcpu(*vcpu), *tid, start, seen, cpus)
            }
            Action::SetEmulatorAffinity { tid, cpus, .. } => {
                let start = facts.emulators.iter().find(|e| e.tid == *tid)?.start_ticks;
                let seen = &vm.emulators.iter().find(|e| e.tid == *tid)?.allowed;
                (ThreadKind::Emulator, *tid, start, seen, cpus)
            }
            Action::MoveMemory { .. } => return None,
        };
        Some(change(vm, facts.start_ticks, kind, (tid, start), seen, cpus))
    }
}

fn change(
    vm: &Vm,
    pid_start: u64,
    kind: ThreadKind,
    (tid, tid_start): (Tid, u64),
    seen: &CpuSet,
    cpus: &CpuSet,
) -> AffinityChange {
    AffinityChange {
        vm: vm.name.clone(),
        kind,
        thread: ThreadKey { pid: vm.id.0, pid_start, tid, tid_start },
        seen: seen.clone(),
        cpuset: vm.cpuset.clone(),
        cpus: cpus.clone(),
    }
}

/// What came of a change, in words.
fn said(applied: &Applied) -> String {
    match applied {
        Applied::Set => "done".to_owned(),
        Applied::Unchanged => "was so already".to_owned(),
        Applied::Narrowed(got) => format!("the thread's cpuset left only CPUs {got}"),
        Applied::Changed(to) => format!("left alone: someone else set it to CPUs {to} meanwhile"),
        Applied::Gone => "the thread is gone".to_owned(),
        Applied::Failed(error) => error.to_string(),
    }
}

/// CPU time of this process.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Nanos(
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn nanos(time: std::time::Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
