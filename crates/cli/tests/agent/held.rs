//! `instep status` shows what Instep holds.

use super::common::{list, schemas, text};
use super::vm::{Vm, online, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

fn status(vm: &Vm, args: &[&str]) -> String {
    let mut command = vm.instep(&["status", "--window", "10ms"]);
    let ran = command.args(args).output().unwrap();
    String::from_utf8(ran.stdout).unwrap()
}

/// Its member of the status, and the run.
fn held(vm: &Vm) -> (Value, Value) {
    let mut all: Value = serde_json::from_str(&status(vm, &["--json"])).unwrap();
    schemas::check(&all);
    let it = list(&all, "vms").iter().find(|it| it["name"] == *vm.name).unwrap().clone();
    (it, all["run"].take())
}

#[test]
fn status_tells_what_a_run_holds_and_when_it_acts_again() {
    if !skip::may_take_long() {
        return;
    }
    const UUID: &str = "6f1b3f5e-0c1a-4c9b-9a57-0d9d7b9a3c11";
    let Some(vm) = Vm::start_with("held", |command| _ = command.args(["-uuid", UUID])) else {
        return;
    };
    let (before, run) = held(&vm);
    assert!(before["placed"].is_null() && run.is_null(), "{before} {run}");
    let mut running = vm.placed_by(vm.mending(&["--interval", "1h"]).stdout(Stdio::null()));
    wait_for("a run that is published", || vm.state().join("run.json").exists());
    let (it, run) = held(&vm);
    let (pid, first) = (running.child.id(), online()[0]);
    assert_eq!((&it["placed"]["pid"], &it["placed"]["stands"]), (&pid.into(), &true.into()));
    assert_eq!(it["placed"]["was"], serde_json::json!([first]), "{it}");
    assert!(
        list(&it, "vcpus").iter().any(|vcpu| vcpu["was"] == serde_json::json!([first])),
        "{it}"
    );
    // VMs of other tests that come and go cause further cycles.
    assert_eq!(&run["pid"], &Value::from(pid), "{run}");
    assert!(run["cycle"].as_u64() >= Some(1), "{run}");
    assert!(text(&run, "next_cycle_at") > text(&run, "cycle_at"), "{run}");

    let shown_lines = status(&vm, &["--vcpus"]);
    let shown = shown_lines.split_whitespace().collect::<Vec<_>>().join(" ");
    let placed = format!("placed by Instep (pid {pid}, since ");
    assert!(shown.contains(&placed) && shown.contains(&format!("; was {first})")), "{shown}");
    assert!(shown.contains(&format!("UUID {UUID}")), "{shown}");
    let line = shown_lines.lines().find_map(|line| line.strip_prefix("instep run: ")).unwrap();
    let begin = format!("pid {pid}, policy instep, ");
    let (done, next) =
        line.strip_prefix(&begin).unwrap().split_once(" done, the next one at ").unwrap();
    let (done, unit) = done.split_once(' ').unwrap();
    let done: u64 = done.parse().unwrap();
    assert_eq!((unit, next.is_empty()), (if done == 1 { "cycle" } else { "cycles" }, false));
    let [first, last] = [&run, &held(&vm).1].map(|run| run["cycle"].as_u64().unwrap());
    assert!((first..=last).contains(&done), "{line}: {first} to {last} cycles");

    assert_eq!(running.terminate(), Some(0));
    let (after, run) = held(&vm);
    assert!(after["placed"].is_null() && run.is_null(), "{after} {run}");
}

#[test]
fn status_tells_what_run_once_left_standing() {
    let Some(vm) = Vm::start("kept") else { return };
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    assert!(once.output().unwrap().status.success() && !vm.is_as_found());
    let (it, run) = held(&vm);
    assert!(it["placed"]["pid"].is_null() && it["placed"]["stands"] == true, "{it}");
    assert!(run.is_null(), "{run}");
    assert!(status(&vm, &["--vcpus"]).contains("placed by Instep (`run --once`, since "));
    assert!(vm.instep(&["restore"]).output().unwrap().status.success() && vm.is_as_found());
}

/// `instep status --json` of an ordinary user who names no state directory, where the host's run has this VM's.
fn status_of_a_user(vm: &Vm) -> Value {
    // The build may lie where another user cannot reach it.
    const AS_USER: &str = "mount -t tmpfs tmpfs /run && mkdir /run/instep && mount --bind \"$1\" /run/instep && \
        cp \"$0\" /run/program && exec setpriv --reuid nobody --regid nogroup --clear-groups \
        env -u XDG_RUNTIME_DIR /run/program status --json --window 10ms";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", AS_USER, env!("CARGO_BIN_EXE_instep")]).arg(vm.state());
    let ran = command.output().unwrap();
    let all = serde_json::from_slice(&ran.stdout);
    let all: Value = all.unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    schemas::check(&all);
    all
}

#[test]
fn status_shows_ordinary_users_what_a_run_publishes() {
    if !rustix::process::geteuid().is_root() {
        return skip::note("only root can act as another user");
    }
    let Some(vm) = Vm::start("seen") else { return };
    fs::create_dir(vm.state()).unwrap();
    assert!(status_of_a_user(&vm)["run"].is_null());
    let mut running = vm.placed_by(vm.mending(&["--interval", "1h"]).stdout(Stdio::null()));
    wait_for("a run that is published", || vm.state().join("host.json").exists());
    // Its first cycle may have been published before the vCPUs were bound to one CPU.
    let mut all = Value::Null;
    wait_for("the placement as a user sees it", || {
        all = status_of_a_user(&vm);
        list(&all, "vms").iter().any(|it| it["name"] == *vm.name && !it["placed"].is_null())
    });
    let it = list(&all, "vms").iter().find(|it| it["name"] == *vm.name).unwrap();
    let pid = Value::from(running.child.id());
    assert_eq!((&it["placed"]["pid"], &all["run"]["pid"]), (&pid, &pid), "{all}");
    assert_eq!(it["placed"]["was"], serde_json::json!([online()[0]]), "{it}");
    let memory = it["memory_bytes_by_node"].as_object().unwrap();
    assert!(memory.values().any(|bytes| bytes.as_u64() > Some(0)), "the run's reading: {it}");
    let why = text(&all["dispatch"], "why");
    assert!(why.contains("was not asked for"), "{why}");
    assert!(!all["warnings"].to_string().contains("original affinities"), "{}", all["warnings"]);
    assert_eq!(running.terminate(), Some(0));

    // Only root may read of what it placed once, and nobody else takes that for an operator's binding.
    let mut once = vm.instep(&["run", "--once", "--window", "10ms", "--mend-conflicts"]);
    once.args(["--include-pinned", "--no-memory", "--vm", &vm.name]);
    assert!(once.output().unwrap().status.success() && !vm.is_as_found());
    let all = status_of_a_user(&vm);
    assert!(all["warnings"].to_string().contains("original affinities are unknown"), "{all}");
    assert!(vm.instep(&["restore"]).output().unwrap().status.success());
}
