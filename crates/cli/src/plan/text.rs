//! A plan for people: per VM its verdict, then what changes, then conflicts.

use crate::observe::quota_named;
use crate::text::{indented, of_guest_node, plural, printable, ranges, wrapped};
use instep_agent::observe::facts_of;
use instep_agent::view::name_of;
use instep_core::decision::{Action, Decision, Verdict};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::PolicyName;
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::Tid;
use instep_host::discover::Scan;
use std::fmt;

/// With more VMs than this each has its verdict only.
const FEW_VMS: usize = 32;

/// Draws a decision for a terminal of `width` columns.
pub(crate) struct PlanText<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) scan: &'a Scan,
    pub(crate) decision: &'a Decision,
    pub(crate) policy: PolicyName,
    pub(crate) width: usize,
    /// Whether VMs are domains of Xen, whose vCPUs are no threads that one could name.
    pub(crate) is_xen: bool,
}

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decision, policy, .. } = self;
        writeln!(
            f,
            "Policy {policy}: {}, {}, {}.",
            plural(decision.vms.len(), "VM"),
            plural(decision.actions.len(), "change"),
            plural(decision.conflicts.len(), "conflict"),
        )?;
        let mut rest = decision.actions.as_slice();
        let few = decision.vms.len() <= FEW_VMS;
        for verdict in &decision.vms {
            let its = rest.iter().take_while(|action| action.vm() == verdict.vm).count();
            let (actions, others) = rest.split_at(its);
            rest = others;
            self.verdict(f, verdict, actions, few)?;
            for conflict in decision.conflicts.iter().filter(|c| c.vm == verdict.vm) {
                self.lines(f, &format!("conflict: {}", conflict.kind), 2)?;
            }
        }
        if !few {
            writeln!(f, "\nAdd --vm NAME or --json for every change.")?;
        }
        Ok(())
    }
}

impl PlanText<'_> {
    /// What becomes of one VM and why; its changes one by one where there are `few` VMs.
    fn verdict(
        &self,
        f: &mut fmt::Formatter<'_>,
        verdict: &Verdict,
        actions: &[Action],
        few: bool,
    ) -> fmt::Result {
        let mut head = printable(name_of(self.snapshot, verdict.vm));
        let left = if self.is_xen { ": left to Xen" } else { ": left to the kernel" };
        head.push_str(if verdict.selected { ": placed" } else { left });
        if !verdict.home.is_empty() {
            head.push_str(&format!(", home node {}", verdict.home));
        }
        if few {
            f.write_str("\n")?;
        } else if !actions.is_empty() {
            head.push_str(&format!(", {}", plural(actions.len(), "change")));
        }
        self.lines(f, &head, 0)?;
        self.lines(f, &verdict.why.to_string(), 2)?;
        if let Some(line) = self.snapshot.vm(verdict.vm).and_then(|vm| self.throttled(vm)) {
            self.lines(f, &line, 2)?;
        }
        if few { self.changes(f, verdict, actions) } else { Ok(()) }
    }

    /// That a quota keeps CPU time from a VM, which no placement changes.
    fn throttled(&self, vm: &Vm) -> Option<String> {
        let throttled = vm.throttled.milli_of(self.snapshot.window);
        let facts = facts_of(self.scan, vm);
        let quota = vm.quota.map_or_else(|| "a quota".to_owned(), |it| quota_named(it, facts));
        let line = format!(
            "{quota} throttles it: it wanted {throttled} CPUs more; placement does not change this"
        );
        (throttled.0 > 0).then_some(line)
    }

    /// What changes for one VM. Threads with the same change share a line; a reason that is the
    /// verdict's own is not said again.
    fn changes(
        &self,
        f: &mut fmt::Formatter<'_>,
        verdict: &Verdict,
        actions: &[Action],
    ) -> fmt::Result {
        let Some(vm) = self.snapshot.vm(verdict.vm) else { return Ok(()) };
        for alike in actions.chunk_by(|a, b| change(vm, a) == change(vm, b)) {
            let (what, now_and_then) = change(vm, &alike[0]);
            let tids: Vec<u32> = alike.iter().filter_map(thread).map(|(_, tid)| tid).collect();
            let indices: Vec<u32> = alike.iter().filter_map(|a| thread(a)?.0).collect();
            let threads = if tids.len() == 1 { "thread" } else { "threads" };
            let line = match (indices.len(), tids.len()) {
                (0, 0) => format!("* {what}: {now_and_then}"),
                (0, _) => format!("* {what} {threads} {}: {now_and_then}", ranges(&tids)),
                (1, _) if self.is_xen => format!("* vCPU {}: {now_and_then}", indices[0]),
                (_, _) if self.is_xen => format!("* vCPUs {}: {now_and_then}", ranges(&indices)),
                (1, _) => format!("* vCPU {} (thread {}): {now_and_then}", indices[0], tids[0]),
                _ => {
                    let (indices, tids) = (ranges(&indices), ranges(&tids));
                    format!("* vCPUs {indices} (threads {tids}): {now_and_then}")
                }
            };
            self.lines(f, &line, 2)?;
            let why = alike[0].why();
            let is_emulator = indices.is_empty() && !tids.is_empty();
            if *why != verdict.why && !is_emulator {
                self.lines(f, &why.to_string(), 6)?;
            }
        }
        Ok(())
    }

    fn lines(&self, f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
        f.write_str(&indented(&wrapped(text, self.width.saturating_sub(indent)), indent))
    }
}

