//! Relaxed co-scheduling bounds the skew of siblings, whatever they run, and keeps others' shares.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::report::SimulationReport;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

const MS: u64 = 1_000_000;
const SPIN_BARRIERS: &str = "instep-load barrier --kind spin --phase 1ms --imbalance 10%";

/// VMs of so many vCPUs, each with a load, beside each other.
fn report(host: &str, scheduler: &str, vms: &[(u32, &str)]) -> SimulationReport {
    let mut text = format!(
        "about = \"x\"\nscheduler = \"{scheduler}\"\nduration = \"5s\"\nhost = {{ {host} }}\n"
    );
    for (at, (vcpus, load)) in vms.iter().enumerate() {
        text.push_str(&format!(
            "[[guest]]\nname = \"g{at}\"\nvcpus = {vcpus}\nmemory = \"1GiB\"\nload = \"{load}\"\n"
        ));
    }
    let scenario = Scenario::parse(&text).unwrap();
    SimulationPlan::new(&scenario, &|_| Err(String::new())).unwrap().report().unwrap()
}

/// The threshold is 3 ms, and looks come each millisecond: of VMs that always want to run nobody falls
/// behind by more than the one and fifteen of the other, in crowds; two VMs stay well below.
fn bounded(host: &str, vms: &[(u32, &str)]) {
    let report = report(host, "relaxed", vms);
    for vm in &report.vms {
        assert!(vm.max_skew_ns <= 18 * MS, "{}: {} ns", vm.name, vm.max_skew_ns);
    }
}

#[test]
fn relaxed_bounds_the_skew_of_vms_that_always_want_to_run() {
    bounded("machine = \"kvm-4\"", &[(4, SPIN_BARRIERS), (4, "spin")]);
    bounded("machine = \"kvm-4\"", &[(4, "spin"), (4, "spin")]);
    bounded("machine = \"kvm-4\"", &[(4, "spin"), (1, "spin")]);
    bounded("machine = \"kvm-4\"", &[(3, SPIN_BARRIERS), (2, "spin"), (4, "spin")]);
    bounded("cores = 8, memory = \"9GiB\"", &[(4, SPIN_BARRIERS), (4, "spin"), (8, "spin")]);
}

#[test]
fn relaxed_co_schedules_spinning_vms_and_keeps_shares() {
    let vms = [(4, SPIN_BARRIERS), (4, "spin")];
    let of = |name| report("machine = \"kvm-4\"", name, &vms);
    let (relaxed, cfs) = (of("relaxed"), of("cfs"));
    assert!(relaxed.vms[0].co_run > cfs.vms[0].co_run + 0.2);
    assert!(relaxed.vms[0].fair_share_speed > Some(0.75));
    assert!(relaxed.vms[1].fair_share_speed > Some(0.85));
}
