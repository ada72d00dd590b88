//! One cycle for people: what changed, what did not work, and the verdict on each VM.

use crate::text::{indented, of_guest_node, plural, printable, ranges, wrapped};
use instep_agent::record::{ActionRecord, MemoryRecord, Record};
use instep_agent::view::{ActionView, SoftView, VerdictView};
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, Milli};

/// With more VMs than this the verdict on each is not drawn every cycle.
const FEW_VMS: usize = 32;

/// The verdicts, or where to find them when they are many.
pub(super) fn verdicts(record: &Record<'_>, width: usize) -> String {
    if record.vms.len() > FEW_VMS {
        return "  add --json or --log FILE for the verdict on every VM\n".to_owned();
    }
    let line = |verdict: &VerdictView<'_>| {
        let line = format!("{}: {}", printable(verdict.name), verdict.why);
        indented(&wrapped(&line, width - 2), 2)
    };
    record.vms.iter().map(line).collect()
}

/// One cycle for people: what changed and what did not work, and `verdicts` in between.
pub(super) fn drawn(record: &Record<'_>, verdicts: &str, width: usize) -> String {
    let head = format!(
        "{} cycle {}: {}, {}, policy {}, own CPU {}ms",
        seconds(&record.time),
        record.cycle,
        plural(record.vms.len(), "VM"),
        plural(record.actions.len(), "change"),
        record.policy,
        Milli(record.cost.cpu_ns.0 / 1000),
    );
    let mut text = indented(&wrapped(&head, width), 0);
    let described: Vec<_> = record.actions.iter().map(described).collect();
    for alike in described.chunk_by(|a, b| a.is_like(b)) {
        let Line { vm, what, outcome, .. } = &alike[0];
        let vcpus: Vec<u32> = alike.iter().filter_map(|line| line.vcpu).collect();
        let who = match (vcpus.as_slice(), alike.len()) {
            ([one], _) => format!(" vCPU {one} ->"),
            ([], 1) => String::new(),
            ([], count) => format!(", {}:", plural(count, "thread")),
            (several, _) => format!(" vCPUs {} ->", ranges(several)),
        };
        let line = format!("{}{who}{what}: {outcome}", printable(vm));
        text.push_str(&indented(&wrapped(&line, width - 2), 2));
    }
    text.push_str(verdicts);
    for memory in record.memory {
        text.push_str(&indented(&wrapped(&memory_line(memory), width - 2), 2));
    }
    for warning in record.warnings {
        text.push_str(&indented(&wrapped(&format!("warning: {warning}"), width - 2), 2));
    }
    text
}

/// A time of a record without its fraction of a second.
fn seconds(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(whole, _)| format!("{whole}Z"))
}

/// One action in words, in parts that tell which can share a line.
struct Line<'a> {
    vm: &'a str,
    vcpu: Option<u32>,
    what: String,
    outcome: &'a str,
}

impl Line<'_> {
    fn is_like(&self, other: &Self) -> bool {
        let parts = |line: &Self| (line.vcpu.is_some(), line.what.clone());
        self.vm == other.vm && self.outcome == other.outcome && parts(self) == parts(other)
    }
}

fn described<'a>(action: &'a ActionRecord<'a>) -> Line<'a> {
    let (vm, vcpu, what) = match &action.action {
        ActionView::VcpuAffinity { vm, vcpu, cpus, .. } => {
            (vm, Some(*vcpu), format!(" CPUs {cpus}"))
        }
        ActionView::EmulatorAffinity { vm, cpus, .. } => {
            (vm, None, format!(" emulator -> CPUs {cpus}"))
        }
        ActionView::SoftHome { vm, node, .. } => (vm, None, format!(" home -> node {node}")),
        ActionView::SoftAffinity { vm, soft, nodes, .. } => (vm, None, soft_text(soft, *nodes)),
        ActionView::MoveMemory { vm, guest_node, nodes, remote_bytes, .. } => {
            let of = of_guest_node(*guest_node);
            (vm, None, format!(" {remote_bytes} of memory{of} -> node {nodes}"))
        }
    };
    Line { vm, vcpu, what, outcome: &action.outcome }
}

/// The CPUs that vCPUs are to prefer, and the nodes for memory.
fn soft_text(soft: &[SoftView<'_>], nodes: Option<&NodeSet>) -> String {
    let of = |alike: &[SoftView<'_>]| {
        let vcpus: Vec<u32> = alike.iter().map(|one| one.vcpu).collect();
        format!(" vCPUs {} prefer CPUs {}", ranges(&vcpus), alike[0].cpus)
    };
    let mut parts: Vec<String> = soft.chunk_by(|a, b| a.cpus == b.cpus).map(of).collect();
    parts.extend(nodes.map(|nodes| format!(" memory from node {nodes}")));
    parts.join(",")
}

fn memory_line(memory: &MemoryRecord) -> String {
    let (vm, of) = (printable(&memory.vm), of_guest_node(memory.guest_node));
    let mut line = format!("{vm}: {}{of} moved home", memory.moved_bytes);
    for (cause, bytes) in &memory.stayed_bytes {
        line.push_str(&format!(", {bytes} not moved ({cause})"));
    }
    if let Some(error) = &memory.error {
        line.push_str(&format!("; {error}"));
    } else if !memory.complete {
        line.push_str(&match memory.used_left_bytes {
            None => "; that is not all yet".to_owned(),
            Some(Bytes(0)) => "; that is not all yet, but all that was seen in use".to_owned(),
            Some(left) => format!("; that is not all yet: {left} of what was seen in use are left"),
        });
    }
    line
}
