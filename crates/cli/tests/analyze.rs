//! `instep analyze` as a user runs it: its schema, its exit status, its drawings, its errors.
#![cfg(test)]

#[allow(dead_code, reason = "other tests look at drawings, too")]
#[path = "common/browser.rs"]
mod browser;
#[path = "analyze/checked.rs"]
mod checked;
mod common;
#[path = "analyze/damage.rs"]
mod damage;
#[path = "analyze/facts.rs"]
mod facts;
#[path = "common/golden.rs"]
mod golden;
#[path = "../../trace/tests/common/pipe.rs"]
mod pipe;
#[path = "analyze/quotas.rs"]
mod quotas;
#[path = "analyze/recorded.rs"]
mod recorded;
#[path = "analyze/strip.rs"]
mod strip;
#[path = "../../trace/tests/common/mod.rs"]
mod traces;
#[path = "analyze/words.rs"]
mod words;

use browser::rendered;
use common::{instep, list, text};
use golden::golden;
use instep_madehost::trace::{MadeEvent, TracepointFields, dat_6, perf_file, perf_pipe};
use instep_madehost::{HostSpec, MadeHost};
use instep_trace::rec::{End, Head, VcpuHead, VmHead, Writer};
use instep_trace::stream::Counter;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ONE: (u32, &str) = (11, "CPU 0/KVM");
const TWO: (u32, &str) = (12, "CPU 1/KVM");
const OTHER: (u32, &str) = (21, "CPU 0/KVM");

/// 100 ms in which two siblings take turns on CPU 0 and another VM runs on CPU 1.
fn events() -> Vec<MadeEvent> {
    let mut events = Vec::new();
    for turn in 0..50u64 {
        let at = 1_000_000 + turn * 2_000_000;
        let mut push = |time, cpu, current, what| {
            events.push(MadeEvent { time, cpu, current, flags: 0, what });
        };
        push(at, 0, (11, 10), TracepointFields::Switch(ONE, TWO, 0));
        push(at + 1_000_000, 0, (12, 10), TracepointFields::Switch(TWO, ONE, 0));
        push(at, 1, (21, 20), TracepointFields::Switch(OTHER, (5, "kworker/1:0"), 0));
        push(at + 1000, 1, (5, 5), TracepointFields::Switch((5, "kworker/1:0"), OTHER, 1));
    }
    events
}

