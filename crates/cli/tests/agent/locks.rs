//! Locks that keep a run or a restore from beginning.

use super::vm::{Vm, wait_for};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Stdio;

/// Any user can listen on an abstract socket.
#[test]
fn socket_of_another_user_blocks_neither_run_nor_restore() {
    let Some(vm) = Vm::start("socket") else { return };
    let name = format!("instep-test-socket-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _held = UnixListener::bind_addr(&address).unwrap();
    let mut command = vm.mending(&["--no-guard"]);
    command.env("INSTEP_INSTANCE", &name).stdout(Stdio::null());
    let mut run = vm.placed_by(&mut command);
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let mut restore = vm.instep(&["restore"]);
    let restored = restore.env("INSTEP_INSTANCE", &name).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    wait_for("the affinities that were found", || vm.is_as_found());
}

/// The lock of the host is held by a run that keeps its state elsewhere.
#[test]
fn restore_needs_the_lock_of_its_journal_alone() {
    let Some(vm) = Vm::start("journal") else { return };
    let Some(other) = Vm::start("elsewhere") else { return };
    let name = format!("instep-test-two-{}", std::process::id());
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    let once = once.env("INSTEP_INSTANCE", &name).output().unwrap();
    assert!(once.status.success() && !vm.is_as_found(), "{once:?}");
    let mut command = other.mending(&[]);
    command.env("INSTEP_INSTANCE", &name).stdout(Stdio::null());
    let mut run = other.placed_by(&mut command);
    let second = vm.instep(&["run", "--once"]).env("INSTEP_INSTANCE", &name).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let process = format!("process {}", run.child.id());
    assert!(second.status.code() == Some(2) && said.contains(&process), "{second:?}");
    let restored = vm.instep(&["restore"]).env("INSTEP_INSTANCE", &name).output().unwrap();
    assert!(restored.status.success() && vm.is_as_found(), "{restored:?}");
    assert_eq!(run.terminate(), Some(0));
}