/// What an action changes, and from what to what; equal for threads that can share a line.
fn change(vm: &Vm, action: &Action) -> (String, String) {
    match action {
        Action::SetVcpuAffinity { tid, cpus, .. } => {
            ("vCPU".to_owned(), format!("CPUs {} -> {cpus}", allowed(vm, *tid)))
        }
        Action::SetEmulatorAffinity { tid, cpus, .. } => {
            ("emulator".to_owned(), format!("CPUs {} -> {cpus}", allowed(vm, *tid)))
        }
        Action::SetSoftAffinity { vcpus, nodes, .. } => soft_change(vm, vcpus, nodes.as_ref()),
        Action::MoveMemory { guest_node, to, remote, .. } => {
            (format!("memory{}", of_guest_node(*guest_node)), format!("{remote} -> node {to}"))
        }
    }
}

/// The vCPU's index, if it is one, and the thread id.
fn thread(action: &Action) -> Option<(Option<u32>, u32)> {
    match action {
        Action::SetVcpuAffinity { vcpu, tid, .. } => Some((Some(*vcpu), tid.0)),
        Action::SetEmulatorAffinity { tid, .. } => Some((None, tid.0)),
        Action::SetSoftAffinity { .. } | Action::MoveMemory { .. } => None,
    }
}

/// What becomes of soft affinities and of the node affinity.
fn soft_change(vm: &Vm, vcpus: &[(u32, CpuSet)], nodes: Option<&NodeSet>) -> (String, String) {
    let mut parts = Vec::new();
    let mut of = |indices: &[u32], from: &CpuSet, to: &CpuSet| {
        let noun = if indices.len() == 1 { "vCPU" } else { "vCPUs" };
        parts.push(format!("{noun} {} prefer CPUs {from} -> {to}", ranges(indices)));
    };
    let now = |index: u32| {
        vm.soft.as_ref().and_then(|soft| soft.vcpus.get(&index)).cloned().unwrap_or_default()
    };
    for alike in vcpus.chunk_by(|a, b| a.1 == b.1 && now(a.0) == now(b.0)) {
        let indices: Vec<u32> = alike.iter().map(|(index, _)| *index).collect();
        of(&indices, &now(alike[0].0), &alike[0].1);
    }
    if let Some(nodes) = nodes {
        let before = vm.soft.as_ref().map(|soft| soft.nodes.clone()).unwrap_or_default();
        parts.push(format!("memory from node {before} -> {nodes}"));
    }
    ("soft affinity".to_owned(), parts.join(", "))
}

/// What a thread of the VM may use now.
fn allowed(vm: &Vm, tid: Tid) -> CpuSet {
    let vcpu = vm.vcpus.iter().find(|vcpu| vcpu.tid == tid).map(|vcpu| &vcpu.allowed);
    let emulator = || vm.emulators.iter().find(|thread| thread.tid == tid).map(|t| &t.allowed);
    vcpu.or_else(emulator).cloned().unwrap_or_default()
}
