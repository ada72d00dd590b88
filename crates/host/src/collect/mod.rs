//! A copy of a live host: the files that a scan reads, for another machine to read them again.
//!
//! The host is scanned as a copy would be ([`Root::copied_into`]), and each file that is opened is kept
//! ([`Copies`]). So there is no second list of what is read: the scan finds what a reader of the copy
//! will find. Nothing is on disk until the scan is over. Then what belongs to processes that are no VMs
//! is forgotten, and the rest is written. Of numad and irqbalance it is kept that they run.
//!
//! ```text
//! /proc, /sys --scan--> Copies (in memory, no passwords) --only VMs' processes--> DIR/proc, DIR/sys
//! ```
//!
//! A copy lacks what a scan of this machine asks by other means: QMP sockets, the owners of cgroups'
//! folders, and which users of this machine are ordinary ones.

mod copies;
mod secrets;
mod write;

pub(crate) use copies::Copies;
pub use secrets::without_secrets;
pub use write::{WriteError, write};

use crate::discover::{ScanOptions, Scanner};
use crate::error::Error;
use crate::root::Root;
use crate::topology;
use copies::Kept;
use std::collections::BTreeSet;

/// The files of a host that tell its topology, its VMs and its load.
#[derive(Debug)]
pub struct HostCopy {
    kept: Kept,
    /// How many VMs are in it whose vCPU threads a reader of it can tell.
    pub vms: usize,
    /// How many vCPUs those have.
    pub vcpus: usize,
    /// How many more VMs are in it: a reader cannot tell their vCPU threads.
    pub opaque: usize,
    /// Of how many VMs some file could not be read for lack of privilege.
    pub denied: usize,
    /// What a reader of the copy will be told about it, one sentence each.
    pub warnings: Vec<String>,
}

/// Reads the host under `root`. `memory` says whether it is read where VMs' memory lies: the kernel walks
/// the page tables of each guest for that, a quarter of a second at most.
///
/// # Errors
/// There is no host to read: no processes, or no CPUs.
pub fn take(root: &Root, memory: bool) -> Result<HostCopy, Error> {
    let copies = Copies::of(root);
    let root = root.copied_into(&copies);
    topology::read(&root)?;
    let mut options = ScanOptions::once();
    options.memory.enabled = memory;
    let scan = Scanner::new(root, options).scan()?;
    let known = scan.vms.iter().map(|vm| vm.pid);
    let pids: BTreeSet<u32> = known.chain(scan.opaque.iter().map(|vm| vm.pid)).collect();
    let kept = copies.of_processes(&pids, &scan.rivals);
    Ok(HostCopy {
        denied: kept.denied(),
        kept,
        vms: scan.vms.len(),
        vcpus: scan.vms.iter().map(|vm| vm.vcpus.len()).sum(),
        opaque: scan.opaque.len(),
        warnings: scan.warnings,
    })
}
