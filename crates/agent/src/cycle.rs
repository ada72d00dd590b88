//! One cycle: observe, decide, apply, tell homes, bring memory home; and the record of it.

use crate::config::Config;
use crate::dispatch::scheduler::Scheduler;
use crate::dispatch::{Dispatch, InForce};
use crate::error::Error;
use crate::left_alone::LeftAlone;
use crate::memory::{Homes, Host, Limits, LiveHost};
use crate::metrics::Metrics;
use crate::observe::{
    Observation, Observer, VmKey, absent, keep_only, keep_trusted, leave_ignored, thread_key,
};
use crate::published::{Keeper, RunState};
use crate::record::{ActionRecord, Cost, Cycle, MemoryRecord, Record, Stopwatch};
use crate::restored::summarize_restore;
use crate::sink::Sink;
use crate::soft::{Decided, NewHome, SoftHomes};
use crate::view;
use crate::vm_settings::Reported;
use crate::watch::Watch;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::units::{NodeId, Tid};
use instep_host::apply::{
    Affinity, AffinityChange, Applied, Applier, ChangeOutcome, Journal, ThreadKind,
};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// What a cycle is done with.
pub(crate) struct Tools<'a, H = LiveHost, S = Dispatch> {
    pub(crate) observer: &'a mut Observer,
    /// On a dry run, what an earlier run changed.
    pub(crate) known: Option<&'a Journal>,
    /// `None` on a dry run.
    pub(crate) applier: Option<&'a mut Applier>,
    pub(crate) homes: &'a mut Homes,
    pub(crate) host: &'a mut H,
    pub(crate) watch: &'a mut Watch<S>,
    pub(crate) left_alone: &'a mut LeftAlone,
    pub(crate) reported: &'a mut Reported,
    /// Whether a stop was asked for.
    pub(crate) stopping: &'a mut dyn FnMut() -> bool,
    pub(crate) sink: &'a mut dyn Sink,
    /// Cycles since the start, this one included.
    pub(crate) count: u64,
}

/// A cycle that was done; [`Done::record`] tells it.
#[derive(Debug)]
pub(crate) struct Done {
    observation: Observation,
    decision: Decision,
    outcomes: Vec<String>,
    /// Homes that are new to the kernel scheduler.
    new_homes: Vec<NewHome>,
    memory: Vec<MemoryRecord>,
    cost: Cost,
    time: SystemTime,
    /// Changes that failed, other than by the thread's end.
    pub(crate) failed: usize,
    /// Threads of VMs that are placed no more that have their first affinity again.
    restored: usize,
}

/// What came of a home that is new to the kernel scheduler.
const PASSED_ON: &str = "passed to the kernel scheduler";
/// The next cycle binds the VM, and follows soon.
const NOT_PASSED_ON: &str = "not passed on: the kernel scheduler is gone or has no room for the VM";

/// Does one cycle.
///
/// # Errors
/// The host cannot be read, the journal not written, or every change was refused.
pub(crate) fn cycle(tools: &mut Tools<'_>, config: &Config, once: bool) -> Result<Done, Error> {
    let mut watch = Stopwatch::start();
    let journal = tools.applier.as_deref().map(Applier::journal).or(tools.known);
    let mut observation = tools.observer.observe(journal, None)?;
    tools.watch.take_held(&mut observation.snapshot.vms);
    keep_trusted(&mut observation.snapshot, &observation.scan, &config.trust());
    leave_ignored(&mut observation.snapshot, &observation.scan);
    let missing = keep_only(&mut observation.snapshot, &config.vms);
    if once && let Some(name) = missing.first() {
        return Err(Error::NoSuchVm(absent(&observation.snapshot, name)));
    }
    let warnings = missing.iter().map(|name| absent(&observation.snapshot, name));
    observation.scan.warnings.extend(warnings);
    tools.reported.note(&observation.scan, tools.sink);
    tools.left_alone.note(&observation, (config, once), tools.sink);
    watch.note_observed();
    let Decided { decision, new_homes, soft } =
        tools.watch.decide(&observation, (config, tools.count));
    watch.note_decided();
    let mut done = Done::of(watch.time, observation, decision, new_homes);
    match tools.applier.as_deref_mut() {
        Some(applier) => {
            done.apply(applier)?;
            let memory = config.memory.home.then(|| Limits::of(&config.memory, once));
            done.go_home(soft, tools, memory);
            // One cycle adds to what others before it left standing.
            if let Some(applier) = tools.applier.as_deref_mut().filter(|_| !once) {
                done.release_others(applier, tools.sink)?;
            }
        }
        None => done.outcomes = vec!["dry run".to_owned(); done.decision.actions.len()],
    }
    done.cost = watch.cost();
    Ok(done)
}

