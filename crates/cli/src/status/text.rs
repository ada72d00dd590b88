//! The status for people: one line per VM, its vCPUs where they are few, conflicts.

use super::{AllSettings, Conflicts, held, xen};
use crate::observe::{Observed, quota_named};
use crate::text::{indented, plural, printable, shortened, wrapped};
use instep_agent::observe::facts_of;
use instep_agent::vm_settings::Chosen;
use instep_core::snapshot::{Vcpu, Vm};
use instep_core::units::{Milli, Nanos, NodeId};
use instep_host::discover::VmFacts;
use instep_report::table::{Side, Spacing, aligned};
use instep_xen::scan::ScanTime;
use std::time::SystemTime;

/// More vCPUs than this on a host are only listed when asked for.
const FEW_VCPUS: u64 = 32;

/// The node that a VM lives on.
type HomeOf<'a> = &'a dyn Fn(&Vm) -> Option<NodeId>;

/// Draws the status for a terminal of `width` columns.
pub(crate) fn draw(
    observed: &Observed,
    (conflicts, settings): (&Conflicts, &AllSettings),
    home_of: HomeOf<'_>,
    (width, all_vcpus): (usize, bool),
) -> String {
    let snapshot = &observed.snapshot;
    if snapshot.vms.is_empty() && snapshot.opaque.is_empty() {
        return empty(observed, width);
    }
    let list_vcpus = all_vcpus || snapshot.vcpu_count() <= FEW_VCPUS;
    let mut text = heading(observed);
    if let Some(xen) = observed.xen.as_ref().filter(|xen| xen.competing > 0) {
        // A core without a second CPU has nothing to compete for.
        text.push_str(&format!("competing modules {}\n", Milli(xen.competing / 1000)));
    }
    let names = width.saturating_sub(ROW);
    if !list_vcpus {
        let number = if observed.xen.is_some() { "domain" } else { "pid" };
        let titles = [number, "vCPUs", "used", "steal", "throttled", "home", "memory", "there"];
        text.push_str(&format!("\n{}\n", row("VM", names, titles.map(str::to_owned))));
    }
    for vm in &snapshot.vms {
        if list_vcpus {
            text.push('\n');
            text.push_str(&vm_lines(observed, vm, home_of(vm), width));
        } else {
            text.push_str(&vm_row(observed, vm, home_of(vm), names));
            text.push_str(&placed_line(observed, vm, width));
            let own = observed.xen.as_ref().and_then(|_| xen::from_instep(vm));
            own.iter().for_each(|line| text.push_str(&indented(&wrapped(line, width - 2), 2)));
        }
        let own = settings.get(&vm.id).map_or(&[][..], Vec::as_slice);
        text.push_str(&settings_line(own, width));
        for conflict in conflicts.all.iter().filter(|conflict| conflict.vm == vm.id) {
            let mark = if conflicts.counts(vm.id) { "CONFLICT" } else { "conflict, not counted:" };
            let line = format!("{mark} {}", conflict.kind);
            text.push_str(&indented(&wrapped(&line, width - 2), 2));
        }
        if let Some(why) = conflicts.refused.get(&vm.id) {
            let line = format!("left alone: {why}");
            text.push_str(&indented(&wrapped(&line, width - 2), 2));
        }
    }
    text.push_str(&observed.left_alone(width));
    if !list_vcpus {
        text.push_str("\nAdd --vcpus for UUIDs and a row per vCPU.\n");
    }
    if conflicts.count() != 0 {
        let line = format!(
            "\n{} found; `instep plan --mend-conflicts` shows what would mend it.\n",
            plural(conflicts.count(), "conflict")
        );
        text.push_str(&line);
    }
    text
}

