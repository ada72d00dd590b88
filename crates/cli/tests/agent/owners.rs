//! What an ordinary user starts decides nothing for others.

use super::common::{list, text};
use super::vm::Vm;
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt as _;

/// `nobody` on most systems; any ordinary user will do.
const USER: u32 = 65534;

#[test]
fn vm_of_an_ordinary_user_counts_only_where_the_user_is_configured() {
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

    let config = vm.file("instep.toml");
    fs::write(&config, format!("[discover]\nusers = [\"{USER}\"]\n")).unwrap();
    assert!(is_placed(&plan(&["--config", config.to_str().unwrap()])));
    // A run that is asked for this VM by name says why it does not place it.
    let mut run = vm.instep(&["run", "--once", "--window", "10ms", "--vm", &vm.name]);
    let refused = run.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("[discover]"), "{said}");
}
