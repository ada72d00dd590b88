//! Finds the VMs of a trace and the threads that run their vCPUs.
//!
//! A thread runs a vCPU when it is named as VMMs name such threads (`CPU 0/KVM`, `vcpu0`,
//! `fc_vcpu 0`, `crosvm_vcpu0`, `kvm-vcpu-0`) or was seen in kvm_entry. Threads of one process are one VM. Where
//! the trace does not name processes, threads are grouped by their wake-ups of each other and, without these, by
//! neighbouring thread ids. Such a group is a guess, and reported as one.

use crate::event::{Comm, Context, Event, Fact};
use crate::stream::{TracedGuest, counted};
use std::collections::{BTreeMap, BTreeSet};

/// Tables have a row per VM and a column per CPU.
const MAX_VMS: usize = 2048;
/// The most vCPU threads of unknown processes that are grouped by their wake-ups of each other.
const MAX_GUESSED: usize = 8192;

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundVm {
    /// Its name, or `vm-` and a number for want of one.
    pub name: String,
    /// Its process, where known.
    pub pid: Option<u32>,
    /// Number of vCPU and thread, ascending by number.
    pub vcpus: Vec<(u32, u32)>,
}

impl FoundVm {
    fn tids(&self) -> impl Iterator<Item = u32> + '_ {
        self.vcpus.iter().map(|(_, tid)| *tid)
    }

    /// Takes a thread in, by the next number if its own is another's.
    fn take_in(&mut self, mut index: u32, tid: u32) {
        while self.vcpus.iter().any(|(taken, _)| *taken == index) {
            index += 1;
        }
        self.vcpus.push((index, tid));
    }
}

/// The VMs and what is uncertain of them.
#[derive(Clone, Debug, Default)]
pub struct DiscoveredVms {
    /// Ascending by process, then by first thread.
    pub vms: Vec<FoundVm>,
    /// What the reader of a report must know.
    pub warnings: Vec<String>,
}

/// The number of the vCPU that a thread of this name runs.
pub fn vcpu_of_name(name: &Comm) -> Option<u32> {
    let name = std::str::from_utf8(name.as_bytes()).ok()?;
    let number = if let Some(rest) = name.strip_prefix("CPU ") {
        let (number, kind) = rest.split_once('/')?;
        // The kernel cuts names at 15 bytes.
        ["KVM", "TCG"].iter().any(|full| full.starts_with(kind)).then_some(number)?
    } else {
        // cloud-hypervisor, Firecracker, crosvm, kvmtool.
        let prefixes = ["vcpu", "fc_vcpu ", "crosvm_vcpu", "kvm-vcpu-"];
        prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?
    };
    number.parse().ok().filter(|number| *number < 4096)
}

#[derive(Clone, Debug, Default)]
struct Thread {
    name: Comm,
    tgid: Option<u32>,
    entered: Option<u32>,
}

