//! Scenarios that must hold. [`ALWAYS`] take ten seconds to two minutes each on two quiet cores; with
//! INSTEP_LAB_ALL=1 all others follow, in half an hour.

use crate::schemas;
use crate::stage::{self, Lab, left_by, scenarios, turn};
use crate::sums;
use instep_madehost::skip;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ALWAYS: [&str; 4] = ["hello", "pinned", "larger-than-a-node", "throttled"];

/// The scenario of a Xen host, whose packages not every machine can have.
const XEN: &str = "xen-conflict";

/// The longest that one run may take, begun again or not: three times what the longest takes on two slow cores.
const RUN: Duration = Duration::from_secs(720);
/// The longest that its processes and files may be there after it was asked to stop.
const STOPS: Duration = Duration::from_secs(60);

/// The last line of an `instep` whose machine lacks something.
const LACKING: &str =
    "instep: this cannot be done here; `instep lab doctor` lists all that is missing";

/// What this machine lacks, by what `instep` said; `None` when anything else ended it.
pub(crate) fn lacking(said: &str) -> Option<&str> {
    let mut lines = said.trim_end().lines().rev();
    lines.next().filter(|line| *line == LACKING).and(lines.next())
}

#[test]
fn only_what_is_lacking_skips_a_scenario() {
    let ran = stage::instep(&["lab", "run", "hello.toml", "--kernel", "/dev/null"]);
    assert_eq!(lacking(&String::from_utf8_lossy(&ran.stderr)), None, "no scenario of that name");
    let hello = named("hello");
    let args = ["lab", "run", hello.to_str().unwrap()];
    let ran = Command::new(env!("CARGO_BIN_EXE_instep")).args(args).env("PATH", "/none").output();
    let said = String::from_utf8_lossy(&ran.unwrap().stderr).into_owned();
    assert!(lacking(&said).is_some_and(|what| what.contains("qemu")), "{said}");
    for failure in ["instep: its kernel panicked, install a newer QEMU\n", "apt\n", ""] {
        assert_eq!(lacking(failure), None);
    }
}

/// Why a run failed.
enum Failure {
    /// The lab did not come to its end: machines that run labs are busy, and emulation has flaws.
    Lab(String),
    /// Something does not hold.
    Held(String),
}

/// Runs a scenario whose every check must hold; `None`, and a note, when this machine cannot. A lab that
/// does not come to its end is run once more, which is noted, too.
pub(crate) fn held(file: &Path, more: &[&str]) -> Option<(Value, Lab)> {
    ran(file, more, |failure| matches!(failure, Failure::Lab(_)))
}

/// As [`held`], for a scenario that judges times: what does not hold is measured once more, too.
pub(crate) fn measured(file: &Path) -> Option<(Value, Lab)> {
    measured_with(file, &[])
}

/// The same with more options.
pub(crate) fn measured_with(file: &Path, more: &[&str]) -> Option<(Value, Lab)> {
    ran(file, more, |_| true)
}

fn ran(file: &Path, more: &[&str], by_chance: fn(&Failure) -> bool) -> Option<(Value, Lab)> {
    if !skip::may_boot() {
        return None;
    }
    let run = tried(file, more).or_else(|failure| {
        let (Failure::Lab(why) | Failure::Held(why)) = &failure;
        assert!(by_chance(&failure), "{why}");
        eprintln!("once more: {why}");
        skip::retried(why.lines().next().unwrap_or_default());
        tried(file, more)
    });
    let run = run.unwrap_or_else(|failure| match failure {
        Failure::Lab(why) | Failure::Held(why) => panic!("{why}"),
    });
    let (report, lab) = run?;
    let (attempts, restarted) = (&report["attempts"], &report["restarted"]);
    if attempts != 1 || restarted.as_array().is_some_and(|names| !names.is_empty()) {
        let earlier = &report["earlier"];
        let why = format!("{attempts} attempts {earlier}, started again: {restarted}");
        skip::retried(&format!("{}: {why}", file.display()));
    }
    eprintln!("{}: {} in {} attempts", file.display(), report["seconds"], report["attempts"]);
    Some((report, lab))
}