/// What there is, and over which time loads were measured.
fn heading(observed: &Observed) -> String {
    let snapshot = &observed.snapshot;
    let topology = &snapshot.topology;
    let window = if observed.since_start {
        "loads since each VM started".to_owned()
    } else {
        format!("{}s window", snapshot.window.milli_of(Nanos::SECOND))
    };
    format!(
        "{} with {} on {}, {}, {}; {window}\n",
        plural(snapshot.vms.len() + snapshot.opaque.len(), "VM"),
        plural(usize::try_from(snapshot.vcpu_count()).unwrap_or(usize::MAX), "vCPU"),
        plural(topology.cpus().len(), "CPU"),
        plural(topology.cores().len(), "core"),
        plural(topology.nodes().len(), "node"),
    )
}

/// A VM in full: who runs it, what it uses, and a row per vCPU.
fn vm_lines(observed: &Observed, vm: &Vm, home: Option<NodeId>, width: usize) -> String {
    let snapshot = &observed.snapshot;
    if let Some(seen) = &observed.xen {
        let home = home.map_or_else(|| "home open".to_owned(), |node| format!("home node {node}"));
        let facts = seen.scan.by_id(vm.id.0);
        let is_live = matches!(seen.scan.at, ScanTime::Live(_));
        let memory = match vm.memory_total().0 {
            0 if is_live => "memory unknown (--memory asks Xen for it)".to_owned(),
            _ => memory(vm),
        };
        return xen::vm_lines(vm, facts, (home, memory), (snapshot.window, width));
    }
    let facts = facts_of(&observed.scan, vm);
    let kind = facts.map_or_else(String::new, |facts| {
        let manager = facts.manager.map_or_else(String::new, |m| format!(" ({m})"));
        format!("{}/{}{manager}, ", facts.vmm, facts.accel)
    });
    let home = home.map_or_else(|| "home open".to_owned(), |node| format!("home node {node}"));
    let head = format!("{}: {kind}pid {}, {home}", printable(&vm.name), vm.id);
    let mut text = hanging(&head, width);
    let load = format!(
        "{}, used {}, steal {} CPUs{}; {}",
        plural(vm.vcpus.len(), "vCPU"),
        vm.busy().milli_of(snapshot.window),
        vm.steal().milli_of(snapshot.window),
        quota(vm, facts, snapshot.window).map_or_else(String::new, |said| format!(", {said}")),
        memory_since(observed, vm),
    );
    text.push_str(&indented(&wrapped(&load, width - 2), 2));
    if let Some(uuid) = &vm.uuid {
        text.push_str(&indented(&wrapped(&format!("UUID {uuid}"), width - 2), 2));
    }
    text.push_str(&placed_line(observed, vm, width));
    text + &vcpu_table(vm, snapshot.window)
}

fn vcpu_table(vm: &Vm, window: Nanos) -> String {
    let row = |vcpu: &Vcpu| {
        vec![
            vcpu.index.to_string(),
            vcpu.tid.to_string(),
            vcpu.cpu.map_or_else(|| "?".to_owned(), |cpu| cpu.to_string()),
            percent(vcpu.busy.milli_of(window)),
            percent(vcpu.steal.milli_of(window)),
            vcpu.allowed.to_string(),
        ]
    };
    let head = [
        ("vCPU", Side::Right),
        (" thread", Side::Right),
        ("CPU", Side::Right),
        (" used", Side::Right),
        ("steal", Side::Right),
        ("allowed", Side::Left),
    ];
    let rows: Vec<_> = vm.vcpus.iter().map(row).collect();
    aligned(&head, &rows, Spacing { indent: 2, gap: 2 })
}

/// CPUs that a quota kept from a VM; `-` for one that has no quota.
fn throttled(vm: &Vm, window: Nanos) -> String {
    let is_limited = vm.quota.is_some() || vm.throttled.0 > 0;
    if is_limited { vm.throttled.milli_of(window).to_string() } else { "-".to_owned() }
}

