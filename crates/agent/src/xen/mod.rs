//! The same loop in the control domain of a Xen host: looks and decisions ([`observe_domains`]), and the run ([`run()`]).
//!
//! Policies are those of all hosts. What differs: domains have two affinities and their memory does not move, `xl`
//! tells times to a tenth of a second, and there is no kernel scheduler of Instep.

mod left;
mod run;

pub use left::{Domains, describe_restore, open, restore, summarize_restore};
pub use run::{Ended, XenRunOptions, run};

use crate::config::Config;
use crate::error::Error;
use instep_core::decision::{Action, Decision};
use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, NodeId};
use instep_xen::apply::Journal;
use instep_xen::scan::{Depth, scan};
use instep_xen::{DomainKey, Source, XenScan, rates};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One look at a Xen host.
#[derive(Clone, Debug)]
pub struct DomainObservation {
    /// What policies see.
    pub snapshot: Snapshot,
    /// What it was made from.
    pub scan: XenScan,
    /// *Competing modules* of the window, in millionths of a module.
    pub competing: u64,
}

/// Below this, times to a tenth of a second are off by a tenth or more.
const GOOD_WINDOW: Nanos = Nanos::from_secs(1);

/// Where the memory of each domain lay when Xen last told it.
pub type Memory = BTreeMap<DomainKey, BTreeMap<NodeId, Bytes>>;

/// What a look knows from before.
#[derive(Debug, Default)]
pub struct PriorScan<'a> {
    /// Loads are those since this look; averages since each domain started without one.
    pub before: Option<&'a XenScan>,
    /// The length of the window, where it is not that between the looks.
    pub elapsed: Option<Nanos>,
    /// What Instep changed.
    pub journal: Option<&'a Journal>,
}

/// Looks. `memory` is what earlier looks found, for those that do not ask, and what this one finds.
///
/// # Errors
/// The host cannot be read; the window between two copies is not known.
pub fn observe_domains(
    source: &Source,
    depth: Depth,
    known: &PriorScan<'_>,
    memory: &mut Memory,
) -> Result<DomainObservation, Error> {
    let &PriorScan { before, elapsed, journal } = known;
    let mut now = scan(source, depth)?;
    memory.retain(|key, _| now.domain(key).is_some() || now.may_miss(key));
    for domain in &mut now.domains {
        match &domain.memory {
            Some(found) => drop(memory.insert(domain.key.clone(), found.clone())),
            None => domain.memory = memory.get(&domain.key).cloned(),
        }
    }
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
    Ok(DomainObservation { snapshot, scan: now, competing })
}

/// How deep a look is that decides under this configuration. Memory by node is asked for where it counts: Xen walks the
/// page lists of all domains for it.
#[must_use]
pub fn depth_of(config: &Config) -> Depth {
    match config.memory.home && config.policy != PolicyName::None {
        true => Depth::WithMemory,
        false => Depth::Full,
    }
}

/// What a cycle decides on a Xen host: the policy, without what cannot be done there.
#[must_use]
pub fn decide(snapshot: &Snapshot, settings: &PolicySettings) -> Decision {
    let mut decision = policy::decide(snapshot, settings);
    decision.actions.retain(|action| {
        matches!(action, Action::SetVcpuAffinity { .. } | Action::SetSoftAffinity { .. })
    });
    decision
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Asked for again after minutes only, so that placement does not change with what one look lacks.
    #[test]
    fn memory_that_a_look_does_not_ask_for_is_that_of_the_last_one() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xen/tests/data");
        let source = Source::Copy(data.join("four-nodes/partial"));
        let mut memory = Memory::new();
        let full =
            observe_domains(&source, Depth::Full, &PriorScan::default(), &mut memory).unwrap();
        assert!(full.snapshot.vms.iter().all(|vm| vm.memory_total().0 > 0));
        let dir = instep_madehost::scratch_dir().unwrap();
        fs::create_dir(dir.path().join("xen")).unwrap();
        for entry in fs::read_dir(data.join("four-nodes/partial/xen")).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let text =
                if name == "xl-dmesg" { String::new() } else { fs::read_to_string(path).unwrap() };
            fs::write(dir.path().join("xen").join(name), text).unwrap();
        }
        let silent = Source::Copy(dir.path().to_owned());
        let short =
            observe_domains(&silent, Depth::Full, &PriorScan::default(), &mut memory).unwrap();
        assert_eq!(short.snapshot.vms.len(), full.snapshot.vms.len());
        for (short, full) in short.snapshot.vms.iter().zip(&full.snapshot.vms) {
            assert_eq!(short.memory, full.memory);
        }
        // Of a domain that has ended nothing is kept.
        let other = Source::Copy(data.join("two-nodes/pools"));
        observe_domains(&other, Depth::Times, &PriorScan::default(), &mut memory).unwrap();
        assert!(memory.keys().all(|key| key.id == 0), "{memory:?}");
    }
}
