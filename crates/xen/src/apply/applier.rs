//! Sets affinities of domains: recorded before they are touched, and each domain wholly or not at all.

use super::access::HostAccess;
use super::journal::{self, Held, Journal};
use crate::error::Error;
use crate::scan::{DomainFacts, DomainKey, XenScan};
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::VmId;
use instep_state::Holder;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is to change of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainChange {
    /// Which.
    pub domain: DomainKey,
    /// Its name.
    pub name: String,
    /// New affinities by vCPU: hard and soft, `None` for one that stays.
    pub vcpus: BTreeMap<u32, (Option<CpuSet>, Option<CpuSet>)>,
    /// The new node affinity.
    pub nodes: Option<NodeSet>,
}

impl DomainChange {
    /// The changes that a decision asks for, one a domain; `seen` is the look that it was made on. Memory of a domain
    /// that runs cannot be moved, so such actions are left out.
    pub fn of_decision(decision: &Decision, seen: &XenScan) -> Vec<Self> {
        let mut changes: BTreeMap<VmId, Self> = BTreeMap::new();
        for action in &decision.actions {
            let Some(domain) = seen.by_id(action.vm().0) else { continue };
            let change = changes.entry(action.vm()).or_insert_with(|| Self {
                domain: domain.key.clone(),
                name: domain.name.clone(),
                vcpus: BTreeMap::new(),
                nodes: None,
            });
            match action {
                Action::SetVcpuAffinity { vcpu, cpus, .. } => {
                    change.vcpus.entry(*vcpu).or_default().0 = Some(cpus.clone());
                }
                Action::SetSoftAffinity { vcpus, nodes, .. } => {
                    for (vcpu, cpus) in vcpus {
                        change.vcpus.entry(*vcpu).or_default().1 = Some(cpus.clone());
                    }
                    change.nodes.clone_from(nodes);
                }
                Action::SetEmulatorAffinity { .. } | Action::MoveMemory { .. } => {}
            }
        }
        let is_change = |change: &Self| !change.vcpus.is_empty() || change.nodes.is_some();
        changes.into_values().filter(is_change).collect()
    }
}

/// What came of a change.
#[derive(Debug)]
pub enum Applied {
    /// It is so.
    Set,
    /// The domain is gone.
    Gone,
    /// Someone else changed the domain since it was looked at; it is left alone.
    Changed,
    /// It failed, and the domain has what it had before.
    Failed(Error),
    /// It failed, and the domain has a part of it.
    Half(Error),
}

/// Applies and restores. Whoever has one holds the lock of the state directory.
pub struct Applier<H> {
    state: PathBuf,
    /// Who answers for what this one changes.
    own: Holder,
    pub(super) hands: H,
    pub(super) journal: Journal,
}

impl<H: HostAccess> Applier<H> {
    /// With the journal of this state directory, for this process, `own`.
    ///
    /// # Errors
    /// There is one that cannot be read; it is not known which boot this is.
    pub fn open(state: PathBuf, own: Holder, hands: H) -> Result<Self, Error> {
        let journal = match Journal::load(&state)? {
            Some(journal) => journal,
            None => Journal::of_this_boot(&state, own)?,
        };
        Ok(Self { state, own, hands, journal })
    }

