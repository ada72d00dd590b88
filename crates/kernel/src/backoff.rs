//! When to load the scheduler again after it fell out: soon at first, then ever later.

use std::time::Duration;

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

/// Counts failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: usize,
}

impl Backoff {
    /// The scheduler fell out after it had been in force for `lasted`: how long to wait.
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
    pub fn failures(self) -> usize {
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
}