/// One run, or why it failed.
fn tried(file: &Path, more: &[&str]) -> Result<Option<(Value, Lab)>, Failure> {
    let mut lab = Lab::start(file, more, None);
    let ended = lab.ends_within(RUN);
    let (said, name) = (lab.text("err"), file.file_stem().unwrap_or_default().to_string_lossy());
    let Some(status) = ended else {
        lab.signal("TERM");
        assert!(lab.ends_within(RUN + STOPS).is_some(), "{name} does not stop:\n{said}");
        assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new());
        return Err(Failure::Lab(format!("{name}: not over after {}s\n{said}", RUN.as_secs())));
    };
    if let (Some(2), Some(what)) = (status.code(), lacking(&said)) {
        skip::note(&format!("{name}: {what}"));
        return Ok(None);
    }
    assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new());
    let report: Value = serde_json::from_str(&lab.text("out")).map_err(|_| {
        let last = said.lines().rfind(|line| line.starts_with("instep: ")).unwrap_or("no report");
        Failure::Lab(format!("{name}: {last}\n{said}"))
    })?;
    assert_eq!(schemas::check(&report).as_deref(), Some("instep.lab/1"));
    report["steps"].as_array().into_iter().flatten().for_each(check_printed);
    let checks = report["checks"].as_array().into_iter().flatten();
    let failed: Vec<String> =
        checks.filter(|check| check["held"] != true).map(Value::to_string).collect();
    if !failed.is_empty() || status.code() != Some(0) {
        let why = format!("{name}: not held: {}\n{said}\n{report:#}", failed.join(" "));
        return Err(Failure::Held(why));
    }
    let by_xen = report["host"]["hypervisor"] == "xen";
    assert!(report["kvm"] == !by_xen && report["attempts"].as_u64() >= Some(1));
    Ok(Some((report, lab)))
}

/// Holds the documents of Instep that a step printed against docs/schemas.json: one, or one a line among other lines.
fn check_printed(step: &Value) {
    let lines = step["stdout"].as_str().into_iter().flat_map(str::lines);
    let documents = lines.filter_map(|line| serde_json::from_str(line).ok());
    let names = [step["stdout"].clone()].into_iter().chain(documents);
    let held = names.filter_map(|document: Value| schemas::check(&document)).count();
    let command = step["step"].as_str().unwrap_or_default().trim();
    let prints_one = command.contains("instep ")
        && command.contains(" --json")
        && !command.contains(['\n', '|', '>', '$']);
    assert!(!prints_one || held > 0, "{command} printed no document: {}", step["stdout"]);
}

pub(crate) fn named(name: &str) -> PathBuf {
    scenarios().join(format!("{name}.toml"))
}

pub(crate) fn all() -> bool {
    std::env::var_os("INSTEP_LAB_ALL").is_some_and(|value| !value.is_empty())
}

#[test]
fn guests_of_an_emulated_host_are_seen_and_brought_home() {
    let _turn = turn();
    let Some((hello, lab)) = held(&named("hello"), &["--keep", "kept"]) else { return };
    assert_eq!(hello["observations"]["end"]["guests"][0]["name"], "hello");
    kept(&hello, &lab.dir().join("kept"));
    for name in &ALWAYS[1..] {
        let ran = held(&named(name), &[]);
        if let (Some((report, lab)), "pinned") = (ran, *name) {
            recorded(&report, &lab.dir().join("instep-lab/pinned.instep"));
        }
    }
}

/// A recording that came back from an emulated host names its guests, and has what their vCPUs did. The
/// newest kernel takes the collector.
fn recorded(report: &Value, file: &Path) {
    if cfg!(feature = "kernel") {
        assert!(report["steps"].to_string().contains("recorded through bpf"), "{report:#}");
    }
    let analysis = analysed(file);
    for name in ["pinned", "free"] {
        let vm = analysis["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == name);
        let vcpus = vm.and_then(|vm| vm["vcpus"].as_array()).unwrap();
        assert_eq!(vcpus.len(), 2, "{analysis:#}");
        assert!(vcpus.iter().all(|vcpu| vcpu["run_ns"].as_u64() > Some(0)), "{analysis:#}");
    }
}

fn analysed(file: &Path) -> Value {
    let read = stage::instep(&["analyze", "--json", file.to_str().unwrap()]);
    serde_json::from_slice(&read.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&read.stderr)))
}

/// Consoles and the report of a run that held are kept where it was asked for, and told.
fn kept(report: &Value, dir: &Path) {
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    assert!(text("console.txt").contains("instep-lab: ready"), "{}", text("console.txt"));
    assert!(!text("console.txt").contains("no anchor"), "{}", text("console.txt"));
    assert!(text("guest-hello.txt").contains("instep-guest: ready"));
    let again: Value = serde_json::from_str(&text("report.json")).unwrap();
    assert_eq!(again["observations"], report["observations"]);
    let told: Vec<&str> =
        report["files"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(told, ["kept/console.txt", "kept/dmesg.txt", "kept/guest-hello.txt"]);
}

#[test]
fn a_xen_host_boots_and_its_conflict_is_mended_and_put_back() {
    let _turn = turn();
    let Some((report, _)) = held(&named(XEN), &[]) else { return };
    let steps = report["steps"].to_string();
    assert!(steps.contains("xen_version            : 4.17"), "{report:#}");
    assert_eq!(report["observations"], serde_json::json!({}));
}

#[test]
fn every_other_scenario_holds() {
    if !all() {
        return skip::note("INSTEP_LAB_ALL=1 runs all scenarios of the lab");
    }
    let mut special = vec!["counted", "recording", XEN];
    special.extend(crate::dispatch::SCENARIOS);
    let dispatches = crate::dispatch::is_built();
    let mut names: Vec<String> = std::fs::read_dir(scenarios())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| dispatches || !name.starts_with("dispatch"))
        .filter(|name| !ALWAYS.contains(&name.as_str()) && !special.contains(&name.as_str()))
        .collect();
    names.sort();
    let _turn = turn();
    for name in names {
        held(&named(&name), &[]);
    }
}

