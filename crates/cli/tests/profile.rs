//! `instep profile` on real programs: types and parallelism are what theory says of them. Programs
//! that this machine lacks are skipped; where others use the CPUs, a few tries are made.

#![cfg(test)]

#[path = "common/browser.rs"]
#[allow(dead_code, reason = "other tests look at the timeline, too")]
mod browser;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{Ran, list, text};
use instep_host::discover::proc_text;
use instep_madehost::skip;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tries on a machine that others use, too.
const TRIES: usize = 4;

/// `instep-load` as built beside `instep`, or for guests.
fn load() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_instep")).with_file_name("instep-load");
    let target = beside.ancestors().nth(2)?;
    let guests = target.join("x86_64-unknown-linux-gnu/release/instep-load");
    let found = [guests, beside].into_iter().find(|path| path.exists());
    if found.is_none() {
        skip::note("instep-load is not built; cargo xtask load does");
    }
    found
}

fn installed(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        skip::note(&format!("{program} is not installed"));
    }
    found
}

/// Whether real programs may be run to be judged, which takes seconds each.
fn may_measure() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|count| count.get() >= 2);
    if !enough {
        skip::note("two CPUs are needed");
    }
    enough && skip::may_take_long()
}

/// What measures takes turns: tests side by side would take each other's CPUs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn instep(args: &[&str]) -> Ran {
    let _turn = turn();
    common::instep(args)
}

/// Takes no turn: who calls it has one.
fn profiled(args: &[&str], command: &str) -> (Value, Ran) {
    let words = command.split_whitespace();
    let args: Vec<&str> =
        ["profile", "--json"].iter().chain(args).copied().chain(["--"]).chain(words).collect();
    let ran = common::instep(&args).expect(0);
    let json = ran.json();
    assert_eq!(json["schema"], "instep.profile/1");
    (json, ran)
}

fn number(json: &Value, path: &str) -> f64 {
    json.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {json}"))
}

/// Time that the CPUs were not idle so far, what a hypervisor took included, in nanoseconds.
fn taken() -> f64 {
    let ticks = proc_text::host_ticks(&std::fs::read("/proc/stat").unwrap()).unwrap();
    // Hundredths of a second on every machine.
    proc_text::ticks_to_nanos(ticks.busy, 100).0 as f64
}

/// Profiles until `fits`, or fails with the last profile; `None`, and a note, where others had a tenth of
/// its CPUs each time, so that it says more of them.
fn until(args: &[&str], command: &str, fits: impl Fn(&Value) -> bool) -> Option<(Value, Ran)> {
    let mut all_disturbed = true;
    for _ in 0..TRIES {
        let turn = turn();
        let before = taken();
        let (json, ran) = profiled(args, command);
        let all = taken() - before;
        drop(turn);
        if fits(&json) {
            return Some((json, ran));
        }
        let of = |key: &str| number(&json, &format!("/profile/{key}"));
        let others = all - of("run_ns");
        let part = others / (of("elapsed_ns") * of("threads"));
        let told = format!("{command}: {:#} {:#}", json["profile"], json["warnings"]);
        eprintln!("others had {part:.2} of the CPUs: {told}");
        all_disturbed &= part > 0.1;
    }
    assert!(all_disturbed, "{command}: none of {TRIES} profiles is as theory says");
    skip::note(&format!("others had a tenth of the CPUs each time: {command} is not judged"));
    None
}

/// Whether the parallelism is what theory says, to a tenth.
fn parallel(json: &Value, theory: f64) -> bool {
    let found = json["profile"]["parallelism"].as_f64();
    println!("parallelism {found:?}, by theory {theory}");
    found.is_some_and(|found| (found / theory - 1.0).abs() < 0.1)
}

/// Whether others took so much that there is no advice.
fn is_disturbed(json: &Value) -> bool {
    json["no_advice"].as_str().is_some_and(|why| why.starts_with("other threads had the CPUs"))
}

/// The last line that `instep-load` printed.
fn own_count(ran: &Ran) -> Value {
    let line = ran.stderr.lines().rfind(|line| line.contains("\"total\":true"));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{}", ran.all()))).unwrap()
}

