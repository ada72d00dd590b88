//! Which threads of a monitor run vCPUs, from what each method shows; pure.
//!
//! The order of methods: KVM's debugfs (exact), thread names (checked against the number of KVM
//! vCPU descriptors), QMP. Names are a hint that the monitor's owner can set; whatever the
//! method, a thread must belong to the monitor's process. KVM's own vCPU ids (in debugfs and in
//! descriptor names) are APIC ids on x86 and have gaps where a guest's core or thread count is
//! no power of two, so they give an order and not the guest's CPU number.

use super::facts::{Accel, Vmm};
use super::names::{Role, role};
use std::collections::BTreeSet;

/// A thread as identification sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Thread id.
    pub tid: u32,
    /// Name, as the kernel cuts it.
    pub comm: &'a str,
}

/// vCPUs by index and thread id, ascending by index.
pub type Vcpus = Vec<(u32, u32)>;

/// What the names of a monitor's threads show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByName {
    /// These vCPUs.
    Found(Vcpus, Accel),
    /// One thread that runs all vCPUs in turn.
    AllInOne(u32),
    /// Two threads claim the same vCPU with this index.
    Twice(u32),
    /// No thread has a vCPU's name.
    Nothing,
}

/// Reads the names of the threads of `vmm`.
pub fn by_names(vmm: &Vmm, threads: &[Named<'_>]) -> ByName {
    let mut found = Vec::new();
    let mut all = None;
    let mut accel = Accel::Unknown;
    for thread in threads {
        match role(vmm, thread.comm) {
            Role::Vcpu { index, accel: told } => {
                found.push((index, thread.tid));
                accel = told;
            }
            Role::AllVcpus => all = Some(thread.tid),
            Role::Other => {}
        }
    }
    found.sort_unstable();
    if let Some(pair) = found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return ByName::Twice(pair[0].0);
    }
    match (found.is_empty(), all) {
        (false, _) => ByName::Found(found, accel),
        (true, Some(tid)) => ByName::AllInOne(tid),
        (true, None) => ByName::Nothing,
    }
}

