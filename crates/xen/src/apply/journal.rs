//! The journal of a Xen host: what every touched domain had before, so that it can be put back after anything.
//!
//! One file, `xen-journal.json`, schema `instep.xen-journal/1`, replaced as a whole and on stable storage before the
//! first change of a cycle. An affinity that is neither the original nor what Instep set was changed by someone else
//! since. It is void after the next boot of the host: domains have other numbers then.

use crate::error::Error;
use crate::rates::Before;
use crate::scan::{DomainKey, XenScan};
use instep_core::idset::{CpuSet, IdSet, NodeSet};
use instep_core::units::Id;
use instep_state::{BOOT_ID, Holder, Outlives, boot_id};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

const SCHEMA: &str = "instep.xen-journal/1";
const FILE: &str = "xen-journal.json";
const MAX_JOURNAL: u64 = 64 << 20;

/// A set before Instep, and what it was set to since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Id", deserialize = "T: Id"))]
pub struct RecordedChange<T: Id> {
    /// What it was.
    #[serde(with = "instep_state::list")]
    pub original: IdSet<T>,
    /// What it was set to last.
    #[serde(with = "instep_state::list")]
    pub set: IdSet<T>,
    /// What it is being set to; a crash may come before or after.
    #[serde(with = "instep_state::list", default, skip_serializing_if = "IdSet::is_empty")]
    pub pending: IdSet<T>,
}

/// What of one domain Instep has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its name, for messages.
    pub name: String,
    /// Hard affinities by vCPU.
    #[serde(default)]
    pub hard: BTreeMap<u32, RecordedChange<instep_core::units::CpuId>>,
    /// Soft affinities by vCPU.
    #[serde(default)]
    pub soft: BTreeMap<u32, RecordedChange<instep_core::units::CpuId>>,
    /// The node affinity.
    #[serde(default)]
    pub nodes: Option<RecordedChange<instep_core::units::NodeId>>,
}

impl Held {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.hard.is_empty() && self.soft.is_empty() && self.nodes.is_none()
    }
}

/// Everything Instep has changed on a Xen host and not put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Of which boot of dom0 it speaks.
    pub boot_id: String,
    /// Who answers for it.
    pub holder: Holder,
    /// By domain.
    pub domains: BTreeMap<DomainKey, Held>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    schema: String,
    boot_id: String,
    holder: Holder,
    domains: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    domain: DomainKey,
    changed: Held,
}

/// Reads a journal.
///
/// # Errors
/// It is damaged, or of another version.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Journal, Error> {
    let damaged = |why: String| Error::Unusable {
        what: format!(
            "{} is damaged ({why}), so it is not known what affinities were",
            path.display()
        ),
        next: "move it away to go on without it; affinities stay as they are then",
    };
    let document: Document =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if document.schema != SCHEMA {
        return Err(damaged(format!("its schema is not {SCHEMA}")));
    }
    if document.boot_id.is_empty() {
        return Err(damaged("it does not say at which boot it was written".to_owned()));
    }
    let domains = document.domains.into_iter().map(|entry| (entry.domain, entry.changed)).collect();
    Ok(Journal { boot_id: document.boot_id, holder: document.holder, domains })
}

impl Journal {
    /// The file in a state directory.
    pub fn path_in(state: &Path) -> PathBuf {
        state.join(FILE)
    }

    /// Loads that of a state directory; `None` without one, and of an earlier boot.
    ///
    /// # Errors
    /// It cannot be read, or is damaged; it is not known which boot this is.
    pub fn load(state: &Path) -> Result<Option<Self>, Error> {
        Self::load_in_boot(state, boot_id())
    }

