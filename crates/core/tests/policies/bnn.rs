//! `bnn` against decisions worked out by hand from systems.md 4, (i) and (ii). VR is in vCPUs.

use crate::check::settings;
use crate::made::{self, GIB, cpus, vm};
use instep_core::decision::{Action, Decision};
use instep_core::policy::{PolicyName, decide};
use instep_core::snapshot::Snapshot;

fn bnn(host: &Snapshot) -> Decision {
    decide(host, &settings(PolicyName::Bnn))
}

/// The home of every VM; `-` where it is left to the kernel.
fn homes(decision: &Decision) -> Vec<String> {
    let home = |selected, home: String| if selected { home } else { "-".to_string() };
    decision.vms.iter().map(|v| home(v.selected, v.home.to_string())).collect()
}

/// Loads (CPUs): a 4.0, b 3.2, c 2.0, d 0.8; total 10, four fifths 8.
/// (i) a: 4 > 8 no; a+b: 7.2 no; a+b+c: 9.2 yes. d stays with the kernel.
/// (ii) n = 2, VR = 14 / 2 = 7 | 7.
/// a (4 vCPUs, 3000 | 1000, mean 2000): candidate 0, 7 >= 4: node 0. VR 3 | 7.
/// b (4, 2000 | 1000, mean 1500): candidate 0, 3 < 4: largest VR is node 1. VR 3 | 3.
/// c (2, 100 | 900, mean 500): candidate 1, 3 >= 2: node 1.
#[test]
fn full_candidate_falls_back_to_the_node_with_most_room() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![
        vm(&host, 1, 4, 1000, &[3000, 1000]),
        vm(&host, 2, 4, 800, &[2000, 1000]),
        vm(&host, 3, 2, 1000, &[100, 900]),
        vm(&host, 4, 4, 200, &[0, 4000]),
    ];
    let decision = bnn(&host);
    assert_eq!(homes(&decision), ["0", "1", "1", "-"]);
    let why: Vec<String> = decision.vms.iter().map(|verdict| verdict.why.to_string()).collect();
    assert_eq!(
        why,
        [
            "best node 0: 2.9GiB of its 3.9GiB lie there",
            "node 0 has its memory but no room: node 1 has the most, 7.00 vCPUs for 4",
            "best node 1: 900MiB of its 1000MiB lie there",
            "in the last fifth of the load: 0.80 of 10.00 CPUs",
        ]
    );
    let b: Vec<_> = decision
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::SetVcpuAffinity { vm, cpus, .. } if vm.0 == 2 => Some(cpus.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(b, vec![cpus("4-7,12-15"); 4]);
}

/// Five VMs on four nodes. Loads: p 4, q 4, r 3, s 2, t 1; total 14, four fifths 11.2.
/// (i) p 4, q 8, r 11 (not more than 11.2), s 13 yes: p, q, r, s.
/// (ii) n = 4, VR = (4 + 4 + 4 + 2 + 1) / 4 = 3.75 each.
/// p (4, 0 | 800 | 800 | 0, mean 400): candidates 1, 2 with equal VR and equal footprint: the
///   lower, 1; 3.75 < 4, so the largest VR of all: all equal, largest footprint 1 and 2, lower: 1.
///   VR 3.75 | -0.25 | 3.75 | 3.75.
/// q (4, 10 | 900 | 20 | 30, mean 240): candidate 1, -0.25 < 4: the largest VR 0, 2, 3; of these
///   the larger footprint: 3. VR 3.75 | -0.25 | 3.75 | -0.25.
/// r (3.0 of 4 vCPUs; 0 | 0 | 0 | 500, mean 125): candidate 3, -0.25 < 4: 0 and 2 have equal VR
///   and footprint: the lower, 0. VR -0.25 | -0.25 | 3.75 | -0.25.
/// s (2, 300 | 0 | 400 | 0, mean 175): candidates 0 and 2, larger VR 2; 3.75 >= 2: node 2.
#[test]
fn four_nodes_and_ties_as_by_hand() {
    let mut host = made::host(made::topology(4, 4, 2, 64 * GIB));
    host.vms = vec![
        vm(&host, 1, 4, 1000, &[0, 800, 800, 0]),
        vm(&host, 2, 4, 1000, &[10, 900, 20, 30]),
        vm(&host, 3, 4, 750, &[0, 0, 0, 500]),
        vm(&host, 4, 2, 1000, &[300, 0, 400, 0]),
        vm(&host, 5, 1, 1000, &[0, 0, 0, 9000]),
    ];
    assert_eq!(homes(&bnn(&host)), ["1", "3", "0", "2", "-"]);
}

/// e has the same memory on both nodes: none exceeds the mean, no candidate. f's memory is not
/// known at all. Loads 2, 2: 2 > 3.2 no, 4 yes: both. VR = 4 / 2 = 2 | 2.
/// e (2): the largest VR, a tie, equal footprints: 0. VR 0 | 2. f (2): node 1.
#[test]
fn vm_without_candidates_takes_the_node_with_most_room() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[700, 700]), vm(&host, 2, 2, 1000, &[])];
    let decision = bnn(&host);
    assert_eq!(homes(&decision), ["0", "1"]);
    assert_eq!(
        decision.vms[0].why.to_string(),
        "no node has more than its share of the VM's memory: node 0 has the most room, 2.00 vCPUs for 2"
    );
}

/// Loads 4 and 1: exactly four fifths is not more than four fifths, so both are selected; with
/// loads 4.001 and 1 the second is not.
#[test]
fn selection_needs_more_than_four_fifths() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 1000, &[9, 1]), vm(&host, 2, 1, 1000, &[1, 9])];
    assert_eq!(homes(&bnn(&host)), ["0", "1"]);
    host.vms[0].vcpus[0].busy.0 += 1_000_000;
    assert_eq!(homes(&bnn(&host)), ["0", "-"]);
}

#[test]
fn host_without_load_is_left_to_the_kernel() {
    let mut host = made::host(made::topology(2, 4, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 0, &[9, 1]), vm(&host, 2, 1, 0, &[1, 9])];
    let decision = bnn(&host);
    assert_eq!(homes(&decision), ["-", "-"]);
    assert!(decision.actions.is_empty());
}

#[test]
fn node_outside_the_cpuset_is_not_forced_on_a_vm() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[10, 900])];
    made::confine(&mut host.vms[0], &cpus("0-1"));
    let decision = bnn(&host);
    assert_eq!(homes(&decision), ["-"]);
    let why = decision.vms[0].why.to_string();
    assert_eq!(why, "node 1 has none of the CPUs it may use (0-1)");
    assert!(decision.actions.is_empty());
}

#[test]
fn unselected_vm_gets_its_initial_affinity_back() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[900, 10]), vm(&host, 2, 1, 1, &[0, 10])];
    host.vms[1].vcpus[0].allowed = cpus("2-3");
    let decision = bnn(&host);
    assert_eq!(homes(&decision), ["0", "-"]);
    let back = decision.actions.iter().find(|action| action.vm().0 == 2);
    assert!(
        matches!(back, Some(Action::SetVcpuAffinity { cpus, .. }) if *cpus == made::cpus("0-3"))
    );
}

#[test]
fn memory_follows_only_when_the_best_node_changed() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[100, 900])];
    let moves = |decision: &Decision| {
        let is_move = |action: &&Action| matches!(action, Action::MoveMemory { .. });
        decision.actions.iter().filter(is_move).count()
    };
    assert_eq!(moves(&bnn(&host)), 1);
    host.vms[0].placed = [instep_core::units::NodeId(1)].into_iter().collect();
    assert_eq!(moves(&bnn(&host)), 0);
}
