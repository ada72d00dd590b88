//! Loads from one scan and from two, by hand.

use super::super::quota::Quota;
use super::super::*;
use instep_core::idset::CpuSet;
use instep_core::topology::{CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid};
use std::sync::Arc;

/// Two nodes of two CPUs.
fn host() -> Arc<Topology> {
    let cpus = (0..4).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
    let node = |id: u32| NodeFacts {
        id,
        cpus: (2 * id..2 * id + 2).map(CpuId).collect(),
        memory: Bytes(1 << 30),
        distances: if id == 0 { vec![10, 20] } else { vec![20, 10] },
    };
    Arc::new(Topology::build(cpus, vec![node(0), node(1)]).unwrap())
}

fn vcpu(index: u32, start_ticks: u64, run: u64, wait: u64) -> VcpuFacts {
    VcpuFacts {
        index,
        tid: Tid(100 + index),
        start_ticks,
        cpu: Some(CpuId(index)),
        allowed: None,
        run: Nanos(run),
        wait: Nanos(wait),
        ticks: Nanos(run / 10_000_000 * 10_000_000),
    }
}

fn scan(at: u64, host_busy: u64, vcpus: Vec<VcpuFacts>) -> Scan {
    let vm = VmFacts {
        pid: 7,
        start_ticks: 0,
        name: "vm".into(),
        uuid: None,
        vmm: Vmm::Qemu,
        manager: None,
        accel: Accel::Kvm,
        cgroup: None,
        owner: Owner::default(),
        identified_by: VcpuSource::ThreadNames,
        read_at: Nanos(at),
        vcpus,
        emulators: Vec::new(),
        memory: None,
        memory_bound: None,
        memory_preferred: None,
        guest_threads_per_core: 1,
        guest_nodes: Vec::new(),
        weight: 100,
        groups: Vec::new(),
        quota: Quota::default(),
        devices: Vec::new(),
        cpuset: None,
        mems: None,
        definition: Definition::default(),
    };
    Scan {
        at: Nanos(at),
        boot: (at != 0).then_some(Nanos(at)),
        ticks_per_second: 100,
        vms: vec![vm],
        host_busy: Nanos(host_busy),
        ..Scan::default()
    }
}

/// The VMs of `scan` as they are when their vCPUs cannot be told.
fn opaque(scan: &Scan) -> Vec<OpaqueFacts> {
    let threads = |vm: &VmFacts| vm.vcpus.iter().map(VcpuFacts::time).collect();
    let one = |vm: &VmFacts| OpaqueFacts {
        pid: vm.pid,
        start_ticks: vm.start_ticks,
        name: vm.name.clone(),
        vcpus: 2,
        why: "its threads have no names".into(),
        owner: Owner::default(),
        read_at: vm.read_at,
        threads: threads(vm),
    };
    scan.vms.iter().map(one).collect()
}

const S: u64 = 1_000_000_000;

fn loads(snapshot: &instep_core::snapshot::Snapshot) -> Vec<(u64, u64)> {
    snapshot.vms[0].vcpus.iter().map(|vcpu| (vcpu.busy.0, vcpu.steal.0)).collect()
}

#[test]
fn two_scans_give_differences_over_the_time_between() {
    let before = scan(100 * S, 50 * S, vec![vcpu(0, 1, 10 * S, S), vcpu(1, 1, 5 * S, 0)]);
    let after = scan(102 * S, 54 * S, vec![vcpu(0, 1, 11 * S, 2 * S), vcpu(1, 1, 5 * S, 0)]);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!(taken.window, Nanos(2 * S));
    assert_eq!(loads(&taken), [(S, S), (0, 0)]);
    assert_eq!(taken.other_busy, Nanos(3 * S));
    assert_eq!(snapshot(&host(), Some(&before), &after, Some(Nanos(S))).window, Nanos(S));
}

#[test]
fn other_load_counts_by_what_it_wanted() {
    // Two CPUs: two threads of others and two vCPUs that compute share them in half.
    let mut before = scan(100 * S, 50 * S, vec![vcpu(0, 1, 10 * S, S), vcpu(1, 1, 5 * S, 0)]);
    let mut after = scan(102 * S, 54 * S, vec![vcpu(0, 1, 11 * S, 2 * S), vcpu(1, 1, 6 * S, S)]);
    let other =
        |before: &Scan, after: &Scan| snapshot(&host(), Some(before), after, None).other_busy;
    assert_eq!(other(&before, &after), Nanos(2 * S), "what waited is not known");
    (before.waited, after.waited) = (Some(Waited::All(Nanos(S))), Some(Waited::All(Nanos(5 * S))));
    assert_eq!(other(&before, &after), Nanos(4 * S));
    // Without competition nobody waits, and they get the same.
    let (before_alone, mut alone) = (before.clone(), after.clone());
    alone.vms[0].vcpus = before.vms[0].vcpus.clone();
    alone.waited = before.waited;
    assert_eq!(other(&before_alone, &alone), Nanos(4 * S));
    // Threads that run rarely wait for longer than they run.
    after.waited = Some(Waited::All(Nanos(500 * S)));
    assert_eq!(other(&before, &after), Nanos(4 * S));
    (before.waited, after.waited) =
        (Some(Waited::Others(Nanos(S))), Some(Waited::Others(Nanos(2 * S))));
    assert_eq!(other(&before, &after), Nanos(3 * S));
}

