//! CPU limits of cgroups, which Instep's scheduler does not keep: they keep it out.
//!
//! `cpu.max` (cgroup 2) and `cpu.cfs_quota_us` (cgroup 1) belong to the kernel's default scheduler. libvirt's `<quota>`,
//! Proxmox's `cpulimit` and Kubernetes' limits are such files. A limit that is no less than all CPUs that are online
//! limits nobody, nor does one of a cgroup without processes. One look reads two files for each cgroup.

use crate::probe::{read_line, read_set};
use instep_core::wording::Count;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// So many cgroups are looked at, of so many levels.
const MOST: usize = 1 << 16;
const DEEPEST: usize = 32;
/// As many are named.
const FEW: usize = 3;

/// Where cgroups with CPU limits are: cgroup 2 alone or beside version 1, then version 1.
const TREES: [&str; 4] =
    ["sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];

/// A limit that holds back processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// The cgroup, by its path in the tree.
    pub cgroup: String,
    /// CPU time in microseconds, in each period.
    pub quota_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
}

impl Quota {
    /// In words.
    fn told(&self) -> String {
        let percent = self.quota_us.saturating_mul(100) / self.period_us.max(1);
        format!("{} ({percent} % of a CPU)", self.cgroup)
    }
}

/// The limits on the host under `root` that hold back processes there, in the order of their paths.
#[must_use]
pub fn of(root: &Path) -> Vec<Quota> {
    find(
        root,
        read_set(root, "sys/devices/system/cpu/online").map_or(u64::MAX, |set| set.len() as u64),
    )
}

/// Looks at this host while the scheduler is in force: why it must go, if it must.
#[must_use]
pub fn look(despite: bool) -> Option<String> {
    if despite { None } else { forbid(&of(Path::new("/")), despite) }
}

/// The same on so many CPUs.
fn find(root: &Path, cpus: u64) -> Vec<Quota> {
    let mut found = Vec::new();
    let mut left = MOST;
    for tree in TREES {
        let top = root.join(tree);
        // Of version 1 one directory is a link to the other.
        if top.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            walk(&top, &mut String::new(), 0, cpus, &mut left, &mut found);
        }
    }
    found.sort_by(|a: &Quota, b| a.cgroup.cmp(&b.cgroup));
    found.dedup();
    found
}

/// Why these limits keep the scheduler out; `None` when they do not. `despite` is the operator's word that they need not
/// hold.
#[must_use]
pub fn forbid(quotas: &[Quota], despite: bool) -> Option<String> {
    if despite || quotas.is_empty() {
        return None;
    }
    let named: Vec<String> = quotas.iter().take(FEW).map(Quota::told).collect();
    let more = match quotas.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {}", Count::of(more, "other cgroup")),
    };
    Some(format!(
        "CPU limits of cgroups would not hold under Instep's scheduler: {}{more}; remove them (cpu.max), or set \
         despite_quotas = true under [dispatch] if they need not hold",
        named.join(", ")
    ))
}

/// Looks at a cgroup and those below it.
fn walk(
    dir: &Path,
    path: &mut String,
    depth: usize,
    cpus: u64,
    left: &mut usize,
    found: &mut Vec<Quota>,
) {
    if *left == 0 || depth > DEEPEST {
        return;
    }
    *left -= 1;
    let quota = quota(dir).filter(|(quota, period)| *quota < period.saturating_mul(cpus));
    if let Some((quota_us, period_us)) = quota.filter(|_| is_populated(dir)) {
        found.push(Quota { cgroup: format!("/{path}"), quota_us, period_us });
    }
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let length = path.len();
        if !path.is_empty() {
            path.push('/');
        }
        path.extend(entry.file_name().to_string_lossy().chars().filter(|c| !c.is_control()));
        walk(&entry.path(), path, depth + 1, cpus, left, found);
        path.truncate(length);
    }
}

/// The limit of a cgroup: time and period in microseconds.
fn quota(dir: &Path) -> Option<(u64, u64)> {
    if let Some(text) = read_line(dir, "cpu.max") {
        let mut words = text.split_whitespace();
        return Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?));
    }
    // -1 is none.
    let number = |name: &str| read_line(dir, name)?.trim().parse::<u64>().ok();
    Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
}

/// Whether there are processes in a cgroup or below it; version 1 does not tell.
fn is_populated(dir: &Path) -> bool {
    read_line(dir, "cgroup.events")
        .is_none_or(|text| text.lines().any(|line| line == "populated 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::host;

    fn quota(cgroup: &str, quota_us: u64) -> Quota {
        Quota { cgroup: cgroup.to_owned(), quota_us, period_us: 100_000 }
    }

    #[test]
    fn limits_are_found_at_every_level() {
        let host = host(&[
            ("sys/fs/cgroup/machine.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/machine.slice/cgroup.events", "populated 1\nfrozen 0\n"),
            ("sys/fs/cgroup/machine.slice/vm.scope/cpu.max", "20000 100000\n"),
            ("sys/fs/cgroup/machine.slice/vm.scope/cgroup.events", "populated 1\n"),
            ("sys/fs/cgroup/machine.slice/free/cpu.max", "max 100000\n"),
        ]);
        let expected = [quota("/machine.slice", 150_000), quota("/machine.slice/vm.scope", 20_000)];
        assert_eq!(find(host.path(), 8), expected);
    }

    #[test]
    fn a_limit_that_holds_nobody_back_is_none() {
        let host = host(&[
            ("sys/fs/cgroup/empty/cpu.max", "20000 100000\n"),
            ("sys/fs/cgroup/empty/cgroup.events", "populated 0\n"),
            ("sys/fs/cgroup/wide/cpu.max", "200000 100000\n"),
            ("sys/fs/cgroup/wide/cgroup.events", "populated 1\n"),
            ("sys/fs/cgroup/odd/cpu.max", "fish\n"),
        ]);
        assert_eq!(find(host.path(), 2), []);
        assert_eq!(find(host.path(), 3), [quota("/wide", 200_000)]);
        assert_eq!(find(Path::new("/none"), 2), []);
    }

    #[test]
    fn limits_of_version_1_are_found() {
        let host = host(&[
            ("sys/fs/cgroup/cpu/vm/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/vm/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/free/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/free/cpu.cfs_period_us", "100000\n"),
        ]);
        let all = find(host.path(), 2);
        assert!(all.contains(&quota("/vm", 50_000)), "{all:?}");
        assert!(all.iter().all(|quota| quota.quota_us == 50_000), "{all:?}");
    }

    #[test]
    fn few_are_named_with_what_to_do() {
        let all: Vec<Quota> = ["/a", "/b", "/c", "/d"].map(|name| quota(name, 20_000)).into();
        let said = forbid(&all, false).unwrap();
        assert!(said.contains("/a (20 % of a CPU), /b"), "{said}");
        assert!(said.contains("and 1 other cgroup; remove them (cpu.max)"), "{said}");
        assert!(!said.contains("/d"), "{said}");
        assert_eq!(forbid(&all, true), None);
        assert_eq!(forbid(&[], false), None);
    }
}
