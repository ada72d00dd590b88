//! What a run tells the service manager that started it (systemd, `Type=notify`).
//!
//! ```text
//! EXTEND_TIMEOUT_USEC -> first cycle: READY -> STATUS after each cycle, WATCHDOG while the loop goes round
//!                        SIGHUP: RELOADING -> READY        the end, affinities are settled: STOPPING
//! ```
//! Without a service manager nothing is sent. What cannot be sent changes nothing else.

use sd_notify::NotifyState as State;
use std::time::{Duration, Instant};

/// What a start may take besides the window over which loads are measured: a look at the memory of all VMs,
/// and bringing it home for one cycle.
const START: Duration = Duration::from_secs(5 * 60);
/// A sign of life is due this many times within the watchdog's time.
const SIGNS: u32 = 3;

/// The service manager as the loop sees it.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// The time between two signs of life; `None` without a watchdog.
    every: Option<Duration>,
    /// When the last one was sent.
    signed: Instant,
    /// Whether it knows that the first cycle is done.
    is_ready: bool,
}

impl Service {
    /// A run begins, and measures for this long before its first cycle.
    pub(crate) fn begin(window: Duration) -> Self {
        let limit = u32::try_from((window + START).as_micros()).unwrap_or(u32::MAX);
        tell(&[State::ExtendTimeoutUsec(limit), State::Status("measuring the load of VMs")]);
        let every = sd_notify::watchdog_enabled().map(|time| time / SIGNS);
        Self { every, signed: Instant::now(), is_ready: false }
    }

    /// The longest to wait without a sign of life.
    pub(crate) fn every(&self) -> Duration {
        self.every.unwrap_or(Duration::MAX)
    }

    /// The loop goes round: a sign of life if one is due.
    pub(crate) fn sign(&mut self) {
        if self.every.is_some_and(|every| self.signed.elapsed() >= every) {
            self.signed = Instant::now();
            tell(&[State::Watchdog]);
        }
    }

    /// A cycle ended, which this says of it.
    pub(crate) fn note_cycle(&mut self, status: &str) {
        self.signed = Instant::now();
        if std::mem::replace(&mut self.is_ready, true) {
            tell(&[State::Status(status), State::Watchdog]);
        } else {
            tell(&[State::Ready, State::Status(status), State::Watchdog]);
        }
    }

    /// Reloads by `work`, and tells systemd when that begins and ends. Before the first cycle the service is not ready yet, so there is
    /// nothing to tell.
    pub(crate) fn reload(&self, work: impl FnOnce()) {
        if self.is_ready {
            match State::monotonic_usec_now() {
                Ok(now) => tell(&[State::Reloading, now]),
                Err(_) => tell(&[State::Reloading]),
            }
        }
        work();
        if self.is_ready {
            tell(&[State::Ready]);
        }
    }
}

/// A run ends, and this is what became of the placement.
pub(crate) fn tell_end(status: &str) {
    tell(&[State::Stopping, State::Status(status)]);
}

fn tell(states: &[State<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
