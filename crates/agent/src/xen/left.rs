//! Domains with affinities from Instep: who answers for them, and putting them back.

use crate::error::Error;
use crate::guard::{HostJournal, Recorded, Restored};
use instep_core::wording::Count;
use instep_host::apply::{Instance, InstanceLife, InstanceLock, StateDir, this_instance};
use instep_xen::Source;
use instep_xen::apply::{Applier, DomainRestoreReport, Holder, Journal, LiveAccess};
use instep_xen::source::Query;
use instep_xen::text::info::{self, Info};

/// What acts on the domains of this host, with the journal of this state directory, whose lock the caller has.
///
/// # Errors
/// There is a journal that cannot be read, or this process cannot be read under /proc.
pub fn open(state: &StateDir, source: Source, info: &Info) -> Result<Applier<LiveAccess>, Error> {
    let hands = LiveAccess::new(source, info);
    Ok(Applier::open(state.path().to_owned(), this_instance()?, hands)?)
}

/// Puts back what the journal of this state directory tells, whose lock the caller has.
///
/// # Errors
/// The journal or the host cannot be read, or the journal not be written.
pub fn restore(state: &StateDir, source: Source) -> Result<DomainRestoreReport, Error> {
    let info = info::parse(&source.read(Query::Info)?)?;
    Ok(open(state, source, &info)?.restore(|_| true)?)
}

/// Domains of a Xen host.
#[derive(Clone, Copy, Debug)]
pub struct Domains;

impl HostJournal for Domains {
    fn read_record(&self, state: &StateDir) -> Result<Option<Recorded>, Error> {
        let Some(Journal { boot_id, holder, .. }) = Journal::load(state.path())? else {
            return Ok(None);
        };
        let is_abandoned = match holder {
            Holder::Kept => false,
            Holder::Instance { pid, start } => {
                Instance { boot_id, pid, start }.life()? != InstanceLife::Runs
            }
        };
        Ok(Some(Recorded { holder, is_abandoned }))
    }

    fn put_back(&self, lock: InstanceLock) -> Result<Restored, Error> {
        let report = restore(lock.state(), Source::live()?)?;
        Ok(Restored { told: describe_restore(&report), is_complete: report.is_complete() })
    }
}

/// A restore in one line.
#[must_use]
pub fn summarize_restore(report: &DomainRestoreReport) -> String {
    let mut text = match report.restored {
        0 => "there was no affinity to put back".to_owned(),
        1 => "1 domain has its original affinities again".to_owned(),
        more => format!("{more} domains have their original affinities again"),
    };
    if report.gone > 0 {
        text.push_str(&format!("; {} ended before", Count::of(report.gone, "domain")));
    }
    if !report.failed.is_empty() {
        text.push_str(&format!("; could not restore {}", Count::of(report.failed.len(), "domain")));
    }
    text
}

/// A restore in words: one line, and one for each thing that is not as it was found.
#[must_use]
pub fn describe_restore(report: &DomainRestoreReport) -> Vec<String> {
    let mut lines = vec![summarize_restore(report)];
    lines.extend(report.left_alone.iter().map(|what| format!("left alone: {what}")));
    let failed = |(name, error): &(String, _)| format!("{name} could not be restored: {error}");
    lines.extend(report.failed.iter().map(failed));
    lines
}