#[test]
fn blocking_barrier_is_of_type_3_and_counts_its_cpu_time() {
    let Some(load) = load().filter(|_| may_measure()) else { return };
    let command =
        format!("{} barrier --threads 2 --kind block --phase 1ms --duration 2s", load.display());
    let Some((json, ran)) = until(&[], &command, |json| json["profile"]["type"] == 3) else {
        return;
    };
    assert_eq!(json["advice"]["co_scheduling"], "harms");
    assert!(number(&json, "/profile/blocks_per_s") > 100.0);
    let own = own_count(&ran);
    let cpus = number(&own, "/cpu_ns") / number(&own, "/t_ns");
    let seen = number(&json, "/profile/run_ns") / number(&json, "/profile/elapsed_ns");
    assert!((seen / cpus - 1.0).abs() < 0.15, "seen {seen}, by itself {cpus}");
    // It never spins: whoever has a CPU makes progress.
    assert!(parallel(&json, cpus), "{:#}", json["profile"]);
}

#[test]
fn spinning_barrier_never_blocks_and_is_no_parallelism() {
    let Some(load) = load().filter(|_| may_measure()) else { return };
    let command = format!(
        "{} barrier --threads 2 --kind spin --phase 1ms --imbalance 60% --duration 2s",
        load.display()
    );
    let traced = |json: &Value| json["source"] == "switches";
    let spins = |json: &Value| {
        !traced(json) || (number(json, "/profile/busy_waiting") > 0.05 && parallel(json, 1.67))
    };
    // It never blocks, and of two phases of 1 ms, give or take 60 %, the longer one is 1.2 ms: 1.67 of two
    // threads work on average.
    let Some((json, _)) = until(&[], &command, |json| json["profile"]["type"] == 1 && spins(json))
    else {
        return;
    };
    assert!(number(&json, "/profile/between_blocks_ns") > 12e6, "{:#}", json["profile"]);
    if !traced(&json) {
        assert_eq!(json["advice"]["co_scheduling"], "if_it_spins");
        return skip::note("context switches cannot be traced here");
    }
    assert_eq!(json["advice"]["co_scheduling"], "pays");
    let (busy, parallel) = (number(&json, "/profile/busy"), number(&json, "/profile/parallelism"));
    assert!(parallel < busy * 0.96, "{busy} {parallel}");
    // /proc alone cannot tell.
    let _turn = turn();
    let (json, _) = profiled(&["--no-trace"], &command);
    assert_eq!((&json["source"], &json["profile"]["busy_waiting"]), (&"proc".into(), &Value::Null));
}

#[test]
fn a_balanced_spinner_is_no_blocking_program_of_long_phases() {
    let Some(load) = load().filter(|_| may_measure()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    let command = format!(
        "{} barrier --threads 2 --kind spin --phase 200us --duration 1500ms",
        load.display()
    );
    let spins = |json: &Value| {
        json["source"] != "switches"
            || (json["profile"]["type"] == 1 && number(json, "/profile/busy_waiting") >= 0.01)
    };
    let Some((json, _)) = until(&[], &command, spins) else { return };
    if json["source"] != "switches" {
        return skip::note("context switches cannot be traced here");
    }
    let told = json["advice"]["co_scheduling"].as_str().unwrap();
    assert!(["may_pay", "pays"].contains(&told), "{told}");
    // A measurement of its own, in which others may have more.
    let args = ["profile", "--json", "--scenario", file.to_str().unwrap(), "--"];
    let ran = instep(&args.into_iter().chain(command.split_whitespace()).collect::<Vec<_>>());
    let json = ran.json();
    if is_disturbed(&json) || number(&json, "/profile/busy_waiting") < 0.01 {
        return skip::note("other threads had the CPUs: the scenario is not looked at");
    }
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("barrier --threads 2 --kind spin"), "{written}");
}

#[test]
fn without_advice_there_is_no_scenario_but_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    for (command, why) in [("sleep 0.3", "it was hardly active"), ("true", "it ran for")] {
        let args = ["profile", "--json", "--scenario", file.to_str().unwrap(), "--"];
        let ran = instep(&args.into_iter().chain(command.split_whitespace()).collect::<Vec<_>>());
        let ran = ran.expect(2);
        assert!(ran.stderr.contains(&format!("is not written, as there is no advice: {why}")));
        assert!(!file.exists() && ran.json()["scenario"].is_null());
    }
}

