//! A plan for people: per VM its verdict, then what changes, then conflicts.

use crate::text::{indented, plural, printable, wrapped};
use instep_agent::view::name_of;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::idset::CpuSet;
use instep_core::policy::PolicyName;
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::Tid;
use std::collections::BTreeMap;
use std::fmt;

/// Draws a decision for a terminal of `width` columns.
pub(crate) struct PlanText<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) decision: &'a Decision,
    pub(crate) policy: PolicyName,
    pub(crate) width: usize,
}

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { snapshot, decision, policy, .. } = self;
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
            writeln!(f, "\n{}: {mark}{home}", printable(name_of(snapshot, verdict.vm)))?;
            self.lines(f, &verdict.why.to_string(), 2)?;
            self.changes(f, verdict)?;
            for conflict in decision.conflicts.iter().filter(|c| c.vm == verdict.vm) {
                self.lines(f, &format!("conflict: {}", conflict.kind), 2)?;
            }
        }
        Ok(())
    }
}

impl PlanText<'_> {
    /// What changes for one VM. A reason that is the verdict's own is not said again.
    fn changes(&self, f: &mut fmt::Formatter<'_>, verdict: &Verdict) -> fmt::Result {
        let Some(vm) = self.snapshot.vm(verdict.vm) else { return Ok(()) };
        let mut emulators: BTreeMap<(CpuSet, &CpuSet), Vec<Tid>> = BTreeMap::new();
        for action in self.decision.actions.iter().filter(|action| action.vm() == vm.id) {
            match action {
                Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
                    let now = allowed(vm, *tid);
                    self.lines(
                        f,
                        &format!("* vCPU {vcpu} (thread {tid}): CPUs {now} -> {cpus}"),
                        2,
                    )?;
                }
                Action::SetEmulatorAffinity { tid, cpus, .. } => {
                    emulators.entry((allowed(vm, *tid), cpus)).or_default().push(*tid);
                    continue;
                }
                Action::MoveMemory { to, remote, .. } => {
                    self.lines(f, &format!("* {remote} of memory -> node {to}"), 2)?;
                }
            }
            if *action.why() != verdict.why {
                self.lines(f, &action.why().to_string(), 6)?;
            }
        }
        for ((now, cpus), tids) in emulators {
            let tids = tids.iter().map(Tid::to_string).collect::<Vec<_>>().join(", ");
            let line = format!("* emulator threads (CPUs {now} -> {cpus}): {tids}");
            self.lines(f, &line, 2)?;
        }
        Ok(())
    }

    fn lines(&self, f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
        f.write_str(&indented(&wrapped(text, self.width.saturating_sub(indent)), indent))
    }
}

/// What a thread of the VM may use now.
fn allowed(vm: &Vm, tid: Tid) -> CpuSet {
    let vcpu = vm.vcpus.iter().find(|vcpu| vcpu.tid == tid).map(|vcpu| &vcpu.allowed);
    let emulator = || vm.emulators.iter().find(|thread| thread.tid == tid).map(|t| &t.allowed);
    vcpu.or_else(emulator).cloned().unwrap_or_default()
}
