//! A placement stays known, or can be undone, after its journal is lost.

use super::vm::{Vm, online, wait_for};
use instep_core::units::Tid;
use instep_host::Root;
use instep_host::apply::{HostLock, Instance, thread};
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
    wait_for("the notice", || run.errors_so_far().contains("another process removed the journal"));
    assert!(!vm.is_as_found() && !run.has_ended(), "{}", run.errors_so_far());
    // Nor can another run take the lock that was removed.
    let second = vm.instep(&["restore"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let restored = vm.instep(&["restore"]).output().unwrap();
    assert!(restored.status.success() && vm.is_as_found(), "{restored:?}");
}

/// What a run of commit b4f841e, of 2026-11-24, left as it was killed; numbers that each machine has anew stand as names.
const OLD: &str = include_str!("../data/journal-b4f841e.json");

#[test]
fn journal_of_an_old_version_is_put_back() {
    let Some(vm) = Vm::start("old") else { return };
    let [first, second, ..] = online()[..] else { return };
    let key = thread::key_of(&Root::live(), vm.pid(), Tid(vm.vcpus[0])).unwrap();
    let text = [
        ("BOOT", Instance::this().unwrap().boot_id),
        ("1111111", key.pid.to_string()),
        ("2222222", key.pid_start.to_string()),
        ("5555555", key.tid.to_string()),
        ("6666666", key.tid_start.to_string()),
        ("7777777", format!("{first},{second}")),
        ("8888888", first.to_string()),
    ];
    let text = text.iter().fold(OLD.to_owned(), |text, (name, value)| {
        assert!(text.contains(name), "{name}: {text}");
        text.replace(name, value)
    });
    fs::create_dir(vm.state()).unwrap();
    fs::write(vm.state().join("journal.json"), text).unwrap();
    let restored = vm.instep(&["restore"]).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let both = [first, second].into_iter().map(instep_core::units::CpuId);
    let both: instep_core::idset::CpuSet = both.collect();
    // The second vCPU began after Instep touched the first, and has its set from it.
    assert_eq!(vm.cpus(), vec![both.to_string(); 2], "{restored:?}");
    assert!(!vm.state().join("journal.json").exists());
}

#[test]
fn vms_of_a_lost_journal_get_their_cpusets_back() {
    let Some(vm) = Vm::start("lost") else { return };
    let Some(other) = Vm::start("other") else { return };
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    let once = once.output().unwrap();
    assert!(once.status.success() && !vm.is_as_found(), "{once:?}");
    fs::remove_file(vm.state().join("journal.json")).unwrap();
    let restored = vm.instep(&["restore", "--to-cpuset", "--vm", &vm.name]).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let all: instep_core::idset::CpuSet =
        online().into_iter().map(instep_core::units::CpuId).collect();
    assert_eq!(vm.cpus(), vec![all.to_string(); 2], "{restored:?}");
    assert!(other.is_as_found(), "it was not named");
}

#[test]
fn named_vm_gets_its_cpuset_and_others_stay_placed() {
    let Some(vm) = Vm::start("one") else { return };
    let Some(mut other) = Vm::start("two") else { return };
    other.share_state(vm.state());
    for placed in [&vm, &other] {
        let mut once = placed.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
        once.args(["--include-pinned", "--no-memory", "--vm", &placed.name]);
        let once = once.output().unwrap();
        assert!(once.status.success() && !placed.is_as_found(), "{once:?}");
    }
    let placed = other.cpus();
    let restored = vm.instep(&["restore", "--to-cpuset", "--vm", &vm.name]).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(other.cpus(), placed, "it was not named");
    let whole: instep_core::idset::CpuSet =
        online().into_iter().map(instep_core::units::CpuId).collect();
    assert_eq!(vm.cpus(), vec![whole.to_string(); 2]);
    // The record of the other one is still there.
    let restored = vm.instep(&["restore"]).output().unwrap();
    assert!(restored.status.success() && other.is_as_found(), "{restored:?}");
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
fn run_whose_lock_another_one_took_ends_and_leaves_rest_to_it() {
    let Some(vm) = Vm::start("displaced") else { return };
    let Some(mut other) = Vm::start("displacing") else { return };
    other.share_state(vm.state());
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
    let said = first.errors_so_far();
    assert_eq!(first.child.wait().unwrap().code(), Some(1), "{said}");
    let who = format!("process {} took it since", second.child.id());
    assert!(said.contains(&who), "{said}");
    assert!(vm.is_as_found() && !second.has_ended() && !other.is_as_found(), "{said}");
    for file in ["journal.json", "run.json"] {
        wait_for(file, || vm.state().join(file).exists());
    }
    assert_eq!(second.terminate(), Some(0), "{}", second.errors_so_far());
    assert!(other.is_as_found());
}

#[test]
fn restore_from_directory_that_is_not_there_fails_and_makes_none() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    for more in [&[][..], &["--json"], &["--to-cpuset"]] {
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
    assert_eq!(fs::read_dir(&typo).unwrap().count(), 0, "nor is a lock made");
}

#[test]
fn state_directory_that_cannot_be_looked_at_is_no_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = super::common::binary(env!("CARGO_BIN_EXE_instep"));
    let state = dir.path().join("x".repeat(300));
    let ran = command.arg("restore").arg("--state-dir").arg(&state).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot tell whether there is") && said.contains("too long"), "{said}");
}

/// As after an upgrade: a version with other locks runs, and its journal names it.
#[test]
fn journal_of_a_living_process_keeps_run_and_restore_out() {
    let Some(vm) = Vm::start("upgraded") else { return };
    let mut run = vm.placed_by(vm.mending(&["--no-guard"]).stdout(Stdio::null()));
    let journal = vm.state().join("journal.json");
    wait_for("the journal", || journal.exists());
    let copy = vm.file("elsewhere");
    fs::create_dir(&copy).unwrap();
    fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::copy(&journal, copy.join("journal.json")).unwrap();
    let name = format!("instep-test-upgraded-{}", std::process::id());
    let process = format!("process {}", run.child.id());
    let here = |args: &[&str]| {
        let mut command = super::common::binary(env!("CARGO_BIN_EXE_instep"));
        command.args(args).arg("--state-dir").arg(&copy).env("INSTEP_INSTANCE", &name);
        command.output().unwrap()
    };
    for args in [&["restore"][..], &["run", "--once", "--window", "10ms"]] {
        let ran = here(args);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.code() == Some(2) && said.contains(&process), "{args:?}: {said}");
    }
    assert!(!vm.is_as_found());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let ran = here(&["restore"]);
    assert!(ran.status.success() && vm.is_as_found(), "{ran:?}");
}
