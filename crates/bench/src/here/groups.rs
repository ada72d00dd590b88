//! Control groups: one for each that runs, as libvirt makes them for VMs, in a group of all.
//!
//! Version 2, or, where the controller cpu is still one of version 1, a group in each of the hierarchies
//! of cpu and cpuacct.

use super::read;
use crate::case::{Case, GuestKind, Slice, Work};
use crate::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where control groups of version 2 are.
const ROOT: &str = "/sys/fs/cgroup";
/// Hierarchies of version 1: of weights and of CPU time.
const OLD: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct"];
/// The groups of what stands for VMs, and of what belongs to none.
const PARENTS: [&str; 2] = ["instep-bench", "instep-bench-host"];
/// Names of slices begin so.
const SLICE: &str = "slice-";
/// The group of the lab's guests.
const GUESTS: &str = "lab";
/// cpu.shares of version 1 that are a weight of 100.
const SHARES: u64 = 1024;

/// One control group; of version 1 its two directories.
#[derive(Debug)]
pub(super) struct Group {
    dirs: Vec<PathBuf>,
    own: bool,
}

/// The hierarchies there are: one of version 2, else those of version 1.
fn roots() -> Vec<PathBuf> {
    if has_cpu(&read(Path::new(ROOT).join("cgroup.controllers"))) {
        return vec![PathBuf::from(ROOT)];
    }
    OLD.iter().map(PathBuf::from).filter(|root| root.join("cgroup.procs").exists()).collect()
}

fn has_cpu(controllers: &str) -> bool {
    controllers.split_whitespace().any(|name| name == "cpu")
}

impl Group {
    /// Makes that of work that runs alone, without a limit.
    pub(super) fn alone(name: &str, work: &Work) -> Result<Self, Error> {
        let parent = PARENTS[usize::from(work.kind == GuestKind::Host)];
        Self::at(&[(parent, None), (name, Some(Slice { weight: work.weight, quota: None }))])
    }

    /// Makes that of work beside others: in its slice, or side by side with them.
    pub(super) fn make(name: &str, work: &Work, case: &Case) -> Result<Self, Error> {
        let own = (name, Some(Slice { weight: work.weight, quota: work.quota }));
        let slice = work.slice.as_ref().and_then(|name| case.slices.get_key_value(name));
        match slice {
            Some((slice, settings)) => {
                let slice = format!("{SLICE}{slice}");
                Self::at(&[(PARENTS[0], None), (&slice, Some(*settings)), own])
            }
            None => Self::at(&[(PARENTS[usize::from(work.kind == GuestKind::Host)], None), own]),
        }
    }

    /// Makes the last of groups in one another, and those above it that there are not yet.
    fn at(levels: &[(&str, Option<Slice>)]) -> Result<Self, Error> {
        let roots = roots();
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).map_err(|error| Error::io("write", path, error))
        };
        let mut dirs = Vec::new();
        for (at, root) in roots.iter().enumerate() {
            let mut dir = root.clone();
            for (depth, (name, settings)) in levels.iter().enumerate() {
                if depth > 1 && roots.len() == 1 {
                    write(dir.join("cgroup.subtree_control"), "+cpu".to_owned())?;
                }
                dir.push(name);
                fs::create_dir_all(&dir).map_err(|error| Error::io("make", &dir, error))?;
                if depth == 0 && roots.len() == 1 {
                    write(dir.join("cgroup.subtree_control"), "+cpu".to_owned())?;
                }
                // Of version 1 only the first hierarchy has them.
                let Some(Slice { weight, quota }) = settings.filter(|_| at == 0) else { continue };
                if roots.len() == 1 {
                    write(dir.join("cpu.weight"), weight.to_string())?;
                    let limit = quota.map_or("max".to_owned(), |quota| quota.micros().to_string());
                    write(dir.join("cpu.max"), format!("{limit} 100000"))?;
                } else {
                    write(dir.join("cpu.shares"), shares(weight).to_string())?;
                    let limit = quota.map_or(-1, |quota| i64::from(quota.micros()));
                    write(dir.join("cpu.cfs_quota_us"), limit.to_string())?;
                }
            }
            dirs.push(dir);
        }
        Ok(Self { dirs, own: true })
    }

    /// That of a guest, which the lab has made.
    pub(super) fn of_guest(name: &str) -> Self {
        Self { dirs: vec![Path::new(ROOT).join(GUESTS).join(name)], own: false }
    }

    /// The files that take processes in.
    pub(super) fn procs(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.iter().map(|dir| dir.join("cgroup.procs"))
    }

    /// CPU time so far, in microseconds.
    pub(super) fn usage_us(&self) -> u64 {
        match &self.dirs[..] {
            [_, account] => {
                read(account.join("cpuacct.usage")).trim().parse::<u64>().unwrap_or(0) / 1000
            }
            all => all.first().map_or(0, |dir| usage_us(&read(dir.join("cpu.stat")))),
        }
    }

    /// Stops everything in a guest's, or lets it go on.
    pub(super) fn freeze(&self, frozen: bool) -> Result<(), Error> {
        let text = if frozen { "1" } else { "0" };
        for dir in &self.dirs {
            let path = dir.join("cgroup.freeze");
            fs::write(&path, text).map_err(|error| Error::io("write", path, error))?;
        }
        Ok(())
    }

    /// Ends everything in one of our own and removes it; a guest's is frozen.
    pub(super) fn end(&self) {
        if self.own {
            for dir in &self.dirs {
                remove(dir);
                // The last one of a slice ends that, too.
                let _ = dir.parent().filter(|parent| is_slice(parent)).map(fs::remove_dir);
            }
        } else {
            // A guest that is gone needs none.
            let _ = self.freeze(true);
        }
    }
}

