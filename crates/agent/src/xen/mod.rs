//! The same loop in the control domain of a Xen host: looks and decisions ([`look`]), and the run ([`run()`]).
//!
//! Policies are those of all hosts. What differs: domains have two affinities and their memory does not move, `xl`
//! tells times to a tenth of a second, and there is no kernel scheduler of Instep.

mod run;

pub use run::{Ended, Options, restored, run, told};

use crate::error::Error;
use instep_core::decision::{Action, Decision};
use instep_core::policy::{self, Settings};
use instep_core::snapshot::Snapshot;
use instep_core::topology::Topology;
use instep_core::units::Nanos;
use instep_xen::apply::Journal;
use instep_xen::scan::{Depth, scan};
use instep_xen::{Scan, Source, rates};
use std::sync::Arc;

/// One look at a Xen host.
#[derive(Clone, Debug)]
pub struct Look {
    /// What policies see.
    pub snapshot: Snapshot,
    /// What it was made from.
    pub scan: Scan,
    /// *Competing modules* of the window, in millionths of a module.
    pub competing: u64,
}

/// Below this, times to a tenth of a second are off by a tenth or more.
const GOOD_WINDOW: Nanos = Nanos::from_secs(1);

/// Looks. Loads are those since `before`, or averages since each domain started; `elapsed` overrides the length of the
/// window. `journal` knows what Instep changed.
///
/// # Errors
/// The host cannot be read; the window between two copies is not known.
pub fn look(
    source: &Source,
    before: Option<&Scan>,
    elapsed: Option<Nanos>,
    depth: Depth,
    journal: Option<&Journal>,
) -> Result<Look, Error> {
    let mut now = scan(source, depth)?;
    let topology: Arc<Topology> = Arc::new(now.topology()?);
    let before = before.map(|before| {
        let unknown = "the copies' proc/uptime do not tell, or the one given with --before is the later \
                       one; give the time between them with --elapsed";
        rates::window(before, &now, elapsed).map(|window| (before, window)).ok_or(Error::Window(unknown))
    });
    let before = before.transpose()?;
    if let Some((_, window)) = before.filter(|(_, window)| window.0 < GOOD_WINDOW.0) {
        now.warnings.push(format!(
            "loads are rough: Xen tells CPU times to 0.1 s, and the window is {} s",
            window.milli_of(Nanos::SECOND)
        ));
    }
    let changed = |key: &_| journal.map(|journal| journal.before(key, &now)).unwrap_or_default();
    let snapshot = rates::snapshot(&topology, before, &now, changed);
    let competing = rates::competing_modules(&topology, before, &now);
    Ok(Look { snapshot, scan: now, competing })
}

/// What a cycle decides on a Xen host: the policy, without what cannot be done there.
#[must_use]
pub fn decide(snapshot: &Snapshot, settings: &Settings) -> Decision {
    let mut decision = policy::decide(snapshot, settings);
    decision.actions.retain(|action| {
        matches!(action, Action::SetVcpuAffinity { .. } | Action::SetSoftAffinity { .. })
    });
    decision
}
