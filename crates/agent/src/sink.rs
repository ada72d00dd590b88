//! The receiver of a run's reports.

use crate::record::Record;

/// Receives what a run reports. It must not wait for its readers, as placement waits meanwhile, and handles
/// what it cannot write itself.
pub trait Sink {
    /// A cycle is done.
    fn record(&mut self, record: &Record<'_>);
    /// Something else worth telling, one sentence.
    fn notice(&mut self, text: &str);
    /// SIGHUP came: opens log files again that were rotated. Whether there are any.
    fn reopen(&mut self) -> bool {
        false
    }
}
