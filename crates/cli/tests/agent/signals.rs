//! Signals at moments when a run is not ready for them.

use super::vm::{Vm, wait_for};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn sighup_while_the_configuration_is_read_ends_no_run() {
    let Some(vm) = Vm::start("early") else { return };
    // A configuration file that takes its time: a pipe that nobody has written to yet.
    let config = vm.file("instep.toml");
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let mut command = vm.mending(&["--config", config.to_str().unwrap()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut run = vm.hold(child);
    // It can be opened without waiting once somebody reads it.
    let mut writer = None;
    wait_for("a run that reads its configuration", || {
        writer = open(&config, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
        writer.is_some()
    });
    run.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!run.has_ended(), "SIGHUP ended it");
    // For SIGHUP it is read again.
    fs::remove_file(&config).unwrap();
    fs::write(&config, "").unwrap();
    drop(writer);
    wait_for("a placement", || !vm.is_as_found());
    assert_eq!(run.terminate(), Some(0));
    assert!(vm.is_as_found());
}

#[test]
fn limit_of_a_files_size_ends_no_run() {
    let Some(vm) = Vm::start("limited") else { return };
    let log = vm.file("log");
    fs::write(&log, "x".repeat(4096)).unwrap();
    let mut command = Command::new("sh");
    // In blocks of 512 bytes. The journal of one VM is smaller, the log is not.
    command.args(["-c", "ulimit -f 8 && exec \"$0\" \"$@\""]);
    let run = vm.mending(&["--no-guard", "--log", log.to_str().unwrap()]);
    command.arg(run.get_program()).args(run.get_args()).stdout(Stdio::null());
    for (key, value) in run.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let mut run = vm.placed_by(&mut command);
    wait_for("the report", || run.errors_so_far().contains("File too large") || run.has_ended());
    assert!(!run.has_ended(), "{}", run.errors_so_far());
    assert_eq!(run.terminate(), Some(1), "records were lost: {}", run.errors_so_far());
    assert!(vm.is_as_found());
}

#[test]
fn vm_that_the_configuration_no_longer_names_is_released() {
    let Some(vm) = Vm::start("released") else { return };
    let config = vm.file("instep.toml");
    fs::write(&config, format!("vms = [\"{}\"]\n", vm.name)).unwrap();
    let mut command = vm.instep(&["run", "--window", "10ms", "--interval", "1s"]);
    command.args(["--mend-conflicts", "--include-pinned", "--no-memory", "--no-guard"]);
    command.arg("--config").arg(&config).stdout(Stdio::null());
    let mut run = vm.placed_by(&mut command);
    fs::write(&config, "vms = [\"no-vm-has-this-name\"]\n").unwrap();
    run.signal(Signal::HUP);
    wait_for("the affinities that were found", || vm.is_as_found());
    wait_for("the notice", || run.errors_so_far().contains("no longer placed"));
    assert_eq!(run.terminate(), Some(0), "{}", run.errors_so_far());
}

#[test]
fn sigusr1_ends_a_run_and_leaves_placement_with_its_originals() {
    let Some(vm) = Vm::start("handed") else { return };
    let mut run = vm.placed_by(&mut vm.mending(&[]));
    run.signal(Signal::USR1);
    wait_for("its end", || run.has_ended());
    assert_eq!(run.child.wait().unwrap().code(), Some(0), "{}", run.errors_so_far());
    assert!(
        !vm.is_as_found() && run.errors_so_far().contains("stays for the next"),
        "{}",
        run.errors_so_far()
    );
    assert!(vm.instep(&["restore"]).stdout(Stdio::null()).status().unwrap().success());
    assert!(vm.is_as_found());
}

/// The run after a hand-over finds everything in place. It answers for that all the same: `instep status` names it, and
/// its guardian puts everything back when it is killed.
#[test]
fn run_after_a_hand_over_also_undoes_what_it_did_not_set() {
    let Some(vm) = Vm::start("taken-over") else { return };
    let first = vm.placed_by(&mut vm.mending(&["--interval", "1h"]));
    first.signal(Signal::USR1);
    wait_for("its end", || first.has_ended());
    let handed = vm.cpus();
    let log = vm.file("log");
    let mut next = vm.mending(&["--interval", "1h", "--log", log.to_str().unwrap()]);
    let mut next = vm.placed_by(next.stdout(Stdio::null()));
    wait_for("its first cycle", || fs::read_to_string(&log).is_ok_and(|log| log.ends_with('\n')));
    let record = fs::read_to_string(&log).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["actions"], serde_json::json!([]), "there is something to change: {record}");
    wait_for("the notice", || next.errors_so_far().contains("an earlier run left"));
    assert_eq!(vm.cpus(), handed);
    let status = vm.instep(&["status", "--json", "--window", "10ms"]).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let vms = status["vms"].as_array().unwrap();
    let it = vms.iter().find(|it| it["name"] == *vm.name).unwrap();
    assert_eq!(it["placed"]["pid"], next.child.id(), "{it}");

    next.signal(Signal::KILL);
    wait_for("the affinities that were found", || vm.is_as_found());
    assert_eq!(next.child.wait().unwrap().code(), None);
    wait_for("the end of the guardian", || !vm.state().join("journal.json").exists());
}
