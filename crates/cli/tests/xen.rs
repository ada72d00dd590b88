//! The `instep` binary on Xen hosts: on copies of real ones, and with an `xl` that prints what one printed.
#![cfg(test)]

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Ran, Started, binary, instep, list, text};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A domain `four` was placed by libxl on nodes 0 and 3, and pinned to nodes 1 and 2 with a soft affinity of nodes 0
/// and 1.
const CONFLICT: &str = "four-nodes/partial";

fn copy(state: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../xen/tests/data").join(state)
}

fn on_copy(args: &[&str]) -> Ran {
    let copy = copy(CONFLICT);
    instep(&[args, &["--root", copy.to_str().unwrap()]].concat())
}

/// A machine whose `xl` does this.
struct Xen(TempDir);

impl Xen {
    fn with(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("xl");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    /// One that prints what a real one did, and takes affinities of vCPUs.
    fn of(state: &str) -> Self {
        let data = copy(state).join("xen");
        let this = Self::with(&format!(
            r#"here=${{0%/*}}; file=xl-$(echo "$*" | tr -s ' ' -)
[ -e "$here/xl-vcpu-list" ] || cp {data}/xl-vcpu-list "$here"
case "$1" in
vcpu-pin)
  echo "$*" >> "$here/log"
  awk -v d="$2" -v v="$3" -v h="$4" -v s="$5" '$2 == d && $3 == v {{ if (h != "-") $7 = h; if (s != "-") $9 = s }} {{ print }}' \
    "$here/xl-vcpu-list" > "$here/new" && mv "$here/new" "$here/xl-vcpu-list" ;;
vcpu-list) cat "$here/xl-vcpu-list" ;;
debug-keys) echo >> "$here/keys" ;;
dmesg) sed "s/now = [0-9]*/now = $(cat "$here/keys" 2>/dev/null | wc -l)/" "{data}/xl-dmesg" ;;
*) cat "{data}/$file" ;;
esac"#,
            data = data.display()
        ));
        fs::copy(data.join("xl-vcpu-list"), this.path("xl-vcpu-list")).unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        let path = format!("{}:/usr/bin:/bin", self.0.path().display());
        command.args(args).args(["--hypervisor", "xen"]).env("PATH", path);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Started::new(&mut self.command(args)).end()
    }

    fn vcpus(&self) -> String {
        fs::read_to_string(self.path("xl-vcpu-list")).unwrap()
    }
}

#[test]
fn status_of_a_copy_shows_the_conflict_and_says_why() {
    let ran = on_copy(&["status"]).expect(1);
    for said in [
        "7 VMs with 13 vCPUs on 8 CPUs, 8 cores, 4 nodes",
        "four: domain 3, pv, ",
        "two words: domain 5, pv, paused, ",
        "CONFLICT its node affinity is nodes 0,3",
        "may use       prefers",
        "Domain-0 (domain 0)",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.all());
    }
    let json = on_copy(&["status", "--json"]).json();
    assert_eq!((&json["hypervisor"], &json["run"]), (&"xen".into(), &serde_json::Value::Null));
    let four = list(&json, "vms").iter().find(|vm| vm["name"] == "four").unwrap();
    assert_eq!((&four["pid"], text(four, "vmm")), (&3.into(), "xen-pv"));
    assert_eq!(four["node_affinity"], serde_json::json!([0, 3]));
    assert_eq!(four["vcpus"][0]["allowed"], serde_json::json!([2, 3, 4, 5]));
    assert_eq!(four["vcpus"][0]["prefers"], serde_json::json!([0, 1, 2, 3]));
}

#[test]
fn topology_of_a_copy_is_that_of_the_host_and_not_of_dom0() {
    let ran = on_copy(&["topology"]);
    assert!(
        ran.stdout.starts_with("8 CPUs, 8 cores, 4 LLCs, 4 packages, 4 nodes"),
        "{}",
        ran.all()
    );
    assert_eq!(ran.code, Some(0));
}

