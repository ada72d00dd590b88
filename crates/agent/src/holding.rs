//! What a run does about the journal besides changing affinities: it takes it up at the begin, sees to it that it is
//! where it should be, and answers for what an earlier run left in it.
//!
//! ```text
//! journal of a run that crashed ---------------> restored at the begin
//! kept, by `run --once` or for a hand-over ----> stands; after the first cycle it is this run's
//! ```

use crate::dispatch;
use crate::error::Error;
use crate::locks::lock;
use crate::published;
use crate::restored::describe_restore;
use crate::sink::Sink;
use instep_core::wording::Count;
use instep_host::Root;
use instep_host::apply::{Affinity, Applier, StateDir, damon};

/// Becomes the one instance, and restores what one that crashed left behind.
pub(crate) fn begin(state: &StateDir, sink: &mut dyn Sink) -> Result<Applier, Error> {
    let mut applier = Applier::open(lock(state)?)?;
    dispatch::forget(state.path());
    published::forget(state.path());
    if state.is_private() {
        sink.notice(&format!(
            "the state directory {0} is private to this mount namespace: original affinities are lost \
             with it, and only `instep restore --to-cpuset` is left then; give a container the \
             directory of the host (docker run --volume {0}:{0})",
            state.path().display()
        ));
    }
    // Of a run that ended while it watched a VM, whatever became of its journal.
    match damon::undo(&Root::live(), state) {
        Ok(None) => {}
        Ok(Some(undone)) => {
            sink.notice(&format!("an earlier run ended without restoring; {undone}"))
        }
        Err(error) => sink.notice(&format!("DAMON's monitor could not be removed: {error}")),
    }
    if applier.journal().is_abandoned()? {
        let report = applier.restore()?;
        let mut lines = describe_restore(&report);
        lines[0].insert_str(0, "an earlier run ended without restoring; ");
        lines.iter().for_each(|line| sink.notice(line));
    } else if applier.journal().is_void()? {
        // A placement kept before the machine was booted again: nothing of it stands.
        applier.restore()?;
    }
    Ok(applier)
}

/// Sees to it that what was changed is on record, whatever became of the state directory meanwhile.
///
/// # Errors
/// Another instance has a lock of this run by now: two must not act.
pub(crate) fn renew<A: Affinity>(
    applier: &mut Applier<A>,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    match applier.renew() {
        Ok(false) => {}
        Err(instep_host::Error::Taken { pid }) => return Err(Error::Displaced { pid }),
        Ok(true) => sink.notice(
            "another process removed the journal or a lock of this run; this run wrote them \
             again, as `instep restore` needs the journal if this process is killed",
        ),
        Err(error) => sink.notice(&format!(
            "the journal is not where it was, and cannot be put there again: {error}; placement \
             goes on, but if this process is killed, only `instep restore --to-cpuset` is left"
        )),
    }
    Ok(())
}

/// Answers for what an earlier run left standing, now that a cycle has gone by under which it stands. Otherwise nobody
/// would put it back should this run be killed, as the journal calls it meant to stay.
pub(crate) fn take_over<A: Affinity>(applier: &mut Applier<A>, sink: &mut dyn Sink) {
    match applier.take_over() {
        Ok(0) => {}
        Ok(threads) => sink.notice(&format!(
            "an earlier run left {} placed; this run goes on with them, and puts their affinities back when it ends",
            Count::of(threads, "thread")
        )),
        Err(error) => sink.notice(&format!(
            "what an earlier run left placed is not on record as this run's: {error}; if this process is killed, \
             `instep restore` puts it back"
        )),
    }
}
