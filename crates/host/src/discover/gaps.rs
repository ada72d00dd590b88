//! What a scan of a copy lacks, and what that means for the loads of VMs, in words.
//!
//! A scan notes which files are missing or cut; whether loads suffer depends on the scan it is
//! compared with, so the words come from both. It does not know how the loads are made up for:
//! that is in `rates`.

use super::facts::{Gaps, Scan, StatGap, VcpuFacts, VmFacts};
use super::process::Thread;
use instep_core::units::Nanos;
use instep_core::wording::Count;
use std::io;
use std::path::{Path, PathBuf};

/// How many VMs are named, each in a warning of its own.
const NAMED: usize = 10;

impl Gaps {
    /// Notes a VM with the threads that its load comes from; `counted` tells whether a thread has
    /// a time by schedstat.
    pub(super) fn note<'a>(
        &mut self,
        vm: &str,
        process: &Path,
        threads: impl Iterator<Item = (&'a Thread, bool)>,
    ) {
        let mut gap: Option<StatGap> = None;
        let mut all = 0;
        for (thread, counted) in threads {
            all += 1;
            if thread.stat.whole {
                continue;
            }
            let gap = gap.get_or_insert_with(|| StatGap {
                vm: vm.to_owned(),
                file: process.join("task").join(thread.tid.to_string()).join("stat"),
                unread: 0,
                unknown: 0,
                threads: 0,
            });
            gap.unread += 1;
            gap.unknown += u32::from(!counted);
        }
        if let Some(gap) = gap {
            if self.stats.len() < NAMED {
                self.stats.push(StatGap { threads: all, ..gap });
            } else {
                self.more = self.more.saturating_add(1);
            }
        }
    }
}

/// What loads by [`snapshot`](super::snapshot) of the same scans lack, one sentence each; none on
/// the running machine.
pub fn load_warnings(before: Option<&Scan>, after: &Scan, elapsed: Option<Nanos>) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(uptime(before, after, elapsed));
    warnings.extend(contradiction(before, after, elapsed));
    if let Some(before) = before {
        stats(&before.gaps, Role::Before, &mut warnings);
    }
    let role = if before.is_some() { Role::After } else { Role::Only };
    stats(&after.gaps, role, &mut warnings);
    warnings
}

/// Which of the scans it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Only,
    Before,
    After,
}

/// A missing uptime matters where it would give the length of the window, or the age of a VM that
/// the first scan lacks.
fn uptime(before: Option<&Scan>, after: &Scan, elapsed: Option<Nanos>) -> Option<String> {
    let missing = |scan: &Scan| scan.gaps.uptime.clone();
    let path = before.and_then(missing).or_else(|| missing(after))?;
    let what = match (before, elapsed) {
        (None, _) => "loads are relative to the busiest vCPU (--before and --elapsed would do)",
        (Some(_), None) => "loads are relative to the busiest vCPU (--elapsed would do)",
        (Some(before), Some(_)) if after.vms.iter().any(|vm| !holds(before, vm)) => {
            "VMs that the copy of --before lacks count as if they had started since"
        }
        _ => return None,
    };
    Some(format!("{} is missing or not readable: {what}", path.display()))
}

fn holds(scan: &Scan, vm: &VmFacts) -> bool {
    let known = |pid: u32| pid == vm.pid;
    scan.vms.iter().any(|vm| known(vm.pid)) || scan.opaque.iter().any(|vm| known(vm.pid))
}

/// A given length of the window that is not that between the uptimes, by more than a tenth.
fn contradiction(before: Option<&Scan>, after: &Scan, elapsed: Option<Nanos>) -> Option<String> {
    let given = elapsed?;
    let shown = after.boot?.since(before?.boot?);
    let apart = u128::from(given.0.abs_diff(shown.0)) * 10;
    let seconds = |time: Nanos| time.milli_of(Nanos::SECOND);
    (shown != Nanos(0) && apart > u128::from(shown.0)).then(|| {
        format!(
            "--elapsed says {}s, but the uptimes of the two copies are {}s apart; the given \
             {}s are used",
            seconds(given),
            seconds(shown),
            seconds(given)
        )
    })
}

