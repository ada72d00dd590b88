//! Watches threads by the kernel's software events: each context switch with its time, and every
//! millisecond of CPU time the address a thread is at. Exact where [`watch`](super::watch) is to a
//! tick, and it sees threads that live for microseconds.
//!
//! One clock event a CPU (a command and what it starts: inherited) or a thread (what runs already)
//! gives both kinds of records. It needs no hardware counters, and no privilege for one's own
//! processes while `perf_event_paranoid` is at most 2. Cost: some microseconds a switch, which
//! count neither as running nor as waiting.

use super::code::Code;
use super::records::{self, ThreadEvent, ThreadEventKind};
use super::timeline::Timeline;
use crate::error::Error;
use crate::system;
use instep_core::profile::{Interval, Watched};
use instep_core::units::{Milli, Nanos, Tid};
use perf_event::events::Software;
use perf_event::{Builder, Clock, Sampler};
use std::io;

/// Room for records between two looks: some 16,000 switches of a CPU.
const RING: usize = 512 << 10;
/// Room for all threads of many that are traced at once, and the least that each has.
const ALL_RINGS: usize = 32 << 20;
const LEAST_RING: usize = 64 << 10;
/// CPU time between two samples where the code tells busy waiting.
const SAMPLE: Nanos = Nanos(1_000_000);
/// The same where samples only tell that a thread runs: a sample makes a guest exit.
const SAMPLE_GUEST: Nanos = Nanos(10_000_000);
/// Records of other CPUs may be this late.
const LATE: Nanos = Nanos(2_000_000);
/// A trace that lost more than one in so many records is not used.
const MOST_LOST: u64 = 200;
/// Events that are kept for their order at most.
const MAX_PENDING: usize = 1 << 20;

/// A tracing in progress; it ends when dropped.
pub struct Tracer {
    rings: Vec<Sampler>,
    pending: Vec<ThreadEvent>,
    timeline: Timeline,
    code: Code,
    sample: Nanos,
    /// Bytes of each ring.
    ring: usize,
    /// Samples in busy waiting, elsewhere, and where the code could not be read.
    samples: [u64; 3],
    lost: u64,
    /// Of them, when *co-run* was last asked.
    lost_before: u64,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracer {{ rings: {}, lost: {} }}", self.rings.len(), self.lost)
    }
}

impl Tracer {
    /// Prepares to trace the calling process's next child by `cpus` (all that are online): process
    /// `pid`, which must not have called exec yet, from its exec on, with everything it starts.
    ///
    /// # Errors
    /// The kernel refuses: with what would allow it.
    pub fn of_command(pid: u32, cpus: impl Iterator<Item = u32>) -> Result<Self, Error> {
        let mut tracer = Self::new(SAMPLE);
        for cpu in cpus {
            tracer.open(pid, |builder| {
                builder.one_cpu(cpu as usize).inherit(true).enable_on_exec(true);
            })?;
        }
        Ok(tracer)
    }

    /// Traces these threads from now on; as vCPUs of a `guest` they are sampled less often.
    ///
    /// # Errors
    /// The kernel refuses: with what would allow it. Threads that ended are passed over.
    pub fn of_threads(tids: &[Tid], guest: bool) -> Result<Self, Error> {
        Self::new(if guest { SAMPLE_GUEST } else { SAMPLE }).with(tids)
    }

    /// The same of a guest's vCPUs, of as many threads as are traced `at_once` by several tracers: these
    /// have room for less each, so that all together have no more than 32 MiB (512 of them).
    ///
    /// # Errors
    /// As [`Tracer::of_threads`].
    pub fn of_vcpus(tids: &[Tid], at_once: usize) -> Result<Self, Error> {
        let mut tracer = Self::new(SAMPLE_GUEST);
        let room = ALL_RINGS / at_once.max(1).next_power_of_two();
        tracer.ring = room.clamp(LEAST_RING, RING);
        tracer.with(tids)
    }

    fn with(mut self, tids: &[Tid]) -> Result<Self, Error> {
        for tid in tids {
            self.open(tid.0, |builder| {
                builder.any_cpu().enabled(true);
            })?;
        }
        Ok(self)
    }

    fn new(sample: Nanos) -> Self {
        Self {
            rings: Vec::new(),
            pending: Vec::new(),
            timeline: Timeline::default(),
            code: Code::default(),
            sample,
            ring: RING,
            samples: [0; 3],
            lost: 0,
            lost_before: 0,
        }
    }

