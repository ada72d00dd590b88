//! What a run leaves behind that is killed, on a host of any kind.

use crate::error::Error;
use crate::restored::describe_restore;
use instep_host::Root;
use instep_host::apply::{
    Applier, Holder, InstanceLife, InstanceLock, Journal, RestoreReport, StateDir, damon,
};

/// The journal of one kind of host, as a guardian sees it.
pub trait HostJournal {
    /// What is recorded in this directory; `None` where nothing is.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_record(&self, state: &StateDir) -> Result<Option<Recorded>, Error>;

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

/// Threads of a Linux host, and the kernel's DAMON.
#[derive(Clone, Debug)]
pub struct Threads {
    /// Where the files of DAMON are.
    root: Root,
}

impl Threads {
    /// Those of this host.
    #[must_use]
    pub fn live() -> Self {
        Self { root: Root::live() }
    }

    #[cfg(test)]
    pub(crate) fn at(root: Root) -> Self {
        Self { root }
    }
}

impl HostJournal for Threads {
    fn read_record(&self, state: &StateDir) -> Result<Option<Recorded>, Error> {
        let journal = match Journal::load(state)? {
            Some(journal) => {
                let is_abandoned = journal.is_abandoned()?;
                Some(Recorded { holder: journal.holder, is_abandoned })
            }
            None => None,
        };
        // A record of a monitor that cannot be read must not keep affinities from being put back.
        let monitor = match damon::is_recorded(state) {
            Err(_) if journal.is_some() => None,
            monitor => monitor?,
        };
        let monitor = monitor
            .map(|(holder, life)| Recorded { holder, is_abandoned: life != InstanceLife::Runs });
        // What nobody answers for any more comes first, and then what a run answers for.
        let order = |of: &Recorded| (of.is_abandoned, of.holder != Holder::Kept);
        Ok(journal.into_iter().chain(monitor).max_by_key(order))
    }

    fn put_back(&self, lock: InstanceLock) -> Result<Restored, Error> {
        let state = lock.state().clone();
        let mut applier = Applier::open(lock)?;
        if applier.journal().is_abandoned()? {
            let report = applier.restore()?;
            return Ok(Restored {
                told: describe_restore(&report),
                is_complete: report.is_complete(),
            });
        }
        let monitor = damon::undo(&self.root, &state).transpose();
        let report = RestoreReport { monitor, ..RestoreReport::default() };
        let is_complete = report.is_complete();
        let told = report.monitor_told().unwrap_or_else(|| "DAMON's monitor was gone".to_owned());
        Ok(Restored { told: vec![told], is_complete })
    }
}
