//! A guest with a real CPU quota: the time that the quota takes is no steal.

use super::common::{instep, list, text};
use super::stage::Stage;
use instep_madehost::skip;
use instep_testguest::Guest;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup with a quota of 20 % of a CPU, removed with the test.
struct Limited {
    dir: PathBuf,
    file: &'static str,
}

impl Limited {
    /// `None`, with a note, where none can be made.
    fn new() -> Option<Self> {
        let name = format!("instep-test-{}", std::process::id());
        let trees = [("/sys/fs/cgroup", "cpu.max"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us")];
        for (tree, file) in trees {
            let dir = Path::new(tree).join(&name);
            if fs::create_dir(&dir).is_ok() {
                let limited = Self { dir, file };
                let quota = if file == "cpu.max" { "20000 100000" } else { "20000" };
                if limited.dir.join(file).exists() && limited.write(file, quota) {
                    return Some(limited);
                }
            }
        }
        skip::note(
            "no cgroup with a CPU quota can be made here (it takes root and the controller cpu)",
        );
        None
    }

    fn write(&self, file: &str, text: &str) -> bool {
        fs::write(self.dir.join(file), text).is_ok()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Threads that ended a moment ago still count.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn vm_of<'a>(json: &'a Value, guest: &Guest) -> &'a Value {
    list(json, "vms").iter().find(|vm| vm["name"] == guest.spec().name.as_str()).unwrap()
}

#[test]
fn time_that_a_quota_takes_is_reported_by_status_and_analyze() {
    let Some(stage) = Stage::new() else { return };
    let Some(limited) = Limited::new() else { return };
    let guest = stage.start_one("limited");
    assert!(limited.write("cgroup.procs", &guest.pid().to_string()));
    let mut status = stage.instep(&["status", "--json", "--window", "2s"]).json();
    for _ in 0..2 {
        // Where others leave it less than its quota nothing throttles it.
        let throttled = vm_of(&status, &guest)["throttled_cpus"].as_f64();
        if throttled.is_some_and(|cpus| cpus > 0.4) {
            break;
        }
        skip::retried(&format!(
            "the machine is busy: a VM with a quota is throttled for {throttled:?} CPUs"
        ));
        status = stage.instep(&["status", "--json", "--window", "2s"]).json();
    }
    let vm = vm_of(&status, &guest);
    assert_eq!(vm["quota_cpus"], 0.2, "{vm}");
    let cpus = |key: &str| vm[key].as_f64().unwrap();
    let steal: f64 = list(vm, "vcpus").iter().map(|vcpu| vcpu["steal"].as_f64().unwrap()).sum();
    // Two vCPUs want a CPU each and get a tenth each. On a busy machine others take some of the rest.
    assert!(cpus("throttled_cpus") > 0.4, "{vm}");
    assert!(steal + cpus("throttled_cpus") < 2.0, "each wait counts once: {vm}");
    let shown = stage.instep(&["status", "--window", "500ms"]).stdout;
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("by its quota of 0.20 CPUs"), "{shown}");
    // Beside another process the cgroup is not the VM's own, as in a user's session.
    let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    assert!(limited.write("cgroup.procs", &other.id().to_string()));
    let shown = stage.instep(&["status", "--window", "10ms"]).stdout;
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let path = limited.dir.join(limited.file).display().to_string();
    let shared = format!("by the quota of 0.20 CPUs that it shares with others ({path})");
    other.kill().and_then(|()| other.wait()).unwrap();
    assert!(words.contains(&shared), "{shown}");
    let file = stage.file("limited.instep");
    let file = file.to_str().unwrap();
    let recorded = instep(&["record", "-d", "3s", "-o", file]);
    if recorded.code == Some(2) {
        return skip::note(recorded.stderr.trim());
    }
    let analysis = instep(&["analyze", file, "--json"]).json();
    let of_vm = |finding: &&Value| finding["vm"] == guest.spec().name.as_str();
    let findings: Vec<&Value> = list(&analysis, "findings").iter().filter(of_vm).collect();
    let throttled = findings.iter().find(|finding| text(finding, "kind") == "throttled");
    let said = text(throttled.unwrap(), "text");
    assert!(said.contains("throttled by its own quota of 20 %: "), "{said}");
    assert!(said.contains(limited.dir.join(limited.file).to_str().unwrap()), "{said}");
    assert!(findings.iter().all(|finding| finding["kind"] != "wake_latency"), "{findings:?}");
    println!("{said}\n{}", instep(&["analyze", file]).stdout);
    drop(guest);
}
