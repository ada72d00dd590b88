//! The stated score by example.

use crate::made::{self, GIB, cpus, vm};
use instep_core::score::{Score, measure};
use instep_core::units::Milli;

/// 2 nodes x 2 cores x 2 threads; CPUs 0-1 and 4-5 are node 0, core k is CPUs k and k + 4.
fn one_vm(vcpus: u32, milli: u64, list: &str, mib: &[u64]) -> Score {
    let mut host = made::host(made::topology(2, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, vcpus, milli, mib)];
    made::confine(&mut host.vms[0], &cpus(list));
    measure(&host)
}

#[test]
fn lone_vm_on_its_memory_loses_nothing() {
    let score = one_vm(2, 1000, "0-1,4-5", &[100, 0]);
    assert_eq!((score.locality, score.core_sharing), (Milli(1000), Milli(0)));
    assert_eq!((score.balance, score.combined), (Milli(1000), Milli(1000)));
}

/// Half the memory at distance 16: 0.5 * 0.6 * 20 % = 6 % lost.
#[test]
fn remote_memory_costs_by_distance() {
    let score = one_vm(2, 1000, "0-1", &[100, 100]);
    assert_eq!((score.locality, score.combined), (Milli(500), Milli(940)));
}

/// 50 % and 50 % on the two CPUs of one core count 0.25 (systems.md 1); 0.7 of it is lost of 1.
#[test]
fn siblings_of_a_core_compete_by_their_product() {
    let score = one_vm(2, 500, "0,4", &[100, 0]);
    assert_eq!((score.core_sharing, score.combined), (Milli(250), Milli(825)));
}

#[test]
fn two_busy_vcpus_on_one_cpu_wait_for_each_other() {
    let score = one_vm(2, 1000, "0", &[100, 0]);
    assert_eq!((score.balance, score.combined), (Milli(500), Milli(500)));
}

#[test]
fn idle_host_scores_full_marks() {
    let score = one_vm(2, 0, "0-7", &[]);
    assert_eq!((score.locality, score.combined), (Milli(1000), Milli(1000)));
}

/// The bound vCPUs take their cores first, the free ones fill the idle cores.
#[test]
fn free_vcpus_avoid_cores_that_bound_ones_need() {
    let mut host = made::host(made::topology(2, 2, 2, GIB));
    host.vms = vec![vm(&host, 1, 2, 1000, &[]), vm(&host, 2, 2, 1000, &[])];
    made::confine(&mut host.vms[1], &cpus("0-1"));
    assert_eq!(measure(&host).core_sharing, Milli(0));
}
