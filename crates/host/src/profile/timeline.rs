//! From events of threads to intervals: how much ran, how many at once, how often one blocked; pure.
//!
//! ```text
//!             In                    In
//! Blocked ---------> Running <----------- Preempted (could run)
//!    ^---- Blocked -----'  '-- Preempted -----^
//! ```
//!
//! A thread that begins to run on a CPU ends the run of the thread before, so that lost records do not add up.
//! From a wake-up until it runs a thread counts as blocked, as switches do not tell when it was woken. Where that
//! is much of the waiting, no co-run is computed: it would look better the longer threads wait.

use super::records::{ThreadEvent, ThreadEventKind};
use instep_core::measure::VmMeter;
use instep_core::profile::{Interval, ThreadSum};
use instep_core::units::{Milli, Nanos};
use std::collections::BTreeMap;

/// Levels that are told apart; more threads at once count as this many.
const MAX_LEVEL: usize = 1024;
/// Waiting that was not seen and is less than this part of the running: a tenth.
const UNSEEN: u64 = 10;

/// What threads did, told event by event.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    now: Option<Nanos>,
    open: Interval,
    /// Intervals that ended.
    pub intervals: Vec<Interval>,
    threads: BTreeMap<u32, Thread>,
    /// Who runs on each CPU.
    on: BTreeMap<u32, u32>,
    running: usize,
    preempted: usize,
    /// Time with exactly 0, 1, 2, ... threads running.
    pub levels: Vec<Nanos>,
    /// How often a thread blocked.
    pub voluntary: u64,
    /// How often one was preempted.
    pub involuntary: u64,
    /// Co-run of the threads as siblings.
    pub meter: VmMeter,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    state: State,
    since: Nanos,
    sum: ThreadSum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    Running,
    Preempted,
    #[default]
    Blocked,
}

impl Timeline {
    /// Takes an event, of equal or later time than the one before. A thread that is sampled runs, even if no
    /// event said that it began to.
    pub fn take(&mut self, event: &ThreadEvent) {
        let state = match event.what {
            ThreadEventKind::In | ThreadEventKind::At(_) | ThreadEventKind::Kernel => {
                State::Running
            }
            ThreadEventKind::Preempted => State::Preempted,
            ThreadEventKind::Blocked | ThreadEventKind::Ended => State::Blocked,
        };
        self.advance(event.at);
        let before = match state {
            State::Running => self.on.insert(event.cpu, event.tid),
            _ => None,
        };
        if let Some(before) = before.filter(|before| *before != event.tid) {
            self.change(before, State::Blocked, event.at);
        }
        self.change(event.tid, state, event.at);
        match event.what {
            ThreadEventKind::Preempted => self.involuntary += 1,
            ThreadEventKind::Blocked => self.voluntary += 1,
            ThreadEventKind::In
            | ThreadEventKind::At(_)
            | ThreadEventKind::Kernel
            | ThreadEventKind::Ended => {}
        }
    }

    fn change(&mut self, tid: u32, state: State, at: Nanos) {
        let interval = self.intervals.len();
        let new = Thread {
            sum: ThreadSum { seen: (interval, interval), ..ThreadSum::default() },
            ..Thread::default()
        };
        let thread = self.threads.entry(tid).or_insert(new);
        let was = thread.state;
        if was == State::Running {
            thread.sum.run.0 += at.since(thread.since).0;
        }
        thread.sum.seen.1 = interval;
        (thread.state, thread.since) = (state, at);
        let runs = |state: State| i32::from(state == State::Running);
        let can = |state: State| i32::from(state != State::Blocked);
        self.meter.running(at.0, runs(state) - runs(was));
        self.meter.runnable(at.0, can(state) - can(was));
        match was {
            State::Running => self.running = self.running.saturating_sub(1),
            State::Preempted => self.preempted = self.preempted.saturating_sub(1),
            State::Blocked => {}
        }
        match state {
            State::Running => self.running += 1,
            State::Preempted => self.preempted += 1,
            State::Blocked => {}
        }
    }

    /// Ends the open interval at `now`.
    pub fn cut(&mut self, now: Nanos) {
        self.advance(now);
        if self.open.length.0 > 0 {
            self.intervals.push(self.open);
        }
        self.open = Interval::default();
    }

    /// *Co-run* since this was last asked, for threads that waited for CPUs for this long in all; `None`
    /// when none ran, and where they waited for longer than was seen: after wake-ups.
    pub fn co_run(&mut self, waited: Nanos) -> Option<Milli> {
        let until = self.now?.0;
        let sums = self.meter.sums(until);
        self.meter.reset(until);
        let unseen = waited.0.saturating_sub(sums.waiting);
        (sums.active > 0 && unseen <= sums.running / UNSEEN).then(|| sums.co_run())
    }

    /// What each thread had.
    pub fn threads(&self) -> Vec<ThreadSum> {
        self.threads.values().map(|thread| thread.sum).collect()
    }

