//! A plan as a shell script of `xl` commands.
//!
//! Names of domains are their owners' choice: they stand in comments only, and commands take numbers.

use crate::text::printable;
use instep_agent::view::name_of;
use instep_core::decision::{Action, Decision};
use instep_core::idset::CpuSet;
use instep_core::snapshot::Snapshot;
use instep_core::units::VmId;
use instep_xen::apply::pin_arguments;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Hard and soft affinity by vCPU, where they change.
type Pins<'a> = BTreeMap<u32, (Option<&'a CpuSet>, Option<&'a CpuSet>)>;

/// The plan as `xl vcpu-pin` commands.
pub(super) fn script(snapshot: &Snapshot, decision: &Decision) -> String {
    let mut text = String::from("#!/bin/sh\n");
    if decision.actions.is_empty() {
        text.push_str("# Nothing to do: the plan changes nothing (instep plan says why).\n");
    }
    text.push_str("set -eu\n");
    for of_one in decision.actions.chunk_by(|a, b| a.vm() == b.vm()) {
        let vm = of_one[0].vm();
        domain(&mut text, vm, name_of(snapshot, vm), of_one)
            .expect("writing to a string does not fail");
    }
    text
}

fn domain(text: &mut String, vm: VmId, name: &str, actions: &[Action]) -> std::fmt::Result {
    let mut pins = Pins::new();
    let mut nodes = None;
    let mut said = Vec::new();
    for action in actions {
        match action {
            Action::SetVcpuAffinity { vcpu, cpus, .. } => {
                pins.entry(*vcpu).or_default().0 = Some(cpus);
            }
            Action::SetSoftAffinity { vcpus, nodes: new, .. } => {
                vcpus.iter().for_each(|(vcpu, cpus)| pins.entry(*vcpu).or_default().1 = Some(cpus));
                nodes = new.as_ref();
            }
            Action::SetEmulatorAffinity { .. } | Action::MoveMemory { .. } => continue,
        }
        let why = action.why().to_string();
        if !said.contains(&why) {
            writeln!(text, "# {}: {why}", printable(name))?;
            said.push(why);
        }
    }
    for (vcpu, (hard, soft)) in pins {
        writeln!(text, "xl {}", pin_arguments(vm.0, vcpu, hard, soft).join(" "))?;
    }
    if let Some(nodes) = nodes {
        writeln!(
            text,
            "# {}: left out: no command of xl sets a node affinity ({nodes}); `instep run --once` does",
            printable(name)
        )?;
    }
    Ok(())
}
