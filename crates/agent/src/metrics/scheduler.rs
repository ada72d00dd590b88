//! The families of metrics of the kernel scheduler itself: what it counts, its programs, its domains, CPU limits.
//!
//! Each is bounded: by the kinds of events, by [`MOST_PROGRAMS`], by the 64 scheduling domains, and by the
//! limits that what is in force lists.

use super::exposition::MetricKind::{Counter, Gauge};
use super::exposition::{Page, cut};
use super::seconds;
use crate::dispatch::LimitInForce;
use crate::dispatch::in_force::InForce;
use instep_core::units::Nanos;
use std::collections::BTreeMap;

/// The most programs with samples; the scheduler has half as many.
const MOST_PROGRAMS: usize = 64;

pub(super) fn write_families(page: &mut Page, in_force: &InForce) {
    let name = "instep_scheduler_events_total";
    page.begin(name, Counter, "What Instep's scheduler counted since it was loaded.");
    for (event, count) in &in_force.counters {
        page.sample(name, &[("event", event)], *count as f64);
    }
    write_programs(page, in_force);
    write_domains(page, in_force);
    write_limits(page, in_force);
}

/// How often each operation was done and how long that took.
fn write_programs(page: &mut Page, in_force: &InForce) {
    // The kernel cuts names, so two programs may have the same.
    let mut programs: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for program in &in_force.programs {
        let its = programs.entry(cut(&program.name)).or_default();
        *its = (its.0.saturating_add(program.runs), its.1.saturating_add(program.run_ns));
    }
    let programs = || programs.iter().take(MOST_PROGRAMS).filter(|(_, its)| its.0 > 0);
    let name = "instep_scheduler_program_runs_total";
    page.begin(name, Counter, "How often a BPF program of Instep's scheduler ran.");
    for (program, (runs, _)) in programs() {
        page.sample(name, &[("program", program)], *runs as f64);
    }
    let name = "instep_scheduler_program_seconds_total";
    page.begin(name, Counter, "CPU time of a BPF program of Instep's scheduler.");
    for (program, (_, run_ns)) in programs() {
        page.sample(name, &[("program", program)], seconds(Nanos(*run_ns)));
    }
}

/// The clocks of the domains.
fn write_domains(page: &mut Page, in_force: &InForce) {
    let name = "instep_domain_clock_seconds_total";
    page.begin(name, Counter, "The clock of virtual time of a scheduling domain.");
    for domain in &in_force.domains {
        let (number, node) = (domain.domain.to_string(), domain.node.to_string());
        let labels = [("domain", number.as_str()), ("node", &node)];
        page.sample(name, &labels, seconds(Nanos(domain.clock_ns)));
    }
    let clocks = || in_force.domains.iter().map(|domain| domain.clock_ns);
    if let (Some(first), Some(last)) = (clocks().max(), clocks().min()) {
        let help =
            "How far the clock of the domain that is furthest ahead is before that of the last.";
        page.single(
            "instep_scheduler_clock_spread_seconds",
            Gauge,
            help,
            seconds(Nanos(first - last)),
        );
    }
}

/// CPU limits of cgroups, and for how long they held threads that belong to no VM.
fn write_limits(page: &mut Page, in_force: &InForce) {
    let held = in_force.domains.iter().map(|domain| domain.host_held_ns).sum();
    let help = "Time for which CPU limits of cgroups held threads that belong to no VM.";
    page.single("instep_host_held_seconds_total", Counter, help, seconds(Nanos(held)));
    let name = "instep_cgroup_limit_cpus";
    page.begin(
        name,
        Gauge,
        "CPUs that the limit of a cgroup allows; of 64 cgroups at most, those in which VMs run first.",
    );
    // No two with the same label: paths may be cut.
    let limits: BTreeMap<&str, &LimitInForce> =
        in_force.limits.iter().map(|limit| (cut(&limit.cgroup), limit)).collect();
    for (cgroup, limit) in &limits {
        page.sample(name, &[("cgroup", cgroup)], limit.milli_cpus as f64 / 1000.0);
    }
    let name = "instep_cgroup_held_seconds_total";
    page.begin(
        name,
        Counter,
        "Time for which the limit of a cgroup held threads, of which it is the nearest limit.",
    );
    for (cgroup, limit) in &limits {
        page.sample(name, &[("cgroup", cgroup)], seconds(Nanos(limit.held_ns)));
    }
}