fn made(name: &str, data: &[u8]) -> (TempDir, PathBuf) {
    let dir = instep_madehost::scratch_dir().unwrap();
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
        assert_eq!(vcpu["throttled_ns"], Value::Null, "no quota is known of others' recordings");
        assert_eq!(of("run_ns") + of("steal_ns") + of("blocked_ns"), duration);
        assert_eq!((of("tid"), of("migrations")), (11 + index as u64, 0));
    }
    assert!(vm["stacking"].as_f64().unwrap() > 0.99);
    assert!((vm["co_run"].as_f64().unwrap() - 0.5).abs() < 0.01);
    assert_eq!(vm["culprits"][0]["name"], "vm-10");
    assert_eq!(vm["halts"], Value::Null);
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
fn vm_of_many_short_sleeps_is_not_called_spinning() {
    // Siblings on one CPU run for 1 ms each, sleep for 10 us of it and wait for the rest; the others
    // sleep as long, but once in 50 ms.
    let taking_turns = |turns: u64, length: u64| {
        let mut events = Vec::new();
        for turn in 0..turns {
            let (from, to) = if turn % 2 == 0 { (ONE, TWO) } else { (TWO, ONE) };
            let at = (turn + 1) * length;
            let mut push = |time, what| {
                events.push(MadeEvent { time, cpu: 0, current: (to.0, 10), flags: 0, what });
            };
            push(at, TracepointFields::Switch(from, to, 1));
            push(at + 10_000, TracepointFields::Wakeup(from, 0));
        }
        let (_dir, path) = made("perf.data", &perf_file(&events, 20));
        let json = analyze(&path, &["--vm=a=11,12", "--json"]).expect(1).json();
        list(&json, "findings").iter().any(|found| found["kind"] == "not_co_scheduled")
    };
    assert!(taking_turns(10, 50_000_000));
    assert!(!taking_turns(500, 1_000_000));
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

/// What `instep analyze` says of these bytes on standard input, which is a pipe.
fn piped(data: &[u8], options: &[&str]) -> std::process::Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_instep"))
        .args(["analyze", "-"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who does not want all of it closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(data);
    child.wait_with_output().unwrap()
}

#[test]
fn every_format_is_read_from_standard_input_be_it_pipe_or_a_file() {
    for data in [perf_pipe(&events(), 20, None), perf_file(&events(), 20), dat_6(&events(), &[])] {
        let (_dir, path) = made("trace", &data);
        let file = Command::new(env!("CARGO_BIN_EXE_instep"))
            .args(["analyze", "-", "--json"])
            .stdin(Stdio::from(fs::File::open(path).unwrap()))
            .output()
            .unwrap();
        for output in [piped(&data, &["--json"]), file] {
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["events"].as_u64(), Some(200));
        }
    }
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
fn a_file_that_is_read_or_drawn_is_not_drawn_over() {
    let data = perf_file(&events(), 20);
    let (dir, path) = made("perf.data", &data);
    let hosts = dir.path().join("t.json");
    fs::write(&hosts, "{}").unwrap();
    let (hard, dotted, drawn) = ("hard.data", "./perf.data", "new");
    fs::hard_link(&path, dir.path().join(hard)).unwrap();
    for options in [
        &["perf.data", "--html", "perf.data"][..],
        &["perf.data", "--perfetto", dotted],
        &["perf.data", "--perfetto", hard],
        &["perf.data", "--html", drawn, "--perfetto", "./new"],
        &["perf.data", "--topology", "t.json", "--html", "t.json"],
        &["-", "--perfetto", "perf.data"],
    ] {
        let mut command = common::binary(env!("CARGO_BIN_EXE_instep"));
        command.arg("analyze").args(options).current_dir(dir.path());
        command.stdin(fs::File::open(&path).unwrap());
        let ran = common::Started::new(&mut command).end().expect(2);
        let ran = ran.says(&["cannot write ", "which is named, too"]);
        assert_eq!(ran.stdout, "");
        assert!(fs::read(&path).unwrap() == data, "{}", ran.all());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is written");
    }
    assert_eq!(fs::read(&hosts).unwrap(), b"{}");
}

#[test]
fn the_text_of_a_made_trace_is_as_it_was() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let text = analyze(&path, &["--weight", "vm-10=200"]).expect(1).stdout;
    let shown = text.replace(&format!("{}", path.display()), "perf.data");
    // The first lines wrap by the length of the path.
    let (_, below) = shown.split_once("\n\n").unwrap();
    golden("tests/golden/analyze.txt", below);
}

#[test]
fn the_page_of_a_made_trace_shows_what_it_showed() {
    let (dir, path) = made("perf.data", &perf_file(&events(), 20));
    let page = dir.path().join("a.html");
    analyze(&path, &["--html", page.to_str().unwrap()]).expect(1);
    if let Some(seen) = rendered(&page) {
        golden("tests/golden/analyze-page.txt", &seen.text);
        golden("tests/golden/analyze-timeline.txt", &seen.timeline);
    }
}

#[test]
fn heat_map_shows_where_siblings_were_stacked_and_for_how_long() {
    use TracepointFields::Switch;
    // Of 100 ms both were on CPU 0 for 50 and on CPU 1 for 25.
    let (dir, path) = schedule(&[
        (0, 0, Switch(ONE, TWO, 0)),
        (0, 1, Switch(IDLE, OTHER, 0)),
        (50, 1, Switch(OTHER, ONE, 0)),
        (74, 0, Switch(TWO, IDLE, 0)),
        (75, 1, Switch(ONE, TWO, 0)),
        (100, 1, Switch(TWO, OTHER, 0)),
    ]);
    let page = dir.path().join("a.html");
    let options = ["--vm=a=11,12", "--vm=b=21", "--html", page.to_str().unwrap()];
    analyze(&path, &options).expect(1);
    if let Some(seen) = rendered(&page) {
        golden("tests/golden/analyze-heat.txt", &seen.heat);
    }
}

#[test]
fn a_thread_that_the_trace_does_not_know_is_a_slip_of_the_pen() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let said = ["--vm db=11,112", "does not know thread 112", "instep analyze"];
    analyze(&path, &["--vm", "db=11,112"]).expect(2).says(&said);
    analyze(&path, &["--vm", "db=11,112", "--check"]).expect(2).says(&said);
    let said = ["--vm db=11,11: thread 11 is named twice"];
    analyze(&path, &["--vm", "db=11,11"]).expect(2).says(&said);
}

#[test]
fn shares_follow_weights() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    let share = |options: &[&str]| {
        let json = analyze(&path, &[options, &["--json"]].concat()).json();
        let vms = list(&json, "vms");
        [0, 1].map(|vm: usize| vms[vm]["periods"]["share_ns"].as_u64().unwrap())
    };
    // Two CPUs, periods of 24 ms; the second VM has one vCPU and takes no more than one CPU.
    assert_eq!(share(&[]), [24_000_000, 24_000_000]);
    assert_eq!(share(&["--weight", "vm-10=300"]), [36_000_000, 12_000_000]);
    analyze(&path, &["--weight", "vm-10"]).expect(2).says(&["NAME=WEIGHT"]);
    let said = ["--weight nobody: the trace has no such VM; it has vm-10, vm-20"];
    for options in [&["--weight", "nobody=5"][..], &["--weight", "nobody=5", "--check=share"]] {
        analyze(&path, options).expect(2).says(&said);
    }
}

