//! `instep top` with this very binary, where there is no terminal: one frame of made hosts.

#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::instep;
use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::process::Command;
use std::time::{Duration, Instant};

/// Two nodes of two cores with two threads; `crossed` has its memory on the other node.
fn made() -> MadeHost {
    let mut made = MadeHost::new(HostSpec::new(2, 2).threads(2));
    for (name, cpus, node) in [("stacked", [0, 0], 0), ("crossed", [4, 6], 0)] {
        let mut vm = VmSpec::new(name, Vmm::Libvirt, 2, NodeId(node), Bytes::from_mib(256));
        vm = vm.load(Milli(600)).steal(Milli(300));
        for (vcpu, cpu) in vm.vcpus.iter_mut().zip(cpus) {
            vcpu.cpu = Some(CpuId(cpu));
        }
        made.push(vm);
    }
    made
}

#[test]
fn one_frame_of_a_copy_shows_stacking_and_locality() {
    let (before, after) =
        (instep_madehost::scratch_dir().unwrap(), instep_madehost::scratch_dir().unwrap());
    made().write_pair(before.path(), after.path(), Nanos::from_secs(10)).unwrap();
    let (before, after) = (before.path().to_str().unwrap(), after.path().to_str().unwrap());
    let ran = instep(&["top", "--once", "--root", after, "--before", before]).expect(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].contains("2 VMs, 4 vCPUs on 8 CPUs") && lines[0].contains("1 stacked"));
    for node in ["node 0   !.  ..", "node 1   b.  b."] {
        assert!(lines[1].contains(node), "{}", ran.stdout);
    }
    let vm = |name: &str| {
        let line = lines[2..].iter().find(|line| line.contains(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(vm("stacked")[2..8], ["2", "1.20", "0.60", "-", "-", "100%"]);
    assert_eq!(vm("crossed")[6..8], ["-", "0%"]);
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn without_a_terminal_it_names_what_to_use() {
    instep(&["top"]).expect(2).says(&["instep status", "--once"]);
}

#[test]
fn this_host_has_a_frame() {
    let ran = instep(&["top", "--once", "--window", "100ms"]).expect(0);
    assert!(ran.stdout.contains("node 0"), "{}", ran.all());
}

/// A process that is not in its terminal's foreground gets no SIGHUP, and whoever reads the terminal reads
/// the end of input for ever.
#[test]
fn it_ends_when_its_terminal_is_gone() {
    let mut top = Command::new(env!("CARGO_BIN_EXE_instep"));
    top.args(["top", "--interval", "500ms"]);
    let (mut top, master, _) = terminal::start(top);
    drop(master);
    let end = Instant::now() + Duration::from_secs(60);
    while top.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            top.kill().unwrap();
            panic!("it goes on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
