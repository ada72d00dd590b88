//! What becomes of a placement whose journal is lost.

use super::vm::{Vm, online, wait_for};
use instep_host::apply::HostLock;
use rustix::process::Signal;
use std::fs;
use std::process::Stdio;

#[test]
fn removed_journal_is_written_again_in_the_next_cycle() {
    let Some(vm) = Vm::start("removed") else { return };
    let mut command = vm.mending(&["--no-guard"]);
    let mut run = vm.placed_by(command.stdout(Stdio::null()));
    wait_for("the journal", || vm.state().join("journal.json").exists());
    // The run writes there at any time.
    wait_for("the end of the directory", || fs::remove_dir_all(vm.state()).is_ok());
    wait_for("the journal again", || vm.state().join("journal.json").exists());
    wait_for("the notice", || run.said().contains("somebody removed the journal"));
    assert!(!vm.is_as_found() && !run.has_ended(), "{}", run.said());
    // Nor can another run take the lock that was removed.
    let second = vm.instep(&["restore"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let restored = vm.instep(&["restore"]).output().unwrap();
    assert!(restored.status.success() && vm.is_as_found(), "{restored:?}");
}

#[test]
fn vms_of_a_lost_journal_get_their_cpusets_back() {
    let Some(vm) = Vm::start("lost") else { return };
    let Some(other) = Vm::start("other") else { return };
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    let once = once.output().unwrap();
    assert!(once.status.success() && !vm.is_as_found(), "{once:?}");
    fs::remove_dir_all(vm.state()).unwrap();
    let restored = vm.instep(&["restore", "--to-cpuset", "--vm", &vm.name]).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let all: instep_core::idset::CpuSet =
        online().into_iter().map(instep_core::units::CpuId).collect();
    assert_eq!(vm.cpus(), vec![all.to_string(); 2], "{restored:?}");
    assert!(other.is_as_found(), "it was not named");
}

#[test]
fn wrong_name_changes_nothing() {
    let Some(vm) = Vm::start("named") else { return };
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    let once = once.output().unwrap();
    let placed = vm.cpus();
    assert!(once.status.success() && !vm.is_as_found(), "{once:?}");
    let journal = fs::read(vm.state().join("journal.json")).unwrap();
    let mut none = vm.instep(&["restore", "--to-cpuset", "--vm", "no-vm-has-this-name"]);
    assert_eq!(none.output().unwrap().status.code(), Some(2));
    assert_eq!(vm.cpus(), placed);
    assert_eq!(fs::read(vm.state().join("journal.json")).unwrap(), journal);
    assert!(vm.instep(&["restore"]).output().unwrap().status.success() && vm.is_as_found());
}

/// Somebody removes all that Instep keeps in /run, and starts it anew.
#[test]
fn run_whose_lock_another_one_took_ends_and_leaves_the_rest_to_it() {
    let Some(vm) = Vm::start("displaced") else { return };
    let Some(mut other) = Vm::start("displacing") else { return };
    other.share_state(&vm);
    let name = format!("instep-test-displaced-{}", std::process::id());
    let mut command = vm.mending(&[]);
    let mut first = vm.placed_by(command.env("INSTEP_INSTANCE", &name).stdout(Stdio::null()));
    first.signal(Signal::STOP);
    wait_for("the end of the directory", || fs::remove_dir_all(vm.state()).is_ok());
    let lock = HostLock::place(Some(&name)).unwrap();
    lock.iter().for_each(|path| fs::remove_file(path).unwrap());
    let mut command = other.mending(&[]);
    let mut second = other.placed_by(command.env("INSTEP_INSTANCE", &name).stdout(Stdio::null()));
    first.signal(Signal::CONT);
    wait_for("the end of the first run", || first.has_ended());
    let said = first.said();
    assert_eq!(first.child.wait().unwrap().code(), Some(1), "{said}");
    let who = format!("process {} took it since", second.child.id());
    assert!(said.contains(&who), "{said}");
    assert!(vm.is_as_found() && !second.has_ended() && !other.is_as_found(), "{said}");
    for file in ["journal.json", "run.json"] {
        wait_for(file, || vm.state().join(file).exists());
    }
    assert_eq!(second.terminate(), Some(0), "{}", second.said());
    assert!(other.is_as_found());
}

#[test]
fn restore_from_a_directory_that_is_not_there_fails_and_makes_none() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    for more in [&[][..], &["--json"]] {
        let mut command = super::common::binary(env!("CARGO_BIN_EXE_instep"));
        command.arg("restore").args(more).arg("--state-dir").arg(&typo);
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert!(said.contains("there is no state directory") && said.contains("typo"), "{said}");
        assert!(!typo.exists());
    }
    // One that is there and has nothing in it is fine.
    fs::create_dir(&typo).unwrap();
    let mut command = super::common::binary(env!("CARGO_BIN_EXE_instep"));
    let ran = command.arg("restore").arg("--state-dir").arg(&typo).output().unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains("Nothing to restore"), "{ran:?}");
}
