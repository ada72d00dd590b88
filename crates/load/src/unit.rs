//! The unit of work: a fixed number of arithmetic steps, each of which needs the one before.
//!
//! How much is done never depends on a clock, only how many units a duration stands for does:
//! that is measured once, before the load starts, or given by `--unit-ns`. So two runs with the
//! same `--unit-ns` do the same work, whatever happens to their CPUs. A unit touches no memory.

use crate::clock;
use std::hint::black_box;
use std::time::Duration;

/// Steps of one unit: some 100 to 200 ns on hardware, ten times that under emulation.
const STEPS: u64 = 64;
/// Trials of a calibration; the quickest counts, as it was disturbed least.
const TRIALS: u32 = 25;
/// What a trial takes at least, in nanoseconds.
const TRIAL_NS: u64 = 500_000;
/// The most that a duration can stand for: a year, and far from overflow.
const MAX_UNITS: u64 = 1 << 48;

/// Does `units` units of work.
#[inline(never)]
pub fn work(units: u64) {
    let mut value = black_box(0x2545_f491_4f6c_dd1d_u64);
    for _ in 0..units * STEPS {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

/// How long a unit takes when nothing disturbs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    unit_ns: f64,
}

impl Scale {
    /// A unit of `unit_ns` nanoseconds; `None` unless that is a positive number.
    pub fn new(unit_ns: f64) -> Option<Self> {
        (unit_ns.is_finite() && unit_ns > 0.0).then_some(Self { unit_ns })
    }

    /// Measures it on the CPU of the caller; takes some 15 ms.
    pub fn calibrate() -> Self {
        let mut units = 64;
        let trial = |units: u64| {
            let start = clock::now();
            work(units);
            clock::now() - start
        };
        while trial(units) < TRIAL_NS && units < 1 << 32 {
            units *= 2;
        }
        let best = (0..TRIALS).map(|_| trial(units)).min().unwrap_or(TRIAL_NS).max(1);
        Self { unit_ns: best as f64 / units as f64 }
    }

    /// Nanoseconds of a unit.
    pub fn unit_ns(self) -> f64 {
        self.unit_ns
    }

    /// The units that fill `duration`, rounded; at least one unless the duration is zero.
    pub fn units(self, duration: Duration) -> u64 {
        let units = (duration.as_nanos() as f64 / self.unit_ns).round() as u64;
        if duration.is_zero() { 0 } else { units.clamp(1, MAX_UNITS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_become_units() {
        let scale = Scale::new(125.0).unwrap();
        assert_eq!(scale.units(Duration::from_micros(100)), 800);
        assert_eq!(scale.units(Duration::from_nanos(1)), 1);
        assert_eq!(scale.units(Duration::ZERO), 0);
        assert_eq!(Scale::new(0.0), None);
        assert_eq!(Scale::new(-1.0), None);
        assert_eq!(Scale::new(f64::NAN), None);
    }

    #[test]
    fn calibrated_work_takes_the_time_asked_for_at_least_once() {
        let scale = Scale::calibrate();
        let units = scale.units(Duration::from_millis(2));
        let took = |_| {
            let start = clock::now();
            work(units);
            clock::now() - start
        };
        let best = (0..20).map(took).min().unwrap();
        assert!((1_000_000..8_000_000).contains(&best), "{best} ns for 2 ms");
    }
}
