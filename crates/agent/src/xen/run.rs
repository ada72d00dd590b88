//! `run` on a Xen host: cycles until told to stop, and everything put back at the end.
//!
//! ```text
//! lock -> (crashed before? restore) -> guardian -> measure -> cycle -> once? keep : wait -> cycle ...
//!                                                            stop asked for -> restore
//! ```

use super::{
    DomainObservation, Domains, Memory, PriorScan, decide, depth_of, describe_restore,
    observe_domains, open,
};
use crate::config::Config;
use crate::error::Error;
use crate::guard::Guard;
use crate::locks::lock;
use crate::observe::{absent, keep_only};
use crate::published::{self, RunState};
use crate::record::{ActionRecord, Cycle, DONE, Stopwatch};
use crate::reload::{Reload, read_again};
use crate::run::HANDED_OVER;
use crate::service::{self, Service};
use crate::signals::{Events, Wake};
use crate::sink::Sink;
use crate::view;
use instep_core::decision::{Action, Decision};
use instep_core::snapshot::Snapshot;
use instep_core::units::VmId;
use instep_core::wording::Count;
use instep_host::apply::StateDir;
use instep_xen::apply::{
    Applied, Applier, DomainChange, DomainRestoreReport, Holder, HostAccess, Journal,
};
use instep_xen::scan::{Depth, scan};
use instep_xen::{Source, XenScan};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// What to run with.
pub struct XenRunOptions<'a> {
    /// The configuration to begin with.
    pub config: Config,
    /// Reads it again on SIGHUP.
    pub reload: Option<Reload<'a>>,
    /// One cycle only; what it set stays.
    pub once: bool,
    /// Where originals are kept; `None` on a dry run.
    pub state: Option<StateDir>,
    /// On a dry run, what an earlier run changed.
    pub known: Option<Journal>,
    /// Starts the guardian of a run that goes on.
    pub guardian: Option<Command>,
    /// Signals that came since the process began.
    pub events: Events,
    /// This machine.
    pub source: Source,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Changes of the last cycle that failed.
    pub failed: usize,
    /// What was put back at the end; `None` when the placement was kept or never made.
    pub restored: Option<DomainRestoreReport>,
}

/// Memory by node is asked for again after this time: Xen walks the page lists of all domains for it.
const MEMORY_EVERY: Duration = Duration::from_secs(600);

/// Runs until stopped, or once.
///
/// # Errors
/// Another instance runs; the host cannot be read at the begin; the journal cannot be written. What was changed is put
/// back first.
pub fn run(mut options: XenRunOptions<'_>, sink: &mut dyn Sink) -> Result<Ended, Error> {
    let first = scan(&options.source, Depth::Times)?;
    let state = options.state.clone();
    let locked = state.as_ref().map(lock).transpose()?;
    let mut applier = match &state {
        None => None,
        Some(state) => {
            published::forget(state.path());
            Some(begin(open(state, options.source.clone(), &first.info)?, sink)?)
        }
    };
    let command = options.guardian.take().filter(|_| applier.is_some() && !options.once);
    let mut guard = Guard::start(command, sink);
    let mut run = Run::start(options, first);
    let result = run.cycles(applier.as_mut(), &mut guard, sink);
    let ended = match &mut applier {
        Some(applier) => run.end(result, applier, sink),
        None => result,
    };
    service::tell_end(match &ended {
        Ok(Ended { restored: None, .. }) => "ended; what was placed stays",
        Ok(_) => "ended; affinities are restored",
        Err(_) => "ended with an error",
    });
    if let Some(state) = &state {
        published::withdraw(state.path());
        drop((applier, locked));
        guard.leave(state, &Domains);
    }
    ended
}

/// Restores what a run left that was killed.
fn begin<H: HostAccess>(mut applier: Applier<H>, sink: &mut dyn Sink) -> Result<Applier<H>, Error> {
    let journal = applier.journal();
    if journal.holder != Holder::Kept && !journal.domains.is_empty() {
        let report = applier.restore(|_| true)?;
        let mut lines = describe_restore(&report);
        lines[0].insert_str(0, "an earlier run ended without restoring; ");
        lines.iter().for_each(|line| sink.notice(line));
    }
    Ok(applier)
}