#[test]
fn a_vm_that_was_read_late_counts_over_its_own_time() {
    let mut before = scan(100 * S, 0, vec![vcpu(0, 1, 10 * S, S)]);
    before.vms[0].read_at = Nanos(101 * S);
    let after = scan(102 * S, 0, vec![vcpu(0, 1, 10 * S + S / 2, S + S / 4)]);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!(taken.window, Nanos(2 * S));
    assert_eq!(loads(&taken), [(S, S / 2)]);
    // A time that is given is taken at its word.
    let taken = snapshot(&host(), Some(&before), &after, Some(Nanos(2 * S)));
    assert_eq!(loads(&taken), [(S / 2, S / 4)]);
}

#[test]
fn what_first_scan_lacks_counts_from_its_start_up_to_the_window() {
    let before = scan(100 * S, 0, vec![vcpu(0, 1, 10 * S, 0)]);
    // vCPU 0 is another thread under the same id; vCPU 1 is new.
    let after = scan(102 * S, 0, vec![vcpu(0, 10_150, S, S / 2), vcpu(1, 10_001, 3 * S, 3 * S)]);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!(loads(&taken), [(S, S / 2), (2 * S, 2 * S)]);
}

#[test]
fn thread_the_first_scan_may_have_missed_counts_at_its_mean() {
    let before = scan(100 * S, 0, Vec::new());
    // Both began 2 s after boot, 100 s ago: half busy, waiting a tenth of the time.
    let after = scan(102 * S, 0, vec![vcpu(0, 200, 50 * S, 10 * S), vcpu(1, 200, 0, 0)]);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!(loads(&taken), [(S, S / 5), (0, 0)]);
}

#[test]
fn a_vm_that_was_opaque_counts_from_its_threads_of_then() {
    let mut before = scan(100 * S, 0, vec![vcpu(0, 200, 50 * S, 10 * S)]);
    before.opaque = opaque(&before);
    before.vms.clear();
    let after = scan(102 * S, 0, vec![vcpu(0, 200, 50 * S + S / 2, 10 * S)]);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!(loads(&taken), [(S / 2, 0)]);
}

#[test]
fn the_load_of_an_opaque_vm_is_its_own() {
    let mut before = scan(100 * S, 50 * S, vec![vcpu(0, 1, 9 * S, S), vcpu(1, 1, 5 * S, 0)]);
    let mut after = scan(102 * S, 54 * S, vec![vcpu(0, 1, 10 * S, S), vcpu(1, 1, 7 * S, 0)]);
    for scan in [&mut before, &mut after] {
        scan.opaque = opaque(scan);
        scan.vms.clear();
    }
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!((taken.opaque[0].busy, taken.other_busy), (Nanos(3 * S), Nanos(S)));
    let since_start = snapshot(&host(), None, &after, None);
    // One of its threads has waited for a second since its start.
    let (own, other) = (since_start.opaque[0].busy.0, since_start.other_busy.0);
    assert!(own.abs_diff((17 + 1) * S / 102) < S / 1000, "{own}");
    assert!(other.abs_diff((54 - 17) * S / 102) < S / 1000, "{other}");
}

#[test]
fn one_scan_gives_means_since_each_threads_start() {
    // Started 20 s and 90 s after boot, seen at 100 s.
    let only = scan(100 * S, 100 * S, vec![vcpu(0, 2000, 40 * S, 8 * S), vcpu(1, 9000, S, 0)]);
    let taken = snapshot(&host(), None, &only, Some(Nanos(5 * S)));
    assert_eq!(taken.window, Nanos(S));
    assert_eq!(loads(&taken), [(S / 2, S / 10), (S / 10, 0)]);
    assert_eq!(taken.other_busy, Nanos(S - S / 2 - S / 10));
}

