//! What `instep` decided it does not change again while nothing else changes: situations in which it
//! once did.

use crate::check::{self, apply, settings};
use crate::made::{self, GIB, cpus, vm};
use instep_core::decision::{Action, Decision};
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::Snapshot;
use instep_core::units::NodeId;

fn homes(decision: &Decision) -> Vec<String> {
    decision.vms.iter().map(|verdict| verdict.home.to_string()).collect()
}

/// What the next decision sets, with this one in force.
fn sets_next(host: &Snapshot, first: &Decision, settings: &PolicySettings) -> Vec<Action> {
    let next = decide(&apply(host, first), settings);
    let sets = |action: &Action| !matches!(action, Action::MoveMemory { .. });
    next.actions.into_iter().filter(sets).collect()
}

/// From nothing no plan is found in which both VMs have cores of their own, as both have their memory
/// on node 1; from the plan for their loads there is one. It is taken at once, not one decision later.
#[test]
fn cores_that_the_next_decision_would_find_are_given_at_once() {
    let mut host = made::host(made::topology(3, 2, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 1, 200, &[0, 1024, 0]), vm(&host, 2, 2, 500, &[2048, 4096, 0])];
    host.vms.iter_mut().for_each(|vm| vm.emulators.clear());
    let settings = settings(PolicyName::Instep);
    let first = decide(&host, &settings);
    assert_eq!(homes(&first), ["0", "1"]);
    assert_eq!(sets_next(&host, &first, &settings), []);
}

/// VM 3 arrives where two VMs are on node 1. It is not narrowed to a node from which the next decision
/// would move it, or another VM.
#[test]
fn vm_is_not_narrowed_to_where_the_next_decision_would_move_one() {
    let mut host = made::host(made::topology(2, 2, 1, 64 * GIB));
    host.vms = vec![
        vm(&host, 1, 2, 800, &[0, 2048]),
        vm(&host, 2, 2, 500, &[2048, 0]),
        vm(&host, 3, 1, 300, &[0, 1024]),
    ];
    host.vms.iter_mut().for_each(|vm| vm.emulators.clear());
    for vm in &mut host.vms[..2] {
        vm.placed = [NodeId(1)].into_iter().collect();
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = cpus("2-3"));
    }
    let settings = settings(PolicyName::Instep);
    let first = decide(&host, &settings);
    assert_eq!(homes(&first), ["0", "1", "1"]);
    assert_eq!(sets_next(&host, &first, &settings), []);
}

/// Four vCPUs that wait for each other on one CPU share no core with anybody; mended, they do. No plan
/// is within what the kernel would share without mending, so that the limit is what it would with it.
#[test]
fn mended_vm_that_shares_more_cores_than_before_stays_where_it_is() {
    let mut host = made::host(made::topology(2, 2, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 500, &[4096, 0]), vm(&host, 2, 2, 600, &[0, 4096])];
    host.vms.iter_mut().for_each(|vm| vm.emulators.clear());
    made::confine(&mut host.vms[0], &cpus("0"));
    let settings = PolicySettings { mend_conflicts: true, ..settings(PolicyName::Instep) };
    let first = decide(&host, &settings);
    assert_eq!(homes(&first), ["0", "1"]);
    assert_eq!(sets_next(&host, &first, &settings), []);
}

/// Random hosts, each with `limits`, `mend` and `pinned`, that flapped: cores found one decision late,
/// narrowing that led to moves, a limit for a mended VM that no plan was within, and VMs that were divided over
/// caches otherwise once the plan was in force.
#[test]
fn hosts_on_which_homes_once_flapped_settle() {
    let hosts = [
        (12_309_011_973_396_602_219, false, false, false),
        (3_520_423_290_153_973_425, false, false, false),
        (7_044_566_194_613_940_816, true, false, false),
        (11_876_185_078_298_361_764, true, false, false),
        (2_757_181_642_701_235_887, true, false, false),
        (7_003_686_873_779_487_146, true, false, true),
        (16_427_014_590_715_139_956, true, false, false),
        (11_570_227_452_426_631_546, true, false, true),
        (10_736_617_788_635_338_949, true, true, false),
        (10_771_423_243_123_939_297, true, true, false),
        (6_455_624_487_220_235_079, true, false, false),
        (1322, true, false, false),
        (1589, true, false, false),
    ];
    for (seed, limits, mend_conflicts, include_pinned) in hosts {
        let mut host = made::random(seed);
        if limits {
            made::restrict(&mut host, seed);
        }
        let settings =
            PolicySettings { mend_conflicts, include_pinned, ..settings(PolicyName::Instep) };
        let kept = check::does_not_flap(&|host: &_| decide(host, &settings), &host);
        assert!(kept.is_ok(), "seed {seed}: {kept:?}");
    }
}

/// Random hosts of three caches in a node that flapped: VMs with cores of their own in fewer caches than they may
/// use, and vCPUs that are pinned to CPUs of caches that not all of the VM may use.
#[test]
fn hosts_of_several_caches_on_which_vms_once_flapped_settle() {
    for (seed, include_pinned) in [(20, false), (34, false), (36, false), (293, true), (656, true)]
    {
        let mut host = made::random_of_caches(seed, 3);
        made::restrict(&mut host, seed);
        let settings = PolicySettings { include_pinned, ..settings(PolicyName::Instep) };
        let kept = check::does_not_flap(&|host: &_| decide(host, &settings), &host);
        assert!(kept.is_ok(), "seed {seed}: {kept:?}");
    }
}

/// A heavy VM fills half of a node's threads, six light ones crowd. What a light one loses by waiting where all are is more
/// than the heavy one loses by sharing its cores with one of them: shares by weight are fair where nobody starves.
#[test]
fn light_vms_do_not_all_crowd_away_from_a_heavy_one() {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = (1..=7).map(|id| vm(&host, id, 4, 1000, &[200, 200])).collect();
    host.vms[0].weight = 300;
    let decision = decide(&host, &settings(PolicyName::Instep));
    let heavy = decision.vms[0].home.clone();
    let beside = decision.vms[1..].iter().filter(|verdict| verdict.home == heavy).count();
    assert!((1..=3).contains(&beside), "{beside} of 6 light VMs on {heavy}");
}