#[test]
fn plan_mends_and_prints_a_script_of_xl() {
    let none = on_copy(&["plan", "--policy", "none"]);
    assert!(none.stdout.contains("0 changes"), "{}", none.all());
    let mend = ["plan", "--policy", "none", "--mend-conflicts"];
    let ran = on_copy(&mend);
    assert!(ran.stdout.contains("four: left to Xen"), "{}", ran.all());
    assert!(ran.stdout.contains("memory from node 0,3 -> 1-2"), "{}", ran.all());
    assert!(!ran.stdout.contains("thread"), "{}", ran.all());
    let script = on_copy(&[&mend[..], &["--format", "xl"]].concat()).stdout;
    assert!(script.starts_with("#!/bin/sh\nset -eu\n"), "{script}");
    assert!(script.contains("\nxl vcpu-pin 3 0 - 2-5\n"), "{script}");
    assert!(
        script.contains("# four: left out: no command of xl sets a node affinity (1-2)"),
        "{script}"
    );
    for policy in ["instep", "bnn", "spread", "bind"] {
        let ran = on_copy(&["plan", "--policy", policy, "--mend-conflicts"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
    }
}

#[test]
fn scripts_of_another_hypervisor_are_refused() {
    on_copy(&["plan", "--format", "virsh"])
        .expect(2)
        .says(&["this is a Xen host, so that script would do nothing; use --format xl"]);
    let ran = instep(&["plan", "--format", "xl", "--window", "10ms", "--hypervisor", "kvm"]);
    ran.says(&["this is no Xen host"]);
}

#[test]
fn copy_that_is_none_of_a_xen_host_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    instep(&["status", "--root", dir.path().to_str().unwrap(), "--hypervisor", "xen"])
        .expect(2)
        .says(&["has no folder `xen`, so it is no copy of a Xen host"]);
}

#[test]
fn two_copies_without_a_time_need_one() {
    let before = copy("four-nodes/conflict");
    let before = ["--before", before.to_str().unwrap()];
    on_copy(&[&["status"][..], &before].concat())
        .expect(2)
        .says(&["cannot compute loads", "with --elapsed"]);
    let ran = on_copy(&[&["status"][..], &before, &["--elapsed", "20s"]].concat());
    assert!(ran.stdout.contains("20.00s window"), "{}", ran.all());
}

#[test]
fn without_xl_the_missing_program_is_named() {
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    let ran =
        Started::new(command.args(["status", "--hypervisor", "xen"]).env("PATH", "/nowhere")).end();
    if Path::new("/usr/sbin/xl").exists() {
        return instep_madehost::skip::note("this machine has xl");
    }
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("there is no program `xl`"), "{}", ran.all());
}

#[test]
fn machine_without_xen_is_reported_in_the_words_of_xl() {
    let xen = Xen::with(
        "echo 'xencall: error: Could not obtain handle on privileged command interface: No such file or \
         directory' >&2; exit 1",
    );
    for args in [&["status"][..], &["plan"], &["run", "--once"], &["topology"]] {
        let state = xen.path("state");
        let state: &[&str] =
            if args[0] == "run" { &["--state-dir", state.to_str().unwrap()] } else { &[] };
        let ran = xen.run(&[args, state].concat());
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(
            ran.stderr.contains("run it in the control domain (dom0) of a Xen host"),
            "{}",
            ran.all()
        );
    }
}

#[test]
fn output_of_another_version_is_refused_with_its_line() {
    let xen = Xen::with("echo 'Name ID'");
    xen.run(&["status"])
        .expect(2)
        .says(&["this version of Xen prints something that Instep does not know"]);
}

