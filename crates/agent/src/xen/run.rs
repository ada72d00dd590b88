//! `run` on a Xen host: cycles until told to stop, and everything put back at the end.
//!
//! ```text
//! lock -> (crashed before? restore) -> measure -> cycle -> once? keep : wait -> cycle ...
//!                                                           stop asked for -> restore
//! ```
//! There is no guardian: what a run changed that was killed stays until `instep restore` or the next run.

use super::{Known, Look, Memory, decide, depth_of, look};
use crate::config::{Config, ConfigError};
use crate::cycle::{cpu_time, left_alone};
use crate::error::Error;
use crate::locks::lock;
use crate::observe::{absent, keep_only};
use crate::record::{ActionRecord, Cost, DONE, Record};
use crate::run::{HANDED_OVER, Sink};
use crate::signals::{Events, Wake};
use crate::view;
use instep_core::decision::{Action, Decision};
use instep_core::snapshot::Snapshot;
use instep_core::units::{Nanos, VmId};
use instep_core::wording::Count;
use instep_host::apply::StateDir;
use instep_xen::apply::{Applied, Applier, Change, Hands, Journal, LiveHands, Report};
use instep_xen::scan::{Depth, scan};
use instep_xen::{Scan, Source};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// What to run with.
pub struct Options<'a> {
    /// The configuration to begin with.
    pub config: Config,
    /// Reads it again on SIGHUP.
    pub reload: Option<&'a mut dyn FnMut() -> Result<Config, ConfigError>>,
    /// One cycle only; what it set stays.
    pub once: bool,
    /// Where originals are kept; `None` on a dry run.
    pub state: Option<StateDir>,
    /// On a dry run, what an earlier run changed.
    pub known: Option<Journal>,
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
    pub restored: Option<Report>,
}

/// Memory by node is asked for again after this time: Xen walks the page lists of all domains for it.
const MEMORY_EVERY: Duration = Duration::from_secs(600);

/// Runs until stopped, or once.
///
/// # Errors
/// Another instance runs; the host cannot be read at the begin; the journal cannot be written. What was changed is put
/// back first.
pub fn run(mut options: Options<'_>, sink: &mut dyn Sink) -> Result<Ended, Error> {
    let first = scan(&options.source, Depth::Times)?;
    let _lock = options.state.as_ref().map(lock).transpose()?;
    let mut applier = match &options.state {
        None => None,
        Some(state) => {
            let hands = LiveHands::new(options.source.clone(), &first.info);
            Some(begin(Applier::open(state.path().to_owned(), hands)?, sink)?)
        }
    };
    options.events.hold_stops()?;
    let once = options.once;
    let result = cycles(&mut options, applier.as_mut(), first, sink);
    let Some(applier) = applier.as_mut() else { return result };
    match result {
        Ok(ended) if once => applier.keep().map(|()| ended).map_err(Error::from),
        Ok(ended) if options.events.is_hand_over() => {
            sink.notice(HANDED_OVER);
            applier.keep().map(|()| ended).map_err(Error::from)
        }
        Ok(ended) => Ok(Ended { restored: Some(applier.restore(|_| true)?), ..ended }),
        // What an earlier run meant to stand still does.
        Err(error) if applier.journal().is_kept => Err(error),
        Err(error) => {
            let report = applier.restore(|_| true)?;
            told(&report).iter().for_each(|line| sink.notice(line));
            Err(error)
        }
    }
}

/// Restores what a run left that was killed.
fn begin<H: Hands>(mut applier: Applier<H>, sink: &mut dyn Sink) -> Result<Applier<H>, Error> {
    if !applier.journal().is_kept && !applier.journal().domains.is_empty() {
        let report = applier.restore(|_| true)?;
        let mut lines = told(&report);
        lines[0].insert_str(0, "an earlier run ended without restoring; ");
        lines.iter().for_each(|line| sink.notice(line));
    }
    Ok(applier)
}

fn cycles<H: Hands>(
    options: &mut Options<'_>,
    mut applier: Option<&mut Applier<H>>,
    mut before: Scan,
    sink: &mut dyn Sink,
) -> Result<Ended, Error> {
    let mut ended = Ended::default();
    let mut wait = options.config.window;
    let mut walked: Option<Instant> = None;
    let mut memory = Memory::new();
    for count in 1.. {
        loop {
            match options.events.wait(wait) {
                Wake::Stop => return Ok(ended),
                Wake::Time => break,
                Wake::Reload => {
                    match options.reload.as_mut().map(|reload| reload()) {
                        Some(Ok(config)) => options.config = config,
                        Some(Err(error)) => {
                            sink.notice(&format!("the configuration stays: {error}"))
                        }
                        None => {}
                    }
                    sink.reopen();
                }
            }
        }
        let is_due = walked.is_none_or(|at| at.elapsed() >= MEMORY_EVERY);
        let depth = if is_due { depth_of(&options.config) } else { Depth::Full };
        if is_due {
            walked = Some(Instant::now());
        }
        let known = options.known.as_ref();
        let cycle = Cycle { count, config: &options.config, once: options.once, depth, known };
        match cycle.go(&options.source, applier.as_deref_mut(), (&before, &mut memory), sink) {
            Ok((failed, scan)) => (ended.failed, before) = (failed, scan),
            // What worked before may work again; the placement stands meanwhile.
            Err(error) if count > 1 => sink.notice(&format!("this cycle failed: {error}")),
            Err(error) => return Err(error),
        }
        if options.once {
            break;
        }
        if let Some(applier) = applier.as_deref_mut() {
            // What an earlier run left standing is this one's now, which puts it back when it ends.
            applier.take_over()?;
        }
        wait = options.config.interval;
    }
    Ok(ended)
}

