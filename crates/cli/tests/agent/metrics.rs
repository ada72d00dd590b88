//! Metrics of a run, as Prometheus and its tools see them.

use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Samples that need the kernel scheduler, a quota, or memory on a home.
const MAY_BE_EMPTY: [&str; 4] = ["_together_", "_quota_", "_events_", "_locality_"];

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus").join(name)
}

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
    wait_for("the notice", || run.said().contains("metrics cannot be written to "));
    assert!(!vm.is_as_found() && !run.has_ended(), "{}", run.said());
    fs::create_dir(vm.file("none")).unwrap();
    wait_for("the metrics", || file.exists());
    assert_eq!(run.said().matches("metrics cannot be written").count(), 1, "{}", run.said());
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
    let Some(prometheus) = Prometheus::start(&vm, &file) else { return };
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

fn results(answer: &Value) -> Vec<Value> {
    answer["data"]["result"].as_array().cloned().unwrap_or_default()
}

/// A Prometheus on loopback that scrapes the file each second, as node_exporter would serve it.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// `None`, with a note, where it is not installed.
    fn start(vm: &Vm, file: &Path) -> Option<Self> {
        let exporter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = exporter.local_addr().unwrap();
        let file = file.to_owned();
        // Ends with the test's process.
        std::thread::spawn(move || serve(&exporter, &file));
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = vm.file("prometheus.yml");
        let rules = packaged("instep-alerts.yml").canonicalize().unwrap();
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs:\n  - job_name: instep\n    static_configs: [{{targets: ['{target}']}}]\n",
            rules.display()
        );
        fs::write(&config, text).unwrap();
        let errors = File::create(vm.file("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", vm.file("tsdb").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn();
        let noted = |error: &std::io::Error| {
            skip::note(&format!("prometheus: {error} (apt install prometheus)"));
        };
        let started = Self { child: child.inspect_err(noted).ok()?, port };
        wait_for("Prometheus", || started.try_get("/-/ready").is_some());
        Some(started)
    }

    fn query(&self, query: &str) -> Value {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.get(&format!("/api/v1/query?query={escaped}"))
    }

    fn get(&self, path: &str) -> Value {
        let body = self.try_get(path).unwrap_or_default();
        serde_json::from_str(&body).unwrap_or(Value::Null)
    }

    /// The body of the answer, where there is one of status 200.
    fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
    }
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
