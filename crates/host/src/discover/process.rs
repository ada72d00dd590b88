//! One process: is it a monitor, which KVM descriptors does it hold, what are its threads.
//!
//! Any read may find the process or a thread gone; that is never an error. Copies of /proc may
//! lack any file: what is there counts.

use super::args;
use super::devices::{self, Open};
use super::facts::Vmm;
use super::files::{Reader, numbered};
use super::proc_text::{self, Stat};
use super::vmm;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The most that is read of `status`; 8192 CPUs and 1024 nodes make lists of some kilobytes.
pub(super) const MAX_STATUS: usize = 128 << 10;
/// The most descriptors of one process that are looked at.
const MAX_FDS: usize = 65_536;

/// KVM descriptors of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KvmFds {
    /// Whether it holds a VM.
    pub(super) vm: bool,
    /// Different vCPUs it holds; those of unplugged vCPUs stay.
    pub(super) vcpus: u32,
    /// What it has open of devices of the host.
    pub(super) devices: BTreeSet<Open>,
}

/// Counts KVM descriptors by the targets of `/proc/PID/fd` links: `anon_inode:kvm-vm` and
/// `anon_inode:kvm-vcpu:N` (before Linux 4.16 without `:N`).
pub fn kvm_fds<'a>(targets: impl Iterator<Item = &'a [u8]>) -> (bool, u32) {
    let (mut vm, mut unnamed) = (false, 0u32);
    let mut ids: Vec<&[u8]> = Vec::new();
    for target in targets {
        let Some(name) = target.strip_prefix(b"anon_inode:") else { continue };
        if name == b"kvm-vm" {
            vm = true;
        } else if name == b"kvm-vcpu" {
            unnamed = unnamed.saturating_add(1);
        } else if let Some(id) = name.strip_prefix(b"kvm-vcpu:") {
            ids.push(id);
        }
    }
    // A monitor may duplicate a descriptor, so ids count and not descriptors.
    ids.sort_unstable();
    ids.dedup();
    (vm, unnamed.saturating_add(u32::try_from(ids.len()).unwrap_or(u32::MAX)))
}

/// Reads the descriptors of a process; an error of kind NotFound when there is no such directory.
pub(super) fn read_fds(process: &Path, reader: &mut Reader) -> io::Result<KvmFds> {
    use std::os::unix::ffi::OsStrExt;
    let mut targets = Vec::new();
    let mut devices = BTreeSet::new();
    let mut links = Vec::new();
    let dir = process.join("fd");
    for entry in reader.noted(&dir, std::fs::read_dir(&dir))?.take(MAX_FDS) {
        let Ok(entry) = entry else { break };
        let link = entry.path();
        match reader.noted(&link, std::fs::read_link(&link)) {
            Ok(target) if target.as_os_str().as_bytes().starts_with(b"anon_inode:kvm") => {
                links.push((link, target.clone()));
                targets.push(target);
            }
            Ok(target) if target.starts_with("/dev") => {
                let fdinfo = process.join("fdinfo").join(entry.file_name());
                let iff = || devices::interface(&reader.text(&fdinfo, 4096)?);
                if let Some(open) = Open::of(&target, iff) {
                    devices.insert(open);
                    links.push((link, target));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    reader.keep_dir(&dir);
    links.iter().for_each(|(link, target)| reader.keep_link(link, target));
    let (vm, vcpus) = kvm_fds(targets.iter().map(|target| target.as_os_str().as_bytes()));
    Ok(KvmFds { vm, vcpus, devices })
}

/// What a process was found to be by its names.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The monitor it is by name, if any.
    pub(super) vmm: Option<Vmm>,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
}

/// Reads command line and executable.
pub(super) fn program(process: &Path, reader: &mut Reader) -> Program {
    let arguments = reader
        .read(&process.join("cmdline"), args::MAX_CMDLINE)
        .map(args::split)
        .unwrap_or_default();
    let link = process.join("exe");
    let exe = reader.noted(&link, std::fs::read_link(&link)).ok();
    exe.iter().for_each(|target| reader.keep_link(&link, target));
    let exe = exe.as_deref().and_then(Path::to_str);
    let vmm = vmm::by_name(arguments.first().map(String::as_str), exe);
    Program { vmm, arguments }
}

/// The real user of a process. The owner of its folder in /proc may be another one: root's, as a
/// process can arrange.
pub(super) fn user(process: &Path, reader: &mut Reader) -> Option<u32> {
    proc_text::real_uid(reader.read(&process.join("status"), MAX_STATUS).ok()?)
}

/// Whether no ordinary user's login led to a process. The kernel keeps the user of a login through all
/// later changes of the user id; 4294967295 is none (Linux 6.18, kernel/audit.c). Kernels without audit
/// do not tell.
pub(super) fn is_of_no_login(process: &Path, reader: &mut Reader) -> bool {
    let uid = reader.text(&process.join("loginuid"), 16).and_then(|text| text.parse::<u32>().ok());
    uid.is_some_and(|uid| uid == u32::MAX || uid < super::trust::FIRST_ORDINARY)
}

/// The name of a monitor that is not known by it: that of its program.
pub(super) fn other_name(dir: &Path, arguments: &[String], reader: &mut Reader) -> String {
    let base = arguments.first().map(|path| path.rsplit('/').next().unwrap_or(path).to_owned());
    let name = base.filter(|base| !base.is_empty());
    let name = name.or_else(|| reader.text(&dir.join("comm"), 64)).unwrap_or_default();
    let name = super::guest::readable(&name);
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// One thread.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    /// Its id.
    pub(super) tid: u32,
    /// Its `stat`; in a copy without one only the name of `comm`.
    pub(super) stat: Stat,
}

/// The threads of a process ascending by id, those left out that end while being read. Empty when
/// there is no `task` directory.
pub(super) fn threads(process: &Path, reader: &mut Reader) -> Vec<Thread> {
    let task = process.join("task");
    let Ok(tids) = numbered(&task) else { return Vec::new() };
    let mut threads = Vec::with_capacity(tids.len());
    for tid in tids {
        let dir = task.join(tid.to_string());
        let stat = match reader.read_short(&dir.join("stat")) {
            Ok(bytes) => proc_text::stat(bytes),
            Err(_) => None,
        };
        // The running kernel shows all or none; a copy may hold the name alone.
        let stat = stat.or_else(|| {
            let comm = reader.text(&dir.join("comm"), 256).or_else(|| {
                let status = reader.read(&dir.join("status"), MAX_STATUS).ok()?;
                let name = proc_text::status_value(status, "Name")?;
                Some(String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned())
            })?;
            Some(Stat { comm, ..Stat::default() })
        });
        if let Some(stat) = stat.filter(|stat| !stat.is_dead()) {
            threads.push(Thread { tid, stat });
        }
    }
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_counted_by_vcpu_and_not_by_number() {
        let list: Vec<&[u8]> = vec![
            b"/dev/kvm",
            b"anon_inode:kvm-vm",
            b"anon_inode:kvm-vcpu:0",
            b"anon_inode:kvm-vcpu:0",
            b"anon_inode:kvm-vcpu:4",
            b"anon_inode:kvm-vcpu-stats:0",
            b"anon_inode:[eventfd]",
        ];
        assert_eq!(kvm_fds(list.into_iter()), (true, 2));
        let old: Vec<&[u8]> =
            vec![b"anon_inode:kvm-vm", b"anon_inode:kvm-vcpu", b"anon_inode:kvm-vcpu"];
        assert_eq!(kvm_fds(old.into_iter()), (true, 2));
        assert_eq!(kvm_fds(std::iter::empty()), (false, 0));
    }
}