/// vCPUs from debugfs, given as KVM's vCPU id and thread id. Entries whose thread is not of this
/// process are left out: QEMU keeps the descriptor of an unplugged vCPU, whose thread has ended.
/// `None` when nothing remains, when a vCPU has not run yet (thread id 0) or when two share a
/// thread.
pub fn by_debugfs(vmm: &Vmm, entries: &[(u32, u32)], threads: &[Named<'_>]) -> Option<Vcpus> {
    if entries.iter().any(|(_, tid)| *tid == 0) {
        return None;
    }
    let mut own: Vec<(u32, &Named<'_>)> = entries
        .iter()
        .filter_map(|(id, tid)| Some((*id, threads.iter().find(|thread| thread.tid == *tid)?)))
        .collect();
    own.sort_unstable_by_key(|(id, _)| *id);
    let tids: BTreeSet<u32> = own.iter().map(|(_, thread)| thread.tid).collect();
    if own.is_empty() || tids.len() != own.len() {
        return None;
    }
    Some(numbered(vmm, own.into_iter().map(|(_, thread)| thread)))
}

/// Gives vCPU threads, in order, the guest's CPU numbers: those in their names if every one has
/// its own, else their place in the order.
fn numbered<'a>(vmm: &Vmm, threads: impl Iterator<Item = &'a Named<'a>>) -> Vcpus {
    let threads: Vec<_> = threads.collect();
    let named: Option<Vcpus> = threads
        .iter()
        .map(|thread| match role(vmm, thread.comm) {
            Role::Vcpu { index, .. } => Some((index, thread.tid)),
            Role::AllVcpus | Role::Other => None,
        })
        .collect();
    if let Some(mut named) = named {
        named.sort_unstable();
        if named.windows(2).all(|pair| pair[0].0 != pair[1].0) {
            return named;
        }
    }
    (0..).zip(threads).map(|(index, thread)| (index, thread.tid)).collect()
}

/// Why QMP's answer cannot be used, or its vCPUs ascending by index.
///
/// # Errors
/// A sentence: no vCPU, one thread for several, or a thread of another process.
pub fn by_qmp(answer: &[(u32, u32)], threads: &[Named<'_>]) -> Result<Vcpus, String> {
    let mut found = answer.to_vec();
    found.sort_unstable();
    if found.is_empty() {
        return Err("QMP names no vCPU".to_owned());
    }
    let tids: BTreeSet<u32> = found.iter().map(|(_, tid)| *tid).collect();
    if tids.len() != found.len() {
        return Err(ONE_THREAD.to_owned());
    }
    if let Some(tid) = tids.iter().find(|tid| !threads.iter().any(|thread| thread.tid == **tid)) {
        return Err(format!("QMP names thread {tid}, which is not of this process"));
    }
    if found.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("QMP names a vCPU twice".to_owned());
    }
    Ok(found)
}

/// Why a VM of one TCG thread is left alone.
pub const ONE_THREAD: &str =
    "one QEMU thread runs all its vCPUs in turn (start it with -accel tcg,thread=multi)";

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[(u32, &'static str)]) -> Vec<Named<'static>> {
        list.iter().map(|(tid, comm)| Named { tid: *tid, comm }).collect()
    }

    #[test]
    fn names_give_the_guests_numbers() {
        let all = threads(&[(1, "qemu-system-x86"), (5, "CPU 1/KVM"), (9, "CPU 0/KVM")]);
        assert_eq!(by_names(&Vmm::Qemu, &all), ByName::Found(vec![(0, 9), (1, 5)], Accel::Kvm));
        let twice = threads(&[(5, "CPU 1/KVM"), (9, "CPU 1/KVM")]);
        assert_eq!(by_names(&Vmm::Qemu, &twice), ByName::Twice(1));
        let one = threads(&[(1, "q"), (5, "ALL CPUs/TCG")]);
        assert_eq!(by_names(&Vmm::Qemu, &one), ByName::AllInOne(5));
        assert_eq!(by_names(&Vmm::Qemu, &threads(&[(1, "q")])), ByName::Nothing);
    }

    #[test]
    fn debugfs_gives_an_order_where_names_give_no_numbers() {
        let bare = threads(&[(1, "q"), (5, "q"), (6, "q"), (7, "q")]);
        assert_eq!(
            by_debugfs(&Vmm::Qemu, &[(4, 7), (0, 6), (1, 5)], &bare),
            Some(vec![(0, 6), (1, 5), (2, 7)])
        );
        let named = threads(&[(6, "CPU 0/KVM"), (7, "CPU 3/KVM")]);
        assert_eq!(by_debugfs(&Vmm::Qemu, &[(0, 6), (4, 7)], &named), Some(vec![(0, 6), (3, 7)]));
    }

    #[test]
    fn debugfs_entries_of_other_processes_are_left_out() {
        let bare = threads(&[(1, "q"), (5, "q")]);
        assert_eq!(by_debugfs(&Vmm::Qemu, &[(0, 5), (1, 99)], &bare), Some(vec![(0, 5)]));
        assert_eq!(by_debugfs(&Vmm::Qemu, &[(0, 98), (1, 99)], &bare), None);
        assert_eq!(by_debugfs(&Vmm::Qemu, &[(0, 5), (1, 0)], &bare), None);
        assert_eq!(by_debugfs(&Vmm::Qemu, &[(0, 5), (1, 5)], &bare), None);
    }

    #[test]
    fn qmp_is_believed_only_about_its_own_threads() {
        let bare = threads(&[(1, "q"), (5, "q"), (6, "q")]);
        assert_eq!(by_qmp(&[(1, 5), (0, 6)], &bare), Ok(vec![(0, 6), (1, 5)]));
        assert!(by_qmp(&[(0, 99)], &bare).unwrap_err().contains("99"));
        assert_eq!(by_qmp(&[(0, 5), (1, 5)], &bare).unwrap_err(), ONE_THREAD);
        assert!(by_qmp(&[], &bare).is_err());
    }
}