/// One cycle.
struct Cycle<'a> {
    count: u64,
    config: &'a Config,
    once: bool,
    depth: Depth,
    known: Option<&'a Journal>,
}

impl Cycle<'_> {
    /// Looks, decides, applies and tells; how many changes failed, and the look.
    fn go<H: Hands>(
        &self,
        source: &Source,
        mut applier: Option<&mut Applier<H>>,
        (before, memory): (&Scan, &mut Memory),
        sink: &mut dyn Sink,
    ) -> Result<(usize, Scan), Error> {
        let (time, cpu_before, began) = (SystemTime::now(), cpu_time(), Instant::now());
        let journal = applier.as_deref().map(Applier::journal).or(self.known);
        let known = Known { before: Some(before), elapsed: None, journal };
        let Look { mut snapshot, mut scan, .. } = look(source, self.depth, &known, memory)?;
        let missing = keep_only(&mut snapshot, &self.config.vms);
        if self.once
            && let Some(name) = missing.first()
        {
            return Err(Error::NoSuchVm(absent(&snapshot, name)));
        }
        scan.warnings.extend(missing.iter().map(|name| absent(&snapshot, name)));
        let observed = Instant::now();
        let decision = decide(&snapshot, &self.config.settings());
        let decided = Instant::now();
        let (outcomes, failed) = match applier.as_deref_mut() {
            Some(applier) => carry_out(applier, &decision, &scan)?,
            None => (BTreeMap::new(), 0),
        };
        let cost = Cost {
            cpu_ns: cpu_time().since(cpu_before),
            cpu_total_ns: cpu_time(),
            observe_ns: nanos(observed.duration_since(began)),
            decide_ns: nanos(decided.duration_since(observed)),
            apply_ns: nanos(decided.elapsed()),
        };
        let outcome = |vm: VmId| match outcomes.get(&vm) {
            Some(outcome) => outcome.clone(),
            None => "dry run".to_owned(),
        };
        let record = Record {
            schema: "instep.record/1",
            cycle: self.count,
            time: humantime::format_rfc3339_millis(time).to_string(),
            policy: self.config.policy,
            dry_run: applier.is_none(),
            window_ns: snapshot.window,
            vms: view::verdicts(&snapshot, &decision),
            left_alone: snapshot.opaque.iter().map(left_alone).collect(),
            actions: actions(&snapshot, &decision, outcome),
            conflicts: view::conflicts(&snapshot, &decision.conflicts),
            memory: &[],
            warnings: &scan.warnings,
            cost,
        };
        sink.record(&record);
        Ok((failed, scan))
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

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Makes the changes; what came of each domain, and how many failed.
///
/// # Errors
/// The journal cannot be written; all were refused for lack of privilege.
fn carry_out<H: Hands>(
    applier: &mut Applier<H>,
    decision: &Decision,
    seen: &Scan,
) -> Result<(BTreeMap<VmId, String>, usize), Error> {
    let changes = Change::of_decision(decision, seen);
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

/// A restore in one line.
#[must_use]
pub fn restored(report: &Report) -> String {
    let mut text = match report.restored {
        0 => "there was no affinity to put back".to_owned(),
        1 => "1 domain has its original affinities again".to_owned(),
        more => format!("{more} domains have their original affinities again"),
    };
    if report.gone > 0 {
        text.push_str(&format!("; {} ended before", Count::of(report.gone, "domain")));
    }
    if !report.failed.is_empty() {
        text.push_str(&format!("; could not restore {}", Count::of(report.failed.len(), "domain")));
    }
    text
}

/// A restore in words: one line, and one for each thing that is not as it was found.
#[must_use]
pub fn told(report: &Report) -> Vec<String> {
    let mut lines = vec![restored(report)];
    lines.extend(report.left_alone.iter().map(|what| format!("left alone: {what}")));
    let failed = |(name, error): &(String, _)| format!("{name} could not be restored: {error}");
    lines.extend(report.failed.iter().map(failed));
    lines
}
