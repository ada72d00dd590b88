//! The scanner beside real QEMU guests under software emulation: no kernel is needed, a guest
//! that sits in its firmware has all its threads. Skipped, with the reason, where QEMU is absent.

use super::super::*;
use crate::apply::ranges;
use crate::root::Root;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A scanner asks every QEMU of the machine, so guests of tests take turns.
static TURN: Mutex<()> = Mutex::new(());

const QEMU: &str = "qemu-system-x86_64";

/// A guest that is ended with the test.
struct Guest {
    child: Child,
    socket: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    fn start(dir: &Path, name: &str, vcpus: u32, more: &[&str]) -> Option<Self> {
        Self::start_smp(dir, name, &vcpus.to_string(), more)
    }

    fn start_smp(dir: &Path, name: &str, smp: &str, more: &[&str]) -> Option<Self> {
        let socket = dir.join(format!("{}.sock", name.split(',').next().unwrap()));
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let started = Command::new(QEMU)
            .args(["-name", name, "-smp", smp, "-m", "32"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => {
                let guest = Self { child, socket, _turn: turn };
                guest.asked();
                Some(guest)
            }
            Err(error) => {
                instep_madehost::skip::note(&format!(
                    "{QEMU} cannot be started: {error} (apt install qemu-system-x86)"
                ));
                None
            }
        }
    }

    /// What the guest's QEMU says of itself; waits until it does.
    fn asked(&self) -> Vec<(u32, u32)> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(cpus) = self.ask() {
                return cpus;
            }
            assert!(Instant::now() < end, "QEMU did not serve QMP within 20 s");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// query-cpus-fast by a client of its own: index and thread, ascending.
    fn ask(&self) -> Option<Vec<(u32, u32)>> {
        let mut cpus = qmp::cpus(&self.tell("{\"execute\":\"query-cpus-fast\"}")?)?;
        cpus.sort_unstable();
        Some(cpus)
    }

    /// QEMU's answer to one command.
    fn tell(&self, command: &str) -> Option<Value> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        lines.next()?.ok()?;
        let both = format!("{{\"execute\":\"qmp_capabilities\"}}{command}\n");
        stream.write_all(both.as_bytes()).ok()?;
        let returns = lines.map_while(Result::ok).filter_map(|line| {
            let value: Value = serde_json::from_str(&line).ok()?;
            assert!(value.get("error").is_none(), "{value}");
            value.get("return").cloned()
        });
        let answers: Vec<Value> = returns.take(2).collect();
        answers.into_iter().nth(1)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn scan(scanner: &mut Scanner) -> Scan {
    scanner.scan().unwrap()
}

/// Scans afresh until `pid` is told: another Instep on this machine may just hold its socket.
fn scan_until_told(pid: u32) -> (Scanner, Scan) {
    for _ in 0..20 {
        let mut scanner = Scanner::new(Root::live(), ScanOptions::once());
        let found = scan(&mut scanner);
        if found.vms.iter().any(|vm| vm.pid == pid) {
            return (scanner, found);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("process {pid} was not told in 20 scans");
}

fn vm(scan: &Scan, pid: u32) -> &VmFacts {
    let found = scan.vms.iter().find(|vm| vm.pid == pid);
    found.unwrap_or_else(|| panic!("no VM {pid}; opaque: {:?}", scan.opaque))
}

fn threads(vm: &VmFacts) -> Vec<(u32, u32)> {
    vm.vcpus.iter().map(|vcpu| (vcpu.index, vcpu.tid.0)).collect()
}

const PLUG: &str = r#"{"execute":"device_add","arguments":{"driver":"qemu64-x86_64-cpu","id":"c1","socket-id":1,"core-id":0,"thread-id":0}}"#;

const TCG: [&str; 2] = ["-accel", "tcg,thread=multi"];

#[test]
fn named_threads_are_the_vcpus_that_qmp_names() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let Some(guest) = Guest::start(dir.path(), "named,debug-threads=on", 3, &TCG) else { return };
    let mut scanner = Scanner::new(Root::live(), ScanOptions::once());
    let scan = scan(&mut scanner);
    let vm = vm(&scan, guest.pid());
    assert_eq!(threads(vm), guest.asked());
    assert_eq!((vm.identified_by, vm.accel), (VcpuSource::ThreadNames, Accel::Tcg));
    assert_eq!(vm.name, "named");
    assert!(vm.vcpus.iter().all(|vcpu| vcpu.allowed.as_ref().is_some_and(|set| !set.is_empty())));
    assert!(vm.emulators.iter().any(|thread| thread.tid.0 == guest.pid()));
    let memory = vm.memory.as_ref().expect("numa_maps is readable by the owner");
    assert!(memory.by_node.values().any(|bytes| bytes.0 > 1 << 20), "{memory:?}");
}

#[test]
fn the_memory_of_each_guest_node_is_distinguished() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let objects = [("a", 20), ("b", 12)]
        .map(|(id, mib)| format!("memory-backend-ram,id={id},size={mib}M,prealloc=on"));
    let [a, b] = objects.each_ref().map(String::as_str);
    let nodes = ["-numa", "node,cpus=0,memdev=a", "-numa", "node,cpus=1,memdev=b"];
    let more = [&TCG[..], &["-object", a, "-object", b], &nodes].concat();
    let Some(guest) = Guest::start(dir.path(), "nodes,debug-threads=on", 2, &more) else { return };
    let scan = scan(&mut Scanner::new(Root::live(), ScanOptions::once()));
    let each = vm(&scan, guest.pid()).guest_nodes.iter();
    let resident = |node: &instep_core::snapshot::GuestNode| {
        node.resident.values().map(|bytes| bytes.0 >> 20).sum::<u64>()
    };
    assert_eq!(each.map(resident).collect::<Vec<_>>(), [20, 12]);
    let told = ranges::read(&Root::live(), guest.pid()).unwrap().0;
    let of = |node| told.of(Some(node)).unwrap();
    assert_eq!([of(0).len(), of(1).len()], [1, 1]);
    assert!(told.of(Some(2)).is_err());
    assert_eq!(of(1)[0].end - of(1)[0].start, 12 << 20);
}

#[test]
fn unnamed_threads_are_reported_by_qmp_and_not_asked_twice() {
    let dir = instep_madehost::scratch_dir().unwrap();
    // QEMU 7.2 names threads unless told not to; QEMU 10 does not name them unless told to.
    let Some(guest) = Guest::start(dir.path(), "bare,debug-threads=off", 3, &TCG) else { return };
    let (mut scanner, first) = scan_until_told(guest.pid());
    let found = vm(&first, guest.pid());
    assert_eq!(threads(found), guest.asked());
    assert_eq!(found.identified_by, VcpuSource::Qmp);
    assert!(first.cost.qmp_tries >= 1);
    // While another client holds the socket, what is known stays known.
    let held = UnixStream::connect(&guest.socket).unwrap();
    let second = scan(&mut scanner);
    assert_eq!(threads(vm(&second, guest.pid())), threads(found));
    drop(held);
}

#[test]
fn a_socket_that_another_client_holds_leaves_the_vm_opaque() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let Some(guest) = Guest::start(dir.path(), "held,debug-threads=off", 2, &TCG) else { return };
    let mut held = BufReader::new(UnixStream::connect(&guest.socket).unwrap());
    let mut greeting = String::new();
    held.read_line(&mut greeting).unwrap();
    assert!(greeting.contains("QMP"));
    let mut scanner = Scanner::new(Root::live(), ScanOptions::once());
    let begun = Instant::now();
    let scan = scan(&mut scanner);
    assert!(begun.elapsed() < Duration::from_secs(5));
    let opaque = scan.opaque.iter().find(|vm| vm.pid == guest.pid()).expect("it is listed");
    assert_eq!((opaque.vcpus, opaque.name.as_str()), (0, "held"), "nothing proves its vCPUs");
    assert!(opaque.why.contains("held by another client"), "{}", opaque.why);
}

#[test]
fn one_thread_for_all_vcpus_is_reported_and_left_alone() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let single = ["-accel", "tcg,thread=single"];
    // Without names no thread is known to run vCPUs, and no descriptor tells how many there are.
    for (name, vcpus) in [("one,debug-threads=on", 1), ("two,debug-threads=off", 0)] {
        let Some(guest) = Guest::start(dir.path(), name, 2, &single) else { return };
        let mut scanner = Scanner::new(Root::live(), ScanOptions::once());
        let scan = scan(&mut scanner);
        let opaque = scan.opaque.iter().find(|vm| vm.pid == guest.pid()).expect("it is listed");
        assert!(opaque.why.contains("thread=multi"), "{name}: {}", opaque.why);
        assert_eq!(opaque.vcpus, vcpus);
    }
}

