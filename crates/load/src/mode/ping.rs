//! `ping`: threads that sleep and look how late they wake up.
//!
//! Models a service that mostly waits (systems.md 3: ping): what it feels of a scheduler is the
//! time from its timer to its running. Lateness holds the guest's own part too (timer interrupt,
//! idle exit, guest scheduler): compare with the same guest alone.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::unit;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Ping {
    period: Duration,
    burst: Duration,
}

impl Mode for Ping {
    const NAME: &'static str = "ping";
    const HELP: &'static str = "\
ping: sleeps, and measures how late it wakes up
work: wake-ups
  --period DURATION  from one wake-up to the next, at most 10s [1ms]; threads are out of step
  --burst DURATION   computation after each wake-up [0]
late_ns: from the time asked for to running. missed: periods skipped for being too late
";
    const WORK: &'static str = "wakeups";
    const LATENCY: Option<&'static str> = Some("late_ns");
    const COUNTERS: &'static [&'static str] = &["missed"];
    type Local = u64;

    fn from_args(args: &mut Args, _: usize) -> Result<Self, LoadError> {
        let ms = Duration::from_millis(1);
        let period = args.duration("--period", ms, Duration::from_micros(10))?;
        if period > 10_000 * ms {
            return Err(args.fault("--period: expected at most 10s"));
        }
        Ok(Self { period, burst: args.duration("--burst", Duration::ZERO, Duration::ZERO)? })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        clock::sharpen_timers();
        Ok(worker.units(self.burst))
    }

    fn work(&self, worker: &Worker<'_>, burst: u64) -> Result<(), LoadError> {
        let period = self.period.as_nanos() as u64;
        let mut due = clock::now() + period + worker.rng().below(period);
        while !worker.stopped() {
            clock::sleep_until(due);
            worker.latency(clock::now().saturating_sub(due));
            unit::work(burst);
            worker.add(1);
            let (next, missed) = next_due(due, clock::now(), period);
            worker.count(0, missed);
            due = next;
        }
        Ok(())
    }

    fn options(&self, fields: &mut Object) {
        fields.number("period_ns", self.period.as_nanos() as u64);
        fields.number("burst_ns", self.burst.as_nanos() as u64);
    }
}

/// The next time to wake up, in step with `due` and after `now`, and how many were skipped.
fn next_due(due: u64, now: u64, period: u64) -> (u64, u64) {
    let missed = now.saturating_sub(due) / period;
    (due + (missed + 1) * period, missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_stay_in_step_and_what_was_missed_is_counted() {
        assert_eq!(next_due(1000, 1000, 100), (1100, 0));
        assert_eq!(next_due(1000, 1099, 100), (1100, 0));
        assert_eq!(next_due(1000, 1100, 100), (1200, 1));
        assert_eq!(next_due(1000, 1550, 100), (1600, 5));
        assert_eq!(next_due(1000, 900, 100), (1100, 0));
    }
}