#[test]
fn collected_copy_gives_the_same_conflicts() {
    let xen = Xen::of(CONFLICT);
    let dir = xen.path("host");
    let ran = xen.run(&["collect", dir.to_str().unwrap(), "--window", "10ms"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("Copied 7 domains with"), "{}", ran.all());
    let after = dir.join("after");
    let again = instep(&["status", "--json", "--root", after.to_str().unwrap()]).json();
    assert_eq!(again["conflicts"], on_copy(&["status", "--json"]).json()["conflicts"]);
    let mode = fs::metadata(after.join("xen/xl-list-l")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Xen walks the page lists of all domains for memory by node.
#[test]
fn memory_by_node_is_asked_for_only_where_it_counts() {
    let xen = Xen::of(CONFLICT);
    let window = ["--window", "10ms"];
    let plan_none = ["plan", "--policy", "none"];
    for (args, walks) in [
        (&["status"][..], 0),
        (&["status", "--memory"], 1),
        (&["top", "--once"], 1),
        (&plan_none, 1),
        (&["plan"], 2),
    ] {
        let ran = xen.run(&[args, &window].concat());
        let keys = fs::read_to_string(xen.path("keys")).unwrap_or_default();
        assert_eq!(keys.lines().count(), walks, "{args:?}: {}", ran.all());
        let said = ran.stdout.contains("memory unknown (--memory asks Xen for it)");
        assert_eq!(said, args == ["status"], "{args:?}: {}", ran.all());
    }
}

#[test]
fn dry_run_changes_nothing() {
    let xen = Xen::of(CONFLICT);
    let before = xen.vcpus();
    let ran = xen.run(&["run", "--once", "--dry-run", "--mend-conflicts", "--window", "10ms"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("dry run"), "{}", ran.all());
    let args = ["run", "--once", "--dry-run", "--mend-conflicts", "--window", "10ms", "--json"];
    let record = xen.run(&args).expect(0).json();
    assert_eq!(record["schema"], "instep.record/1");
    assert_eq!(xen.vcpus(), before);
}

/// libxenlight is not on this machine: what needs it is refused as a whole.
#[test]
fn run_without_libxenlight_says_so_and_keeps_nothing_of_it() {
    let xen = Xen::of(CONFLICT);
    let (before, state) = (xen.vcpus(), xen.path("state"));
    let args = ["run", "--once", "--mend-conflicts", "--policy", "none", "--window", "10ms"];
    let ran = xen.run(&[&args[..], &["--state-dir", state.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("nothing of it was kept: cannot set the node affinity of domain 3"),
        "{}",
        ran.all()
    );
    assert_eq!(xen.vcpus(), before);
    let ran = xen.run(&["restore", "--state-dir", state.to_str().unwrap()]);
    assert!(ran.stdout.starts_with("Nothing to restore"), "{}", ran.all());
}

/// Hard affinities of a domain that no soft one works against are set, and put back.
#[test]
fn hard_affinities_are_set_and_restored() {
    let xen = Xen::of(CONFLICT);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (before, state) = (xen.vcpus(), xen.path("state"));
    let state = ["--state-dir", state.to_str().unwrap()];
    let args = ["run", "--once", "--vm", "two", "--policy", "bind", "--window", "10ms"];
    let ran = xen.run(&[&args[..], &state].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(
        fs::read_to_string(xen.path("log")).unwrap(),
        "vcpu-pin 2 0 0-1 -\nvcpu-pin 2 1 0-1 -\n"
    );
    let status = xen.run(&[&["status", "--window", "10ms"][..], &state].concat());
    let said = words(&status.stdout).join(" ");
    assert!(said.contains("set by Instep: before, 2 vCPUs could use CPUs 0-7"), "{}", status.all());
    let ran = xen.run(&[&["restore"][..], &state].concat());
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 domain has its original affinities again.\n")
    );
    assert_eq!(words(&xen.vcpus().replace(" 0-7 ", " all ")), words(&before));
}

/// Waits until this is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run that has set hard affinities of domain 2, whose state is there.
fn placing(xen: &Xen, state: &[&str]) -> Started {
    let args = ["run", "--vm", "two", "--policy", "bind", "--window", "10ms", "--interval", "1h"];
    let run = Started::new(&mut xen.command(&[&args[..], state].concat()));
    until("the run places nothing", || {
        assert!(!run.text("err").contains("error"), "{}", run.text("err"));
        run.text("out").contains("next cycle")
    });
    run
}

#[test]
fn guardian_puts_affinities_back_when_the_run_is_killed() {
    let xen = Xen::of(CONFLICT);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (before, state) = (xen.vcpus(), xen.path("state"));
    let state = ["--state-dir", state.to_str().unwrap()];
    let mut run = placing(&xen, &state);
    assert_ne!(xen.vcpus(), before, "{}", run.text("out"));
    let status = xen.run(&[&["status", "--window", "10ms"][..], &state].concat());
    assert!(status.stdout.contains("instep run: pid "), "{}", status.all());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    until("nothing is put back", || !xen.path("state/xen-journal.json").exists());
    assert_eq!(words(&xen.vcpus().replace(" 0-7 ", " all ")), words(&before));
    until("the guardian says nothing", || run.text("err").contains("has its original affinities"));
    let said = run.text("err");
    assert!(said.contains("`instep run` ended without restoring everything; 1 domain"), "{said}");
}

#[test]
fn without_a_guardian_next_run_puts_back_what_a_killed_one_left() {
    let xen = Xen::of(CONFLICT);
    let state = xen.path("state");
    let state = ["--state-dir", state.to_str().unwrap()];
    let mut run = placing(&xen, &[&state[..], &["--no-guard"]].concat());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(xen.path("state/xen-journal.json").exists(), "nobody was left to put it back");
    let args = ["run", "--once", "--policy", "none", "--window", "10ms"];
    let ran = xen.run(&[&args[..], &state].concat()).expect(0);
    assert!(
        ran.stderr.contains("an earlier run ended without restoring; 1 domain"),
        "{}",
        ran.all()
    );
}

/// An `xl` of a host whose domain 3 uses all of one CPU from now on.
fn with_a_busy_domain() -> Xen {
    let xen = Xen::of(CONFLICT);
    let counts = r#"echo >> "${0%/*}/looks"
now=$(cut -d' ' -f1 /proc/uptime)
exec awk -v now="$now" '$2 == 3 && $3 == 0 { $6 = sprintf("%.1f", now) } { print }' "${0%/*}/xl-vcpu-list""#;
    let script = fs::read_to_string(xen.path("xl")).unwrap();
    let at = "vcpu-list) cat \"$here/xl-vcpu-list\" ;;";
    assert!(script.contains(at), "{script}");
    fs::write(xen.path("xl"), script.replace(at, &format!("vcpu-list) {counts} ;;"))).unwrap();
    xen
}

#[test]
fn top_draws_loads_of_the_time_between_two_looks() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let xen = with_a_busy_domain();
    let ran = xen.run(&["top", "--once", "--window", "3s"]).expect(0);
    let line = ran.stdout.lines().find(|line| line.contains("four")).expect("its row");
    let used: f64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!((0.8..=1.0).contains(&used), "{}", ran.all());
}

#[test]
fn top_draws_a_xen_host_again_and_again() {
    let xen = with_a_busy_domain();
    let command = xen.command(&["top", "--interval", "500ms", "--window", "200ms"]);
    let (mut top, master, mut drawn) = terminal::start(command);
    let reads = std::thread::spawn(move || {
        while terminal::read(&master, &mut drawn) {}
        drawn
    });
    let looks = || fs::read_to_string(xen.path("looks")).map_or(0, |text| text.lines().count());
    until("it does not look again", || looks() >= 5);
    assert!(top.try_wait().unwrap().is_none(), "it goes on");
    top.kill().unwrap();
    top.wait().unwrap();
    let drawn = reads.join().unwrap();
    assert!(drawn.windows(4).any(|bytes| bytes == b"four"), "its domains are drawn");
}

#[test]
fn commands_that_do_not_work_on_xen_say_so() {
    let copy = copy(CONFLICT);
    let root = ["--root", copy.to_str().unwrap()];
    let ran = instep(&[&["advise", "--vcpus", "2", "--memory", "1GiB"][..], &root].concat());
    assert!(ran.stderr.contains("`instep advise` does not work on Xen hosts"), "{}", ran.all());
    let ran = instep(&[&["top", "--once"][..], &root].concat());
    assert!(ran.code == Some(0) && ran.stdout.contains("four"), "{}", ran.all());
}

#[test]
fn plan_for_another_host_names_what_does_not_survive() {
    let other = copy("two-nodes/six-domains");
    let there = instep(&["topology", "--json", "--root", other.to_str().unwrap()]).expect(0);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("there.json");
    fs::write(&file, &there.stdout).unwrap();
    let plan = ["plan", "--policy", "bind", "--for", file.to_str().unwrap()];
    let ran = on_copy(&plan).expect(0);
    assert!(ran.stdout.contains("CPUs 0-7 -> 4-7"), "{}", ran.all());
    ran.says(&["four: its affinity of CPUs 2-5 does not survive the migration"]);
    on_copy(&[&plan[..], &["--format", "xl"]].concat()).expect(2).says(&["leave --format out"]);
    on_copy(&["plan", "--for", "/nowhere.json"]).expect(2).says(&["cannot read /nowhere.json"]);
}
