//! CPU limits of cgroups that the kernel scheduler keeps: which cgroups they are of.
//!
//! The scheduler knows a cgroup by its inode number, users know it by its path. Each number is looked for once.

use instep_host::Root;
use instep_kernel::stats::LimitSeen;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most limits that are listed: any user may set some in a cgroup that was handed over.
const MOST_LIMITS: usize = 64;

/// The longest look for cgroups beside the work of the agent: any user may make some.
const MOST_OF_A_LOOK: Duration = Duration::from_millis(50);

/// After a look it rests for so many times as long as that took: some 2 ms for a thousand limits.
const REST: u32 = 50;

/// The longest one when the scheduler is out.
const MOST_OF_LAST_LOOK: Duration = Duration::from_secs(2);

/// Where cgroups with CPU settings are mounted, below the root directory.
pub(super) const MOUNTS: [&str; 3] =
    ["sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"];

/// A CPU limit that the kernel scheduler keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LimitInForce {
    /// The path of its cgroup below the mount point.
    pub cgroup: String,
    /// CPUs that it allows, in thousandths of a CPU.
    pub milli_cpus: u64,
    /// Whether nothing was left of it just now: its threads wait for the refill.
    pub is_used_up: bool,
    /// For how long it held threads of which it is the nearest limit, summed over them, since the scheduler knows it.
    #[serde(default)]
    pub held_ns: u64,
}

/// Paths of the cgroups with limits, each with its mount point, by their inode numbers; `None` for one that is gone.
#[derive(Debug, Default)]
pub(super) struct CgroupPaths {
    found: BTreeMap<u64, Option<(PathBuf, PathBuf)>>,
    /// Those of VMs, below the mount point.
    of_vms: BTreeSet<String>,
    /// Those above these.
    above_vms: BTreeSet<String>,
    /// The limits that were listed last.
    listed: BTreeSet<u64>,
    /// Until then nothing is looked at: any user may make cgroups, and a look at all takes its time.
    rests_until: Option<Instant>,
}

/// The paths above a cgroup's, the nearest first, without the root's.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(path.rsplit_once('/'), |(above, _)| above.rsplit_once('/'))
        .map(|(above, _)| above)
}

impl CgroupPaths {
    /// These are the cgroups of VMs, below the mount point.
    pub(super) fn note_vms<'a>(&mut self, cgroups: impl Iterator<Item = &'a str>) {
        self.of_vms = cgroups.filter(|path| !path.is_empty()).map(str::to_owned).collect();
        self.above_vms =
            self.of_vms.iter().flat_map(|path| above(path)).map(str::to_owned).collect();
    }

    /// Whether a VM runs in this cgroup, above or below it.
    fn has_vms(&self, path: &str) -> bool {
        self.above_vms.contains(path)
            || self.of_vms.contains(path)
            || above(path).any(|above| self.of_vms.contains(above))
    }

    /// Finds the cgroups that are new, and forgets those that are gone: the scheduler knows their limits for a minute more.
    pub(super) fn update(&mut self, root: &Root, limits: &[LimitSeen]) {
        let begin = Instant::now();
        if self.rests_until.is_some_and(|until| begin < until) {
            return;
        }
        let all: BTreeSet<u64> = limits.iter().map(|limit| limit.group).collect();
        self.found.retain(|id, _| all.contains(id));
        for (id, found) in &mut self.found {
            found.take_if(|(_, path)| number_of(path) != Some(*id));
        }
        let new: BTreeSet<u64> =
            all.into_iter().filter(|id| !self.found.contains_key(id)).collect();
        if !new.is_empty() {
            self.find(root, new);
        }
        self.rests_until = Some(begin + begin.elapsed() * REST);
    }

    fn find(&mut self, root: &Root, mut new: BTreeSet<u64>) {
        let (found, whole) = find_cgroups(root, &new, MOST_OF_A_LOOK);
        for (id, found) in found {
            self.found.insert(id, Some(found));
            new.remove(&id);
        }
        // What was not reached is looked for again.
        if whole {
            self.found.extend(new.into_iter().map(|id| (id, None)));
        }
    }

    /// Limits with their cgroups, at most [`MOST_LIMITS`], and how many were left out. Those of cgroups with VMs come first, then those
    /// that held threads for longer: a user who makes many cgroups must not keep others' limits out. One that is listed stays until
    /// another held threads for twice as long, so that readers of metrics see the same ones.
    pub(super) fn name(&mut self, limits: &[LimitSeen]) -> (Vec<LimitInForce>, usize) {
        let named = |seen: &LimitSeen| {
            let (mount, path) = self.found.get(&seen.group)?.as_ref()?;
            let path = path.strip_prefix(mount).unwrap_or(path).display().to_string();
            let limit = LimitInForce {
                cgroup: format!("/{path}"),
                milli_cpus: seen.milli_cpus,
                is_used_up: seen.is_used_up,
                held_ns: seen.held_ns,
            };
            Some(Ranked {
                group: seen.group,
                is_other: !self.has_vms(&path),
                is_new: !self.listed.contains(&seen.group),
                limit,
            })
        };
        let mut all: Vec<Ranked> = limits.iter().filter_map(named).collect();
        all.sort_by(|one, other| one.place().cmp(&other.place()));
        let left_out = all.len().saturating_sub(MOST_LIMITS);
        all.truncate(MOST_LIMITS);
        self.listed = all.iter().map(|ranked| ranked.group).collect();
        all.sort_by_key(|ranked| (ranked.is_other, Reverse(ranked.limit.held_ns)));
        (all.into_iter().map(|ranked| ranked.limit).collect(), left_out)
    }
}

