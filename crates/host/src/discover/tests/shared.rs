//! Facts of three real KVM guests, where the folder with them is there.

use super::super::*;
use super::tree::Copy;
use std::path::{Path, PathBuf};

/// The folder of shared test data, or `None` after saying that it is absent.
fn facts() -> Option<PathBuf> {
    let base = std::env::var_os("INSTEP_SHARED_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let facts = base.join("traces/kvm-3vms/facts");
    if facts.is_dir() {
        return Some(facts);
    }
    instep_madehost::skip::note(&format!("{} is absent (set INSTEP_SHARED_DATA)", facts.display()));
    None
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn real_kvm_guests_are_found_with_their_vcpus_and_memory() {
    let Some(facts) = facts() else { return };
    let copy = Copy::new();
    for (pid, name, tids) in [(144, "alpha", [159, 160]), (145, "beta", [158, 161])] {
        let process = format!("proc/{pid}");
        copy_tree(&facts.join(pid.to_string()), &copy.path(&process));
        let listing = std::fs::read_to_string(facts.join(format!("{pid}/fd.txt"))).unwrap();
        for line in listing.lines() {
            if let Some((left, target)) = line.split_once(" -> ") {
                let fd = left.rsplit(' ').next().unwrap().parse().unwrap();
                copy.fd(pid, fd, target);
            }
        }
        let scan = copy.scan();
        let vm = scan.vms.iter().find(|vm| vm.pid == pid).unwrap();
        assert_eq!((vm.name.as_str(), vm.accel), (name, Accel::Kvm));
        assert_eq!(vm.identified_by, VcpuSource::ThreadNames);
        assert_eq!(vm.vcpus.iter().map(|v| v.tid.0).collect::<Vec<_>>(), tids);
        assert_eq!(vm.emulators.len(), 3);
        assert_eq!(vm.vcpus[0].allowed.as_ref().unwrap().to_string(), "0-3");
        let memory = vm.memory.as_ref().unwrap();
        let total: u64 = memory.by_node.values().map(|bytes| bytes.0).sum();
        // VmRSS was 180 MB a moment before; shared pages of libraries are in both.
        assert!((150 << 20..250 << 20).contains(&total), "{total}");
        assert!(memory.by_node.len() == 2 && !memory.truncated);
        assert!(scan.warnings.is_empty(), "{:?}", scan.warnings);
    }
}
