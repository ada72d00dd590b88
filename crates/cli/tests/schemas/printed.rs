//! What every command prints, on copies of hosts, of traces, and beside a run that places a VM.

use super::common::{Ran, Started, binary, instep, schemas};
use super::server::Server;
use super::vm::{Vm, wait_for};
use instep_core::units::{Bytes, Milli, Nanos, NodeId};
use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Two copies of a host with two VMs, a minute apart, and traces.
pub(crate) struct Copies(TempDir);

impl Copies {
    pub(crate) fn new() -> Self {
        let copies = Self(instep_madehost::scratch_dir().unwrap());
        let mut host = MadeHost::new(HostSpec::new(2, 4));
        for (name, vcpus) in [("a", 2), ("b", 8)] {
            let memory = Bytes::from_mib(512);
            host.push(VmSpec::new(name, Vmm::Libvirt, vcpus, NodeId(0), memory).load(Milli(600)));
        }
        host.write_pair(&copies.path("before"), &copies.path("after"), Nanos::from_secs(60))
            .unwrap();
        copies
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What a command prints of the host, as JSON.
    pub(crate) fn on(&self, args: &[&str]) -> Value {
        let root = self.path("after");
        parsed(&instep(&[args, &["--json", "--root", root.to_str().unwrap()]].concat()))
    }

    /// A trace in which the VM `vm-10` waits for itself for so many turns of 2 ms.
    fn trace(&self, name: &str, turns: u64) -> String {
        let threads = [(11, "CPU 0/KVM"), (12, "CPU 1/KVM")];
        let moment = |at: u64, current, [from, to]: [(u32, &'static str); 2]| MadeEvent {
            time: 1_000_000 + at,
            cpu: 0,
            current,
            flags: 0,
            what: TracepointFields::Switch(from, to, 0),
        };
        let turn = |turn: u64| {
            let ([a, b], at) = (threads, turn * 2_000_000);
            [moment(at, (11, 10), [a, b]), moment(at + 1_000_000, (12, 10), [b, a])]
        };
        let moments: Vec<MadeEvent> = (0..turns).flat_map(turn).collect();
        let path = self.path(name);
        fs::write(&path, perf_file(&moments, 20)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A file with what a command printed.
    fn kept(&self, name: &str, document: &Value) -> String {
        let path = self.path(name);
        fs::write(&path, document.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}:\n{}", ran.all()))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// What only an emulated host gives: the tests in ../lab hold it against the document.
const BOOTING: [&str; 2] = ["instep.bench/1", "instep.lab/1"];

/// Why a host gives this user no scheduling events: no tracefs, or no privilege.
const NO_EVENTS: [&str; 4] =
    ["it is not mounted", "Permission denied", "Operation not permitted", "Read-only file system"];

/// The names of what was held against the document.
#[derive(Default)]
struct Held(BTreeSet<String>);

impl Held {
    fn check(&mut self, document: &Value) {
        let name = schemas::check(document);
        self.0.insert(name.unwrap_or_else(|| panic!("names no schema: {document}")));
    }

    /// Each line of a text.
    fn check_lines(&mut self, text: &str) {
        assert!(!text.trim().is_empty(), "nothing was printed");
        text.lines().for_each(|line| self.check(&serde_json::from_str(line).unwrap()));
    }
}

#[test]
fn every_command_prints_what_the_document_says() {
    let mut held = Held::default();
    of_copies(&mut held);
    of_xen(&mut held);
    of_traces(&mut held);
    of_laboratory(&mut held);
    let skipped = [of_a_run(&mut held), of_this_host(&mut held), BOOTING.to_vec()].concat();
    let all: BTreeSet<String> = schemas::names(&schemas::all()).into_keys().collect();
    let missing: Vec<&String> =
        all.difference(&held.0).filter(|name| !skipped.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "nothing printed was held against {missing:?}");
}

fn of_copies(held: &mut Held) {
    let copies = Copies::new();
    let before = copies.path("before");
    let before = ["--before", before.to_str().unwrap()];
    held.check(&copies.on(&["topology"]));
    held.check(&copies.on(&["status"]));
    for policy in ["instep", "bnn", "spread", "bind", "none"] {
        held.check(&copies.on(&[&["plan", "--policy", policy], &before[..]].concat()));
    }
    held.check(&copies.on(&["advise", "--vcpus", "4", "--memory", "1GiB"]));
}

/// The same commands where Xen runs the VMs.
fn of_xen(held: &mut Held) {
    let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xen/tests/data/four-nodes/partial");
    for command in ["topology", "status", "plan"] {
        let ran = instep(&[command, "--json", "--root", copy.to_str().unwrap()]);
        held.check(&parsed(&ran));
    }
}

fn of_traces(held: &mut Held) {
    let copies = Copies::new();
    let (short, long) = (copies.trace("short", 50), copies.trace("long", 70));
    let analyses = [&short, &long].map(|trace| parsed(&instep(&["analyze", "--json", trace])));
    analyses.iter().for_each(|analysis| held.check(analysis));
    held.check(&parsed(&instep(&["analyze", "--json", &short, &long])));
    held.check(&parsed(&instep(&["analyze", "--json", "--check", &short])));
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| copies.kept(name, &analyses[at]));
    held.check(&parsed(&instep(&["compare", "--json", &a, &b])));
}

/// What simulates, and lists.
fn of_laboratory(held: &mut Held) {
    let text = "duration = \"20ms\"\nscheduler = \"cfs\"\n[host]\nmemory = \"1GiB\"\ncores = 2\n\
                [[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n";
    let dir = instep_madehost::scratch_dir().unwrap();
    let file = dir.path().join("a.toml");
    fs::write(&file, text).unwrap();
    let agreement = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agreement.json");
    let [file, agreement] = [&file, &agreement].map(|path| path.to_str().unwrap());
    let commands: [&[&str]; 10] = [
        &["sim", file],
        &["sim", file, "--seeds", "2"],
        &["sim", file, "--check"],
        &["sim", file, "--sweep", "scheduler=cfs,credit"],
        &["sim", "--swarm", "2"],
        &["reproduce", "competing-8-8", "--seeds", "1"],
        &["agree", "--from", agreement, "--seeds", "1", "spin-100us"],
        &["bench", "--list"],
        &["lab", "list"],
        &["lab", "doctor"],
    ];
    for command in commands {
        held.check(&parsed(&instep(&[command, &["--json"]].concat())));
    }
}

/// A run that places a VM, what it publishes, and what is asked beside it. Names of what cannot be had here.
fn of_a_run(held: &mut Held) -> Vec<&'static str> {
    let Some(vm) = Vm::start("schemas") else {
        return vec![
            "instep.record/1",
            "instep.restore/1",
            "instep.moment/1",
            "instep.host/1",
            "instep.history/1",
            "instep.serve/1",
        ];
    };
    let (printed, state) = (vm.file("printed"), vm.state());
    let out = File::create(&printed).unwrap();
    let mut run = vm.placed_by(vm.mending(&["--json", "--dispatch", "auto"]).stdout(out));
    let ask = |args: &[&str]| Started::new(&mut vm.instep(args)).end();
    wait_for("two cycles", || fs::read_to_string(&printed).unwrap().lines().count() >= 2);
    held.check(&parsed(&ask(&["status", "--json", "--window", "50ms"])));
    held.check(&read(&state.join("host.json")));
    let server = Server::start(&state);
    let shown = server.shown();
    held.check(&shown);
    assert!(shown["host"].is_object() && shown["history"].is_object(), "{shown}");
    for document in ["host", "history"] {
        held.check(&shown[document]);
    }
    assert_eq!(run.terminate(), Some(0));
    held.check_lines(&fs::read_to_string(&printed).unwrap());
    held.check(&read(&state.join("history/day.json")));
    let history = state.join("history");
    held.check_lines(&instep(&["top", "--json", "--replay", history.to_str().unwrap()]).stdout);
    held.check(&parsed(&ask(&["restore", "--json"])));
    Vec::new()
}

/// What reads this host. Names of what cannot be had here.
fn of_this_host(held: &mut Held) -> Vec<&'static str> {
    let dir = instep_madehost::scratch_dir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let state = path("state");
    held.check(&parsed(&instep(&["topology", "--json"])));
    held.check(&parsed(&instep(&["status", "--json", "--window", "50ms", "--state-dir", &state])));
    held.check(&parsed(&instep(&["collect", &path("copies"), "--window", "50ms", "--json"])));
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    held.check(&parsed(&instep(&["profile", "--json", "--", "sh", "-c", busy])));
    let file = path("recorded");
    let args = ["record", "-d", "300ms", "--json", "-o", &file];
    let ran = Started::new(binary(env!("CARGO_BIN_EXE_instep")).args(args)).end();
    let refused = ran.stderr.split_once("tracefs: ").map_or("", |(_, why)| why);
    if ran.code == Some(2) && NO_EVENTS.iter().any(|reason| refused.contains(reason)) {
        skip::note(ran.stderr.trim());
        return vec!["instep.recording/1"];
    }
    held.check(&parsed(&ran));
    Vec::new()
}