/// What goes on from cycle to cycle.
struct Run<'a> {
    options: XenRunOptions<'a>,
    service: Service,
    /// The look that the next window begins with.
    before: XenScan,
    memory: Memory,
    /// When memory by node was asked for last.
    walked: Option<Instant>,
    /// Cycles since the start.
    count: u64,
}

impl<'a> Run<'a> {
    fn start(options: XenRunOptions<'a>, before: XenScan) -> Self {
        let service = Service::begin(options.config.window);
        Self { options, service, before, memory: Memory::new(), walked: None, count: 0 }
    }

    fn cycles<H: HostAccess>(
        &mut self,
        mut applier: Option<&mut Applier<H>>,
        guard: &mut Guard,
        sink: &mut dyn Sink,
    ) -> Result<Ended, Error> {
        self.options.events.hold_stops()?;
        let mut ended = Ended::default();
        let mut wait = self.options.config.window;
        loop {
            match self.wait(wait) {
                Wake::Stop => return Ok(ended),
                Wake::Reload => {
                    let service = self.service.clone();
                    service.reload(|| {
                        if let Some(config) = read_again(&mut self.options.reload, sink) {
                            self.options.config = config;
                        }
                    });
                    wait = self.options.config.window;
                    continue;
                }
                Wake::Time => {}
            }
            guard.ensure_running(sink);
            self.count += 1;
            let status = match self.cycle(applier.as_deref_mut(), sink) {
                Ok((failed, status)) => {
                    ended.failed = failed;
                    status
                }
                // What worked before may work again; the placement stands meanwhile.
                Err(error) if self.count > 1 => {
                    sink.notice(&format!("this cycle failed: {error}"));
                    format!("cycle {} failed: {error}", self.count)
                }
                Err(error) => return Err(error),
            };
            self.service.note_cycle(&status);
            if self.options.once {
                return Ok(ended);
            }
            if let Some(applier) = applier.as_deref_mut() {
                // What an earlier run left standing is this one's now, which puts it back when it ends.
                applier.take_over()?;
            }
            wait = self.options.config.interval;
            if let Some(state) = &self.options.state {
                RunState::publish_now(state.path(), self.options.config.policy, self.count, wait);
            }
        }
    }

    /// Waits for the next cycle, and tells the service manager meanwhile that this process lives.
    fn wait(&mut self, time: Duration) -> Wake {
        let begun = Instant::now();
        loop {
            self.service.sign();
            let left = time.saturating_sub(begun.elapsed());
            let look = left.min(self.service.every());
            match self.options.events.wait(look) {
                Wake::Time if left > look => {}
                wake => return wake,
            }
        }
    }

    /// Leaves the placement standing or puts it back.
    fn end<H: HostAccess>(
        &mut self,
        result: Result<Ended, Error>,
        applier: &mut Applier<H>,
        sink: &mut dyn Sink,
    ) -> Result<Ended, Error> {
        match result {
            Ok(ended) if self.options.once => {
                applier.keep()?;
                Ok(ended)
            }
            Ok(ended) if self.options.events.is_hand_over() => {
                sink.notice(HANDED_OVER);
                applier.keep()?;
                Ok(ended)
            }
            Ok(ended) => Ok(Ended { restored: Some(applier.restore(|_| true)?), ..ended }),
            // What an earlier run meant to stand still does.
            Err(error) if applier.journal().holder == Holder::Kept => Err(error),
            Err(error) => {
                match applier.restore(|_| true) {
                    Ok(report) => describe_restore(&report).iter().for_each(|line| sink.notice(line)),
                    Err(failed) => sink.notice(&format!(
                        "the affinities found cannot be put back: {failed}; `instep restore` puts back what is \
                         recorded"
                    )),
                }
                Err(error)
            }
        }
    }

