//! Real disks that are full or read-only: each is a small file system in a mount namespace of the run's own.

use super::history::segments;
use super::vm::{Run, Vm, wait_for};
use instep_history::Segment;
use instep_madehost::skip;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How the small file system begins.
#[derive(Clone, Copy)]
enum Disk {
    /// Of 256 KiB.
    Empty,
    /// The same with a file `filler` that has all of it.
    Full,
    ReadOnly,
}

/// The command with a small file system at `at`, which nobody else sees; `None`, with a note, where none can be had.
fn on(disk: Disk, at: &Path, command: &Command) -> Option<Command> {
    const MOUNT: &str = "mount -t tmpfs -o size=256k,$DISK instep-test \"$0\" || exit
        [ -z \"$FULL\" ] || cat /dev/zero >\"$0/filler\" 2>/dev/null
        exec \"$@\"";
    fs::create_dir(at).unwrap();
    let with_disk = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", MOUNT]).arg(at).stdin(Stdio::null());
        unshare.env("DISK", if matches!(disk, Disk::ReadOnly) { "ro" } else { "rw" });
        unshare.env("FULL", if matches!(disk, Disk::Full) { "1" } else { "" });
        unshare
    };
    if !with_disk().arg("true").output().is_ok_and(|done| done.status.success()) {
        skip::note("no file system can be mounted here (it takes root and unshare)");
        return None;
    }
    let mut own = with_disk();
    own.arg(command.get_program()).args(command.get_args()).stdout(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => own.env(name, value),
            None => own.env_remove(name),
        };
    }
    Some(own)
}

/// The disk of this run, for as long as the file is open.
fn opened(run: &Run, disk: &Path) -> (File, PathBuf) {
    let inside = format!("/proc/{}/root{}", run.child.id(), disk.display());
    let folder = File::open(inside).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    (folder, path)
}

fn name_of(vm: &str) -> String {
    format!("{vm}-{}", std::process::id())
}

#[test]
fn full_disk_ends_no_placement_and_logging_resumes_with_room() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let Some(vm) = Vm::start("first") else { return };
    let disk = vm.file("disk");
    let [log, history] = ["log", "history"].map(|name| disk.join(name).display().to_string());
    let (metrics, second) = (vm.file("a.prom"), name_of("second"));
    let kept = ["--log", &log, "--history", &history, "--metrics", metrics.to_str().unwrap()];
    let command = vm.mending(&[&kept[..], &["--vm", &second]].concat());
    let Some(mut command) = on(Disk::Full, &disk, &command) else { return };
    let mut run = vm.placed_by(&mut command);
    let (_open, inside) = opened(&run, &disk);
    wait_for("both reports", || {
        let said = run.errors_so_far();
        said.contains("cannot write the log") && said.contains("the history cannot be written")
    });
    let lost = "instep_history_records_total{outcome=\"lost\"} 1";
    wait_for("the count", || fs::read_to_string(&metrics).is_ok_and(|text| text.contains(lost)));
    assert!(!run.has_ended() && !vm.is_as_found(), "{}", run.errors_so_far());

    fs::remove_file(inside.join("filler")).unwrap();
    let Some(second) = Vm::start("second") else { return };
    wait_for("a place for the second VM", || !second.is_as_found());
    wait_for("both again", || {
        let said = run.errors_so_far();
        said.contains("log is written again") && said.contains("the history is written to")
    });
    assert_eq!(run.terminate(), Some(1), "records are lost: {}", run.errors_so_far());
    assert!(vm.is_as_found() && second.is_as_found(), "{}", run.errors_so_far());
    assert_eq!(
        run.errors_so_far().matches("No space left").count(),
        2,
        "once each: {}",
        run.errors_so_far()
    );

    let text = fs::read_to_string(inside.join("log")).unwrap();
    let records: Vec<Option<Value>> =
        text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    assert!(records.iter().filter(|record| record.is_none()).count() <= 1, "{text}");
    assert!(records.last().unwrap().as_ref().unwrap()["cycle"].as_u64() > Some(1), "{text}");
    let mut changed = Vec::new();
    for segment in segments(&inside.join("history")) {
        let segment = Segment::read(&segment).unwrap();
        assert!(segment.torn().is_none(), "{:?}", segment.torn());
        for place in 0..segment.len() {
            let moment: Value =
                serde_json::from_slice(segment.moment(place).unwrap().line).unwrap();
            let changes = moment["changes"].as_array().unwrap().iter();
            changed.extend(changes.map(|change| change["vm"].as_str().unwrap().to_owned()));
        }
    }
    assert!(changed.contains(&second.name), "{changed:?}");
}

#[test]
fn full_state_directory_stops_changes_but_not_restoring() {
    let Some(mut vm) = Vm::start("before") else { return };
    let disk = vm.file("disk");
    vm.share_state(disk.join("state"));
    let during = name_of("during");
    let command = vm.mending(&["--history", vm.file("history").to_str().unwrap(), "--vm", &during]);
    let Some(mut command) = on(Disk::Empty, &disk, &command) else { return };
    let mut run = vm.placed_by(&mut command);
    let (_open, inside) = opened(&run, &disk);
    let fill = || {
        let mut filler = File::create(inside.join("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|written| written != 0) {}
    };
    fill();
    let Some(other) = Vm::start("during") else { return };
    wait_for("the report", || {
        run.errors_so_far().contains("journal.json: No space left on device")
    });
    std::thread::sleep(Duration::from_millis(1500));
    assert!(other.is_as_found() && !vm.is_as_found(), "what is not on record is not changed");
    let goes_on = "what is placed stays so, and the next cycle tries again";
    assert!(!run.has_ended() && run.errors_so_far().contains(goes_on), "{}", run.errors_so_far());
    fs::remove_file(inside.join("filler")).unwrap();
    wait_for("a place for the other VM", || !other.is_as_found());
    fill();
    assert_eq!(run.terminate(), Some(0), "{}", run.errors_so_far());
    assert!(vm.is_as_found() && other.is_as_found(), "{}", run.errors_so_far());
    assert!(!inside.join("state/journal.json").exists(), "{}", run.errors_so_far());
}

#[test]
fn read_only_state_directory_is_refused_before_anything_is_changed() {
    let Some(mut vm) = Vm::start("unchanged") else { return };
    let disk = vm.file("disk");
    vm.share_state(disk.join("state"));
    let Some(mut command) = on(Disk::ReadOnly, &disk, &vm.mending(&[])) else { return };
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{said}");
    let state = vm.state().display().to_string();
    for part in ["Read-only file system", &state, "--state-dir"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(vm.is_as_found());
}
