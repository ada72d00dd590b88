//! `instep lab` with this very binary: scenarios hold on real kernels with real guests, and nothing
//! is left behind, however a lab ends.
//!
//! Which scenarios run always is told in [`held`]; with INSTEP_LAB_ALL=1 every one does. A machine
//! that lacks QEMU or the kernel skips them. Labs take turns: each uses all of a small machine.
#![cfg(test)]

mod agree;
mod bench;
mod dispatch;
mod endings;
mod held;
mod inside;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/schemas.rs"]
mod schemas;
mod stage;
#[path = "../../../trace/tests/common/sums.rs"]
mod sums;

use serde_json::Value;
use stage::{instep, scenarios, turn};

#[test]
fn every_scenario_is_one() {
    let files = std::fs::read_dir(scenarios()).unwrap().count();
    let dir = scenarios();
    let in_dir = ["lab", "list", "--json", dir.to_str().unwrap()];
    let built_in = &in_dir[..3];
    for args in [built_in, &in_dir] {
        let ran = instep(args);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let listed: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(listed["scenarios"].as_array().unwrap().len(), files);
    }
}

#[test]
fn a_list_in_a_pipe_has_one_line_for_each_scenario() {
    let ran = instep(&["lab", "list", scenarios().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&ran.stdout);
    let files = std::fs::read_dir(scenarios()).unwrap().count();
    assert_eq!(text.lines().count(), files, "{text}");
    assert!(text.lines().all(|line| line.contains(".toml: ") && line.ends_with(')')), "{text}");
    assert!(!text.contains("(1 nodes") && !text.contains(" 1 guests"), "{text}");
}

#[test]
fn the_doctor_names_what_is_missing_with_a_command() {
    let ran = instep(&["lab", "doctor", "--json"]);
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran.status.success(), found["fine"] == true);
    let findings = found["findings"].as_array().unwrap();
    for finding in findings {
        assert_eq!(finding["fine"] == true, finding["next"].is_null(), "{finding}");
    }
    for program in ["perf", "trace-cmd", "stress-ng", "hackbench", "instep-load"] {
        let finding = findings.iter().find(|finding| finding["need"] == program).unwrap();
        assert_eq!(finding["needed"], false, "{program} is for some scenarios only");
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
    std::fs::write(&file, "about = 'x'\n[host]\ncores = 2\nmemory = '1GiB'\n").unwrap();
    let ran = instep(&["lab", "run", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("bad.toml has no [[step]]"), "{said}");
}

#[test]
fn what_is_no_kernel_is_refused_before_anything_starts() {
    // It makes a directory, and so removes what a killed lab left, which another test looks at.
    let _turn = turn();
    let hello = scenarios().join("hello.toml");
    let hello = hello.to_str().unwrap();
    let own = scenarios().join("hello.toml");
    for (kernel, words) in [
        (own.to_str().unwrap(), "no Linux kernel image"),
        ("/no/such/kernel", "cannot read /no/such/kernel"),
    ] {
        let ran = instep(&["lab", "run", hello, "--kernel", kernel]);
        let said = String::from_utf8_lossy(&ran.stderr);
        if said.contains("qemu") && said.contains("install") {
            return instep_madehost::skip::note(said.trim());
        }
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
        let ran = instep(&["demo", "--kernel", kernel]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && said.contains(words), "{said}");
    }
}

#[test]
fn bad_load_and_unwritable_page_are_refused_before_a_boot() {
    let _turn = turn();
    let hello = scenarios().join("hello.toml");
    let hello = hello.to_str().unwrap();
    let page = "/nowhere/page.html";
    let demo = instep(&["demo", "--html", page]);
    let said = String::from_utf8_lossy(&demo.stderr);
    assert!(demo.status.code() == Some(2) && said.contains("cannot write /nowhere"), "{said}");
    for (option, value, words) in [
        ("--load", env!("CARGO_BIN_EXE_instep"), "no static x86-64 program"),
        ("--load", "/no/such/load", "cannot read /no/such/load"),
        ("--html", page, "cannot write /nowhere/page.html"),
        ("--keep", hello, "cannot make this directory; name another"),
        ("--keep", "/proc/self", "cannot write /proc/self/report.json"),
    ] {
        let ran = instep(&["lab", "run", hello, option, value]);
        let said = String::from_utf8_lossy(&ran.stderr);
        if said.contains("qemu") && said.contains("install") {
            return instep_madehost::skip::note(said.trim());
        }
        assert!(ran.status.code() == Some(2) && said.contains(words), "{said}");
    }
}