    /// What is changed and not put back.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Leaves what was set standing, with no run that answers for it.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn keep(&mut self) -> Result<(), Error> {
        self.journal.holder = Holder::Kept;
        self.store()
    }

    /// Answers for what an earlier run left standing: should this one be killed, the next one puts it back.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn take_over(&mut self) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.journal.holder, self.own);
        if before == self.own {
            return Ok(());
        }
        self.store().inspect_err(|_| self.journal.holder = before)
    }

    pub(super) fn store(&self) -> Result<(), Error> {
        self.journal.store(&self.state)
    }

    /// Makes the changes; gives what came of each, in their order. `seen` is the look that they were decided on.
    ///
    /// # Errors
    /// The host cannot be looked at, or the journal not be written. What was changed by then is in the journal.
    pub fn apply(
        &mut self,
        changes: &[DomainChange],
        seen: &XenScan,
    ) -> Result<Vec<Applied>, Error> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.hands.scan_domains()?;
        let before = self.journal.clone();
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut due = Vec::new();
        for change in changes {
            match self.obstacle(change, seen, &now) {
                Some(obstacle) => outcomes.push(Some(obstacle)),
                None => {
                    self.note(change, &now);
                    due.push(outcomes.len());
                    outcomes.push(None);
                }
            }
        }
        self.journal.holder = self.own;
        // Nothing was changed yet: what is in memory is what is on disk.
        self.store().inspect_err(|_| self.journal = before)?;
        let done: Vec<_> = due.iter().map(|at| self.set(&changes[*at], &now)).collect();
        let after = self.hands.scan_domains()?;
        for (at, done) in due.into_iter().zip(done) {
            self.note_outcome(&changes[at].domain, &now, &after);
            outcomes[at] = Some(judge(&changes[at], done, &now, &after));
        }
        self.journal.forget_unchanged();
        self.store()?;
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// What stands in the way of a change before anything is touched.
    fn obstacle(&self, change: &DomainChange, seen: &XenScan, now: &XenScan) -> Option<Applied> {
        let Some(domain) = now.domain(&change.domain).filter(|domain| !domain.is_ending) else {
            return Some(match now.may_miss(&change.domain) {
                true => Applied::Failed(Error::unread()),
                false => Applied::Gone,
            });
        };
        let same = |index: &u32| {
            let of = |scan: &XenScan| {
                let vcpu = scan.domain(&change.domain)?.vcpu(*index)?;
                Some((vcpu.hard.clone(), vcpu.soft.clone()))
            };
            of(seen).is_some() && of(seen) == of(now)
        };
        let is_known = seen.domain(&change.domain).is_some_and(|seen| seen.nodes == domain.nodes);
        if !is_known || !change.vcpus.keys().all(same) {
            return Some(Applied::Changed);
        }
        if change.nodes.is_some()
            && let Err(error) = self.hands.can_set_nodes(change.domain.id)
        {
            return Some(Applied::Failed(error));
        }
        None
    }

    /// Records what is there before it is touched.
    fn note(&mut self, change: &DomainChange, now: &XenScan) {
        let Some(domain) = now.domain(&change.domain) else { return };
        let held = self.journal.domains.entry(change.domain.clone()).or_default();
        held.name.clone_from(&change.name);
        for (index, (hard, soft)) in &change.vcpus {
            let Some(vcpu) = domain.vcpu(*index) else { continue };
            for (changes, now, to) in
                [(&mut held.hard, &vcpu.hard, hard), (&mut held.soft, &vcpu.soft, soft)]
            {
                let Some(to) = to else { continue };
                let entry = journal::RecordedChange::begin(changes.remove(index), now, to);
                changes.insert(*index, entry);
            }
        }
        if let Some(nodes) = &change.nodes {
            held.nodes =
                Some(journal::RecordedChange::begin(held.nodes.take(), &domain.nodes, nodes));
        }
    }

    /// Sets one domain; one that fails on the way gets back what it had at the look `before`.
    fn set(&self, change: &DomainChange, before: &XenScan) -> Result<(), Error> {
        let id = change.domain.id;
        let mut begun = Vec::new();
        let mut all = || {
            for (vcpu, (hard, soft)) in &change.vcpus {
                // Xen may carry out a command that fails or is stopped.
                begun.push(*vcpu);
                self.hands.pin(id, *vcpu, hard.as_ref(), soft.as_ref())?;
            }
            change.nodes.as_ref().map_or(Ok(()), |nodes| self.hands.set_nodes(id, nodes))
        };
        let done = all();
        if done.as_ref().is_err_and(|error| !error.is_gone()) {
            self.undo(change, &begun, before);
        }
        done
    }

    /// Gives vCPUs of a domain, and its nodes, what they had before, as far as that works: a look tells.
    fn undo(&self, change: &DomainChange, begun: &[u32], before: &XenScan) {
        let id = change.domain.id;
        let Some(was) = before.domain(&change.domain) else { return };
        for vcpu in begun.iter().rev() {
            let (Some(was), (hard, soft)) = (was.vcpu(*vcpu), &change.vcpus[vcpu]) else {
                continue;
            };
            let hard = hard.as_ref().map(|_| &was.hard);
            let soft = soft.as_ref().map(|_| &was.soft);
            let _ = self.hands.pin(id, *vcpu, hard, soft);
        }
        // A node affinity that Xen derives from the others comes back by itself, and must not be set.
        let has_other_nodes = |now: XenScan| {
            now.domain(&change.domain).is_some_and(|domain| domain.nodes != was.nodes)
        };
        if change.nodes.is_some() && self.hands.scan_domains().is_ok_and(has_other_nodes) {
            let _ = self.hands.set_nodes(id, &was.nodes);
        }
    }

    /// Records what became of a domain that was touched. A node affinity counts as Instep's if it was set now, or if what was
    /// there before was Instep's: Xen derives that of some domains from affinities of vCPUs.
    fn note_outcome(&mut self, key: &DomainKey, before: &XenScan, after: &XenScan) {
        let Some(domain) = after.domain(key) else {
            if !after.may_miss(key) {
                self.journal.domains.remove(key);
            }
            return;
        };
        let Some(held) = self.journal.domains.get_mut(key) else { return };
        settle_vcpus(held, domain);
        let was = before.domain(key).map(|domain| &domain.nodes);
        if let Some(change) = &mut held.nodes {
            if !change.pending.is_empty() || was.is_some_and(|was| change.is_ours(was)) {
                change.set.clone_from(&domain.nodes);
            }
            change.pending = journal::Nodes::new();
        }
    }
}

