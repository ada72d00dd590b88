//! What is said here of the kernel scheduler is what its own C says, compiled for this machine (`instep-scx`),
//! and the simulator's defaults are those of a run: nobody keeps two lists in step by hand.
#![cfg(test)]

use instep_kernel::plan::MAX_CPUS;
use instep_kernel::settings::{DEFAULT_PERIOD, HOST_WEIGHT};
use instep_kernel::table::LIMITS;
use instep_kernel::{Cosched, Mechanisms, SchedulerSettings};
use instep_scx::instep;
use std::time::Duration;

#[test]
fn the_simulators_defaults_are_those_of_a_run() {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap();
    // Each by its name: a new setting is missed by the compiler, here or there.
    let SchedulerSettings { slice, slot, wake_slack, lag, host_weight, mechanisms } =
        SchedulerSettings::default();
    let run = instep::Settings {
        slice: ns(slice),
        slot: ns(slot),
        wake_slack: ns(wake_slack),
        lag: ns(lag),
        period: ns(DEFAULT_PERIOD),
        host_weight: host_weight.unwrap_or(HOST_WEIGHT),
        without: Mechanisms::ALL.0 & !mechanisms.0,
    };
    assert_eq!(instep::Settings::default(), run);
}

#[test]
fn limits_and_mechanisms_are_those_of_the_c() {
    let c = instep::limits();
    assert_eq!(c.cpus, MAX_CPUS as usize);
    // Entry 0 is the host's own, which is no VM.
    assert_eq!(c.vms + 1, LIMITS.vms as usize);
    assert_eq!((c.vcpus, c.vcpus_of_one), (LIMITS.slots as usize, LIMITS.vcpus as usize));
    assert_eq!(instep::mechanisms(), Mechanisms::ALL.0);
}

#[test]
fn co_scheduling_has_the_same_numbers() {
    for (here, there) in [
        (Cosched::Auto, instep::Cosched::Auto),
        (Cosched::Never, instep::Cosched::Never),
        (Cosched::Relaxed, instep::Cosched::Relaxed),
        (Cosched::default(), instep::Cosched::default()),
    ] {
        assert_eq!(here.raw(), there as u32, "{here}");
    }
}
