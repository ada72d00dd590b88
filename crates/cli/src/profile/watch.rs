//! Watches a command, a process or a VM until it ends, its time is over or Ctrl-C.

use super::launch::Launched;
use anyhow::Context;
use instep_core::idset::CpuSet;
use instep_core::profile::Watched;
use instep_core::units::{Id, Milli, Nanos, Tid};
use instep_host::profile::{SpinHints, Target, ThreadWatch, Tracer, watch};
use instep_host::{Root, system};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The part of a command's CPU time that looks at /proc may miss before it is said.
const MISSED: u64 = 50;

/// A command that ran for less tells little more than how it was started.
const SHORT: Duration = Duration::from_millis(100);

/// What was seen, and how.
pub(super) struct Seen {
    pub(super) watched: Watched,
    /// Whether every context switch was traced; else /proc was asked.
    pub(super) traced: bool,
    /// Whether what ran was a guest's code.
    pub(super) guest: bool,
    pub(super) warnings: Vec<String>,
    /// How the command ended, unless it was ended here: its time was over, or a signal said so.
    pub(super) ended: Option<ExitStatus>,
}

/// How to watch.
pub(super) struct Watcher {
    /// Time between two looks.
    pub(super) interval: Duration,
    /// The longest that is watched.
    pub(super) limit: Option<Duration>,
    /// How many threads work, where the caller knows.
    pub(super) workers: Option<u32>,
    /// Whether the kernel may be asked for context switches.
    pub(super) trace: bool,
    stop: Arc<AtomicBool>,
}