impl Done {
    /// What is to be done, and nothing of it yet.
    fn of(
        time: SystemTime,
        observation: Observation,
        decision: Decision,
        new_homes: Vec<NewHome>,
    ) -> Self {
        Self {
            observation,
            decision,
            outcomes: Vec::new(),
            new_homes,
            memory: Vec::new(),
            cost: Cost::default(),
            time,
            failed: 0,
            restored: 0,
        }
    }

    /// Adds it to the metrics.
    pub(crate) fn count(&self, record: &Record<'_>, metrics: &mut Metrics) {
        metrics.note_cycle(&self.observation, record, (self.failed, self.restored));
    }

    /// Tells everybody of it, and keeps it.
    pub(crate) fn publish(
        &self,
        record: &Record<'_>,
        run: (&RunState, Option<&InForce>),
        keeper: &mut Keeper,
        sink: &mut dyn Sink,
    ) {
        keeper.note_cycle(&self.observation, record, run, sink);
    }

    /// The record of this cycle.
    pub(crate) fn record<'a>(&'a self, cycle: u64, config: &Config, dry_run: bool) -> Record<'a> {
        let snapshot = &self.observation.snapshot;
        let changed = self.decision.actions.iter().zip(&self.outcomes).map(|(action, outcome)| {
            ActionRecord { action: view::action(snapshot, action), outcome: outcome.clone() }
        });
        let new_homes = self.new_homes.iter().map(|home| ActionRecord {
            action: view::soft_home(snapshot, home.vm.id, home.node, &home.why),
            outcome: if home.taken { PASSED_ON } else { NOT_PASSED_ON }.to_owned(),
        });
        let cycle = Cycle {
            count: cycle,
            time: self.time,
            policy: config.policy,
            dry_run,
            snapshot,
            decision: &self.decision,
            warnings: &self.observation.scan.warnings,
            cost: self.cost,
        };
        cycle.record(new_homes.chain(changed).collect(), &self.memory)
    }

    /// Ends the cycle: the next one goes on from here. Nothing was placed on a dry run.
    pub(crate) fn end_cycle(self, observer: &mut Observer, dry_run: bool) {
        let decision = if dry_run { Decision::default() } else { self.decision };
        observer.remember_decision(self.observation, &decision);
    }

    /// Goes on when affinities are set: the kernel scheduler is told homes first, as vCPUs with a soft one
    /// are bound by nothing. Then memory moves, until a stop is asked for or the next cycle is due.
    fn go_home<H: Host, S: Scheduler>(
        &mut self,
        soft: SoftHomes,
        tools: &mut Tools<'_, H, S>,
        memory: Option<Limits>,
    ) {
        tools.watch.tell(self.homes(), (soft, &mut self.new_homes), tools.sink);
        let Some(limits) = memory else { return tools.homes.clear() };
        let mut over = || (tools.stopping)() || tools.watch.interrupts(tools.sink);
        let decided = (&self.observation, &self.decision);
        self.memory = tools.homes.bring_home(tools.host, decided, limits, &mut over);
        if let Some(why) = tools.homes.take_unranked() {
            tools.sink.notice(&why);
        }
    }

    /// Where VMs with one home node are at home.
    fn homes(&self) -> BTreeMap<VmKey, NodeId> {
        let home = |verdict: &Verdict| {
            let single = verdict.selected && verdict.home.len() == 1;
            let node = verdict.home.first().filter(|_| single)?;
            Some((self.observation.key_of(verdict.vm)?, node))
        };
        self.decision.vms.iter().filter_map(home).collect()
    }

    /// Carries out the changes of affinity and notes what came of each action.
    fn apply(&mut self, applier: &mut Applier) -> Result<(), Error> {
        let changes: Vec<AffinityChange> =
            self.decision.actions.iter().filter_map(|action| self.change(action)).collect();
        let outcomes = carry_out(applier, &changes)?;
        self.failed = outcomes.iter().filter(|o| matches!(o.applied, Applied::Failed(_))).count();
        let applied: BTreeMap<Tid, Applied> =
            outcomes.into_iter().map(|outcome| (outcome.tid, outcome.applied)).collect();
        let outcome = |action: &Action| match action {
            Action::SetVcpuAffinity { tid, .. } | Action::SetEmulatorAffinity { tid, .. } => {
                applied.get(tid).map_or_else(|| "gone".to_owned(), describe_outcome)
            }
            Action::SetSoftAffinity { .. } => "a Linux host has no soft affinity".to_owned(),
            Action::MoveMemory { .. } => "see memory".to_owned(),
        };
        self.outcomes = self.decision.actions.iter().map(outcome).collect();
        Ok(())
    }

    /// Gives VMs that are placed no more, such as by a new configuration, the affinities back that they
    /// were found with.
    fn release_others<A: Affinity>(
        &mut self,
        applier: &mut Applier<A>,
        sink: &mut dyn Sink,
    ) -> Result<(), Error> {
        let placed = self.observation.snapshot.vms.iter();
        let placed = placed.map(|vm| (vm.id.0, vm.start_ticks)).collect();
        let report = applier.restore_others(&placed)?;
        self.restored = report.restored;
        if report.restored != 0 {
            sink.notice(&format!("VMs that are no longer placed: {}", summarize_restore(&report)));
        }
        Ok(())
    }

    /// What the host adapter needs to change one thread; `None` for what is no affinity and for
    /// a thread that the snapshot does not have.
    fn change(&self, action: &Action) -> Option<AffinityChange> {
        let vm = self.observation.snapshot.vm(action.vm())?;
        let (kind, thread, seen, cpus) = match action {
            Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
                let one = vm.vcpus.iter().find(|one| one.tid == *tid)?;
                (ThreadKind::Vcpu(*vcpu), thread_key(vm, *tid, one.start_ticks), &one.allowed, cpus)
            }
            Action::SetEmulatorAffinity { tid, cpus, .. } => {
                let one = vm.emulators.iter().find(|one| one.tid == *tid)?;
                (ThreadKind::Emulator, thread_key(vm, *tid, one.start_ticks), &one.allowed, cpus)
            }
            Action::SetSoftAffinity { .. } | Action::MoveMemory { .. } => return None,
        };
        Some(AffinityChange {
            vm: vm.name.clone(),
            kind,
            thread,
            seen: seen.clone(),
            cpuset: vm.cpuset.clone(),
            cpus: cpus.clone(),
        })
    }
}

