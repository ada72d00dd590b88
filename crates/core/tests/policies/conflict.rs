//! Affinity conflicts by example, reported and mended.

use crate::check::{apply, settings};
use crate::made::{self, GIB, cpus, vm};
use instep_core::conflict::find;
use instep_core::idset::NodeSet;
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::Snapshot;
use instep_core::units::{CpuId, NodeId};

/// 2 nodes x 4 cores x 2 threads, core k is CPUs k and k + 8, and one VM of 4 vCPUs.
fn host() -> Snapshot {
    let mut host = made::host(made::topology(2, 4, 2, 64 * GIB));
    host.vms = vec![vm(&host, 1, 4, 900, &[0, 2000])];
    host
}

fn texts(host: &Snapshot) -> Vec<String> {
    find(host).iter().map(|conflict| conflict.kind.to_string()).collect()
}

fn nodes(list: &[u32]) -> NodeSet {
    list.iter().map(|id| NodeId(*id)).collect()
}

#[test]
fn vm_as_it_comes_has_no_conflict() {
    assert_eq!(texts(&host()), [] as [String; 0]);
}

/// systems.md 1: hard affinity 16-31 with soft affinity nodes 0 and 2 of four.
#[test]
fn preferred_nodes_that_miss_allowed_cpus_are_found() {
    let mut host = made::host(made::topology(4, 8, 1, 64 * GIB));
    host.vms = vec![vm(&host, 1, 16, 900, &[])];
    made::confine(&mut host.vms[0], &cpus("16-31"));
    host.vms[0].preferred = Some(nodes(&[0, 2]));
    assert_eq!(texts(&host), ["the preferred nodes 0,2 leave out CPUs 24-31 that it may use"]);
    host.vms[0].preferred = Some(nodes(&[2, 3]));
    assert!(find(&host).is_empty());
}

#[test]
fn vcpus_forced_together_while_cores_are_free_are_found() {
    let mut host = host();
    made::confine(&mut host.vms[0], &cpus("0-1,8"));
    assert_eq!(texts(&host), ["4 vCPUs (0,1,2,3) may use only CPUs 0-1,8 while 6 cores are free"]);
    made::confine(&mut host.vms[0], &cpus("0-1,8-9"));
    assert_eq!(
        texts(&host),
        ["4 vCPUs (0,1,2,3) may use only 2 cores (CPUs 0-1,8-9) while 6 cores are free"]
    );
    // The other six cores are busy: nothing better is to be had.
    let mut busy = vm(&host, 2, 6, 900, &[]);
    for (vcpu, cpu) in busy.vcpus.iter_mut().zip(2..) {
        vcpu.cpu = Some(CpuId(cpu));
    }
    host.vms.push(busy);
    assert!(find(&host).is_empty());
}

/// A host with one VM whose vCPUs are pinned to these CPUs.
fn pinned(lists: &[&str]) -> Snapshot {
    let mut host = host();
    host.vms = vec![vm(&host, 1, lists.len() as u32, 900, &[0, 2000])];
    for (vcpu, list) in host.vms[0].vcpus.iter_mut().zip(lists) {
        (vcpu.allowed, vcpu.initial) = (cpus(list), cpus(list));
    }
    host
}

#[test]
fn vcpus_pinned_to_threads_of_one_core_are_found() {
    let shared = "2 vCPUs (0,1) may use only 1 core (CPUs 0,8) while 7 cores are free";
    for lists in [["0", "8"], ["0", "0,8"], ["8", "0"]] {
        assert_eq!(texts(&pinned(&lists)), [shared], "{lists:?}");
    }
    assert_eq!(
        texts(&pinned(&["0", "0,8", "8", "1"])),
        ["3 vCPUs (0,1,2) may use only CPUs 0,8 while 6 cores are free"]
    );
    assert_eq!(
        texts(&pinned(&["0", "8-9", "1,8", "0-1"])),
        ["4 vCPUs (0,1,2,3) may use only 2 cores (CPUs 0-1,8-9) while 6 cores are free"]
    );
    assert_eq!(texts(&pinned(&["0", "0-1", "1-2", "2-3"])), [] as [String; 0]);
}

/// It is not known where other load runs: half a CPU may make two cores busy.
#[test]
fn cores_that_other_load_may_use_are_not_free() {
    let mut host = pinned(&["0", "0"]);
    host.other_busy.0 = made::WINDOW.0 / 2;
    assert_eq!(texts(&host), ["2 vCPUs (0,1) may use only CPU 0 while 5 cores are free"]);
    host.other_busy.0 = made::WINDOW.0 * 2;
    assert_eq!(texts(&host), [] as [String; 0]);
}