/// The same events as a recording of Instep's with this head and end.
fn recorded(head: &Head, end: &End) -> Vec<u8> {
    recorded_of(&events(), head, end)
}

/// The same of these events.
fn recorded_of(events: &[MadeEvent], head: &Head, end: &End) -> Vec<u8> {
    let data = perf_file(events, 20);
    let source = std::io::Cursor::new(data);
    let mut stream = instep_trace::open(source, "made", Default::default()).unwrap();
    let mut writer = Writer::begin(Vec::new(), head, true).unwrap();
    let mut batch = Vec::new();
    while stream.next_batch(&mut batch) {
        batch.iter().for_each(|event| writer.event(event).unwrap());
    }
    writer.finish(end).unwrap()
}

#[test]
fn figure_without_an_event_or_counter_is_null() {
    let vcpus = [(0, 31), (1, 32)].map(|(index, tid)| VcpuHead { index, tid }).to_vec();
    let quiet = VmHead { name: "quiet".to_owned(), pid: 30, vcpus, weight: None };
    let head = Head { vms: vec![quiet], ..Head::default() };
    let shown = |run: Option<u64>| {
        let counter = |run_ns| Counter { tid: 31, run_ns, ..Counter::default() };
        let end = End { counters: run.map(counter).into_iter().collect(), ..End::default() };
        let (_dir, path) = made("a.instep", &recorded(&head, &end));
        let json = analyze(&path, &["--json"]).json();
        let vm = list(&json, "vms").iter().find(|vm| vm["name"] == "quiet").unwrap().clone();
        for key in ["stacking", "co_run", "max_skew_ns", "beside_waiting_ns"] {
            assert_eq!(vm[key], Value::Null, "{key}");
        }
        assert_eq!(vm["periods"]["efficiency"], Value::Null);
        assert_eq!(vm["vcpus"][1]["run_ns"], Value::Null);
        let times = ["run_ns", "steal_ns", "blocked_ns"].map(|key| vm["vcpus"][0][key].as_u64());
        (times, json["duration_ns"].as_u64().unwrap(), analyze(&path, &[]))
    };
    let (times, _, ran) = shown(None);
    assert_eq!(times, [None; 3]);
    let line = ran.stdout.lines().find(|line| line.split_whitespace().nth(1) == Some("31"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words, ["0", "31", "-", "-", "-", "-", "0", "-", "-", "-", "-"]);
    assert!(ran.stdout.contains("stacking -, co-run -, skew up to -"), "{}", ran.stdout);
    ran.says(&["2 vCPU threads have no event", "which of both is not known"]);
    // The kernel counted that it slept, or that it ran.
    let (times, whole, ran) = shown(Some(0));
    assert_eq!(times, [Some(0), Some(0), Some(whole)]);
    ran.says(&["1 vCPU thread has no event: the times are what the kernel counted"]);
    assert_eq!(shown(Some(90_000_000)).0, [Some(90_000_000), Some(0), Some(whole - 90_000_000)]);
}

#[test]
fn a_recording_of_one_vm_speaks_of_that_vm_only() {
    let head = Head { only: vec!["vm-10".to_owned()], ..Head::default() };
    let bytes = recorded(&head, &End::default());
    let (dir, path) = made("a.instep", &bytes);
    let json = analyze(&path, &["--json"]).expect(1).json();
    let names: Vec<&str> = list(&json, "vms").iter().map(|vm| text(vm, "name")).collect();
    assert_eq!((names, json["lost"].as_u64()), (vec!["vm-10"], Some(0)));
    let cut = dir.path().join("cut.instep");
    fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    analyze(&cut, &[]).expect(1).says(&["the trace is incomplete"]);
}

#[test]
fn two_analyses_are_compared_and_a_worse_one_is_found() {
    let (dir, path) = made("perf.data", &perf_file(&events(), 20));
    let one = analyze(&path, &["--json"]).stdout;
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // The same, less stacked.
    let mut less: Value = serde_json::from_str(&one).unwrap();
    less["vms"][0]["stacking"] = Value::from(0.5);
    let runs = |of: &Value| -> String {
        // Three recordings begin at three times.
        let begun = |begin: u64| {
            let mut run = of.clone();
            run["host"]["begin_ns"] = Value::from(begin);
            run.to_string()
        };
        (1..=3).map(begun).collect()
    };
    let one: Value = serde_json::from_str(&one).unwrap();
    let (a, b) = (file("a.json", &runs(&less)), file("b.json", &runs(&one)));
    let less = less.to_string();
    let json = instep(&["compare", &a, &b, "--json"]).expect(1).json();
    assert_eq!(
        (text(&json, "schema"), text(&json, "of")),
        ("instep.compare/1", "instep.analysis/1")
    );
    let bad: Vec<_> = list(&json, "rows").iter().filter(|row| row["verdict"] == "worse").collect();
    assert_eq!((bad.len(), text(bad[0], "measure")), (1, "stacking"));
    assert_eq!(json["a"]["runs"].as_u64(), Some(3));
    instep(&["compare", &b, &a]).expect(0);
    instep(&["compare", &a, &a]).expect(0);
    let other = file("c.json", r#"{"schema":"instep.sim/1","vms":[]}"#);
    instep(&["compare", &a, &other]).expect(2).says(&["only results of one kind"]);
    let named = less.replace("vm-10", "db").replace("vm-20", "web").replace("\"host\"", "\"x\"");
    let named = file("d.json", &named);
    instep(&["compare", &a, &named]).expect(2).says(&["no measure in common", "VM db", "VM vm-10"]);
    instep(&["compare", &a, "no-such-file"]).expect(2).says(&["no-such-file"]);
}

#[test]
fn what_cannot_be_used_says_what_to_do_and_exits_with_2() {
    let data = perf_file(&events(), 20);
    let cases: [(&[u8], &str); 5] = [
        (b"hello", "neither perf.data nor trace.dat nor a recording"),
        (&data[..data.len() / 2], "cut off: it has"),
        (&data[..data.len() / 2], "Copy the whole file again"),
        (b"2ELIFREP................", "big-endian"),
        (b"", "it is empty: its recorder wrote nothing"),
    ];
    for (data, expected) in cases {
        let (_dir, path) = made("trace", data);
        analyze(&path, &[]).expect(2).says(&[expected, "trace: "]);
    }
    analyze(Path::new("no-such-file"), &[]).expect(2).says(&["no-such-file"]);
}

#[test]
fn bad_file_among_others_does_not_keep_them_from_being_analysed() {
    let (_dir, good) = made("perf.data", &perf_file(&events(), 20));
    let (_dir, empty) = made("empty", b"");
    let (good, empty) = (good.to_str().unwrap(), empty.to_str().unwrap());
    let said = ["empty: it is empty", "1 of 3 files could not be analysed"];
    let ran = instep(&["analyze", good, empty, good]).expect(2).says(&said);
    assert_eq!(ran.stdout.matches("vm-10 (pid 10), 2 vCPUs").count(), 2, "{}", ran.stdout);
    let json = instep(&["analyze", "--json", good, empty, good]).expect(2).json();
    assert_eq!(json.as_array().map(Vec::len), Some(2));
    let json = instep(&["analyze", "--json", good, empty]).expect(2).json();
    assert_eq!(json[0]["schema"], "instep.analysis/1");
}

#[test]
fn a_topology_without_cpus_that_the_trace_shows_is_refused() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    for cpus in [1, 2] {
        let host = instep_madehost::scratch_dir().unwrap();
        MadeHost::new(HostSpec::new(1, cpus)).write(host.path()).unwrap();
        let root = host.path().to_str().unwrap();
        let topology = instep(&["topology", "--json", "--root", root]).expect(0).stdout;
        let (_dir, file) = made("topology.json", topology.as_bytes());
        let file = file.to_str().unwrap();
        let report = analyze(&path, &["--topology", file]);
        let judged = analyze(&path, &["--topology", file, "--check"]);
        let said = "that host has 1 CPU, and the trace shows 2";
        for ran in [report, judged] {
            assert_eq!(ran.stderr.contains(said), cpus == 1, "{}", ran.all());
            assert_eq!(ran.code == Some(2), cpus == 1, "{}", ran.all());
        }
    }
}

#[test]
fn drawings_go_to_files_for_standard_output_is_the_reports() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    for option in ["--perfetto", "--html"] {
        analyze(&path, &[option, "-"]).expect(2).says(&[option, "standard output is the report's"]);
    }
    assert!(!Path::new("-").exists());
}

/// A host of two CPUs, thread 11 and 12 of one VM and 21 of another, in milliseconds.
fn schedule(moments: &[(u64, u32, TracepointFields)]) -> (TempDir, PathBuf) {
    let moment = |(ms, cpu, what): &(u64, u32, TracepointFields)| MadeEvent {
        time: 1_000_000 * (ms + 1),
        cpu: *cpu,
        current: (0, 0),
        flags: 0,
        what: what.clone(),
    };
    let all: Vec<MadeEvent> = moments.iter().map(moment).collect();
    made("perf.data", &perf_file(&all, 20))
}

const IDLE: (u32, &str) = (0, "swapper");
