//! Proves the checkers: each finds the policy that breaks what it checks, and nothing else is
//! wrong with that policy.

use crate::check::{self, apply, settings};
use crate::made::{self, GIB, vm};
use instep_core::decision::{Action, Decision};
use instep_core::idset::CpuSet;
use instep_core::policy::{PolicyName, decide};
use instep_core::snapshot::Snapshot;
use instep_core::units::{CpuId, NodeId};

/// Two nodes, three VMs, the second of them confined to node 0.
fn host() -> Snapshot {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = (1..=3).map(|id| vm(&host, id, 4, 200 * u64::from(id), &[1000, 2000])).collect();
    made::confine(&mut host.vms[1], &made::cpus("0-3"));
    host
}

/// `bind`, its actions changed.
fn bind_but(host: &Snapshot, change: impl Fn(&mut CpuSet)) -> Decision {
    let mut decision = decide(host, &settings(PolicyName::Bind));
    for action in &mut decision.actions {
        if let Action::SetVcpuAffinity { cpus, .. } = action {
            change(cpus);
        }
    }
    decision
}

fn error(result: Result<(), String>) -> String {
    result.expect_err("the checker saw nothing")
}

#[test]
fn policy_that_leaves_no_cpu_is_caught() {
    let broken = |host: &_| bind_but(host, |cpus| *cpus = CpuSet::new());
    assert!(error(check::sound(&broken, &host())).contains("leaves no CPU"));
}

#[test]
fn policy_that_repeats_what_is_so_is_caught() {
    let broken = |host: &Snapshot| {
        let mut decision = decide(host, &settings(PolicyName::Bind));
        for action in &mut decision.actions {
            if let Action::SetVcpuAffinity { vm, cpus, .. } = action {
                *cpus = host.vm(*vm).map(|vm| vm.vcpus[0].allowed.clone()).unwrap_or_default();
            }
        }
        decision
    };
    assert!(error(check::sound(&broken, &host())).contains("changes nothing"));
}

#[test]
fn policy_that_forgets_a_vm_is_caught() {
    let broken = |host: &_| {
        let mut decision = decide(host, &settings(PolicyName::Bind));
        decision.vms.pop();
        decision
    };
    assert!(error(check::sound(&broken, &host())).contains("verdicts for"));
}

#[test]
fn policy_that_leaves_the_initial_affinity_is_caught() {
    let mut host = host();
    host.vms[1].vcpus[0].allowed = made::cpus("0");
    let broken = |host: &_| bind_but(host, |cpus| _ = cpus.insert(CpuId(9)));
    assert!(error(check::inside(&broken, &host, false)).contains("leaves what is allowed"));
    assert!(check::inside(&broken, &host, true).is_ok(), "inside the cpuset");
}

#[test]
fn policy_that_depends_on_the_order_is_caught() {
    // Deals out nodes in the order in which the VMs come.
    let broken = |host: &Snapshot| {
        let mut decision = decide(host, &settings(PolicyName::None));
        for (turn, verdict) in decision.vms.iter_mut().enumerate() {
            verdict.home = [NodeId(turn as u32 % 2)].into_iter().collect();
        }
        decision
    };
    assert!(error(check::order_does_not_matter(&broken, &host())).contains("order of VMs"));
}

/// Binds where it is not bound and gives back where it is.
fn restless(host: &Snapshot) -> Decision {
    let touched =
        host.vms.iter().any(|vm| vm.vcpus.iter().any(|vcpu| vcpu.allowed != vcpu.initial));
    decide(host, &settings(if touched { PolicyName::None } else { PolicyName::Bind }))
}

#[test]
fn policy_that_flaps_is_caught() {
    assert!(error(check::does_not_flap(&restless, &host())).contains("changed again"));
    let steady = |host: &_| decide(host, &settings(PolicyName::Bind));
    assert!(check::does_not_flap(&steady, &host()).is_ok());
}

/// The home hangs on the last digits of a load.
#[test]
fn policy_that_follows_noise_is_caught() {
    let broken = |host: &Snapshot| {
        let mut decision = decide(host, &settings(PolicyName::Bind));
        let node = host.vms[2].busy().0 % 7 % 2;
        decision.vms[2].home = [NodeId(node as u32)].into_iter().collect();
        decision
    };
    let caught = (0..20).any(|seed| check::homes_survive_noise(&broken, &host(), seed).is_err());
    assert!(caught);
}

/// Packing all on the threads of one node is what the core sharing claim is about.
#[test]
fn policy_that_packs_one_node_shares_more_cores_than_none() {
    let packed = |host: &Snapshot| bind_but(host, |cpus| *cpus = made::cpus("0-3,8-11"));
    let sharing = |host: &Snapshot| crate::score::measure(host).core_sharing;
    let mut host = host();
    host.vms.remove(1);
    let before = sharing(&host);
    assert!(sharing(&apply(&host, &packed(&host))) > before);
}
