//! `instep collect`: copies of this host say of a real VM what the host does, and hold no secrets.

use super::common::{Started, binary, instep, list, text};
use super::stage::{Stage, first_cpu, signal};
use instep_lab::command;
use instep_madehost::skip;
use instep_testguest::affinity;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `nobody` on most systems; any user but root will do.
const USER: u32 = 65534;

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command::die_with_parent(command).spawn().unwrap())
    }

    /// A QEMU with two vCPUs and a secret on its command line; its firmware is guest enough.
    fn qemu(name: &str) -> Self {
        let mut qemu = Command::new(instep_lab::host::emulator::QEMU);
        qemu.args(["-name", &format!("{name},debug-threads=on"), "-smp", "2", "-m", "32"])
            .args(["-object", "secret,id=s,data=hunter-of-qemu", "-accel", "tcg,thread=multi"])
            .args(["-nodefaults", "-no-user-config", "-display", "none"]);
        Self::start(&mut qemu)
    }

    /// What `instep status` says of it once its vCPUs run.
    fn status(&self, args: &[&str]) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let status = instep(&[&["status", "--json"], args].concat()).json();
            let vm = list(&status, "vms").iter().find(|vm| vm["pid"] == self.0.id());
            if let Some(vm) = vm.filter(|vm| list(vm, "vcpus").len() == 2) {
                return vm.clone();
            }
            assert!(Instant::now() < end, "{status}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What must not depend on when a VM is looked at.
fn lasting(vm: &Value) -> Value {
    let vcpu = |vcpu: &Value| json!([vcpu["index"], vcpu["tid"], vcpu["allowed"]]);
    let vcpus: Vec<Value> = list(vm, "vcpus").iter().map(vcpu).collect();
    let keys = ["id", "name", "pid", "vmm", "accel", "identified_by", "cgroup", "quota_cpus"];
    json!([keys.map(|key| &vm[key]), vcpus])
}

/// All bytes of all files below a folder, and where its links lead.
pub(crate) fn bytes_in(dir: &Path, bytes: &mut Vec<u8>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            bytes.extend(fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
        } else if path.is_dir() {
            bytes_in(&path, bytes);
        } else {
            bytes.extend(fs::read(&path).unwrap());
        }
    }
}

#[test]
fn copy_tells_of_a_vm_what_its_host_does_without_secrets() {
    let Some(stage) = Stage::new() else { return };
    let other = Process::start(Command::new("sleep").arg("1000").arg0("hunter-of-another"));
    let name = format!("collected-{}", std::process::id());
    let qemu = Process::qemu(&name);
    let tid = qemu.status(&["--window", "10ms"])["vcpus"][1]["tid"].as_u64().unwrap();
    affinity::bind(u32::try_from(tid).unwrap(), first_cpu()).unwrap();
    let live = qemu.status(&["--window", "100ms"]);
    let dir = stage.file("copy");
    let collect = ["collect", dir.to_str().unwrap(), "--window", "200ms"];
    let said = instep(&collect).expect(0).stdout;
    assert!(
        said.contains("Copied ") && said.contains("Read it with: instep plan --root"),
        "{said}"
    );
    let [before, after] = ["before", "after"].map(|name| dir.join(name).display().to_string());
    let copied = qemu.status(&["--root", &after, "--before", &before]);
    assert_eq!(lasting(&copied), lasting(&live));
    assert_eq!(copied["vcpus"][1]["allowed"], json!([first_cpu()]));
    assert!(copied["memory_bytes_by_node"].as_object().is_some_and(|nodes| !nodes.is_empty()));
    let verdict = |args: &[&str]| {
        let plan = instep(&[&["plan", "--json"], args].concat()).expect(0).json();
        list(&plan, "vms").iter().find(|vm| vm["name"] == name.as_str()).unwrap().clone()
    };
    let planned = verdict(&["--root", &after, "--before", &before]);
    assert_eq!(planned, verdict(&["--window", "100ms"]));
    assert!(text(&planned, "why").contains("pinned by hand"), "{planned}");
    let topology = |args: &[&str]| instep(&[&["topology"], args].concat()).expect(0).stdout;
    assert_eq!(topology(&["--root", &before]), topology(&[]));
    let mut bytes = Vec::new();
    bytes_in(&dir, &mut bytes);
    let all = String::from_utf8_lossy(&bytes);
    assert!(all.contains("secret,id=s,data=removed") && !all.contains("hunter"));
    assert!(!dir.join("after/proc").join(other.0.id().to_string()).exists());
    instep(&collect).expect(2).says(&["is not empty", "nothing was copied"]);
}

#[test]
fn without_privilege_incompletely_read_vms_are_counted() {
    if !rustix::process::geteuid().is_root() {
        return skip::note("only root can start a VM and then act as another user");
    }
    let Some(_stage) = Stage::new() else { return };
    let qemu = Process::qemu("roots");
    qemu.status(&["--window", "10ms"]);
    // The build may lie where another user cannot reach it.
    let dir = tempfile::tempdir().unwrap();
    let (program, copy) = (dir.path().join("instep"), dir.path().join("copy"));
    instep_madehost::program(&program, &fs::read(env!("CARGO_BIN_EXE_instep")).unwrap());
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    let mut command = binary(&program);
    command.args(["collect", "--window", "10ms"]).arg(&copy).uid(USER).gid(USER).current_dir("/");
    let ran = Started::new(&mut command).end().expect(0);
    let said = ran.says(&["could not be read completely", "CAP_SYS_PTRACE"]).stdout;
    assert!(said.contains("Copied "), "{said}");
    let vm = qemu.status(&["--root", copy.join("after").to_str().unwrap()]);
    assert_eq!(text(&vm, "name"), "roots");
}

#[test]
fn folder_that_cannot_take_the_copies_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let collect = |place: &Path| instep(&["collect", place.to_str().unwrap(), "--window", "1h"]);
    collect(dir.path()).expect(2).says(&["is not empty", "name an empty folder"]);
    collect(&file).expect(2).says(&["cannot copy into"]);
    collect(&dir.path().join("no/copy")).expect(2).says(&["cannot write to the folder"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn nothing_is_left_when_it_is_ended_between_the_copies() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    let started = Started::new(command.args(["collect", "--window", "1h"]).arg(&copy));
    std::thread::sleep(Duration::from_millis(500));
    signal(&started, Signal::INT);
    assert_eq!(started.end().code, None, "ended by the signal");
    assert!(!copy.exists());
}