impl Watcher {
    /// One that Ctrl-C and SIGTERM end with what was seen until then.
    pub(super) fn new(interval: Duration) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot handle signals")?;
        }
        Ok(Self { interval, limit: None, workers: None, trace: true, stop })
    }

    /// Whether a signal asked to end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a command to its end, on `cpus` if given.
    pub(super) fn command(&self, words: &[String], cpus: Option<&CpuSet>) -> anyhow::Result<Seen> {
        watch::check(&Root::live())?;
        let mut warnings = Vec::new();
        // Descendants that lose their parents stay ours.
        let own = std::process::id();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .context("cannot adopt the command's orphans")?;
        let before = system::child_usage();
        let online = instep_host::topology::read(&Root::live())?.all_cpus();
        if let Some(cpus) = cpus {
            let missing = cpus.minus(&allowed(own)?);
            anyhow::ensure!(
                missing.is_empty() && !cpus.is_empty(),
                "--on {cpus}: CPU {missing} is not among those that may be used here ({})",
                allowed(own)?
            );
        }
        let mut launched = Launched::stopped(words, cpus)?;
        let pid = launched.pid();
        let tracer = || Tracer::of_command(pid, online.iter().map(Id::raw));
        let mut tracer = self.traced(tracer, &mut warnings);
        let mut watch = ThreadWatch::new(Target::Descendants(own));
        watch.take_sample();
        launched.go()?;
        let begun = Instant::now();
        let mut next = begun;
        let ended = loop {
            if let Some(ended) = launched.ended()? {
                break ended;
            }
            if self.stopped() || self.limit.is_some_and(|limit| begun.elapsed() > limit) {
                launched.end()?;
            }
            self.pause(&mut next);
            watch.take_sample();
            tracer.iter_mut().for_each(Tracer::end_interval);
        };
        watch.end();
        let elapsed = begun.elapsed();
        if elapsed < SHORT {
            let took = format!("{}ms", elapsed.as_millis());
            anyhow::ensure!(
                ended.success() || launched.was_asked(),
                "the command failed after {took} ({ended}), so there is nothing to profile; try it \
                 alone first"
            );
            warnings.push(format!(
                "it ran for {took} only, which is mostly its start; profile something that runs for \
                 a second or more"
            ));
        }
        let used = system::child_usage();
        let cpus = cpus.map_or_else(|| allowed(own), |set| Ok(set.and(&online)))?;
        let mut watched = watch.watched(u32::try_from(cpus.len()).unwrap_or(u32::MAX));
        // What the kernel added up of the ended: exact where looks can miss short lives.
        watched.voluntary = watched.voluntary.max(used.voluntary.saturating_sub(before.voluntary));
        watched.involuntary =
            watched.involuntary.max(used.involuntary.saturating_sub(before.involuntary));
        let used = used.cpu.since(before.cpu);
        let seen = self.finish(watched, &watch, tracer, warnings, Some(used), false)?;
        Ok(Seen { ended: (!launched.was_asked()).then_some(ended), ..seen })
    }

    /// Watches a process that runs already.
    pub(super) fn process(&self, pid: u32) -> anyhow::Result<Seen> {
        let tids = threads_of(pid);
        anyhow::ensure!(!tids.is_empty(), "there is no process {pid}; see `ps -e`");
        let mut warnings = Vec::new();
        let cpus = allowed(pid)?;
        // Its threads come and go, and only those that are there now could be traced.
        let tracer = self.traced(|| Tracer::of_threads(&tids, false), &mut warnings);
        let hints = hints(&tids, false, &mut warnings);
        let seen = self.watch(Target::Process(pid), cpus.len(), tracer, warnings, false)?;
        Ok(with_hints(seen, hints, false))
    }

    /// Watches the vCPUs of a VM.
    pub(super) fn vm(&self, pid: u32, tids: &[Tid]) -> anyhow::Result<Seen> {
        let mut warnings = Vec::new();
        let tracer = self.traced(|| Tracer::of_threads(tids, true), &mut warnings);
        let hints = hints(tids, true, &mut warnings);
        let target = Target::Threads(pid, tids.to_vec());
        Ok(with_hints(self.watch(target, tids.len(), tracer, warnings, true)?, hints, true))
    }

    fn watch(
        &self,
        target: Target,
        cpus: usize,
        mut tracer: Option<Tracer>,
        mut warnings: Vec<String>,
        guest: bool,
    ) -> anyhow::Result<Seen> {
        watch::check(&Root::live())?;
        let pid = match &target {
            Target::Process(pid) => Some(*pid),
            _ => None,
        };
        let mut watch = ThreadWatch::new(target);
        let mut traced = watch.take_sample().threads;
        let begun = Instant::now();
        let mut next = begun;
        while !self.stopped() && self.limit.is_none_or(|limit| begun.elapsed() < limit) {
            self.pause(&mut next);
            tracer.iter_mut().for_each(Tracer::end_interval);
            let threads = watch.take_sample().threads;
            if threads == 0 {
                break;
            }
            if threads != traced && tracer.is_some() && pid.is_some() {
                // The trace would lack the new ones, and nothing told when they began.
                (tracer, traced) = (None, threads);
                warnings.push("threads came or went, so /proc was asked instead".to_owned());
            }
        }
        watch.end();
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        self.finish(watch.watched(cpus), &watch, tracer, warnings, None, guest)
    }

    fn finish(
        &self,
        mut watched: Watched,
        watch: &ThreadWatch,
        tracer: Option<Tracer>,
        mut warnings: Vec<String>,
        used: Option<Nanos>,
        guest: bool,
    ) -> anyhow::Result<Seen> {
        if watch.overflowed() {
            warnings.push("there was more to watch than is kept; the rest is missing".to_owned());
        }
        let mut traced = false;
        if let Some(mut tracer) = tracer {
            tracer.end();
            traced = tracer.improve(&mut watched, guest);
            if tracer.lost() > 0 {
                let next = if traced { "" } else { ", so /proc was asked instead" };
                warnings.push(format!("{} records of the trace were lost{next}", tracer.lost()));
            }
        }
        let (seen, used) = (watched.run(), used.unwrap_or_default());
        if !traced && used.since(seen).milli_of(used).0 > MISSED {
            warnings.push(format!(
                "{}% of the CPU time went to threads too short-lived to be seen",
                used.since(seen).milli_of(used).0 / 10
            ));
        }
        watched.others = watched.others.map(|others| others.since(used.since(seen)));
        watched.workers = self.workers.or(watched.workers);
        anyhow::ensure!(
            !watched.intervals.is_empty(),
            "it ended before it could be watched; profile something that runs for a second or more"
        );
        Ok(Seen { watched, traced, guest, warnings, ended: None })
    }

    fn traced(
        &self,
        open: impl FnOnce() -> Result<Tracer, instep_host::Error>,
        warnings: &mut Vec<String>,
    ) -> Option<Tracer> {
        if !self.trace {
            return None;
        }
        open().map_err(|error| warnings.push(error.to_string())).ok()
    }

    /// Sleeps until the next look is due; looks that were missed are left out.
    fn pause(&self, next: &mut Instant) {
        *next += self.interval;
        let now = Instant::now();
        if *next < now {
            *next = now + self.interval / 4;
        }
        std::thread::sleep(*next - now);
    }
}

/// Of guests, less than so much says nothing: hints that made them exit are not counted.
const LEAST_OF_A_GUEST: Milli = Milli(10);

/// Counts spin hints of these threads, where the processor has counters of them and the kernel lets them be
/// counted; else busy waiting stays as known as it is.
fn hints(tids: &[Tid], guests: bool, warnings: &mut Vec<String>) -> Option<SpinHints> {
    SpinHints::of_threads(&Root::live(), tids, guests).unwrap_or_else(|error| {
        warnings.push(error.to_string());
        None
    })
}

/// What the code did not tell, as that of a guest, the counted hints may.
fn with_hints(mut seen: Seen, mut hints: Option<SpinHints>, guests: bool) -> Seen {
    let mut counted = || hints.as_mut().and_then(SpinHints::part);
    let told = |part: &Milli| !guests || *part >= LEAST_OF_A_GUEST;
    seen.watched.busy_waiting = seen.watched.busy_waiting.or_else(|| counted().filter(told));
    seen
}

fn allowed(pid: u32) -> anyhow::Result<CpuSet> {
    system::affinity(Tid(pid)).with_context(|| format!("cannot ask for the CPUs of process {pid}"))
}

fn threads_of(pid: u32) -> Vec<Tid> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Tid)).collect()
}
