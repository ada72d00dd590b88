//! A real run as it is shown: in JSON, to Prometheus and in a browser.

use super::prometheus::{Prometheus, results};
use super::rendering;
use super::server::Server;
use super::vm::{Run, Vm, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

/// A name with markup.
const MARKUP: &str = "<b class>x</b>&amp;'";

/// A VM with this name that a run has placed, and what is served of it.
fn placed(name: &str) -> Option<(Vm, Run, Server)> {
    let vm = Vm::start(name)?;
    let run = vm.placed_by(&mut vm.mending(&[]));
    let server = Server::start(&vm.state());
    wait_for("the VM", || {
        server.shown()["host"]["vms"].to_string().contains(&vm.vcpus.len().to_string())
    });
    Some((vm, run, server))
}

fn vm_in(shown: &Value, name: &str) -> Value {
    let vms = shown["host"]["vms"].as_array().unwrap();
    vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("{name} in {shown}")).clone()
}

/// The first moment of the history.
fn at_first(server: &Server) -> Value {
    let mut answer = server.get("/moment.json?at=0");
    wait_for("a turn", || {
        answer = server.get("/moment.json?at=0");
        answer.status != 503
    });
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

#[test]
fn run_is_shown_with_reasons_changes_and_the_last_hour() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let Some((vm, mut run, server)) = placed("shown") else { return };
    wait_for("the change", || server.shown()["history"]["changes"][0]["vm"] == vm.name);
    let shown = server.shown();
    let (host, own) = (&shown["host"], vm_in(&shown, &vm.name));
    assert_eq!(
        (shown["schema"].as_str(), host["schema"].as_str()),
        (Some("instep.serve/1"), Some("instep.host/1"))
    );
    assert!(shown["lacking"].as_array().unwrap().is_empty(), "{shown}");
    assert!(!own["why"].as_str().unwrap().is_empty(), "{own}");
    let vcpus = own["vcpus"].as_array().unwrap();
    assert_eq!(vcpus.len(), 2);
    for (vcpu, cpus) in vcpus.iter().zip(vm.cpus()) {
        assert_eq!(vcpu["cpus"], cpus.as_str(), "what it may use now");
        assert!(vcpu["planned"].is_null(), "{vcpu}");
    }
    let cpus = host["nodes"].as_array().unwrap().iter().flat_map(|node| {
        node["llcs"].as_array().unwrap().iter().flat_map(|llc| llc.as_array().unwrap())
    });
    let cpus: usize = cpus.map(|core| core.as_array().unwrap().len()).sum();
    assert_eq!(cpus, super::vm::online().len());
    let change = &shown["history"]["changes"][0];
    assert!(change["kind"] == "vcpu_affinity" && change["outcome"] == "done", "{change}");
    let series = shown["history"]["vms"].as_array().unwrap();
    let series = series.iter().find(|series| series["name"] == vm.name.as_str()).unwrap();
    assert!(series["samples"][0][0].is_u64(), "{series}");

    // The same on disk: the day, and the first moment.
    let day: Value = serde_json::from_str(&server.get("/day.json").body).unwrap();
    assert_eq!((&day["step_minutes"], &day["changes"][0]), (&10.into(), change));
    let moment = at_first(&server);
    assert_eq!((&moment["schema"], &moment["changes"][0]), (&"instep.moment/1".into(), change));
    assert!(!vm_in(&moment, &vm.name)["why"].as_str().unwrap().is_empty(), "{moment}");

    // Events tell of the next cycle, and of the end.
    let mut events = server.connect();
    events.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let versions = BufReader::new(events).lines().map_while(Result::ok);
    let mut versions = versions.filter_map(|line| line.strip_prefix("data: ")?.parse::<u64>().ok());
    let first = versions.next().unwrap();
    assert!(versions.next().unwrap() > first, "a cycle later");
    assert_eq!(run.terminate(), Some(0));
    wait_for("the end", || versions.next().is_some() && server.shown()["host"].is_null());
    let shown = server.shown();
    assert_eq!(shown["history"]["changes"][0]["vm"], vm.name.as_str(), "the hour stays");
    assert!(shown["lacking"].to_string().contains("systemctl start instep"), "{shown}");
    assert_eq!(server.get("/metrics").status, 503);
    assert_eq!(at_first(&server), moment, "and so does the day");
    // The next run goes on with it.
    let _run = vm.placed_by(&mut vm.mending(&[]));
    wait_for("the next run", || {
        server.shown()["history"]["changes"].as_array().unwrap().len() >= 2
    });
}

