//! `instep lab` with this very binary: the scenarios hold on real kernels and leave nothing behind.
//!
//! `hello` and `misplaced` run always; with INSTEP_LAB_ALL=1 every scenario does, which takes half
//! an hour on two cores. A machine that lacks QEMU or the kernel skips them.

use instep_madehost::skip;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/lab")
}

fn instep(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_instep")).args(args).output().expect("instep can be started")
}

/// Runs a scenario whose every check must hold; `None`, and a note, when this machine cannot.
fn held(name: &str) -> Option<Value> {
    let file = scenarios().join(format!("{name}.toml"));
    let ran = instep(&["lab", "run", &file.to_string_lossy(), "--json"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    let lacking = ["apt", "give a kernel", "install", "cargo xtask load", "No space"];
    if ran.status.code() == Some(2) && lacking.iter().any(|word| said.contains(word)) {
        skip::note(said.trim());
        return None;
    }
    let report: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
    let failed: Vec<&Value> = report["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|check| check["held"] != true)
        .collect();
    assert!(failed.is_empty(), "{name}: {failed:#?}\n{said}\n{report:#}");
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(report["kvm"] == true && report["attempts"].as_u64() >= Some(1));
    eprintln!("{name}: {} in {} attempts", report["seconds"], report["attempts"]);
    Some(report)
}

#[test]
fn every_scenario_is_one() {
    let ran = instep(&["lab", "list", scenarios().to_str().unwrap(), "--json"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let listed: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let files = std::fs::read_dir(scenarios()).unwrap().count();
    assert_eq!(listed["scenarios"].as_array().unwrap().len(), files);
}

#[test]
fn the_doctor_names_what_is_missing_with_a_command() {
    let ran = instep(&["lab", "doctor", "--json"]);
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran.status.success(), found["fine"] == true);
    for finding in found["findings"].as_array().unwrap() {
        assert_eq!(finding["fine"] == true, finding["next"].is_null(), "{finding}");
    }
}

#[test]
fn a_file_that_is_no_scenario_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "about = 'x'\n[host]\ncores = 2\nmemory = '1GiB'\ncolour = 1\n").unwrap();
    let ran = instep(&["lab", "run", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2));
    assert!(said.contains("bad.toml") && said.contains("line 5") && said.contains("colour"));
}

/// The lab's directories whose owner is this process id.
fn left_by(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let ours = |name: &str| name.starts_with("instep-lab.") && name.contains(&format!(".{pid}."));
    entries.filter(|e| ours(&e.file_name().to_string_lossy())).map(|e| e.path()).collect()
}

/// The processes whose parent is this one.
fn children_of(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn ctrl_c_while_the_host_boots_ends_everything() {
    if !instep(&["lab", "doctor"]).status.success() {
        return skip::note("instep lab doctor: the lab cannot run here");
    }
    let mut lab = Command::new(env!("CARGO_BIN_EXE_instep"))
        .args(["lab", "run", &scenarios().join("hello.toml").to_string_lossy()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(600);
    // Its host is a child with a directory; apt and ldd are children without.
    while (left_by(lab.id()).is_empty() || children_of(lab.id()).is_empty())
        && lab.try_wait().unwrap().is_none()
    {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    let children = children_of(lab.id());
    let sent = Command::new("kill").args(["-INT", &lab.id().to_string()]).status().unwrap();
    assert!(sent.success());
    while lab.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(lab.wait().unwrap().code(), Some(1));
    assert_eq!(left_by(lab.id()), Vec::<PathBuf>::new());
    for child in children {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "process {child} is left");
    }
}

/// One test, so that two emulated hosts do not fight for this machine's CPUs.
#[test]
fn guests_of_an_emulated_host_are_seen_and_brought_home() {
    let Some(hello) = held("hello") else { return };
    assert_eq!(hello["observations"]["end"]["guests"][0]["name"], "hello");
    held("misplaced");
    if std::env::var_os("INSTEP_LAB_ALL").is_some() {
        for name in [
            "crossed",
            "pinned",
            "hugepages",
            "larger-than-a-node",
            "comes-and-goes",
            "eight",
            "loads",
        ] {
            held(name);
        }
    }
}
