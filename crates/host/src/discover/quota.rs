//! CPU quota of a VM's cgroup, and for how long it stopped the VM: `cpu.max` and `cpu.stat` of version 2,
//! `cpu.cfs_quota_us`, `cpu.cfs_period_us` and `cpu.stat` of version 1.
//!
//! Quotas of cgroups above or below the VM's own are not considered.

use super::files::Reader;
use instep_core::units::{Milli, Nanos};
use std::path::Path;

/// The most that is read of a file.
const MAX_FILE: usize = 16 << 10;

/// What a cgroup's CPU quota is, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// CPU time that may be used, in thousandths of a CPU; `None` without a limit.
    pub quota: Option<Milli>,
    /// Time since the cgroup was made, summed over CPUs, in which it was throttled.
    pub throttled: Nanos,
}

/// Reads the files of a cgroup of version 2, else of the controller `cpu` of version 1.
pub(super) fn read(unified: Option<&Path>, cpu: Option<&Path>, reader: &mut Reader) -> Quota {
    if let Some(dir) = unified
        && let Some(text) = reader.text(&dir.join("cpu.max"), MAX_FILE)
    {
        let stat = reader.text(&dir.join("cpu.stat"), MAX_FILE).unwrap_or_default();
        let (most, period) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        return Quota { quota: part(most, period), throttled: throttled(&stat) };
    }
    let Some(dir) = cpu else { return Quota::default() };
    let mut text = |file| reader.text(&dir.join(file), MAX_FILE).unwrap_or_default();
    let (most, period) = (text("cpu.cfs_quota_us"), text("cpu.cfs_period_us"));
    Quota { quota: part(most.trim(), period.trim()), throttled: throttled(&text("cpu.stat")) }
}

/// `most` microseconds in each `period`; `max` and -1 are no limit.
fn part(most: &str, period: &str) -> Option<Milli> {
    let (most, period): (u64, u64) = (most.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| Milli((u128::from(most) * 1000 / u128::from(period)).min(1 << 40) as u64))
}

/// `throttled_usec` of version 2 or `throttled_time` of version 1, which is in nanoseconds.
fn throttled(stat: &str) -> Nanos {
    let value = |key: &str, unit: u64| {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value: u64 = line?.trim().parse().ok()?;
        Some(Nanos(value.saturating_mul(unit)))
    };
    value("throttled_usec", 1000).or_else(|| value("throttled_time", 1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_parts_of_a_cpu_and_max_is_none() {
        assert_eq!(part("20000", "100000"), Some(Milli(200)));
        assert_eq!(part("350000", "100000"), Some(Milli(3500)));
        assert_eq!([part("max", "100000"), part("-1", "100000"), part("1", "0")], [None; 3]);
        assert_eq!(part("18446744073709551615", "1"), Some(Milli(1 << 40)));
    }

    #[test]
    fn throttled_time_is_read_in_both_versions() {
        let second = "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500\n";
        assert_eq!(throttled(second), Nanos(1_500_000));
        assert_eq!(throttled("nr_throttled 3\nthrottled_time 1500\n"), Nanos(1500));
        assert_eq!(throttled("throttled_usec x\n"), Nanos(0));
    }

    #[test]
    fn files_of_version_2_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("cpu.cfs_quota_us", "50000\n");
        write("cpu.cfs_period_us", "100000\n");
        write("cpu.stat", "throttled_usec 7\n");
        let mut reader = Reader::default();
        let path = Some(dir.path());
        assert_eq!(read(path, path, &mut reader).quota, Some(Milli(500)));
        write("cpu.max", "max 100000\n");
        let found = read(path, path, &mut reader);
        assert_eq!(found, Quota { quota: None, throttled: Nanos(7000) });
        assert_eq!(read(None, None, &mut reader), Quota::default());
    }
}
