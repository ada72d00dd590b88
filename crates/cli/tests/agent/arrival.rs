//! A VM that starts or ends while a run waits for its next cycle.

use super::vm::{Run, Vm, wait_for};
use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The run's cycles, each as a line of JSON.
fn cycles(log: &std::path::Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().count()
}

/// Asserts that this comes within a second.
fn within_a_second(began: Instant, what: &str, is_there: impl Fn() -> bool) {
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(5), "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = began.elapsed();
    println!("{what}: {took:?}");
    assert!(took < Duration::from_secs(1), "{what}: {took:?}");
}

#[test]
fn a_vm_gets_its_first_verdict_within_a_second() {
    let Some(first) = Vm::start("first") else { return };
    let log = first.file("log");
    let mut command = first.instep(&["run", "--window", "10ms", "--interval", "10min", "--json"]);
    command.args(["--no-memory", "--dry-run"]);
    let output = File::create(&log).unwrap();
    let child = command.stdout(output).stderr(Stdio::null()).spawn().unwrap();
    let mut run: Run = first.hold(child);
    wait_for("the first cycle", || cycles(&log) >= 1);
    // From the moment when its vCPU threads are there, at most.
    let second = Vm::start("second").unwrap();
    let began = Instant::now();
    let has_verdict = || {
        let text = fs::read_to_string(&log).unwrap();
        text.lines().skip(1).any(|line| line.contains(&second.name))
    };
    within_a_second(began, "a verdict after the vCPU threads were seen", has_verdict);
    assert_eq!(run.terminate(), Some(0));
}

#[test]
fn a_cycle_follows_within_a_second_when_a_vm_ends() {
    let Some(first) = Vm::start("stays") else { return };
    let second = Vm::start("ends").unwrap();
    let log = first.file("log");
    let mut command = first.instep(&["run", "--window", "10ms", "--interval", "10min", "--json"]);
    command.args(["--no-memory", "--dry-run"]);
    let output = File::create(&log).unwrap();
    let child = command.stdout(output).stderr(Stdio::null()).spawn().unwrap();
    let mut run: Run = first.hold(child);
    let name = second.name.clone();
    wait_for("a cycle with both", || fs::read_to_string(&log).unwrap_or_default().contains(&name));
    let before = cycles(&log);
    drop(second);
    let began = Instant::now();
    let is_gone = || {
        let text = fs::read_to_string(&log).unwrap();
        text.lines().skip(before).any(|line| line.ends_with('}') && !line.contains(&name))
    };
    within_a_second(began, "a cycle without it after it ended", is_gone);
    assert_eq!(run.terminate(), Some(0));
}