    fn load_in_boot(state: &Path, boot: io::Result<String>) -> Result<Option<Self>, Error> {
        let path = Self::path_in(state);
        let failed = |source| Error::File { what: "read", path: path.clone(), source };
        let mut bytes = Vec::new();
        match instep_state::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened
                .and_then(|file| file.take(MAX_JOURNAL).read_to_end(&mut bytes))
                .map_err(failed)?,
        };
        let journal = parse(&path, &bytes)?;
        Ok((journal.boot_id == this_boot(&path, boot)?).then_some(journal))
    }

    /// Replaces that of a state directory; without entries there is none.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&self, state: &Path) -> Result<(), Error> {
        let path = Self::path_in(state);
        let failed = |source| Error::File { what: "write", path: path.clone(), source };
        if self.domains.values().all(Held::is_empty) {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let entries = self.domains.iter().filter(|(_, held)| !held.is_empty());
        let document = Document {
            schema: SCHEMA.to_owned(),
            boot_id: self.boot_id.clone(),
            holder: self.holder,
            domains: entries
                .map(|(domain, held)| Entry { domain: domain.clone(), changed: held.clone() })
                .collect(),
        };
        let bytes = serde_json::to_vec(&document).map_err(|error| failed(error.into()))?;
        instep_state::replace(&path, &bytes, 0o600, Outlives::Machine).map_err(failed)
    }

    /// An empty one of this boot, for a state directory.
    ///
    /// # Errors
    /// It is not known which boot this is.
    pub fn of_this_boot(state: &Path, holder: Holder) -> Result<Self, Error> {
        let boot_id = this_boot(&Self::path_in(state), boot_id())?;
        Ok(Self { boot_id, holder, domains: BTreeMap::new() })
    }

    /// What Instep changed of a domain, as far as that is still so at this look.
    pub fn before(&self, key: &DomainKey, now: &XenScan) -> Before {
        let (Some(held), Some(domain)) = (self.domains.get(key), now.domain(key)) else {
            return Before::default();
        };
        let originals = |changes: &BTreeMap<u32, RecordedChange<_>>, soft: bool| {
            let is_ours = |(index, change): &(&u32, &RecordedChange<_>)| {
                let vcpu = domain.vcpu(**index);
                vcpu.is_some_and(|vcpu| {
                    let now: &CpuSet = if soft { &vcpu.soft } else { &vcpu.hard };
                    change.is_ours(now)
                })
            };
            let ours = changes.iter().filter(is_ours);
            ours.map(|(index, change)| (*index, change.original.clone())).collect()
        };
        let nodes = held.nodes.as_ref().filter(|change| change.is_ours(&domain.nodes));
        Before {
            hard: originals(&held.hard, false),
            soft: originals(&held.soft, true),
            nodes: nodes.map(|change| change.original.clone()),
        }
    }
}

impl<T: Id> RecordedChange<T> {
    /// Whether this set is Instep's doing.
    pub fn is_ours(&self, now: &IdSet<T>) -> bool {
        *now == self.set || (!self.pending.is_empty() && *now == self.pending)
    }

    /// Notes that `now` is about to become `to`; a set that is not Instep's is a new original.
    pub(super) fn begin(entry: Option<Self>, now: &IdSet<T>, to: &IdSet<T>) -> Self {
        match entry.filter(|entry| entry.is_ours(now)) {
            Some(entry) => Self { set: now.clone(), pending: to.clone(), ..entry },
            None => Self { original: now.clone(), set: now.clone(), pending: to.clone() },
        }
    }
}

/// The id of this boot, or what follows for the journal at `path` where it is not known.
fn this_boot(path: &Path, id: io::Result<String>) -> Result<String, Error> {
    id.map_err(|error| Error::Unusable {
        what: format!(
            "cannot read {BOOT_ID} ({error}), so that it is not known whether {} is of this boot, and nothing is \
             changed or put back",
            path.display()
        ),
        next: "mount /proc, and try again",
    })
}

impl Journal {
    /// Forgets what is as it was.
    pub(super) fn forget_unchanged(&mut self) {
        for held in self.domains.values_mut() {
            held.hard.retain(|_, change| change.set != change.original);
            held.soft.retain(|_, change| change.set != change.original);
            held.nodes.take_if(|change| change.set == change.original);
        }
        self.domains.retain(|_, held| !held.is_empty());
    }
}

/// Nodes are sets, too.
pub(super) type Nodes = NodeSet;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_of_an_unknown_boot_is_neither_used_nor_void() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::of_this_boot(dir.path(), Holder::Kept).unwrap();
        let key = DomainKey { id: 3, uuid: "u".to_owned() };
        let set = |list| CpuSet::parse_list(list).unwrap();
        let change = RecordedChange::begin(None, &set("0-3"), &set("4"));
        let held = Held { soft: [(0, change)].into(), ..Held::default() };
        journal.domains.insert(key, held);
        journal.store(dir.path()).unwrap();
        assert_eq!(Journal::load(dir.path()).unwrap(), Some(journal));
        let unknown = Err(io::Error::from(io::ErrorKind::NotFound));
        let error = Journal::load_in_boot(dir.path(), unknown).unwrap_err().to_string();
        for said in
            ["boot_id", "xen-journal.json is of this boot", "nothing is changed", "mount /proc"]
        {
            assert!(error.contains(said), "{error}");
        }
        let text = fs::read_to_string(Journal::path_in(dir.path())).unwrap();
        let nameless = text.replace(&boot_id().unwrap(), "");
        fs::write(Journal::path_in(dir.path()), nameless).unwrap();
        let error = Journal::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("it does not say at which boot it was written"), "{error}");
    }
}
