//! Soft affinities that work against hard ones (systems.md 1), found and mended, by example.

use crate::check::{apply, settings};
use crate::made::{self, GIB, cpus, vm};
use instep_core::conflict::find;
use instep_core::decision::Action;
use instep_core::idset::NodeSet;
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::Snapshot;
use instep_core::units::NodeId;

fn node(id: u32) -> NodeSet {
    NodeSet::one(NodeId(id))
}

/// 2 nodes of 4 CPUs. A VM of 2 vCPUs whose toolstack chose node 0 when it was made.
fn host(hard: &str) -> Snapshot {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    let mut vm = vm(&host, 1, 2, 100, &[512, 0]);
    vm.emulators.clear();
    made::confine(&mut vm, &cpus(hard));
    made::draw_to(&mut vm, &cpus("0-3"), &node(0));
    host.vms = vec![vm];
    host
}

fn texts(host: &Snapshot) -> Vec<String> {
    find(host).iter().map(|conflict| conflict.kind.to_string()).collect()
}

fn mending(policy: PolicyName) -> PolicySettings {
    PolicySettings { mend_conflicts: true, ..settings(policy) }
}

#[test]
fn vm_as_its_toolstack_placed_it_has_no_conflict() {
    assert_eq!(texts(&host("0-7")), [] as [String; 0]);
    assert_eq!(texts(&host("0-3")), [] as [String; 0]);
    assert_eq!(texts(&host("1-2")), [] as [String; 0]);
}

/// Hard affinity 16-31 with the nodes 0 and 2 as node affinity: node 2 is filled first.
#[test]
fn soft_affinity_that_crowds_a_part_is_found() {
    let mut host = made::host(made::topology(4, 8, 1, 64 * GIB));
    let mut vm = vm(&host, 1, 16, 900, &[]);
    made::confine(&mut vm, &cpus("16-31"));
    made::draw_to(&mut vm, &cpus("0-7,16-23"), &[NodeId(0), NodeId(2)].into_iter().collect());
    host.vms = vec![vm];
    assert_eq!(
        texts(&host),
        [
            "the soft affinity of 16 vCPUs (0,1,2,3,4,5,6,7,...) draws them to CPUs 16-23 and leaves out \
          CPUs 24-31 that they may use"
        ]
    );
}

#[test]
fn soft_affinity_apart_from_the_hard_one_is_found() {
    assert_eq!(
        texts(&host("4-7")),
        [
            "the soft affinity of 2 vCPUs (0,1) is CPUs 0-3, but they may use CPUs 4-7 only: the \
             scheduler ignores it",
            "its node affinity is node 0, so its memory comes from there, but the CPUs it may use are \
             on node 1"
        ]
    );
}

#[test]
fn more_vcpus_than_the_cpus_that_draw_them_are_found() {
    let mut host = host("0-7");
    let mut more = vm(&host, 1, 5, 100, &[512, 0]);
    made::draw_to(&mut more, &cpus("0-3"), &node(0));
    host.vms = vec![more];
    assert!(texts(&host)[0].contains("draws them to CPUs 0-3 and leaves out CPUs 4-7"));
}

/// Policy `none` changes no hard affinity, so only the soft one follows.
#[test]
fn conflict_is_mended_to_the_nodes_of_the_hard_affinity() {
    let host = host("4-7");
    assert!(decide(&host, &settings(PolicyName::None)).actions.is_empty());
    let decision = decide(&host, &mending(PolicyName::None));
    let [Action::SetSoftAffinity { vcpus, nodes, why, .. }] = decision.actions.as_slice() else {
        panic!("{:?}", decision.actions);
    };
    assert_eq!(vcpus, &[(0, cpus("4-7")), (1, cpus("4-7"))]);
    assert_eq!(nodes, &Some(node(1)));
    assert!(why.to_string().starts_with("to node 1, mending a conflict: the soft"), "{why}");
    let after = apply(&host, &decision);
    assert_eq!(texts(&after), [] as [String; 0]);
    assert!(decide(&after, &mending(PolicyName::None)).actions.is_empty());
}

#[test]
fn what_was_mended_is_given_back_when_it_is_not_to_be() {
    let host = host("4-7");
    let after = apply(&host, &decide(&host, &mending(PolicyName::None)));
    let back = apply(&after, &decide(&after, &settings(PolicyName::None)));
    assert_eq!(back.vms[0].soft, host.vms[0].soft);
}

/// A placement by Instep on the other node takes the soft affinity along, asked to mend or not.
#[test]
fn placement_makes_no_conflict_of_its_own() {
    let mut host = host("0-7");
    let mut other = vm(&host, 2, 2, 100, &[512, 0]);
    other.emulators.clear();
    made::draw_to(&mut other, &cpus("0-3"), &node(0));
    host.vms.push(other);
    let decision = decide(&host, &settings(PolicyName::Bind));
    let after = apply(&host, &decision);
    assert_eq!(after.vms[1].allowed(), cpus("4-7"));
    assert_eq!(texts(&after), [] as [String; 0]);
    let soft = after.vms[1].soft.as_ref().unwrap();
    assert_eq!((&soft.vcpus[&0], &soft.nodes), (&cpus("4-7"), &node(1)));
    assert_eq!(after.vms[0].soft, host.vms[0].soft, "what is no conflict stays as it was");
}

/// Policy `none`; all CPUs are preferred, so that only memory comes from the wrong node.
#[test]
fn what_vcpus_prefer_stays_where_only_memory_is_in_conflict() {
    let mut host = host("4-7");
    made::draw_to(&mut host.vms[0], &cpus("0-7"), &node(0));
    assert_eq!(texts(&host).len(), 1);
    let decision = decide(&host, &mending(PolicyName::None));
    let [Action::SetSoftAffinity { vcpus, nodes, .. }] = decision.actions.as_slice() else {
        panic!("{:?}", decision.actions);
    };
    assert_eq!((vcpus.len(), nodes), (0, &Some(node(1))));
}
