//! `instep` by example.

use crate::check::{apply, settings};
use crate::made::{self, GIB, cpus, vm};
use crate::score::measure;
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::idle::idle_homecoming;
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::{GuestNode, OpaqueVm, Snapshot, Vcpu};
use instep_core::units::{Bytes, CpuId, Nanos, NodeId, VmId};

fn instep(host: &Snapshot) -> Decision {
    decide(host, &settings(PolicyName::Instep))
}

fn sets(decision: &Decision, id: u32) -> Vec<String> {
    let of = |action: &Action| match action {
        Action::SetVcpuAffinity { vm, cpus, .. } if vm.0 == id => Some(cpus.to_string()),
        _ => None,
    };
    decision.actions.iter().filter_map(of).collect()
}

fn emulators(decision: &Decision, id: u32) -> Vec<String> {
    let of = |action: &Action| match action {
        Action::SetEmulatorAffinity { vm, cpus, .. } if vm.0 == id => Some(cpus.to_string()),
        _ => None,
    };
    decision.actions.iter().filter_map(of).collect()
}

fn why(decision: &Decision, index: usize) -> String {
    decision.vms[index].why.to_string()
}

fn home(decision: &Decision, index: usize) -> String {
    decision.vms[index].home.to_string()
}

fn nodes(list: &[u32]) -> NodeSet {
    list.iter().map(|id| NodeId(*id)).collect()
}

#[test]
fn siblings_go_apart_on_a_machine_of_two_cpus() {
    let mut host = made::host(made::topology(1, 2, 1, 4 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[512])];
    // Where they last ran does not matter.
    host.vms[0].vcpus[0].cpu = Some(CpuId(1));
    let decision = instep(&host);
    assert_eq!(sets(&decision, 1), ["0", "1"]);
    assert!(emulators(&decision, 1).is_empty(), "no room for them elsewhere");
    assert!(decision.vms[0].selected);
}

#[test]
fn nothing_is_bound_one_to_one_under_overcommit_and_it_says_why() {
    let mut host = made::host(made::topology(1, 2, 1, 4 * GIB));
    host.vms = (1..=3).map(|id| vm(&host, id, 2, 900, &[512])).collect();
    let decision = instep(&host);
    assert!(decision.actions.is_empty());
    for index in 0..3 {
        assert_eq!(
            why(&decision, index),
            "6 vCPUs share 2 cores: binding one to one would hurt under overcommit"
        );
    }
}

#[test]
fn binding_ends_when_more_vms_come() {
    let mut host = made::host(made::topology(1, 2, 1, 4 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[512])];
    let mut after = apply(&host, &instep(&host));
    assert_eq!(after.vms[0].vcpus[1].allowed, cpus("1"));
    after.vms.push(vm(&after, 2, 2, 900, &[512]));
    assert_eq!(sets(&instep(&after), 1), ["0-1", "0-1"]);
}

#[test]
fn opaque_vms_and_other_load_count_as_overcommit() {
    let mut host = made::host(made::topology(1, 4, 1, 4 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[512])];
    assert_eq!(sets(&instep(&host), 1), ["0", "1"]);
    host.other_busy = Nanos(made::WINDOW.0 * 3);
    assert!(instep(&host).actions.is_empty());
    host.other_busy = Nanos(0);
    let why = String::from("no thread names");
    let busy = Nanos(made::WINDOW.0 * 3);
    host.opaque.push(OpaqueVm { id: VmId(9), name: "x".into(), vcpus: 3, busy, why });
    assert!(instep(&host).actions.is_empty());
    // What rests needs no core, however many vCPUs it has.
    host.opaque[0].busy = Nanos(0);
    assert_eq!(sets(&instep(&host), 1), ["0", "1"]);
}

/// 2 + 2 vCPUs on 4 cores: each has one, however busy the VM is that cannot be placed.
#[test]
fn opaque_vm_counts_by_its_vcpus_when_cores_are_counted() {
    let mut host = made::host(made::topology(1, 4, 1, 4 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[512])];
    let (why, busy) = (String::from("no thread names"), Nanos(made::WINDOW.0 * 2));
    host.opaque.push(OpaqueVm { id: VmId(9), name: "x".into(), vcpus: 2, busy, why });
    assert_eq!(sets(&instep(&host), 1), ["0", "1"]);
    // Its load still counts as load.
    assert_eq!(host.fixed_busy(), busy);
    host.vms[0].placed = NodeSet::one(NodeId(0));
    host.vms[0].memory = [(NodeId(1), Bytes(GIB))].into();
    assert_eq!(idle_homecoming(&host, &NodeSet::new(), 1), None);
    host.opaque[0].busy = Nanos(0);
    host.vms[0].vcpus.iter_mut().for_each(|vcpu| vcpu.busy = Nanos(0));
    assert!(idle_homecoming(&host, &NodeSet::new(), 1).is_some());
}