#[test]
fn a_program_that_spins_while_one_thread_works_is_of_type_4() {
    let Some(load) = load().filter(|_| may_measure()) else { return };
    // Of 7 ms both work for 1 and one for 6: 1.14 of two threads.
    let command = format!(
        "{} serial --threads 2 --kind spin --parallel 2ms --sequential 6ms --duration 2s",
        load.display()
    );
    let traced = |json: &Value| json["source"] == "switches";
    let fits =
        |json: &Value| !traced(json) || (json["profile"]["type"] == 4 && parallel(json, 8.0 / 7.0));
    let Some((json, _)) = until(&[], &command, fits) else { return };
    if !traced(&json) {
        return skip::note("context switches cannot be traced here");
    }
    let (busy, parallel) = (number(&json, "/profile/busy"), number(&json, "/profile/parallelism"));
    assert!(busy > 1.5 && parallel < 1.5, "{busy} {parallel}");
    assert_eq!(json["advice"]["co_scheduling"], "pays");
}

#[test]
fn computing_is_of_type_1() {
    if !installed("stress-ng") || !may_measure() {
        return;
    }
    for args in [&[][..], &["--no-trace"]] {
        let computes = |json: &Value| {
            json["profile"]["type"] == 1 && number(json, "/profile/parallelism") > 1.7
        };
        let Some((json, _)) = until(args, "stress-ng --cpu 2 -t 2 -q", computes) else { return };
        assert_eq!(json["profile"]["threads"], 2);
        assert!(number(&json, "/profile/blocks_per_s") < 100.0);
    }
}

#[test]
fn messages_between_many_are_of_type_3() {
    if !installed("hackbench") || !may_measure() {
        return;
    }
    for args in [&[][..], &["--no-trace"]] {
        let Some((json, _)) =
            // Far more threads than CPUs, of which some can always go on.
            until(args, "hackbench -g 2 -l 2000", |json| {
                json["profile"]["type"] == 3 && parallel(json, 2.0)
            })
        else {
            return;
        };
        assert!(number(&json, "/profile/blocks_per_s") > 500.0);
    }
}

