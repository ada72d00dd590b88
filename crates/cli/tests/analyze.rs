//! `instep analyze` as a user runs it: its schema, its exit status, its drawings, its errors.
#![cfg(test)]

mod common;

use common::{instep, list, text};
use instep_madehost::trace::{Moment, What, dat_6, perf_file, perf_pipe};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ONE: (u32, &str) = (11, "CPU 0/KVM");
const TWO: (u32, &str) = (12, "CPU 1/KVM");
const OTHER: (u32, &str) = (21, "CPU 0/KVM");

/// 100 ms in which two siblings take turns on CPU 0 and another VM runs on CPU 1.
fn events() -> Vec<Moment> {
    let mut events = Vec::new();
    for turn in 0..50u64 {
        let at = 1_000_000 + turn * 2_000_000;
        let mut push = |time, cpu, current, what| {
            events.push(Moment { time, cpu, current, flags: 0, what });
        };
        push(at, 0, (11, 10), What::Switch(ONE, TWO, 0));
        push(at + 1_000_000, 0, (12, 10), What::Switch(TWO, ONE, 0));
        push(at, 1, (21, 20), What::Switch(OTHER, (5, "kworker/1:0"), 0));
        push(at + 1000, 1, (5, 5), What::Switch((5, "kworker/1:0"), OTHER, 1));
    }
    events
}

fn made(name: &str, data: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, data).unwrap();
    (dir, path)
}

fn analyze(path: &Path, options: &[&str]) -> common::Ran {
    let mut args = vec!["analyze", path.to_str().unwrap()];
    args.extend(options);
    instep(&args)
}

#[test]
fn json_has_every_key_of_the_schema() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let json = analyze(&path, &["--json"]).expect(1).json();
    assert_eq!(text(&json, "schema"), "instep.analysis/1");
    assert_eq!((json["events"].as_u64(), json["lost"].as_u64()), (Some(200), Some(0)));
    let duration = json["duration_ns"].as_u64().unwrap();
    let vm = &json["vms"][0];
    assert_eq!((vm["name"].as_str(), vm["pid"].as_u64()), (Some("vm-10"), Some(10)));
    for (index, vcpu) in list(vm, "vcpus").iter().enumerate() {
        assert_eq!(vcpu["index"].as_u64(), Some(index as u64));
        let of = |key: &str| vcpu[key].as_u64().unwrap();
        assert_eq!(of("run_ns") + of("steal_ns") + of("blocked_ns"), duration);
        assert_eq!((of("tid"), of("migrations")), (11 + index as u64, 0));
    }
    assert!(vm["stacking"].as_f64().unwrap() > 0.99);
    assert!((vm["co_run"].as_f64().unwrap() - 0.5).abs() < 0.01);
    assert_eq!(vm["culprits"][0]["name"], "vm-10");
    assert!(vm["culprits"][0]["ns"].as_u64().unwrap() > duration * 9 / 10);
    let finding = &json["findings"][0];
    assert!(["stacking", "not_co_scheduled"].contains(&text(finding, "kind")));
    assert_eq!(finding["vm"], "vm-10");
    assert!(finding["lost_ns"].as_u64().is_some() && finding["text"].as_str().is_some());
}

#[test]
fn text_fits_80_columns_and_names_the_cause() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let ran = analyze(&path, &[]);
    let long = |line: &&str| line.chars().count() > 80 && !line.contains('/');
    assert_eq!(ran.stdout.lines().find(long), None);
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    let said = words.join(" ");
    assert!(said.contains("while a sibling ran on the same CPU"), "{said}");
}

#[test]
fn a_named_vm_has_its_name_and_a_quiet_one_no_finding() {
    let (_dir, path) = made("trace.dat", &dat_6(&events(), &[]));
    let json = analyze(&path, &["--vm", "db=11,12", "--vm", "web=21", "--json"]).json();
    let names: Vec<&str> = list(&json, "vms").iter().map(|vm| text(vm, "name")).collect();
    assert_eq!(names, ["db", "web"]);
    let found = list(&json, "findings");
    assert!(found.iter().all(|finding| finding["vm"] == "db"), "{found:?}");
}

#[test]
fn a_pipe_is_read_from_standard_input() {
    let (_dir, path) = made("pipe", &perf_pipe(&events(), 20, None));
    let file = fs::File::open(path).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_instep"))
        .args(["analyze", "-", "--json"])
        .stdin(Stdio::from(file))
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["events"].as_u64(), Some(200));
}

#[test]
fn drawings_are_written_whole() {
    let (dir, path) = made("perf.data", &perf_file(&events(), 20));
    let (html, pftrace) = (dir.path().join("a.html"), dir.path().join("a.pftrace"));
    let options = ["--html", html.to_str().unwrap(), "--perfetto", pftrace.to_str().unwrap()];
    assert_eq!(analyze(&path, &options).code, Some(1));
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("instep.analysis/1") && page.trim_end().ends_with("</html>"));
    assert!(!page.contains("http://") && !page.contains("https://"), "it needs no network");
    let trace = fs::read(pftrace).unwrap();
    assert!(String::from_utf8_lossy(&trace).contains("runs on CPU 0"));
}

#[test]
fn what_cannot_be_used_says_what_to_do_and_exits_with_2() {
    let data = perf_file(&events(), 20);
    let cases: [(&[u8], &str); 4] = [
        (b"hello", "neither perf.data nor trace.dat"),
        (&data[..data.len() / 2], "cut off"),
        (b"2ELIFREP................", "big-endian"),
        (b"", "neither perf.data nor trace.dat"),
    ];
    for (data, expected) in cases {
        let (_dir, path) = made("trace", data);
        analyze(&path, &[]).expect(2).says(&[expected, "trace: "]);
    }
    analyze(Path::new("no-such-file"), &[]).expect(2).says(&["no-such-file"]);
}

#[test]
fn a_cut_trace_dat_is_analysed_and_said_to_be_cut() {
    let data = dat_6(&events(), &[]);
    let (_dir, path) = made("trace.dat", &data[..data.len() - 4096]);
    analyze(&path, &[]).expect(1).says(&["the trace is not whole"]);
}
