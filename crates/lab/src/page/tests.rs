//! The page draws what a report holds, stands alone, and lets no text of a guest become markup.

use super::*;
use crate::host::accel::Accel;
use crate::host::machine::{HostMachine, Hypervisor};
use crate::scenario::check::result;
use crate::scenario::evidence::{GuestSeen, LabObservation, ThreadSeen};
use crate::scenario::report::{LabSample, Seconds};
use std::collections::BTreeMap;

fn guest(name: &str, home: u32, mib: [u64; 2]) -> GuestSeen {
    let thread = |index: u32| ThreadSeen {
        vcpu: Some(index),
        cpu: home * 4 + index * 2,
        allowed: vec![home * 4 + index * 2, home * 4 + index * 2 + 1],
        ..ThreadSeen::default()
    };
    GuestSeen {
        name: name.to_owned(),
        nodes: vec![home],
        memory_bytes_by_node: mib.map(|mib| mib << 20).to_vec(),
        memory_home: 0.5,
        threads: vec![thread(0), thread(1)],
        ..GuestSeen::default()
    }
}

fn step(name: &str, began: f64, checks: usize) -> StepReport {
    StepReport {
        step: format!("observe {name}"),
        began,
        seconds: 1.0,
        checks,
        status: None,
        stdout: None,
        stderr: String::new(),
    }
}

fn report(name: &str) -> LabReport {
    let host: HostMachine =
        toml::from_str("nodes = 2\ncores = 2\nthreads = 2\nmemory = '1GiB'").unwrap();
    let seen = |mib| LabObservation {
        guests: vec![guest(name, 0, mib)],
        online: vec![0, 1, 2, 3, 4, 5, 6],
    };
    let (before, after) = (seen([0, 80]), seen([60, 20]));
    let samples =
        vec![LabSample::of(&before, 1.0), LabSample::of(&before, 2.0), LabSample::of(&after, 11.0)];
    LabReport {
        schema: "instep.lab/1",
        scenario: "x".to_owned(),
        about: "about <it>".to_owned(),
        clock: host.clock.into(),
        host,
        kernel: "7.2".to_owned(),
        kvm: true,
        accel: Accel::software("KVM dies"),
        attempts: 1,
        restarted: Vec::new(),
        earlier: Vec::new(),
        seconds: Seconds::default(),
        steps: vec![step("before", 1.0, 1), step("after", 10.0, 1)],
        observations: BTreeMap::from([("before".to_owned(), before), ("after".to_owned(), after)]),
        samples,
        loads: BTreeMap::new(),
        checks: vec![
            result("home_is", name, true, "found-one".to_owned()),
            result("home_is", name, false, "found-two".to_owned()),
        ],
        held: false,
        files: Vec::new(),
    }
}

#[test]
fn moments_are_drawn_in_order_with_their_checks_vcpus_and_memory() {
    let html = draw(&report("alpha"), &Words::default());
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text} in\n{html}"));
    assert!(at("</span> before") < at("found-one") && at("found-one") < at("</span> after"));
    assert!(at("</span> after") < at("found-two"));
    for part in [
        "1 of 2 checks FAILED",
        ">alpha 1</span>",
        "may use CPUs 2-3",
        "CPU 7</span><span class=\"none\">offline",
        "alpha 80 MiB (away from its vCPUs)",
        "alpha 60 MiB</p>",
        "about &lt;it&gt;",
    ] {
        assert!(html.contains(part), "no {part} in\n{html}");
    }
}

