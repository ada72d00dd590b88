//! Room that is kept for VMs that were given advice on where to start, and have not started yet.
//!
//! A small file in the state directory, locked while it is read and written, so that of two that ask at the
//! same time the second knows what the first was told.

use super::StateDir;
use crate::error::Error;
use crate::system;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;

/// How long room is kept.
pub const KEPT: Nanos = Nanos::from_secs(60);

/// The most advice that is kept, and the most of the file that is read.
const MOST: usize = 1000;
const MAX_FILE: u64 = 4 << 20;

/// Where a VM was told to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advised {
    /// When, in time since boot.
    #[serde(rename = "at_ns")]
    pub at: Nanos,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its memory.
    pub memory: Bytes,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// The advice of the last minute; nobody else reads or changes it while this exists.
#[derive(Debug)]
pub struct AdvisedRoom {
    path: PathBuf,
    file: File,
    /// What has been advised, the earliest first.
    pub advised: Vec<Advised>,
}

impl AdvisedRoom {
    /// Waits for others that hold it. What is damaged counts as nothing: it would be gone in a minute.
    ///
    /// # Errors
    /// The state directory, or the file in it, cannot be used.
    pub fn open(state: &StateDir) -> Result<Self, Error> {
        let next = "name a folder of your own with --state-dir DIR".to_owned();
        state.make().map_err(|what| Error::Unusable { what, next })?;
        let path = state.path().join("advised");
        let failed = |source| Error::system(format!("use {}", path.display()), source);
        let mut file = instep_state::open_or_make(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        let mut text = String::new();
        (&mut file).take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
        let mut advised: Vec<Advised> = serde_json::from_str(&text).unwrap_or_default();
        let now = system::clocks().1;
        // What is later than now is of an earlier boot.
        advised.retain(|one| one.at <= now && now.since(one.at) < KEPT);
        Ok(Self { path, file, advised })
    }

    /// Keeps room for one more VM from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(
        mut self,
        vcpus: u32,
        memory: Bytes,
        nodes: NodeSet,
        cpus: CpuSet,
    ) -> Result<(), Error> {
        let at = system::clocks().1;
        self.advised.push(Advised { at, vcpus, memory, nodes, cpus });
        let first = self.advised.len().saturating_sub(MOST);
        let text = serde_json::to_vec(&self.advised[first..]).expect("numbers and sets of numbers");
        let written = self.file.set_len(0).and_then(|()| self.file.rewind());
        let written = written.and_then(|()| self.file.write_all(&text));
        written.map_err(|source| Error::system(format!("write {}", self.path.display()), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::{CpuId, NodeId};

    #[test]
    fn advice_is_kept_for_a_minute_and_damage_counts_as_none() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let state = StateDir::at(dir.path().join("state"));
        let keep = || {
            let room = AdvisedRoom::open(&state).unwrap();
            let sets = (NodeSet::one(NodeId(1)), CpuSet::one(CpuId(3)));
            room.keep(4, Bytes::from_mib(8), sets.0, sets.1).unwrap();
        };
        let read = || AdvisedRoom::open(&state).unwrap().advised;
        assert_eq!(read(), []);
        keep();
        keep();
        assert_eq!(read().iter().map(|one| one.vcpus).collect::<Vec<_>>(), [4, 4]);
        let mut old = read();
        old[0].at = Nanos(old[0].at.0.saturating_sub(KEPT.0));
        old[1].at = Nanos(u64::MAX);
        let file = dir.path().join("state/advised");
        std::fs::write(&file, serde_json::to_vec(&old).unwrap()).unwrap();
        assert_eq!(read(), [], "one is a minute old, one is of another boot");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(read(), []);
        keep();
        assert_eq!(read().len(), 1);
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_refused() {
        let dir = instep_madehost::scratch_dir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("advised")).unwrap();
        assert!(AdvisedRoom::open(&StateDir::at(dir.path())).is_err());
    }
}
