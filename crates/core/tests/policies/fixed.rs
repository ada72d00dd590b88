//! `none`, `bind` and `spread` by example.

use crate::check::settings;
use crate::made::{self, GIB, cpus, vm};
use instep_core::decision::{Action, Decision};
use instep_core::idset::CpuSet;
use instep_core::policy::{PolicyName, decide};

fn vcpu_sets(decision: &Decision, id: u32) -> Vec<CpuSet> {
    let of = |action: &Action| match action {
        Action::SetVcpuAffinity { vm, cpus, .. } if vm.0 == id => Some(cpus.clone()),
        _ => None,
    };
    decision.actions.iter().filter_map(of).collect()
}

#[test]
fn none_changes_nothing_but_gives_back_what_instep_changed() {
    let mut host = made::host(made::topology(2, 2, 1, GIB));
    host.vms = vec![vm(&host, 1, 2, 500, &[10]), vm(&host, 2, 2, 500, &[10])];
    host.vms[1].vcpus[0].allowed = cpus("1");
    let decision = decide(&host, &settings(PolicyName::None));
    assert_eq!(decision.actions.len(), 1);
    assert_eq!(vcpu_sets(&decision, 2), [cpus("0-3")]);
    assert!(decision.vms.iter().all(|verdict| !verdict.selected && verdict.home.is_empty()));
}

#[test]
fn bind_deals_vms_out_to_nodes_in_turn() {
    let mut host = made::host(made::topology(2, 2, 1, GIB));
    host.vms = (1..=3).map(|id| vm(&host, id, 2, 0, &[10])).collect();
    let decision = decide(&host, &settings(PolicyName::Bind));
    let homes: Vec<String> = decision.vms.iter().map(|v| v.home.to_string()).collect();
    assert_eq!(homes, ["0", "1", "0"]);
    assert_eq!(vcpu_sets(&decision, 2), [cpus("2-3"), cpus("2-3")]);
    assert_eq!(decision.vms[2].why.to_string(), "number 3 in order of id: node 0 in turn");
}

/// CPUs 0-3 are the first threads of four cores, 4-7 the second.
#[test]
fn spread_gives_the_lowest_permitted_cpu_of_every_core() {
    let mut host = made::host(made::topology(2, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, 2, 500, &[10]), vm(&host, 2, 2, 500, &[10])];
    made::confine(&mut host.vms[1], &cpus("2,4-6"));
    let decision = decide(&host, &settings(PolicyName::Spread));
    assert_eq!(vcpu_sets(&decision, 1), [cpus("0-3"), cpus("0-3")]);
    assert_eq!(vcpu_sets(&decision, 2), [cpus("2,4-5"), cpus("2,4-5")]);
}

#[test]
fn spread_leaves_a_vm_with_more_vcpus_than_cores() {
    let mut host = made::host(made::topology(1, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, 3, 500, &[10])];
    let decision = decide(&host, &settings(PolicyName::Spread));
    assert!(decision.actions.is_empty());
    let why = decision.vms[0].why.to_string();
    assert_eq!(why, "its 3 vCPUs may use only 2 cores: one CPU of each is too few");
}

/// CPUs 0 and 4 are one core, and so are 1 and 5.
#[test]
fn spread_counts_cores_not_cpus_where_vcpus_may_use_different_ones() {
    let why = |first: &str, second: &str| {
        let mut host = made::host(made::topology(2, 2, 2, GIB));
        host.vms = vec![vm(&host, 1, 2, 500, &[10])];
        for (vcpu, list) in host.vms[0].vcpus.iter_mut().zip([first, second]) {
            (vcpu.allowed, vcpu.initial) = (cpus(list), cpus(list));
        }
        let decision = decide(&host, &settings(PolicyName::Spread));
        assert!(decision.actions.is_empty());
        decision.vms[0].why.to_string()
    };
    assert_eq!(why("0", "4"), "its 2 vCPUs may use only 1 core: one CPU of each is too few");
    assert_eq!(why("0-1", "4-5"), "its vCPUs may use different CPUs: one per core is 4 of 2 cores");
    assert_eq!(why("0", "5"), "one CPU of each of 2 cores");
}
