//! What can go wrong, in words that name the value and what to try.

use std::fmt;
use std::io;

/// Why a load did not run, or ran wrong. Every one ends the program with status 2.
#[derive(Debug)]
pub enum LoadError {
    /// The command line: what was wrong with it, and where to read on.
    Usage(String),
    /// A system call failed.
    System {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Memory of this many bytes was refused.
    Memory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The load contradicted itself: a defect of this program or of the machine below it.
    Wrong(String),
}

impl LoadError {
    /// The error of the system call that has just failed.
    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), source: io::Error::last_os_error() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => out.write_str(text),
            Self::System { what, source } => write!(out, "cannot {what}: {source}"),
            Self::Memory { what, bytes } => {
                write!(out, "no {bytes} bytes of memory for {what}; try a smaller --size")
            }
            Self::Wrong(text) => write!(out, "wrong result: {text}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