#[test]
fn mending_sets_vcpus_on_siblings_apart() {
    let host = pinned(&["0", "8"]);
    let mend = PolicySettings { mend_conflicts: true, ..settings(PolicyName::Instep) };
    let after = apply(&host, &decide(&host, &mend));
    assert!(find(&after).is_empty(), "{:?}", find(&after));
}

/// Eight vCPUs one to one on the eight CPUs of a cpuset: no core is left for any.
#[test]
fn cores_that_the_other_vcpus_need_are_not_free() {
    let mut host = pinned(&["0", "8", "1", "9", "2", "10", "3", "11"]);
    host.vms[0].cpuset = cpus("0-3,8-11");
    assert!(find(&host).is_empty(), "{:?}", texts(&host));
    host.vms[0].vcpus.truncate(7);
    assert!(find(&host).is_empty(), "{:?}", texts(&host));
    host.vms[0].vcpus.drain(3..);
    assert_eq!(
        texts(&host),
        ["2 vCPUs (0,1) may use only 1 core (CPUs 0,8) while 2 cores are free"]
    );
}

/// What is recommended for guests that see threads.
#[test]
fn guest_threads_pinned_to_threads_of_one_core_are_no_conflict() {
    let mut host = pinned(&["0", "8", "1,9", "1,9"]);
    host.vms[0].guest_threads_per_core = 2;
    assert_eq!(texts(&host), [] as [String; 0]);
    let (allowed, initial) = (cpus("0"), cpus("0"));
    (host.vms[0].vcpus[1].allowed, host.vms[0].vcpus[1].initial) = (allowed, initial);
    assert_eq!(texts(&host), ["2 vCPUs (0,1) may use only CPU 0 while 6 cores are free"]);
}

#[test]
fn guest_threads_pinned_to_different_cores_are_found() {
    let mut host = host();
    host.vms[0].guest_threads_per_core = 2;
    for (vcpu, list) in host.vms[0].vcpus.iter_mut().zip(["0", "1", "2", "10"]) {
        (vcpu.allowed, vcpu.initial) = (cpus(list), cpus(list));
    }
    assert_eq!(
        texts(&host),
        ["the 2 threads of 1 virtual core (0) are pinned to different cores, those of the first \
          to CPUs 0-1"]
    );
}

#[test]
fn cores_given_by_instep_are_no_conflict() {
    let mut host = host();
    host.vms[0].guest_threads_per_core = 2;
    let after = apply(&host, &decide(&host, &settings(PolicyName::Instep)));
    assert_eq!(after.vms[0].vcpus[0].allowed, cpus("4,12"));
    assert!(find(&after).is_empty());
}

#[test]
fn memory_bound_away_from_the_cpus_is_found() {
    let mut host = host();
    made::confine(&mut host.vms[0], &cpus("0-3"));
    host.vms[0].memory_bound = Some(nodes(&[1]));
    assert_eq!(texts(&host), ["memory is bound to node 1, the CPUs it may use are on node 0"]);
}

#[test]
fn conflicts_are_mended_only_when_asked_and_stay_mended() {
    let mut host = host();
    made::confine(&mut host.vms[0], &cpus("0-1"));
    let left = decide(&host, &settings(PolicyName::Instep));
    assert!(left.actions.is_empty());
    assert_eq!(left.conflicts.len(), 1);
    let mend = PolicySettings { mend_conflicts: true, ..settings(PolicyName::Instep) };
    let decision = decide(&host, &mend);
    assert_eq!(
        decision.vms[0].why.to_string(),
        "to node 1, mending a conflict: 4 vCPUs (0,1,2,3) may use only CPUs 0-1 while 6 cores are \
         free"
    );
    let after = apply(&host, &decision);
    assert_eq!(after.vms[0].vcpus[3].allowed, cpus("7,15"));
    assert!(find(&after).is_empty());
    assert!(decide(&after, &mend).actions.iter().all(|action| action.vm().0 != 1));
}

#[test]
fn vm_in_conflict_on_full_host_of_one_node_gets_its_whole_cpuset() {
    let mut host = made::host(made::topology(1, 4, 1, 64 * GIB));
    host.vms = (1..=3).map(|id| vm(&host, id, 4, 900, &[2000])).collect();
    made::confine(&mut host.vms[0], &cpus("0"));
    let mend = PolicySettings { mend_conflicts: true, ..settings(PolicyName::Instep) };
    let after = apply(&host, &decide(&host, &mend));
    assert_eq!(after.vms[0].vcpus[0].allowed, cpus("0-3"));
}
