//! Puts events in order of time within a bounded window.
//!
//! Recorders drain one CPU's buffer after another, so a file holds long runs, each in order. The
//! window collects runs; a stable sort, which merges runs in linear time, puts them in order; what
//! can no longer be preceded goes out. perf says when that is: at the end of a round everything
//! up to the latest time of the round before is complete.

use crate::event::{Event, MAX_CPUS};
use crate::stream::Tally;
use instep_core::units::Nanos;

/// Events that may wait to be put in order: 2 million are 80 MB.
const CAPACITY: usize = 2 << 20;

/// The window.
#[derive(Debug)]
pub(crate) struct Window {
    pending: Vec<Event>,
    /// Time of the last event that went out.
    reached: Nanos,
    /// The latest time seen, and what it was when the last round ended.
    latest: Nanos,
    complete: Nanos,
    capacity: usize,
}

/// The latest time of each CPU, to see what comes behind it.
#[derive(Debug, Default)]
pub(crate) struct Latest(Vec<Nanos>);

impl Latest {
    /// Whether an event of this CPU comes after a later one.
    #[inline]
    pub(crate) fn is_behind(&mut self, event: &Event) -> bool {
        let at = event.cpu.0.min(MAX_CPUS - 1) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Nanos(0));
        }
        let latest = &mut self.0[at];
        let is_behind = event.time < *latest;
        *latest = (*latest).max(event.time);
        is_behind
    }
}

impl Default for Window {
    fn default() -> Self {
        Window::with_capacity(CAPACITY)
    }
}

impl Window {
    /// A window of so many events.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let zero = Nanos(0);
        Window { pending: Vec::new(), reached: zero, latest: zero, complete: zero, capacity }
    }

    /// Where a reader appends events, in the order of the file.
    pub(crate) fn pending(&mut self) -> &mut Vec<Event> {
        &mut self.pending
    }

    /// Notes the time of a record that was appended.
    #[inline]
    pub(crate) fn saw(&mut self, time: Nanos) {
        self.latest = self.latest.max(time);
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.pending.len() >= self.capacity
    }

    /// To be called when something was appended: of a full window gives the older half.
    #[inline]
    pub(crate) fn bound(&mut self, out: &mut Vec<Event>, tally: &mut Tally) {
        if self.is_full() {
            self.overflow(out, tally);
        }
    }

    /// Gives the older half, complete or not.
    fn overflow(&mut self, out: &mut Vec<Event>, tally: &mut Tally) {
        self.sort(tally);
        let count = self.pending.len() / 2;
        self.give(count, out);
    }

    /// A round has ended: gives what is complete.
    pub(crate) fn round(&mut self, out: &mut Vec<Event>, tally: &mut Tally) {
        self.sort(tally);
        let complete = self.complete;
        let count = self.pending.partition_point(|event| event.time <= complete);
        self.give(count, out);
        self.complete = self.latest;
    }

    /// Nothing follows: gives all.
    pub(crate) fn finish(&mut self, out: &mut Vec<Event>, tally: &mut Tally) {
        self.sort(tally);
        self.give(self.pending.len(), out);
    }

    fn sort(&mut self, tally: &mut Tally) {
        for event in &mut self.pending {
            if event.time < self.reached {
                // What perf makes up of threads that were there before it has time 0.
                if event.time.0 != 0 {
                    tally.late += 1;
                    tally.latest = tally.latest.max(self.reached.since(event.time));
                }
                event.time = self.reached;
            }
        }
        self.pending.sort_by_key(|event| event.time);
    }

    fn give(&mut self, count: usize, out: &mut Vec<Event>) {
        out.extend(self.pending.drain(..count));
        if let Some(last) = out.last() {
            self.reached = self.reached.max(last.time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Fact;
    use instep_core::units::{CpuId, Tid};

    fn event(time: u64, cpu: u32) -> Event {
        Event { time: Nanos(time), cpu: CpuId(cpu), fact: Fact::Exit { tid: Tid(1) } }
    }

    fn push(window: &mut Window, events: &[(u64, u32)]) {
        for (time, cpu) in events {
            window.pending().push(event(*time, *cpu));
            window.saw(Nanos(*time));
        }
    }

    #[test]
    fn a_round_gives_what_the_round_before_completed() {
        let (mut window, mut out, mut tally) = (Window::default(), Vec::new(), Tally::default());
        push(&mut window, &[(1, 0), (5, 0), (2, 1), (4, 1)]);
        window.round(&mut out, &mut tally);
        assert!(out.is_empty());
        push(&mut window, &[(6, 0), (3, 1), (9, 1)]);
        window.round(&mut out, &mut tally);
        let times: Vec<u64> = out.iter().map(|event| event.time.0).collect();
        assert_eq!(times, [1, 2, 3, 4, 5]);
        window.finish(&mut out, &mut tally);
        assert_eq!(out.len(), 7);
        assert_eq!(tally.late, 0);
    }

    #[test]
    fn what_comes_too_late_is_counted_and_given_now() {
        let mut window = Window::with_capacity(2);
        let (mut out, mut tally) = (Vec::new(), Tally::default());
        push(&mut window, &[(10, 0), (20, 0)]);
        assert!(window.is_full());
        window.overflow(&mut out, &mut tally);
        push(&mut window, &[(3, 1), (0, 1)]);
        window.finish(&mut out, &mut tally);
        let times: Vec<u64> = out.iter().map(|event| event.time.0).collect();
        assert_eq!(times, [10, 10, 10, 20]);
        assert_eq!((tally.late, tally.latest), (1, Nanos(7)));
    }
}
