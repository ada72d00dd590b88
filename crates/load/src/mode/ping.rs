//! `ping`: threads that sleep and look how late they wake up.
//!
//! Models a service that mostly waits (systems.md 3: ping): what it feels of a scheduler is the
//! time from its timer to its running. Lateness holds the guest's own part too (timer interrupt,
//! idle exit, guest scheduler): compare with the same guest alone.

use crate::args::{self, nanos};
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::unit;
use serde::Serialize;
use std::time::Duration;

/// Sleeps, and measures how late it wakes up
///
/// work: wake-ups. late_ns: from the time asked for to running. missed: periods skipped for being too late.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    /// From one wake-up to the next, at most 10s; threads are out of step
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = period)]
    #[serde(rename = "period_ns", serialize_with = "nanos")]
    period: Duration,
    /// Computation after each wake-up
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = args::duration::<0>)]
    #[serde(rename = "burst_ns", serialize_with = "nanos")]
    burst: Duration,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = args::duration::<10_000>(text)?;
    if period > Duration::from_secs(10) {
        return Err("expected at most 10s".to_owned());
    }
    Ok(period)
}

/// See the module.
#[derive(Debug)]
pub struct Ping {
    options: Options,
}

impl Mode for Ping {
    const NAME: &'static str = "ping";
    const WORK: &'static str = "wakeups";
    const LATENCY: Option<&'static str> = Some("late_ns");
    const COUNTERS: &'static [&'static str] = &["missed"];
    type Options = Options;
    type Local = u64;

    fn new(options: Options, _: usize) -> Result<Self, LoadError> {
        Ok(Self { options })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        clock::sharpen_timers();
        Ok(worker.units(self.options.burst))
    }

    fn work(&self, worker: &Worker<'_>, burst: u64) -> Result<(), LoadError> {
        let period = self.options.period.as_nanos() as u64;
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
