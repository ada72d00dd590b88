//! Writes the cgroups of a made host: the one tree of version 2, or those of version 1, each
//! controller with its own.
//!
//! Every group a process names is there with all its ancestors; a group without settings of its
//! own has its parent's. As under libvirt, a VM's threads may sit in groups below its own; those
//! hold no processes. File names as of Linux 6.18.

use crate::tree::Tree;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Which cgroups a host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cgroups {
    /// Version 2 at /sys/fs/cgroup.
    #[default]
    V2,
    /// Version 1 with a tree a controller, and an empty version 2 beside them, as systemd's
    /// hybrid mode has it.
    V1,
}

/// Trees of version 1: directory, and controllers as /proc/PID/cgroup and the mount table have
/// them.
const V1: [(&str, &str); 4] = [
    ("cpu,cpuacct", "cpu,cpuacct"),
    ("cpuset", "cpuset"),
    ("memory", "memory"),
    ("systemd", "name=systemd"),
];

/// `/proc/PID/cgroup` of a thread in the group `path`. Groups of single threads are of the
/// controllers that know threads only.
pub(crate) fn membership(version: Cgroups, path: &str) -> String {
    if version == Cgroups::V2 {
        return format!("0::{path}\n");
    }
    let whole = path.split("/libvirt/").next().unwrap_or(path);
    let mut text = String::new();
    for (number, (_, controllers)) in V1.iter().enumerate().rev() {
        let path = if controllers.starts_with("cpu") { path } else { whole };
        let _ = writeln!(text, "{}:{controllers}:{path}", number + 1);
    }
    text.push_str("0::/\n");
    text
}

/// The cgroup file systems in a mount table.
pub(crate) fn mounts(version: Cgroups) -> String {
    let options = "rw,nosuid,nodev,noexec,relatime";
    if version == Cgroups::V2 {
        return format!("cgroup2 /sys/fs/cgroup cgroup2 {options},nsdelegate 0 0\n");
    }
    let mut text = format!(
        "tmpfs /sys/fs/cgroup tmpfs ro,nosuid,nodev,noexec,mode=755 0 0\n\
         cgroup2 /sys/fs/cgroup/unified cgroup2 {options},nsdelegate 0 0\n"
    );
    for (dir, controllers) in V1 {
        let _ = writeln!(text, "cgroup /sys/fs/cgroup/{dir} cgroup {options},{controllers} 0 0");
    }
    text
}

/// What one group has of its own.
#[derive(Clone, Default)]
pub(crate) struct Group {
    pub(crate) procs: Vec<u32>,
    pub(crate) weight: Option<u32>,
    /// Microseconds in each 100 ms, and those in which the group was stopped so far.
    pub(crate) quota: Option<(u64, u64)>,
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
    pub(crate) fn write(
        &self,
        version: Cgroups,
        dir: &Tree,
        cpus: &CpuSet,
        nodes: &[NodeId],
    ) -> io::Result<()> {
        if version == Cgroups::V1 {
            dir.sub("unified")?.file("cgroup.controllers", "\n")?;
        }
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
            match version {
                Cgroups::V2 => {
                    write_group(path, group, &own, nodes, &dir.sub(path.trim_start_matches('/'))?)?;
                }
                Cgroups::V1 => write_v1(path, group, &own, nodes, dir)?,
            }
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
    let (most, throttled) = group.quota.unzip();
    let most = most.map_or("max".to_owned(), |most| most.to_string());
    dir.line("cpu.max", format!("{most} 100000"))?;
    dir.line("cpu.stat", format!("nr_throttled 0\nthrottled_usec {}", throttled.unwrap_or(0)))?;
    dir.line("cpuset.cpus", group.cpus.clone().unwrap_or_default())?;
    dir.line("cpuset.mems", group.mems.clone().unwrap_or_default())?;
    if let Some(memory) = &group.memory {
        dir.file("memory.numa_stat", crate::memory::numa_stat(nodes, memory))?;
        dir.line("memory.current", memory.values().map(|bytes| bytes.0).sum::<u64>())?;
    }
    Ok(())
}

fn write_v1(
    path: &str,
    group: &Group,
    effective: &(CpuSet, NodeSet),
    nodes: &[NodeId],
    dir: &Tree,
) -> io::Result<()> {
    let procs: String = group.procs.iter().map(|pid| format!("{pid}\n")).collect();
    for (tree, controllers) in V1 {
        if group.threaded && !controllers.starts_with("cpu") {
            continue;
        }
        let dir = dir.sub(&format!("{tree}{path}"))?;
        dir.file("cgroup.procs", &procs)?;
        match tree {
            "cpuset" => {
                dir.line("cpuset.cpus", &effective.0)?;
                dir.line("cpuset.effective_cpus", &effective.0)?;
                dir.line("cpuset.mems", &effective.1)?;
                dir.line("cpuset.effective_mems", &effective.1)?;
            }
            "memory" => {
                let none = BTreeMap::new();
                let memory = group.memory.as_ref();
                if memory.is_some() || path == "/" {
                    let text = crate::memory::numa_stat_v1(nodes, memory.unwrap_or(&none));
                    dir.file("memory.numa_stat", text)?;
                }
            }
            "cpu,cpuacct" => {
                dir.line("cpu.shares", group.weight.unwrap_or(100) * 1024 / 100)?;
                let (most, throttled) = group.quota.unzip();
                let most = most.map_or("-1".to_owned(), |most| most.to_string());
                dir.line("cpu.cfs_quota_us", most)?;
                dir.line("cpu.cfs_period_us", 100_000)?;
                let throttled = throttled.unwrap_or(0) * 1000;
                dir.line("cpu.stat", format!("nr_throttled 0\nthrottled_time {throttled}"))?;
            }
            _ => {}
        }
    }
    Ok(())
}
