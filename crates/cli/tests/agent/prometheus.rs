//! A real Prometheus, on loopback alone, which ends with the test.

use super::vm::{Vm, wait_for};
use instep_madehost::skip;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A file of the package's examples for Prometheus.
pub(crate) fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus").join(name)
}

/// A Prometheus on loopback that scrapes one target each second.
pub(crate) struct Prometheus {
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
    pub(crate) fn start(vm: &Vm, target: SocketAddr) -> Option<Self> {
        if !skip::may_take_long() {
            return None;
        }
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

    pub(crate) fn query(&self, query: &str) -> Value {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.get(&format!("/api/v1/query?query={escaped}"))
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let body = self.try_get(path).unwrap_or_default();
        serde_json::from_str(&body).unwrap_or(Value::Null)
    }

    /// The body of the answer, where there is one of status 200.
    pub(crate) fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
    }
}

/// The series of an answer.
pub(crate) fn results(answer: &Value) -> Vec<Value> {
    answer["data"]["result"].as_array().cloned().unwrap_or_default()
}
