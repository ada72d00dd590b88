//! What an ordinary user starts decides nothing for others.

use super::common::{list, text};
use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt as _;

/// `nobody` on most systems; any ordinary user will do.
const USER: u32 = 65534;

#[test]
fn vm_of_an_ordinary_user_counts_only_where_user_is_configured() {
    if !rustix::process::geteuid().is_root() {
        return skip::note("only root can start a VM as another user");
    }
    let change = |command: &mut std::process::Command| {
        command.uid(USER).gid(USER).current_dir("/");
    };
    let Some(vm) = Vm::start_with("users", change) else { return };
    let plan = |more: &[&str]| -> Value {
        let mut command = vm.instep(&["plan", "--json", "--window", "10ms"]);
        let ran = command.args(more).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let is_placed = |plan: &Value| list(plan, "vms").iter().any(|it| it["name"] == *vm.name);
    let before = plan(&[]);
    assert!(!is_placed(&before), "{before}");
    let left = list(&before, "left_alone").iter().find(|it| it["name"] == *vm.name).unwrap();
    assert_eq!(left["vcpus"], 0, "{left}");
    assert!(text(left, "why").contains("[discover]"), "{left}");
    let shown = vm.instep(&["plan", "--window", "10ms"]).output().unwrap().stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains(&vm.name) && !shown.contains("0 vCPUs"), "{shown}");

    let config = vm.file("instep.toml");
    fs::write(&config, format!("[discover]\nusers = [\"{USER}\"]\n")).unwrap();
    assert!(is_placed(&plan(&["--config", config.to_str().unwrap()])));
    // A run with that configuration counts it, and status says so although it is not told of the configuration.
    let status = || -> Value {
        let ran = vm.instep(&["status", "--json", "--window", "10ms"]).output().unwrap();
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let left_alone = |status: &Value| {
        let vms = list(status, "vms");
        !vms.iter().find(|it| it["name"] == *vm.name).unwrap()["left_alone"].is_null()
    };
    assert!(left_alone(&status()));
    let mut counts = vm.placed_by(
        vm.mending(&["--config", config.to_str().unwrap()]).stdout(std::process::Stdio::null()),
    );
    wait_for("a run that is published", || vm.state().join("host.json").exists());
    let now = status();
    assert!(!left_alone(&now), "{now}");
    assert_eq!(counts.terminate(), Some(0));
    assert!(left_alone(&status()));
    // A run that is asked for this VM by name says why it does not place it.
    let mut run = vm.instep(&["run", "--once", "--window", "10ms", "--vm", &vm.name]);
    let refused = run.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("[discover]"), "{said}");
}
