//! Whether somebody asked to stop: SIGINT, SIGTERM and SIGHUP become a flag that every wait looks
//! at, so that guests and temporary files go away in the ordinary order.

use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval at which waits look at the flag and at what they wait for.
pub const TICK: Duration = Duration::from_millis(20);

/// A flag that says "stop".
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that nothing raises: for tests.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// A flag that SIGINT, SIGTERM and SIGHUP raise. A second such signal ends the process at
    /// once; guests then die with it, and the next run removes the directories left behind.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let second = signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag));
            let first = signal_hook::flag::register(signal, Arc::clone(&flag));
            for registered in [second, first] {
                registered
                    .map_err(|e| Error::io("handle signals by", Path::new("sigaction"), e))?;
            }
        }
        Ok(Self(flag))
    }

    /// Whether it was raised.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// `Err(Interrupted)` once it was raised.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn check(&self) -> Result<(), Error> {
        if self.raised() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not beyond the flag.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_ends_a_sleep_early() {
        let stop = Stop::never();
        stop.raise();
        let start = Instant::now();
        assert!(matches!(stop.sleep(Duration::from_secs(60)), Err(Error::Interrupted)));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