/// The quota of a VM and what that kept from it.
fn quota(vm: &Vm, facts: Option<&VmFacts>, window: Nanos) -> Option<String> {
    let throttled = vm.throttled.milli_of(window);
    match vm.quota {
        Some(quota) => Some(format!("throttled {throttled} CPUs by {}", quota_named(quota, facts))),
        None => (throttled.0 > 0).then(|| format!("throttled {throttled} CPUs")),
    }
}

/// What it has from Instep, or nothing.
fn placed_line(observed: &Observed, vm: &Vm, width: usize) -> String {
    let placed = held::placed(observed, vm);
    placed.map_or_else(String::new, |placed| {
        indented(&wrapped(&placed.drawn(SystemTime::now()), width - 2), 2)
    })
}

/// The settings of a VM, each with where it was said, or nothing.
fn settings_line(settings: &[Chosen], width: usize) -> String {
    if settings.is_empty() {
        return String::new();
    }
    let each: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let line = printable(&format!("settings: {}", each.join(", ")));
    indented(&wrapped(&line, width - 2), 2)
}

/// A VM among many: one row.
fn vm_row(observed: &Observed, vm: &Vm, home: Option<NodeId>, names: usize) -> String {
    let snapshot = &observed.snapshot;
    let total = vm.memory_total();
    let there = home
        .filter(|_| total.0 > 0)
        .map(|node| format!("{}%", u128::from(vm.memory_on(node).0) * 100 / u128::from(total.0)));
    let cells = [
        vm.id.to_string(),
        vm.vcpus.len().to_string(),
        vm.busy().milli_of(snapshot.window).to_string(),
        vm.steal().milli_of(snapshot.window).to_string(),
        throttled(vm, snapshot.window),
        home.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        if total.0 == 0 { "?".to_owned() } else { total.to_string() },
        there.unwrap_or_else(|| "-".to_owned()),
    ];
    row(&shortened(&printable(&vm.name), names), names, cells) + "\n"
}

/// Columns of a row besides the name.
const ROW: usize = 62;

fn row(name: &str, names: usize, cells: [String; 8]) -> String {
    let [pid, vcpus, used, steal, throttled, home, memory, there] = cells;
    format!(
        "{name:<names$} {pid:>8} {vcpus:>5} {used:>7} {steal:>7} {throttled:>9} {home:>4} {memory:>8} \
         {there:>5}"
    )
}

/// Its memory; where this user may not read that, as a run tells it.
fn memory_since(observed: &Observed, vm: &Vm) -> String {
    let is_read = facts_of(&observed.scan, vm).is_some_and(|facts| facts.memory.is_some());
    let is_told = observed.seen.is_some() && !is_read && vm.memory_total().0 > 0;
    let since = if is_told { " after the run's last cycle" } else { "" };
    format!("{}{since}", memory(vm))
}

fn memory(vm: &Vm) -> String {
    let total = vm.memory_total().0;
    if total == 0 {
        return "memory unknown".to_owned();
    }
    let parts = vm.memory.iter().filter(|(_, bytes)| bytes.0 != 0).map(|(node, bytes)| {
        format!("{bytes} on node {node} ({}%)", u128::from(bytes.0) * 100 / u128::from(total))
    });
    format!("memory {}", parts.collect::<Vec<_>>().join(", "))
}

fn empty(observed: &Observed, width: usize) -> String {
    if observed.xen.is_some() {
        return "No domain runs on this Xen host, not even dom0.\n".to_owned();
    }
    let text = format!("No VM runs here: {}.", observed.scan.looked);
    let next = "`instep demo` shows what Instep does on an emulated host.";
    indented(&wrapped(&text, width), 0) + &indented(&wrapped(next, width), 0)
}

fn hanging(line: &str, width: usize) -> String {
    let mut lines = wrapped(line, width - 4).into_iter();
    let first = lines.next().unwrap_or_default();
    format!("{first}\n") + &indented(&lines.collect::<Vec<_>>(), 4)
}

pub(super) fn percent(milli: Milli) -> String {
    format!("{}%", (milli.0.min(1000) + 5) / 10)
}
