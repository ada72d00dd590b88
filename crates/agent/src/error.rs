//! What ends the loop early.

use crate::config::ConfigError;
use instep_core::wording::Count;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host could not be read or changed.
    #[error(transparent)]
    Host(#[from] instep_host::Error),
    /// A Xen host could not be read or changed.
    #[error(transparent)]
    Xen(#[from] instep_xen::Error),
    /// The window between two copies is not known.
    #[error("cannot compute loads, as the time between the two copies is unknown: {0}")]
    Window(&'static str),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A VM was named that does not run or cannot be placed; the sentence of
    /// [`absent`](crate::observe::absent).
    #[error("{0}")]
    NoSuchVm(String),
    /// Every change was refused for lack of privilege; nothing was changed.
    #[error("may not change the VMs' threads: {first} (refused: all of {})", Count::of(*.count, "change"))]
    Denied {
        /// The first refusal.
        first: String,
        /// How many there were.
        count: usize,
    },
    /// A cycle failed after others had been done; what was changed was put back, or it was said
    /// that it could not be.
    #[error("after cycle {done}: {source}")]
    Later {
        /// Cycles that were done.
        done: u64,
        /// What failed.
        source: Box<Error>,
    },
    /// The placement could not be put back, or not be left as it is, at the end.
    #[error("{what}: {source}; `instep restore` puts back what is recorded")]
    Ending {
        /// What could not be done.
        what: &'static str,
        /// Why.
        source: instep_host::Error,
    },
    /// The files of this run were removed, and another instance began before that was noticed.
    #[error(
        "somebody removed the lock of this run, and {} took it since: so that no two instances act, this \
         one places nothing more, puts back what is still its own, and ends",
        .pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Displaced {
        /// Its process, where that can be told.
        pid: Option<u32>,
    },
    /// The kernel scheduler was demanded and cannot be loaded.
    #[error("cannot load the kernel scheduler: {why}; `--dispatch auto` goes on without it")]
    Dispatch {
        /// Why.
        why: String,
    },
    /// Signals cannot be received.
    #[error("cannot set up signals: {0}")]
    Signals(#[source] std::io::Error),
    /// A guardian has not put back what its agent left behind.
    #[error(
        "what `instep run` changed was not put back: {source}; \
         `instep restore --state-dir {}` puts it back", .state.display()
    )]
    Left {
        /// Where that is recorded.
        state: PathBuf,
        /// Why.
        source: Box<Error>,
    },
    /// A guardian cannot wait for its agent.
    #[error("cannot wait for the end of the run that is guarded: {0}")]
    Guard(#[source] std::io::Error),
}

impl Error {
    /// Whether the work had begun and then failed; otherwise it was asked for wrongly, or this is
    /// no place for it.
    #[must_use]
    pub fn is_failed_work(&self) -> bool {
        match self {
            Error::Later { .. }
            | Error::Ending { .. }
            | Error::Left { .. }
            | Error::Displaced { .. } => true,
            Error::Host(_)
            | Error::Xen(_)
            | Error::Window(_)
            | Error::Config(_)
            | Error::NoSuchVm(_)
            | Error::Denied { .. }
            | Error::Dispatch { .. }
            | Error::Signals(_)
            | Error::Guard(_) => false,
        }
    }
}