/// Node 0 is CPUs 0-3 and 8-11, node 1 the others; core k is CPUs k and k + 8.
#[test]
fn vm_goes_to_its_memory_and_each_vcpu_gets_a_core() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[100, 1948])];
    let decision = instep(&host);
    assert_eq!(home(&decision, 0), "1");
    assert_eq!(sets(&decision, 1), ["4,12", "5,13"]);
    assert_eq!(emulators(&decision, 1), ["4-7,12-15"], "they share the home of their VM");
    assert_eq!(
        why(&decision, 0),
        "node 1: saves 0.01 CPUs of moving memory against node 0; a core for each vCPU"
    );
    let moves: Vec<String> = decision
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::MoveMemory { to, remote, why, .. } => Some(format!("{to} {remote}: {why}")),
            _ => None,
        })
        .collect();
    assert_eq!(moves, [] as [String; 0], "less than a twentieth is elsewhere");
}

#[test]
fn memory_comes_home_when_enough_is_elsewhere_and_may_move() {
    let moves = |host: &Snapshot| {
        let is_move = |action: &&Action| matches!(action, Action::MoveMemory { .. });
        instep(host).actions.iter().filter(is_move).count()
    };
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[500, 1548])];
    assert_eq!(moves(&host), 1);
    host.vms[0].memory_bound = Some(nodes(&[0]));
    assert_eq!(home(&instep(&host), 0), "0", "bound there, the rest of its memory follows");
    host.vms[0].memory_bound = None;
    host.topology = made::topology(2, 4, 2, GIB);
    assert_eq!(moves(&host), 0, "no room on the node");
}

/// Two busy 4-vCPU VMs with all memory on node 0 of four cores: one has to go.
#[test]
fn crowding_of_whole_cores_outweighs_remote_memory() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 1000, &[2000, 0]), vm(&host, 2, 4, 1000, &[2000, 0])];
    let decision = instep(&host);
    assert_eq!((home(&decision, 0), home(&decision, 1)), ("0".into(), "1".into()));
    assert_eq!(
        why(&decision, 1),
        "node 1: saves 0.24 CPUs of remote access, 0.94 of core sharing, 0.04 of cache sharing, 0.31 of \
         siblings in different caches, costs 0.02 CPUs of moving memory against nodes 0-1; a core for \
         each vCPU"
    );
}

#[test]
fn idle_vms_stay_with_their_memory_however_many() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = (1..=6).map(|id| vm(&host, id, 4, 5, &[2000, 0])).collect();
    host.vms.push(vm(&host, 7, 4, 900, &[0, 2000]));
    let decision = instep(&host);
    let on_0 = (0..6).filter(|index| home(&decision, *index) == "0").count();
    assert!(on_0 >= 5, "{:?}", decision.vms);
    assert_eq!(home(&decision, 6), "1");
}

/// A VM as large as the host, first seen before its memory was read.
#[test]
fn vm_goes_to_its_memory_once_that_is_known() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 900, &[])];
    let first = instep(&host);
    assert_eq!(home(&first, 0), "0");
    let mut seen = apply(&host, &first);
    seen.vms[0].memory = vm(&host, 1, 4, 900, &[0, 40_000]).memory;
    assert_eq!(home(&instep(&seen), 0), "1");
}

#[test]
fn vm_larger_than_a_node_takes_the_nearest_nodes_that_fit() {
    let mut host = made::host(made::topology(4, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 7, 900, &[0, 0, 0, 4000])];
    let decision = instep(&host);
    assert_eq!(home(&decision, 0), "2-3");
    assert_eq!(
        why(&decision, 0),
        "nodes 2-3: saves 0.07 CPUs of moving memory against nodes 0-1; a core for each vCPU"
    );
}

