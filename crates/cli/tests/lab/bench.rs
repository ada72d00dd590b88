//! `instep bench` in the lab: two schedulers, one case, short. And what it refuses before it boots.

use crate::held::lacking;
use crate::schemas;
use crate::stage::{instep, turn};
use instep_madehost::skip;
use serde_json::Value;

/// A case whose work ends in time from its second run on.
const SLOW_ONCE: &str = r#"
[host]
cores = 2
[[case]]
name = "slow-once"
about = "the first run ends too late"
[case.work]
kind = "host"
vcpus = 1
per = "naps"
load = "sh -c 'if [ -e /tmp/slow ]; then sleep 0.05; else touch /tmp/slow; sleep 100; fi'"
[[case.beside]]
load = "instep-load compute"
vcpus = 1
"#;

#[test]
fn default_is_measured_and_a_failed_load_is_reported() {
    if !skip::may_boot() {
        return;
    }
    let _turn = turn();
    // Started without arguments, it ends at once: no scheduler.
    let mut names = "default,dud".to_owned();
    if cfg!(feature = "kernel") {
        names.push_str(",instep");
    }
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("slow-once.toml");
    std::fs::write(&own, SLOW_ONCE).unwrap();
    let cases =
        ["bench", "--cases", own.to_str().unwrap(), "--case", "compute-50", "--case", "slow-once"];
    let args = ["--schedulers", &names, "--peer", "dud=/bin/false"];
    let short = ["--runs", "1", "--settle", "500ms", "--measure", "1s", "--json"];
    let ran = instep(&[&cases[..], &args[..], &short[..]].concat());
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let what = lacking(&said)
        .or_else(|| said.contains("instep-load is not built").then_some(said.as_str()));
    if let (Some(2), Some(what)) = (ran.status.code(), what) {
        return skip::note(&format!("bench: {what}"));
    }
    let report: Value =
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(ran.status.code(), Some(1), "dud does not take part: {report:#}");
    assert_eq!(schemas::check(&report).as_deref(), Some("instep.bench/1"));
    // What failed is measured a second time, and that is said.
    let slow = &report["cases"][1];
    assert_eq!(
        (&slow["name"], &slow["results"]["default"]["failed"]),
        (&"slow-once".into(), &serde_json::json!([]))
    );
    assert!(
        report["warnings"].to_string().contains("slow-once: measured a second time"),
        "{report:#}"
    );
    let case = &report["cases"][0];
    assert_eq!((&case["name"], &case["share"]), (&"compute-50".into(), &0.5.into()));
    let speed = |name: &str| case["results"][name]["fair_share_speed"]["median"].as_f64();
    // Half the CPUs at the speed of half: a busy machine dilutes both alike, roughly.
    assert!(speed("default").is_some_and(|speed| (0.4..2.5).contains(&speed)), "{report:#}");
    if cfg!(feature = "kernel") {
        assert!(speed("instep").is_some_and(|speed| (0.4..2.5).contains(&speed)), "{report:#}");
    }
    let dud = report["schedulers"].as_array().unwrap().iter().find(|s| s["name"] == "dud").unwrap();
    assert!(dud["why_not"].as_str().is_some_and(|why| why.contains("it ended")), "{report:#}");
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_boots() {
    for (args, said) in [
        (&["--case", "none-*"][..], "no case fits `none-*`; see instep bench --list"),
        (&["--schedulers", "a/b"], "`a/b` is no scheduler's name"),
        (&["--schedulers", "instep-without-luck"], "Instep has no mechanism `luck`; known are"),
        (&["--peer", "mine=/none"], "--peer mine: there is no file /none"),
        (&["--peer", "default=/bin/false"], "this name is taken"),
        (&["--cases", "/none.toml"], "cannot read /none.toml"),
        (&["--from", "/none.json"], "cannot read /none.json"),
    ] {
        let ran = instep(&[&["bench"], args].concat());
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(said), "{args:?}: {text}");
    }
}

#[test]
fn here_without_sched_ext_or_root_is_a_clear_error() {
    if std::path::Path::new("/sys/kernel/sched_ext").exists() {
        return skip::note("this kernel has sched_ext: bench --here would run");
    }
    let ran = instep(&["bench", "--here", "--case", "compute-50"]);
    let text = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{text}");
    assert!(text.contains("need root") || text.contains("no sched_ext"), "{text}");
}

#[test]
fn the_cases_are_listed_with_their_shares() {
    let ran = instep(&["bench", "--list", "--quick", "--json"]);
    let listed: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let cases = listed["cases"].as_array().unwrap();
    assert!(cases.iter().all(|case| case["quick"] == true));
    let spin = cases.iter().find(|case| case["name"] == "spin-100us-25").unwrap();
    assert_eq!((&spin["share"], &spin["cpus"]), (&0.25.into(), &2.into()));
}
