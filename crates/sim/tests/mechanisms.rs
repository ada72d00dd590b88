//! Each mechanism of Instep's kernel scheduler is switched off here: a
//! measure of a small scenario is clearly worse without it, for the reason that its row says.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::RunTotals;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched::TunedValue;
use rayon::prelude::*;

/// VMs that are alike: how many, vCPUs of each, what each runs (throughput is that of the first load).
type Guests = (u32, u32, &'static [&'static str]);

/// What a VM runs that always wants all its CPUs.
const SPIN: &[&str] = &["spin"];

/// A host in the words of a scenario, its guests, and how long they run before they are measured and while they are,
/// milliseconds. The first guests are those that are looked at.
#[derive(Clone, Copy)]
struct Case {
    host: &'static str,
    guests: &'static [Guests],
    warmup_ms: u32,
    ms: u32,
    /// What else each guest has; `$N` stands for its number from 0.
    own: &'static str,
}

impl Case {
    /// What is measured, without this mechanism if one is named: the median of seeds 1 to 3.
    fn median(self, without: Option<&str>, measure: fn(&RunTotals) -> f64) -> f64 {
        let mut all: Vec<f64> = (1..4u64)
            .into_par_iter()
            .map(|seed| {
                let mut plan = self.plan(seed);
                if let Some(name) = without {
                    plan.tuning.insert(format!("without.{name}"), TunedValue::Switch(true));
                }
                measure(&plan.run())
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[1]
    }

    fn plan(self, seed: u64) -> SimulationPlan {
        let mut text = format!(
            "about = \"it\"\nseed = {seed}\nscheduler = \"instep\"\nwarmup = \"{}ms\"\n\
             duration = \"{}ms\"\n[host]\nmemory = \"8GiB\"\n{}\n",
            self.warmup_ms, self.ms, self.host
        );
        for (at, (count, vcpus, loads)) in self.guests.iter().enumerate() {
            text.push_str(&format!(
                "[[guest]]\nname = \"g{at}\"\ncount = {count}\nvcpus = {vcpus}\nmemory = \"512MiB\"\n\
                 load = {loads:?}\n{}\n",
                self.own.replace("$N", &at.to_string())
            ));
        }
        SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
    }
}

/// A mechanism and what it is for.
struct Row {
    /// Its name, as in `without = [...]` (docs/dispatch.md).
    mechanism: &'static str,
    /// Why it is worse without.
    why: &'static str,
    case: Case,
    /// What is measured, with its unit.
    what: &'static str,
    measure: fn(&RunTotals) -> f64,
    /// By how much it is larger with the mechanism, at least; where it is negative, smaller. About half of what
    /// was found. What they are worth at realistic size: docs/performance.md, "What each mechanism is worth".
    by: f64,
}

/// CPU time of a VM per time, in CPUs.
fn cpus(run: &RunTotals, vm: usize) -> f64 {
    run.vms[vm].2.sums.running as f64 / run.duration as f64
}

/// Units of its throughput that a VM does in a second.
fn rate(run: &RunTotals, vm: usize) -> f64 {
    run.throughput_milli(vm) as f64 / 1000.0
}

/// What a VM runs that spins at barriers.
const BARRIER: &[&str] = &["instep-load barrier --kind spin --phase 100us --imbalance 10%"];

static ROWS: [Row; 10] = [
    Row {
        mechanism: "cores",
        why: "vCPUs on a half empty host have a core each",
        case: Case {
            host: "cores = 16\nthreads = 2",
            guests: &[(4, 4, &["instep-load barrier --kind block --phase 1ms --imbalance 10%"])],
            warmup_ms: 500,
            ms: 1000,
            own: "",
        },
        what: "phases a second of all four",
        measure: |run| (0..4).map(|vm| rate(run, vm)).sum(),
        by: 300.0,
    },
    Row {
        mechanism: "gang",
        why: "siblings that spin for each other run at the same time",
        case: Case {
            host: "cores = 16",
            guests: &[(4, 4, BARRIER), (4, 4, SPIN)],
            warmup_ms: 500,
            ms: 1000,
            own: "",
        },
        what: "phases a second of the first",
        measure: |run| rate(run, 0),
        by: 1000.0,
    },
    Row {
        mechanism: "shares",
        why: "a wide VM beside a VM of one vCPU has all CPUs at once for a part of the time",
        case: Case {
            host: "cores = 16",
            guests: &[(1, 16, BARRIER), (1, 1, SPIN)],
            warmup_ms: 500,
            ms: 2000,
            own: "",
        },
        what: "phases a second of the wide VM",
        measure: |run| rate(run, 0),
        by: 500.0,
    },
    Row {
        mechanism: "wake",
        why: "a VM within its share that wakes up does not wait for the end of another's slice",
        case: Case {
            host: "cores = 8",
            guests: &[(1, 2, &["instep-load ping --period 10ms --burst 500us"]), (8, 2, SPIN)],
            warmup_ms: 500,
            ms: 2000,
            own: "",
        },
        what: "ms by which it wakes late",
        measure: |run| {
            let late = run.vms[0].2.lateness;
            late.ns as f64 / late.count as f64 / 1e6
        },
        by: -0.8,
    },
    Row {
        mechanism: "holes",
        why: "a wide VM that computes uses what a VM of one vCPU leaves",
        case: Case {
            host: "cores = 16",
            guests: &[(1, 16, SPIN), (1, 1, SPIN)],
            warmup_ms: 500,
            ms: 2000,
            own: "",
        },
        what: "CPUs that the wide VM has",
        measure: |run| cpus(run, 0),
        by: 2.0,
    },
    Row {
        mechanism: "moves",
        why: "of five gangs that have room for two side by side none has less than the others",
        case: Case {
            host: "cores = 8",
            guests: &[(5, 4, SPIN)],
            warmup_ms: 500,
            ms: 3000,
            own: "",
        },
        what: "CPUs that the one with the least has",
        measure: |run| (0..5).map(|vm| cpus(run, vm)).fold(f64::INFINITY, f64::min),
        by: 0.1,
    },
    Row {
        mechanism: "home",
        why: "a VM stays on the node where its memory lies",
        case: Case {
            host: "nodes = 2\ncores = 8",
            guests: &[
                (2, 4, &["instep-load barrier --kind block --phase 1ms --imbalance 10%"]),
                (2, 4, &["instep-load barrier --kind block --phase 1ms --imbalance 10%"]),
            ],
            warmup_ms: 500,
            ms: 1000,
            own: "home_node = $N\nstart = { memory_node = $N }\n\
                  profile = { memory = 400, set = \"256KiB\", mib_s = 200 }",
        },
        what: "phases a second of all four",
        measure: |run| (0..4).map(|vm| rate(run, vm)).sum(),
        by: 100.0,
    },
    Row {
        mechanism: "trial",
        why: "siblings that spin for a while before they block run at the same time",
        case: Case {
            host: "cores = 16",
            guests: &[
                (4, 4, &["instep-load barrier --kind spin-block --phase 200us --imbalance 10%"]),
                (4, 4, SPIN),
            ],
            warmup_ms: 1000,
            ms: 1000,
            own: "",
        },
        what: "phases a second of the first",
        measure: |run| rate(run, 0),
        by: 130.0,
    },
    Row {
        mechanism: "host",
        why: "threads of the host interrupt a gang on all its CPUs at once",
        case: Case {
            host: "cores = 16\nnoise = true",
            guests: &[(2, 16, BARRIER)],
            warmup_ms: 500,
            ms: 1000,
            own: "",
        },
        what: "phases a second of the first",
        measure: |run| rate(run, 0),
        by: 100.0,
    },
    Row {
        mechanism: "span",
        why: "a VM that is wider than a node has its CPUs at once, too",
        case: Case {
            host: "nodes = 2\ncores = 8",
            guests: &[(1, 12, BARRIER), (4, 4, SPIN)],
            warmup_ms: 500,
            ms: 1000,
            own: "",
        },
        what: "phases a second of the wide VM",
        measure: |run| rate(run, 0),
        by: 1000.0,
    },
];

#[test]
fn each_mechanism_is_worth_what_it_is_there_for() {
    let wrong: Vec<String> = ROWS
        .par_iter()
        .filter_map(|row| {
            let with = row.case.median(None, row.measure);
            let without = row.case.median(Some(row.mechanism), row.measure);
            let said = format!(
                "{}: {:.3} with, {:.3} without ({}): {}",
                row.mechanism, with, without, row.what, row.why
            );
            println!("{said}");
            // What is not a number is not enough.
            let enough = (with - without) * row.by.signum() >= row.by.abs();
            (!enough).then_some(said)
        })
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
}