/// Two nodes of four cores: a VM of 6 vCPUs and one of 2, a core for each.
fn six_and_two(small: &[u64]) -> (Snapshot, Decision) {
    let mut host = made::host(made::topology(2, 4, 1, GIB));
    host.vms = vec![vm(&host, 1, 6, 900, &[170, 14]), vm(&host, 2, 2, 900, small)];
    let decision = instep(&host);
    (host, decision)
}

#[test]
fn large_vm_gets_cores_beside_its_memory_that_small_ones_leave() {
    let (_, decision) = six_and_two(&[0, 60]);
    assert_eq!((home(&decision, 0), home(&decision, 1)), ("0-1".into(), "1".into()));
    assert_eq!(sets(&decision, 1), ["0", "1", "2", "3", "6", "7"]);
    assert_eq!(sets(&decision, 2), ["4", "5"]);
}

/// With both VMs' memory on one node either loses as much by giving way: as many vCPUs are away
/// from their memory. That the small one's would come home, and the large one's not, is not
/// counted: memory is taken as it lies, so that no plan rests on moves that may fail.
#[test]
fn small_vm_stays_with_its_memory_though_large_one_s_is_there_too() {
    let (host, decision) = six_and_two(&[60, 0]);
    assert_eq!((home(&decision, 0), home(&decision, 1)), ("0-1".into(), "0".into()));
    assert_eq!(sets(&decision, 1).len(), 6);
    assert_eq!(sets(&decision, 1)[..2], ["2", "3"], "the cores beside its memory come first");
    let given_way = {
        let mut other = apply(&host, &decision);
        let swap = |cpu: u32| CpuSet::one(CpuId(cpu));
        for (vcpu, cpu) in other.vms[0].vcpus.iter_mut().zip([0, 1, 2, 3, 6, 7]) {
            vcpu.allowed = swap(cpu);
        }
        for (vcpu, cpu) in other.vms[1].vcpus.iter_mut().zip([4, 5]) {
            vcpu.allowed = swap(cpu);
        }
        measure(&other).combined
    };
    let chosen = measure(&apply(&host, &decision)).combined;
    assert!(chosen >= given_way, "{chosen:?} {given_way:?}");
}

/// 4 nodes of 4 cores, and a VM of two guest nodes of 4 vCPUs with memory on nodes 1 and 2.
fn large() -> Snapshot {
    let mut host = made::host(made::topology(4, 4, 1, 64 * GIB));
    let mut large = vm(&host, 1, 8, 900, &[0, 2000, 2000, 0]);
    let guest_node = |vcpus: std::ops::Range<u32>| GuestNode {
        vcpus: vcpus.collect(),
        memory: Bytes(2 * GIB),
        ..GuestNode::default()
    };
    large.guest_nodes = vec![guest_node(0..4), guest_node(4..8)];
    host.vms = vec![large];
    host
}

/// Where the first and the second four vCPUs are, and why.
fn halves(host: &Snapshot) -> (String, String, String) {
    let decision = instep(host);
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::MoveMemory { .. })));
    let after = apply(host, &decision);
    let on = |part: &[Vcpu]| {
        let cpus = part.iter().fold(CpuSet::new(), |all, vcpu| all.or(&vcpu.allowed));
        host.topology.nodes_of(&cpus).to_string()
    };
    let (low, high) = after.vms[0].vcpus.split_at(4);
    (on(low), on(high), why(&decision, 0))
}

#[test]
fn parts_of_large_vm_go_to_their_own_memory_whatever_their_loads() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut host = large();
        for (guest, node) in host.vms[0].guest_nodes.iter_mut().zip([first, second]) {
            guest.resident = [(NodeId(node), Bytes(2000 * made::MIB))].into();
        }
        let expected = (
            first.to_string(),
            second.to_string(),
            "nodes 1-2: saves 0.03 CPUs of moving memory against nodes 0,3; a core for each vCPU"
                .to_string(),
        );
        assert_eq!(halves(&host), expected);
        for hot in [0..4, 4..8] {
            let mut hotter = host.clone();
            hotter.vms[0].vcpus[hot].iter_mut().for_each(|vcpu| vcpu.busy = made::WINDOW);
            assert_eq!(halves(&hotter), expected);
        }
        assert_eq!(measure(&apply(&host, &instep(&host))).locality.0, 1000);
    }
}

