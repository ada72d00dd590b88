//! The analysis of real traces against the text of the recorders' own tools: run time and steal of
//! every vCPU within 1 %, and what the trace must show.

mod common;
#[path = "common/sums.rs"]
mod sums;

use common::shared;
use std::path::Path;
use sums::{assert_agree, printed, report, timehist, trace_cmd};

#[test]
fn sums_agree_with_perf_sched_timehist() {
    let Some(path) = shared("kvm-3vms/host.perf.data") else { return };
    let args = ["sched", "timehist", "--state", "-i", path.to_str().unwrap()];
    let Some(text) = printed("perf", &args) else { return };
    assert_agree(&report(&path, false), &timehist(&text), 4);
}

#[test]
fn sums_agree_with_trace_cmd_report() {
    let Some(path) = shared("kvm-3vms/host.trace.dat") else { return };
    let Some(text) = printed("trace-cmd", &["report", "-t", path.to_str().unwrap()]) else {
        return;
    };
    assert_agree(&report(&path, false), &trace_cmd(&text, false), 4);
    // As `instep analyze` does it: from the trace's first event to its last.
    assert_agree(&report(&path, true), &trace_cmd(&text, true), 4);
}

/// Three VMs of eight vCPUs, recorded in an emulated host (scenarios/lab/recording.toml).
#[test]
fn sums_of_three_vms_agree_with_perf_sched_timehist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/three-vms/host.perf.data");
    let args = ["sched", "timehist", "--state", "-i", path.to_str().unwrap()];
    let Some(text) = printed("perf", &args) else { return };
    assert_agree(&report(&path, false), &timehist(&text), 8);
}

#[test]
fn both_traces_show_the_same_vms() {
    let (Some(perf), Some(dat)) =
        (shared("kvm-3vms/host.perf.data"), shared("kvm-3vms/host.trace.dat"))
    else {
        return;
    };
    // perf tells processes; trace.dat does not, and wakers put the same threads together.
    let mut threads: Vec<Vec<u32>> = Vec::new();
    for path in [perf, dat] {
        let report = report(&path, true);
        let of = |vm: &instep_trace::analysis::report::AnalysedVm| {
            vm.vcpus.iter().map(|vcpu| vcpu.tid).collect::<Vec<_>>()
        };
        let mut vms: Vec<Vec<u32>> = report.vms.iter().map(of).collect();
        vms.sort();
        threads.push(vms.concat());
        // Every vCPU's time is accounted for, all of it.
        for vcpu in report.vms.iter().flat_map(|vm| &vm.vcpus) {
            let sum =
                [vcpu.run_ns, vcpu.steal_ns, vcpu.blocked_ns].into_iter().flatten().sum::<u64>();
            assert_eq!(sum, report.duration_ns, "thread {}", vcpu.tid);
        }
    }
    assert_eq!(threads[0], [158, 161, 159, 160]);
    assert_eq!(threads[0], threads[1]);
}
