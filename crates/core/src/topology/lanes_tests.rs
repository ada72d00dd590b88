//! How hosts are cut into scheduling domains.

use super::*;
use crate::idset::CpuSet;
use crate::topology::{CpuFacts, NodeFacts};
use crate::units::Bytes;
use std::collections::BTreeMap;

/// A host of nodes with so many CPUs each, in caches and cores of so many. CPUs of a core are numbered far apart, as
/// on most machines.
fn host(nodes: u32, cpus: u32, cache: u32, threads: u32) -> Topology {
    hybrid(nodes, cpus, cache, threads, |_| None)
}

/// The same with cores of these kinds, by CPU number.
fn hybrid(
    nodes: u32,
    cpus: u32,
    cache: u32,
    threads: u32,
    kind: fn(u32) -> Option<CoreKind>,
) -> Topology {
    let of_node = |node: u32, range: std::ops::Range<u32>| -> CpuSet {
        // The n-th CPU of a node is thread n % threads of core n / threads.
        let cores = cpus / threads;
        let number = |at: u32| CpuId(at % threads * nodes * cores + node * cores + at / threads);
        range.map(number).collect()
    };
    let mut facts = Vec::new();
    for node in 0..nodes {
        for at in 0..cpus {
            let own =
                |size: u32| Some(of_node(node, at / size * size..(at / size + 1) * size.min(cpus)));
            let id = of_node(node, at..at + 1).iter().next().expect("one CPU").0;
            let core = own(threads);
            facts.push(CpuFacts {
                id,
                package: Some(node),
                thread_siblings: core.clone(),
                l1i: core.clone(),
                l2: core,
                llc: own(cache),
                kind: kind(id),
            });
        }
    }
    let distances: Vec<u32> = (0..nodes).map(|_| 20).collect();
    let node = |id: u32| {
        let mut distances = distances.clone();
        distances[id as usize] = 10;
        NodeFacts { id, cpus: of_node(id, 0..cpus), memory: Bytes::from_mib(1024), distances }
    };
    Topology::build(facts, (0..nodes).map(node).collect()).unwrap()
}

/// The CPUs of each domain in the order of lanes, checked for what holds on every host.
fn domains(topology: &Topology) -> Vec<Vec<CpuId>> {
    domains_with(topology, &CpuSet::new())
}

/// The same on a host with isolated CPUs.
fn domains_with(topology: &Topology, isolated: &CpuSet) -> Vec<Vec<CpuId>> {
    let all = lanes(topology, isolated);
    let mut domains: BTreeMap<u32, Vec<(CpuId, Lane)>> = BTreeMap::new();
    for (cpu, lane) in &all {
        domains.entry(lane.domain).or_default().push((*cpu, *lane));
    }
    assert_eq!(all.len(), topology.cpus().len(), "every CPU has one lane");
    assert!(domains.keys().copied().eq(0..domains.len() as u32), "domains are numbered from 0");
    for cpus in domains.values() {
        assert!(cpus.len() <= LANES);
        let facts = |at: usize| topology.cpu(cpus[at].0).expect("it is a CPU of the host");
        for (at, (_, lane)) in cpus.iter().enumerate() {
            assert_eq!(lane.lane as usize, at);
            assert_eq!(facts(at).node, facts(0).node, "a domain lies in one node");
            assert_eq!(facts(at).kind, facts(0).kind, "its cores are of one kind");
            assert_eq!(lane.isolated, isolated.contains(cpus[at].0));
            assert_eq!(lane.isolated, cpus[0].1.isolated, "isolated CPUs are by themselves");
            let core: u64 = (0..cpus.len())
                .filter(|other| facts(*other).core == facts(at).core)
                .fold(0, |set, other| set | 1 << other);
            assert_eq!(lane.core, core);
            let adjacent = core >> core.trailing_zeros();
            assert_eq!(adjacent & (adjacent.wrapping_add(1)), 0, "threads of a core are adjacent");
            assert_eq!(
                core.count_ones() as usize,
                topology.cores()[facts(at).core.0 as usize].len()
            );
            let first = at == 0 || facts(at - 1).llc != facts(at).llc;
            assert_eq!(lane.first_of_cache, first);
        }
    }
    domains.into_values().map(|cpus| cpus.into_iter().map(|(cpu, _)| cpu).collect()).collect()
}

/// How many CPUs each domain has.
fn sizes(topology: &Topology) -> Vec<usize> {
    domains(topology).iter().map(Vec::len).collect()
}

#[test]
fn small_node_is_one_domain() {
    assert_eq!(sizes(&host(1, 1, 1, 1)), [1]);
    assert_eq!(sizes(&host(1, 8, 8, 2)), [8]);
    assert_eq!(sizes(&host(1, 64, 16, 2)), [64]);
}

#[test]
fn every_node_has_domains_of_its_own() {
    assert_eq!(sizes(&host(2, 16, 16, 2)), [16; 2]);
    assert_eq!(sizes(&host(8, 48, 48, 1)), [48; 8]);
    assert_eq!(sizes(&host(2, 128, 32, 2)), [64; 4]);
}

#[test]
fn caches_of_a_large_node_stay_whole() {
    // Five caches of 12 CPUs fit into a domain.
    assert_eq!(sizes(&host(1, 96, 12, 2)), [60, 36]);
    assert_eq!(sizes(&host(1, 128, 16, 2)), [64, 64]);
    for cpus in domains(&host(1, 96, 12, 2)) {
        assert_eq!(cpus.len() % 12, 0);
    }
}

#[test]
fn cache_of_more_than_64_cpus_is_cut_into_equal_parts() {
    assert_eq!(sizes(&host(1, 128, 128, 1)), [64, 64]);
    assert_eq!(sizes(&host(1, 128, 128, 2)), [64, 64]);
    assert_eq!(sizes(&host(1, 96, 96, 2)), [48, 48]);
    assert_eq!(sizes(&host(1, 192, 192, 2)), [64, 64, 64]);
    assert_eq!(sizes(&host(2, 100, 100, 1)), [50; 4]);
}

#[test]
fn cut_cache_has_whole_cores_and_no_small_rest() {
    // 63 cores of two threads: no half of the CPUs is a number of whole cores.
    assert_eq!(sizes(&host(1, 126, 126, 2)), [64, 62]);
    assert_eq!(sizes(&host(1, 120, 120, 8)), [64, 56]);
}

fn numbers(domains: &[Vec<CpuId>]) -> Vec<Vec<u32>> {
    domains.iter().map(|cpus| cpus.iter().map(|cpu| cpu.0).collect()).collect()
}

#[test]
fn isolated_cpus_have_domains_of_their_own() {
    let isolated = CpuSet::parse_list("2-3,12").unwrap();
    let found = domains_with(&host(2, 8, 8, 1), &isolated);
    let expected = [vec![0, 1, 4, 5, 6, 7], vec![2, 3], vec![8, 9, 10, 11, 13, 14, 15], vec![12]];
    assert_eq!(numbers(&found), expected);
}

#[test]
fn cores_of_two_kinds_are_not_in_one_domain() {
    let kind = |cpu| Some(if cpu < 4 { CoreKind::Efficient } else { CoreKind::Performance });
    let found = domains(&hybrid(1, 12, 12, 1, kind));
    assert_eq!(numbers(&found), [(4..12).collect::<Vec<u32>>(), (0..4).collect()]);
}
