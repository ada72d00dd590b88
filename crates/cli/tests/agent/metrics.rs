//! Metrics of a run, as Prometheus and its tools see them.

use super::prometheus::{Prometheus, packaged, results};
use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

/// Samples that need the kernel scheduler, a quota, or memory on a home.
const MAY_BE_EMPTY: [&str; 6] =
    ["_together_", "_quota_", "_events_", "_locality_", "_wait_", "_held_"];

/// Runs a tool of Prometheus; `None`, with a note, where it is not installed.
fn promtool(args: &[&str], input: Stdio) -> Option<std::process::Output> {
    let done = Command::new("promtool").args(args).stdin(input).output();
    done.inspect_err(|error| skip::note(&format!("promtool: {error} (apt install prometheus)")))
        .ok()
}

fn assert_fine(done: &std::process::Output) {
    let said = [&done.stdout[..], &done.stderr].map(String::from_utf8_lossy);
    assert!(done.status.success() && !said.concat().contains("FAILED"), "{said:?}");
}

#[test]
fn alert_rules_fire_for_what_they_name() {
    let rules = packaged("instep-alerts.test.yml");
    let Some(done) = promtool(&["test", "rules", rules.to_str().unwrap()], Stdio::null()) else {
        return;
    };
    assert_fine(&done);
    // Each alert is in a test.
    let alerts = fs::read_to_string(packaged("instep-alerts.yml")).unwrap();
    let tests = fs::read_to_string(&rules).unwrap();
    let names: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 7);
    for name in names {
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
}

#[test]
fn metrics_of_a_run_pass_promtool_and_end_with_it() {
    let Some(vm) = Vm::start("measured") else { return };
    let file = vm.file("instep.prom");
    let mut run = vm.placed_by(&mut vm.mending(&["--metrics", file.to_str().unwrap()]));
    wait_for("the metrics of the VM", || text_of(&file).contains(&vm.name));
    let text = text_of(&file);
    let changes = format!("instep_vm_affinity_changes_total{{name=\"{}\"", vm.name);
    let changed = text.lines().find(|line| line.starts_with(&changes));
    assert!(changed.is_some_and(|line| !line.ends_with(" 0")), "{text}");
    if let Some(done) = promtool(&["check", "metrics"], File::open(&file).unwrap().into()) {
        assert_fine(&done);
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "nothing to mend");
    }
    assert_eq!(run.terminate(), Some(0));
    assert!(!file.exists(), "what is over is not shown as present");
}

#[test]
fn metrics_that_cannot_be_written_do_not_undo_placement() {
    let Some(vm) = Vm::start("unwritten") else { return };
    let file = vm.file("none/instep.prom");
    let mut run = vm.placed_by(&mut vm.mending(&["--metrics", file.to_str().unwrap()]));
    wait_for("the notice", || run.errors_so_far().contains("metrics cannot be written to "));
    assert!(!vm.is_as_found() && !run.has_ended(), "{}", run.errors_so_far());
    fs::create_dir(vm.file("none")).unwrap();
    wait_for("the metrics", || file.exists());
    assert_eq!(
        run.errors_so_far().matches("metrics cannot be written").count(),
        1,
        "{}",
        run.errors_so_far()
    );
    assert_eq!(run.terminate(), Some(0));
}

#[test]
fn file_that_is_no_metrics_file_is_refused() {
    for file in ["/dev/null", "/etc/hostname"] {
        let ran =
            super::common::instep(&["run", "--once", "--dry-run", "--metrics", file]).expect(2);
        ran.says(&["must end with .prom"]);
        assert!(Path::new(file).exists());
    }
}

#[test]
fn prometheus_scrapes_a_run_and_answers_the_dashboard() {
    let Some(vm) = Vm::start("scraped") else { return };
    let file = vm.file("instep.prom");
    let exporter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (target, exported) = (exporter.local_addr().unwrap(), file.clone());
    // As node_exporter would; it ends with the test's process.
    std::thread::spawn(move || serve(&exporter, &exported));
    let Some(prometheus) = Prometheus::start(&vm, target) else { return };
    let mut run = vm.placed_by(&mut vm.mending(&["--metrics", file.to_str().unwrap()]));
    wait_for("two scrapes of the VM", || {
        let query = format!("rate(instep_vm_run_seconds_total{{name=\"{}\"}}[1m])", vm.name);
        !results(&prometheus.query(&query)).is_empty()
    });
    let dashboard = fs::read_to_string(packaged("instep-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$instance", ".*").replace("$vm", ".*");
            let query = query.replace("$__rate_interval", "1m");
            let answer = prometheus.query(&query);
            assert_eq!(answer["status"], "success", "{query}: {answer}");
            let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part));
            assert!(may_be_empty || !results(&answer).is_empty(), "{query} has no result");
            queries += 1;
        }
    }
    assert!(queries >= 14, "{queries}");
    let rules = prometheus.get("/api/v1/rules");
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 7 && rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
    assert_eq!(run.terminate(), Some(0));
}

fn text_of(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Answers each request with the file.
fn serve(exporter: &TcpListener, file: &Path) {
    for stream in exporter.incoming() {
        let Ok(mut stream) = stream else { return };
        let _ = stream.read(&mut [0; 4096]);
        let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
        let _ = write!(stream, "{head}{}", text_of(file));
    }
}
