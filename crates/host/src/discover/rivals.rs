//! What else on the host moves threads, memory or interrupts by a rule of its own: the kernel's NUMA balancing, numad
//! and irqbalance.
//!
//! Each warning comes once, and only where it works against placement: NUMA balancing and numad where VMs run on a host of
//! several nodes with CPUs, irqbalance where a VM has devices. The kernel's tiering of memory (bit 1 of
//! `kernel.numa_balancing`) moves pages between nodes with and without CPUs only and is none of them.

use super::facts::Scan;
use super::files::Reader;
use super::process;
use crate::root::Root;
use instep_core::idset::NodeSet;
use instep_core::wording::Count;
use std::collections::BTreeSet;
use std::path::Path;

/// The daemons by the names of their processes.
const NUMAD: &str = "numad";
const IRQBALANCE: &str = "irqbalance";

/// Bit of `kernel.numa_balancing`: pages move between nodes with CPUs (NUMA_BALANCING_NORMAL, Linux 6.18).
const BALANCES_NODES: u32 = 1;

/// Whether a process is called like one of the daemons.
pub(super) fn is_name(comm: &str) -> bool {
    [NUMAD, IRQBALANCE].contains(&comm)
}

/// Notes in a scan a process that [is called so](is_name), if it is root's: any user may name a process.
pub(super) fn note((pid, comm): (u32, &str), dir: &Path, scan: &mut Scan, reader: &mut Reader) {
    if process::user(dir, reader) == Some(0) {
        scan.rivals.insert(pid, comm.to_owned());
    }
}

/// What was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Rivals {
    told: BTreeSet<&'static str>,
}

impl Rivals {
    /// What was not told before, one sentence each.
    pub(super) fn warnings(
        &mut self,
        scan: &Scan,
        root: &Root,
        reader: &mut Reader,
    ) -> Vec<String> {
        let found = [
            ("kernel.numa_balancing", numa_balancing(scan, root, reader)),
            (NUMAD, numad(scan, root, reader)),
            (IRQBALANCE, irqbalance(scan)),
        ];
        let new = found.into_iter().filter_map(|(name, warning)| Some((name, warning?)));
        new.filter_map(|(name, warning)| self.told.insert(name).then_some(warning)).collect()
    }
}

/// The first process of this name.
fn process_called(scan: &Scan, name: &str) -> Option<u32> {
    scan.rivals.iter().find(|(_, comm)| *comm == name).map(|(pid, _)| *pid)
}

/// Whether there is a choice of nodes for VMs.
fn places_on_nodes(scan: &Scan, root: &Root, reader: &mut Reader) -> bool {
    let text = reader.text(&root.join("sys/devices/system/node/has_cpu"), 4096);
    let nodes = text.and_then(|text| NodeSet::parse_list(&text).ok()).unwrap_or_default();
    !scan.vms.is_empty() && nodes.len() > 1
}

fn numa_balancing(scan: &Scan, root: &Root, reader: &mut Reader) -> Option<String> {
    let text = reader.text(&root.join("proc/sys/kernel/numa_balancing"), 64)?;
    let modes: u32 = text.parse().ok()?;
    if modes & BALANCES_NODES == 0 || !places_on_nodes(scan, root, reader) {
        return None;
    }
    Some(format!(
        "kernel.numa_balancing is {modes}: the kernel also moves memory and threads between nodes by its own rule, \
         and stops guests for it; while Instep places VMs, set it to {} (sysctl kernel.numa_balancing={0})",
        modes & !BALANCES_NODES
    ))
}

fn numad(scan: &Scan, root: &Root, reader: &mut Reader) -> Option<String> {
    let pid = process_called(scan, NUMAD)?;
    places_on_nodes(scan, root, reader).then(|| {
        format!(
            "numad runs (process {pid}): it also binds VMs to nodes and moves their memory, so that it and Instep undo \
             what the other did; stop it (systemctl disable --now numad) or do not run `instep run`"
        )
    })
}

fn irqbalance(scan: &Scan) -> Option<String> {
    let pid = process_called(scan, IRQBALANCE)?;
    let vms = scan.vms.iter().filter(|vm| !vm.devices.is_empty()).count();
    (vms > 0).then(|| {
        format!(
            "irqbalance runs (process {pid}): it chooses the CPUs for interrupts of the devices of {} without knowing \
             where Instep places these; leave such interrupts out of it (irqbalance --banirq=N or --policyscript=FILE)",
            Count(vms as u64, "VM")
        )
    })
}
