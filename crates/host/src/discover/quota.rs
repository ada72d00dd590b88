//! CPU quotas that hold for a VM, and for how long they stopped it: `cpu.max` and `cpu.stat` of version 2,
//! `cpu.cfs_quota_us`, `cpu.cfs_period_us` and `cpu.stat` of version 1.
//!
//! A VM may be stopped by the quota of its own cgroup, of one above (a slice, a pod), and of the cgroups that libvirt
//! makes below for each vCPU (`<vcpu_quota>`, the usual one). The least of them is the VM's. Times of all of them add up. A cgroup
//! above stops other VMs, too, and its time counts for each of them: that is at most what the VM's vCPUs waited,
//! which callers see to.

use super::cgroup::told_by_path;
use super::files::Reader;
use instep_core::units::{Milli, Nanos};
use std::path::{Path, PathBuf};

/// The most that is read of a file.
const MAX_FILE: usize = 16 << 10;
/// The most that is read of the processes of a cgroup.
const MAX_PROCESSES: usize = 64 << 10;

/// The files with a quota, of version 2 and 1.
pub(super) const FILES: [&str; 2] = ["cpu.max", "cpu.cfs_quota_us"];

/// What CPU quota a VM has, and what it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// CPU time that may be used, in thousandths of a CPU; `None` without a limit.
    pub quota: Option<Milli>,
    /// The file that says so, with the root that was read; the first one where each vCPU has its own.
    pub file: Option<PathBuf>,
    /// Whether that is the file of a cgroup above the VM's own.
    pub is_above: bool,
    /// Whether the quota holds for other processes, too: that cgroup is above the VM's own, or the VM has none of its own, as in a
    /// user's session.
    pub is_shared: bool,
    /// Time since the cgroups were made, summed over CPUs, in which they were throttled.
    pub throttled: Nanos,
    /// How much of that cgroups counted that hold one vCPU each.
    pub of_vcpus: Nanos,
    /// How often that was.
    pub times: u64,
}

/// The quota of the VM of this process with these vCPUs in the cgroups `levels`, its own first and those above it after.
pub(super) fn read(
    levels: &[PathBuf],
    (pid, vcpus): (u32, &mut dyn Iterator<Item = u32>),
    reader: &mut Reader,
) -> Quota {
    let mut least = Quota::default();
    for (level, dir) in levels.iter().enumerate() {
        let is_own = level == 0;
        least.limit(Quota { is_above: !is_own, ..of_cgroup(dir, is_own, reader) });
    }
    let Some(own) = levels.first() else { return least };
    // Nearly always all vCPUs have the same quota or none, so the first one tells.
    let each = vcpus.map_while(|index| {
        let dirs = [own.join(format!("libvirt/vcpu{index}")), own.join(format!("vcpu{index}"))];
        let quota = dirs.iter().map(|dir| of_cgroup(dir, false, reader)).find(Quota::is_limited)?;
        Some(quota)
    });
    if let Some(all) = each.reduce(Quota::beside) {
        least.of_vcpus = all.throttled;
        least.limit(all);
    }
    let is_of_own = least.file.as_deref().and_then(Path::parent) == Some(own);
    least.is_shared = least.is_above || is_of_own && has_others(own, pid, reader);
    least
}

/// Whether a cgroup holds processes that do not belong to the VM of this one: no manager made it for that VM alone.
fn has_others(dir: &Path, pid: u32, reader: &mut Reader) -> bool {
    if dir.to_str().is_some_and(|path| told_by_path(path).0.is_some()) {
        return false;
    }
    let is_other = |line: &str| line.trim().parse().is_ok_and(|other: u32| other != pid);
    let processes = reader.text(&dir.join("cgroup.procs"), MAX_PROCESSES);
    processes.is_some_and(|text| text.lines().any(is_other))
}

impl Quota {
    fn is_limited(&self) -> bool {
        self.quota.is_some()
    }

    /// Another quota holds, too.
    fn limit(&mut self, other: Self) {
        let is_less = |quota: Milli| self.quota.is_none_or(|least| quota < least);
        if other.quota.is_some_and(is_less) {
            (self.quota, self.file) = (other.quota, other.file);
            self.is_above = other.is_above;
        }
        self.throttled.0 = self.throttled.0.saturating_add(other.throttled.0);
        self.times = self.times.saturating_add(other.times);
    }

    /// The quotas of two vCPUs together.
    fn beside(self, other: Self) -> Self {
        let sum = |(a, b): (Milli, Milli)| Milli(a.0.saturating_add(b.0));
        Self {
            quota: self.quota.zip(other.quota).map(sum),
            throttled: Nanos(self.throttled.0.saturating_add(other.throttled.0)),
            times: self.times.saturating_add(other.times),
            ..self
        }
    }
}

/// The quota of one cgroup, in the files of version 2, else of version 1. Times are read where there is a quota, and
/// `always` where there was one before.
fn of_cgroup(dir: &Path, always: bool, reader: &mut Reader) -> Quota {
    let mut text = |file| reader.text(&dir.join(file), MAX_FILE);
    let (quota, file) = match text(FILES[0]) {
        Some(text) => (parse_cpu_max(&text), FILES[0]),
        None => {
            let Some(most) = text(FILES[1]) else { return Quota::default() };
            (part_of_period(&most, &text("cpu.cfs_period_us").unwrap_or_default()), FILES[1])
        }
    };
    if quota.is_none() && !always {
        return Quota::default();
    }
    let stat = text("cpu.stat").unwrap_or_default();
    let file = quota.is_some().then(|| dir.join(file));
    let times = value(&stat, "nr_throttled").unwrap_or_default();
    Quota { quota, file, throttled: throttled(&stat), times, ..Quota::default() }
}

