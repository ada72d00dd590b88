//! The history of real runs: what is kept, what is left after `kill -9`, what a disk that takes nothing changes.

use super::common::instep;
use super::vm::{Vm, wait_for};
use instep_history::Segment;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a history, the oldest first.
pub(crate) fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".jsonl.zst"));
    paths.sort();
    paths
}

/// The records that `instep top --replay` prints.
fn records(dir: &Path, more: &[&str]) -> Vec<Value> {
    let mut args = vec!["top", "--replay", dir.to_str().unwrap(), "--json"];
    args.extend(more);
    let ran = instep(&args).expect(0);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn killed_run_loses_no_record_and_the_next_one_goes_on() {
    let Some(vm) = Vm::start("kept") else { return };
    let dir = vm.state().join("history");
    let mut killed = vm.placed_by(&mut vm.mending(&[]));
    wait_for("a record", || {
        !segments(&dir).is_empty() && !Segment::read(&segments(&dir)[0]).unwrap().is_empty()
    });
    killed.signal(Signal::KILL);
    killed.child.wait().unwrap();
    let before = records(&dir, &[]);
    let change = &before[0]["changes"][0];
    assert_eq!((&change["vm"], &change["outcome"]), (&vm.name.clone().into(), &"done".into()));
    let vms = before[0]["host"]["vms"].as_array().unwrap();
    assert!(
        vms.iter().any(|own| own["name"] == vm.name && own["vcpus"].as_array().unwrap().len() == 2)
    );
    // A record that was half written is left out, and told.
    let segment = &segments(&dir)[0];
    let whole = fs::read(segment).unwrap();
    fs::write(segment, [&whole[..], &[0x55, 0x00]].concat()).unwrap();
    let ran = instep(&["top", "--replay", dir.to_str().unwrap(), "--once"]).expect(0);
    let ran = ran.says(&["is left out: its end is torn"]);
    assert!(ran.stdout.contains(" UTC  ") && ran.stdout.contains("Changed: "), "{}", ran.stdout);
    wait_for("the guardian", || vm.is_as_found());
    let mut next = vm.placed_by(&mut vm.mending(&[]));
    wait_for("a segment of the next run", || segments(&dir).len() == 2);
    assert_eq!(next.terminate(), Some(0));
    let after = records(&dir, &[]);
    assert!(after.len() > before.len() && after[..before.len()] == before, "{after:?}");
    assert_eq!(records(&dir, &["--from", "-1ms"]), after[after.len() - 1..], "the newest alone");
    assert_eq!(records(&dir, &["--to", "-1ms"]), after[..after.len() - 1]);
    let day: Value = serde_json::from_slice(&fs::read(dir.join("day.json")).unwrap()).unwrap();
    assert_eq!(day["step_minutes"], 10);
    let changes = day["changes"].as_array().unwrap();
    assert!(changes.iter().any(|change| change["vm"] == vm.name), "{day}");
}

#[test]
fn history_that_cannot_be_written_is_reported_and_placement_goes_on() {
    let Some(vm) = Vm::start("unkept") else { return };
    // A device that is always full stands where the directory should be.
    let (dir, metrics) = ("/dev/full/history", vm.file("a.prom"));
    let more = ["--history", dir, "--metrics", metrics.to_str().unwrap()];
    let mut run = vm.placed_by(&mut vm.mending(&more));
    wait_for("the report", || run.errors_so_far().contains("the history cannot be written"));
    let lost = "instep_history_records_total{outcome=\"lost\"} 1";
    wait_for("the count", || fs::read_to_string(&metrics).is_ok_and(|text| text.contains(lost)));
    assert!(!vm.is_as_found() && !run.has_ended());
    assert_eq!(run.terminate(), Some(0));
    assert!(vm.is_as_found(), "{}", run.errors_so_far());
    assert_eq!(
        run.errors_so_far().matches("cannot be written").count(),
        1,
        "{}",
        run.errors_so_far()
    );
}

#[test]
fn names_of_others_do_not_reach_terminal_by_way_of_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hostile.jsonl");
    let vm = r#"{"name":"a\u001b]0;x\u0007\u202e","pid":1,"used_milli":1,"steal_milli":0,"throttled_milli":0,"why":"\u001b[2J","vcpus":[]}"#;
    let line =
        format!("{{\"schema\":\"instep.moment/1\",\"at_ms\":1,\"host\":{{\"vms\":[{vm}]}}}}\n");
    fs::write(&file, format!("{line}{}", line.replace("\\u202e", "\u{202e}"))).unwrap();
    for how in ["--once", "--json"] {
        let ran = instep(&["top", "--replay", file.to_str().unwrap(), how]).expect(0);
        assert!(!ran.stdout.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{how}: {:?}", ran.stdout);
        assert!(!ran.stdout.is_empty());
    }
    instep(&["top", "--replay", dir.path().to_str().unwrap(), "--once"])
        .expect(2)
        .says(&["holds no history"]);
    instep(&["top", "--replay", "/nonexistent", "--json"])
        .expect(2)
        .says(&["instep run", "--replay"]);
    instep(&["top", "--replay", file.to_str().unwrap()]).expect(2).says(&["this is none"]);
    instep(&["top", "--from", "-2h"]).expect(2).says(&["--replay"]);
    instep(&["top", "--replay", "--from", "noon"]).expect(2).says(&["-2h"]);
}