#[test]
fn the_scenario_behaves_in_the_simulator_as_the_program_does() {
    let Some(load) = load().filter(|_| may_measure()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    let file = file.to_str().unwrap();
    for mode in [
        "serial --threads 2 --kind block --parallel 8ms --sequential 8ms",
        "barrier --threads 2 --kind block --phase 2ms",
    ] {
        let command = format!("{} {mode} --duration 2s", load.display());
        let args = ["profile", "--json", "--share", "100%", "--scenario", file, "--"];
        let ran = instep(&args.into_iter().chain(command.split_whitespace()).collect::<Vec<_>>());
        let json = ran.json();
        if is_disturbed(&json) {
            skip::note("other threads had the CPUs: no scenario is written");
            continue;
        }
        let sim = instep(&["sim", file, "--json"]).expect(0).json();
        let vm = &list(&sim, "vms")[0];
        for (real, simulated, within) in [
            ("/profile/parallelism", "/parallelism", 0.12),
            ("/profile/blocks_per_s", "/blocks_per_s", 0.1),
        ] {
            let (real, simulated) = (number(&json, real), number(vm, simulated));
            assert!((simulated / real - 1.0).abs() < within, "{mode}: {real}, {simulated}");
        }
    }
}

#[test]
fn a_curve_has_a_point_for_each_number_of_threads() {
    // As many loops as threads, each an equal part of the same work.
    let script = "for i in $(seq {threads}); do (n=$((400000 / {threads})); while [ $n -gt 0 ]; do \
                  n=$((n-1)); done) & done; wait";
    let args = ["profile", "--json", "--threads", "2,1", "--", "sh", "-c", script];
    let turn = turn();
    let before = taken();
    let json = common::instep(&args).expect(0).json();
    let all = taken() - before;
    drop(turn);
    let curve = list(&json, "curve");
    let sum = |key: &str| curve.iter().map(|point| number(point, &format!("/{key}"))).sum::<f64>();
    // Half of the work each, at once. CPUs that share a core slow each other down: the same work then takes more CPU time.
    if all - sum("run_ns") < 0.1 * sum("elapsed_ns") && may_measure() {
        let slower = number(&curve[1], "/run_ns") / number(&curve[0], "/run_ns");
        assert!(number(&curve[1], "/speedup") * slower > 1.6, "{curve:#?}");
    }
    assert_eq!(
        (curve.len(), &curve[0]["threads"], &curve[1]["threads"]),
        (2, &1.into(), &2.into())
    );
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    let none = curve.iter().all(|point| point["speedup"].is_null());
    assert_eq!(none, json["warnings"].to_string().contains("all runs took the same time"));
    for point in curve {
        let of = |key: &str| number(point, &format!("/{key}"));
        // What holds however busy the machine is: who can be active at once, and what follows.
        let most = of("threads").min(cpus);
        assert!(of("parallelism") <= most && of("efficiency") <= 1.0, "{point}");
        assert!((of("efficiency") - of("parallelism") / most).abs() < 0.002, "{point}");
        assert!(of("run_ns") <= 1.1 * cpus * of("elapsed_ns"), "{point}");
        if none {
            continue;
        }
        let times = number(&curve[0], "/elapsed_ns") / of("elapsed_ns");
        assert!((of("speedup") - times).abs() < 1e-9, "{point}");
        let excess = (of("run_ns") - number(&curve[0], "/run_ns")).max(0.0);
        assert_eq!(of("excess_ns"), excess, "{point}");
    }
    assert!(none || number(&curve[0], "/speedup") == 1.0);
}

#[test]
fn a_process_is_watched_for_the_time_that_is_given() {
    let turn = turn();
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let pid = child.id().to_string();
    let ran = common::instep(&["profile", "--pid", &pid, "--duration", "500ms", "--json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(turn);
    let json = ran.expect(0).json();
    assert_eq!(json["profile"]["threads"], 1);
    let elapsed = number(&json, "/profile/elapsed_ns");
    assert!((0.3e9..20e9).contains(&elapsed), "{elapsed}");
    assert!(number(&json, "/profile/run_ns") > 0.0);
    if is_disturbed(&json) {
        return skip::note("other threads had the CPUs: there is no advice");
    }
    assert_eq!(json["advice"]["co_scheduling"], "alone");
}

#[test]
fn a_command_that_is_ended_when_its_time_is_over_did_not_fail() {
    let args = ["profile", "-d", "500ms", "--json", "--", "sleep", "60"];
    let json = instep(&args).expect(0).json();
    assert!(!json["warnings"].to_string().contains("failed"), "{:#}", json["warnings"]);
    assert!(number(&json, "/profile/elapsed_ns") < 30e9);
}

#[test]
fn places_are_compared_by_time() {
    if !installed("taskset") {
        return;
    }
    let script = "n=200000; while [ $n -gt 0 ]; do n=$((n-1)); done";
    let ran = instep(&["profile", "--json", "--on", "0", "--on", "0", "--", "sh", "-c", script]);
    let json = ran.expect(0).json();
    for place in list(&json, "places") {
        assert_eq!(
            (&place["threads"], &place["cores"], &place["nodes"]),
            (&1.into(), &1.into(), &1.into())
        );
    }
    assert_eq!(list(&json, "places").len(), 2);
    // One thread shares its core with none of its own.
    assert!(json["advice"].is_null() || json["advice"]["policy"].is_null(), "{json:#}");
}

#[test]
fn text_fits_80_columns_and_the_page_holds_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("p.html");
    let args = [
        "profile",
        "--html",
        page.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "n=200000; while [ $n -gt 0 ]; do n=$((n-1)); done; sleep 0.3; echo '</script>'",
    ];
    let ran = instep(&args);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    if ran.stdout.contains("none: other threads had the CPUs") {
        return skip::note("other threads had the CPUs: there is neither potential nor advice");
    }
    for part in ["parallelism", "type", "Potential on a VM", "Advice", "placement policy `instep`"]
    {
        assert!(ran.stdout.contains(part), "{}", ran.stdout);
    }
    let source = std::fs::read_to_string(&page).unwrap();
    assert!(source.contains("instep.profile/1") && !source.contains("echo '</script>"));
    let Some(seen) = browser::rendered(&page) else { return };
    let parallelism = ran.stdout.lines().find_map(|line| line.trim().strip_prefix("parallelism"));
    let number = parallelism.unwrap().split_whitespace().next().unwrap();
    for part in
        [number, "echo '&lt;/script&gt;'", "Busy waiting", "Potential on a VM", "24ms", "50%"]
    {
        assert!(seen.text.contains(part), "no {part} on the page:\n{}", seen.text);
    }
}

#[test]
fn program_that_hardly_runs_gets_a_reason_in_place_of_advice() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("p.html");
    let options = ["profile", "--html", page.to_str().unwrap(), "--json", "--", "sleep", "0.5"];
    let json = instep(&options).expect(0).json();
    let told = |path: &str| json.pointer(path).unwrap();
    assert_eq!((told("/profile/type"), told("/advice")), (&Value::Null, &Value::Null));
    assert_eq!(list(&json, "potential").len(), 0);
    assert!(text(&json, "no_advice").contains("hardly active: 0.0"), "{json}");
    let said = instep(&["profile", "--", "sleep", "0.5"]).expect(0).stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("none: it was hardly active"), "{said}");
    for nonsense in ["vCPU", "demand", "Potential", "co-scheduling", "(low", "(high"] {
        assert!(!said.contains(nonsense), "{said}");
    }
    let brief = instep(&["profile", "--json", "--", "true"]);
    if brief.code == Some(0) {
        let json = brief.json();
        assert_eq!(json.pointer("/profile/type"), Some(&Value::Null), "{json}");
        assert!(text(&json, "no_advice").contains("its start rather than its work"), "{json}");
    } else {
        brief.expect(2).says(&["it ended before it could be watched"]);
    }
    let Some(seen) = browser::rendered(&page) else { return };
    assert!(seen.text.contains("none: it was hardly active"), "{}", seen.text);
}

