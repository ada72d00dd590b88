//! The kernel scheduler on a real kernel: it loads and counts, and whatever happens to it or to its
//! agent, the host goes on and the default scheduler is back.
//!
//! Only where `instep` is built with the feature `kernel`; else skipped, and counted.

use crate::held::{all, measured, measured_with, named};
use crate::stage::turn;
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// Those that run here.
pub(crate) const SCENARIOS: [&str; 15] = [
    "dispatch",
    "dispatch-gangs",
    "dispatch-mechanisms",
    "dispatch-pressure",
    "dispatch-cgroups",
    "dispatch-weights",
    "dispatch-churn",
    "dispatch-faults",
    "dispatch-ejections",
    "dispatch-spill",
    "dispatch-kernels",
    "dispatch-limits",
    "dispatch-locks",
    "dispatch-classes",
    "dispatch-user",
];

/// Series of kernels besides that on which the others run: the oldest that Debian has a usable one of, one with long support, and the
/// newest. Their verifiers and types differ.
const SERIES: [&str; 3] = ["6.16", "6.18", "7.3"];

/// Whether `instep` can load a scheduler; a note when not.
pub(crate) fn is_built() -> bool {
    let built = cfg!(feature = "kernel");
    if !built {
        skip::note(
            "instep is built without the feature `kernel`; cargo xtask bpf-clang tells what it needs",
        );
    }
    built
}

/// Whether a long test runs here: one of all that INSTEP_LAB_ALL asks for; a note when not.
pub(crate) fn is_asked_for(what: &str) -> bool {
    if !is_built() {
        return false;
    }
    if !all() {
        skip::note(&format!("INSTEP_LAB_ALL=1 {what}"));
    }
    all()
}

/// The program of crates/kernel/examples, which cargo builds before it runs tests.
fn spoil() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let path = own.parent()?.parent()?.join("examples/spoil");
    path.is_file().then_some(path)
}

/// What is put into the scheduler's memory: an entry that the kernel finds to be false at once, and random bytes.
const SPOILT: &str = r#"
[[step]]
run = '''
. /tmp/f.sh
loads || exit 1
sleep 3; spoil error; awaits disabled && echo thrown out for an error
says "found an error in it"; awaits enabled && echo loaded again
instep status --json | grep '"why"'
'''
prints = [
    "thrown out for an error", "found an error in it on CPU", "trying again in 1s", "loaded again",
    '"why": "loaded by instep run"', '"why": "the kernel found an error in it',
]
limit = "120s"

[[step]]
run = '''
. /tmp/f.sh
sleep 2; spoil 1; sleep 8; echo the host goes on; tail -3 /tmp/log
awaits enabled && echo in force; kill -TERM $(pidof instep); awaits disabled && echo the default is back
'''
prints = ["bytes spoilt", "the host goes on", "in force", "the default is back"]
limit = "120s"
"#;

/// Runs a scenario of the scheduler, all of whose checks must hold.
fn holds(scenario: &str) {
    let _turn = turn();
    if is_built() {
        measured(&named(scenario));
    }
}

fn step_outputs(report: &Value) -> String {
    let steps = report["steps"].as_array().into_iter().flatten();
    steps.filter_map(|step| step["stdout"].as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn dispatch_loads_forms_gangs_keeps_shares_and_ends() {
    holds("dispatch");
}

#[test]
fn stopped_or_killed_agent_leaves_the_default_scheduler() {
    holds("dispatch-faults");
}

#[test]
fn three_ejections_keep_the_scheduler_out() {
    holds("dispatch-ejections");
}

#[test]
fn host_goes_on_whatever_the_scheduler_s_memory_holds() {
    let _turn = turn();
    if !is_asked_for("puts random bytes into the scheduler's memory") {
        return;
    }
    let Some(path) = spoil() else {
        return skip::note("crates/kernel/examples/spoil is not built: cargo test --workspace");
    };
    // The host, its guests and the functions of the first step are those of the other ejections.
    let text = fs::read_to_string(named("dispatch-ejections")).unwrap();
    let (host, rest) = text.split_once("[[step]]").unwrap();
    let first = rest.split("[[step]]").next().unwrap();
    let with = format!("programs = ['{}']", path.display());
    let host = host.replacen("programs = [\"chrt\"]", &with, 1);
    assert!(host.contains("/spoil"), "the scenario takes programs");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dispatch-spoilt.toml");
    fs::write(&file, format!("{host}[[step]]{first}{SPOILT}")).unwrap();
    measured(&file);
}

#[test]
fn each_mechanism_works_where_it_should() {
    let _turn = turn();
    if is_asked_for("switches each mechanism on and off") {
        measured(&named("dispatch-mechanisms"));
    }
}

#[test]
fn weights_of_cgroups_count_at_two_levels() {
    holds("dispatch-weights");
}

#[test]
fn older_kernels_take_the_scheduler() {
    let _turn = turn();
    if is_built() {
        for series in SERIES {
            measured_with(&named("dispatch-kernels"), &["--kernel", series]);
        }
    }
}

#[test]
fn cpu_limits_of_cgroups_hold() {
    holds("dispatch-cgroups");
}

#[test]
fn nice_classes_and_partitions_are_kept() {
    holds("dispatch-classes");
}

#[test]
fn limits_of_20_50_and_150_percent_hold_on_each_kind() {
    holds("dispatch-limits");
}

#[test]
fn threads_that_a_limit_stops_hold_no_lock_of_the_kernel() {
    holds("dispatch-locks");
}

#[test]
fn user_of_the_service_places_and_loads_the_scheduler() {
    holds("dispatch-user");
}

#[test]
fn four_gangs_of_two_sizes_take_turns_on_eight_cpus() {
    holds("dispatch-gangs");
}

#[test]
fn full_home_node_spills_to_idle_cpus_of_the_other() {
    let _turn = turn();
    if !is_asked_for("fills the home node of a VM") {
        return;
    }
    measured(&named("dispatch-spill"));
}

/// How long threads of no VM waited, of which there are so many. Emulated CPUs wait for real ones, too: who
/// waited for too long is measured once more.
fn no_long_wait(scenario: &str, count: usize) {
    for is_last in [false, true] {
        let Some((report, _)) = measured(&named(scenario)) else { return };
        let said = step_outputs(&report);
        let waits: Vec<&str> =
            said.lines().filter(|line| line.starts_with("longest wait")).collect();
        eprintln!("{waits:#?}");
        assert_eq!(waits.len(), count, "{said}");
        if !said.contains("\nmore than ") {
            return;
        }
        assert!(!is_last, "{waits:#?}");
        skip::retried(&format!("{scenario}: {}", waits.join(", ")));
    }
}

#[test]
fn nothing_waits_long_under_pressure() {
    let _turn = turn();
    if is_built() {
        no_long_wait("dispatch-pressure", 3);
    }
}

#[test]
fn many_vcpus_and_vms_come_and_go() {
    let _turn = turn();
    if !is_asked_for("lets 100 VMs come and go, and one of 511 vCPUs") {
        return;
    }
    no_long_wait("dispatch-churn", 2);
}
