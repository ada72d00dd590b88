//! The guest's NUMA nodes and the host nodes its memory is told to use, from QEMU's `-numa` and
//! `-object memory-backend-*` in their key=value and JSON forms.
//!
//! A layout that is not understood to the end gives no nodes instead of wrong ones.

use super::args::{keys, last, size};
use super::smp::{MAX_VCPUS, Smp};
use instep_core::idset::{CpuSet, IdSet, NodeSet};
use instep_core::snapshot::GuestNode;
use instep_core::units::{Bytes, CpuId, Id};
use std::collections::BTreeMap;

/// The most guest nodes that are believed (MAX_NODES of QEMU 10.0, include/sysemu/numa.h).
const MAX_NODES: u32 = 128;
/// The most memory backends that are kept.
const MAX_BACKENDS: usize = 1024;

/// A `memory-backend-*` object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// Its id.
    pub id: String,
    /// Its size.
    pub size: Bytes,
    /// `policy`: `default`, `bind`, `preferred` or `interleave`.
    pub policy: String,
    /// `host-nodes`.
    pub host_nodes: NodeSet,
}

/// The memory backends among `-object` options.
pub fn backends<'a>(options: impl Iterator<Item = &'a str>) -> Vec<Backend> {
    options
        .map(|option| keys(option, "qom-type"))
        .filter(|read| {
            last(read, "qom-type").is_some_and(|kind| kind.starts_with("memory-backend-"))
        })
        .take(MAX_BACKENDS)
        .map(|read| Backend {
            id: last(&read, "id").unwrap_or_default().to_owned(),
            size: Bytes(last(&read, "size").and_then(|text| size(text, 1)).unwrap_or(0)),
            policy: last(&read, "policy").unwrap_or("default").to_owned(),
            host_nodes: ranges(&read, "host-nodes").unwrap_or_default(),
        })
        .collect()
}

/// The host nodes that the backends are bound to and those that they prefer.
pub fn policies(backends: &[Backend]) -> (Option<NodeSet>, Option<NodeSet>) {
    let union = |wanted: &[&str]| {
        let nodes = backends
            .iter()
            .filter(|backend| wanted.contains(&backend.policy.as_str()))
            .fold(NodeSet::new(), |all, backend| all.or(&backend.host_nodes));
        (!nodes.is_empty()).then_some(nodes)
    };
    (union(&["bind"]), union(&["preferred"]))
}

/// The guest's nodes that hold vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Ascending by node id.
    pub nodes: Vec<GuestNode>,
    /// The memory backend of each of them, by its place among the backends; empty unless each has
    /// one.
    pub backends: Vec<usize>,
}

/// A node as it is put together from several options.
#[derive(Default)]
struct Found {
    vcpus: CpuSet,
    memory: Bytes,
    backend: Option<usize>,
}

/// The guest's nodes with vCPUs, from `-numa node,...` and `-numa cpu,...`, ascending by node id.
/// Empty when there are none, when vCPUs are spread by QEMU's default, when a vCPU is named twice
/// or when single cores or threads are assigned.
pub fn nodes<'a>(options: impl Iterator<Item = &'a str>, backends: &[Backend], smp: &Smp) -> Nodes {
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    for option in options.take(2 * MAX_VCPUS as usize) {
        let read = keys(option, "type");
        let understood = match last(&read, "type") {
            Some("node") => add_node(&read, backends, &mut found),
            Some("cpu") => add_socket(&read, smp, &mut found),
            _ => Some(()),
        };
        if understood.is_none() {
            return Nodes::default();
        }
    }
    let all = found.values().fold(CpuSet::new(), |all, node| all.or(&node.vcpus));
    if found.values().map(|node| node.vcpus.len()).sum::<usize>() != all.len() {
        return Nodes::default();
    }
    found.retain(|_, node| !node.vcpus.is_empty());
    let each: Option<Vec<usize>> = found.values().map(|node| node.backend).collect();
    let bound = |node: &Found| {
        let backend = backends.get(node.backend?)?;
        let bound = backend.policy == "bind" && !backend.host_nodes.is_empty();
        bound.then(|| backend.host_nodes.clone())
    };
    let node = |(id, node): (&u32, &Found)| GuestNode {
        id: *id,
        vcpus: node.vcpus.iter().map(Id::raw).collect(),
        memory: node.memory,
        bound: bound(node),
        ..GuestNode::default()
    };
    Nodes { nodes: found.iter().map(node).collect(), backends: each.unwrap_or_default() }
}

fn add_node(
    read: &[(String, String)],
    backends: &[Backend],
    found: &mut BTreeMap<u32, Found>,
) -> Option<()> {
    let id = match last(read, "nodeid") {
        Some(text) => text.parse().ok().filter(|id| *id < MAX_NODES)?,
        None => u32::try_from(found.len()).ok()?,
    };
    let cpus: CpuSet = ranges(read, "cpus")?;
    if cpus.iter().any(|cpu| cpu.0 >= MAX_VCPUS) {
        return None;
    }
    let memdev = last(read, "memdev");
    let backend = memdev.and_then(|id| backends.iter().position(|backend| backend.id == id));
    let memory = match (memdev, last(read, "mem")) {
        (Some(_), _) => backend.map_or(Bytes(0), |place| backends[place].size),
        (None, Some(text)) => Bytes(size(text, 1 << 20)?),
        (None, None) => Bytes(0),
    };
    let node = found.entry(id).or_default();
    node.vcpus = node.vcpus.or(&cpus);
    (node.memory, node.backend) = (memory, backend);
    Some(())
}