#[test]
fn a_failed_command_is_a_finding_and_wrong_use_is_explained() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let json =
        instep(&["profile", "--json", "--", "sh", "-c", "sleep 0.3; exit 3"]).expect(1).json();
    assert!(json["warnings"].to_string().contains("the command failed: exit status: 3"));
    for (args, words) in [
        (&["profile"][..], "--pid PID"),
        (&["profile", "--pid", "1", "--", "true"], "cannot be used with"),
        (&["profile", "--threads", "1,2", "--", "true"], "{threads}"),
        (&["profile", "--", "echo", "{threads}"], "--threads 1,2,4"),
        (&["profile", "--share", "0%", "--", "true"], "above 0"),
        (&["profile", "--share", "101%", "--", "true"], "up to 100"),
        (&["profile", "--share", "0.5", "--", "true"], "a half is 50%"),
        (&["profile", "--share", "50", "--", "true"], "with its sign"),
        (&["profile", "--pid", "4194304"], "there is no process 4194304"),
        (&["profile", "--vm", "nobody"], "no VM is called `nobody`"),
        (&["profile", "--on", "x", "--", "true"], "--on x"),
        (&["profile", "--on", "60000", "--", "true"], "CPU 60000 is not among those"),
        (&["profile", "--", "no-such-program"], "`no-such-program` is no program"),
        (&["profile", "--", "/etc/passwd"], "not executable"),
        (&["profile", "--", "false"], "there is nothing to profile"),
    ] {
        instep(args).expect(2).says(&[words]);
    }
}

#[test]
fn orphans_of_command_are_watched_and_its_output_is_kept_apart() {
    let script = "sh -c 'sleep 0.2; n=30000; while [ $n -gt 0 ]; do n=$((n-1)); done' & echo hello";
    let ran = instep(&["profile", "--json", "--", "sh", "-c", script]);
    let json = ran.json();
    assert!(text(&json, "what").contains("echo hello") && ran.stderr.contains("hello"));
}
