//! What the builder promises: grouping of known machines, repairs, and the invariants on
//! garbage.

use super::*;
use crate::idset::NodeSet;
use crate::units::{Bytes, NodeId};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn some(list: &str) -> Option<CpuSet> {
    Some(set(list))
}

fn lists(sets: &[CpuSet]) -> Vec<String> {
    sets.iter().map(ToString::to_string).collect()
}

/// `n` CPUs of one package that share one LLC; every CPU a core with its own L2.
fn plain(n: u32) -> Vec<CpuFacts> {
    let all: CpuSet = (0..n).map(CpuId).collect();
    let own = |id| Some(CpuSet::one(CpuId(id)));
    let cpu = |id| CpuFacts {
        id,
        package: Some(0),
        thread_siblings: own(id),
        l1i: own(id),
        l2: own(id),
        llc: Some(all.clone()),
        kind: None,
    };
    (0..n).map(cpu).collect()
}

fn node(id: u32, cpus: &str, distances: &[u32]) -> NodeFacts {
    let memory = Bytes::from_mib(1024);
    NodeFacts { id, cpus: set(cpus), memory, distances: distances.to_vec() }
}

#[test]
fn a_plain_machine_needs_no_repair() {
    let host = Topology::build(plain(4), vec![node(0, "0-3", &[10])]).unwrap();
    assert_eq!(lists(host.cores()), ["0", "1", "2", "3"]);
    assert_eq!(host.clusters(), host.cores());
    assert_eq!(lists(host.llcs()), ["0-3"]);
    assert_eq!(host.warnings(), [""; 0]);
}

#[test]
fn cpus_with_one_l1i_are_one_core_though_they_are_no_threads() {
    let mut cpus = plain(4);
    for cpu in &mut cpus {
        cpu.l1i = some(if cpu.id < 2 { "0-1" } else { "2-3" });
        cpu.l2 = cpu.l1i.clone();
    }
    let host = Topology::build(cpus, vec![node(0, "0-3", &[10])]).unwrap();
    assert_eq!(lists(host.cores()), ["0-1", "2-3"]);
    assert_eq!(host.clusters(), host.cores());
    assert_eq!(host.warnings(), [""; 0]);
}

#[test]
fn cpus_with_one_l2_only_are_a_cluster_of_cores() {
    let mut cpus = plain(4);
    cpus.iter_mut().for_each(|cpu| cpu.l2 = some("0-3"));
    let host = Topology::build(cpus, vec![node(0, "0-3", &[10])]).unwrap();
    assert_eq!((host.cores().len(), host.clusters().len(), host.llcs().len()), (4, 1, 1));
}

#[test]
fn an_l1i_shared_more_widely_than_the_l2_is_not_believed() {
    let mut cpus = plain(4);
    cpus.iter_mut().for_each(|cpu| cpu.l1i = some("0-3"));
    let host = Topology::build(cpus, vec![node(0, "0-3", &[10])]).unwrap();
    assert_eq!(host.cores().len(), 4);
    assert_eq!(
        host.warnings(),
        ["CPUs 0-3: their L1i is listed as shared more widely than it can be; ignored"]
    );
}

#[test]
fn one_cpu_that_claims_all_does_not_join_all() {
    let mut cpus = plain(8);
    for cpu in &mut cpus {
        cpu.llc = some(if cpu.id < 4 { "0-3" } else { "4-7" });
    }
    cpus[2].llc = some("0-7");
    let host = Topology::build(cpus, vec![node(0, "0-7", &[10])]).unwrap();
    assert_eq!(lists(host.llcs()), ["0-3", "4-7"]);
    assert_eq!(
        host.warnings(),
        [
            "CPUs 2: lists of CPUs that share a last-level cache contradict one another; used is what both \
          say"
        ]
    );
}

