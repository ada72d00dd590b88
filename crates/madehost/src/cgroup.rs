//! Writes the cgroup v2 tree of a made host.
//!
//! Every group a process names is there with all its ancestors; a group without settings of its
//! own has its parent's. As under libvirt, a VM's threads may sit in threaded groups below its
//! own; those hold no processes.

use crate::tree::Tree;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// What one group has of its own.
#[derive(Clone, Default)]
pub(crate) struct Group {
    pub(crate) procs: Vec<u32>,
    pub(crate) weight: Option<u32>,
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) mems: Option<NodeSet>,
    /// Memory of its processes, if `memory.numa_stat` shall be there.
    pub(crate) memory: Option<BTreeMap<NodeId, Bytes>>,
    pub(crate) threaded: bool,
}

/// All groups by path, `/` the root.
#[derive(Default)]
pub(crate) struct Groups {
    groups: BTreeMap<String, Group>,
}

impl Groups {
    /// The group of this path, made with its ancestors.
    pub(crate) fn at(&mut self, path: &str) -> &mut Group {
        let mut end = 0;
        while let Some(next) = path[end + 1..].find('/') {
            end += 1 + next;
            self.groups.entry(path[..end].to_owned()).or_default();
        }
        self.groups.entry("/".to_owned()).or_default();
        self.groups.entry(path.to_owned()).or_default()
    }

    /// Writes all of them below `dir` (`/sys/fs/cgroup`) on a host with these CPUs and nodes.
    pub(crate) fn write(&self, dir: &Tree, cpus: &CpuSet, nodes: &[NodeId]) -> io::Result<()> {
        let all: NodeSet = nodes.iter().copied().collect();
        let mut effective: BTreeMap<&str, (CpuSet, NodeSet)> = BTreeMap::new();
        effective.insert("", (cpus.clone(), all));
        for (path, group) in &self.groups {
            let parent = if path == "/" { "" } else { parent_of(path) };
            let (cpus, mems) = effective.get(parent).cloned().unwrap_or_default();
            let own = (
                narrowed(group.cpus.as_ref().map(|own| own.and(&cpus)), cpus),
                narrowed(group.mems.as_ref().map(|own| own.and(&mems)), mems),
            );
            write_group(path, group, &own, nodes, &dir.sub(path.trim_start_matches('/'))?)?;
            effective.insert(if path == "/" { "" } else { path }, own);
        }
        Ok(())
    }
}

/// An own set, unless nothing of it is left.
fn narrowed<T: instep_core::units::Id>(
    own: Option<instep_core::idset::IdSet<T>>,
    parent: instep_core::idset::IdSet<T>,
) -> instep_core::idset::IdSet<T> {
    own.filter(|set| !set.is_empty()).unwrap_or(parent)
}

fn parent_of(path: &str) -> &str {
    path.rfind('/').map_or("", |end| &path[..end])
}

fn write_group(
    path: &str,
    group: &Group,
    effective: &(CpuSet, NodeSet),
    nodes: &[NodeId],
    dir: &Tree,
) -> io::Result<()> {
    let root = path == "/";
    dir.line("cgroup.controllers", "cpuset cpu io memory pids")?;
    let mut procs = String::new();
    for pid in &group.procs {
        let _ = writeln!(procs, "{pid}");
    }
    if !group.threaded {
        dir.file("cgroup.procs", procs)?;
    }
    dir.line("cpuset.cpus.effective", &effective.0)?;
    dir.line("cpuset.mems.effective", &effective.1)?;
    if root {
        return Ok(());
    }
    dir.line("cgroup.type", if group.threaded { "threaded" } else { "domain" })?;
    dir.line("cpu.weight", group.weight.unwrap_or(100))?;
    dir.line("cpuset.cpus", group.cpus.clone().unwrap_or_default())?;
    dir.line("cpuset.mems", group.mems.clone().unwrap_or_default())?;
    if let Some(memory) = &group.memory {
        dir.file("memory.numa_stat", crate::memory::numa_stat(nodes, memory))?;
        dir.line("memory.current", memory.values().map(|bytes| bytes.0).sum::<u64>())?;
    }
    Ok(())
}
