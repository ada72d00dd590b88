//! Cases that an operator judges at a glance, decided as an expert would.

use crate::check::{apply, settings};
use crate::made::{self, GIB, cpus, vm};
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::{Emulator, Snapshot};
use instep_core::topology::CoreKind;
use instep_core::units::{Bytes, Milli, Nanos, NodeId, Tid};
use std::collections::BTreeMap;

fn instep(host: &Snapshot) -> Decision {
    decide(host, &settings(PolicyName::Instep))
}

fn homes(decision: &Decision) -> Vec<String> {
    decision.vms.iter().map(|verdict| verdict.home.to_string()).collect()
}

/// How many VMs each home has.
fn by_home(decision: &Decision) -> BTreeMap<String, usize> {
    homes(decision).into_iter().fold(BTreeMap::new(), |mut all, home| {
        *all.entry(home).or_default() += 1;
        all
    })
}

/// What the vCPUs of each VM may use once the decision is carried out.
fn given(host: &Snapshot, decision: &Decision) -> Vec<CpuSet> {
    apply(host, decision).vms.iter().map(|vm| vm.allowed()).collect()
}

fn moved_memory(decision: &Decision) -> Vec<(u32, String)> {
    let moved = |action: &Action| match action {
        Action::MoveMemory { vm, to, .. } => Some((vm.0, to.to_string())),
        _ => None,
    };
    decision.actions.iter().filter_map(moved).collect()
}

/// The host of the demo: 2 nodes of 2 cores of 2 threads, four VMs of 2 vCPUs.
fn four_vms(nodes: [usize; 4]) -> Snapshot {
    let mut host = made::host(made::topology(2, 2, 2, 2 * GIB));
    for (id, (node, milli)) in (1..).zip(nodes.into_iter().zip([300, 550, 420, 380])) {
        let mut mib = [0, 0];
        mib[node] = 150;
        host.vms.push(vm(&host, id, 2, milli, &mib));
    }
    host
}

#[test]
fn four_equal_vms_go_two_and_two_wherever_their_memory_lies() {
    for nodes in [[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]] {
        let host = four_vms(nodes);
        let decision = instep(&host);
        assert_eq!(by_home(&decision), [("0".into(), 2), ("1".into(), 2)].into(), "{nodes:?}");
    }
}

#[test]
fn four_equal_vms_come_to_two_and_two_from_three_and_one() {
    let mut host = four_vms([0, 0, 0, 1]);
    for (vm, node) in host.vms.iter_mut().zip([0, 0, 0, 1]) {
        vm.placed = NodeSet::one(NodeId(node));
        let cpus = cpus(["0-1,4-5", "2-3,6-7"][node as usize]);
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = cpus.clone());
    }
    assert_eq!(by_home(&instep(&host)), [("0".into(), 2), ("1".into(), 2)].into());
}

#[test]
fn vm_with_scattered_memory_gets_one_node_and_its_memory_follows() {
    for (nodes, mib) in [(2, vec![2000, 2000]), (4, vec![1000; 4])] {
        let mut host = made::host(made::topology(nodes, 8, 1, 64 * GIB));
        host.vms = vec![vm(&host, 1, 4, 600, &mib)];
        let decision = instep(&host);
        assert_eq!(decision.vms[0].home.len(), 1, "{}", decision.vms[0].why);
        assert_eq!(moved_memory(&decision).len(), 1);
    }
}

#[test]
fn three_vms_with_nearly_even_memory_have_one_home_each() {
    let mut host = made::host(made::topology(2, 8, 1, 64 * GIB));
    let memory = [[520, 480], [550, 450], [600, 400]];
    host.vms = (1..).zip(memory).map(|(id, mib)| vm(&host, id, 4, 600, &mib)).collect();
    let decision = instep(&host);
    assert!(decision.vms.iter().all(|verdict| verdict.home.len() == 1), "{:?}", homes(&decision));
}

#[test]
fn sixty_vms_on_two_large_nodes_all_have_homes() {
    for (seed, milli) in (0..).zip([100, 300, 500, 700, 900]) {
        let mut random = made::Random(seed);
        let mut host = made::host(made::topology(2, 64, 2, 512 * GIB));
        for id in 1..=60 {
            let mib = [random.within(0, 2000), random.within(0, 2000)];
            let level = random.within(milli / 2, milli);
            host.vms.push(vm(&host, id, 4, level, &mib));
        }
        let decision = instep(&host);
        let count = by_home(&decision);
        assert_eq!(count.len(), 2, "{count:?}");
        assert!(count.values().all(|vms| (24..=36).contains(vms)), "{count:?}");
    }
}

#[test]
fn ten_vms_on_eight_caches_are_each_within_one_or_two() {
    for milli in [150, 300, 500] {
        let mut host = made::host(made::topology_of_caches(1, 8, 8, 1, 512 * GIB));
        host.vms = (1..=10).map(|id| vm(&host, id, 8, milli, &[2000])).collect();
        let decision = instep(&host);
        for (cpus, verdict) in given(&host, &decision).iter().zip(&decision.vms) {
            let caches = host.topology.llcs().iter().filter(|llc| llc.intersects(cpus)).count();
            assert!(caches <= 2, "{milli}: {caches} caches, {}", verdict.why);
        }
    }
}