#[test]
fn a_page_loads_nothing_from_elsewhere() {
    let html = draw(&report("alpha"), &Words::default());
    for word in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn no_text_from_outside_becomes_markup() {
    let evil = "<img onerror='x'>\"&\u{1b}";
    let mut report = report(evil);
    report.kernel = evil.to_owned();
    report.steps[0].stdout = Some(serde_json::json!({
        "schema": "instep.record/1", "cycle": 1, "vms": [{"name": evil, "why": evil}],
        "actions": [{"kind": "vcpu_affinity", "vm": evil, "vcpu": 0, "cpus": [1], "outcome": evil}],
        "memory": [{"vm": evil, "moved_bytes": 1, "stayed_bytes": {evil: 9_000_000}}],
    }));
    report.checks[0].found = evil.to_owned();
    let words = Words { title: evil, moments: &[("before", evil, evil)], act: None };
    let html = draw(&report, &words);
    assert!(!html.contains("<img") && !html.contains('\u{1b}') && !html.contains("'x'"));
    assert!(html.matches("&lt;img onerror=&#39;x&#39;&gt;&quot;&amp;?").count() > 12);
}

#[test]
fn a_report_without_guests_or_checks_is_a_page_too() {
    let mut report = report("alpha");
    (report.samples, report.checks, report.steps) = (Vec::new(), Vec::new(), Vec::new());
    report.observations = BTreeMap::new();
    let html = draw(&report, &Words::default());
    assert!(html.ends_with("</html>\n") && !html.contains("class=\"checks\""));
}

#[test]
fn a_xen_host_s_page_shows_what_commands_printed() {
    let mut report = report("alpha");
    (report.samples, report.observations) = (Vec::new(), BTreeMap::new());
    report.host.hypervisor = Hypervisor::Xen;
    report.steps[0].step = "\n# The <pin>.\nxl vcpu-pin a all 0".to_owned();
    report.steps[0].stdout = Some("a  0\nb\t1\u{1b}\n".into());
    report.steps[1].step = "instep status --json".to_owned();
    report.steps[1].stdout = Some(serde_json::json!({"vms": ["<x>"]}));
    report.steps[1].stderr = "\u{1b}[2Jwhy".to_owned();
    report.accel = Accel::software("a Xen host is emulated");
    let html = draw(&report, &Words::default());
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text} in\n{html}"));
    assert!(at("</span> The &lt;pin&gt;.</h2>") < at("<pre>xl vcpu-pin a all 0</pre>"));
    assert!(at("<pre>a  0\nb  1?</pre>") < at("found-one"));
    assert!(at("found-one") < at("</span> instep status") && at("&lt;x&gt;") < at("found-two"));
    assert!(html.contains("?[2Jwhy") && !html.contains("KVM") && !html.contains("/proc"));
    assert!(!draw(&self::report("alpha"), &Words::default()).contains("<pre>"));
}

fn speeds(name: &str) -> Speeds {
    let phase = |scheduler: &str, from: f64, speeds: [f64; 2]| Phase {
        scheduler: scheduler.to_owned(),
        mean: speeds.to_vec(),
        looks: vec![
            SpeedSample { seconds: from, speeds: speeds.to_vec() },
            SpeedSample { seconds: from + 8.0, speeds: speeds.to_vec() },
        ],
    };
    Speeds {
        guests: vec![name.to_owned(), "computes".to_owned()],
        loads: vec![name.to_owned(), "computes only".to_owned()],
        phases: vec![phase("default", 2.0, [0.25, 1.0]), phase(name, 14.0, [0.9, 1.0])],
        diluted: 0.01,
    }
}

fn page_with(act: Act<'_>) -> String {
    draw(&report("alpha"), &Words { act: Some(act), ..Words::default() })
}

#[test]
fn speeds_are_drawn_after_the_moments_with_their_checks() {
    let speeds = speeds("Instep");
    let checks = [result("faster", "spins", true, "3.6 times".to_owned())];
    let act = Act { title: "worth", caption: "why", speeds: Ok(&speeds), checks: &checks };
    let html = page_with(act);
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text} in\n{html}"));
    assert!(at("</span> after") < at("<span class=\"number\">3</span> worth"));
    assert!(at("> worth") < at("3.6 times as fast under Instep") && at("3.6 times</li>") > 0);
    for part in [
        "<span>default</span>",
        "<b>0.25</b>",
        "<b>0.90</b>",
        "Instep under default: 0.25; Instep under Instep: 0.90; computes under default: 1.00",
        "<span>22 s</span>",
        "waited for this machine&#39;s CPUs for 1 % of the time.</p>",
    ] {
        assert!(html.contains(part), "no {part} in\n{html}");
    }
    // Two guests in two phases, and no bar beyond its end.
    assert_eq!(html.matches("<path class=\"line ").count(), 4);
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn an_act_that_was_left_out_says_why() {
    let act = Act { title: "worth", caption: "", speeds: Err("no <clang>."), checks: &[] };
    let html = page_with(act);
    assert!(html.contains("<p>Left out: no &lt;clang&gt;.</p>"), "{html}");
    assert!(!html.contains("class=\"speed\""));
}

#[test]
fn no_text_of_a_comparison_becomes_markup() {
    let evil = "<img onerror='x'>\"&";
    let speeds = speeds(evil);
    let checks = [result(evil, evil, true, evil.to_owned())];
    let html = page_with(Act { title: evil, caption: evil, speeds: Ok(&speeds), checks: &checks });
    assert!(!html.contains("<img") && !html.contains("'x'"));
}