/// Makes the changes.
///
/// # Errors
/// The journal cannot be written; every change was refused and no other stands, of this run or kept
/// by one before: such a run can do nothing. With VMs in place that it may change, all that is left
/// to change may be another user's: that is told and no reason to end.
fn carry_out<A: Affinity>(
    applier: &mut Applier<A>,
    changes: &[AffinityChange],
) -> Result<Vec<ChangeOutcome>, Error> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes = applier.apply(changes)?;
    let mut refused = outcomes.iter().filter_map(|outcome| match &outcome.applied {
        Applied::Failed(error) if error.is_denied() => Some(error),
        _ => None,
    });
    let (first, count) = (refused.next().map(ToString::to_string), 1 + refused.count());
    match first {
        Some(first) if count == outcomes.len() && applier.journal().entries.is_empty() => {
            Err(Error::Denied { first, count })
        }
        _ => Ok(outcomes),
    }
}

/// What came of a change, in words.
fn describe_outcome(applied: &Applied) -> String {
    match applied {
        Applied::Set => crate::record::DONE.to_owned(),
        Applied::Unchanged => "was so already".to_owned(),
        Applied::Narrowed(got) => format!("the thread's cpuset left only CPUs {got}"),
        Applied::Changed(to) => format!("left alone: someone else set it to CPUs {to} meanwhile"),
        Applied::Gone => "the thread is gone".to_owned(),
        Applied::Failed(error) => error.to_string(),
    }
}