/// Whether groups with a weight can be made.
pub(super) fn ready() -> Result<(), Error> {
    let roots = roots();
    if roots.len() != 1 && roots.len() != OLD.len() {
        let what = format!(
            "{ROOT} is no cgroup2 with the controller cpu, and {} are no cgroups of version 1",
            OLD.join(" and ")
        );
        return Err(Error::lacking(what, "mount them, or run the lab: leave --here out"));
    }
    if roots.len() == 1 {
        // Set already on most machines; if it cannot be, making a group tells.
        let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "+cpu");
    }
    Ok(())
}

/// Ends and removes what a killed benchmark left.
pub fn sweep() {
    for root in roots() {
        for parent in PARENTS {
            let parent = root.join(parent);
            for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
                let path = entry.path();
                if is_slice(&path) {
                    let inner = fs::read_dir(&path).into_iter().flatten().flatten();
                    inner.filter(is_dir).for_each(|inner| remove(&inner.path()));
                }
                if is_dir(&entry) {
                    remove(&path);
                }
            }
            let _ = fs::remove_dir(&parent);
        }
    }
}

fn is_dir(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

fn is_slice(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SLICE))
}

/// Kills what is in a group, waits until it is empty (at most 10 s) and removes it.
fn remove(dir: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if fs::write(dir.join("cgroup.kill"), "1").is_err() {
            kill(&read(dir.join("cgroup.procs")));
        }
        if fs::remove_dir(dir).is_ok() || !dir.exists() || Instant::now() > end {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills processes, of a group's list: version 1 has no better way.
fn kill(procs: &str) {
    let pids = procs.lines().filter_map(|line| line.trim().parse().ok());
    for pid in pids.filter_map(rustix::process::Pid::from_raw) {
        // One that has ended needs no signal.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// `cpu.shares` of version 1 for a weight of version 2.
fn shares(weight: u32) -> u64 {
    (u64::from(weight) * SHARES / 100).max(2)
}

/// `usage_usec` of a group's cpu.stat; 0 without.
fn usage_us(text: &str) -> u64 {
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    usage.and_then(|usage| usage.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_from_the_groups_statistics() {
        assert_eq!(usage_us("usage_usec 4711\nuser_usec 1\n"), 4711);
        assert_eq!(usage_us("garbage\nusage_usec x"), 0);
    }

    #[test]
    fn weights_of_both_versions_say_the_same() {
        assert_eq!((shares(100), shares(300), shares(1)), (1024, 3072, 10));
        assert!(has_cpu("cpuset cpu io\n") && !has_cpu("cpuset io\n") && !has_cpu(""));
    }
}
