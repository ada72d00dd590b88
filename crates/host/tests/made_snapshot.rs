//! What a scan makes of a made host is what the host was made of, on random hosts: VMs of every
//! monitor, with and without debugfs, thread names, descriptors and cgroups of their own.

#![cfg(test)]

use instep_core::snapshot::{Snapshot, Vm};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, Tid};
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner, snapshot};
use instep_host::topology;
use instep_madehost::{HostSize, MadeHost, random, scratch_dir, skip};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const WINDOW: Nanos = Nanos::from_secs(60);
/// Counters of /proc/stat are in ticks of 10 ms for every CPU, rounded down.
const TICK: u64 = 10_000_000;

fn observe(before: &Path, after: &Path) -> Snapshot {
    let scan = |dir: &Path| Scanner::new(Root::at(dir), ScanOptions::once()).scan().unwrap();
    let topology = Arc::new(topology::read(&Root::at(after)).unwrap());
    snapshot(&topology, Some(&scan(before)), &scan(after), Some(WINDOW))
}

fn expected(made: &MadeHost) -> Snapshot {
    let topology = Topology::build(made.host.cpu_facts(), made.host.node_facts()).unwrap();
    made.snapshot(Arc::new(topology), WINDOW)
}

/// Two VMs alike, but for rounding of counters and nodes without memory.
fn assert_same(seen: &Vm, made: &Vm, seed: u64) {
    let mut seen = seen.clone();
    seen.memory.retain(|_, bytes| *bytes != Bytes(0));
    for (seen, made) in seen.vcpus.iter_mut().zip(&made.vcpus) {
        if seen.busy.0.abs_diff(made.busy.0) <= 1 {
            seen.busy = made.busy;
        }
        if seen.steal.0.abs_diff(made.steal.0) <= 1 {
            seen.steal = made.steal;
        }
    }
    let mut rest = made.clone();
    rest.vcpus.clone_from(&seen.vcpus);
    rest.emulators.clone_from(&seen.emulators);
    assert_eq!(seen, rest, "seed {seed}");
    assert_eq!(seen.vcpus, made.vcpus, "seed {seed}, {}", made.name);
    assert_eq!(seen.emulators, made.emulators, "seed {seed}, {}", made.name);
}

#[test]
fn a_scan_sees_the_host_that_was_made() {
    assert_scans_see(0..6);
}

#[test]
fn scan_sees_any_host_that_was_made() {
    if skip::may_take_long() {
        assert_scans_see(6..40);
    }
}

fn assert_scans_see(seeds: Range<u64>) {
    for seed in seeds {
        let mut made = random(seed, HostSize { vms: 10, ..HostSize::default() });
        // KVM names a VM's directory by the thread that made it, which need not be the first.
        made.vms.iter_mut().filter(|vm| vm.pid % 2 == 0).for_each(|vm| {
            vm.kvm_tid = Some(Tid(vm.pid + 2));
        });
        let dir = scratch_dir().unwrap();
        let [before, after] = ["before", "after"].map(|name| dir.path().join(name));
        made.write_pair(&before, &after, WINDOW).unwrap();
        let (seen, expected) = (observe(&before, &after), expected(&made));
        let ids = |snapshot: &Snapshot| {
            let opaque: Vec<_> = snapshot.opaque.iter().map(|vm| (vm.id, vm.vcpus)).collect();
            (snapshot.vms.iter().map(|vm| vm.id).collect::<Vec<_>>(), opaque)
        };
        assert_eq!(ids(&seen), ids(&expected), "seed {seed}: {:?}", seen.opaque);
        for (seen, expected) in seen.vms.iter().zip(&expected.vms) {
            assert_same(seen, expected, seed);
        }
        assert_eq!(seen.topology, expected.topology, "seed {seed}");
    }
}

#[test]
fn the_load_of_all_else_is_what_it_was_made_within_ticks() {
    for seed in 0..8 {
        let mut made = random(seed, HostSize { vms: 3, ..HostSize::default() });
        // Less than what the CPUs have; every other host has VMs that cannot be placed.
        made.vms.iter_mut().for_each(|vm| {
            (vm.thread_names, vm.started) = (seed % 2 == 0, Nanos::from_secs(1));
            vm.vcpus.iter_mut().for_each(|vcpu| vcpu.load.0 /= 20);
        });
        let dir = scratch_dir().unwrap();
        let [before, after] = ["before", "after"].map(|name| dir.path().join(name));
        made.write_pair(&before, &after, WINDOW).unwrap();
        let (seen, expected) = (observe(&before, &after), expected(&made));
        let cpus = expected.topology.cpus().len() as u64;
        let off = seen.other_busy.0.abs_diff(expected.other_busy.0);
        for (seen, expected) in seen.opaque.iter().zip(&expected.opaque) {
            let off = seen.busy.0.abs_diff(expected.busy.0);
            assert!(off <= 100, "seed {seed}, {}: off by {off} ns", seen.name);
        }
        assert!(off <= 4 * TICK * cpus, "seed {seed}: off by {off} ns on {cpus} CPUs");
    }
}
