//! The VM table that the kernel scheduler is fed: which thread is which vCPU of which VM.
//!
//! Laying it out is a pure function: VMs in, numbered entries and warnings out. A VM keeps its
//! number and slots while it lives and its vCPUs are as many, so that what the kernel learned of
//! it stays with it. One that was started again under its name is another.

use crate::settings::{Cosched, DEFAULT_PERIOD, Latency};
use instep_core::units::{NodeId, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A thread, told from a later one of the same number by its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId {
    /// The kernel's number.
    pub tid: Tid,
    /// Start in clock ticks since boot, as in `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// What the scheduler knows of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmEntry {
    /// Its unique name.
    pub name: String,
    /// `cpu.weight`, 1..=10000.
    pub weight: u32,
    /// Its weight where it is given by its settings and not by its cgroup.
    pub own_weight: Option<u32>,
    /// The inode number of the cgroup that the kernel charges its CPU time to, 0 for the root, ...
    pub group: u64,
    /// ... whether nothing else lies there ...
    pub alone: bool,
    /// ... and its path below the mount point, without a slash at either end.
    pub cgroup: String,
    /// Allocation period.
    pub period: Duration,
    /// Node where it should run, if one.
    pub home: Option<NodeId>,
    /// Co-scheduling.
    pub cosched: Cosched,
    /// Latency class.
    pub latency: Latency,
    /// Its vCPU threads, in the guest's order.
    pub vcpus: Vec<ThreadId>,
    /// Threads of its monitor that are no vCPUs.
    pub helpers: Vec<ThreadId>,
}

impl VmEntry {
    /// A VM with default settings.
    #[must_use]
    pub fn new(name: &str, vcpus: Vec<ThreadId>) -> Self {
        Self {
            name: name.to_owned(),
            weight: 100,
            own_weight: None,
            group: 0,
            alone: false,
            cgroup: String::new(),
            period: DEFAULT_PERIOD,
            home: None,
            cosched: Cosched::Auto,
            latency: Latency::Normal,
            vcpus,
            helpers: Vec::new(),
        }
    }

    /// Whether this is the VM that `before` was: its name, as many vCPUs, a thread of them, and none of those
    /// in another's slot, where it would not find what it is counted by.
    #[must_use]
    pub fn is(&self, before: &Self) -> bool {
        let place = |vcpu: &ThreadId| before.vcpus.iter().position(|other| other == vcpu);
        let mut common =
            self.vcpus.iter().enumerate().filter_map(|(at, vcpu)| Some((at, place(vcpu)?)));
        let same = match common.next() {
            Some((at, was)) => at == was && common.all(|(at, was)| at == was),
            None => self.vcpus.is_empty(),
        };
        self.name == before.name && self.vcpus.len() == before.vcpus.len() && same
    }
}

/// What the kernel side has room for (`INSTEP_MAX_*`).
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// VMs, with the host's own entry 0.
    pub vms: u32,
    /// vCPU slots.
    pub slots: u32,
    /// vCPUs of one VM.
    pub vcpus: u32,
    /// Threads in the table.
    pub threads: usize,
}

/// The limits of `bpf/intf.h`.
pub const LIMITS: TableLimits = TableLimits {
    vms: instep_abi::MAX_VMS,
    slots: instep_abi::MAX_SLOTS,
    vcpus: instep_abi::MAX_VCPUS,
    threads: instep_abi::MAX_THREADS as usize,
};

/// Bytes that the queues of all slots may take, unless there are more vCPUs.
const QUEUE_BYTES: usize = 32 << 20;
/// The fewest slots, and the most beyond what is needed: each makes loading longer.
const FREE_SLOTS: (u32, u32) = (256, 8192);

impl TableLimits {
    /// Those of a scheduler that is loaded on so many possible CPUs while there are so many vCPUs: slots for twice as many
    /// at least, a power of two. A slot has a queue of its own, for which the kernel keeps some 200 bytes and,
    /// since Linux 7.1, 32 bytes for each possible CPU (`struct scx_dsq_pcpu`, include/linux/sched/ext.h).
    #[must_use]
    pub fn with_room(vcpus: usize, cpus: usize) -> Self {
        let wanted = u32::try_from(vcpus).unwrap_or(u32::MAX).min(LIMITS.slots);
        let cheap = (QUEUE_BYTES / (200 + 32 * cpus)) as u32;
        let cheap = (cheap / 2 + 1).next_power_of_two().clamp(FREE_SLOTS.0, FREE_SLOTS.1);
        let slots = (2 * wanted).next_power_of_two().clamp(cheap, LIMITS.slots);
        Self { slots, ..LIMITS }
    }

    /// Whether a scheduler that is loaded anew would have room for these vCPUs, where this one is too full: gaps
    /// between the slots of VMs may be too narrow for others when less than a quarter is free.
    #[must_use]
    pub fn is_outgrown(self, vcpus: usize) -> bool {
        self.slots < LIMITS.slots && vcpus > self.slots as usize / 4 * 3
    }
}

