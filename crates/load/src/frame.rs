//! What every mode shares: starts the threads, lets them go together, reports, ends in time.
//!
//! ```text
//!   each thread:  pin -> prepare -> gate -> work until stopped
//!   this thread:  wait for all at the gate -> open -> a line every interval -> stop -> last line
//! ```
//!
//! While measuring, threads write only to counters of their own cache lines; the reporting thread
//! reads them and allocates as it likes. It does not know what a mode does.

use crate::args::Args;
use crate::clock::{self, Signals};
use crate::cpu;
use crate::error::LoadError;
use crate::histogram::{Histogram, Tally};
use crate::json::Object;
use crate::report::{self, Sample};
use crate::rng::Rng;
use crate::unit::Scale;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counters that a mode may have beside its work.
pub const COUNTERS: usize = 3;

/// A kind of load.
pub trait Mode: Sized + Sync {
    /// Its name on the command line and in reports.
    const NAME: &'static str;
    /// Its help; the first line, `NAME: SUMMARY`, stands in the list of modes.
    const HELP: &'static str;
    /// Whether threads work in it.
    const THREADS: bool = true;
    /// What one of its `work` is.
    const WORK: &'static str;
    /// The field of its latencies, if it has any.
    const LATENCY: Option<&'static str> = None;
    /// The fields of its other counters.
    const COUNTERS: &'static [&'static str] = &[];
    /// What a thread prepares before the start, such as memory.
    type Local;

    /// Reads its options. `threads` threads will work.
    ///
    /// # Errors
    /// Values that make no sense.
    fn from_args(args: &mut Args, threads: usize) -> Result<Self, LoadError>;

    /// Prepares one thread, on its CPU. Not measured.
    ///
    /// # Errors
    /// What keeps the load from running.
    fn prepare(&self, worker: &Worker<'_>) -> Result<Self::Local, LoadError>;

    /// Works until [`Worker::stopped`].
    ///
    /// # Errors
    /// A result that is wrong.
    fn work(&self, worker: &Worker<'_>, local: Self::Local) -> Result<(), LoadError>;

    /// The work of all threads together; their sum unless the mode knows better.
    fn together(&self, by_thread: &[u64]) -> u64 {
        by_thread.iter().sum()
    }

    /// Writes the mode's options into a report.
    fn options(&self, _fields: &mut Object) {}

    /// Looks at the end whether everything came out as it must.
    ///
    /// # Errors
    /// What did not.
    fn verify(&self, _by_thread: &[u64]) -> Result<(), LoadError> {
        Ok(())
    }
}

/// How to run a mode.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads that work.
    pub threads: usize,
    /// CPUs that the threads are tied to in turn; empty: they float.
    pub cpus: Vec<usize>,
    /// How long; zero: until SIGINT or SIGTERM.
    pub duration: Duration,
    /// From one line to the next.
    pub interval: Duration,
    /// Of all randomness.
    pub seed: u64,
    /// What a unit of work takes.
    pub scale: Scale,
}

/// What one thread writes, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) work: AtomicU64,
    pub(crate) counters: [AtomicU64; COUNTERS],
    pub(crate) latency: Histogram,
}

/// A thread's view of the run.
#[derive(Debug)]
pub struct Worker<'a> {
    /// Its number, from 0.
    pub index: usize,
    /// The plan.
    pub plan: &'a Plan,
    slot: &'a Slot,
    stop: &'a AtomicBool,
}

impl Worker<'_> {
    /// Whether it is time to end.
    #[inline]
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Adds work done.
    #[inline]
    pub fn add(&self, work: u64) {
        bump(&self.slot.work, work);
    }

    /// Adds to the mode's counter of this index.
    #[inline]
    pub fn count(&self, counter: usize, by: u64) {
        bump(&self.slot.counters[counter], by);
    }

    /// Counts a latency in nanoseconds.
    #[inline]
    pub fn latency(&self, nanos: u64) {
        self.slot.latency.record(nanos);
    }

    /// The units of work that fill `duration` here.
    pub fn units(&self, duration: Duration) -> u64 {
        self.plan.scale.units(duration)
    }

    /// This thread's random numbers.
    pub fn rng(&self) -> Rng {
        Rng::new(self.plan.seed, self.index)
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Runs `mode` and writes its lines to `out`.
///
/// # Errors
/// What kept it from running, what came out wrong, or `out` failing.
pub fn run<M: Mode>(mode: &M, plan: &Plan, out: &mut dyn Write) -> Result<(), LoadError> {
    let signals = Signals::hold()?;
    let slots: Vec<Slot> = (0..plan.threads).map(|_| Slot::default()).collect();
    let stop = AtomicBool::new(false);
    let gate = Gate::default();
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(plan.threads);
        for (index, slot) in slots.iter().enumerate() {
            let worker = Worker { index, plan, slot, stop: &stop };
            let gate = &gate;
            let spawned = std::thread::Builder::new()
                .name(format!("{}-{index}", M::NAME))
                .spawn_scoped(scope, move || live(mode, &worker, gate));
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(source) => {
                    gate.fail();
                    let what = format!("start thread {index} of {}", plan.threads);
                    return Err(LoadError::System { what, source });
                }
            }
        }
        let gathered = gate.gather(plan.threads);
        let mut result = match gathered {
            true => report_until_end(mode, plan, &slots, &gate, &signals, out),
            false => Ok(()),
        };
        stop.store(true, Relaxed);
        // Should a thread take long to end, a second signal ends the program.
        drop(signals);
        for handle in handles {
            let ended = handle.join().unwrap_or_else(|_| {
                Err(LoadError::Wrong("a thread panicked; its message is above".to_owned()))
            });
            result = result.and(ended);
        }
        result
    })?;
    let work: Vec<u64> = slots.iter().map(|slot| slot.work.load(Relaxed)).collect();
    mode.verify(&work)
}

