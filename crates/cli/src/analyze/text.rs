//! An analysis for people, in at most `width` columns. Draws; measures nothing.

use crate::text::{indented, plural, printable, shortened, wrapped};
use instep_report::table::{Side, Spacing, aligned};
use instep_trace::analysis::report::{
    AnalysedCulprit, AnalysedVcpu, AnalysedVm, AnalysisReport, Histogram, Occupant, Sleeps,
};
use instep_trace::analysis::time;
use instep_trace::stream::counted;
use std::fmt::Write as _;

/// vCPUs of one VM that are listed one by one.
const MAX_ROWS: usize = 16;
/// Times at which a VM was held up; the JSON has more.
const MAX_PASSES: usize = 5;
/// Who ran instead: the rest is summed.
const MAX_CULPRITS: usize = 4;

/// Draws the report of the trace called `path`.
pub(super) fn draw(path: &str, report: &AnalysisReport, width: usize) -> String {
    let mut out = heading(path, report, width);
    for vm in &report.vms {
        out.push('\n');
        draw_vm(&mut out, vm, report, width);
    }
    matrix(&mut out, report, width);
    if report.host.has_single_cores {
        out.push_str("\nHost: competing modules 0, no core has two CPUs\n");
    } else if let Some(mean) = report.host.competing_modules {
        let _ = writeln!(out, "\nHost: competing modules {mean:.2}");
    }
    out.push('\n');
    if report.findings.is_empty() {
        out.push_str(match (report.events, report.vms.is_empty()) {
            (0, _) => "Findings: none, for the trace holds no event.\n",
            (_, true) => "Findings: none, for no VM was found in it: nothing was analysed.\n",
            _ => "Findings: none. No VM of this trace lost time worth mentioning.\n",
        });
        return out;
    }
    out.push_str("Findings, the most time lost first:\n");
    for (number, finding) in report.findings.iter().enumerate() {
        // What costs a time that cannot be measured has none.
        let lost = or_dash((finding.lost_ns > 0).then(|| time(finding.lost_ns)));
        let text = format!("{lost:>8}  {}", printable(&finding.text));
        for (line, text) in wrapped(&text, width.saturating_sub(6)).iter().enumerate() {
            let lead = if line == 0 { format!("{:>3}. ", number + 1) } else { " ".repeat(5) };
            let _ = writeln!(out, "{lead}{text}");
        }
    }
    out
}

fn heading(path: &str, report: &AnalysisReport, width: usize) -> String {
    let host = &report.host;
    let mut said = vec![format!("{}: {}", printable(path), host.format)];
    if let Some(name) = &host.hostname {
        said.push(format!("host {}", printable(name)));
    }
    if let Some(release) = &host.release {
        said.push(format!("Linux {}", printable(release)));
    }
    said.push(plural(host.cpus, "CPU"));
    said.push(format!("{} recorded", time(report.duration_ns)));
    said.push(format!("{} events, {}", report.events, lost(report)));
    said.push(plural(report.vms.len(), "VM"));
    let mut out = indented(&wrapped(&said.join(", "), width), 0);
    if report.trace.reordered > 0 {
        let line = format!(
            "{} after a later one of the same CPU{}",
            counted(report.trace.reordered, "event came", "events came"),
            // A warning says how many of all came too late for that.
            if report.trace.late == 0 { "; all are put in their places" } else { "" }
        );
        out.push_str(&indented(&wrapped(&line, width), 0));
    }
    out
}

/// `3 lost`, and at how many places nobody knows how many.
fn lost(report: &AnalysisReport) -> String {
    match (report.lost, report.trace.lost_places) {
        (lost, 0) => format!("{lost} lost"),
        (0, places) => format!("an unknown number lost at {}", plural(places as usize, "place")),
        (lost, places) => {
            format!("{lost} lost and an unknown number at {}", plural(places as usize, "place"))
        }
    }
}