#[test]
fn core_over_two_nodes_is_cut_and_reported() {
    let mut cpus = plain(4);
    cpus.iter_mut().for_each(|cpu| {
        cpu.thread_siblings = some(if cpu.id % 2 == 0 { "0,2" } else { "1,3" });
        (cpu.l1i, cpu.l2) = (None, None);
    });
    let nodes = vec![node(0, "0-1", &[10, 20]), node(1, "2-3", &[20, 10])];
    let host = Topology::build(cpus, nodes).unwrap();
    assert_eq!(lists(host.cores()), ["0", "1", "2", "3"]);
    assert_eq!(lists(host.llcs()), ["0-1", "2-3"]);
    assert_eq!(host.warnings().len(), 2, "{:?}", host.warnings());
    assert!(host.warnings()[1].contains("different packages or nodes"));
}

#[test]
fn an_llc_over_two_nodes_is_one_in_each() {
    let nodes = vec![node(0, "0-1", &[10, 12]), node(1, "2-3", &[12, 10])];
    let host = Topology::build(plain(4), nodes).unwrap();
    assert_eq!(lists(host.llcs()), ["0-1", "2-3"]);
    assert!(host.warnings()[0].contains("sub-NUMA clustering"), "{:?}", host.warnings());
}

#[test]
fn nodes_that_name_same_cpus_are_one_node_with_all_their_memory() {
    let nodes = vec![node(0, "0-3", &[10, 10]), node(1, "0-3", &[10, 10])];
    let host = Topology::build(plain(4), nodes).unwrap();
    assert_eq!(host.nodes().len(), 1);
    assert_eq!(host.nodes()[0].memory, Bytes::from_mib(2048));
    assert_eq!(host.nodes()[0].distances, [10]);
    assert_eq!(host.memory_node(NodeId(1)), Some(NodeId(0)));
    assert_eq!(host.memory_node(NodeId(0)), Some(NodeId(0)));
    assert_eq!(host.memory_node(NodeId(2)), None);
    let all = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<NodeSet>();
    assert_eq!(host.kernel_nodes(&all(&[0])), all(&[0, 1]));
    assert_eq!(host.kernel_nodes(&all(&[])), all(&[]));
    assert_eq!(host.warnings().len(), 1);
}

#[test]
fn a_cpu_in_two_nodes_is_kept_where_the_list_is_shorter() {
    let nodes = vec![node(0, "0-3", &[10, 20]), node(1, "2-3", &[20, 10])];
    let host = Topology::build(plain(4), nodes).unwrap();
    assert_eq!(
        lists(&[host.nodes()[0].cpus.clone(), host.nodes()[1].cpus.clone()]),
        ["0-1", "2-3"]
    );
    assert!(host.warnings()[0].starts_with("CPUs 2-3: named by more than one node"));
}

#[test]
fn a_cpu_in_no_node_goes_with_its_cache() {
    let mut cpus = plain(4);
    cpus.iter_mut().for_each(|cpu| cpu.llc = some(if cpu.id < 2 { "0-1" } else { "2-3" }));
    let nodes = vec![node(0, "0-1", &[10, 20]), node(1, "2", &[20, 10])];
    let host = Topology::build(cpus, nodes).unwrap();
    assert_eq!(host.cpu(CpuId(3)).unwrap().node, NodeId(1));
    assert!(host.warnings()[0].starts_with("CPUs 3: in no online node; put into node 1"));
}

#[test]
fn a_node_with_memory_alone_is_kept_without_a_warning() {
    let nodes = vec![node(0, "0-3", &[10, 17]), node(4, "", &[17, 10])];
    let host = Topology::build(plain(4), nodes).unwrap();
    assert_eq!(host.nodes().len(), 2);
    assert!(host.nodes()[1].cpus.is_empty());
    assert_eq!(host.distance(NodeId(0), NodeId(4)), Some(17));
    assert_eq!(host.warnings(), [""; 0]);
}

