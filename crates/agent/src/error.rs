//! What ends the loop early.

use crate::config::ConfigError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host could not be read or changed.
    #[error(transparent)]
    Host(#[from] instep_host::Error),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A VM was named that does not run.
    #[error("no VM is called `{name}`; see `instep status`")]
    NoSuchVm {
        /// The name.
        name: String,
    },
    /// Every change was refused for lack of privilege; nothing was changed.
    #[error("may not change the VMs' threads: {first} (all {count} changes were refused)")]
    Denied {
        /// The first refusal.
        first: String,
        /// How many there were.
        count: usize,
    },
    /// A record could not be written.
    #[error("cannot write the record of a cycle: {0}")]
    Record(#[source] std::io::Error),
    /// Signals cannot be received.
    #[error("cannot set up signals: {0}")]
    Signals(#[source] std::io::Error),
}