/// What is to move of each guest node, and where to.
fn moves(host: &Snapshot) -> Vec<(Option<u32>, String, u64)> {
    let decision = instep(host);
    let its = decision.actions.iter().filter_map(|action| match action {
        Action::MoveMemory { guest_node, to, remote, .. } => {
            Some((*guest_node, to.to_string(), remote.0 / made::MIB))
        }
        _ => None,
    });
    its.collect()
}

#[test]
fn stray_memory_moves_to_its_part_if_there_is_room() {
    let stray = |mib: u64| {
        let mut host = large();
        for (guest, node) in host.vms[0].guest_nodes.iter_mut().zip([1u32, 2]) {
            guest.id = node + 4;
            guest.resident = [(NodeId(node), Bytes(2000 * made::MIB))].into();
        }
        let first = &mut host.vms[0].guest_nodes[0];
        first.resident.insert(NodeId(2), Bytes(mib * made::MIB));
        host
    };
    assert_eq!(moves(&stray(500)), [(Some(5), "1".into(), 500)]);
    assert_eq!(moves(&stray(90)), [], "less than a twentieth of the part");
    // It is bound elsewhere: it goes where its memory may lie, which follows.
    let mut host = stray(500);
    host.vms[0].guest_nodes[0].bound = Some(nodes(&[0]));
    assert_eq!(moves(&host), [(Some(5), "0".into(), 2500)]);
    let mut host = stray(500);
    host.vms[0].memory_bound = Some(nodes(&[3]));
    assert!(moves(&host).iter().all(|(_, to, _)| to == "3"), "the VM's memory may lie there only");
    let mut host = stray(500);
    host.topology = made::topology(4, 4, 1, 2600 * made::MIB);
    host.vms[0].memory.insert(NodeId(1), Bytes(2300 * made::MIB));
    assert!(moves(&host).iter().all(|(_, to, _)| to != "1"), "no room on the node");
}

#[test]
fn parts_of_a_large_vm_go_where_their_memory_is_bound() {
    let mut host = large();
    for (guest, node) in host.vms[0].guest_nodes.iter_mut().zip([3, 0]) {
        guest.bound = Some(nodes(&[node]));
    }
    let (low, high, _) = halves(&host);
    assert_eq!((low, high), ("3".into(), "0".into()));
}

/// It would be as likely with each other's memory as with their own.
#[test]
fn large_vm_is_not_split_when_only_its_whole_memory_is_known() {
    let mut host = large();
    host.vms[0].memory = vm(&host, 1, 8, 900, &[0, 0, 2000, 2000]).memory;
    let (_, _, why) = halves(&host);
    assert!(why.starts_with("nodes 2-3: saves"), "{why}");
}

#[test]
fn hand_pinned_vms_are_left_alone_by_default() {
    let fresh = || {
        let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
        host.vms = vec![vm(&host, 1, 2, 900, &[0, 2000])];
        host
    };
    let mut apart = fresh();
    for (vcpu, list) in apart.vms[0].vcpus.iter_mut().zip(["2,6", "3,7"]) {
        (vcpu.allowed, vcpu.initial) = (cpus(list), cpus(list));
    }
    let mut emulators = fresh();
    for vcpu in &mut emulators.vms[0].vcpus {
        (vcpu.allowed, vcpu.initial) = (cpus("0-6"), cpus("0-6"));
    }
    let mut together = fresh();
    made::confine(&mut together.vms[0], &cpus("3"));
    let reasons = [
        "pinned by hand: vCPU 1 may use CPUs 3,7, others 2,6",
        "pinned by hand: its vCPUs may use CPUs 0-6, its emulator threads 0-7",
        "pinned by hand: its 2 vCPUs may use only CPU 3",
    ];
    for (host, reason) in [&apart, &emulators, &together].into_iter().zip(reasons) {
        let decision = instep(host);
        assert!(decision.actions.is_empty() && !decision.vms[0].selected);
        assert_eq!(why(&decision, 0), reason);
    }
    let told = PolicySettings { include_pinned: true, ..settings(PolicyName::Instep) };
    assert_eq!(sets(&decide(&apart, &told), 1), ["6", "7"]);
}

