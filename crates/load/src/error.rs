//! What can go wrong, in words that name the value and what to try.

use std::io;

/// Why a load did not run, or ran wrong. Every one ends the program with status 2.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The command line: what was wrong with it, and where to read on.
    #[error("{0}")]
    Usage(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Memory of this many bytes was refused.
    #[error("no {bytes} bytes of memory for {what}; try a smaller --size")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The load contradicted itself: a defect of this program or of the machine below it.
    #[error("wrong result: {0}")]
    Wrong(String),
}

impl LoadError {
    /// The error of the system call that has just failed.
    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), source: io::Error::last_os_error() }
    }
}
