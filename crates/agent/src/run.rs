//! `run`: cycles until told to stop, and everything put back at the end.
//!
//! ```text
//! lock -> (crashed before? restore) -> guardian -> measure -> cycle -> once? keep : take over -> wait -> cycle ...
//!                                                                       stop asked for -> restore
//!                                                                       hand over asked for -> keep
//! ```

use crate::config::{Config, MIN_INTERVAL};
use crate::cycle::{Tools, cycle};
use crate::dispatch::{self, Dispatch};
use crate::error::Error;
use crate::guard::{Guard, Threads};
use crate::holding::{begin, renew, take_over};
use crate::left_alone::LeftAlone;
pub use crate::locks::{lock, lock_host, lock_journal};
use crate::memory::{Homes, LiveHost};
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::published::{self, Keeper, METRICS, RunState};
pub use crate::reload::Reload;
use crate::reload::read_again;
pub use crate::restored::{describe_restore, summarize_restore};
use crate::service::{self, Service};
use crate::signals::Wake;
pub use crate::signals::{Events, survive_size_limit};
pub use crate::sink::Sink;
use crate::vm_settings::Reported;
use crate::watch::Watch;
use instep_core::wording::Count;
use instep_host::Root;
use instep_host::apply::{Affinity, Applier, Holder, Journal, RestoreReport, StateDir};
use instep_host::discover::{Arrivals, ScanOptions};
use instep_kernel::Mode;
use std::process::Command;
use std::time::{Duration, Instant};

/// What to run with.
pub struct RunOptions<'a> {
    /// The configuration to begin with.
    pub config: Config,
    /// Reads it again on SIGHUP; `None` when no file holds it.
    pub reload: Option<Reload<'a>>,
    /// One cycle only; what it set stays.
    pub once: bool,
    /// Whether anything is changed.
    pub run_mode: RunMode,
    /// Starts the guardian ([`guard`](crate::guard)) of a run that goes on; without one there is none. It hears that
    /// all is done only where nothing is left to put back.
    pub guardian: Option<Command>,
    /// Signals that came since the process began.
    pub events: Events,
}

/// Whether a run changes the host.
#[derive(Debug)]
pub enum RunMode {
    /// It does, and keeps the originals here.
    Apply(StateDir),
    /// It decides only; this is what an earlier run changed and left so.
    DryRun(Option<Journal>),
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Changes of the last cycle that failed.
    pub failed: usize,
    /// What was put back at the end; `None` when the placement was kept or never made.
    pub restored: Option<RestoreReport>,
}

/// Runs until stopped, or once.
///
/// # Errors
/// Another instance runs; the host cannot be read at the start or the journal not be written;
/// every change was refused. What was changed is restored first, and the sink told what came of that. [`Error::is_failed_work`] tells failures after the beginning.
pub fn run(mut options: RunOptions<'_>, sink: &mut dyn Sink) -> Result<Ended, Error> {
    let state = match &options.run_mode {
        RunMode::Apply(state) => Some(state.clone()),
        RunMode::DryRun(_) => None,
    };
    let mut applier = state.as_ref().map(|state| begin(state, sink)).transpose()?;
    let command = options.guardian.take().filter(|_| applier.is_some() && !options.once);
    let mut guard = Guard::start(command, sink);
    let mut agent = None;
    let result = Agent::start(options, sink)
        .and_then(|started| agent.insert(started).run(applier.as_mut(), &mut guard, sink));
    let ended = match &mut applier {
        Some(applier) => end(result, applier, sink),
        None => result.map(|(ended, _)| ended),
    };
    // Taking the kernel scheduler out takes its time: affinities come first.
    if let Some(mut agent) = agent.filter(|agent| !agent.options.once) {
        agent.metrics.remove();
        if let Some(keeper) = &mut agent.keeper {
            keeper.end();
        }
    }
    service::tell_end(match &ended {
        Ok(Ended { restored: None, .. }) => "ended; what was placed stays",
        Ok(_) => "ended; affinities are restored",
        Err(_) => "ended with an error",
    });
    if let Some(state) = state {
        published::withdraw(state.path());
        // The next instance that takes the locks finds neither a scheduler nor files of this run.
        drop(applier);
        guard.leave(&state, &Threads::live());
    }
    ended
}