/// Node 0 is CPUs 0-3, to which its vCPUs are pinned; its memory lies on node 1.
#[test]
fn memory_comes_to_a_vm_whose_pins_keep_it_from_its_memory() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[0, 2000])];
    for (vcpu, list) in host.vms[0].vcpus.iter_mut().zip(["0-1", "2-3"]) {
        (vcpu.allowed, vcpu.initial) = (cpus(list), cpus(list));
    }
    assert!(instep(&host).actions.is_empty(), "pinned by hand");
    let told = PolicySettings { include_pinned: true, ..settings(PolicyName::Instep) };
    let decision = decide(&host, &told);
    assert_eq!(
        (home(&decision, 0).as_str(), sets(&decision, 1)),
        ("0", vec!["0".into(), "2".into()])
    );
    assert_eq!(why(&decision, 0), "node 0: the only place for 2 vCPUs; a core for each vCPU");
    let moves = |decision: &Decision| {
        let to = |action: &Action| match action {
            Action::MoveMemory { to, .. } => Some(to.to_string()),
            _ => None,
        };
        decision.actions.iter().filter_map(to).collect::<Vec<_>>()
    };
    assert_eq!(moves(&decision), ["0"]);
    host.vms[0].memory_bound = Some(nodes(&[1]));
    assert_eq!(moves(&decide(&host, &told)), [] as [String; 0], "bound by its operator");
}

#[test]
fn a_limit_on_emulator_threads_alone_does_not_pin_the_vcpus() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[0, 2000])];
    host.vms[0].emulators[0].initial = cpus("7");
    host.vms[0].emulators[0].allowed = cpus("7");
    let decision = instep(&host);
    assert!(decision.vms[0].selected);
    let keeps = |action: &Action| !matches!(action, Action::SetEmulatorAffinity { .. });
    assert!(decision.actions.iter().all(keeps), "{:?}", decision.actions);
}

#[test]
fn equal_narrow_affinity_is_narrowed_inside() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[0, 2000])];
    made::confine(&mut host.vms[0], &cpus("2-5"));
    assert_eq!(sets(&instep(&host), 1), ["4", "5"]);
}

#[test]
fn vcpus_keep_their_cores_when_a_neighbour_leaves() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[2000, 0]), vm(&host, 2, 2, 900, &[2000, 0])];
    let mut after = apply(&host, &instep(&host));
    assert_eq!(after.vms[1].vcpus[0].allowed.len(), 1);
    after.vms.remove(0);
    assert!(sets(&instep(&after), 2).is_empty());
}

/// Node 1 is at distance 16 from node 0, node 2 at 22.
#[test]
fn clear_gain_moves_a_placed_vm_and_a_small_one_does_not() {
    let mut host = made::host(made::topology(4, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[0, 2000])];
    host.vms[0].placed = nodes(&[0]);
    let decision = instep(&host);
    assert_eq!(home(&decision, 0), "0", "memory comes home instead");
    assert!(matches!(decision.actions.last(), Some(Action::MoveMemory { .. })));
    host.vms[0].memory = vm(&host, 1, 2, 900, &[0, 0, 2000]).memory;
    assert_eq!(home(&instep(&host), 0), "0", "2 GiB come home in half a minute");
    host.vms[0].memory = vm(&host, 1, 2, 900, &[0, 0, 30_000]).memory;
    assert_eq!(home(&instep(&host), 0), "2");
}

/// Nodes of four CPUs. VM 3, whose memory fits on no node, is at home on two; on one of them VM 2 needs every core.
#[test]
fn vm_on_two_nodes_takes_no_core_that_one_on_a_node_needs() {
    let mut host = made::host(made::topology(4, 4, 1, GIB));
    host.other_busy = Nanos(made::WINDOW.0 / 10);
    host.vms = vec![
        vm(&host, 1, 8, 1000, &[240, 80, 0, 40]),
        vm(&host, 2, 4, 1000, &[1, 0, 712, 87]),
        vm(&host, 3, 2, 1000, &[313, 312, 312, 312]),
    ];
    let decision = instep(&host);
    assert_eq!([home(&decision, 1), home(&decision, 2)], ["2", "2-3"]);
    assert_eq!(sets(&decision, 3), ["12", "13"]);
}

