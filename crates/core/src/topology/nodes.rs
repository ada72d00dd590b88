//! Which node each CPU belongs to, and a sound distance matrix, from tables that may lie.
//!
//! A CPU in several nodes' lists goes where the list is shortest: the most specific statement.
//! Nodes that name the same CPUs are one memory in several pieces (the kernel's `numa=fake`
//! writes that) and become one node. A CPU in no list goes with those it shares a cache or a
//! package with. It does not know which table the firmware got wrong.

use super::partition::Partition;
use super::{Node, NodeFacts};
use crate::idset::{CpuSet, NodeSet};
use crate::units::{Bytes, CpuId, NodeId};
use std::collections::BTreeMap;

/// Node numbers from here on are not believed: the kernel has at most 2^10 nodes
/// (NODES_SHIFT, Linux 6.18).
const MAX_NODES: u32 = 1024;
/// Distance of a node to itself (LOCAL_DISTANCE of include/linux/topology.h).
const LOCAL: u32 = 10;
/// Distance to another node where the tables do not say (REMOTE_DISTANCE, ibid.).
const REMOTE: u32 = 20;

/// Node numbers that are another node again, with that node.
type Merged = Vec<(NodeId, NodeId)>;

/// Nodes that own every CPU exactly once.
pub(super) struct NodePartition {
    /// Ascending by number.
    pub nodes: Vec<Node>,
    /// For every CPU, in the order given, the index of its node in `nodes`.
    pub owner: Vec<usize>,
    /// Node numbers that became part of another node, ascending.
    pub merged: Merged,
}

/// Settles `cpus` (ascending) in the nodes of `facts`. `near` are divisions of the CPUs, nearest
/// first, that say whose node a CPU without one shares.
pub(super) fn assign_cpus(
    cpus: &[CpuId],
    facts: Vec<NodeFacts>,
    near: &[&Partition],
    warnings: &mut Vec<String>,
) -> NodePartition {
    let online: CpuSet = cpus.iter().copied().collect();
    let facts = believable(facts, &online, warnings);
    let distances = distances(&facts, warnings);
    let (mut nodes, kept, merged) = merge(&facts, &online, warnings);
    for (node, from) in nodes.iter_mut().zip(&kept) {
        node.distances = kept.iter().map(|to| distances[*from][*to]).collect();
    }
    let owner = own(cpus, &nodes, near, warnings);
    for (index, node) in nodes.iter_mut().enumerate() {
        let mine = cpus.iter().zip(&owner).filter(|(_, owner)| **owner == index);
        node.cpus = mine.map(|(cpu, _)| *cpu).collect();
    }
    let idle = nodes.iter().filter(|node| node.cpus.is_empty() && node.memory == Bytes(0));
    let idle: NodeSet = idle.map(|node| node.id).collect();
    if !idle.is_empty() {
        warnings.push(format!(
            "nodes {idle}: neither online CPUs nor memory; nothing will be placed there"
        ));
    }
    NodePartition { nodes, owner, merged }
}

/// Ascending, one entry a number, at least one.
fn believable(
    mut facts: Vec<NodeFacts>,
    online: &CpuSet,
    warnings: &mut Vec<String>,
) -> Vec<NodeFacts> {
    let all = facts.len();
    facts.retain(|node| node.id < MAX_NODES);
    if facts.len() < all {
        warnings.push(format!(
            "{} node numbers of {MAX_NODES} or more: no kernel has them; left out",
            all - facts.len()
        ));
    }
    facts.sort_by(|a, b| key(a).cmp(&key(b)));
    let mut twice = NodeSet::new();
    facts.dedup_by(|next, kept| {
        next.id == kept.id && {
            if next != kept {
                twice.insert(NodeId(kept.id));
            }
            true
        }
    });
    if !twice.is_empty() {
        warnings.push(format!("nodes {twice}: described twice; one description was kept"));
    }
    if facts.is_empty() {
        warnings.push("no NUMA node is known; all CPUs taken as node 0, its memory unknown".into());
        let cpus = online.clone();
        facts.push(NodeFacts { cpus, distances: vec![LOCAL], ..NodeFacts::default() });
    }
    facts
}

fn key(facts: &NodeFacts) -> (u32, &CpuSet, Bytes, &[u32]) {
    (facts.id, &facts.cpus, facts.memory, &facts.distances)
}