#[test]
fn a_kernel_of_ones_own_boots_with_its_modules() {
    if !all() {
        return skip::note("INSTEP_LAB_ALL=1 boots a kernel given by path");
    }
    let _turn = turn();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache")
    });
    let kernels = std::fs::read_dir(cache.join("instep/kernels/sid")).into_iter().flatten();
    let Some(dir) = kernels.flatten().map(|entry| entry.path()).find(|path| path.is_dir()) else {
        return skip::note("no kernel in the cache to give by path");
    };
    let mut files = std::fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.path());
    let image = files.find(|f| f.to_string_lossy().contains("vmlinuz-")).unwrap();
    let more = ["--kernel", image.to_str().unwrap(), "--modules", dir.to_str().unwrap()];
    held(&named("hello"), &more);
}

#[test]
fn a_recording_made_inside_can_be_read_here() {
    if !all() {
        return skip::note("INSTEP_LAB_ALL=1 records three VMs in the lab");
    }
    let _turn = turn();
    let Some((_, lab)) = held(&named("recording"), &[]) else { return };
    let file = lab.dir().join("instep-lab/host.perf.data");
    let script = Command::new("perf").arg("script").arg("-i").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&script.stdout);
    for event in ["kvm:kvm_entry", "sched:sched_switch"] {
        assert!(text.contains(event), "{}", String::from_utf8_lossy(&script.stderr));
    }
    for file in ["host.perf.data", "host.trace.dat"] {
        let file = lab.dir().join("instep-lab").join(file);
        three_vms(&analysed(&file));
    }
    let (perf, dat) = (file, lab.dir().join("instep-lab/host.trace.dat"));
    let args = ["sched", "timehist", "--state", "-i", perf.to_str().unwrap()];
    if let Some(text) = sums::printed("perf", &args) {
        sums::assert_agree(&sums::report(&perf, false), &sums::timehist(&text), 8);
    }
    if let Some(text) = sums::printed("trace-cmd", &["report", "-t", dat.to_str().unwrap()]) {
        sums::assert_agree(&sums::report(&dat, false), &sums::trace_cmd(&text, false), 8);
    }
}

/// Two VMs of two vCPUs lose time to the one of four, which computes, and not to each other.
fn three_vms(analysis: &Value) {
    let vms = analysis["vms"].as_array().unwrap();
    let vcpus = |vm: &Value| vm["vcpus"].as_array().unwrap().len();
    let mut counts: Vec<usize> = vms.iter().map(vcpus).collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 2, 4], "{vms:#?}");
    let computes = &vms.iter().find(|vm| vcpus(vm) == 4).unwrap()["name"];
    for vm in vms.iter().filter(|vm| vcpus(vm) == 2) {
        let worst = vm["culprits"].as_array().unwrap().iter().find(|culprit| {
            let name = culprit["name"].as_str().unwrap();
            name != vm["name"] && !name.starts_with('(')
        });
        assert_eq!(worst.map(|culprit| &culprit["name"]), Some(computes), "{vm:#}");
        let findings = analysis["findings"].as_array().unwrap();
        assert!(
            findings.iter().any(|f| f["vm"] == vm["name"] && f["kind"] == "steal"),
            "{findings:#?}"
        );
    }
}

/// What each load did in all.
fn work(report: &Value) -> Vec<(String, f64)> {
    let loads = report["loads"].as_object().unwrap();
    let total = |lines: &Value| lines.as_array().unwrap().last().unwrap()["work"].as_f64().unwrap();
    loads.iter().map(|(name, lines)| (name.clone(), total(lines))).collect()
}

/// Whatever else this machine does: the other tests of this workspace run beside.
#[test]
fn counted_time_gives_the_same_work_in_every_run_to_a_hundredth() {
    if !all() {
        return skip::note("INSTEP_LAB_ALL=1 runs counted time twice");
    }
    let _turn = turn();
    let Some((first, _)) = held(&named("counted"), &[]) else { return };
    let Some((second, _)) = held(&named("counted"), &[]) else { return };
    for ((name, one), (_, two)) in work(&first).into_iter().zip(work(&second)) {
        eprintln!("{name}: {one} and {two}");
        assert!((one - two).abs() <= one / 100.0, "{name}: {one} and {two}");
    }
}
