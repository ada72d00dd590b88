//! What is said of real recordings: the guide's, three VMs recorded in the lab, and the shared ones.

use crate::common::{self, list, text};
use crate::golden::golden;
use crate::strip::Strip;
use instep_core::units::Nanos;
use instep_trace::analysis::{AnalysisSettings, analyze_into};
use serde_json::Value;
use std::fs::File;
use std::path::Path;

/// The lines of the guide's example, in order, but for those that tell of an omission, are the
/// analysis's of the recording that the guide names.
#[test]
fn the_guides_example_is_what_analyze_says_of_its_recording() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guide.md")).unwrap();
    let (_, from) =
        guide.split_once("    instep analyze /usr/share/doc/instep/recordings/").unwrap();
    let (name, after) = from.split_once('\n').unwrap();
    let (_, quoted) = after.split_once("`[...]` stands:\n").unwrap();
    let (quoted, _) = quoted.split_once("\nRead it in this order").unwrap();
    let file = root.join("docs/recordings").join(name);
    let said = common::instep(&["analyze", file.to_str().unwrap()]).expect(1).stdout;

    let (said, quoted) = (words(&said), words(quoted));
    let mut rest = said.as_str();
    let parts: Vec<&str> = quoted.split("[...]").map(str::trim).collect();
    assert!(parts.len() > 1 && parts.iter().all(|part| part.len() > 100), "{parts:?}");
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("`{part}` in this order in\n{said}"));
        rest = &rest[at + part.len()..];
    }
}

/// What is said of a trace with the copies of /proc beside it, and each VM's name and vCPUs.
fn with_facts(trace: &Path, facts: &Path) -> (Value, Vec<(String, usize)>) {
    let args = ["analyze", trace.to_str().unwrap(), "--facts", facts.to_str().unwrap(), "--json"];
    let report = common::instep(&args).json();
    let vms = list(&report, "vms").iter();
    let mut named: Vec<(String, usize)> =
        vms.map(|vm| (text(vm, "name").to_owned(), list(vm, "vcpus").len())).collect();
    named.sort();
    (report, named)
}

/// Recorded by perf in an emulated host (scenarios/lab/recording.toml): two VMs, one of which spins and one
/// of which blocks, lose time to the one that computes.
#[test]
fn three_vms_are_named_and_lose_time_to_the_one_that_computes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data/three-vms");
    let (report, named) = with_facts(&dir.join("host.perf.data"), &dir.join("facts"));
    let expected = [("computes", 4), ("spins", 2), ("waits", 2)];
    assert_eq!(named, expected.map(|(name, vcpus)| (name.to_owned(), vcpus)));
    for name in ["spins", "waits"] {
        let vm = list(&report, "vms").iter().find(|vm| vm["name"] == name).unwrap();
        let mut others = list(vm, "culprits").iter().map(|culprit| text(culprit, "name"));
        let worst = others.find(|other| *other != name && !other.starts_with('('));
        assert_eq!(worst, Some("computes"), "{vm:#}");
        let mut of = list(&report, "findings").iter().filter(|finding| finding["vm"] == name);
        assert!(of.any(|finding| text(finding, "text").contains("computes ran")), "{report:#}");
    }
}

/// The two recordings that docs/dispatch.md draws: what the drawings show holds for all of them, and each
/// drawing is of its recording.
#[test]
fn drawn_gang_is_of_its_recordings() {
    let of = |name: &str| {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let file = File::open(docs.join(format!("recordings/gang-{name}.instep"))).unwrap();
        let mut stream = instep_trace::open(file, name, Default::default()).unwrap();
        let mut strip = Strip::new(Nanos(300_000_000), Nanos(36_000_000));
        let report = analyze_into(stream.as_mut(), &AnalysisSettings::default(), &mut strip);
        golden(&format!("../../docs/img/gang-{name}.svg"), &strip.svg());
        let spins = report.vms.iter().find(|vm| vm.name == "spins").unwrap();
        (spins.co_run.unwrap(), spins.stacking.unwrap())
    };
    let (default, instep) = (of("default"), of("instep"));
    assert!(default.0 < 0.75 && instep.0 > 0.9 && instep.1 < 0.01, "{default:?} {instep:?}");
}

/// However wide the lines were.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