/// The kernel scheduler, where it is asked for: not for one cycle, whose end would end it, and not
/// when nothing may be changed; then what would be done is told.
fn dispatch(
    options: &RunOptions<'_>,
    observer: &Observer,
    sink: &mut dyn Sink,
) -> Result<Option<Dispatch>, Error> {
    let config = &options.config;
    if let Some(idle) = config.dispatch.idle() {
        sink.notice(idle);
    }
    match &options.run_mode {
        RunMode::DryRun(_) => {
            dispatch::preview(config, observer).iter().for_each(|line| sink.notice(line))
        }
        RunMode::Apply(_) if options.once => {
            if config.dispatch.mode != Mode::Off {
                sink.notice(
                    "the kernel scheduler is not loaded for one cycle, with which it would end; \
                     leave --once out",
                );
            }
        }
        RunMode::Apply(state) => {
            return Dispatch::begin(config, observer, Some(state.path())).map(Some);
        }
    }
    Ok(None)
}

/// Leaves the placement standing or puts it back, whatever else went wrong.
fn end<A: Affinity>(
    result: Result<(Ended, Finish), Error>,
    applier: &mut Applier<A>,
    sink: &mut dyn Sink,
) -> Result<Ended, Error> {
    let ending = |what| move |source| Error::Ending { what, source };
    match result {
        Ok((ended, Finish::Keep)) => {
            let Err(source) = applier.keep() else { return Ok(ended) };
            let unkept = ending("the placement cannot be recorded as meant to stay")(source);
            // What no journal calls kept would be taken for the trace of a crash.
            put_back(applier, sink);
            Err(unkept)
        }
        Ok((ended, Finish::Restore)) => {
            let report = applier.restore().map_err(ending(UNRESTORED))?;
            Ok(Ended { restored: Some(report), ..ended })
        }
        // This run changed nothing yet: what an earlier one meant to stand still does.
        Err(error) if applier.journal().holder == Holder::Kept => Err(error),
        Err(error) => {
            put_back(applier, sink);
            Err(error)
        }
    }
}

/// Restores after something else failed, and tells what came of it.
fn put_back<A: Affinity>(applier: &mut Applier<A>, sink: &mut dyn Sink) {
    match applier.restore() {
        Ok(report) if report.restored == 0 && report.failed.is_empty() => {}
        Ok(report) => describe_restore(&report).iter().for_each(|line| sink.notice(line)),
        Err(source) => sink.notice(&Error::Ending { what: UNRESTORED, source }.to_string()),
    }
}

/// The end of a run that leaves its placement to the next one.
pub(crate) const HANDED_OVER: &str =
    "what was placed stays for the next `instep run`; `instep restore` puts it back";

const UNRESTORED: &str = "the affinities found cannot be put back";

/// What to do with the placement at the end.
enum Finish {
    Keep,
    Restore,
}

struct Agent<'a> {
    options: RunOptions<'a>,
    observer: Observer,
    homes: Homes,
    host: LiveHost,
    watch: Watch,
    left_alone: LeftAlone,
    reported: Reported,
    service: Service,
    metrics: Metrics,
    /// What is kept of the past; `None` where nothing is published: on a dry run, and for one cycle.
    keeper: Option<Keeper>,
    /// Tells of VMs that came or ended, which get a cycle of their own.
    arrivals: Arrivals,
    /// When the last cycle began, from which on loads are measured.
    began: Instant,
    count: u64,
}

/// How often VMs that came or ended are looked for.
const LOOK: Duration = Duration::from_millis(200);

/// How soon after a cycle the one for a VM that came or ended may begin: others' loads are measured meanwhile.
const AFTER: Duration = Duration::from_millis(500);

