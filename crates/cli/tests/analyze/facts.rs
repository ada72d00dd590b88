//! `--facts`: copies of /proc/PID tell the VMs' names and which threads are theirs.

use super::{analyze, made};
use crate::common::{list, text};
use crate::traces::shared;
use instep_core::units::{Bytes, NodeId};
use instep_madehost::trace::{MadeEvent, TracepointFields, dat_6};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use serde_json::Value;
use std::path::Path;

const KWORKER: (u32, &str) = (5, "kworker/0:0");

/// A host with a VM of two vCPUs and one of one.
fn host() -> MadeHost {
    let mut host = MadeHost::new(HostSpec::new(1, 4));
    for (name, vcpus) in [("db", 2), ("web", 1)] {
        host.push(VmSpec::new(name, Vmm::QemuKvm, vcpus, NodeId(0), Bytes(64 << 20)));
    }
    host
}

/// The threads of the vCPUs of each VM.
fn threads(host: &MadeHost) -> Vec<Vec<u32>> {
    let of = |vm: &VmSpec| (0..vm.vcpus.len() as u32).map(|at| vm.vcpu_tid(at).0).collect();
    host.vms.iter().map(of).collect()
}

/// A trace of these threads, which tells neither processes nor names of VMs.
fn trace(threads: &[Vec<u32>]) -> Vec<u8> {
    let mut events = Vec::new();
    for (cpu, tid) in threads.concat().into_iter().enumerate() {
        let thread = (tid, "a thread");
        for turn in 0..50 {
            let at = 1_000_000 + turn * 2_000_000;
            let mut push = |time, from: (u32, &'static str), to| {
                let what = TracepointFields::Switch(from, to, 0);
                events.push(MadeEvent {
                    time,
                    cpu: cpu as u32,
                    current: (from.0, 0),
                    flags: 0,
                    what,
                });
            };
            push(at, thread, KWORKER);
            push(at + 1_000_000, KWORKER, thread);
        }
    }
    dat_6(&events, &[])
}

/// Names and threads of the VMs that are found.
fn found(trace: &Path, options: &[&str]) -> Vec<(String, Vec<u64>)> {
    let json = analyze(trace, &[options, &["--json"]].concat()).json();
    let tids = |vm: &Value| list(vm, "vcpus").iter().map(|v| v["tid"].as_u64().unwrap()).collect();
    list(&json, "vms").iter().map(|vm| (text(vm, "name").to_owned(), tids(vm))).collect()
}

#[test]
fn copies_of_proc_tell_names_and_threads_of_vms() {
    let (host, root) = (host(), instep_madehost::scratch_dir().unwrap());
    host.write(root.path()).unwrap();
    let threads = threads(&host);
    let (_dir, path) = made("trace.dat", &trace(&threads));
    assert_eq!(found(&path, &[]), vec![], "the trace itself does not tell");
    let expected: Vec<(String, Vec<u64>)> = ["db", "web"]
        .into_iter()
        .zip(&threads)
        .map(|(name, tids)| (name.to_owned(), tids.iter().map(|tid| u64::from(*tid)).collect()))
        .collect();
    // The copy of a whole root, or of its proc.
    for dir in [root.path().to_owned(), root.path().join("proc")] {
        assert_eq!(found(&path, &["--facts", dir.to_str().unwrap()]), expected);
    }
    // What --vm says of a thread goes before.
    let mine = format!("mine={}", threads[1][0]);
    let named = found(&path, &["--vm", &mine, "--facts", root.path().to_str().unwrap()]);
    let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["mine", "db"]);
}

#[test]
fn vms_of_one_name_have_their_process_in_it() {
    let mut host = host();
    host.push(VmSpec::new("db", Vmm::QemuKvm, 1, NodeId(0), Bytes(64 << 20)));
    let root = instep_madehost::scratch_dir().unwrap();
    host.write(root.path()).unwrap();
    let (_dir, path) = made("trace.dat", &trace(&threads(&host)));
    let named = found(&path, &["--facts", root.path().to_str().unwrap()]);
    let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    let of = |place: usize| format!("db@{}", host.vms[place].pid);
    assert_eq!(names, [&of(0), "web", &of(2)]);
}

#[test]
fn a_folder_without_vms_is_refused() {
    let (_dir, path) = made("trace.dat", &trace(&threads(&host())));
    let empty = instep_madehost::scratch_dir().unwrap();
    let empty = empty.path().to_str().unwrap();
    let wanted = "a folder with a copy of /proc/PID per VM is wanted";
    for dir in ["/no/such/folder", empty] {
        analyze(&path, &["--facts", dir]).expect(2).says(&["--facts", dir, wanted]);
    }
}

#[test]
fn the_facts_beside_a_real_trace_name_its_vms() {
    for file in ["kvm-3vms/host.perf.data", "kvm-3vms/host.trace.dat"] {
        let (Some(path), Some(dir)) = (shared(file), shared("kvm-3vms/facts")) else { return };
        let vms = found(&path, &["--facts", dir.to_str().unwrap()]);
        let expected = [("alpha".to_owned(), vec![159, 160]), ("beta".to_owned(), vec![158, 161])];
        assert_eq!(vms, expected, "{file}");
    }
}