#[test]
fn without_an_uptime_the_busiest_vcpu_is_the_window() {
    let only = scan(0, 0, vec![vcpu(0, 2000, 40 * S, 0), vcpu(1, 9000, 10 * S, 0)]);
    let taken = snapshot(&host(), None, &only, None);
    assert_eq!(taken.window, Nanos(40 * S));
    assert_eq!(loads(&taken), [(40 * S, 0), (10 * S, 0)]);
    let before = scan(0, 0, vec![vcpu(0, 2000, 39 * S, 0), vcpu(1, 9000, 8 * S, 0)]);
    let taken = snapshot(&host(), Some(&before), &only, None);
    assert_eq!(taken.window, Nanos(2 * S));
    assert_eq!(loads(&taken), [(S, 0), (2 * S, 0)]);
    let idle = scan(0, 0, vec![vcpu(0, 0, 0, 0)]);
    assert_eq!(snapshot(&host(), Some(&idle), &idle, None).window, Nanos(S));
}

#[test]
fn stat_counts_where_schedstat_prints_zeros() {
    let ticks = |seconds: u64| VcpuFacts { ticks: Nanos(seconds * S), ..vcpu(0, 1, 0, 0) };
    let (before, after) = (scan(10 * S, 0, vec![ticks(3)]), scan(12 * S, 0, vec![ticks(4)]));
    assert_eq!(loads(&snapshot(&host(), Some(&before), &after, None)), [(S, 0)]);
    // The first copy lacks schedstat: both are read from stat.
    let mut with = vcpu(0, 1, 4 * S, 0);
    with.ticks = Nanos(4 * S);
    let after = scan(12 * S, 0, vec![with]);
    assert_eq!(loads(&snapshot(&host(), Some(&before), &after, None)), [(S, 0)]);
}

#[test]
fn sets_are_cut_to_what_is_online() {
    let mut facts = scan(10 * S, 0, vec![vcpu(0, 1, 0, 0), vcpu(9, 1, 0, 0)]);
    facts.vms[0].vcpus[0].allowed = Some(CpuSet::parse_list("2-9").unwrap());
    facts.vms[0].vcpus[1].allowed = Some(CpuSet::parse_list("64").unwrap());
    let taken = snapshot(&host(), None, &facts, None);
    let vm = &taken.vms[0];
    assert_eq!(vm.vcpus[0].allowed.to_string(), "2-3");
    assert_eq!(vm.vcpus[0].initial, vm.vcpus[0].allowed);
    assert_eq!(vm.vcpus[1].allowed.to_string(), "0-3");
    assert_eq!(vm.vcpus[1].cpu, None);
    assert_eq!(vm.cpuset.to_string(), "0-3");
    assert!(vm.placed.is_empty());
}

#[test]
fn memory_is_bound_by_a_narrow_cpuset_or_by_policy() {
    let mut facts = scan(10 * S, 0, vec![vcpu(0, 1, 0, 0)]);
    let nodes = |list| instep_core::idset::NodeSet::parse_list(list).ok();
    let bound = |facts: &Scan| {
        let taken = snapshot(&host(), None, facts, None);
        taken.vms[0].memory_bound.as_ref().map(ToString::to_string)
    };
    facts.vms[0].mems = nodes("0-1");
    assert_eq!(bound(&facts), None);
    facts.vms[0].mems = nodes("1");
    assert_eq!(bound(&facts).as_deref(), Some("1"));
    facts.vms[0].mems = None;
    facts.vms[0].memory_bound = nodes("0");
    assert_eq!(bound(&facts).as_deref(), Some("0"));
    facts.vms[0].memory = Some(MemoryFacts {
        by_node: [(NodeId(0), Bytes(5))].into(),
        source: MemorySource::NumaMaps,
        taken_at: Nanos(0),
        bound: nodes("1"),
        preferred: None,
        truncated: false,
    });
    assert_eq!(bound(&facts).as_deref(), Some("1"));
}