#[test]
fn performance_cores_come_first() {
    let topology = made::hybrid();
    let mut host = made::host(topology);
    host.vms = vec![vm(&host, 1, 3, 900, &[2000])];
    let sets: Vec<CpuSet> = sets(&instep(&host), 1).iter().map(|set| cpus(set)).collect();
    // Cores 0-1 are slow, 2-3 fast with two threads.
    assert_eq!(sets, [cpus("2-3"), cpus("4-5"), cpus("0")]);
}

/// One VM wants a whole node and twelve want a CPU each, so its share is half of a node: four find their CPUs beside it. Evenly
/// loaded nodes would leave the others 0.8 of a CPU each, and the large one 1.6 times its share.
#[test]
fn small_vms_have_their_shares_beside_a_large_one() {
    let mut host = made::host(made::topology(2, 8, 1, 64 * GIB));
    host.vms = (1..=13).map(|id| vm(&host, id, 1, 1000, &[200, 200])).collect();
    host.vms[0] = vm(&host, 1, 8, 1000, &[200, 200]);
    let decision = instep(&host);
    let large = decision.vms[0].home.clone();
    let beside = decision.vms[1..].iter().filter(|verdict| verdict.home == large).count();
    assert!((3..=4).contains(&beside), "{beside} of 12 on {large}");
}

/// 8 nodes of 8 cores, 10 VMs of 4 vCPUs at 10 % on each. Then those of node 3 use their CPUs
/// fully: 40 CPUs of demand on 16 threads, while cores idle elsewhere.
#[test]
fn hot_node_is_relieved_without_moving_the_others() {
    let mut host = made::host(made::topology(8, 8, 2, 64 * GIB));
    let footprint =
        |node: usize| -> Vec<u64> { (0..8).map(|k| 100 * u64::from(k == node)).collect() };
    host.vms =
        (0..80).map(|id| vm(&host, 100 + id, 4, 100, &footprint(id as usize / 10))).collect();
    let mut settled = apply(&host, &instep(&host));
    let on_3: Vec<usize> = (0..80).filter(|at| settled.vms[*at].placed == nodes(&[3])).collect();
    assert!(on_3.len() >= 8, "{}", on_3.len());
    for at in &on_3 {
        settled.vms[*at].vcpus.iter_mut().for_each(|vcpu| vcpu.busy = made::WINDOW);
    }
    let decision = instep(&settled);
    let moved: Vec<usize> =
        (0..80).filter(|at| decision.vms[*at].home != settled.vms[*at].placed).collect();
    assert!((3..=30).contains(&moved.len()), "{moved:?}");
    let before = measure(&settled).combined;
    let after = measure(&apply(&settled, &decision)).combined;
    assert!(after.0 > before.0 + 150, "{before} -> {after}");
}

#[test]
fn memory_on_a_node_without_cpus_draws_a_vm_near_it() {
    let mut host = made::host(made::with_memory_node());
    host.vms = vec![vm(&host, 1, 2, 900, &[100, 0, 2000])];
    let decision = instep(&host);
    assert_eq!(home(&decision, 0), "1");
    assert_eq!(sets(&decision, 1), ["2", "3"]);
    for policy in PolicyName::ALL {
        let homes = decide(&host, &settings(policy)).vms.swap_remove(0).home;
        assert!(!homes.contains(NodeId(2)), "{policy} uses a node without CPUs");
    }
}

#[test]
fn node_that_a_vm_may_not_use_is_no_alternative() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 900, &[2000, 0])];
    made::confine(&mut host.vms[0], &cpus("4-7"));
    host.vms[0].cpuset = cpus("4-7");
    let why = why(&instep(&host), 0);
    assert_eq!(why, "node 1: the only place for 2 vCPUs; a core for each vCPU");
}

/// The host of scenarios/lab/larger-than-a-node.toml with all vCPUs busy: whatever else runs, the small VM is
/// beside its memory, and the large one has the rest.
#[test]
fn small_busy_vm_is_at_home_beside_one_larger_than_a_node() {
    for (busy, other) in [(1000, 0), (1000, 200), (970, 600), (1000, 1000), (1000, 2000)] {
        let mut host = made::host(made::topology(2, 4, 1, GIB));
        host.vms = vec![vm(&host, 1, 6, busy, &[60, 0]), vm(&host, 2, 2, busy, &[0, 60])];
        host.other_busy = Nanos(made::WINDOW.0 / 1000 * other);
        assert_eq!(home(&instep(&host), 1), "1", "{busy} {other}");
    }
}
