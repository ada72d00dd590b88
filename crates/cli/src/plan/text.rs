//! A plan for people: per VM its verdict, then what changes, then conflicts.

use instep_agent::view::name_of;
use instep_core::decision::{Action, Decision};
use instep_core::policy::PolicyName;
use instep_core::snapshot::Snapshot;
use std::fmt;

use crate::text::{indented, plural, wrapped};

/// Draws a decision for a terminal of `width` columns.
pub(crate) struct PlanText<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) decision: &'a Decision,
    pub(crate) policy: PolicyName,
    pub(crate) width: usize,
}

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { snapshot, decision, policy, width } = self;
        writeln!(
            f,
            "Policy {policy}: {}, {}, {}.",
            plural(decision.vms.len(), "VM"),
            plural(decision.actions.len(), "change"),
            plural(decision.conflicts.len(), "conflict"),
        )?;
        for verdict in &decision.vms {
            let home = if verdict.home.is_empty() {
                String::new()
            } else {
                format!(", home node {}", verdict.home)
            };
            let mark = if verdict.selected { "placed" } else { "left to the kernel" };
            writeln!(f, "\n{}: {mark}{home}", name_of(snapshot, verdict.vm))?;
            f.write_str(&indented(&wrapped(&verdict.why.to_string(), width - 2), 2))?;
            for action in decision.actions.iter().filter(|action| action.vm() == verdict.vm) {
                self.action(f, action)?;
            }
            for conflict in decision.conflicts.iter().filter(|c| c.vm == verdict.vm) {
                let text = format!("conflict: {}", conflict.kind);
                f.write_str(&indented(&wrapped(&text, width - 2), 2))?;
            }
        }
        Ok(())
    }
}

impl PlanText<'_> {
    fn action(&self, f: &mut fmt::Formatter<'_>, action: &Action) -> fmt::Result {
        let what = match action {
            Action::SetVcpuAffinity { vm, vcpu, tid, cpus, .. } => {
                let now = self
                    .snapshot
                    .vm(*vm)
                    .and_then(|vm| vm.vcpus.iter().find(|v| v.tid == *tid))
                    .map_or_else(String::new, |v| v.allowed.to_string());
                format!("vCPU {vcpu} (thread {tid}): CPUs {now} -> {cpus}")
            }
            Action::SetEmulatorAffinity { vm, tid, cpus, .. } => {
                let now = self
                    .snapshot
                    .vm(*vm)
                    .and_then(|vm| vm.emulators.iter().find(|e| e.tid == *tid))
                    .map_or_else(String::new, |e| e.allowed.to_string());
                format!("emulator thread {tid}: CPUs {now} -> {cpus}")
            }
            Action::MoveMemory { to, remote, .. } => format!("{remote} of memory -> node {to}"),
        };
        f.write_str(&indented(&wrapped(&format!("* {what}"), self.width - 2), 2))?;
        f.write_str(&indented(&wrapped(&action.why().to_string(), self.width - 6), 6))
    }
}