/// A quota as `cpu.max` has it: microseconds in each period.
pub fn parse_cpu_max(text: &str) -> Option<Milli> {
    let (most, period) = text.split_once(' ').unwrap_or((text, ""));
    part_of_period(most, period)
}

/// `most` microseconds in each `period`; `max` and -1 are no limit.
pub fn part_of_period(most: &str, period: &str) -> Option<Milli> {
    let (most, period): (u64, u64) = (most.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| Milli((u128::from(most) * 1000 / u128::from(period)).min(1 << 40) as u64))
}

/// `throttled_usec` of version 2 or `throttled_time` of version 1, which is in nanoseconds.
pub fn throttled(stat: &str) -> Nanos {
    let second = value(stat, "throttled_usec").map(|usec| usec.saturating_mul(1000));
    Nanos(second.or_else(|| value(stat, "throttled_time")).unwrap_or_default())
}

fn value(stat: &str, key: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_parts_of_a_cpu_and_max_is_none() {
        assert_eq!(part_of_period("20000", "100000"), Some(Milli(200)));
        assert_eq!(part_of_period("350000", "100000"), Some(Milli(3500)));
        assert_eq!(
            [
                part_of_period("max", "100000"),
                part_of_period("-1", "100000"),
                part_of_period("1", "0")
            ],
            [None; 3]
        );
        assert_eq!(part_of_period("18446744073709551615", "1"), Some(Milli(1 << 40)));
    }

    #[test]
    fn throttled_time_is_read_in_both_versions() {
        let second = "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500\n";
        assert_eq!(throttled(second), Nanos(1_500_000));
        assert_eq!(throttled("nr_throttled 3\nthrottled_time 1500\n"), Nanos(1500));
        assert_eq!(throttled("throttled_usec x\n"), Nanos(0));
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn of(levels: &[PathBuf], vcpus: u32) -> Quota {
        read(levels, (7, &mut (0..vcpus)), &mut Reader::default())
    }

    #[test]
    fn files_of_version_2_come_first() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let stat = "nr_throttled 2\nthrottled_usec 7\n";
        write(dir.path(), &[("cpu.cfs_quota_us", "50000\n"), ("cpu.cfs_period_us", "100000\n")]);
        write(dir.path(), &[("cpu.stat", stat)]);
        let levels = [dir.path().to_owned()];
        let first = of(&levels, 1);
        assert_eq!(first.quota, Some(Milli(500)));
        assert_eq!(first.file, Some(dir.path().join("cpu.cfs_quota_us")));
        write(dir.path(), &[("cpu.max", "max 100000\n")]);
        let found = of(&levels, 1);
        assert_eq!((found.quota, found.throttled, found.times), (None, Nanos(7000), 2));
        assert_eq!(of(&[], 1), Quota::default());
    }

    #[test]
    fn least_quota_of_all_levels_holds() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let (slice, scope) =
            (dir.path().join("machine.slice"), dir.path().join("machine.slice/vm"));
        write(&scope, &[("cpu.max", "150000 100000\n"), ("cpu.stat", "throttled_usec 3\n")]);
        write(&slice, &[("cpu.max", "100000 100000\n"), ("cpu.stat", "throttled_usec 4\n")]);
        let levels = [scope, slice.clone()];
        let found = of(&levels, 2);
        assert_eq!((found.quota, found.throttled), (Some(Milli(1000)), Nanos(7000)));
        assert_eq!(found.of_vcpus, Nanos(0));
        assert_eq!((found.file, found.is_above), (Some(slice.join("cpu.max")), true));
    }

    #[test]
    fn quota_is_shared_where_its_cgroup_holds_others() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let slice = dir.path().join("user.slice");
        let [session, libvirt] =
            ["session-1.scope", "machine-qemu\\x2d3\\x2dweb.scope"].map(|name| slice.join(name));
        for at in [&session, &libvirt] {
            write(at, &[("cpu.max", "20000 100000\n"), ("cgroup.procs", "7\n8\n")]);
        }
        let is_shared = |at: &PathBuf| of(&[at.clone(), slice.clone()], 0).is_shared;
        assert!(is_shared(&session));
        assert!(!is_shared(&libvirt), "what is beside the VM there is a helper of it");
        write(&session, &[("cgroup.procs", "7\n")]);
        assert!(!is_shared(&session));
        write(&slice, &[("cpu.max", "10000 100000\n")]);
        assert!(is_shared(&session), "the one above is less");
    }

    #[test]
    fn quotas_of_single_vcpus_add_up() {
        let dir = instep_madehost::scratch_dir().unwrap();
        for vcpu in ["libvirt/vcpu0", "libvirt/vcpu1"] {
            write(
                &dir.path().join(vcpu),
                &[
                    ("cpu.max", "20000 100000\n"),
                    ("cpu.stat", "nr_throttled 5\nthrottled_usec 9\n"),
                ],
            );
        }
        write(dir.path(), &[("cpu.max", "max 100000\n")]);
        let found = of(&[dir.path().to_owned()], 2);
        assert_eq!((found.quota, found.throttled), (Some(Milli(400)), Nanos(18_000)));
        assert_eq!(found.of_vcpus, Nanos(18_000), "its own counts none");
        assert_eq!(found.file, Some(dir.path().join("libvirt/vcpu0/cpu.max")));
        assert!(!found.is_above);
        assert_eq!(found.times, 10);
    }
}