#[test]
fn busy_vm_gets_the_performance_cores_and_idle_ones_do_not() {
    // CPUs 0 and 1 are efficiency cores, 2-3 and 4-5 performance cores of two threads.
    let mut host = made::host(made::hybrid());
    host.vms = vec![
        vm(&host, 1, 1, 20, &[500]),
        vm(&host, 2, 1, 20, &[500]),
        vm(&host, 3, 2, 900, &[500]),
    ];
    let fast = |host: &Snapshot, vm: usize| {
        let kind = |cpu| host.topology.cpu(cpu).and_then(|cpu| cpu.kind);
        given(host, &instep(host))[vm].iter().all(|cpu| kind(cpu) == Some(CoreKind::Performance))
    };
    assert!(fast(&host, 2));
    assert!(!fast(&host, 0) && !fast(&host, 1));
    // Also when the busy one has the slow cores already.
    for (vm, sets) in host.vms.iter_mut().zip([vec!["2-3"], vec!["4-5"], vec!["0", "1"]]) {
        vm.placed = NodeSet::one(NodeId(0));
        for (vcpu, set) in vm.vcpus.iter_mut().zip(sets) {
            vcpu.allowed = cpus(set);
        }
    }
    host.vms[0].vcpus[0].busy = Nanos(made::WINDOW.0 / 1000 * 250);
    host.vms[1].vcpus[0].busy = Nanos(made::WINDOW.0 / 1000 * 250);
    assert!(fast(&host, 2), "{:?}", given(&host, &instep(&host)));
}

#[test]
fn io_threads_share_the_home_of_their_vm() {
    let mut host = made::host(made::topology(2, 8, 1, 64 * GIB));
    let all = host.topology.all_cpus();
    for id in 1..=5u32 {
        let mut vm = vm(&host, id, 2, 600, &[1000, 1000]);
        let thread = |k| Emulator {
            tid: Tid(id * 1000 + 500 + k),
            start_ticks: 0,
            allowed: all.clone(),
            initial: all.clone(),
        };
        vm.emulators.extend((0..6).map(thread));
        host.vms.push(vm);
    }
    let decision = instep(&host);
    let after = apply(&host, &decision);
    for (vm, verdict) in after.vms.iter().zip(&decision.vms) {
        let home = host.topology.cpus_of(&verdict.home);
        assert!(vm.emulators.iter().all(|thread| thread.allowed == home), "{}", verdict.why);
    }
}

/// How many vCPUs are bound to one core when so many are there.
fn bound(count: u32, milli: u64) -> usize {
    let mut host = made::host(made::topology(2, 64, 1, 512 * GIB));
    host.vms = (1..=count).map(|id| vm(&host, id, 1, milli, &[100, 100])).collect();
    given(&host, &instep(&host)).iter().filter(|cpus| cpus.len() == 1).count()
}

#[test]
fn one_vcpu_more_does_not_release_all_others() {
    assert_eq!((bound(128, 10), bound(129, 10)), (0, 0), "what rests needs no core of its own");
    assert_eq!(bound(128, 500), 128);
    let beyond = bound(129, 500);
    assert!((120..=128).contains(&beyond), "{beyond}");
}

/// A quota of 20 % of a CPU: it uses that, and is throttled for the rest of the time.
#[test]
fn throttled_vm_demands_no_more_than_its_quota() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 100, &[15_000, 0]), vm(&host, 2, 2, 900, &[15_000, 0])];
    for (vm, node) in host.vms.iter_mut().zip([0, 1]) {
        vm.placed = NodeSet::one(NodeId(node));
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = cpus(["0-1", "2-3"][node as usize]));
    }
    host.vms[0].quota = Some(Milli(200));
    host.vms[0].throttled = Nanos(made::WINDOW.0 / 1000 * 1600);
    // As a reader that takes throttled time for steal would have it.
    let mut wrong = host.clone();
    wrong.vms[0].vcpus.iter_mut().for_each(|vcpu| vcpu.steal = Nanos(made::WINDOW.0 / 1000 * 900));
    for host in [&host, &wrong] {
        assert_eq!(host.vms[0].demand(host.window), Milli(200));
        assert_eq!(homes(&instep(host)), ["0", "1"]);
    }
}

#[test]
fn memory_on_a_node_without_cpus_is_left_to_the_kernel() {
    let mut host = made::host(made::with_memory_node());
    host.vms = vec![vm(&host, 1, 2, 900, &[0, 1000, 7000])];
    let decision = instep(&host);
    assert_eq!(homes(&decision), ["1"]);
    assert_eq!(moved_memory(&decision), []);
    let asked = PolicySettings { memory_only_nodes: true, ..settings(PolicyName::Instep) };
    let decision = decide(&host, &asked);
    assert_eq!(
        (homes(&decision), moved_memory(&decision)),
        (vec!["1".into()], vec![(1, "1".into())])
    );
    // Once it has come nothing changes.
    let mut after = apply(&host, &decision);
    after.vms[0].memory = [(NodeId(1), Bytes(7 * GIB))].into();
    assert_eq!(decide(&after, &asked).actions, []);
}

