//! However a run ends, every affinity is as it was; and what a run hears while it stands.

use super::common::list;
use super::stage::{
    Stage, affinities, assert_as_before, crash, of_vcpus, records, signal, terminate, topology,
    vcpus, wait_for,
};
use instep_core::idset::CpuSet;
use instep_core::units::CpuId;
use rustix::process::Signal;
use std::fs;
use std::process::Command;

#[test]
fn every_affinity_is_restored_after_sigterm_and_after_kill() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("ends");
    let before = affinities(&guest);
    let pinned = of_vcpus(&guest);

    let run = stage.mending_run(&guest, &[]);
    assert_ne!(of_vcpus(&guest), pinned, "{}", run.text("out"));
    terminate(run).expect(0).says(&["original affinity again"]);
    assert_as_before(&guest, &before);
    let mut left: Vec<_> =
        fs::read_dir(stage.state()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["history", "history.json", "lock"], "the past stays, and no journal");

    crash(stage.mending_run(&guest, &["--no-guard"]));
    assert_ne!(of_vcpus(&guest), pinned, "nobody was left to put it back");
    let restored = stage.instep(&["restore", "--json"]).expect(0).json();
    assert_eq!(restored["schema"], "instep.restore/1");
    assert!(restored["restored"].as_u64() > Some(0), "{restored}");
    assert_as_before(&guest, &before);

    crash(stage.mending_run(&guest, &["--no-guard"]));
    let run = stage.mending_run(&guest, &[]);
    let said = run.text("err");
    assert!(said.contains("an earlier run ended without restoring"), "{said}");
    assert_ne!(of_vcpus(&guest), pinned, "the new run placed it again");
    signal(&run, Signal::INT);
    run.end().expect(0);
    assert_as_before(&guest, &before);
}

#[test]
fn second_instance_names_the_first_and_changes_nothing() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("twice");
    let before = affinities(&guest);
    let run = stage.mending_run(&guest, &[]);
    let placed = affinities(&guest);
    let pid = format!("process {}", run.child.id());
    for command in [&["run", "--once"][..], &["run"], &["restore"]] {
        stage.instep(command).expect(2).says(&["already runs", &pid, "kill"]);
        assert_as_before(&guest, &placed);
    }
    // Another state directory does not make it another host.
    for command in [&["run", "--once"][..], &["run"]] {
        let elsewhere = stage.background_in(&stage.file("elsewhere"), command).end();
        elsewhere.expect(2).says(&["already runs", &pid, "kill"]);
        assert_as_before(&guest, &placed);
    }
    // Looking is free.
    stage.instep(&["plan"]).expect(0);
    stage.instep(&["run", "--once", "--dry-run", "--window", "10ms"]).expect(0);
    terminate(run).expect(0);
    assert_as_before(&guest, &before);
}

#[test]
fn sighup_reads_configuration_again_and_a_bad_one_is_refused() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("hears");
    let before = affinities(&guest);
    let config = stage.file("instep.toml");
    fs::write(&config, "policy = \"instep\"\n").unwrap();
    let run = stage.mending_run(&guest, &["--config", config.to_str().unwrap()]);
    assert_eq!(records(&run)[0]["policy"], "instep");

    fs::write(&config, "policy = \"none\"\n").unwrap();
    signal(&run, Signal::HUP);
    wait_for("a cycle under the new policy", &run, || records(&run).len() == 2);
    assert!(run.text("err").contains("the configuration was read again"));
    assert_eq!(records(&run)[1]["policy"], "none");
    assert_as_before(&guest, &before);

    fs::write(&config, "policy = \"spread\"\nintervall = \"60s\"\n").unwrap();
    signal(&run, Signal::HUP);
    wait_for("a cycle under the old policy", &run, || records(&run).len() == 3);
    let said = run.text("err");
    assert!(said.contains("the old one stays in force"), "{said}");
    assert!(said.contains("instep.toml:2: unknown field `intervall`"), "{said}");
    assert_eq!(records(&run)[2]["policy"], "none");
    terminate(run).expect(0);
    assert_as_before(&guest, &before);
}

#[test]
fn operators_change_during_a_run_is_kept_and_reported() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("hand");
    let before = affinities(&guest);
    let run = stage.mending_run(&guest, &[]);
    let journalled = fs::read_to_string(stage.state().join("journal.json")).unwrap();
    let of = |tid: &u32| journalled.contains(&format!("\"tid\":{tid}"));
    let tid = *vcpus(&guest).iter().find(|tid| of(tid)).expect("a vCPU was touched");
    let (all, last) = cpus();
    // Neither what Instep gave it nor where it was bound at first.
    let wanted = if affinities(&guest)[&tid].1 == all { last } else { all };
    taskset(tid, &wanted);

    let told = terminate(run).expect(0);
    assert!(
        told.stderr.contains("left 1 thread alone that someone else changed since"),
        "{}",
        told.all()
    );
    assert!(told.stderr.contains(&format!("thread {tid} of")), "{}", told.all());
    let now = affinities(&guest);
    assert_eq!(now[&tid].1, wanted);
    for (other, was) in before.iter().filter(|(other, _)| **other != tid) {
        assert!(now.get(other).is_none_or(|now| now == was), "{other}: {was:?} {now:?}");
    }
}

/// All CPUs of this machine as a list, and the last of them.
fn cpus() -> (String, String) {
    let topology = topology();
    let id = |cpu: &serde_json::Value| CpuId(cpu["id"].as_u64().unwrap() as u32);
    let all: CpuSet = list(&topology, "cpus").iter().map(id).collect();
    (all.to_string(), all.iter().last().unwrap().to_string())
}

/// What an operator does by hand.
fn taskset(tid: u32, cpus: &str) {
    let mut taskset = Command::new("taskset");
    let done = taskset.args(["--cpu-list", "--pid", cpus, &tid.to_string()]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}
