//! Puts back what Instep changed, where it is still as Instep set it.

use super::access::HostAccess;
use super::applier::Applier;
use super::journal::Held;
use crate::error::Error;
use crate::scan::{DomainFacts, DomainKey};
use instep_core::idset::CpuSet;
use std::collections::BTreeMap;

/// What came of it.
#[derive(Debug, Default)]
pub struct DomainRestoreReport {
    /// Domains of which something was put back.
    pub restored: usize,
    /// Domains that are gone.
    pub gone: usize,
    /// What someone else changed since, one sentence each.
    pub left_alone: Vec<String>,
    /// What could not be put back, by domain.
    pub failed: Vec<(String, Error)>,
}

impl DomainRestoreReport {
    /// Whether nothing is left to put back.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }
}

/// Hard and soft affinity to go back to, by vCPU.
type Back = BTreeMap<u32, (Option<CpuSet>, Option<CpuSet>)>;

impl<H: HostAccess> Applier<H> {
    /// Puts back everything in the journal, or of the domains that `chosen` names.
    ///
    /// # Errors
    /// The host cannot be looked at, or the journal not be written.
    pub fn restore(
        &mut self,
        chosen: impl Fn(&DomainKey) -> bool,
    ) -> Result<DomainRestoreReport, Error> {
        let mut report = DomainRestoreReport::default();
        let keys: Vec<DomainKey> =
            self.journal.domains.keys().filter(|key| chosen(key)).cloned().collect();
        if keys.is_empty() {
            return Ok(report);
        }
        let now = self.hands.scan_domains()?;
        let mut stored = Ok(());
        for key in keys {
            let Some(held) = self.journal.domains.get(&key) else { continue };
            let found = now.domain(&key);
            if found.is_some_and(|domain| domain.is_suspended) {
                let error = Error::Unusable {
                    what: "it is suspended".to_owned(),
                    next: "restore again when it runs, or has ended",
                };
                report.failed.push((held.name.clone(), error));
                continue;
            }
            if now.may_miss(&key) {
                report.failed.push((held.name.clone(), Error::unread()));
                continue;
            }
            let Some(domain) = found.filter(|domain| !domain.is_ending) else {
                report.gone += 1;
                self.journal.domains.remove(&key);
                continue;
            };
            match self.restore_one(held, domain, &mut report.left_alone) {
                Ok(changed) => {
                    report.restored += usize::from(changed);
                    self.journal.domains.remove(&key);
                }
                Err(error) if error.is_gone() => {
                    report.gone += 1;
                    self.journal.domains.remove(&key);
                }
                Err(error) => report.failed.push((held.name.clone(), error)),
            }
            // All domains get back what they had, also where that can no longer be noted.
            stored = stored.and(self.store());
        }
        stored.and(self.store())?;
        Ok(report)
    }

    /// Puts back one domain; whether anything was to be put back.
    fn restore_one(
        &self,
        held: &Held,
        domain: &DomainFacts,
        left_alone: &mut Vec<String>,
    ) -> Result<bool, Error> {
        let mut back = Back::new();
        let mut leave = |what: String| left_alone.push(format!("{}: {what}", held.name));
        for (changes, is_soft) in [(&held.hard, false), (&held.soft, true)] {
            let kind = if is_soft { "soft" } else { "hard" };
            for (index, change) in changes {
                let now = domain.vcpu(*index);
                let now = now.map(|vcpu| if is_soft { &vcpu.soft } else { &vcpu.hard });
                if now == Some(&change.original) {
                    continue;
                }
                if now.is_some_and(|now| !change.is_ours(now)) {
                    leave(format!("someone else set the {kind} affinity of vCPU {index} since"));
                    continue;
                }
                let sets = back.entry(*index).or_default();
                let set = if is_soft { &mut sets.1 } else { &mut sets.0 };
                *set = Some(change.original.clone());
            }
        }
        let id = domain.key.id;
        for (vcpu, (hard, soft)) in &back {
            self.hands.pin(id, *vcpu, hard.as_ref(), soft.as_ref())?;
        }
        let Some(change) = &held.nodes else { return Ok(!back.is_empty()) };
        // Xen derives the node affinity of some domains from the other affinities: it may have come back by itself.
        let after = self.hands.scan_domains()?;
        let Some(now) = after.domain(&domain.key).map(|domain| &domain.nodes) else {
            return if after.may_miss(&domain.key) { Err(Error::unread()) } else { Ok(true) };
        };
        if *now == change.original {
            return Ok(!back.is_empty());
        }
        if !change.is_ours(now) && !change.is_ours(&domain.nodes) {
            leave("someone else set its node affinity since".to_owned());
            return Ok(!back.is_empty());
        }
        self.hands.set_nodes(id, &change.original)?;
        Ok(true)
    }
}