    fn open(&mut self, tid: u32, place: impl Fn(&mut Builder<'_>)) -> Result<(), Error> {
        let Ok(tid) = libc::pid_t::try_from(tid) else { return Ok(()) };
        let mut builder = Builder::new(Software::CPU_CLOCK);
        builder
            .observe_pid(tid)
            .sample_period(self.sample.0)
            .context_switch(true)
            .sample_id_all(true);
        builder.task(true);
        builder.clockid(Clock::MONOTONIC);
        place(&mut builder);
        builder.attrs_mut().sample_type = records::SAMPLE_TYPE;
        // Samples in the kernel and in guests tell that a thread runs, too; they take privilege.
        builder.include_kernel();
        let mut built = builder.build();
        if built.as_ref().is_err_and(|error| is(error, &[libc::EACCES, libc::EPERM])) {
            built = builder.exclude_kernel(true).build();
        }
        let ring = match built {
            Err(error) if is(&error, &[libc::ESRCH]) => return Ok(()),
            built => built.and_then(|counter| counter.sampled(self.ring)).map_err(refused)?,
        };
        self.rings.push(ring);
        Ok(())
    }

    /// Takes what happened until now; the time since the look before becomes an interval.
    pub fn end_interval(&mut self) {
        let sure = Nanos(system::clocks().0.0.saturating_sub(LATE.0));
        self.drain();
        let cut = self.pending.partition_point(|event| event.at <= sure);
        // More than is kept was not looked at for long: order is then given up for the rest.
        let cut = if self.pending.len() > MAX_PENDING { self.pending.len() } else { cut };
        self.add_to_timeline(cut);
        if !self.timeline.intervals.is_empty() || cut > 0 {
            self.timeline.cut(sure);
        }
    }

    /// The last look: takes all there is.
    pub fn end(&mut self) {
        self.drain();
        let last = self.pending.last().map(|event| event.at);
        self.add_to_timeline(self.pending.len());
        if let Some(last) = last {
            self.timeline.cut(last);
        }
    }

    fn drain(&mut self) {
        let mut bytes = Vec::new();
        for ring in &mut self.rings {
            bytes.clear();
            // What is written meanwhile waits for the next look.
            while bytes.len() < RING
                && let Some(record) = ring.next_record()
            {
                let body = record.to_contiguous();
                let length = u16::try_from(body.len() + 8).unwrap_or(0);
                bytes.extend(crate::records::header(record.ty(), record.misc(), length));
                bytes.extend_from_slice(&body);
            }
            let decoded = records::decode(&bytes);
            self.lost = self.lost.saturating_add(decoded.lost);
            self.pending.extend(decoded.events);
        }
        self.pending.sort_by_key(|event| event.at);
    }

    fn add_to_timeline(&mut self, count: usize) {
        for event in self.pending.drain(..count) {
            if let ThreadEventKind::At(address) = event.what {
                let kind = match self.code.spins(event.pid, address) {
                    Some(true) => 0,
                    Some(false) => 1,
                    None => 2,
                };
                self.samples[kind] += 1;
            }
            self.timeline.take(&event);
        }
    }

    /// *Co-run* of the traced threads since this was last asked, where it can be told and nothing was lost:
    /// see [`Timeline::co_run`].
    pub fn co_run(&mut self, waited: Nanos) -> Option<Milli> {
        let known = std::mem::replace(&mut self.lost_before, self.lost) == self.lost;
        self.timeline.co_run(waited).filter(|_| known)
    }

    /// Records that the kernel had no room for.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Puts what was traced in the place of what `/proc` told, as far as it is better. The waits of
    /// `/proc` stay in sum: those from wake-ups are not traced, and are spread by CPU time. So is what
    /// the machine's own hypervisor took from a thread on a CPU: no switch tells of it, and it is waiting.
    /// Busy waiting is known unless `guest`, whose code is not that of the thread. Whether there was
    /// anything.
    pub fn improve(&self, watched: &mut Watched, guest: bool) -> bool {
        let timeline = &self.timeline;
        let switches = timeline.voluntary + timeline.involuntary;
        if timeline.intervals.is_empty() || self.lost > switches / MOST_LOST {
            return false;
        }
        let known = total(|interval| interval.wait, &watched.intervals);
        let run = total(|interval| interval.run, &timeline.intervals);
        let waking = known.saturating_sub(total(|interval| interval.wait, &timeline.intervals));
        // `/proc` does not see all who live short, either.
        let stolen = run.saturating_sub(watched.run().0).min(watched.stolen.0);
        watched.intervals.clone_from(&timeline.intervals);
        spread(&mut watched.intervals, waking, stolen);
        watched.threads = timeline.threads();
        watched.levels.clone_from(&timeline.levels);
        watched.voluntary = timeline.voluntary;
        watched.involuntary = timeline.involuntary;
        let [spinning, other, unread] = self.samples;
        if !guest && spinning + other > unread && run > 0 {
            // Samples count time at user level; what could not be read is taken for the like.
            let spun = spinning + spinning * unread / (spinning + other);
            let spun = u128::from(spun) * u128::from(self.sample.0) * 1000 / u128::from(run);
            watched.busy_waiting = Some(Milli(u64::try_from(spun).unwrap_or(1000).min(1000)));
        }
        true
    }
}

/// Adds waits from wake-ups, and makes waits of what was stolen of the running, by CPU time.
fn spread(intervals: &mut [Interval], waking: u64, stolen: u64) {
    let run = total(|interval| interval.run, intervals);
    for interval in intervals {
        let part = |of: u64| {
            let part = u128::from(of) * u128::from(interval.run.0) / u128::from(run.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let (waking, stolen) = (part(waking), part(stolen.min(run)));
        interval.run.0 -= stolen;
        interval.wait.0 = interval.wait.0.saturating_add(waking).saturating_add(stolen);
    }
}

fn total(of: fn(&Interval) -> Nanos, all: &[Interval]) -> u64 {
    all.iter().map(of).fold(0u64, |sum, time| sum.saturating_add(time.0))
}

fn is(error: &io::Error, numbers: &[i32]) -> bool {
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

fn refused(source: io::Error) -> Error {
    let what = format!("the kernel does not let context switches be traced: {source}");
    let next = if is(&source, &[libc::EACCES, libc::EPERM]) {
        "run as root or with CAP_PERFMON; see /proc/sys/kernel/perf_event_paranoid"
    } else {
        "/proc alone is exact to a tick, and does not show busy waiting"
    };
    Error::Unusable { what, next: next.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machines_hypervisor_took_of_the_running_is_waiting() {
        let interval =
            |run, wait| Interval { length: Nanos(100), run: Nanos(run), wait: Nanos(wait) };
        let mut intervals = [interval(90, 0), interval(30, 5), interval(0, 7)];
        spread(&mut intervals, 4, 40);
        assert_eq!(intervals, [interval(60, 33), interval(20, 16), interval(0, 7)]);
        spread(&mut intervals, 0, u64::MAX);
        assert_eq!(total(|interval| interval.run, &intervals), 0);
    }
}