/// Finds the VMs in the first part of a trace. What is `known` already (named by the user, by the
/// recorder, by copies of /proc) comes first, and its threads are not looked for again.
pub fn discover(events: &[Event], guests: &[TracedGuest], known: &[FoundVm]) -> DiscoveredVms {
    let threads = threads(events);
    let mut vms: Vec<FoundVm> = known.to_vec();
    let mut claimed: BTreeSet<u32> = known.iter().flat_map(FoundVm::tids).collect();
    for guest in guests {
        let is_new = !guest.vcpus.iter().any(|(_, tid)| claimed.contains(tid));
        if is_new && !guest.vcpus.is_empty() {
            let (name, pid, vcpus) = (guest.name.clone(), guest.pid, guest.vcpus.clone());
            let vm = FoundVm { name, pid, vcpus };
            claimed.extend(vm.tids());
            vms.push(vm);
        }
    }
    // Of a VM of which only some threads were named the others belong to it, too.
    let tgid = |tid: u32| threads.get(&tid).and_then(|thread| thread.tgid);
    for vm in &mut vms {
        vm.pid = vm.pid.or_else(|| vm.tids().find_map(tgid));
    }
    let (mut grouped, mut single) = (BTreeMap::<u32, Vec<(u32, u32)>>::new(), Vec::new());
    for (tid, thread) in &threads {
        let index = thread.entered.or_else(|| vcpu_of_name(&thread.name));
        let Some(index) = index.filter(|_| !claimed.contains(tid)) else { continue };
        match thread.tgid {
            Some(tgid) => grouped.entry(tgid).or_default().push((index, *tid)),
            None => single.push((index, *tid)),
        }
    }
    let mut warnings = Vec::new();
    if !single.is_empty() {
        warnings.push(format!(
            "the trace does not say to which process {}: they are grouped into VMs by wake-ups \
             of each other and by number; name VMs with --vm NAME=TID,...",
            counted(single.len() as u64, "vCPU thread belongs", "vCPU threads belong")
        ));
        if single.len() > MAX_GUESSED {
            warnings.push(format!("only the first {MAX_GUESSED} of these threads are grouped"));
            single.truncate(MAX_GUESSED);
        }
        vms.extend(guess(&mut single, events));
    }
    for (tgid, vcpus) in grouped {
        // Known VMs take in what was found of their process.
        match vms.iter_mut().find(|vm| vm.pid == Some(tgid)) {
            Some(vm) => vcpus.into_iter().for_each(|(index, tid)| vm.take_in(index, tid)),
            None => vms.push(FoundVm { name: format!("vm-{tgid}"), pid: Some(tgid), vcpus }),
        }
    }
    for vm in &mut vms {
        vm.vcpus.sort_unstable();
    }
    vms.sort_by_key(|vm| (vm.pid, vm.vcpus.first().map(|(_, tid)| *tid)));
    if vms.len() > MAX_VMS {
        warnings.push(format!("of {} VMs the first {MAX_VMS} are analysed", vms.len()));
        vms.truncate(MAX_VMS);
    }
    DiscoveredVms { vms, warnings }
}

fn threads(events: &[Event]) -> BTreeMap<u32, Thread> {
    let mut threads = BTreeMap::<u32, Thread>::new();
    for event in events {
        match event.fact {
            Fact::Named { tid, name } => threads.entry(tid.0).or_default().name = name,
            Fact::Member { tid, tgid } => threads.entry(tid.0).or_default().tgid = Some(tgid.0),
            Fact::KvmEntry { tid, vcpu } => {
                threads.entry(tid.0).or_default().entered = Some(vcpu).filter(|vcpu| *vcpu < 4096);
            }
            _ => {}
        }
    }
    threads
}

/// Puts threads of unknown processes together: every vCPU 0 begins a VM; the others join the VM
/// they exchange most wake-ups with, else the one with the nearest lower thread id that lacks
/// their number.
fn guess(single: &mut [(u32, u32)], events: &[Event]) -> Vec<FoundVm> {
    single.sort_unstable_by_key(|(index, tid)| (*index, *tid));
    let pairs = wakes(single, events);
    let mut vms: Vec<FoundVm> = Vec::new();
    for (index, tid) in single.iter().copied() {
        let open = |vm: &FoundVm| vm.vcpus.iter().all(|(taken, _)| *taken != index);
        let exchanged = |vm: &FoundVm| -> u64 {
            let of = |other: u32| pairs.get(&(tid.min(other), tid.max(other)));
            vm.vcpus.iter().filter_map(|(_, other)| of(*other)).sum()
        };
        let candidates = vms.iter_mut().filter(|vm| open(vm));
        let best = candidates.max_by_key(|vm| {
            let last = vm.vcpus.iter().map(|(_, other)| *other).filter(|other| *other < tid).max();
            (exchanged(vm), last)
        });
        match best.filter(|_| index > 0) {
            Some(vm) => vm.vcpus.push((index, tid)),
            None => {
                let vcpus = vec![(index, tid)];
                vms.push(FoundVm { name: format!("vm-{tid}"), pid: None, vcpus });
            }
        }
    }
    vms
}