impl<'a> Agent<'a> {
    fn start(mut options: RunOptions<'a>, sink: &mut dyn Sink) -> Result<Self, Error> {
        options.events.hold_stops()?;
        let service = Service::begin(options.config.window);
        let definitions = options.config.discover.vm_settings;
        let scan = ScanOptions { definitions, ..ScanOptions::once() };
        let observer = Observer::new(Root::live(), scan)?;
        let host = LiveHost::new(match &options.run_mode {
            RunMode::Apply(state) => Some(state.clone()),
            RunMode::DryRun(_) => None,
        });
        let homes = Homes::default();
        let watch = Watch::of(dispatch(&options, &observer, sink)?);
        let arrivals = Arrivals::new(Root::live());
        let (began, count) = (Instant::now(), 0);
        let (left_alone, reported) = (LeftAlone::default(), Reported::default());
        let keeper = match &options.run_mode {
            RunMode::Apply(state) if !options.once => {
                Some(Keeper::begin(state.path(), &options.config.history, sink))
            }
            _ => None,
        };
        Ok(Self {
            options,
            observer,
            homes,
            host,
            watch,
            left_alone,
            reported,
            service,
            metrics: Metrics::default(),
            keeper,
            arrivals,
            began,
            count,
        })
    }

    fn run(
        &mut self,
        mut applier: Option<&mut Applier>,
        guard: &mut Guard,
        sink: &mut dyn Sink,
    ) -> Result<(Ended, Finish), Error> {
        for warning in self.observer.topology().warnings() {
            sink.notice(warning);
        }
        // The first look takes the time it needs to know all VMs' memory; those of a loop do not.
        self.observer.begin()?;
        self.began = Instant::now();
        if !self.options.once {
            let definitions = self.options.config.discover.vm_settings;
            self.observer.set_options(ScanOptions { definitions, ..ScanOptions::default() });
        }
        let mut ended = Ended::default();
        let mut wait = self.options.config.window;
        loop {
            match self.wait(wait, sink) {
                Wake::Stop => return Ok((ended, self.finish(sink))),
                Wake::Reload => {
                    let service = self.service.clone();
                    service.reload(|| self.reload(sink));
                    // A cycle follows soon, under the new configuration.
                    wait = self.options.config.window;
                    continue;
                }
                Wake::Time => {}
            }
            guard.ensure_running(sink);
            if let Some(applier) = applier.as_deref_mut() {
                renew(applier, sink)?;
            }
            let status = match self.cycle(applier.as_deref_mut(), sink) {
                Ok((failed, status)) => {
                    ended.failed = failed;
                    status
                }
                Err(error @ Error::Host(_)) if self.count > 1 => {
                    // What worked before may work again; the placement stands meanwhile.
                    sink.notice(&format!(
                        "this cycle failed: {error}; what is placed stays so, and the next cycle tries again"
                    ));
                    self.metrics.note_failure();
                    format!("cycle {} failed: {error}", self.count)
                }
                Err(error) if self.count > 1 => {
                    return Err(Error::Later { done: self.count - 1, source: Box::new(error) });
                }
                Err(error) => return Err(error),
            };
            if let Some(applier) = applier.as_deref_mut().filter(|_| !self.options.once) {
                take_over(applier, sink);
            }
            self.service.note_cycle(&status);
            self.write_metrics(sink);
            if self.options.once {
                let stopped = self.options.events.stopping();
                return Ok((ended, if stopped { self.finish(sink) } else { Finish::Keep }));
            }
            wait = self.options.config.interval;
            self.publish(wait);
        }
    }

    /// What to do with the placement now that a stop was asked for.
    fn finish(&mut self, sink: &mut dyn Sink) -> Finish {
        if !self.options.events.is_hand_over() {
            return Finish::Restore;
        }
        if matches!(self.options.run_mode, RunMode::Apply(_)) {
            sink.notice(HANDED_OVER);
        }
        Finish::Keep
    }