#[test]
fn data_of_a_killed_run_is_not_shown_once_it_is_restored() {
    let Some((vm, run, server)) = placed("killed") else { return };
    run.signal(rustix::process::Signal::KILL);
    wait_for("the guardian", || vm.is_as_found());
    wait_for("the page", || server.shown()["host"].is_null());
    assert_eq!(server.get("/metrics").status, 503);
}

#[test]
fn only_what_is_published_can_be_read_by_others() {
    let Some((vm, _run, _server)) = placed("private") else { return };
    for file in fs::read_dir(vm.state()).unwrap() {
        let (name, mode) = {
            let file = file.unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap());
            (file.file_name().into_string().unwrap(), mode & 0o777)
        };
        let is_published = ["host.json", "history.json", "metrics.prom"].contains(&name.as_str());
        // Some are replaced this moment.
        let is_public = is_published || name.ends_with(".part");
        let is_history = name == "history" && mode == 0o755;
        let is_fine = mode == 0o600 || (is_public && mode == 0o644) || is_history;
        assert!(is_fine, "{name} has mode {mode:o}");
    }
}

#[test]
fn prometheus_scrapes_the_server() {
    let Some((vm, mut run, server)) = placed("served") else { return };
    let Some(prometheus) = Prometheus::start(&vm, server.address) else { return };
    let vcpus = format!("instep_vm_vcpus{{name=\"{}\"}}", vm.name);
    wait_for("a scrape", || {
        let found = results(&prometheus.query(&vcpus));
        found.first().is_some_and(|series| series["value"][1] == "2")
    });
    assert_eq!(results(&prometheus.query("up"))[0]["value"][1], "1");
    assert_eq!(run.terminate(), Some(0));
    wait_for("the end of the run to be seen", || {
        results(&prometheus.query("up")).first().is_some_and(|up| up["value"][1] == "0")
    });
}

/// What Chromium makes of an address: its document with `--dump-dom`, or nothing, with a note, where there is none.
fn chromium(dir: &Path, more: &[&str], address: &str) -> Option<String> {
    rendering::run_chromium(dir, |command| {
        command.arg("--virtual-time-budget=5000").args(more).arg(address);
    })
}

#[test]
fn browser_shows_vms_and_reasons_and_markup_stays_text() {
    let Some((vm, _run, server)) = placed(MARKUP) else { return };
    let dir = tempfile::tempdir().unwrap();
    let address = format!("http://{}/?still", server.address);
    let Some(dom) = chromium(dir.path(), &["--dump-dom"], &address) else { return };
    let escaped = vm.name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let body = dom.split_once("<script").unwrap().0;
    assert!(body.contains(&escaped), "no {escaped} in {body}");
    assert!(!body.contains("<b class"), "a name became markup: {body}");
    let why = vm_in(&server.shown(), &vm.name)["why"].as_str().unwrap().to_owned();
    let words: Vec<&str> = why.split([',', ':']).collect();
    assert!(body.contains(words[0].trim()), "no {why} in {body}");
    assert!(body.contains("Verdict: ") && body.contains("class=\"chip"), "{body}");
    assert!(body.contains("2 vCPUs to CPUs") || body.contains("1 vCPU to CPUs"), "changes: {body}");
    assert!(!body.contains("What is shown is of "), "it is the present");

    // Back in time, over the day: the first moment, and where it is in the curves.
    let address = format!("http://{}/?still&at=0&day", server.address);
    let Some(dom) = chromium(dir.path(), &["--dump-dom"], &address) else { return };
    let body = dom.split_once("<script").unwrap().0;
    assert!(body.contains("What is shown is of ") && body.contains("class=\"mark\""), "{body}");
    assert!(body.contains(&escaped) && !body.contains("<b class"), "{body}");
    assert!(body.contains("Verdict: ") && body.contains("home: node"), "{body}");
}

