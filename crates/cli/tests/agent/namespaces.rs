//! In a pid namespace of its own with the host's /proc, thread ids mean other threads.

use super::vm::Vm;
use instep_madehost::skip;
use std::process::Command;

#[test]
fn foreign_pid_namespace_is_refused_before_anything_is_changed() {
    let Some(vm) = Vm::start("foreign") else { return };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|ran| ran.status.success()) {
        return skip::note("no pid namespace can be made here (it takes root and unshare)");
    }
    let state = vm.state();
    let once = ["run", "--once", "--window", "10ms", "--mend-conflicts", "--include-pinned"];
    // What only looks comes first: should it not be refused, nothing is changed on this machine.
    for args in [&["status"][..], &["plan"], &once, &["run"], &["restore", "--to-cpuset"]] {
        let mut command = unshare();
        command.arg(env!("CARGO_BIN_EXE_instep")).args(args).arg("--state-dir").arg(&state);
        let name = format!("instep-test-foreign-{}", std::process::id());
        let ran = command.env("INSTEP_INSTANCE", name).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {ran:?}");
        assert!(said.contains("pid namespace"), "{args:?}: {said}");
        assert!(!state.join("journal.json").exists(), "{args:?}");
    }
    let copy = state.with_extension("copy");
    let collect = [env!("CARGO_BIN_EXE_instep"), "collect", copy.to_str().unwrap()];
    let ran = unshare().args(collect).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.code() == Some(2) && said.contains("pid namespace"), "{said}");
    assert!(!copy.exists());
    assert!(vm.is_as_found());
}
