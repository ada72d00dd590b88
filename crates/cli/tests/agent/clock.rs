//! A run whose clock is set meanwhile, back and far ahead.

use super::common::instep;
use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The library that tells a program another time of day, where it is installed.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let at = "faketime/libfaketimeMT.so.1";
    let found = folders.map(|folder| folder.path().join(at)).find(|path| path.exists());
    if found.is_none() {
        skip::note("no clock can be set for one program here (apt install libfaketime)");
    }
    found
}

/// The records in a file, as far as they are whole.
fn records(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn clock_that_is_set_back_and_ahead_ends_no_placement() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let Some(library) = library() else { return };
    let Some(vm) = Vm::start("clock") else { return };
    let (offset, printed) = (vm.file("offset"), vm.file("printed"));
    let set = |to: &str| {
        let new = vm.file("new");
        fs::write(&new, to).unwrap();
        fs::rename(new, &offset).unwrap();
    };
    set("+0");
    let mut command = vm.mending(&["--json"]);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &offset);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut run = vm.placed_by(command.stdout(File::create(&printed).unwrap()));
    let day = |record: &Value| record["time"].as_str().unwrap()[..10].to_owned();
    wait_for("a record", || !records(&printed).is_empty());
    let today = day(&records(&printed)[0]);
    for (to, is_so) in [("-40d", str::lt as fn(&str, &str) -> bool), ("+400d", str::gt)] {
        set(to);
        let count = records(&printed).len();
        wait_for("two cycles by the other clock", || {
            let after = records(&printed).split_off(count);
            after.iter().filter(|record| is_so(&day(record), &today)).count() >= 2
        });
        assert!(!vm.is_as_found() && !run.has_ended(), "{to}: {}", run.errors_so_far());
    }
    assert_eq!(run.terminate(), Some(0));
    assert!(vm.is_as_found(), "{}", run.errors_so_far());
    let cycles: Vec<Value> = records(&printed).iter().map(|it| it["cycle"].clone()).collect();
    let expected: Vec<Value> = (1..=cycles.len()).map(Value::from).collect();
    assert_eq!(cycles, expected, "each cycle was done, once");
    // What it kept can be read.
    let history = vm.state().join("history");
    instep(&["top", "--replay", history.to_str().unwrap(), "--once"]).expect(0);
}