/// A limit among those that are to be listed.
struct Ranked {
    group: u64,
    /// Whether no VM runs in its cgroup, above or below.
    is_other: bool,
    /// Whether it was not listed before.
    is_new: bool,
    limit: LimitInForce,
}

impl Ranked {
    /// Its place among those that are to be listed: what was listed counts as if it had held threads for twice as long.
    fn place(&self) -> (bool, Reverse<u64>, bool, &str) {
        let factor = if self.is_new { 1 } else { 2 };
        let held_ns = self.limit.held_ns.saturating_mul(factor);
        (self.is_other, Reverse(held_ns), self.is_new, &self.limit.cgroup)
    }
}

/// Directories of cgroups by their inode numbers, each with its mount point, and whether all directories were looked at within
/// this time.
fn find_cgroups(
    root: &Root,
    ids: &BTreeSet<u64>,
    most: Duration,
) -> (BTreeMap<u64, (PathBuf, PathBuf)>, bool) {
    let until = Instant::now() + most;
    let [unified, of_version_1 @ ..] = MOUNTS.map(|mount| root.join(mount));
    let mut mounts: Vec<PathBuf> =
        of_version_1.into_iter().filter(|mount| mount.is_dir()).collect();
    // Where there are several hierarchies a number may be that of another cgroup in one without CPU settings.
    if mounts.is_empty() {
        mounts.push(unified);
    }
    let (mut found, mut whole) = (BTreeMap::new(), true);
    for mount in mounts {
        let left: BTreeSet<u64> =
            ids.iter().copied().filter(|id| !found.contains_key(id)).collect();
        let (directories, all) = find_directories(&mount, &left, until);
        found.extend(directories.into_iter().map(|(id, path)| (id, (mount.clone(), path))));
        whole &= all;
    }
    (found, whole)
}

/// The inode number of a directory.
fn number_of(dir: &Path) -> Option<u64> {
    std::fs::metadata(dir).ok().map(|found| found.ino())
}

/// The directories of these inode numbers at or below another, as a cgroup is known by its own; whether all were looked at that
/// had to be.
fn find_directories(
    top: &Path,
    ids: &BTreeSet<u64>,
    until: Instant,
) -> (BTreeMap<u64, PathBuf>, bool) {
    let (mut left, mut found) = (vec![top.to_owned()], BTreeMap::new());
    while found.len() < ids.len() {
        let Some(dir) = left.pop() else { break };
        if Instant::now() >= until {
            return (found, false);
        }
        // Cgroups may come and go meanwhile.
        if let Some(id) = number_of(&dir).filter(|id| ids.contains(id)) {
            found.insert(id, dir.clone());
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok);
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(below.map(|entry| entry.path()).take_while(|_| Instant::now() < until));
    }
    (found, true)
}

