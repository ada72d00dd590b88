//! Whole hosts under Instep's scheduler: a small part of what `cargo xtask bench scale` measures, and the
//! scenarios that show defects of the scheduler before gang slots.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::report::{SimulatedVm, SimulationReport};
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use rayon::prelude::*;

/// What is measured of a VM.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// The fair-share speed.
    Speed,
    /// The longest wait of a vCPU for a CPU, ms.
    WaitMs,
    /// How late a timer's thread wakes, mean and most, ms.
    LateMeanMs,
    LateMostMs,
}

impl Measure {
    fn of(self, vm: &SimulatedVm) -> f64 {
        let late = |at: usize| vm.late_ns.expect("it has a timer")[at] as f64 / 1e6;
        match self {
            Self::Speed => vm.fair_share_speed.expect("it has a speed"),
            Self::WaitMs => vm.wait.max_ns as f64 / 1e6,
            Self::LateMeanMs => late(0),
            Self::LateMostMs => late(1),
        }
    }
}

/// All VMs whose names begin so must have at least, or at most, this.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(&'static str, Measure, f64),
    AtMost(&'static str, Measure, f64),
}

impl Bound {
    /// What the worst VM has, and whether that is within the bound.
    fn check(self, report: &SimulationReport) -> (f64, bool) {
        let values = |name: &str, measure: Measure| {
            let named = report.vms.iter().filter(|vm| vm.name.starts_with(name));
            named.map(|vm| measure.of(vm)).collect::<Vec<f64>>()
        };
        match self {
            Self::AtLeast(name, measure, bound) => {
                let worst = values(name, measure).into_iter().fold(f64::INFINITY, f64::min);
                (worst, worst.is_finite() && worst >= bound)
            }
            Self::AtMost(name, measure, bound) => {
                let worst = values(name, measure).into_iter().fold(-1.0, f64::max);
                (worst, (0.0..=bound).contains(&worst))
            }
        }
    }
}

/// The text of a scenario that begins to be measured after 400 ms, for 1 s: `$NAME` is replaced.
fn short(text: &str, values: &[(&str, &str)]) -> String {
    let mut text = text.replace("\"$NOISE\"", "true");
    for (name, value) in values {
        text = text.replace(&format!("${name}"), value);
    }
    let time = |line: &&str| line.starts_with("duration = ") || line.starts_with("warmup = ");
    let rest = text.lines().filter(|line| !time(line)).collect::<Vec<_>>().join("\n");
    format!("duration = \"1s\"\nwarmup = \"400ms\"\n{rest}\n")
}

/// Simulates these scenarios and prints what was found; which bounds do not hold.
fn broken(cases: &[(String, String, Vec<Bound>)]) -> Vec<String> {
    let one = |(name, text, bounds): &(String, String, Vec<Bound>)| {
        let scenario = Scenario::parse(text).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let plan = SimulationPlan::new(&scenario, &|_| Err(String::new()));
        let report = plan.unwrap_or_else(|fault| panic!("{name}: {fault:?}")).report();
        let report = report.expect("nobody stops it");
        let found = bounds.iter().map(|bound| (bound, bound.check(&report)));
        let found = found.inspect(|(bound, (worst, _))| println!("{name}: {worst:.3}, {bound:?}"));
        let wrong = found.filter(|(_, (_, holds))| !holds);
        wrong.map(|(bound, (worst, _))| format!("{name}: {worst:.3}, {bound:?}")).collect()
    };
    cases.par_iter().map(one).collect::<Vec<Vec<String>>>().concat()
}

fn holds(cases: &[(String, String, Vec<Bound>)]) {
    assert_eq!(broken(cases), Vec::<String>::new());
}

/// One scenario of scenarios/scale.
fn case(
    name: &str,
    text: &str,
    values: &[(&str, &str)],
    bounds: &[Bound],
) -> (String, String, Vec<Bound>) {
    (name.to_owned(), short(text, values), bounds.to_vec())
}

macro_rules! scenario {
    ($name:literal) => {
        include_str!(concat!("../../../scenarios/scale/", $name, ".toml"))
    };
}

use Bound::{AtLeast, AtMost};
use Measure::{LateMeanMs, LateMostMs, Speed, WaitMs};

#[test]
fn pinned_ping_wakes_in_time_beside_a_wide_vm() {
    let bounds = [AtMost("pings", LateMeanMs, 1.0), AtMost("pings", LateMostMs, 10.0)];
    holds(&[case("pins", scenario!("pins"), &[], &bounds)]);
}

#[test]
fn no_vcpu_of_a_wide_vm_waits_longer_than_100_ms() {
    let bounds = [AtMost("", WaitMs, 100.0), AtLeast("", Speed, 0.45)];
    holds(&[case("wide-computes", scenario!("wide-computes"), &[], &bounds)]);
}

#[test]
fn wide_spinning_vm_and_vm_of_one_vcpu_exclude_neither() {
    let bounds = [AtLeast("wide", Speed, 0.4), AtLeast("single", Speed, 0.4)];
    holds(&[case("wide-spins", scenario!("wide-spins"), &[], &bounds)]);
}