    /// Looks, decides, applies and tells; how many changes failed, and the cycle in a line.
    fn cycle<H: HostAccess>(
        &mut self,
        mut applier: Option<&mut Applier<H>>,
        sink: &mut dyn Sink,
    ) -> Result<(usize, String), Error> {
        let mut watch = Stopwatch::start();
        let XenRunOptions { config, known, source, once, .. } = &self.options;
        let is_due = self.walked.is_none_or(|at| at.elapsed() >= MEMORY_EVERY);
        let depth = if is_due { depth_of(config) } else { Depth::Full };
        if is_due {
            self.walked = Some(Instant::now());
        }
        let journal = applier.as_deref().map(Applier::journal).or(known.as_ref());
        let known = PriorScan { before: Some(&self.before), elapsed: None, journal };
        let DomainObservation { mut snapshot, mut scan, .. } =
            observe_domains(source, depth, &known, &mut self.memory)?;
        let missing = keep_only(&mut snapshot, &config.vms);
        if *once && let Some(name) = missing.first() {
            return Err(Error::NoSuchVm(absent(&snapshot, name)));
        }
        scan.warnings.extend(missing.iter().map(|name| absent(&snapshot, name)));
        watch.note_observed();
        let decision = decide(&snapshot, &config.settings());
        watch.note_decided();
        let (outcomes, failed) = match applier.as_deref_mut() {
            Some(applier) => carry_out(applier, &decision, &scan)?,
            None => (BTreeMap::new(), 0),
        };
        let outcome = |vm: VmId| match outcomes.get(&vm) {
            Some(outcome) => outcome.clone(),
            None => "dry run".to_owned(),
        };
        let cycle = Cycle {
            count: self.count,
            time: watch.time,
            policy: config.policy,
            dry_run: applier.is_none(),
            snapshot: &snapshot,
            decision: &decision,
            warnings: &scan.warnings,
            cost: watch.cost(),
        };
        let record = cycle.record(actions(&snapshot, &decision, outcome), &[]);
        sink.record(&record);
        let (vms, changes) = (record.vms.len(), record.actions.len());
        let (vms, changes) = (Count::of(vms, "VM"), Count::of(changes, "change"));
        let status = format!("cycle {}: {vms}, {changes}", self.count);
        self.before = scan;
        Ok((failed, status))
    }
}

/// The actions of a decision, each with what came of its domain.
fn actions<'a>(
    snapshot: &'a Snapshot,
    decision: &'a Decision,
    outcome: impl Fn(VmId) -> String,
) -> Vec<ActionRecord<'a>> {
    let record = |action: &'a Action| ActionRecord {
        action: view::action(snapshot, action),
        outcome: outcome(action.vm()),
    };
    decision.actions.iter().map(record).collect()
}

/// Makes the changes; what came of each domain, and how many failed.
///
/// # Errors
/// The journal cannot be written; all were refused for lack of privilege.
fn carry_out<H: HostAccess>(
    applier: &mut Applier<H>,
    decision: &Decision,
    seen: &XenScan,
) -> Result<(BTreeMap<VmId, String>, usize), Error> {
    let changes = DomainChange::of_decision(decision, seen);
    let outcomes = applier.apply(&changes, seen)?;
    let denied = |applied: &Applied| matches!(applied, Applied::Failed(error) if error.is_denied());
    if let Some(Applied::Failed(first)) = outcomes.first()
        && outcomes.iter().all(denied)
        && applier.journal().domains.is_empty()
    {
        return Err(Error::Denied { first: first.to_string(), count: outcomes.len() });
    }
    let is_failed = |applied: &&Applied| matches!(applied, Applied::Failed(_) | Applied::Half(_));
    let failed = outcomes.iter().filter(is_failed).count();
    let said = changes.iter().zip(&outcomes);
    let mut said: BTreeMap<VmId, String> =
        said.map(|(change, applied)| (VmId(change.domain.id), words(applied))).collect();
    for action in &decision.actions {
        said.entry(action.vm()).or_insert_with(|| "the domain is gone".to_owned());
        debug_assert!(!matches!(action, Action::MoveMemory { .. }));
    }
    Ok((said, failed))
}

/// What came of a change, in words.
fn words(applied: &Applied) -> String {
    match applied {
        Applied::Set => DONE.to_owned(),
        Applied::Gone => "the domain is gone".to_owned(),
        Applied::Changed => "left alone: someone else changed the domain meanwhile".to_owned(),
        Applied::Failed(error) => format!("nothing of it was kept: {error}"),
        Applied::Half(error) => {
            format!("only a part of it stands: {error}; `instep restore` puts back what was there")
        }
    }
}