/// One VM with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its index in the kernel's table, from 1.
    pub vm: u32,
    /// The slot of its first vCPU.
    pub first_slot: u32,
    /// The VM.
    pub entry: VmEntry,
}

/// The table as it is, and as it was numbered before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmTable {
    /// By VM index, ascending.
    pub vms: Vec<Placed>,
    /// VM indices that were in use before and are not now.
    pub freed: Vec<u32>,
}

impl VmTable {
    /// Numbers `entries`, keeping the numbers of those that `self` has ([`VmEntry::is`]).
    /// What does not fit is left to the host's entry, with a warning.
    #[must_use]
    pub fn renumbered(&self, entries: Vec<VmEntry>, limits: TableLimits) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let old: BTreeMap<&str, &Placed> =
            self.vms.iter().map(|placed| (placed.entry.name.as_str(), placed)).collect();
        let kept = |entry: &VmEntry| {
            old.get(entry.name.as_str())
                .filter(|placed| entry.is(&placed.entry))
                .map(|placed| (placed.vm, placed.first_slot))
        };
        let mut room = Room::new(limits);
        let (stay, come): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| kept(entry).is_some());
        let mut vms = Vec::new();
        let vcpus: usize = stay.iter().map(|entry| entry.vcpus.len()).sum();
        let mut helpers = limits.threads.saturating_sub(vcpus);
        for mut entry in stay {
            let Some((vm, first_slot)) = kept(&entry) else { continue };
            if entry.helpers.len() > helpers {
                warnings.push(format!(
                    "{} helper threads of VM {} are scheduled with the host's threads: more than {} \
                     threads of VMs",
                    entry.helpers.len() - helpers,
                    entry.name,
                    limits.threads
                ));
                entry.helpers.truncate(helpers);
            }
            helpers -= entry.helpers.len();
            if room.claim(vm, first_slot, &entry) {
                vms.push(Placed { vm, first_slot, entry });
            }
        }
        for entry in come {
            match room.find(&entry) {
                Ok((vm, first_slot)) => vms.push(Placed { vm, first_slot, entry }),
                Err(why) => warnings
                    .push(format!("VM {} is scheduled with the host's threads: {why}", entry.name)),
            }
        }
        vms.sort_by_key(|placed| placed.vm);
        let used: BTreeSet<u32> = vms.iter().map(|placed| placed.vm).collect();
        let freed =
            self.vms.iter().map(|placed| placed.vm).filter(|vm| !used.contains(vm)).collect();
        (Self { vms, freed }, warnings)
    }
}

/// What is left of the kernel's tables.
struct Room {
    limits: TableLimits,
    vms: BTreeSet<u32>,
    /// Taken slots as first -> one past the last.
    slots: BTreeMap<u32, u32>,
    threads: usize,
}

impl Room {
    fn new(limits: TableLimits) -> Self {
        Self { limits, vms: BTreeSet::new(), slots: BTreeMap::new(), threads: 0 }
    }

    fn claim(&mut self, vm: u32, first: u32, entry: &VmEntry) -> bool {
        let count = entry.vcpus.len() as u32;
        if !self.vms.insert(vm) {
            return false;
        }
        self.slots.insert(first, first + count);
        self.threads += entry.vcpus.len() + entry.helpers.len();
        true
    }