/// How often two of these threads woke each other, lower thread id first.
fn wakes(single: &[(u32, u32)], events: &[Event]) -> BTreeMap<(u32, u32), u64> {
    let single: BTreeSet<u32> = single.iter().map(|(_, tid)| *tid).collect();
    let mut pairs = BTreeMap::new();
    for event in events {
        if let Fact::Waking { tid, waker, context: Context::Thread, .. } = event.fact
            && single.contains(&tid.0)
            && single.contains(&waker.0)
        {
            *pairs.entry((tid.0.min(waker.0), tid.0.max(waker.0))).or_default() += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::{CpuId, Nanos, Tid};

    fn event(fact: Fact) -> Event {
        Event { time: Nanos(1), cpu: CpuId(0), fact }
    }

    fn named(tid: u32, name: &str) -> Event {
        event(Fact::Named { tid: Tid(tid), name: Comm::new(name.as_bytes()) })
    }

    #[test]
    fn threads_are_known_by_the_names_that_vmms_give() {
        let of = |name: &str| vcpu_of_name(&Comm::new(name.as_bytes()));
        let names = ["CPU 0/KVM", "CPU 12/TCG", "vcpu3", "fc_vcpu 1", "crosvm_vcpu7", "kvm-vcpu-2"];
        assert_eq!(names.map(of), [Some(0), Some(12), Some(3), Some(1), Some(7), Some(2)]);
        assert_eq!(of("CPU 1234567/KVM"), None);
        assert_eq!(["vcpu", "vcpux", "CPU /KVM", "CPU 1", "qemu"].map(of), [None; 5]);
    }

    #[test]
    fn threads_of_one_process_are_one_vm() {
        let member = |tid, tgid| event(Fact::Member { tid: Tid(tid), tgid: Tid(tgid) });
        let entry = event(Fact::KvmEntry { tid: Tid(12), vcpu: 1 });
        let events = [
            named(11, "CPU 0/KVM"),
            member(11, 10),
            named(12, "qemu-system-x86"),
            member(12, 10),
            entry,
        ];
        let found = discover(&events, &[], &[]);
        let expected =
            FoundVm { name: "vm-10".to_owned(), pid: Some(10), vcpus: vec![(0, 11), (1, 12)] };
        assert_eq!((found.vms, found.warnings.len()), (vec![expected], 0));
    }

    #[test]
    fn without_processes_wakers_tell_siblings() {
        let mut events = Vec::new();
        for (tid, name) in [(158, 0), (159, 0), (160, 1), (161, 1)] {
            events.push(named(tid, &format!("CPU {name}/KVM")));
        }
        let (tid, waker, target) = (Tid(160), Tid(158), CpuId(0));
        let waking = Fact::Waking { tid, target, waker, context: Context::Thread };
        let vcpus = |events: &[Event]| -> Vec<Vec<(u32, u32)>> {
            discover(events, &[], &[]).vms.into_iter().map(|vm| vm.vcpus).collect()
        };
        assert_eq!(vcpus(&events), [[(0, 158), (1, 161)], [(0, 159), (1, 160)]]);
        events.push(event(waking));
        assert_eq!(vcpus(&events), [[(0, 158), (1, 160)], [(0, 159), (1, 161)]]);
    }

    #[test]
    fn what_the_user_names_is_not_looked_for() {
        let known = FoundVm { name: "db".to_owned(), pid: None, vcpus: vec![(0, 11)] };
        let found = discover(&[named(11, "CPU 0/KVM")], &[], std::slice::from_ref(&known));
        assert_eq!(found.vms, [known]);
    }

    #[test]
    fn a_vm_that_is_named_in_part_is_whole() {
        let member = |tid, index: u32| {
            let (tid, tgid) = (Tid(tid), Tid(100));
            [event(Fact::Member { tid, tgid }), event(Fact::KvmEntry { tid, vcpu: index })]
        };
        let events: Vec<Event> = [member(101, 0), member(102, 1), member(103, 2)].concat();
        let named = FoundVm { name: "db".into(), pid: None, vcpus: vec![(0, 103)] };
        let found = discover(&events, &[], &[named]).vms;
        let whole = vec![(0, 103), (1, 101), (2, 102)];
        assert_eq!(found, [FoundVm { name: "db".into(), pid: Some(100), vcpus: whole }]);
    }
}
