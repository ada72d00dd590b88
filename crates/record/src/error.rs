//! Why a recording cannot be made, or ends in failure.

use std::io;

/// A recording that is not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording cannot be written.
    #[error("cannot write the recording: {0}")]
    Write(#[source] io::Error),
    /// No VM has this name.
    #[error("no VM is called `{name}`; {known}")]
    NoVm {
        /// The name.
        name: String,
        /// Which there are, as a sentence.
        known: String,
    },
    /// This host cannot be read.
    #[error(transparent)]
    Host(#[from] instep_host::Error),
    /// Nothing gives events.
    #[error("{0}")]
    NoSource(String),
    /// Events stopped coming.
    #[error("{0}")]
    Source(String),
}

impl Error {
    /// Whether a recording that had begun failed, rather than what is needed for one.
    pub fn is_failed_work(&self) -> bool {
        matches!(self, Error::Write(_) | Error::Source(_))
    }
}
