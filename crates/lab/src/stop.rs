//! Whether somebody asked to stop: SIGINT, SIGTERM and SIGHUP become a flag that every wait looks
//! at, so that guests and temporary files go away in the ordinary order.

use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval at which waits look at the flag and at what they wait for.
pub const TICK: Duration = Duration::from_millis(20);

/// How much later than the first another signal is another wish: `timeout` sends its own to the process
/// and to the group that it is in.
const ANOTHER: Duration = Duration::from_secs(1);

/// A flag that says "stop".
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that nothing raises: for tests.
    pub fn never() -> Self {
        Self::default()
    }

    /// A flag that SIGINT, SIGTERM and SIGHUP raise. Another such signal, [`ANOTHER`] later, ends the
    /// process at once; guests then die with it, and the next run removes the directories left behind.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals() -> Result<Self, Error> {
        let failed = |e| Error::io("handle signals by", Path::new("sigaction"), e);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let stop = Self::default();
        let raised = stop.clone();
        let heard = move || {
            let mut first = None;
            for signal in signals.forever() {
                raised.raise();
                if first.get_or_insert_with(Instant::now).elapsed() >= ANOTHER {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(heard).map_err(failed)?;
        Ok(stop)
    }

    /// Whether it was raised.
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

    /// As `timeout` sends them; the second ended the process, and what it had made was left.
    #[test]
    fn two_signals_at_once_are_one_wish() {
        let stop = Stop::on_signals().unwrap();
        for _ in 0..2 {
            signal_hook::low_level::raise(SIGHUP).unwrap();
            assert!(stop.sleep(Duration::from_secs(60)).is_err());
        }
    }
}