/// The outcome of a change, by the affinities that Xen reports now and not by the status of its commands.
fn judge(
    change: &DomainChange,
    done: Result<(), Error>,
    before: &XenScan,
    after: &XenScan,
) -> Applied {
    let Some(now) = after.domain(&change.domain).filter(|domain| !domain.is_ending) else {
        return match after.may_miss(&change.domain) {
            true => Applied::Half(done.err().unwrap_or_else(Error::unread)),
            false => Applied::Gone,
        };
    };
    if is_so(now, change) {
        return Applied::Set;
    }
    let error = done.err().unwrap_or_else(|| Error::Unusable {
        what: format!("Xen did not take all of it: {}", shown(now, change)),
        next: "see `xl vcpu-list` and `xl list -n`",
    });
    match before.domain(&change.domain).is_some_and(|was| is_alike(was, now, change)) {
        true => Applied::Failed(error),
        false => Applied::Half(error),
    }
}

/// Records what vCPUs that were touched have now.
fn settle_vcpus(held: &mut Held, domain: &DomainFacts) {
    for (index, change) in &mut held.hard {
        settle_set(change, domain.vcpu(*index).map(|vcpu| &vcpu.hard));
    }
    for (index, change) in &mut held.soft {
        settle_set(change, domain.vcpu(*index).map(|vcpu| &vcpu.soft));
    }
}

/// Of entries that were being changed, what came of it.
fn settle_set(
    change: &mut journal::RecordedChange<instep_core::units::CpuId>,
    now: Option<&CpuSet>,
) {
    if let Some(now) = now.filter(|_| !change.pending.is_empty()) {
        change.set.clone_from(now);
    }
    change.pending = CpuSet::new();
}

/// Whether a domain has what was asked for.
fn is_so(domain: &DomainFacts, change: &DomainChange) -> bool {
    let vcpu = |(index, (hard, soft)): (&u32, &(Option<CpuSet>, Option<CpuSet>))| {
        domain.vcpu(*index).is_some_and(|now| {
            hard.as_ref().is_none_or(|hard| *hard == now.hard)
                && soft.as_ref().is_none_or(|soft| *soft == now.soft)
        })
    };
    change.vcpus.iter().all(vcpu)
        && change.nodes.as_ref().is_none_or(|nodes| *nodes == domain.nodes)
}

/// Whether a domain has the same at two looks of all that a change names.
fn is_alike(was: &DomainFacts, now: &DomainFacts, change: &DomainChange) -> bool {
    let sets = |domain: &DomainFacts, index: &u32| {
        domain.vcpu(*index).map(|vcpu| (vcpu.hard.clone(), vcpu.soft.clone()))
    };
    change.vcpus.keys().all(|index| sets(was, index) == sets(now, index))
        && (change.nodes.is_none() || was.nodes == now.nodes)
}

/// What a domain has now of what was asked for.
fn shown(domain: &DomainFacts, change: &DomainChange) -> String {
    let vcpu = |index: &u32| {
        let vcpu = domain.vcpu(*index)?;
        Some(format!("vCPU {index} has CPUs {} and prefers {}", vcpu.hard, vcpu.soft))
    };
    let mut parts: Vec<String> = change.vcpus.keys().filter_map(vcpu).collect();
    if change.nodes.is_some() {
        parts.push(format!("its node affinity is {}", domain.nodes));
    }
    parts.join(", ")
}
