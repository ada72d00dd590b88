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
fn sigusr1_ends_a_run_and_leaves_the_placement_with_its_originals() {
    let Some(vm) = Vm::start("handed") else { return };
    let mut run = vm.placed_by(&mut vm.mending(&[]));
    run.signal(Signal::USR1);
    wait_for("its end", || run.has_ended());
    assert_eq!(run.child.wait().unwrap().code(), Some(0), "{}", run.said());
    assert!(!vm.is_as_found() && run.said().contains("stays for the next"), "{}", run.said());
    assert!(vm.instep(&["restore"]).stdout(Stdio::null()).status().unwrap().success());
    assert!(vm.is_as_found());
}