#[test]
fn vm_that_blocks_and_is_wider_than_a_node_uses_several() {
    let bounds = [AtLeast("blocks", Speed, 0.6), AtLeast("computes", Speed, 1.2)];
    holds(&[case("wide-blocks", scenario!("wide-blocks"), &[], &bounds)]);
}

#[test]
fn vm_in_several_pools_leaves_gangs_on_each_node_their_share() {
    holds(&[case("pools", scenario!("pools"), &[], &[AtLeast("", Speed, 0.85)])]);
}

#[test]
fn pairs_entitled_to_all_they_want_and_wide_gangs_get_on() {
    holds(&[case("pairs", scenario!("pairs"), &[], &[AtLeast("", Speed, 0.8)])]);
}

#[test]
fn vcpu_with_io_does_not_hide_siblings_that_spin() {
    let case = |period| {
        let bounds = [AtLeast("spins", Speed, 0.9)];
        case(period, scenario!("hidden-spin"), &[("PERIOD", period)], &bounds)
    };
    holds(&["1ms", "5ms", "20ms"].map(case));
}

#[test]
fn spinning_vms_reach_their_speed_on_8_and_32_cpus() {
    let mut cases = Vec::new();
    for cpus in [8u32, 32] {
        for vcpus in [2, 4, 8] {
            for phase in ["100us", "1ms"] {
                let count = (cpus / vcpus).to_string();
                let text = scenario!("grid").replace("\"$P/$V*$TIMES\"", &count);
                let text = text.replace("\"$P\"", &cpus.to_string());
                let text = text.replace("\"$V\"", &vcpus.to_string());
                let name = format!("{cpus} CPUs, {vcpus} vCPUs, {phase}");
                let bounds = [AtLeast("spins", Speed, 0.93), AtMost("", WaitMs, 100.0)];
                cases.push(case(&name, &text, &[("PHASE", phase)], &bounds));
            }
        }
    }
    holds(&cases);
}

#[test]
fn vms_that_block_at_barriers_have_their_share_beside_gangs() {
    let case = |(phase, speed)| {
        let text = scenario!("blocking").replace("\"$P/$V\"", "2");
        let text = text.replace("\"$P\"", "16").replace("\"$V\"", "8");
        case(phase, &text, &[("PHASE", phase)], &[AtLeast("blocks", Speed, speed)])
    };
    holds(&[("200us", 0.93), ("1ms", 0.98)].map(case));
}

#[test]
fn vms_that_spin_before_they_block_are_found_to_be_gangs() {
    let text = scenario!("spin-then-block").replace("\"$P/$V\"", "2");
    let text = text.replace("\"$P\"", "16").replace("\"$V\"", "8");
    let bounds = [AtLeast("spins-then-blocks", Speed, 0.94), AtLeast("computes", Speed, 0.95)];
    holds(&[case("spin-then-block", &text, &[], &bounds)]);
}

#[test]
fn no_vcpu_waits_longer_than_100_ms_where_each_cpu_has_eight() {
    let case = |load| {
        let bounds = [AtMost("", WaitMs, 100.0), AtLeast("", Speed, 0.85)];
        case(load, scenario!("eight-a-cpu"), &[("LOAD", load)], &bounds)
    };
    holds(&["spin", "instep-load barrier --kind spin --phase 200us --imbalance 10%"].map(case));
}

#[test]
fn vms_that_block_on_full_nodes_stay_at_home() {
    let text = scenario!("homes").replace("\"$H\"", "5").replace("\"$T\"", "5");
    let all = [("A", "0-63"), ("B", "0-63"), ("H", "5"), ("T", "5")];
    // VMs that an affinity binds have 0.94. Those that spilled whenever a CPU was idle had 0.82.
    holds(&[case("homes", &text, &all, &[AtLeast("", Speed, 0.91)])]);
}

#[test]
fn no_thread_of_a_light_vm_waits_for_slots_of_gangs_to_pass() {
    let case = |burst| {
        let text = format!(
            "about = \"a light VM beside two gangs\"\nscheduler = \"instep\"\n[host]\ncores = 2\nmemory = \"8GiB\"\n\
             noise = true\n[[guest]]\nname = \"pings\"\nvcpus = 2\nmemory = \"1GiB\"\n\
             load = \"instep-load ping --period 5ms --burst {burst}\"\n\
             [[guest]]\nname = \"computes\"\ncount = 2\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n"
        );
        let bounds = [AtLeast("pings", Speed, 0.98), AtMost("pings", WaitMs, 6.0)];
        case(burst, &text, &[], &bounds)
    };
    holds(&["200us", "500us"].map(case));
}

#[test]
fn vms_of_a_host_with_room_are_as_fast_as_alone() {
    let bounds = [AtLeast("", Speed, 0.98)];
    holds(&[case("not-overcommitted", scenario!("not-overcommitted"), &[], &bounds)]);
}

#[test]
fn spinning_vms_of_unlike_sizes_all_get_on() {
    let bounds = [AtLeast("", Speed, 0.5), AtMost("", WaitMs, 100.0)];
    holds(&[case("sizes", scenario!("sizes"), &[], &bounds)]);
}