/// The life of one thread.
fn live<M: Mode>(mode: &M, worker: &Worker<'_>, gate: &Gate) -> Result<(), LoadError> {
    let cpus = &worker.plan.cpus;
    let pinned = if cpus.is_empty() { Ok(()) } else { cpu::pin(cpus[worker.index % cpus.len()]) };
    let ended = match pinned.and_then(|()| mode.prepare(worker)) {
        Ok(local) if gate.pass() => mode.work(worker, local),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if ended.is_err() {
        gate.fail();
    }
    ended
}

/// Opens the gate and writes a line every interval and one at the end.
fn report_until_end<M: Mode>(
    mode: &M,
    plan: &Plan,
    slots: &[Slot],
    gate: &Gate,
    signals: &Signals,
    out: &mut dyn Write,
) -> Result<(), LoadError> {
    let start = clock::now();
    let usage = clock::usage();
    let end = match plan.duration.as_nanos() as u64 {
        0 => u64::MAX,
        nanos => start + nanos,
    };
    let interval = plan.interval.as_nanos() as u64;
    let first = Sample::new(slots.len());
    let mut before = first.clone();
    gate.open();
    let mut next = start + interval;
    loop {
        let signalled = signals.wait_until(next.min(end));
        let now = Sample::take(slots, start, usage);
        let over = signalled || start + now.t_ns >= end || gate.failed();
        if !over {
            report::write(out, report::line(mode, plan, &before, &now, false))?;
            before = now;
            next = (next + interval).max(start + before.t_ns);
            continue;
        }
        if gate.failed() {
            return Ok(());
        }
        return report::write(out, report::line(mode, plan, &first, &now, true));
    }
}

/// Where threads wait until all are prepared, and where a failure is made known.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    ready: usize,
    open: bool,
    failed: bool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits in a thread until the gate opens; false if it will not.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        state.ready += 1;
        self.changed.notify_all();
        while !state.open && !state.failed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open
    }

    /// Waits until `threads` threads are at the gate; false if one failed.
    fn gather(&self, threads: usize) -> bool {
        let mut state = self.lock();
        while state.ready < threads && !state.failed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.failed
    }

    fn open(&self) {
        self.lock().open = true;
        self.changed.notify_all();
    }

    fn fail(&self) {
        self.lock().failed = true;
        self.changed.notify_all();
    }

    fn failed(&self) -> bool {
        self.lock().failed
    }
}

impl Sample {
    /// Reads all counters.
    fn take(slots: &[Slot], start: u64, usage: clock::Usage) -> Self {
        let mut sample = Self::new(0);
        sample.t_ns = clock::now() - start;
        for slot in slots {
            sample.work.push(slot.work.load(Relaxed));
            for (sum, counter) in sample.counters.iter_mut().zip(&slot.counters) {
                *sum += counter.load(Relaxed);
            }
            slot.latency.add_to(&mut sample.latency);
        }
        let now = clock::usage();
        sample.usage = clock::Usage {
            cpu_ns: now.cpu_ns.saturating_sub(usage.cpu_ns),
            voluntary: now.voluntary.saturating_sub(usage.voluntary),
            involuntary: now.involuntary.saturating_sub(usage.involuntary),
        };
        sample
    }

    /// Nothing yet.
    fn new(threads: usize) -> Self {
        Self {
            t_ns: 0,
            work: vec![0; threads],
            counters: [0; COUNTERS],
            latency: Tally::default(),
            usage: clock::Usage::default(),
        }
    }
}