fn stats(gaps: &Gaps, role: Role, warnings: &mut Vec<String>) {
    for gap in &gaps.stats {
        let part = if gap.unknown == gap.threads { "not known" } else { "known in part only" };
        let what = match (role, gap.unknown) {
            (Role::Only, 0) => {
                "its loads are by schedstat, as means since the start of its process".to_owned()
            }
            (_, 0) => "its loads are by schedstat alone".to_owned(),
            (Role::Before, _) => {
                format!("what it had used then is {part}, so its loads are means since it started")
            }
            (_, unknown) => {
                format!(
                    "its load is {part}: {unknown} of its {} threads {} as idle",
                    gap.threads,
                    if unknown == 1 { "counts" } else { "count" }
                )
            }
        };
        warnings.push(format!(
            "{} of VM {} is missing or cut{}; {what}",
            gap.file.display(),
            gap.vm,
            match gap.unread {
                1 => String::new(),
                2 => " (so is 1 more of it)".to_owned(),
                all => format!(" (so are {} more of it)", all - 1),
            }
        ));
    }
    if gaps.more != 0 {
        warnings.push(format!(
            "the stat files of threads of {} are missing, too, or cut; their loads are not \
             known or known in part only",
            Count(gaps.more.into(), "other VM")
        ));
    }
}

/// VMs of which no scan could tell which CPUs the vCPUs may use: their number, and the first such `status` file.
#[derive(Debug, Default)]
pub(super) struct Unpinned {
    first: Option<PathBuf>,
    vms: u32,
}

impl Unpinned {
    /// Notes a VM.
    pub(super) fn note(&mut self, process: &Path, vcpus: &[VcpuFacts]) {
        if let Some(vcpu) = vcpus.iter().find(|vcpu| vcpu.allowed.is_none()) {
            self.vms += 1;
            self.first.get_or_insert_with(|| {
                process.join("task").join(vcpu.tid.0.to_string()).join("status")
            });
        }
    }

    /// What to say of them.
    pub(super) fn warning(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!(
            "the CPUs that the vCPUs of {} may use are unknown, so all are assumed: Cpus_allowed_list \
             is missing in status, or cut off (first: {})",
            Count(self.vms.into(), "VM"),
            first.display()
        ))
    }
}

/// The VMs whose memory is not known, and why.
#[derive(Debug, Default)]
pub(super) struct Lost {
    denied: Option<(u32, String)>,
    absent: Option<(u32, String)>,
}

impl Lost {
    /// Notes a VM whose numa_maps gave nothing. On a running machine one that is not there is
    /// that of a VM that ended, or of a kernel without NUMA.
    pub(super) fn note(&mut self, vm: &str, process: &Path, error: Option<&io::Error>, live: bool) {
        if error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            self.denied.get_or_insert_with(|| (0, vm.to_owned())).0 += 1;
        } else if !live {
            let path = || process.join("numa_maps").display().to_string();
            self.absent.get_or_insert_with(|| (0, path())).0 += 1;
        }
    }

    /// At most one sentence for each reason.
    pub(super) fn warnings(&self) -> Vec<String> {
        let denied = self.denied.as_ref().map(|(count, first)| {
            format!(
                "memory of {} cannot be read (first: {first}): run as root, or with \
                 CAP_SYS_PTRACE",
                Count((*count).into(), "VM")
            )
        });
        let absent = self.absent.as_ref().map(|(count, first)| {
            format!(
                "memory of {} is not in this copy (first: {first})",
                Count((*count).into(), "VM")
            )
        });
        denied.into_iter().chain(absent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_memory_is_reported_by_its_reason_and_counted() {
        let mut lost = Lost::default();
        assert!(lost.warnings().is_empty());
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let absent = io::Error::from(io::ErrorKind::NotFound);
        lost.note("db", Path::new("/proc/7"), Some(&denied), true);
        lost.note("web", Path::new("/proc/8"), Some(&denied), true);
        lost.note("ended", Path::new("/proc/9"), Some(&absent), true);
        let told =
            "memory of 2 VMs cannot be read (first: db): run as root, or with CAP_SYS_PTRACE";
        assert_eq!(lost.warnings(), [told]);
        lost.note("ci", Path::new("copy/proc/9"), Some(&absent), false);
        let told = "memory of 1 VM is not in this copy (first: copy/proc/9/numa_maps)";
        assert_eq!(lost.warnings()[1], told);
    }
}