    /// Writes the metrics where that is asked for, and for `instep serve`.
    fn write_metrics(&mut self, sink: &mut dyn Sink) {
        let file = Some(self.options.config.metrics.file.as_path());
        let file = file.filter(|file| !file.as_os_str().is_empty());
        let published = match &self.options.run_mode {
            RunMode::Apply(state) if !self.options.once => Some(state.path().join(METRICS)),
            _ => None,
        };
        let in_force = self.watch.scheduler.as_ref().map(Dispatch::in_force);
        let said = self.metrics.write([file, published.as_deref()], in_force.as_ref());
        said.iter().for_each(|line| sink.notice(line));
    }

    /// Tells `instep status` of this run.
    fn publish(&self, wait: Duration) {
        let RunMode::Apply(state) = &self.options.run_mode else { return };
        RunState::publish_now(state.path(), self.options.config.policy, self.count, wait);
    }

    /// Waits for the next cycle, looking after the kernel scheduler and for VMs that came or ended
    /// meanwhile. When the scheduler does not do what the last cycle left to it, the next one, which gives
    /// affinities back or sets them, follows as soon as there may be one and loads are measured; so it does
    /// when a VM has started, before that has used its memory, and when one has ended, whose CPUs are free now.
    fn wait(&mut self, time: Duration, sink: &mut dyn Sink) -> Wake {
        let (waits, soon) = (Instant::now(), self.options.config.window.max(MIN_INTERVAL));
        let mut has_change = false;
        self.watch.supervise_scheduler(sink);
        loop {
            // This goes round more often, for VMs; a look at the scheduler reads all of /proc.
            self.watch.supervise_if_due(sink);
            self.service.sign();
            if self.count > 0 && self.arrivals.poll_changes() {
                has_change = true;
                self.watch.note_arrivals(sink);
            }
            let left = time.saturating_sub(waits.elapsed());
            let mut left = self.watch.pause(left, soon.saturating_sub(self.began.elapsed()));
            if has_change {
                left = left.min(AFTER.saturating_sub(self.began.elapsed()));
            }
            let look = LOOK.min(self.service.every());
            match self.options.events.wait(left.min(look)) {
                Wake::Time if left > look => {}
                wake => return wake,
            }
        }
    }

    /// One cycle; the number of changes that failed, and the cycle in a line.
    fn cycle(
        &mut self,
        applier: Option<&mut Applier>,
        sink: &mut dyn Sink,
    ) -> Result<(usize, String), Error> {
        self.count += 1;
        self.began = Instant::now();
        let RunOptions { config, run_mode, events, once, .. } = &mut self.options;
        let service = &mut self.service;
        let known = match &*run_mode {
            RunMode::DryRun(known) => known.as_ref(),
            RunMode::Apply(_) => None,
        };
        let mut tools = Tools {
            observer: &mut self.observer,
            known,
            applier,
            homes: &mut self.homes,
            host: &mut self.host,
            watch: &mut self.watch,
            left_alone: &mut self.left_alone,
            reported: &mut self.reported,
            stopping: &mut || {
                service.sign();
                events.stopping()
            },
            sink,
            count: self.count,
        };
        let done = cycle(&mut tools, config, *once)?;
        let dry_run = matches!(run_mode, RunMode::DryRun(_));
        let record = done.record(self.count, config, dry_run);
        sink.record(&record);
        done.count(&record, &mut self.metrics);
        if let Some(keeper) = &mut self.keeper
            && let Ok(run) = RunState::now(config.policy.as_str(), self.count, config.interval)
        {
            let in_force = self.watch.scheduler.as_ref().map(Dispatch::in_force);
            done.publish(&record, (&run, in_force.as_ref()), keeper, sink);
            self.metrics.note_history(keeper.metrics());
        }
        let (vms, changes) = (record.vms.len(), record.actions.len());
        let (vms, changes) = (Count::of(vms, "VM"), Count::of(changes, "change"));
        let status = format!("cycle {}: {vms}, {changes}", self.count);
        let failed = done.failed;
        done.end_cycle(&mut self.observer, dry_run);
        Ok((failed, status))
    }

