//! What the status says of a domain of Xen: both affinities, and what is from Instep.

use super::text::percent;
use crate::text::{indented, plural, printable, wrapped};
use instep_core::snapshot::{Vcpu, Vm};
use instep_core::soft::SoftAffinity;
use instep_core::units::Nanos;
use instep_report::table::{Side, Spacing, aligned};
use instep_xen::scan::DomainFacts;

/// A domain in full: what it uses, and a row per vCPU.
pub(super) fn vm_lines(
    vm: &Vm,
    facts: Option<&DomainFacts>,
    (home, memory): (String, String),
    (window, width): (Nanos, usize),
) -> String {
    let kind = facts.and_then(|facts| facts.kind.as_ref()).map_or("", String::as_str);
    let kind = if kind.is_empty() { String::new() } else { format!("{kind}, ") };
    let paused = if facts.is_some_and(|facts| facts.is_paused) { "paused, " } else { "" };
    let head = format!("{}: domain {}, {kind}{paused}{home}", printable(&vm.name), vm.id);
    let mut text = indented(&wrapped(&head, width), 0);
    let mut load = format!(
        "{}, used {} CPUs; {memory}",
        plural(vm.vcpus.len(), "vCPU"),
        vm.busy().milli_of(window)
    );
    if let Some(soft) = &vm.soft {
        load.push_str(&format!("; node affinity {}", soft.nodes));
    }
    if let Some(share) = facts.and_then(|facts| facts.share) {
        load.push_str(&format!("; weight {}", share.weight));
        if share.cap > 0 {
            load.push_str(&format!(", cap {}%", share.cap));
        }
    }
    text.push_str(&indented(&wrapped(&load, width - 2), 2));
    if let Some(line) = from_instep(vm) {
        text.push_str(&indented(&wrapped(&line, width - 2), 2));
    }
    text + &vcpu_table(vm, window)
}

fn vcpu_table(vm: &Vm, window: Nanos) -> String {
    let row = |vcpu: &Vcpu| {
        let soft = vm.soft.as_ref().and_then(|soft| soft.vcpus.get(&vcpu.index));
        vec![
            vcpu.index.to_string(),
            vcpu.cpu.map_or_else(|| "?".to_owned(), |cpu| cpu.to_string()),
            percent(vcpu.busy.milli_of(window)),
            vcpu.allowed.to_string(),
            soft.map_or_else(|| "?".to_owned(), ToString::to_string),
        ]
    };
    let head = [
        ("vCPU", Side::Right),
        ("CPU", Side::Right),
        (" used", Side::Right),
        ("may use     ", Side::Left),
        ("prefers", Side::Left),
    ];
    let rows: Vec<_> = vm.vcpus.iter().map(row).collect();
    aligned(&head, &rows, Spacing { indent: 2, gap: 2 })
}

/// What a domain has from Instep, and what it had before.
pub(super) fn from_instep(vm: &Vm) -> Option<String> {
    let hard = vm.vcpus.iter().filter(|vcpu| vcpu.initial != vcpu.allowed);
    let mut was = Vec::new();
    if let Some(first) = hard.clone().next() {
        let count = plural(hard.count(), "vCPU");
        was.push(format!("{count} could use CPUs {}", first.initial));
    }
    let SoftAffinity { vcpus, nodes, initial_vcpus, initial_nodes } = vm.soft.as_ref()?;
    let soft = vcpus.iter().filter(|(index, now)| initial_vcpus.get(index) != Some(now));
    if let Some((index, _)) = soft.clone().next() {
        let first = initial_vcpus.get(index).cloned().unwrap_or_default();
        let count = plural(soft.count(), "vCPU");
        was.push(format!("{count} preferred CPUs {first}"));
    }
    if nodes != initial_nodes {
        was.push(format!("its node affinity was {initial_nodes}"));
    }
    (!was.is_empty()).then(|| {
        format!("set by Instep: before, {}; `instep restore` puts it back", was.join(", "))
    })
}
