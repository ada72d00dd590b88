//! Drawings of small and large hosts, and the JSON schema.

use super::*;
use instep_core::topology::{CpuFacts, NodeFacts};

/// `nodes` nodes of `llcs` LLCs of `cores` cores of `threads` CPUs, one package a node, numbered
/// as Linux does on x86: second threads after all first ones.
fn host(nodes: u32, llcs: u32, cores: u32, threads: u32) -> Topology {
    let all = nodes * llcs * cores;
    let core_cpus = |core: u32| (0..threads).map(move |thread| CpuId(core + thread * all));
    let llc_cpus = |llc: u32| (llc * cores..(llc + 1) * cores).flat_map(core_cpus).collect();
    let node_cpus =
        |node: u32| (node * llcs * cores..(node + 1) * llcs * cores).flat_map(core_cpus).collect();
    let cpu = |id: u32| CpuFacts {
        id,
        package: Some(id % all / (llcs * cores)),
        thread_siblings: Some(core_cpus(id % all).collect()),
        l1i: None,
        l2: Some(core_cpus(id % all).collect()),
        llc: Some(llc_cpus(id % all / cores)),
        kind: None,
    };
    let node = |id: u32| NodeFacts {
        id,
        cpus: node_cpus(id),
        memory: Bytes::from_mib(16 << 10),
        distances: (0..nodes).map(|to| if to == id { 10 } else { 21 }).collect(),
    };
    Topology::build((0..all * threads).map(cpu).collect(), (0..nodes).map(node).collect()).unwrap()
}

fn hybrid() -> Topology {
    let list = |text: &str| Some(CpuSet::parse_list(text).unwrap());
    let cpu = |id: u32| {
        let core =
            if id < 4 { format!("{}-{}", id / 2 * 2, id / 2 * 2 + 1) } else { id.to_string() };
        CpuFacts {
            id,
            package: Some(0),
            thread_siblings: list(&core),
            l1i: list(&core),
            l2: list(if id < 4 { &core } else { "4-7" }),
            llc: list("0-7"),
            kind: Some(if id < 4 { CoreKind::Performance } else { CoreKind::Efficient }),
        }
    };
    let node = |id, cpus: &str| NodeFacts {
        id,
        cpus: CpuSet::parse_list(cpus).unwrap(),
        memory: Bytes::from_mib(32 << 10),
        distances: if id == 0 { vec![10, 17] } else { vec![17, 10] },
    };
    Topology::build((0..8).map(cpu).collect(), vec![node(0, "0-7"), node(1, "")]).unwrap()
}

fn fits(drawing: &str, width: usize) {
    for line in drawing.lines() {
        assert!(line.len() <= width, "{} columns: {line}", line.len());
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn a_small_host_is_drawn_in_a_few_lines() {
    assert_eq!(
        draw(&host(1, 1, 2, 1), 80),
        "\
2 CPUs, 2 cores, 1 LLC, 1 package, 1 node

node 0  16GiB
  LLC 0  [0] [1]

[..] the CPUs of one core
"
    );
}

#[test]
fn two_nodes_show_distances_and_threads() {
    assert_eq!(
        draw(&host(2, 1, 2, 2), 80),
        "\
8 CPUs, 4 cores, 2 LLCs, 2 packages, 2 nodes

node 0  16GiB  package 0  distances 10 21
  LLC 0  [0 4] [1 5]

node 1  16GiB  package 1  distances 21 10
  LLC 1  [2 6] [3 7]

[..] the CPUs of one core   distance 10 is local
"
    );
}

#[test]
fn a_hybrid_host_shows_kinds_clusters_and_memory_without_cpus() {
    assert_eq!(
        draw(&hybrid(), 80),
        "\
8 CPUs, 6 cores, 3 clusters, 1 LLC, 1 package, 2 nodes

node 0  32GiB  distances 10 17
  LLC 0  P [0 1] [2 3]
         E {[4] [5] [6] [7]}

node 1  32GiB  distances 17 10
  no CPUs, memory only

[..] the CPUs of one core   {..} cores that share an L2
P performance, E efficient   distance 10 is local
"
    );
}

#[test]
fn cores_that_have_an_llc_each_share_a_line() {
    let drawing = draw(&host(2, 2, 1, 1), 80);
    assert!(drawing.contains("  LLC 0-1, one a core  [0] [1]\n"), "{drawing}");
}

#[test]
fn large_hosts_fit_the_width() {
    let large = draw(&host(2, 8, 8, 2), 80);
    fits(&large, 80);
    assert!(large.lines().count() < 60, "{large}");
    assert!(large.contains("  LLC 15  [120 248] [121 249]"), "{large}");
    fits(&draw(&host(8, 1, 4, 2), 80), 80);
    for width in [0, 40, 50, 60, 100] {
        fits(&draw(&host(16, 1, 16, 2), width), width.max(40));
    }
}

#[test]
fn warnings_are_wrapped_under_one_another() {
    let cpus = (0..100).map(|id| CpuFacts { id, package: Some(id % 2), ..CpuFacts::default() });
    let odd = (0..50).map(|id| CpuId(2 * id)).collect();
    let nodes = vec![NodeFacts { id: 0, cpus: odd, memory: Bytes(1), distances: vec![10] }];
    let drawing = draw(&Topology::build(cpus.collect(), nodes).unwrap(), 80);
    fits(&drawing, 80);
    assert!(drawing.contains("\nwarning: CPUs 1,3,5,"), "{drawing}");
    assert!(drawing.contains("\n         "), "{drawing}");
}

#[test]
fn the_json_has_the_promised_schema() {
    let text = serde_json::to_string(&view(&host(1, 1, 1, 2))).unwrap();
    assert_eq!(
        text,
        "{\"schema\":\"instep.topology/1\",\
         \"counts\":{\"cpus\":2,\"cores\":1,\"clusters\":1,\"llcs\":1,\"packages\":1,\"nodes\":1},\
         \"cpus\":[\
         {\"id\":0,\"core\":0,\"llc\":0,\"package\":0,\"node\":0,\"cluster\":0,\"kind\":null},\
         {\"id\":1,\"core\":0,\"llc\":0,\"package\":0,\"node\":0,\"cluster\":0,\"kind\":null}],\
         \"nodes\":[{\"id\":0,\"memory_bytes\":17179869184,\"cpus\":[0,1],\"distances\":[10]}],\
         \"warnings\":[]}"
    );
    let hybrid = serde_json::to_value(view(&hybrid())).unwrap();
    assert_eq!(hybrid["cpus"][7]["kind"], "efficient");
    assert_eq!(hybrid["nodes"][1]["cpus"], serde_json::json!([]));
}