/// Nodes with the CPUs they name; those that name the same CPUs as one. Also the indices in
/// `facts` of what was kept.
fn merge(
    facts: &[NodeFacts],
    online: &CpuSet,
    warnings: &mut Vec<String>,
) -> (Vec<Node>, Vec<usize>, Merged) {
    let (mut nodes, mut kept, mut merged) = (Vec::<Node>::new(), Vec::new(), Vec::new());
    let mut by_cpus = BTreeMap::<CpuSet, (usize, NodeSet)>::new();
    for (index, facts) in facts.iter().enumerate() {
        let (id, cpus) = (NodeId(facts.id), facts.cpus.and(online));
        if !cpus.is_empty() {
            let (first, ids) = by_cpus.entry(cpus.clone()).or_insert((nodes.len(), NodeSet::new()));
            ids.insert(id);
            if let Some(node) = nodes.get_mut(*first) {
                node.memory = Bytes(node.memory.0.saturating_add(facts.memory.0));
                merged.push((id, node.id));
                continue;
            }
        }
        nodes.push(Node { id, cpus, memory: facts.memory, distances: Vec::new() });
        kept.push(index);
    }
    for (cpus, (first, ids)) in &by_cpus {
        if ids.len() > 1 {
            warnings.push(format!(
                "nodes {ids} all name CPUs {cpus} (emulated NUMA, or a wrong table); taken as \
                 node {}, with their memory together",
                nodes[*first].id
            ));
        }
    }
    (nodes, kept, merged)
}

/// For every CPU the index of its node.
fn own(
    cpus: &[CpuId],
    nodes: &[Node],
    near: &[&Partition],
    warnings: &mut Vec<String>,
) -> Vec<usize> {
    let (mut owner, mut doubly) = (vec![None; cpus.len()], CpuSet::new());
    let mut by_size: Vec<usize> = (0..nodes.len()).collect();
    by_size.sort_by_key(|index| (nodes[*index].cpus.len(), *index));
    for index in by_size {
        for cpu in nodes[index].cpus.iter() {
            match cpus.binary_search(&cpu).ok().map(|at| &mut owner[at]) {
                Some(none @ None) => *none = Some(index),
                Some(Some(_)) => _ = doubly.insert(cpu),
                None => {}
            }
        }
    }
    if !doubly.is_empty() {
        warnings.push(format!(
            "CPUs {doubly}: named by more than one node; kept in the node that names the fewest"
        ));
    }
    let (mut homeless, mut homes) = (CpuSet::new(), NodeSet::new());
    let some = nodes.iter().position(|node| node.memory > Bytes(0)).unwrap_or(0);
    let votes: Vec<_> = near.iter().map(|near| majority(near, &owner)).collect();
    let settled = owner.iter().enumerate().map(|(at, owned)| {
        owned.unwrap_or_else(|| {
            let near = near.iter().zip(&votes).find_map(|(n, v)| v.get(&n.label(at)).copied());
            let home = near.unwrap_or(some);
            homeless.insert(cpus[at]);
            homes.insert(nodes[home].id);
            home
        })
    });
    let settled = settled.collect();
    if !homeless.is_empty() {
        warnings.push(format!(
            "CPUs {homeless}: in no online node; put into node {homes}, that of CPUs with which \
             they share a cache or package, else the first node with memory"
        ));
    }
    settled
}

/// For every group that has any value, by its label, the value that most of its members have,
/// the lowest of equals.
pub(super) fn majority<T: Copy + Ord>(
    groups: &Partition,
    values: &[Option<T>],
) -> BTreeMap<usize, T> {
    let mut counts = BTreeMap::<usize, BTreeMap<T, usize>>::new();
    for (at, value) in values.iter().enumerate() {
        if let Some(value) = value {
            *counts.entry(groups.label(at)).or_default().entry(*value).or_default() += 1;
        }
    }
    let most = |counts: BTreeMap<T, usize>| {
        counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(value, _)| value)
    };
    counts.into_iter().filter_map(|(label, counts)| Some((label, most(counts)?))).collect()
}

/// A square matrix in the order of `facts`: rows that make no sense are put right.
fn distances(facts: &[NodeFacts], warnings: &mut Vec<String>) -> Vec<Vec<u32>> {
    let highest = facts.last().map_or(0, |node| node.id as usize);
    let mut wrong: [NodeSet; 4] = Default::default();
    let mut matrix = Vec::with_capacity(facts.len());
    for (own, node) in facts.iter().enumerate() {
        let id = NodeId(node.id);
        let mut row: Vec<u32> = if node.distances.len() == facts.len() {
            node.distances.clone()
        } else if node.distances.len() > highest {
            wrong[0].insert(id);
            facts.iter().map(|to| node.distances[to.id as usize]).collect()
        } else {
            wrong[1].insert(id);
            (0..facts.len()).map(|to| if to == own { LOCAL } else { REMOTE }).collect()
        };
        if std::mem::replace(&mut row[own], LOCAL) != LOCAL {
            wrong[2].insert(id);
        }
        for distance in row.iter_mut().filter(|distance| !(LOCAL..=255).contains(*distance)) {
            wrong[3].insert(id);
            *distance = REMOTE;
        }
        matrix.push(row);
    }
    let what = [
        "more distances than online nodes; taken by node number".to_owned(),
        format!("distances missing or not one to each online node; {LOCAL} and {REMOTE} assumed"),
        format!("distance to itself is not {LOCAL}; put right"),
        format!("a distance is not within {LOCAL} to 255; {REMOTE} assumed"),
    ];
    for (nodes, what) in wrong.iter().zip(what) {
        if !nodes.is_empty() {
            warnings.push(format!("nodes {nodes}: {what}"));
        }
    }
    matrix
}