    fn reload(&mut self, sink: &mut dyn Sink) {
        let Some(config) = read_again(&mut self.options.reload, sink) else { return };
        self.observer.read_definitions(config.discover.vm_settings);
        if let Some(dispatch) = &mut self.watch.scheduler {
            dispatch.reload(&config);
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.configure(&config.history, sink);
        }
        self.options.config = config;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Heard;
    use instep_core::idset::CpuSet;
    use instep_core::units::Tid;
    use instep_host::apply::{AffinityChange, KernelAffinity, ThreadKind, thread};
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::path::Path;
    use std::process::Child;

    /// Pretends to set, and refuses when told so.
    struct Strict<'a>(&'a Cell<bool>, RefCell<CpuSet>);

    impl Affinity for Strict<'_> {
        fn get(&self, _: Tid) -> io::Result<CpuSet> {
            Ok(self.1.borrow().clone())
        }
        fn set(&self, _: Tid, cpus: &CpuSet) -> io::Result<()> {
            if self.0.get() {
                return Err(io::Error::from_raw_os_error(1));
            }
            *self.1.borrow_mut() = cpus.clone();
            Ok(())
        }
    }

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// What is heard and returned when a run that changed one thread fails, and then restoring
    /// fails in the way that `spoil` arranges, and whether its guardian has nothing left to do; `None`
    /// on a machine with one CPU.
    fn failing(spoil: impl Fn(&Cell<bool>, &Path)) -> Option<(Vec<String>, String, bool)> {
        let dir = instep_madehost::scratch_dir().unwrap();
        let state = dir.path().join("s");
        let sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = sleeper.0.id();
        let found = KernelAffinity.get(Tid(pid)).unwrap();
        let Some(first) = found.iter().next().filter(|_| found.len() > 1) else {
            instep_madehost::skip::note("one CPU is not enough to tell affinities apart");
            return None;
        };
        let refuse = Cell::new(false);
        let strict = Strict(&refuse, RefCell::new(found.clone()));
        let mut applier = Applier::with(StateDir::at(&state).lock().unwrap(), strict).unwrap();
        let change = AffinityChange {
            vm: "alpha".into(),
            kind: ThreadKind::Vcpu(0),
            thread: thread::key_of(&Root::live(), pid, Tid(pid)).unwrap(),
            seen: found.clone(),
            cpuset: found,
            cpus: CpuSet::one(first),
        };
        applier.apply(&[change]).unwrap();
        spoil(&refuse, &state);
        let mut heard = Heard::default();
        let first = Err(Error::Signals(io::Error::other("disk on fire")));
        let error = end(first, &mut applier, &mut heard).unwrap_err();
        drop(applier);
        Some((
            heard.0,
            error.to_string(),
            crate::guard::is_settled(&StateDir::at(state), &Threads::live()),
        ))
    }

    #[test]
    fn thread_not_restored_after_an_error_is_reported_with_it() {
        let Some((heard, error, settled)) = failing(|refuse, _| refuse.set(true)) else { return };
        assert!(error.contains("disk on fire") && !settled, "{error}");
        assert!(heard[0].contains("could not restore 1 thread"), "{heard:?}");
        assert!(heard[1].contains("could not be restored: "), "{heard:?}");
    }

    #[test]
    fn when_restoring_fails_too_both_errors_are_reported() {
        // Where the journal was to be removed there is a folder with something in it.
        let spoil = |_: &Cell<bool>, state: &Path| {
            std::fs::remove_file(state.join("journal.json")).unwrap();
            std::fs::create_dir_all(state.join("journal.json/x")).unwrap();
        };
        let Some((heard, error, settled)) = failing(spoil) else { return };
        assert!(error.contains("disk on fire") && !settled, "{error}");
        assert!(heard[0].contains(UNRESTORED) && heard[0].contains("instep restore"), "{heard:?}");
    }

    #[test]
    fn what_was_restored_after_an_error_needs_no_guardian() {
        let Some((heard, _, settled)) = failing(|_, _| {}) else { return };
        assert!(settled && heard == ["1 thread has its original affinity again"], "{heard:?}");
    }
}