#[cfg(test)]
mod going_home;
#[cfg(test)]
mod publishing;

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::idset::CpuSet;
    use instep_host::Root;
    use instep_host::apply::{Holder, StateDir, thread};
    use std::cell::RefCell;
    use std::io;
    use std::process::{Child, Command};

    /// Of these threads' affinities only those on the list may be changed.
    struct Users(Vec<Tid>, RefCell<BTreeMap<Tid, CpuSet>>);

    impl Affinity for Users {
        fn get(&self, tid: Tid) -> io::Result<CpuSet> {
            Ok(self.1.borrow().get(&tid).cloned().unwrap_or_else(all))
        }
        fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
            if !self.0.contains(&tid) {
                return Err(io::Error::from_raw_os_error(1));
            }
            self.1.borrow_mut().insert(tid, cpus.clone());
            Ok(())
        }
    }

    fn all() -> CpuSet {
        thread::online_cpus(&Root::live()).unwrap()
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("60").spawn().unwrap())
        }

        fn tid(&self) -> Tid {
            Tid(self.0.id())
        }

        fn change(&self) -> AffinityChange {
            AffinityChange {
                vm: "alpha".into(),
                kind: ThreadKind::Vcpu(0),
                thread: thread::key_of(&Root::live(), self.0.id(), self.tid()).unwrap(),
                seen: all(),
                cpuset: all(),
                cpus: CpuSet::one(all().first().unwrap()),
            }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A user's own VM and another user's, and what the user can do; `None` on a machine with one
    /// CPU.
    fn two_users(state: &std::path::Path) -> Option<([Sleeper; 2], Applier<Users>)> {
        if all().len() < 2 {
            instep_madehost::skip::note("one CPU is not enough to tell affinities apart");
            return None;
        }
        let vms = [Sleeper::start(), Sleeper::start()];
        let lock = StateDir::at(state.join("s")).lock().unwrap();
        let users = Users(vec![vms[0].tid()], RefCell::default());
        Some((vms, Applier::with(lock, users).unwrap()))
    }

    #[test]
    fn another_users_vm_ends_only_a_run_under_which_nothing_stands() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let Some(([own, foreign], mut applier)) = two_users(dir.path()) else { return };
        let (own, foreign) = (own.change(), foreign.change());
        // In whatever cycle that is.
        for _ in 0..2 {
            let refused = carry_out(&mut applier, std::slice::from_ref(&foreign));
            assert!(matches!(refused, Err(Error::Denied { count: 1, .. })), "{refused:?}");
        }
        let both = carry_out(&mut applier, &[own, foreign.clone()]).unwrap();
        assert!(matches!(both[0].applied, Applied::Set), "{both:?}");
        let left = carry_out(&mut applier, &[foreign]);
        assert!(matches!(left.unwrap()[0].applied, Applied::Failed(_)), "its own VM is in place");
    }

    #[test]
    fn a_kept_placement_stands_beside_another_users_vm() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let Some(([own, foreign], mut applier)) = two_users(dir.path()) else { return };
        carry_out(&mut applier, &[own.change()]).unwrap();
        applier.keep().unwrap();
        assert!(carry_out(&mut applier, &[foreign.change()]).is_ok());
        assert_eq!((applier.journal().holder, applier.journal().entries.len()), (Holder::Kept, 1));
    }
}
