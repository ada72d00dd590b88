//! Signals as values: what to do next, waited for with a deadline.

use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The time passed.
    Time,
    /// SIGTERM or SIGINT: put everything back and end. SIGUSR1: end and leave the placement to the next run.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Receives signals on a thread of its own; they wait here until asked for.
#[derive(Debug)]
pub struct Events {
    handle: Handle,
    receiver: Receiver<i32>,
    stop: bool,
    hand_over: bool,
    reload: bool,
}

/// Makes a write beyond the limit of a file's size (RLIMIT_FSIZE) one that fails: SIGXFSZ ends a process
/// that has no handler for it, and what it changed stays then.
///
/// # Errors
/// When the handler cannot be installed.
pub fn survive_size_limit() -> Result<(), Error> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(|_| ()).map_err(Error::Signals)
}

impl Events {
    /// Takes over SIGHUP of this process: to be done before anything else, since SIGHUP ends a process
    /// that has no handler for it. SIGTERM and SIGINT may still do so, as nothing is changed yet.
    ///
    /// # Errors
    /// When the handler cannot be installed.
    pub fn hold_reloads() -> Result<Self, Error> {
        let mut signals = Signals::new([SIGHUP]).map_err(Error::Signals)?;
        let handle = signals.handle();
        let (sender, receiver) = channel();
        let forward = move || {
            for signal in signals.forever() {
                if sender.send(signal).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(forward)
            .map_err(Error::Signals)?;
        Ok(Self { handle, receiver, stop: false, hand_over: false, reload: false })
    }

    /// Takes over SIGTERM, SIGINT and SIGUSR1, too: from now on there may be something to put back.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub(crate) fn hold_stops(&mut self) -> Result<(), Error> {
        let hold = |signal| self.handle.add_signal(signal).map_err(Error::Signals);
        [SIGTERM, SIGINT, SIGUSR1].into_iter().try_for_each(hold)
    }

    /// Waits until `time` has passed or a signal came, whichever is first. A stop is never
    /// forgotten: once asked for, every wait ends at once.
    pub(crate) fn wait(&mut self, time: Duration) -> Wake {
        // A time that no clock can hold never passes.
        let deadline = Instant::now().checked_add(time);
        loop {
            if self.stopping() {
                return Wake::Stop;
            }
            if std::mem::take(&mut self.reload) {
                return Wake::Reload;
            }
            let left =
                deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            match self.receiver.recv_timeout(left) {
                Ok(signal) => self.note(signal),
                Err(RecvTimeoutError::Timeout) => return Wake::Time,
                // The thread is gone: nothing will come, but the deadline still holds.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(left);
                    return Wake::Time;
                }
            }
        }
    }

    /// Whether a stop was asked for, without waiting.
    pub(crate) fn stopping(&mut self) -> bool {
        while let Ok(signal) = self.receiver.try_recv() {
            self.note(signal);
        }
        self.stop || self.hand_over
    }

    /// Whether the placement is to stand for the next run. Asked to put it back, too, a run does that.
    pub(crate) fn is_hand_over(&mut self) -> bool {
        self.stopping() && !self.stop
    }

    fn note(&mut self, signal: i32) {
        match signal {
            SIGHUP => self.reload = true,
            SIGUSR1 => self.hand_over = true,
            _ => self.stop = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_too_long_for_any_clock_ends_at_a_signal() {
        let (sender, receiver) = channel();
        let handle = Signals::new([SIGHUP]).unwrap().handle();
        let mut events = Events { handle, receiver, stop: false, hand_over: false, reload: false };
        sender.send(SIGHUP).unwrap();
        assert_eq!(events.wait(Duration::MAX), Wake::Reload);
        assert!(!events.is_hand_over());
        sender.send(SIGUSR1).unwrap();
        assert_eq!(events.wait(Duration::MAX), Wake::Stop);
        assert!(events.is_hand_over());
        sender.send(SIGTERM).unwrap();
        assert!(!events.is_hand_over(), "what is to be put back is not handed over");
        assert_eq!(events.wait(Duration::MAX), Wake::Stop);
        assert_eq!(events.wait(Duration::MAX), Wake::Stop, "a stop is never forgotten");
    }
}
