//! What can go wrong with a benchmark, each with the next step.

use std::io;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of cases that is none.
    #[error("{}: {what}", .path.display())]
    Cases {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in it.
        what: String,
    },
    /// A file or directory could not be made, read or written.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// The verb: `read`, `write`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// This machine cannot run cells.
    #[error("{what}; {next}")]
    Lacking {
        /// What it lacks.
        what: String,
        /// What to do about it.
        next: String,
    },
    /// Nothing is named so.
    #[error("{what}; {next}")]
    Unknown {
        /// What was asked for.
        what: String,
        /// What there is.
        next: String,
    },
}

impl Error {
    /// An I/O error.
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { what, path: path.into(), source }
    }

    /// Something this machine lacks and what to do about it.
    pub fn lacking(what: impl Into<String>, next: impl Into<String>) -> Self {
        Error::Lacking { what: what.into(), next: next.into() }
    }
}