/// Names the cgroup, by its inode number, whose CPU limit found no room, and the limit; `None` where it is not found.
pub(super) fn find_lost_limit(root: &Root, id: u64) -> Option<String> {
    let (mount, path) = find_cgroups(root, &[id].into(), MOST_OF_LAST_LOOK).0.remove(&id)?;
    let read = |file: &str| {
        let text = std::fs::read_to_string(path.join(file)).ok()?;
        Some(text.trim().replace('\n', " "))
    };
    let limit = read("cpu.max").map(|text| format!("cpu.max {text}"));
    let limit = limit.or_else(|| Some(format!("cpu.cfs_quota_us {}", read("cpu.cfs_quota_us")?)));
    let limit = limit.unwrap_or_else(|| "a limit".to_owned());
    Some(format!(
        "no room for the CPU limit of the cgroup /{} ({limit}): more than 65,536 have one, it lies below 32 \
         levels of cgroups, or the kernel has no memory",
        path.strip_prefix(&mount).ok()?.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with this cgroup, and its inode number.
    fn host_with(path: &str) -> (tempfile::TempDir, u64) {
        let dir = instep_madehost::scratch_dir().unwrap();
        let id = make_cgroup(dir.path(), path);
        (dir, id)
    }

    fn make_cgroup(host: &Path, path: &str) -> u64 {
        let at = host.join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(&at).unwrap();
        std::fs::metadata(at).unwrap().ino()
    }

    fn limit(group: u64, milli_cpus: u64) -> LimitSeen {
        LimitSeen { group, milli_cpus, is_used_up: milli_cpus < 500, held_ns: 7 }
    }

    #[test]
    fn a_limit_that_finds_no_room_is_reported_by_its_cgroup() {
        let (dir, id) = host_with("cpu/machine.slice/a.scope");
        let at = dir.path().join("sys/fs/cgroup/cpu/machine.slice/a.scope");
        std::fs::write(at.join("cpu.cfs_quota_us"), "20000\n").unwrap();
        let told = find_lost_limit(&Root::at(dir.path()), id).unwrap();
        assert!(
            told.contains("the cgroup /machine.slice/a.scope (cpu.cfs_quota_us 20000):"),
            "{told}"
        );
        assert_eq!(find_lost_limit(&Root::at(dir.path()), 0), None);
    }

    #[test]
    fn limits_have_the_paths_of_their_cgroups_in_order() {
        let (dir, backup) = host_with("system.slice/backup.service");
        let web = make_cgroup(dir.path(), "machine.slice/web.scope");
        let seen = [limit(backup, 200), limit(web, 1500), limit(u64::MAX, 100)];
        let mut paths = CgroupPaths::default();
        let update = |paths: &mut CgroupPaths, root: &Path, seen: &[LimitSeen]| {
            paths.rests_until = None;
            paths.update(&Root::at(root), seen);
        };
        update(&mut paths, dir.path(), &seen);
        let named = |cgroup: &str, milli_cpus, is_used_up| LimitInForce {
            cgroup: cgroup.to_owned(),
            milli_cpus,
            is_used_up,
            held_ns: 7,
        };
        let web = named("/machine.slice/web.scope", 1500, false);
        let backup_limit = named("/system.slice/backup.service", 200, true);
        assert_eq!(paths.name(&seen), (vec![web, backup_limit], 0), "one is gone");
        // A cgroup that is known is not looked for again, and one that is gone or has no limit any more is forgotten.
        update(&mut paths, Path::new("/nonexistent"), &seen);
        assert_eq!(paths.name(&seen).0.len(), 2);
        std::fs::remove_dir(dir.path().join("sys/fs/cgroup/machine.slice/web.scope")).unwrap();
        update(&mut paths, dir.path(), &seen);
        assert_eq!(paths.name(&seen).0.len(), 1);
        update(&mut paths, dir.path(), &[]);
        assert_eq!(paths.name(&seen).0.len(), 0);
    }

    #[test]
    fn cgroups_are_looked_for_seldom_when_a_look_takes_long() {
        let (dir, first) = host_with("a");
        let second = make_cgroup(dir.path(), "b");
        let mut paths = CgroupPaths::default();
        paths.update(&Root::at(dir.path()), &[limit(first, 100)]);
        // As if that look had taken a minute.
        paths.rests_until = Some(Instant::now() + Duration::from_secs(3000));
        let both = [limit(first, 100), limit(second, 100)];
        paths.update(&Root::at(dir.path()), &both);
        assert_eq!(paths.name(&both).0.len(), 1);
        paths.rests_until = None;
        paths.update(&Root::at(dir.path()), &both);
        assert_eq!(paths.name(&both).0.len(), 2);
    }

    #[test]
    fn a_look_ends_in_its_time_and_says_so() {
        let (dir, id) = host_with("a");
        let root = Root::at(dir.path());
        let look = |most| find_cgroups(&root, &[id, u64::MAX].into(), most);
        assert_eq!(look(Duration::ZERO), (BTreeMap::new(), false));
        let (found, whole) = look(Duration::from_secs(60));
        assert_eq!((found.len(), whole), (1, true));
    }

    #[test]
    fn no_more_limits_are_listed_than_a_bound() {
        let (dir, _) = host_with("a");
        let ids = (0..70).map(|at| make_cgroup(dir.path(), &format!("a/{at:02}")));
        let seen: Vec<LimitSeen> = ids.map(|id| limit(id, 100)).collect();
        let mut paths = CgroupPaths::default();
        paths.update(&Root::at(dir.path()), &seen);
        let (named, left_out) = paths.name(&seen);
        assert_eq!((named.len(), left_out), (MOST_LIMITS, 6));
        assert_eq!((named[0].cgroup.as_str(), named[63].cgroup.as_str()), ("/a/00", "/a/63"));
    }

    #[test]
    fn a_listed_limit_stays_until_another_held_twice_as_much() {
        let (dir, _) = host_with("a");
        let ids = (0..70).map(|at| make_cgroup(dir.path(), &format!("a/{at:02}")));
        let held = |group, held_ns| LimitSeen { held_ns, ..limit(group, 100) };
        let mut seen: Vec<LimitSeen> = ids.map(|id| held(id, 1000)).collect();
        let mut paths = CgroupPaths::default();
        paths.update(&Root::at(dir.path()), &seen);
        let listed = |paths: &mut CgroupPaths, seen: &[LimitSeen]| -> BTreeSet<String> {
            paths.name(seen).0.into_iter().map(|limit| limit.cgroup).collect()
        };
        let first = listed(&mut paths, &seen);
        // Those left out lead by less than those listed have.
        seen[64..].iter_mut().for_each(|limit| limit.held_ns = 1900);
        seen.reverse();
        assert_eq!(listed(&mut paths, &seen), first, "whatever the order");
        seen[0].held_ns = 2100;
        let second = listed(&mut paths, &seen);
        assert!(second.contains("/a/69"), "{second:?}");
        assert_eq!(first.difference(&second).count(), 1);
        // The one that had to go does not come back by holding a little more.
        seen.iter_mut().filter(|limit| limit.held_ns == 1000).for_each(|it| it.held_ns = 2200);
        assert_eq!(listed(&mut paths, &seen), second);
    }

    #[test]
    fn limits_of_vms_come_before_those_that_a_user_makes() {
        let (dir, first) = host_with("a/0");
        let more = (1..80).map(|at| make_cgroup(dir.path(), &format!("a/{at}")));
        let held = |group, held_ns| LimitSeen { held_ns, ..limit(group, 100) };
        let mut seen: Vec<LimitSeen> =
            std::iter::once(first).chain(more).zip(100..).map(|(id, ns)| held(id, ns)).collect();
        let paths =
            ["vms", "vms/web", "vms/web/vcpu0", "vms/other", "user.slice", "z/service", "z/idle"];
        let ids = paths.map(|path| make_cgroup(dir.path(), path));
        seen.extend(ids.into_iter().zip([0, 0, 0, 0, 0, 500, 0]).map(|(id, ns)| held(id, ns)));
        let mut paths = CgroupPaths::default();
        paths.note_vms(["vms/web", ""].into_iter());
        paths.update(&Root::at(dir.path()), &seen);
        let (named, left_out) = paths.name(&seen);
        let first: Vec<&str> = named.iter().take(5).map(|limit| limit.cgroup.as_str()).collect();
        assert_eq!(first, ["/vms", "/vms/web", "/vms/web/vcpu0", "/z/service", "/a/79"]);
        assert_eq!((named.len(), left_out), (MOST_LIMITS, 23));
    }
}
