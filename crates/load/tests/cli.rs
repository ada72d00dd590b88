//! The program as a guest runs it: every mode, its lines, its ends and its errors.

#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_instep-load");

/// Longer than any run here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the program to its end, which must come within [`LIMIT`]. Its output fits a pipe.
fn run(words: &str) -> Output {
    let mut child = Command::new(PROGRAM)
        .args(words.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{words}: did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// The lines of a run that must end well.
fn lines(words: &str) -> Vec<Value> {
    let output = run(words);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{words}: {out}{err}");
    assert_eq!(err, "", "{words}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What every line must hold, the modes' own fields aside.
fn check(line: &Value, mode: &str, threads: u64) {
    assert_eq!(line["schema"], "instep.load/1");
    assert_eq!(line["mode"], mode);
    assert_eq!(line["threads"], threads);
    assert_eq!(line["work_by_thread"].as_array().unwrap().len() as u64, threads);
    for number in ["t_ns", "work", "cpu_ns", "voluntary_switches", "involuntary_switches"] {
        assert!(line[number].is_u64(), "{number} of {line}");
    }
    assert!(line["rate_per_s"].is_f64() && line["work_unit"].is_string(), "{line}");
    assert!(line["options"]["unit_ns"].is_f64() && line["options"]["seed"].is_u64(), "{line}");
}

#[test]
fn every_mode_works_reports_and_ends_in_time() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let modes = [
        ("compute", None),
        ("stream --size 1MiB", None),
        ("chase --size 1MiB", Some("load_ns")),
        ("barrier --phase 20us", Some("wait_ns")),
        ("barrier --kind spin --phase 20us --imbalance 20%", Some("wait_ns")),
        ("barrier --kind spin-block --spin-limit 10us --phase 20us", Some("wait_ns")),
        ("serial --parallel 200us --sequential 50us", Some("wait_ns")),
        ("serial --serial balanced --kind spin-block --parallel 1ms", Some("wait_ns")),
        ("lock", Some("wait_ns")),
        ("lock --kind ticket-spin", Some("wait_ns")),
        ("fib 15", Some("round_ns")),
        ("nqueens 6 --idle spin", Some("round_ns")),
        ("pipeline --stage 20us", Some("item_ns")),
        ("ping --period 2ms --burst 10us", Some("late_ns")),
    ];
    for (words, latency) in modes {
        for threads in [1, 2, 3] {
            let all = format!("{words} --threads {threads} --duration 250ms --report 100ms");
            let lines = lines(&all);
            let mode = words.split_whitespace().next().unwrap();
            let (last, reports) = lines.split_last().unwrap();
            for line in &lines {
                check(line, mode, threads);
            }
            assert!(last["total"] == true && reports.iter().all(|line| line["total"] == false));
            assert!(reports.len() <= 2, "{all}: {}", reports.len());
            assert!(last["t_ns"].as_u64().unwrap() >= 250_000_000, "{all}: {last}");
            assert!(last["work"].as_u64().unwrap() > 0, "{all}: {last}");
            let Some(name) = latency else { continue };
            let found = &last[name];
            assert!(found["count"].as_u64().unwrap() > 0, "{all}: {last}");
            let rising: Vec<u64> = ["p50", "p90", "p99", "max"]
                .iter()
                .map(|percentile| found[percentile].as_u64().unwrap())
                .collect();
            assert!(rising.is_sorted(), "{all}: {last}");
        }
    }
}

#[test]
fn an_idle_guest_reports_nothing_done() {
    let lines = lines("idle --duration 250ms --report 100ms");
    assert!(!lines.is_empty());
    for line in &lines {
        check(line, "idle", 0);
        assert_eq!(line["work"], 0);
    }
}

#[test]
fn a_given_unit_is_used_and_reported() {
    let all = lines("barrier --unit-ns 123.5 --phase 10us --duration 50ms --seed 9 --float");
    let options = &all.last().unwrap()["options"];
    assert_eq!(options["unit_ns"], 123.5);
    assert_eq!(options["seed"], 9);
    assert_eq!(options["phase_ns"], 10_000);
    assert_eq!(options["pinned"], false);
}

#[test]
fn a_signal_ends_an_endless_run_with_its_totals() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut child = Command::new(PROGRAM)
            .args(["pipeline", "--duration", "0", "--report", "50ms", "--threads", "3"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: Value = serde_json::from_str(&out.next().unwrap().unwrap()).unwrap();
        assert_eq!(first["total"], false);
        // SAFETY: a signal to a child that has not been waited for, so that its id is its own.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        let start = Instant::now();
        let last: Value = serde_json::from_str(&out.last().unwrap().unwrap()).unwrap();
        assert_eq!(last["total"], true);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_closed_output_ends_the_run_with_an_error() {
    let mut child = Command::new(PROGRAM)
        .args(["compute", "--duration", "30s", "--report", "10ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("cannot write to standard output"), "{text}");
}

#[test]
fn mistakes_end_with_status_2_and_say_where_to_read_on() {
    for (words, expected) in [
        ("", "no mode given"),
        ("dance", "unknown mode `dance`; expected compute, stream"),
        ("compute --kind block", "compute has no --kind"),
        ("compute 5", "compute does not understand `5`"),
        ("compute --threads 0", "--threads 0: expected a whole number from 1 to 4096"),
        ("compute --duration 5", "--duration 5: expected a duration"),
        ("compute --report 1ms", "--report 1ms: expected at least 10ms"),
        ("compute --unit-ns 0", "--unit-ns 0: expected a positive number"),
        ("barrier --kind wait", "--kind wait: expected one of block, spin, spin-block"),
        ("barrier --spin-limit 5us", "--spin-limit is for --kind spin-block only"),
        ("barrier --imbalance 200%", "--imbalance 200%: expected a percentage"),
        ("stream --size 12", "--size 12: expected at least 24 bytes"),
        ("chase --size 9GB", "--size 9GB: expected a size"),
        ("fib", "fib needs N"),
        ("fib 61", "N 61: expected a whole number from 2 to 60"),
        ("nqueens 0", "N 0: expected a whole number from 1 to 18"),
        ("ping --period 11s", "--period: expected at most 10s"),
        ("idle --threads 2", "idle has no --threads"),
        ("help dance", "unknown mode `dance`"),
    ] {
        let output = run(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words}: {text}");
        assert!(text.contains(expected), "{words}: {text}");
        assert!(text.contains("--help"), "{words}: {text}");
        assert!(output.stdout.is_empty(), "{words}");
    }
}

#[test]
fn memory_that_cannot_be_had_is_error_before_anything_is_reported() {
    let output = run("chase --size 60000GiB --threads 2 --duration 1s");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("bytes of memory") && output.stdout.is_empty(), "{text}");
}

#[test]
fn help_lists_every_mode_and_each_has_its_own() {
    let all = run("--help");
    let text = String::from_utf8(all.stdout).unwrap();
    let listed = text.lines().skip_while(|line| !line.starts_with("modes")).skip(1);
    let names: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(names.len(), 11, "{text}");
    for name in names {
        let own = run(&format!("{name} --help"));
        assert_eq!(own.status.code(), Some(0));
        let own = String::from_utf8(own.stdout).unwrap();
        assert!(own.starts_with(&format!("{name}: ")) && own.contains("--duration"), "{own}");
        assert!(own.lines().all(|line| line.chars().count() <= 100), "{own}");
        assert_eq!(run(&format!("help {name}")).stdout, own.as_bytes());
    }
}