#[test]
fn loads_agree_with_schedstat() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let Some(guest) = Guest::start(dir.path(), "load,debug-threads=on", 2, &TCG) else { return };
    let mut scanner = Scanner::new(Root::live(), ScanOptions::default());
    let before = scan(&mut scanner);
    std::thread::sleep(Duration::from_millis(500));
    let after = scan(&mut scanner);
    for vcpu in &vm(&after, guest.pid()).vcpus {
        let then = vm(&before, guest.pid()).vcpus.iter().find(|v| v.tid == vcpu.tid).unwrap();
        assert!(vcpu.run >= then.run && vcpu.wait >= then.wait);
        // Both count the same time: schedstat to the nanosecond, stat to a tick each for user
        // and system time.
        let apart = vcpu.run.0.abs_diff(vcpu.ticks.0);
        assert!(apart <= 60_000_000, "{vcpu:?}");
    }
    assert!(after.host_busy >= before.host_busy && after.at > before.at);
}

#[test]
fn a_vcpu_that_is_plugged_in_is_seen_at_once_by_both_methods() {
    let dir = instep_madehost::scratch_dir().unwrap();
    for name in ["plug,debug-threads=on", "hotplug,debug-threads=off"] {
        let smp = "1,maxcpus=2,sockets=2";
        let Some(guest) = Guest::start_smp(dir.path(), name, smp, &TCG) else { return };
        let (mut scanner, first) = scan_until_told(guest.pid());
        assert_eq!(threads(vm(&first, guest.pid())).len(), 1);
        guest.tell(PLUG).expect("QEMU takes the vCPU");
        let mut found = scan(&mut scanner);
        for _ in 0..20 {
            // Another Instep may hold the socket just now.
            if found.vms.iter().any(|vm| vm.pid == guest.pid() && vm.vcpus.len() == 2) {
                break;
            }
            found = scan(&mut scanner);
        }
        assert_eq!(threads(vm(&found, guest.pid())), guest.asked(), "{name}");
        assert_eq!(guest.asked().len(), 2);
    }
}