/// Makes the page draw these data from a file, and measures whether it is wider than its window.
fn measured(page: &str, shown: &Value) -> String {
    let data = shown.to_string().replace('<', "\\u003c");
    let before =
        format!("<script>fetch = async () => ({{ok: true, json: async () => ({data})}});</script>");
    let after = "<pre id=\"measured\"></pre><script>setTimeout(() => { \
        const root = document.documentElement; document.getElementById(\"measured\").textContent = \
        [innerWidth, root.scrollWidth, document.querySelectorAll(\".vm\").length, \
        document.querySelectorAll(\".cpu\").length].join(\" \"); }, 500);</script></body>";
    page.replacen("<head>", &format!("<head>{before}"), 1).replacen("</body>", after, 1)
}

#[test]
fn page_fits_narrow_and_wide_windows() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let page = server.get("/").body;
    let file = dir.path().join("page.html");
    fs::write(&file, measured(&page, &large_host())).unwrap();
    for width in [400, 1600] {
        let size = format!("--window-size={width},1000");
        let more = ["--dump-dom", "--hide-scrollbars", &size];
        let address = format!("file://{}?still", file.display());
        let Some(dom) = chromium(dir.path(), &more, &address) else { return };
        let found = dom.rsplit_once("id=\"measured\">").unwrap().1.split_once('<').unwrap().0;
        let found: Vec<u32> = found.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(found[2..], [40, 128], "VMs and CPUs");
        assert!(found[1] <= found[0], "{width}: as wide as {} of {}", found[1], found[0]);
        assert!(found[0].abs_diff(width) <= 100, "{found:?}");
    }
}

/// Two nodes with 128 CPUs, 40 VMs with long names and reasons.
fn large_host() -> Value {
    let cores = |first: u32| (first..first + 8).map(|cpu| vec![cpu, cpu + 64]).collect::<Vec<_>>();
    let nodes = (0..2).map(|node| {
        let llcs: Vec<_> = (0..4).map(|llc| cores(node * 32 + llc * 8)).collect();
        serde_json::json!({"id": node, "memory_bytes": 1u64 << 38, "llcs": llcs})
    });
    let vms = (0..40).map(|vm: u32| {
        let vcpus: Vec<_> = (0..16)
            .map(|index| {
                serde_json::json!({"index": index, "cpu": vm % 8 + index, "used_milli": 900, "steal_milli": 10,
                    "cpus": "0-7,64-71", "was": "0-127", "planned": null})
            })
            .collect();
        serde_json::json!({"name": format!("{}-{vm}", "long".repeat(20)), "uuid": null, "pid": vm, "used_milli": 9000,
            "steal_milli": 100, "throttled_milli": 0, "quota_milli": null,
            "memory_bytes_by_node": {"0": 1u64 << 34, "1": 1u64 << 28}, "selected": true, "home_nodes": [0],
            "why": "its memory is there; ".repeat(20), "vcpus": vcpus})
    });
    serde_json::json!({"schema": "instep.serve/1", "version": 1, "lacking": [], "history": null, "host": {
        "version": "0", "instance": {"pid": 1}, "policy": "instep", "cycle": 1,
        "cycle_at": "2026-11-26T09:00:00Z", "next_cycle_at": "2026-11-26T09:01:00Z", "scheduler": null,
        "nodes": nodes.collect::<Vec<_>>(), "vms": vms.collect::<Vec<_>>(), "left_alone": [], "conflicts": [],
        "warnings": []}})
}