fn draw_vm(out: &mut String, vm: &AnalysedVm, report: &AnalysisReport, width: usize) {
    let pid = vm.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
    let name = shortened(&printable(&vm.name), width / 2);
    let _ = writeln!(out, "{name}{pid}, {}", plural(vm.vcpus.len(), "vCPU"));
    let part =
        |of: Option<u64>| or_dash(of.map(|of| format!("{}%", percent(of, report.duration_ns))));
    let row = |vcpu: &AnalysedVcpu| {
        let times = [vcpu.run_ns, vcpu.steal_ns, vcpu.throttled_ns, vcpu.blocked_ns];
        let first = [vcpu.index.to_string(), vcpu.tid.to_string()];
        let times_then_moves = times.map(|ns| or_dash(ns.map(time))).into_iter();
        let times_then_moves = times_then_moves.chain([vcpu.migrations.to_string()]);
        first.into_iter().chain(times_then_moves).chain(times.map(part)).collect()
    };
    let head = [
        "vCPU", " thread", "    run", "   steal", "  throt", " blocked", " moves", " run", "steal",
        "throt", "blocked",
    ];
    let rows: Vec<_> = vm.vcpus.iter().take(MAX_ROWS).map(row).collect();
    let spacing = Spacing { indent: 2, gap: 1 };
    out.push_str(&aligned(&head.map(|title| (title, Side::Right)), &rows, spacing));
    if let Some(rest) = vm.vcpus.get(MAX_ROWS..).filter(|rest| !rest.is_empty()) {
        let sum =
            |of: fn(&AnalysedVcpu) -> Option<u64>| -> u64 { rest.iter().filter_map(of).sum() };
        let _ = writeln!(
            out,
            "  {} more: run {}, steal {}, throttled {}, blocked {} (--json lists each)",
            rest.len(),
            time(sum(|vcpu| vcpu.run_ns)),
            time(sum(|vcpu| vcpu.steal_ns)),
            time(sum(|vcpu| vcpu.throttled_ns)),
            time(sum(|vcpu| vcpu.blocked_ns)),
        );
    }
    for line in lines(vm, report) {
        out.push_str(&indented(&wrapped(&line, width - 4), 2));
    }
}

/// What is said of a VM below its table.
fn lines(vm: &AnalysedVm, report: &AnalysisReport) -> Vec<String> {
    let mut lines = vec![format!(
        "stacking {}, co-run {}, skew up to {}",
        or_dash(vm.stacking.map(|part| format!("{:.1} %", part * 100.0))),
        or_dash(vm.co_run.map(|part| format!("{part:.2}"))),
        or_dash(vm.max_skew_ns.map(time))
    )];
    lines.extend(culprits(vm));
    lines.extend(woken(vm));
    lines.extend(spread("sleeps", &vm.sleeps));
    lines.extend(spread("waits for a CPU", &vm.waits));
    lines.extend(moves(vm));
    lines.extend(halts(vm));
    lines.extend(held_up(vm, report));
    let periods = &vm.periods;
    if let (Some(used), Some(full), Some(efficiency)) =
        (periods.mean_use_ns, periods.full, periods.efficiency)
    {
        lines.push(format!(
            "used {} of {} per period of {} (share by {}); all of it in {} of {} periods; \
             efficiency {:.2}",
            time(used),
            time(periods.share_ns),
            time(report.host.period_ns),
            match periods.weight {
                Some(weight) => format!("weight {weight}"),
                None => "weight 100, as the trace has none".to_owned(),
            },
            full,
            periods.count,
            efficiency
        ));
    }
    lines
}

fn culprits(vm: &AnalysedVm) -> Option<String> {
    let all: u64 = vm.culprits.iter().map(|culprit| culprit.ns).sum();
    if all == 0 {
        return None;
    }
    let own = |culprit: &AnalysedCulprit| match culprit.who {
        Occupant::Siblings => "its own siblings".to_owned(),
        _ => printable(&culprit.name),
    };
    let mut said: Vec<String> = vm
        .culprits
        .iter()
        .take(MAX_CULPRITS)
        .map(|culprit| {
            format!("{} {} ({} %)", own(culprit), time(culprit.ns), percent(culprit.ns, all))
        })
        .collect();
    let rest: u64 = vm.culprits.iter().skip(MAX_CULPRITS).map(|culprit| culprit.ns).sum();
    if rest > 0 {
        said.push(format!("others {}", time(rest)));
    }
    Some(format!("while it waited ran: {}", said.join(", ")))
}

/// What ran while a VM waited: a row for each VM that waited, a column for each of those who took
/// the most. Nothing with one VM, whose own line says it all.
fn matrix(out: &mut String, report: &AnalysisReport, width: usize) {
    let rows: Vec<&AnalysedVm> =
        report.vms.iter().filter(|vm| !vm.culprits.is_empty()).take(MAX_ROWS).collect();
    if rows.len() < 2 {
        return;
    }
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for culprit in rows.iter().flat_map(|vm| &vm.culprits) {
        *sums.entry(&culprit.name).or_default() += culprit.ns;
    }
    let mut columns: Vec<(&str, u64)> = sums.into_iter().collect();
    columns.sort_by_key(|(name, ns)| (std::cmp::Reverse(*ns), *name));
    let (first, cell) = (16, 11);
    columns.truncate(width.saturating_sub(first + 2) / (cell + 1));
    let _ = write!(out, "\nWhat ran while a VM waited\n  {:first$}", "");
    for (name, _) in &columns {
        let _ = write!(out, " {:>cell$}", shortened(&printable(name), cell));
    }
    out.push('\n');
    for vm in rows {
        let _ = write!(out, "  {:first$}", shortened(&printable(&vm.name), first));
        for (name, _) in &columns {
            let ns = vm.culprits.iter().find(|culprit| culprit.name == *name);
            let shown = ns.map_or("-".to_owned(), |culprit| time(culprit.ns));
            let _ = write!(out, " {shown:>cell$}");
        }
        out.push('\n');
    }
}