#[test]
fn a_vm_that_ends_is_gone_from_the_next_scan() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let Some(guest) = Guest::start(dir.path(), "brief,debug-threads=on", 2, &TCG) else { return };
    let pid = guest.pid();
    let mut scanner = Scanner::new(Root::live(), ScanOptions::default());
    assert!(scan(&mut scanner).vms.iter().any(|vm| vm.pid == pid));
    drop(guest);
    let after = scan(&mut scanner);
    assert!(!after.vms.iter().any(|vm| vm.pid == pid));
    assert!(!after.opaque.iter().any(|vm| vm.pid == pid));
}

#[test]
fn asking_qemu_for_its_version_is_no_vm() {
    let Ok(mut child) = Command::new(QEMU)
        .args(["-machine", "none", "-nodefaults", "-display", "none", "-S"])
        .stdin(Stdio::null())
        .spawn()
    else {
        instep_madehost::skip::note(&format!(
            "{QEMU} is not installed (apt install qemu-system-x86)"
        ));
        return;
    };
    std::thread::sleep(Duration::from_millis(300));
    let found = Scanner::new(Root::live(), ScanOptions::default()).scan().unwrap();
    let pid = child.id();
    let _ = child.kill();
    let _ = child.wait();
    assert!(!found.vms.iter().any(|vm| vm.pid == pid));
    assert!(!found.opaque.iter().any(|vm| vm.pid == pid));
}

#[test]
fn answer_of_qmp_holds_while_its_threads_live() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let smp = "1,maxcpus=2,sockets=2";
    let Some(guest) = Guest::start_smp(dir.path(), "worker,debug-threads=off", smp, &TCG) else {
        return;
    };
    let (mut scanner, first) = scan_until_told(guest.pid());
    let known = threads(vm(&first, guest.pid()));
    // A thread more, and nobody to ask what it is.
    guest.tell(PLUG).expect("QEMU takes the vCPU");
    let mut held = BufReader::new(UnixStream::connect(&guest.socket).unwrap());
    let mut greeting = String::new();
    held.read_line(&mut greeting).unwrap();
    assert_eq!(threads(vm(&scan(&mut scanner), guest.pid())), known);
    drop(held);
    let end = Instant::now() + Duration::from_secs(20);
    while threads(vm(&scan(&mut scanner), guest.pid())).len() != 2 {
        assert!(Instant::now() < end, "the vCPU was never asked for again");
    }
    assert_eq!(threads(vm(&scan(&mut scanner), guest.pid())), guest.asked());
}
