//! The demo's evidence: the affinity of every thread of every guest, before and after.
//!
//! Threads that QEMU started or ended meanwhile have no "before" or no "after" and are counted
//! only; the vCPUs' threads must be there both times.

use crate::affinity::{self, Affinities};
use crate::error::Error;
use crate::guest::Guest;
use instep_core::wording::Count;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What was found, by process.
#[derive(Debug, Default)]
pub(super) struct Proof {
    found: BTreeMap<u32, Affinities>,
}

impl Proof {
    /// Notes the affinities of a guest as they are now.
    pub(super) fn note(&mut self, guest: &Guest) -> Result<(), Error> {
        self.found.insert(guest.pid(), affinity::of_process(guest.pid())?);
        Ok(())
    }

    /// Compares with the affinities as they are now: a table, and whether all are the same.
    pub(super) fn check(&self, guests: &[Guest]) -> Result<(String, bool), Error> {
        let mut report = String::from("\nthreads' allowed CPUs   as found     now\n");
        let mut all_same = true;
        for guest in guests {
            let Some(found) = self.found.get(&guest.pid()) else { continue };
            let now = affinity::of_process(guest.pid())?;
            let (lines, same) = compare(&guest.spec().name, found, &now);
            report.push_str(&lines);
            all_same &= same;
        }
        Ok((report, all_same))
    }
}

/// The threads that run vCPUs, with their index, by the names QEMU gives them.
pub(super) fn vcpus(threads: &Affinities) -> Vec<(u32, u32)> {
    let index = |name: &str| name.strip_prefix("CPU ")?.split('/').next()?.parse().ok();
    let mut all: Vec<(u32, u32)> =
        threads.iter().filter_map(|(tid, (name, _))| Some((index(name)?, *tid))).collect();
    all.sort_unstable();
    all
}

/// Whether no CPU is the only one that two vCPUs may use.
pub(super) fn apart(threads: &Affinities) -> bool {
    let single = |cpus: &&str| cpus.chars().all(|c| c.is_ascii_digit());
    let mut taken: Vec<&str> = vcpus(threads)
        .iter()
        .filter_map(|(_, tid)| threads.get(tid).map(|(_, cpus)| cpus.as_str()))
        .filter(single)
        .collect();
    let bound = taken.len();
    taken.sort_unstable();
    taken.dedup();
    taken.len() == bound
}

/// One line for each vCPU, one for the other threads.
fn compare(guest: &str, found: &Affinities, now: &Affinities) -> (String, bool) {
    let mut lines = String::new();
    let mut all_same = true;
    let vcpus = vcpus(found);
    for (index, tid) in &vcpus {
        let before = &found[tid].1;
        let after = now.get(tid).map_or("gone", |(_, cpus)| cpus.as_str());
        all_same &= before == after;
        let label = format!("{guest} vCPU {index}");
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "  {label:<20}  {before:<11}  {after}{}", mark(before == after));
    }
    let others: Vec<u32> =
        found.keys().filter(|tid| vcpus.iter().all(|(_, vcpu)| vcpu != *tid)).copied().collect();
    let both = others.iter().filter(|tid| now.contains_key(tid)).count();
    let changed =
        others.iter().filter(|tid| now.get(tid).is_some_and(|t| t.1 != found[tid].1)).count();
    all_same &= changed == 0;
    let label = format!("{guest} others");
    let _ = writeln!(
        lines,
        "  {label:<20}  {}, {changed} changed{}",
        Count::of(both, "thread"),
        mark(changed == 0)
    );
    (lines, all_same)
}

fn mark(same: bool) -> &'static str {
    if same { "" } else { "   <-- differs" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[(u32, &str, &str)]) -> Affinities {
        list.iter().map(|(tid, name, cpus)| (*tid, ((*name).into(), (*cpus).into()))).collect()
    }

    #[test]
    fn vcpus_are_told_by_name_in_order_of_index() {
        let all = threads(&[(7, "CPU 1/TCG", "0"), (8, "CPU 0/KVM", "0"), (6, "qemu", "0-1")]);
        assert_eq!(vcpus(&all), [(0, 8), (1, 7)]);
    }

    #[test]
    fn vcpus_are_apart_unless_two_have_the_same_single_cpu() {
        let with = |a: &str, b: &str| threads(&[(7, "CPU 0/TCG", a), (8, "CPU 1/TCG", b)]);
        assert!(apart(&with("0", "1")) && apart(&with("0-1", "0-1")) && apart(&with("0", "0-1")));
        assert!(!apart(&with("0", "0")));
    }

    #[test]
    fn a_changed_or_vanished_vcpu_is_no_proof_and_a_vanished_worker_is_no_matter() {
        let found = threads(&[(7, "CPU 0/TCG", "0"), (8, "worker", "0-1")]);
        assert!(compare("a", &found, &found).1);
        assert!(compare("a", &found, &threads(&[(7, "CPU 0/TCG", "0")])).1);
        assert!(!compare("a", &found, &threads(&[(8, "worker", "0-1")])).1);
        assert!(
            !compare("a", &found, &threads(&[(7, "CPU 0/TCG", "0-1"), (8, "worker", "0-1")])).1
        );
        assert!(!compare("a", &found, &threads(&[(7, "CPU 0/TCG", "0"), (8, "worker", "0")])).1);
    }
}