/// `-numa cpu,node-id=N,socket-id=S`: understood where whole sockets are assigned.
fn add_socket(
    read: &[(String, String)],
    smp: &Smp,
    found: &mut BTreeMap<u32, Found>,
) -> Option<()> {
    let finer = ["die-id", "cluster-id", "module-id", "core-id", "thread-id"];
    if smp.sockets == 0 || finer.iter().any(|key| last(read, key).is_some()) {
        return None;
    }
    let number = |key: &str| last(read, key)?.parse::<u32>().ok();
    let (node, socket) = (number("node-id")?, number("socket-id")?);
    if node >= MAX_NODES || socket >= smp.sockets {
        return None;
    }
    let each = smp.max / smp.sockets;
    let cpus = (socket * each..(socket + 1) * each).map(CpuId);
    found.entry(node).or_default().vcpus.extend(cpus);
    Some(())
}

/// Every value of `key` as a number or range, together; `None` when one is neither.
fn ranges<T: Id>(read: &[(String, String)], key: &str) -> Option<IdSet<T>> {
    let mut all = IdSet::new();
    for (_, value) in read.iter().filter(|(name, _)| name == key).take(MAX_VCPUS as usize) {
        all = all.or(&IdSet::parse_list(value).ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::NodeId;

    fn of(options: &[&str], objects: &[&str], smp: &str) -> Vec<(Vec<u32>, u64)> {
        let backends = backends(objects.iter().copied());
        let smp = super::super::smp::qemu([smp].into_iter());
        nodes(options.iter().copied(), &backends, &smp)
            .nodes
            .into_iter()
            .map(|node| (node.vcpus, node.memory.0 >> 30))
            .collect()
    }

    #[test]
    fn libvirts_nodes_take_their_memory_from_json_backends() {
        let objects = [
            r#"{"qom-type":"memory-backend-ram","id":"ram-node0","size":4294967296,"host-nodes":[0],"policy":"bind"}"#,
            "memory-backend-ram,id=ram-node1,size=8G,host-nodes=1,host-nodes=3,policy=bind",
            "secret,id=masterKey0",
        ];
        let options = [
            "node,nodeid=0,cpus=0-1,cpus=4,memdev=ram-node0",
            "node,nodeid=1,cpus=2-3,memdev=ram-node1",
        ];
        assert_eq!(of(&options, &objects, "5"), [(vec![0, 1, 4], 4), (vec![2, 3], 8)]);
        let (bound, preferred) = policies(&backends(objects.into_iter()));
        assert_eq!(bound.unwrap().to_string(), "0-1,3");
        assert_eq!(preferred, None);
    }

    #[test]
    fn a_node_is_bound_where_its_own_backend_is() {
        let objects = [
            "memory-backend-ram,id=a,size=4G,host-nodes=2,policy=bind",
            "memory-backend-ram,id=b,size=4G,host-nodes=3,policy=preferred",
        ];
        let backends = backends(objects.into_iter());
        let smp = super::super::smp::qemu(["2"].into_iter());
        let of = |last| nodes(["node,cpus=0,memdev=a", last].into_iter(), &backends, &smp);
        let both = of("node,cpus=1,memdev=b");
        let bound: Vec<_> = both.nodes.iter().map(|node| node.bound.clone()).collect();
        assert_eq!(bound, [Some(NodeSet::one(NodeId(2))), None]);
        assert_eq!(both.backends, [0, 1]);
        assert_eq!([both.nodes[0].id, both.nodes[1].id], [0, 1]);
        let later = of("node,nodeid=7,cpus=1,memdev=b");
        assert_eq!(later.nodes[1].id, 7);
        assert!(of("node,cpus=1,mem=4G").backends.is_empty());
    }

    #[test]
    fn preferring_is_not_binding() {
        let read = backends(
            ["memory-backend-memfd,id=a,size=1G,host-nodes=2,policy=preferred"].into_iter(),
        );
        assert_eq!(policies(&read), (None, Some(NodeSet::one(NodeId(2)))));
        let spread = ["memory-backend-ram,id=a,size=1G,host-nodes=0-1,policy=interleave"];
        assert_eq!(policies(&backends(spread.into_iter())), (None, None));
    }

    #[test]
    fn old_and_socket_forms_are_read() {
        assert_eq!(
            of(&["node,cpus=0-1,mem=2048", "node,cpus=2-3,mem=3G"], &[], "4"),
            [(vec![0, 1], 2), (vec![2, 3], 3)]
        );
        let sockets = [
            "node,nodeid=0,mem=1G",
            "node,nodeid=1,mem=1G",
            "cpu,node-id=0,socket-id=1",
            "cpu,node-id=1,socket-id=0",
        ];
        assert_eq!(of(&sockets, &[], "4,sockets=2"), [(vec![2, 3], 1), (vec![0, 1], 1)]);
    }

    #[test]
    fn what_is_not_understood_gives_no_nodes() {
        for bad in [
            vec!["node,nodeid=0,cpus=0-4294967295"],
            vec!["node,nodeid=0,cpus=0-1", "node,nodeid=1,cpus=1-2"],
            vec!["node,nodeid=900,cpus=0"],
            vec!["node,nodeid=0", "node,nodeid=1"],
            vec!["node,nodeid=0", "cpu,node-id=0,socket-id=0,core-id=1"],
            vec!["node,cpus=fish"],
        ] {
            assert!(of(&bad, &[], "4,sockets=2").is_empty(), "{bad:?}");
        }
    }
}