fn woken(vm: &AnalysedVm) -> Option<String> {
    let table = &vm.wakeups;
    let kinds = [
        ("siblings", table.sibling),
        ("timer or device", table.timer),
        ("I/O threads", table.io),
        ("others", table.other),
    ];
    let one = |(name, sleeps): &(&str, Sleeps)| {
        format!("{name} {} after {} asleep", sleeps.count, time(sleeps.ns))
    };
    let said: Vec<String> = kinds.iter().filter(|kind| kind.1.count > 0).map(one).collect();
    (!said.is_empty()).then(|| format!("woken by: {}", said.join(", ")))
}

/// Below which durations a half, nine tenths and 99 of 100 lie. The last class has no upper end: what
/// lies in it is counted.
fn spread(what: &str, histogram: &Histogram) -> Option<String> {
    let all: u64 = histogram.iter().sum();
    if all == 0 {
        return None;
    }
    let last = histogram.len() - 1;
    let mut said = vec![format!("{what}: {all}")];
    for (name, thousandths) in [("half", 500), ("90 %", 900), ("99 %", 990)] {
        let mut seen = 0;
        let place = histogram.iter().position(|count| {
            seen += count;
            seen * 1000 >= all * thousandths
        });
        if let Some(place) = place.filter(|place| *place < last) {
            said.push(format!("{name} below {}", time(2000 << place)));
        }
    }
    if histogram[last] > 0 {
        said.push(format!("{} above {}", histogram[last], time(1000 << last)));
    }
    Some(said.join(", "))
}

/// Halts, and how many of them KVM ended while it polled.
fn halts(vm: &AnalysedVm) -> Option<String> {
    let halts = vm.halts.as_ref().filter(|halts| halts.count > 0)?;
    Some(format!(
        "{}; {} ended while KVM polled, {} in all, which counts as running",
        plural(halts.count as usize, "halt"),
        halts.polled,
        time(halts.polled_ns)
    ))
}

/// How often siblings held it up, and when first.
fn held_up(vm: &AnalysedVm, report: &AnalysisReport) -> Option<String> {
    let held = &vm.held_up;
    let at = |ns: &u64| format!("{:.2}s", *ns as f64 / 1e9);
    let mut times: Vec<String> = held.times_ns.iter().take(MAX_PASSES).map(at).collect();
    if held.passes > times.len() as u64 {
        times.push("...".to_owned());
    }
    (held.passes > 0).then(|| {
        format!(
            "held up {} ({}) by siblings that could run: sleeps beyond {}, at {}",
            plural(held.passes as usize, "time"),
            time(held.held_ns),
            time(report.host.ideal_interval_ns),
            times.join(", ")
        )
    })
}

fn moves(vm: &AnalysedVm) -> Option<String> {
    let moves = &vm.moves;
    if moves.total() == 0 {
        return None;
    }
    if moves.unknown == moves.total() {
        return Some(format!("ran on another CPU than before {} times", moves.unknown));
    }
    Some(format!(
        "ran on another CPU than before: {} in the core, {} in the LLC, {} in the node, {} in \
         another node",
        moves.within_core, moves.within_llc, moves.within_node, moves.across_nodes
    ))
}

/// What is not known is a dash.
fn or_dash(shown: Option<String>) -> String {
    shown.unwrap_or_else(|| "-".to_owned())
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 + u128::from(whole) / 2;
    percent.checked_div(u128::from(whole)).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_class_of_durations_has_no_upper_end() {
        let mut sleeps: Histogram = [0; 20];
        (sleeps[9], sleeps[18]) = (6, 2);
        let said = |sleeps: &Histogram| spread("sleeps", sleeps).unwrap();
        assert_eq!(
            said(&sleeps),
            "sleeps: 8, half below 1.02ms, 90 % below 524ms, 99 % below 524ms"
        );
        sleeps[19] = 2;
        assert_eq!(said(&sleeps), "sleeps: 10, half below 1.02ms, 2 above 524ms");
        assert_eq!(spread("sleeps", &[0; 20]), None);
    }
}