/// As `numa=fake` writes it: nodes 0 and 2 both name CPUs 0-1.
#[test]
fn memory_on_a_node_that_is_another_again_counts_there() {
    let cpus = (0..4).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
    let node = |id: u32, cpus: &str| NodeFacts {
        id,
        cpus: CpuSet::parse_list(cpus).unwrap(),
        memory: Bytes(1 << 30),
        distances: Vec::new(),
    };
    let nodes = vec![node(0, "0-1"), node(1, "2-3"), node(2, "0-1")];
    let host = Arc::new(Topology::build(cpus, nodes).unwrap());
    let nodes = |list| instep_core::idset::NodeSet::parse_list(list).ok();
    let mut facts = scan(10 * S, 0, vec![vcpu(0, 1, 0, 0)]);
    facts.vms[0].memory = Some(MemoryFacts {
        by_node: [(NodeId(0), Bytes(5)), (NodeId(1), Bytes(1)), (NodeId(2), Bytes(7))].into(),
        source: MemorySource::NumaMaps,
        taken_at: Nanos(0),
        bound: nodes("2"),
        preferred: nodes("1-2"),
        truncated: false,
    });
    facts.vms[0].guest_nodes = vec![instep_core::snapshot::GuestNode {
        resident: [(NodeId(2), Bytes(7))].into(),
        bound: nodes("2-3"),
        ..Default::default()
    }];
    let vm = |facts: &Scan| snapshot(&host, None, facts, None).vms.remove(0);
    let seen = vm(&facts);
    assert_eq!(seen.guest_nodes[0].resident, [(NodeId(0), Bytes(7))].into());
    assert_eq!(seen.guest_nodes[0].bound, nodes("0"));
    assert_eq!(seen.memory, [(NodeId(0), Bytes(12)), (NodeId(1), Bytes(1))].into());
    assert_eq!((seen.memory_bound, seen.preferred), (nodes("0"), nodes("0-1")));
    facts.vms[0].memory = None;
    facts.vms[0].mems = nodes("1-2");
    assert_eq!(vm(&facts).memory_bound, None);
    facts.vms[0].mems = nodes("2");
    facts.vms[0].memory_bound = nodes("1-2");
    assert_eq!(vm(&facts).memory_bound, nodes("0"));
}

#[test]
fn only_an_opaque_vm_counts_by_what_it_wanted() {
    let mut before = scan(100 * S, 50 * S, vec![vcpu(0, 1, 9 * S, S)]);
    let mut after = scan(102 * S, 52 * S, vec![vcpu(0, 1, 10 * S, 3 * S / 2)]);
    (before.waited, after.waited) = (Some(Waited::All(Nanos(S))), Some(Waited::All(Nanos(2 * S))));
    for scan in [&mut before, &mut after] {
        scan.opaque = opaque(scan);
        scan.vms.clear();
    }
    let wanted = |after: &Scan| {
        let taken = snapshot(&host(), Some(&before), after, None);
        (taken.opaque[0].busy, taken.other_busy)
    };
    // It got a second of two and waited for half of one; others did the same.
    assert_eq!(wanted(&after), (Nanos(3 * S / 2), Nanos(3 * S / 2)));
    // A crowd of threads that wait makes no more of it than twice what it got.
    after.opaque[0].threads[0].wait = Nanos(9 * S);
    assert_eq!(wanted(&after).0, Nanos(2 * S));
}

#[test]
fn a_vm_without_vcpus_is_opaque() {
    let facts = scan(10 * S, 0, Vec::new());
    let taken = snapshot(&host(), None, &facts, None);
    assert!(taken.vms.is_empty());
    assert_eq!(taken.opaque[0].name, "vm");
}

/// Two vCPUs run for a fifth of two seconds each; a quota stops them for the rest.
#[test]
fn time_in_which_a_quota_stops_a_vm_is_no_steal() {
    let fifth = S / 5;
    let vcpus = |run, wait| vec![vcpu(0, 1, run, wait), vcpu(1, 1, run, wait)];
    let mut before = scan(100 * S, 0, vcpus(0, 0));
    let mut after = scan(102 * S, 0, vcpus(2 * fifth, 8 * fifth));
    before.vms[0].quota.throttled = Nanos(50 * S);
    after.vms[0].quota =
        Quota { quota: Some(Milli(400)), throttled: Nanos(53 * S), ..Quota::default() };
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!((taken.vms[0].throttled, taken.vms[0].quota), (Nanos(3 * S), Some(Milli(400))));
    assert_eq!(loads(&taken), [(2 * fifth, S / 10), (2 * fifth, S / 10)]);
    assert_eq!(taken.vms[0].demand(taken.window), Milli(400), "no more than the quota");
    let taken = snapshot(&host(), Some(&after), &after, None);
    assert_eq!(taken.vms[0].throttled, Nanos(0));
    // On one CPU the kernel counts the time of both once.
    after.vms[0].vcpus.iter_mut().for_each(|vcpu| vcpu.cpu = Some(CpuId(1)));
    after.vms[0].quota.throttled = Nanos(51 * S + S / 2);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!((taken.vms[0].throttled, loads(&taken)[0].1), (Nanos(3 * S), S / 10));
    // Cgroups of single vCPUs count each by itself.
    after.vms[0].quota.of_vcpus = Nanos(S);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!((taken.vms[0].throttled, loads(&taken)[0].1), (Nanos(2 * S), 3 * fifth));
    after.vms[0].quota.of_vcpus = Nanos(0);
    // A quota above may stop other VMs for longer.
    after.vms[0].quota.throttled = Nanos(99 * S);
    let taken = snapshot(&host(), Some(&before), &after, None);
    assert_eq!((taken.vms[0].throttled, loads(&taken)[0].1), (Nanos(16 * fifth), 0));
}
