//! Three programs as VMs: a spinning barrier, a blocking one, and a program that computes on twice as
//! many threads. A recording of them, real and on this kernel, must blame the third.

use super::common::{list, text};
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that ends with the test.
struct Program {
    name: &'static str,
    child: Child,
    tids: Vec<u32>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `instep-load` as built beside `instep`, or for guests.
fn load() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_instep")).with_file_name("instep-load");
    let guests = beside.ancestors().nth(2)?.join("x86_64-unknown-linux-gnu/release/instep-load");
    [guests, beside].into_iter().find(|path| path.exists())
}

/// CPU time that a thread has had, in nanoseconds.
fn run(pid: u32, tid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

impl Program {
    /// Starts it and waits until so many of its threads work.
    fn start(load: &Path, name: &'static str, mode: &str, threads: usize) -> Self {
        let options = ["--threads", &threads.to_string(), "--float", "--duration", "60s"]
            .map(str::to_owned)
            .into_iter()
            .chain(["--unit-ns".to_owned(), "1000".to_owned()]);
        let child = Command::new(load)
            .args(mode.split_whitespace())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut program = Program { name, child, tids: Vec::new() };
        let pid = program.child.id();
        let end = Instant::now() + Duration::from_secs(60);
        while program.tids.len() < threads {
            assert!(Instant::now() < end, "{name} has no {threads} threads that work");
            std::thread::sleep(Duration::from_millis(20));
            let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
            program.tids = tids.filter(|tid| run(pid, *tid) > 5_000_000).collect();
            program.tids.sort_unstable();
        }
        program
    }

    /// As `--vm` takes it.
    fn option(&self) -> String {
        let tids: Vec<String> = self.tids.iter().map(u32::to_string).collect();
        format!("{}={}", self.name, tids.join(","))
    }
}

fn ns(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn spinning_and_blocking_vms_lose_time_to_a_computing_one() {
    let Some(load) = load() else {
        return skip::note("instep-load is not built; cargo build -p instep-load does");
    };
    // A guest that computes beside them, as other tests have, would take a part of what is the third program's.
    let _turn = super::stage::turn();
    let programs = [
        Program::start(&load, "alpha", "barrier --kind spin --phase 1ms", 2),
        Program::start(&load, "beta", "barrier --kind block --phase 1ms", 2),
        Program::start(&load, "gamma", "compute", 4),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("three.instep");
    let path = file.to_str().unwrap();
    let ran = super::common::instep(&["record", "-d", "4s", "-o", path, "--json"]);
    if ran.code == Some(2) {
        return skip::note(ran.stderr.trim());
    }
    let mut args = vec!["analyze".to_owned(), path.to_owned(), "--json".to_owned()];
    for program in &programs {
        args.extend(["--vm".to_owned(), program.option()]);
    }
    let report = super::common::instep(&args).expect(1).json();
    // Real VMs that run here meanwhile are found, too.
    let names = programs.each_ref().map(|program| program.name);
    let vms = names.map(|name| {
        let found = list(&report, "vms").iter().find(|vm| vm["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {}", report["vms"]))
    });
    assert_eq!(vms.iter().map(|vm| list(vm, "vcpus").len()).sum::<usize>(), 8);
    for vm in vms.iter().take(2) {
        let name = text(vm, "name");
        // Of the other two, the one that computes took the most of what it waited for; beside other tests
        // chance may give the other one somewhat more.
        let culprits = list(vm, "culprits");
        let took = |name: &str| {
            let by = culprits.iter().find(|by| text(by, "name") == name);
            by.map_or(0, |by| ns(by, "ns"))
        };
        let others = names.iter().filter(|other| **other != name && **other != "gamma");
        let most = others.map(|other| took(other)).max().unwrap_or(0);
        assert!(took("gamma") * 2 > most.max(1), "{name}: {culprits:?}");
        let lost = list(&report, "findings").iter().filter(|found| found["vm"] == name);
        assert!(lost.map(|found| ns(found, "lost_ns")).max() > Some(100_000_000), "{name}");
    }
    let found = |vm: &str, kind: &str| {
        let mut all = list(&report, "findings").iter();
        all.any(|finding| finding["vm"] == vm && finding["kind"] == kind)
    };
    assert!(
        found("alpha", "steal") && !found("beta", "not_co_scheduled"),
        "{}",
        report["findings"]
    );
    // A program that sleeps at its barriers is woken by its own threads, one that spins by nobody.
    let woken = |vm: &Value| ns(&vm["wakeups"]["sibling"], "count");
    assert!(woken(vms[1]) > 10 * woken(vms[0]).max(10), "{} {}", woken(vms[0]), woken(vms[1]));
}