/// VM 1 is idle and has 200 GiB elsewhere, VM 2 is busy and has 2 GiB elsewhere.
#[test]
fn memory_that_is_used_most_for_each_byte_comes_home_first() {
    let mut host = made::host(made::topology(2, 16, 1, 512 * GIB));
    host.vms = vec![vm(&host, 1, 4, 10, &[0, 200 * 1024]), vm(&host, 2, 4, 900, &[0, 2048])];
    for vm in &mut host.vms {
        vm.cpuset = cpus("0-15");
        made::confine(vm, &cpus("0-15"));
    }
    assert_eq!(moved_memory(&instep(&host)), [(2, "0".into()), (1, "0".into())]);
}

/// A VM whose memory may follow goes to its device; one whose memory may not stays with that.
#[test]
fn device_draws_a_vm_to_its_node() {
    let mut host = made::host(made::topology(2, 8, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 600, &[1000, 0])];
    assert_eq!(homes(&instep(&host)), ["0"]);
    host.vms[0].devices = vec![NodeId(1)];
    let decision = instep(&host);
    assert_eq!(homes(&decision), ["1"]);
    assert_eq!(moved_memory(&decision), [(1, "1".into())]);
    let why = decision.vms[0].why.to_string();
    assert!(why.starts_with("node 1: saves 0.07 CPUs of remote devices"), "{why}");
    host.vms[0].memory_bound = Some(NodeSet::one(NodeId(0)));
    assert_eq!(homes(&instep(&host)), ["0"]);
}

/// Two VMs of equal demand on a crowded node: the one of less weight gives way.
#[test]
fn vm_of_greater_weight_keeps_the_better_place() {
    for heavy in [0, 1] {
        let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
        host.vms = (1..=2).map(|id| vm(&host, id, 4, 900, &[8000, 0])).collect();
        host.vms.iter_mut().for_each(|vm| vm.memory_bound = Some(NodeSet::one(NodeId(0))));
        host.vms[heavy].weight = 1000;
        assert_eq!(instep(&host).vms[heavy].home, NodeSet::one(NodeId(0)));
    }
}

#[test]
fn no_vm_is_placed_on_isolated_cpus() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.isolated = cpus("0-2");
    host.vms = vec![vm(&host, 1, 4, 900, &[4000, 0])];
    let decision = instep(&host);
    assert_eq!(homes(&decision), ["1"]);
    assert!(!given(&host, &decision)[0].intersects(&host.isolated));
}

#[test]
fn changed_load_is_followed_within_two_cycles() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = (1..=4).map(|id| vm(&host, id, 2, 100, &[4000, 0])).collect();
    host.vms[3].memory = [(NodeId(1), Bytes(4 * GIB))].into();
    let mut now = apply(&host, &instep(&host));
    // Whatever they were, all on one node are busy now, and the others rest.
    let first = now.vms[0].placed.clone();
    for vm in &mut now.vms {
        let milli = if vm.placed == first { 1000 } else { 20 };
        vm.noise = Some(Milli(50));
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.busy = Nanos(made::WINDOW.0 / 1000 * milli));
    }
    let busy: Vec<usize> = (0..4).filter(|at| now.vms[*at].placed == first).collect();
    let demand: u64 = busy.len() as u64 * 2;
    for _ in 0..2 {
        now = apply(&now, &instep(&now));
    }
    let on =
        |node: u32| busy.iter().filter(|at| now.vms[**at].placed.contains(NodeId(node))).count();
    assert!(demand <= 4 || (on(0) <= 2 && on(1) <= 2), "{} and {}", on(0), on(1));
}

/// The example of docs/policies.md.
#[test]
fn worked_example_of_three_vms() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![
        vm(&host, 1, 4, 600, &[4096, 0]),
        vm(&host, 2, 2, 500, &[2048, 0]),
        vm(&host, 3, 2, 500, &[0, 1024]),
    ];
    let decision = instep(&host);
    assert_eq!(homes(&decision), ["0", "1", "1"]);
    let why: Vec<String> = decision.vms.iter().map(|verdict| verdict.why.to_string()).collect();
    assert_eq!(
        why,
        [
            "node 0: saves 0.14 CPUs of remote access, 0.12 of waiting, 0.21 of siblings in different \
             caches against nodes 0-1; a core for each vCPU",
            "node 1: saves 0.06 CPUs of remote access, 0.07 of waiting, 0.09 of siblings in different caches, costs 0.01 CPUs of moving memory against nodes 0-1; a core for \
             each vCPU",
            "node 1: saves 0.06 CPUs of remote access, 0.07 of waiting, 0.09 of siblings in different caches against nodes 0-1; a core for each vCPU",
        ]
    );
    assert_eq!(moved_memory(&decision), [(2, "1".into())]);
}