    fn find(&mut self, entry: &VmEntry) -> Result<(u32, u32), String> {
        let count = u32::try_from(entry.vcpus.len()).unwrap_or(u32::MAX);
        let limits = self.limits;
        if count == 0 {
            return Err("its vCPU threads are not known".to_owned());
        }
        if count > limits.vcpus {
            return Err(format!("{count} vCPUs, more than {}", limits.vcpus));
        }
        if self.threads + entry.vcpus.len() + entry.helpers.len() > limits.threads {
            return Err(format!("more than {} threads of VMs", limits.threads));
        }
        let vm = (1..limits.vms)
            .find(|vm| !self.vms.contains(vm))
            .ok_or_else(|| format!("more than {} VMs", limits.vms - 1))?;
        let mut first = 0;
        for (from, to) in &self.slots {
            if first + count <= *from {
                break;
            }
            first = first.max(*to);
        }
        if first + count > limits.slots {
            return Err(format!("more than {} vCPUs of all VMs", limits.slots));
        }
        self.claim(vm, first, entry);
        Ok((vm, first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vm(name: &str, vcpus: u32) -> VmEntry {
        let thread = |tid| ThreadId { tid: Tid(tid), start_ticks: 7 };
        VmEntry::new(name, (1..=vcpus).map(thread).collect())
    }

    fn numbers(table: &VmTable) -> Vec<(String, u32, u32)> {
        table.vms.iter().map(|p| (p.entry.name.clone(), p.vm, p.first_slot)).collect()
    }

    #[test]
    fn helpers_of_a_vm_that_stays_do_not_exceed_the_table() {
        let limits = TableLimits { vms: 9, slots: 20, vcpus: 5, threads: 8 };
        let (first, none) = VmTable::default().renumbered(vec![vm("a", 2), vm("b", 3)], limits);
        let mut grown = vm("a", 2);
        grown.helpers = vm("", 9).vcpus;
        let (second, warnings) = first.renumbered(vec![grown, vm("b", 3)], limits);
        assert_eq!((numbers(&second), none), (numbers(&first), Vec::new()));
        assert_eq!(second.vms[0].entry.helpers.len(), 3, "8 threads, 5 of them vCPUs");
        assert!(warnings[0].starts_with("6 helper threads of VM a"), "{warnings:?}");
    }

    #[test]
    fn there_is_room_for_twice_the_vcpus_that_there_are() {
        let slots = |vcpus, cpus| TableLimits::with_room(vcpus, cpus).slots;
        assert_eq!(
            [2, 96, 384, 1024, 65536].map(|cpus| slots(0, cpus)),
            [8192, 8192, 2048, 512, 256]
        );
        let large = [984, 1024, 1025, 20_000, usize::MAX];
        assert_eq!(large.map(|vcpus| slots(vcpus, 384)), [2048, 2048, 4096, 32768, 32768]);
        let outgrown = |room, vcpus| TableLimits::with_room(room, 384).is_outgrown(vcpus);
        assert!(!outgrown(0, 1536) && outgrown(0, 1537), "2,048 slots");
        assert!(!outgrown(20_000, usize::MAX), "there are no more");
        assert!(
            !TableLimits::with_room(1537, 384).is_outgrown(1537),
            "it is not loaded again and again"
        );
        let (table, warnings) = VmTable::default()
            .renumbered(vec![vm("a", 200), vm("b", 57)], TableLimits::with_room(0, 65536));
        assert_eq!((table.vms.len(), warnings.len()), (1, 1), "{warnings:?}");
    }

    #[test]
    fn a_vm_keeps_its_number_while_others_come_and_go() {
        let (first, _) = VmTable::default().renumbered(vec![vm("a", 2), vm("b", 3)], LIMITS);
        let (second, _) = first.renumbered(vec![vm("c", 1), vm("b", 3)], LIMITS);
        assert_eq!(numbers(&second), [("c".into(), 1, 0), ("b".into(), 2, 2)]);
        let (third, _) = second.renumbered(vec![vm("b", 3)], LIMITS);
        assert_eq!((numbers(&third), third.freed), (vec![("b".into(), 2, 2)], vec![1]));
    }

    #[test]
    fn a_vm_whose_vcpus_change_in_number_moves() {
        let (first, _) = VmTable::default().renumbered(vec![vm("a", 2), vm("b", 2)], LIMITS);
        let (second, _) = first.renumbered(vec![vm("a", 4), vm("b", 2)], LIMITS);
        assert_eq!(numbers(&second), [("a".into(), 1, 4), ("b".into(), 2, 2)]);
    }

    #[test]
    fn a_vm_that_was_started_again_is_another() {
        let before = vm("a", 2);
        let mut again = before.clone();
        again.vcpus.iter_mut().for_each(|vcpu| vcpu.start_ticks += 1);
        let mut plugged = again.clone();
        plugged.vcpus[1] = before.vcpus[1];
        assert!(before.is(&before) && plugged.is(&before) && !again.is(&before));
        // Its second thread has the first one's slot, and a new one its own.
        let moved = VmEntry::new("a", vec![before.vcpus[1], again.vcpus[1]]);
        assert!(!moved.is(&before));
    }

    #[test]
    fn what_does_not_fit_is_reported_and_left_out() {
        let limits = TableLimits { vms: 3, slots: 8, vcpus: 4, threads: 100 };
        let all = vec![vm("big", 5), vm("a", 4), vm("none", 0), vm("b", 4), vm("c", 1)];
        let (table, warnings) = VmTable::default().renumbered(all, limits);
        assert_eq!(numbers(&table), [("a".into(), 1, 0), ("b".into(), 2, 4)]);
        assert_eq!(warnings.len(), 3);
        assert!(warnings[0].contains("VM big") && warnings[0].contains("more than 4"));
    }

    proptest! {
        #[test]
        fn slots_never_overlap_and_stay_within_bounds(
            rounds in prop::collection::vec(prop::collection::btree_map(0u8..12, 1u32..6, 0..10), 1..6)
        ) {
            let limits = TableLimits { vms: 9, slots: 20, vcpus: 5, threads: 60 };
            let mut table = VmTable::default();
            for round in rounds {
                let entries = round.iter().map(|(n, c)| vm(&n.to_string(), *c)).collect();
                table = table.renumbered(entries, limits).0;
                let mut spans: Vec<(u32, u32)> = table.vms.iter()
                    .map(|p| (p.first_slot, p.first_slot + p.entry.vcpus.len() as u32)).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
                prop_assert!(spans.iter().all(|s| s.1 <= 20));
                prop_assert!(table.vms.windows(2).all(|w| w[0].vm < w[1].vm));
                prop_assert!(table.vms.iter().all(|p| p.vm >= 1 && p.vm < 9));
            }
        }
    }
}
