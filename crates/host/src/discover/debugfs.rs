//! KVM's debugfs directory: `kvm/TID-FD` is a VM, named by the thread that made it (task_pid_nr()
//! in kvm_create_vm_debugfs()), `vcpuN/pid` in it the thread of KVM's vCPU N (virt/kvm/kvm_main.c,
//! Linux 6.1 and later).

use super::facts::Debugfs;
use super::files::Reader;
use crate::root::Root;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The VMs in KVM's directory by the thread that made them.
#[derive(Debug, Default)]
pub(super) struct KvmDirs {
    /// Whether it could be listed.
    pub(super) state: Debugfs,
    by_tid: BTreeMap<u32, Vec<PathBuf>>,
}

impl KvmDirs {
    /// Lists it.
    pub(super) fn list(root: &Root, reader: &Reader) -> Self {
        let top = root.join("sys/kernel/debug/kvm");
        let entries = match std::fs::read_dir(&top) {
            Ok(entries) => entries,
            Err(error) => {
                let denied = error.kind() == io::ErrorKind::PermissionDenied;
                let state = if denied { Debugfs::Denied } else { Debugfs::Absent };
                return Self { state, by_tid: BTreeMap::new() };
            }
        };
        reader.keep_dir(&top);
        let mut by_tid: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
        for entry in entries.flatten() {
            if let Some(tid) = entry.file_name().to_str().and_then(vm_dir) {
                by_tid.entry(tid).or_default().push(entry.path());
            }
        }
        by_tid.values_mut().for_each(|dirs| dirs.sort());
        Self { state: Debugfs::Read, by_tid }
    }

    /// The vCPUs of every VM that a process with these threads, ascending, runs: KVM's vCPU id and thread id
    /// (0 before its first run). A VM without vCPUs, or whose directory has no `pid` files (older
    /// kernels), is left out; so is one that other threads run: it is of another process, whose
    /// thread ended and left its number to one of these.
    pub(super) fn vms_of(&self, tids: &[u32], reader: &mut Reader) -> Vec<Vec<(u32, u32)>> {
        let dirs = tids.iter().filter_map(|tid| self.by_tid.get(tid)).flatten();
        let own = |(_, tid): &(u32, u32)| *tid == 0 || tids.binary_search(tid).is_ok();
        dirs.filter_map(|dir| vcpus(dir, reader)).filter(|vm| vm.iter().any(own)).collect()
    }
}

/// The thread in the name of a VM's directory, `TID-FD`.
pub fn vm_dir(name: &str) -> Option<u32> {
    let (tid, fd) = name.split_once('-')?;
    fd.parse::<u32>().ok()?;
    tid.parse().ok()
}

fn vcpus(dir: &Path, reader: &mut Reader) -> Option<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix("vcpu")?.parse().ok())
        else {
            continue;
        };
        reader.keep_dir(&entry.path());
        let tid = reader.text(&entry.path().join("pid"), 64)?.parse().ok()?;
        found.push((id, tid));
    }
    found.sort_unstable();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_are_found_by_the_thread_that_made_them() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let kvm = dir.path().join("sys/kernel/debug/kvm");
        for (place, tid) in [("70-8/vcpu0", "71\n"), ("70-8/vcpu4", "72\n"), ("80-9/vcpu0", "x")] {
            std::fs::create_dir_all(kvm.join(place)).unwrap();
            std::fs::write(kvm.join(place).join("pid"), tid).unwrap();
        }
        std::fs::create_dir_all(kvm.join("70-11")).unwrap();
        std::fs::write(kvm.join("exits"), "0").unwrap();
        let mut reader = Reader::default();
        let dirs = KvmDirs::list(&Root::at(dir.path()), &reader);
        assert_eq!(dirs.state, Debugfs::Read);
        assert_eq!(dirs.vms_of(&[69, 70, 71, 72], &mut reader), [vec![(0, 71), (4, 72)]]);
        // Nothing runs there, none made one, and the number was another's before.
        for none in [80, 1, 70] {
            assert!(dirs.vms_of(&[none], &mut reader).is_empty(), "{none}");
        }
    }

    #[test]
    fn other_names_are_no_vms() {
        for name in ["exits", "70", "70-", "-8", "a-b", "70-8-9"] {
            assert_eq!(vm_dir(name), None, "{name}");
        }
    }
}
