//! Readers that do not read, full disks, rotated logs: none of them undoes a placement.

use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use std::fs;
use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A pipe that takes nothing more, and its reader, who does not read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn unread_pipe_delays_neither_cycles_nor_restoring() {
    if !skip::may_take_long() {
        return;
    }
    let Some(vm) = Vm::start("unread") else { return };
    let (reader, writer) = full_pipe();
    let mut run = vm.placed_by(vm.mending(&["--json"]).stdout(Stdio::from(writer)));
    // More cycles begin: one would mend the VM again that is bound as before.
    std::thread::sleep(Duration::from_millis(1500));
    let asked = Instant::now();
    run.signal(Signal::TERM);
    wait_for("the affinities that were found", || vm.is_as_found());
    assert_eq!(run.terminate(), Some(1), "records are lost: {}", run.errors_so_far());
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(
        run.errors_so_far().contains("records that could not be written: "),
        "{}",
        run.errors_so_far()
    );
    assert!(!vm.state().join("journal.json").exists());
    drop(reader);
}

#[test]
fn unread_messages_delay_neither_cycles_nor_restoring() {
    if !skip::may_take_long() {
        return;
    }
    let Some(vm) = Vm::start("unheard") else { return };
    let (reader, writer) = full_pipe();
    let errors = writer.try_clone().unwrap();
    let mut command = vm.mending(&["--json"]);
    let child = command.stdout(Stdio::from(writer)).stderr(Stdio::from(errors)).spawn().unwrap();
    drop(command);
    let mut run = vm.hold(child);
    wait_for("a placement", || !vm.is_as_found());
    assert_eq!(run.terminate(), Some(1));
    assert!(vm.is_as_found());
    drop(reader);
}

#[test]
fn full_disk_of_the_log_ends_no_placement() {
    let Some(vm) = Vm::start("full") else { return };
    let mut command = vm.mending(&["--log", "/dev/full", "--json"]);
    let out = vm.file("out");
    let mut run = vm.placed_by(command.stdout(fs::File::create(&out).unwrap()));
    wait_for("a third cycle", || fs::read_to_string(&out).unwrap().lines().count() > 2);
    assert!(!vm.is_as_found() && !run.has_ended(), "{}", run.errors_so_far());
    let said = run.errors_so_far();
    assert!(said.contains("cannot write the log /dev/full: No space left on device"), "{said}");
    assert_eq!(said.matches("No space left").count(), 1, "each time is too often: {said}");
    assert_eq!(run.terminate(), Some(1), "records are lost: {}", run.errors_so_far());
    assert!(vm.is_as_found());
}

#[test]
fn closed_reader_of_standard_output_ends_no_run() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    for json in [&["--json"][..], &[]] {
        let Some(vm) = Vm::start("closed") else { return };
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut run = vm.placed_by(vm.mending(json).stdout(Stdio::from(writer)));
        wait_for("the notice", || {
            run.errors_so_far().contains("nobody reads standard output any more")
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!run.has_ended() && !vm.is_as_found(), "{}", run.errors_so_far());
        assert_eq!(run.terminate(), Some(0), "{}", run.errors_so_far());
        assert!(vm.is_as_found());
    }
}

#[test]
fn rotated_log_is_begun_anew_at_sighup() {
    let Some(vm) = Vm::start("rotated") else { return };
    let (log, old) = (vm.file("log"), vm.file("log.1"));
    let mut command = vm.mending(&["--log", log.to_str().unwrap()]);
    let mut run = vm.placed_by(command.stdout(Stdio::null()));
    wait_for("a record", || fs::metadata(&log).is_ok_and(|meta| meta.len() != 0));
    fs::rename(&log, &old).unwrap();
    run.signal(Signal::HUP);
    wait_for("a record in the new log", || fs::metadata(&log).is_ok_and(|meta| meta.len() != 0));
    assert!(
        !run.errors_so_far().contains("--config"),
        "a log is reason enough for SIGHUP: {}",
        run.errors_so_far()
    );
    assert_eq!(run.terminate(), Some(0), "{}", run.errors_so_far());
    let both = fs::read_to_string(&old).unwrap() + &fs::read_to_string(&log).unwrap();
    let cycles = both.lines().map(|line| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["cycle"].as_u64().unwrap()
    });
    let cycles: Vec<u64> = cycles.collect();
    assert_eq!(cycles, (1..=cycles.len() as u64).collect::<Vec<_>>(), "none is lost");
}