    fn advance(&mut self, now: Nanos) {
        let span = now.since(*self.now.get_or_insert(now)).0;
        if span == 0 {
            return;
        }
        self.now = Some(now);
        let times = |count: usize| span.saturating_mul(count as u64);
        self.open.length.0 += span;
        self.open.run.0 = self.open.run.0.saturating_add(times(self.running));
        self.open.wait.0 = self.open.wait.0.saturating_add(times(self.preempted));
        let level = self.running.min(MAX_LEVEL);
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Nanos(0));
        }
        self.levels[level].0 += span;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(at: u64, tid: u32, what: ThreadEventKind) -> ThreadEvent {
        ThreadEvent { at: Nanos(at), pid: 1, tid, cpu: tid, what }
    }

    #[test]
    fn levels_and_intervals_follow_the_switches() {
        let mut timeline = Timeline::default();
        for (at, tid, what) in [
            (100, 1, ThreadEventKind::In),
            (110, 2, ThreadEventKind::In),
            (120, 1, ThreadEventKind::Preempted),
            (130, 1, ThreadEventKind::In),
            (150, 2, ThreadEventKind::Blocked),
        ] {
            timeline.take(&event(at, tid, what));
        }
        timeline.cut(Nanos(160));
        let interval = Interval { length: Nanos(60), run: Nanos(90), wait: Nanos(10) };
        assert_eq!(timeline.intervals, [interval]);
        assert_eq!(timeline.levels, [Nanos(0), Nanos(30), Nanos(30)]);
        assert_eq!((timeline.voluntary, timeline.involuntary), (1, 1));
        timeline.take(&event(190, 1, ThreadEventKind::Blocked));
        timeline.cut(Nanos(200));
        assert_eq!(timeline.intervals[1].run, Nanos(30));
        assert_eq!(timeline.levels[0], Nanos(10));
        let sums: Vec<u64> = timeline.threads().iter().map(|sum| sum.run.0).collect();
        assert_eq!(sums, [80, 40]);
    }

    #[test]
    fn co_run_is_known_where_the_waits_were_seen() {
        let told = |waited: u64| {
            let mut timeline = Timeline::default();
            for (at, tid, what) in [
                (100, 1, ThreadEventKind::In),
                (110, 2, ThreadEventKind::In),
                (120, 1, ThreadEventKind::Preempted),
                (130, 1, ThreadEventKind::In),
                (150, 2, ThreadEventKind::Blocked),
                (190, 1, ThreadEventKind::Blocked),
            ] {
                timeline.take(&event(at, tid, what));
            }
            timeline.co_run(Nanos(waited))
        };
        // From 120 to 130 one of two ran; somebody ran for 90, and they for 120 in all. What is beyond
        // the 10 that were seen came after wake-ups.
        assert_eq!([10, 22].map(told), [Some(Milli(944)); 2]);
        assert_eq!([23, 500].map(told), [None; 2]);
    }

    #[test]
    fn thread_found_running_runs_though_it_never_began() {
        let mut timeline = Timeline::default();
        timeline.take(&event(1, 1, ThreadEventKind::Kernel));
        timeline.take(&event(6, 1, ThreadEventKind::At(7)));
        timeline.cut(Nanos(11));
        assert_eq!(timeline.intervals[0].run, Nanos(10));
    }

    #[test]
    fn ended_thread_runs_no_more_and_did_not_block() {
        let mut timeline = Timeline::default();
        timeline.take(&event(1, 1, ThreadEventKind::In));
        timeline.take(&event(6, 1, ThreadEventKind::Ended));
        timeline.cut(Nanos(11));
        assert_eq!((timeline.intervals[0].run, timeline.voluntary), (Nanos(5), 0));
    }

    #[test]
    fn a_cpu_runs_one_thread_though_a_record_was_lost() {
        let mut timeline = Timeline::default();
        for (at, tid) in [(1, 1), (6, 2), (8, 3)] {
            timeline.take(&ThreadEvent { cpu: 0, ..event(at, tid, ThreadEventKind::In) });
        }
        timeline.cut(Nanos(11));
        assert_eq!(timeline.intervals[0].run, Nanos(10));
    }

    #[test]
    fn switch_reported_twice_counts_a_thread_once() {
        let mut timeline = Timeline::default();
        [1, 2].iter().for_each(|at| timeline.take(&event(*at, 1, ThreadEventKind::In)));
        timeline.cut(Nanos(11));
        assert_eq!(timeline.intervals[0].run, Nanos(10));
    }

    proptest! {
        #[test]
        fn time_in_levels_is_the_time_of_the_intervals(
            events in proptest::collection::vec((0u64..50, 0u32..5, 0u8..5), 0..60),
        ) {
            let mut timeline = Timeline::default();
            let mut at = 1000;
            for (step, tid, what) in events {
                at += step;
                let all = [ThreadEventKind::In, ThreadEventKind::Preempted, ThreadEventKind::Blocked, ThreadEventKind::At(7), ThreadEventKind::Kernel];
                let what = all[usize::from(what)];
                timeline.take(&event(at, tid, what));
                if step % 7 == 0 {
                    timeline.cut(Nanos(at));
                }
            }
            timeline.cut(Nanos(at + 1));
            let levels: u64 = timeline.levels.iter().map(|time| time.0).sum();
            let length: u64 = timeline.intervals.iter().map(|interval| interval.length.0).sum();
            let run: u64 = timeline.intervals.iter().map(|interval| interval.run.0).sum();
            let by_level = timeline.levels.iter().zip(0u64..).map(|(time, level)| time.0 * level);
            prop_assert_eq!(levels, length);
            prop_assert_eq!(by_level.sum::<u64>(), run);
        }
    }
}
