//! When to load the scheduler again after the kernel ejected it: soon at first, then later each time, and no more after
//! the third ejection within an hour.

use std::time::{Duration, Instant};

/// Waits before the first, second ... attempt; the last stays.
const WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(600),
];

/// A scheduler that lasted this long is taken for sound again.
const SOUND: Duration = Duration::from_secs(600);

/// So many ejections within this time are the last ones.
const MOST_EJECTIONS: usize = 3;
const EJECTIONS_WITHIN: Duration = Duration::from_secs(3600);

/// Counts failures: attempts to load that failed, and ejections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: usize,
    ejections: Vec<Instant>,
}

impl Backoff {
    /// The kernel ejected the scheduler after it had been in force for `lasted`: how long to wait, or `None` if it has
    /// happened too often within an hour.
    pub fn ejected(&mut self, lasted: Duration, now: Instant) -> Option<Duration> {
        self.ejections.retain(|at| now.saturating_duration_since(*at) < EJECTIONS_WITHIN);
        self.ejections.push(now);
        let wait = self.failed(lasted);
        (self.ejections.len() < MOST_EJECTIONS).then_some(wait)
    }

    /// The scheduler could not be loaded, or ended after it had been in force for `lasted`: how long to wait.
    pub fn failed(&mut self, lasted: Duration) -> Duration {
        if lasted >= SOUND {
            self.failures = 0;
        }
        let wait = WAITS[self.failures.min(WAITS.len() - 1)];
        self.failures += 1;
        wait
    }

    /// Failures since it was last sound.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_waits_longer_up_to_ten_minutes() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..7).map(|_| backoff.failed(Duration::ZERO).as_secs()).collect();
        assert_eq!(waits, [1, 5, 30, 120, 600, 600, 600]);
    }

    #[test]
    fn one_that_lasted_is_sound_again() {
        let mut backoff = Backoff::default();
        backoff.failed(Duration::ZERO);
        backoff.failed(Duration::ZERO);
        assert_eq!(backoff.failed(Duration::from_secs(601)), Duration::from_secs(1));
        assert_eq!(backoff.failures(), 1);
    }

    #[test]
    fn after_the_third_ejection_within_an_hour_it_stays_out() {
        let (mut backoff, start) = (Backoff::default(), Instant::now());
        let mut ejected = |minutes: u64| {
            let at = start + Duration::from_secs(60 * minutes);
            backoff.ejected(Duration::ZERO, at).is_some()
        };
        assert_eq!([0, 30, 61].map(&mut ejected), [true; 3], "the first is more than an hour ago");
        assert_eq!([62, 100].map(&mut ejected), [false; 2]);
        assert!(ejected(300));
    }
}