#[test]
fn impossible_distances_are_corrected_and_reported() {
    let nodes =
        vec![node(0, "0-1", &[0, 5, 300]), node(1, "2", &[20, 10]), node(2, "3", &[21, 21, 10])];
    let host = Topology::build(plain(4), nodes).unwrap();
    let rows: Vec<_> = host.nodes().iter().map(|node| node.distances.clone()).collect();
    assert_eq!(rows, [[10, 20, 20], [20, 10, 20], [21, 21, 10]]);
    let said = host.warnings().join("\n");
    for part in ["nodes 1: distances missing", "nodes 0: distance to itself", "nodes 0: a distance"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn a_row_over_all_possible_nodes_is_read_by_node_number() {
    let host = Topology::build(plain(2), vec![node(1, "0-1", &[21, 10])]).unwrap();
    assert_eq!(host.nodes()[0].distances, [10]);
}

#[test]
fn nothing_but_numbers_gives_one_package_of_single_cores() {
    let cpus = (0..3).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
    let host = Topology::build(cpus, vec![node(0, "0-2", &[10])]).unwrap();
    let counts = [host.cores().len(), host.llcs().len(), host.packages().len(), host.nodes().len()];
    assert_eq!(counts, [3, 1, 1, 1]);
    assert_eq!(host.warnings().len(), 2, "{:?}", host.warnings());
}

#[test]
fn no_cpu_is_an_error_and_no_node_is_node_zero() {
    assert_eq!(Topology::build(vec![], vec![]), Err(TopologyError::NoCpus));
    let host = Topology::build(plain(2), vec![]).unwrap();
    assert_eq!(host.nodes()[0].cpus, set("0-1"));
    assert_eq!(host.warnings().len(), 1);
}

#[test]
fn kinds_are_kept_only_where_the_host_has_both() {
    let mut cpus = plain(2);
    cpus[0].kind = Some(CoreKind::Performance);
    let host = Topology::build(cpus.clone(), vec![node(0, "0-1", &[10])]).unwrap();
    assert_eq!(host.cpu(CpuId(0)).unwrap().kind, None);
    cpus[1].kind = Some(CoreKind::Efficient);
    let host = Topology::build(cpus, vec![node(0, "0-1", &[10])]).unwrap();
    assert_eq!(host.cpu(CpuId(0)).unwrap().kind, Some(CoreKind::Performance));
}

/// The documented invariants of [`Topology`].
fn check(host: &Topology, given: &BTreeSet<u32>) -> Result<(), TestCaseError> {
    let ids: Vec<u32> = host.cpus().iter().map(|cpu| cpu.id.0).collect();
    prop_assert_eq!(&ids, &given.iter().copied().collect::<Vec<_>>());
    prop_assert!(host.nodes().windows(2).all(|pair| pair[0].id < pair[1].id));
    prop_assert!(!host.nodes().is_empty());
    for (at, node) in host.nodes().iter().enumerate() {
        prop_assert_eq!(node.distances.len(), host.nodes().len());
        prop_assert_eq!(node.distances[at], 10);
        prop_assert!(node.distances.iter().all(|distance| (10..=255).contains(distance)));
    }
    for sets in [host.cores(), host.clusters(), host.llcs(), host.packages()] {
        let firsts: Vec<_> = sets.iter().map(|set| set.first().unwrap()).collect();
        prop_assert!(firsts.is_sorted());
        prop_assert_eq!(sets.iter().map(CpuSet::len).sum::<usize>(), ids.len());
    }
    prop_assert_eq!(host.nodes().iter().map(|n| n.cpus.len()).sum::<usize>(), ids.len());
    for cpu in host.cpus() {
        let core = &host.cores()[cpu.core.0 as usize];
        let cluster = &host.clusters()[cpu.cluster.0 as usize];
        let llc = &host.llcs()[cpu.llc.0 as usize];
        let package = &host.packages()[cpu.package.0 as usize];
        let node = &host.node(cpu.node).unwrap().cpus;
        prop_assert!(core.contains(cpu.id));
        prop_assert!(core.is_subset(cluster) && cluster.is_subset(llc));
        prop_assert!(llc.is_subset(package) && llc.is_subset(node));
    }
    Ok(())
}

/// What the facts of a topology without fault would say.
fn facts_of(host: &Topology) -> (Vec<CpuFacts>, Vec<NodeFacts>) {
    let cpu = |cpu: &Cpu| CpuFacts {
        id: cpu.id.0,
        package: Some(cpu.package.0),
        thread_siblings: Some(host.cores()[cpu.core.0 as usize].clone()),
        l1i: None,
        l2: Some(host.clusters()[cpu.cluster.0 as usize].clone()),
        llc: Some(host.llcs()[cpu.llc.0 as usize].clone()),
        kind: cpu.kind,
    };
    let node = |node: &crate::topology::Node| NodeFacts {
        id: node.id.0,
        cpus: node.cpus.clone(),
        memory: node.memory,
        distances: node.distances.clone(),
    };
    (host.cpus().iter().map(cpu).collect(), host.nodes().iter().map(node).collect())
}

fn any_set() -> impl Strategy<Value = CpuSet> {
    proptest::collection::btree_set(0u32..14, 0..10)
        .prop_map(|ids| ids.into_iter().map(CpuId).collect())
}

fn any_cpu() -> impl Strategy<Value = CpuFacts> {
    let set = || proptest::option::weighted(0.8, any_set());
    let kind =
        proptest::option::of(prop_oneof![Just(CoreKind::Performance), Just(CoreKind::Efficient)]);
    let id = prop_oneof![20 => 0u32..12, 1 => any::<u32>()];
    (id, proptest::option::of(0u32..3), set(), set(), set(), set(), kind).prop_map(
        |(id, package, thread_siblings, l1i, l2, llc, kind)| CpuFacts {
            id,
            package,
            thread_siblings,
            l1i,
            l2,
            llc,
            kind,
        },
    )
}

fn any_node() -> impl Strategy<Value = NodeFacts> {
    let id = prop_oneof![20 => 0u32..6, 1 => any::<u32>()];
    let distances = proptest::collection::vec(prop_oneof![0u32..40, any::<u32>()], 0..7);
    (id, any_set(), any::<u64>(), distances).prop_map(|(id, cpus, memory, distances)| NodeFacts {
        id,
        cpus,
        memory: Bytes(memory),
        distances,
    })
}

fn garbage() -> impl Strategy<Value = (Vec<CpuFacts>, Vec<NodeFacts>)> {
    (proptest::collection::vec(any_cpu(), 0..14), proptest::collection::vec(any_node(), 0..6))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn invariants_hold_whatever_the_facts_say((cpus, nodes) in garbage()) {
        let given: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.id).filter(|id| *id <= MAX_ID).collect();
        match Topology::build(cpus, nodes) {
            Ok(host) => check(&host, &given)?,
            Err(TopologyError::NoCpus) => prop_assert!(given.is_empty()),
        }
    }

    #[test]
    fn order_of_the_facts_does_not_matter(
        (cpus, nodes) in garbage(),
        turn in 0usize..14,
    ) {
        let (mut other_cpus, mut other_nodes) = (cpus.clone(), nodes.clone());
        other_cpus.rotate_left(turn.min(cpus.len()));
        other_cpus.reverse();
        other_nodes.rotate_left(turn.min(nodes.len()));
        prop_assert_eq!(Topology::build(cpus, nodes), Topology::build(other_cpus, other_nodes));
    }

    #[test]
    fn a_repaired_topology_described_again_is_the_same((cpus, nodes) in garbage()) {
        let Ok(once) = Topology::build(cpus, nodes) else { return Ok(()) };
        let (cpus, nodes) = facts_of(&once);
        let again = Topology::build(cpus, nodes).unwrap();
        prop_assert_eq!(again.cpus(), once.cpus());
        prop_assert_eq!(again.nodes(), once.nodes());
    }
}
