//! A plan as a shell script for those who apply it by other means: `virsh` or `taskset`.
//!
//! Names of VMs come from command lines of other users' processes: they stand in comments only. The
//! script gives virsh UUIDs, and only of VMs in a cgroup of libvirt's.

use crate::text::{of_guest_node, printable};
use instep_agent::view::name_of;
use instep_core::decision::{Action, Decision};
use instep_core::snapshot::Snapshot;
use instep_core::units::VmId;
use std::fmt::Write as _;

/// The plan as `virsh vcpupin` and `emulatorpin` commands; `uuid_of` gives the UUID by which libvirt
/// knows a VM, or why virsh is not to be asked about it.
pub(crate) fn virsh<'a>(
    snapshot: &Snapshot,
    decision: &Decision,
    uuid_of: impl Fn(VmId) -> Result<&'a str, String>,
) -> String {
    let mut pinned_emulators = std::collections::BTreeSet::new();
    script(snapshot, decision, |action| {
        let domain = uuid_of(action.vm())?;
        match action {
            Action::SetVcpuAffinity { vcpu, cpus, .. } => {
                Ok(format!("virsh vcpupin {domain} {vcpu} {cpus} --live"))
            }
            Action::SetEmulatorAffinity { vm, cpus, .. } if pinned_emulators.insert(*vm) => {
                Ok(format!("virsh emulatorpin {domain} {cpus} --live"))
            }
            Action::SetEmulatorAffinity { .. } => Ok(String::new()),
            Action::SetSoftAffinity { .. } => Err("virsh has no soft affinity".to_owned()),
            // numatune would bind the domain's memory for good.
            Action::MoveMemory { to, .. } => Err(format!(
                "memory to node {to}: virsh cannot move without binding, see --format taskset"
            )),
        }
    })
}

/// The plan as `taskset` commands, and `migratepages` for memory.
pub(crate) fn taskset(snapshot: &Snapshot, decision: &Decision) -> String {
    script(snapshot, decision, |action| match action {
        Action::SetVcpuAffinity { tid, cpus, .. }
        | Action::SetEmulatorAffinity { tid, cpus, .. } => {
            Ok(format!("taskset --cpu-list --pid {cpus} {tid}"))
        }
        Action::SetSoftAffinity { .. } => Err("taskset has no soft affinity".to_owned()),
        Action::MoveMemory { vm, guest_node: None, to, .. } => {
            Ok(format!("migratepages {vm} all {to}"))
        }
        Action::MoveMemory { guest_node, to, .. } => Err(format!(
            "memory{} to node {to}: migratepages would move that of the other guest nodes, too; \
             instep run does not",
            of_guest_node(*guest_node)
        )),
    })
}

fn script(
    snapshot: &Snapshot,
    decision: &Decision,
    mut line: impl FnMut(&Action) -> Result<String, String>,
) -> String {
    let mut text = String::from("#!/bin/sh\n");
    if decision.actions.is_empty() {
        text.push_str("# Nothing to do: the plan changes nothing (instep plan says why).\n");
    }
    text.push_str("set -eu\n");
    for action in &decision.actions {
        let name = name_of(snapshot, action.vm());
        let written = match line(action) {
            Ok(command) if command.is_empty() => continue,
            Ok(command) => writeln!(text, "# {}: {}\n{command}", printable(name), action.why()),
            Err(why) => writeln!(text, "# {}: left out: {why}", printable(name)),
        };
        written.expect("writing to a string does not fail");
    }
    text
}
