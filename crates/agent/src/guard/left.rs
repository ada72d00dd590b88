//! What a run leaves behind that is killed, on a host of any kind.

use crate::error::Error;
use crate::run::told;
use instep_host::apply::{Applier, Holder, InstanceLock, Journal, StateDir};

/// The journal of one kind of host, as a guardian sees it.
pub trait Left {
    /// What is recorded in this directory; `None` where nothing is.
    ///
    /// # Errors
    /// It cannot be read.
    fn look(&self, state: &StateDir) -> Result<Option<Recorded>, Error>;

    /// Puts everything back that is recorded in the directory of this lock.
    ///
    /// # Errors
    /// The host or the record cannot be read, or not be written.
    fn put_back(&self, lock: InstanceLock) -> Result<Restored, Error>;
}

/// Who answers for what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// That one.
    pub holder: Holder,
    /// Whether it ended without putting it back.
    pub is_abandoned: bool,
}

/// What came of putting it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// For people, at least one line.
    pub told: Vec<String>,
    /// Whether nothing is left to put back.
    pub is_complete: bool,
}

/// Threads of a Linux host.
#[derive(Clone, Copy, Debug)]
pub struct Threads;

impl Left for Threads {
    fn look(&self, state: &StateDir) -> Result<Option<Recorded>, Error> {
        let Some(journal) = Journal::load(state)? else { return Ok(None) };
        let is_abandoned = journal.is_abandoned()?;
        Ok(Some(Recorded { holder: journal.holder, is_abandoned }))
    }

    fn put_back(&self, lock: InstanceLock) -> Result<Restored, Error> {
        let report = Applier::open(lock)?.restore()?;
        Ok(Restored { told: told(&report), is_complete: report.is_complete() })
    }
}
