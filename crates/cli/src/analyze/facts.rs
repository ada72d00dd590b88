//! VMs from copies of /proc that were taken beside a trace: `DIR/PID/cmdline` for the name,
//! `DIR/PID/task/TID/comm` for the vCPUs' threads. `DIR/proc/PID` will do as well.

use anyhow::Context as _;
use instep_host::discover::names::{self, Role};
use instep_host::discover::{args, guest, name_uniquely, vmm};
use instep_trace::analysis::discover::FoundVm;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

/// Command lines and names are far shorter.
const MAX_FILE: u64 = 1 << 20;

/// Reads every process of the copy that is a VMM and has vCPU threads.
pub(super) fn read(dir: &Path) -> anyhow::Result<Vec<FoundVm>> {
    let proc = dir.join("proc");
    let dir = if proc.is_dir() { proc.as_path() } else { dir };
    let wanted =
        || format!("--facts {}: a folder with a copy of /proc/PID per VM is wanted", dir.display());
    let mut vms: Vec<FoundVm> = numbers(dir)
        .with_context(wanted)?
        .into_iter()
        .filter_map(|pid| vm(&dir.join(pid.to_string()), pid))
        .collect();
    anyhow::ensure!(!vms.is_empty(), "{}; no process in it is a VM", wanted());
    vms.sort_by_key(|vm| vm.pid);
    name_uniquely(vms.iter_mut().filter_map(|vm| Some((&mut vm.name, vm.pid?))));
    Ok(vms)
}

fn vm(dir: &Path, pid: u32) -> Option<FoundVm> {
    let words = args::split(&bounded(&dir.join("cmdline")).ok()?);
    let monitor = vmm::by_name(words.first().map(String::as_str), None)?;
    let mut vcpus = Vec::new();
    for tid in numbers(&dir.join("task")).ok()? {
        let comm = bounded(&dir.join("task").join(tid.to_string()).join("comm")).ok()?;
        let comm = String::from_utf8_lossy(&comm);
        if let Role::Vcpu { index, .. } = names::role(&monitor, comm.trim_end()) {
            vcpus.push((index, tid));
        }
    }
    vcpus.sort_unstable();
    let name = guest::describe(&monitor, &words).name.unwrap_or_else(|| format!("vm-{pid}"));
    (!vcpus.is_empty()).then_some(FoundVm { name, pid: Some(pid), vcpus })
}

/// The entries of a folder whose names are numbers.
fn numbers(dir: &Path) -> std::io::Result<Vec<u32>> {
    let entries = fs::read_dir(dir)?.flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut data)?;
    Ok(data)
}
