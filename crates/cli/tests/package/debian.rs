//! The package on a Debian that has nothing else: installed, started, killed, booted again, removed.

use super::deb::{self, dpkg_deb};
use super::systemd::{Machine, configuration};
use super::{is_whole, output_text, run};
use instep_madehost::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where apt finds the packages of this machine.
const SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"];

/// Asks the page's server for the metrics without a program for HTTP.
const METRICS: &str = "exec 3<>/dev/tcp/127.0.0.1/9877
    printf 'GET /metrics HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3; grep -c ^instep_host_cpus <&3";

/// An archive of this age is made anew.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

/// How old a file is; `None` where there is none, and where the clock went back.
fn age(file: &Path) -> Option<Duration> {
    fs::metadata(file).ok()?.modified().ok()?.elapsed().ok()
}

/// The name of this Debian's suite.
fn suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let suite = field("VERSION_CODENAME=").filter(|_| field("ID=") == Some("debian"));
    if suite.is_none() {
        skip::note("this is no Debian, of which a fresh one could be made");
    }
    suite.map(str::to_owned)
}

/// An archive of a Debian with systemd and what the package needs. It is kept for the runs of some days, as packages of Debian
/// are mended meanwhile.
fn archive(package: &Path) -> Option<PathBuf> {
    let suite = suite()?;
    let needs = dpkg_deb(&["-f"], package, &["Depends"])?;
    let needs = needs.split(", ").filter_map(|need| need.split_whitespace().next());
    let include: Vec<&str> = ["systemd", "systemd-sysv", "dbus"].into_iter().chain(needs).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = folder.join(format!("{suite}-{}.tar", include.join("-")));
    if age(&kept).is_some_and(|age| age < OLD) {
        return Some(kept);
    }
    let new = folder.join(format!("new-{}.tar", std::process::id()));
    let mut make = Command::new("timeout");
    make.args(["-k", "5", "300", "mmdebstrap", "--quiet", "--variant=minbase"]);
    make.arg(format!("--include={}", include.join(","))).arg(suite).arg(&new);
    make.args(SOURCES.iter().filter(|path| Path::new(path).exists()));
    let made = run(&mut make)?;
    if !made.status.success() {
        let _ = fs::remove_file(&new);
        let why = output_text(&made);
        let why = why.lines().next_back().unwrap_or("no mmdebstrap here (apt install mmdebstrap)");
        skip::note(&format!("no fresh Debian can be made here: {why}"));
        // One of last week is better than none.
        return kept.exists().then_some(kept);
    }
    fs::rename(&new, &kept).unwrap();
    Some(kept)
}

/// Puts this machine's emulator below `root`, with the libraries that are not there; whether there is one.
fn put_emulator(root: &Path) -> bool {
    let script = "program=$(command -v qemu-system-x86_64) && cd \"$0\" && cp \"$program\" usr/bin/ &&
        for library in $(ldd \"$program\" | grep -o '/[^ ]*'); do
            [ -e \".$library\" ] || { mkdir -p \".${library%/*}\" && cp -L $library \".$library\"; } || exit
        done
        for data in /usr/share/qemu /usr/share/seabios /usr/lib/*/qemu; do
            [ ! -d $data ] || cp -rL --parents $data . || exit
        done";
    let put = run(Command::new("sh").args(["-c", script]).arg(root)).unwrap();
    if !put.status.success() {
        skip::note(&format!(
            "no emulator for a VM in a fresh Debian: {}",
            output_text(&put).trim()
        ));
    }
    put.status.success()
}

/// A fresh Debian with the package beside it, not installed; `None`, with a note, where that cannot be made.
fn fresh(dir: &Path) -> Option<PathBuf> {
    let package = deb::package(&dir.join("made"), is_whole())?;
    let archive = archive(&package)?;
    let root = dir.join("root");
    fs::create_dir(&root).unwrap();
    let unpacked = run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&root)).unwrap();
    if !unpacked.status.success() {
        skip::note("a Debian cannot be unpacked here (it takes root)");
        return None;
    }
    // So that this is no first boot, which would switch units on.
    fs::write(root.join("etc/machine-id"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let _ = fs::remove_dir_all(root.join("etc/systemd/system/multi-user.target.wants"));
    fs::copy(&package, root.join("instep.deb")).unwrap();
    fs::write(root.join("instep.toml"), configuration()).unwrap();
    put_emulator(&root).then_some(root)
}

/// Kills the service, and waits for another run.
fn kill(machine: &Machine) {
    let first = machine.property("MainPID");
    machine.does("systemctl kill --kill-whom=main --signal=KILL instep");
    let is_new = || ![first.as_str(), "0"].contains(&machine.property("MainPID").as_str());
    machine.until("another run", || {
        is_new() && machine.says("systemctl is-active instep") == "active"
    });
    let restored = || machine.journal().contains("ended without restoring everything");
    machine.until("the guardian", restored);
    machine.until("another placement", || !machine.is_as_found());
}

#[test]
fn fresh_debian_runs_the_package_and_again_after_a_boot() {
    if !skip::may_boot() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(root) = fresh(dir.path()) else { return };
    let Some(machine) = Machine::boot_root(&root) else { return };
    machine.does("dpkg -i /instep.deb");
    assert_eq!(machine.says("systemctl is-enabled instep"), "disabled");
    assert_eq!(machine.says("systemctl is-active instep"), "inactive");
    machine.does("instep --version && instep topology && instep status && instep plan");
    if !machine.starts_vm() {
        return;
    }
    assert!(machine.is_as_found());
    machine.does("cp /instep.toml /etc/instep/ && systemctl enable --now instep instep-serve");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    machine.until("the page", || machine.says(METRICS) == "1");
    // This Debian has no /bin/kill.
    machine.does("! test -e /bin/kill && systemctl reload instep");
    machine.until("the reload", || machine.journal().contains("configuration was read again"));
    kill(&machine);

    // What is upgraded keeps the placement, and what is stopped puts it back.
    let run = machine.property("MainPID");
    let restored = machine.journal().matches("original affinity again").count();
    machine.does("dpkg --force-confold -i /instep.deb");
    assert_ne!(machine.property("MainPID"), run, "the new version runs");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    let journal = machine.journal();
    assert_eq!(journal.matches("original affinity again").count(), restored, "{journal}");
    machine.does("systemctl stop instep");
    assert!(machine.is_as_found(), "{}", machine.journal());
    machine.does("systemctl start instep");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    let kept = "ls /var/lib/instep/history/*.zst | wc -l";
    let before: u32 = machine.says(kept).parse().unwrap();
    drop(machine);

    // A boot starts the service, which sees a VM that comes, and goes on with the history.
    let Some(machine) = Machine::boot_root(&root) else { panic!("it booted before") };
    machine.until("the service", || machine.says("systemctl is-active instep") == "active");
    assert!(machine.starts_vm());
    machine.until("the page", || machine.says(METRICS) == "1");
    // The service may have seen the VM before its vCPUs were bound to one CPU.
    machine.does("systemctl restart instep");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    let after: u32 = machine.says(kept).parse().unwrap();
    assert!(before > 0 && after > before, "the history goes on: {before} {after}");
    machine.does("dpkg --purge instep");
    assert!(machine.is_as_found(), "what is removed puts everything back");
    machine.does("! test -e /etc/instep && ! test -e /var/lib/instep && ! command -v instep");
}
