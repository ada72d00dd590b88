//! Why a trace cannot be read at all. Damage further inside is counted, not an error
//! ([`crate::stream::Tally`]).

use std::io;

/// A trace that gives no events.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no trace that Instep knows, or one that lacks what it needs.
    #[error("{path}: {what}")]
    Unusable {
        /// The file.
        path: String,
        /// What is wrong, where, and what to do about it.
        what: String,
    },
}

/// What is wrong with bytes whose file is known further up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    /// A fault in these words.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Fault(what.into())
    }

    /// The file ends at byte `size`, and `what`, without which nothing can be read, goes up to byte
    /// `end`. `instead`: how to record so that a cut file is of use.
    pub(crate) fn cut(size: u64, what: &str, end: u64, instead: &str) -> Self {
        Fault(format!(
            "it is cut off: it has {size} bytes, and {what} to byte {end}, without which the rest \
             means nothing. Copy the whole file again{instead}"
        ))
    }

    /// The fault as an error of the file called `path`.
    pub(crate) fn of(self, path: &str) -> TraceError {
        TraceError::Unusable { path: path.to_owned(), what: self.0 }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault(format!("cannot be read: {error}"))
    }
}
