//! What a benchmark came to, as plain data. Its JSON is schema `instep.bench/1`: fractions from 0,
//! rates per second, times in nanoseconds.

use crate::case::GuestKind;
use crate::cell::BenchCell;
use crate::plan::Scheduler;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The mark of figures that are diluted.
pub const DILUTED: char = '*';

/// The schema's name.
pub const SCHEMA: &str = "instep.bench/1";

/// What part of the time emulated CPUs may wait without a word.
const MUCH: f64 = 0.05;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Bench")]
pub struct BenchReport {
    /// [`SCHEMA`].
    #[schemars(extend("const" = "instep.bench/1"))]
    pub schema: String,
    /// The release of the kernel that ran it.
    pub kernel: String,
    /// The most CPUs that a case had.
    pub cpus: u32,
    /// What it ran on: an emulated host or this machine, and by which clock.
    pub machine: String,
    /// What this cannot show.
    pub does_not_show: String,
    /// Runs of every cell that were asked for.
    pub runs: u32,
    /// How often a machine was booted for it; 0 on the machine itself.
    pub boots: u32,
    /// Seconds before counting began.
    pub settle_s: f64,
    /// Seconds of counting.
    pub measure_s: f64,
    /// Who took part, or could not.
    pub schedulers: Vec<TookPart>,
    /// The cases.
    pub cases: Vec<CaseReport>,
    /// What makes the above uncertain.
    pub warnings: Vec<String>,
}

/// One scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct TookPart {
    /// Its name.
    pub name: String,
    /// Its version or program, where known.
    pub version: Option<String>,
    /// Why it took no part.
    pub why_not: Option<String>,
}

impl BenchOutcome {
    /// Whether this machine's other work made its figures worth little.
    pub fn is_diluted(&self) -> bool {
        self.diluted.as_ref().is_some_and(Spread::is_diluted)
    }
}

impl TookPart {
    /// All of these: why they could not is told by `absent`, or by cells that failed without exception.
    pub fn all(
        schedulers: &[Scheduler],
        absent: &BTreeMap<String, String>,
        cells: &[BenchCell],
    ) -> Vec<Self> {
        let one = |scheduler: &Scheduler| {
            let own = || cells.iter().filter(|cell| cell.scheduler == scheduler.name);
            let failures = || own().filter_map(|cell| cell.failed.as_ref());
            let none = own().count() > 0 && failures().count() == own().count();
            let why_not = absent.get(&scheduler.name);
            Self {
                name: scheduler.name.clone(),
                version: own().find_map(|cell| cell.ops.clone()),
                why_not: why_not.cloned().or_else(|| failures().next().filter(|_| none).cloned()),
            }
        };
        schedulers.iter().map(one).collect()
    }
}

/// One case.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "BenchCase")]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// How its work is run.
    pub kind: GuestKind,
    /// The CPUs it had.
    pub cpus: u32,
    /// The vCPUs of the work.
    pub vcpus: u32,
    /// The fair share of its speed alone.
    pub share: f64,
    /// What the work is counted in.
    pub unit: String,
    /// The rate alone.
    pub alone: Option<Spread>,
    /// What it came to, by scheduler.
    pub results: BTreeMap<String, BenchOutcome>,
}

/// A case under one scheduler.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BenchOutcome {
    /// Throughput / (fair share x throughput alone).
    pub fair_share_speed: Option<Spread>,
    /// The median rate / the default's median rate.
    pub beside_default: Option<f64>,
    /// Work per second.
    pub rate: Option<Spread>,
    /// Fraction of time in which siblings of the work were runnable on one CPU; the median.
    pub stacking: Option<f64>,
    /// It in each run.
    #[serde(default)]
    pub stacking_samples: Vec<f64>,
    /// Competing modules (systems.md, 1, in windows of 100 ms); the median. None without hardware threads.
    pub competing_modules: Option<f64>,
    /// They in each run.
    #[serde(default)]
    pub competing_modules_samples: Vec<f64>,
    /// Worst error of anybody's part of the CPU time in any window of 1 s.
    pub share_error: Option<Spread>,
    /// The same for each VM, the work first.
    #[serde(default)]
    pub share_error_by_vm: Vec<Spread>,
    /// Median lateness of the work's wake-ups.
    pub wake_p50_ns: Option<Spread>,
    /// 99th percentile of it.
    pub wake_p99_ns: Option<Spread>,
    /// Time in BPF programs per context switch of the host.
    pub bpf_ns_per_switch: Option<Spread>,
    /// Time of one run of a BPF program: of a scheduling event.
    #[serde(default)]
    pub bpf_ns_per_call: Option<Spread>,
    /// The part of the CPUs' time spent in BPF programs, 0 to 1.
    #[serde(default)]
    pub bpf_cpu: Option<Spread>,
    /// Context switches of the host per second.
    pub switches_per_s: Option<Spread>,
    /// The part of the time in which emulated CPUs waited for those of the machine below.
    #[serde(default)]
    pub diluted: Option<Spread>,
    /// Why runs have no result.
    pub failed: Vec<String>,
}

/// Median, least and most, and the values themselves.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Spread {
    /// The median; the mean of the middle two of an even number.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// Of how many.
    pub runs: usize,
    /// Each of them in the order of the runs; empty in documents of versions that did not keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

impl Spread {
    /// Of these values; those that are no finite numbers are left out. `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let samples: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let median = instep_report::stats::median(&samples)?;
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median, min, max, runs: samples.len(), samples })
    }

    /// Whether emulated CPUs that waited for those of the machine below in these parts of the time, 0 to 1, waited for so
    /// long that the figures mean little.
    pub fn is_diluted(&self) -> bool {
        self.median > MUCH || self.max > 4.0 * MUCH
    }
}

impl BenchReport {
    /// What the mark of diluted figures means; nothing where there are none.
    pub(crate) fn legend_of_dilution(&self) -> Option<String> {
        let mut all = self.cases.iter().flat_map(|case| case.results.values());
        all.any(BenchOutcome::is_diluted).then(|| {
            format!("{DILUTED} emulated CPUs had to wait for those of this machine: diluted, measure again")
        })
    }

    /// Adds what another one has: schedulers and cases that are not here yet, and results of a case
    /// under schedulers that it was not run under here.
    pub fn add(&mut self, other: BenchReport) {
        for took_part in other.schedulers {
            match self.schedulers.iter_mut().find(|own| own.name == took_part.name) {
                // Who could not take part in one could in the other.
                Some(own) if own.why_not.is_some() && took_part.why_not.is_none() => {
                    *own = took_part
                }
                Some(_) => {}
                None => self.schedulers.push(took_part),
            }
        }
        for case in other.cases {
            match self.cases.iter_mut().find(|own| own.name == case.name) {
                Some(own) => {
                    for (scheduler, outcome) in case.results {
                        own.results.entry(scheduler).or_insert(outcome);
                    }
                }
                None => self.cases.push(case),
            }
        }
        self.boots += other.boots;
        self.cpus = self.cpus.max(other.cpus);
        if self.kernel != other.kernel || self.machine != other.machine {
            let text = format!(
                "put together of kernel {} on {} and kernel {} on {}",
                self.kernel, self.machine, other.kernel, other.machine
            );
            self.warnings.push(text);
        }
        self.warnings.extend(other.warnings);
        self.warnings.dedup();
    }

    /// Whether every cell that was asked for has a result.
    pub fn is_complete(&self) -> bool {
        self.schedulers.iter().all(|took_part| took_part.why_not.is_none())
            && self.cases.iter().flat_map(|case| case.results.values()).all(|o| o.failed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_of_the_middle_and_what_is_no_number_is_left_out() {
        let spread = Spread::of([3.0, f64::NAN, 1.0, 2.0]).unwrap();
        let samples = vec![3.0, 1.0, 2.0];
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, runs: 3, samples });
        assert_eq!(Spread::of([1.0, 4.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([f64::INFINITY]), None);
    }

    fn report(case: &str, scheduler: &str) -> BenchReport {
        let results = [(scheduler.to_owned(), BenchOutcome::default())].into();
        let case = CaseReport { name: case.to_owned(), results, ..CaseReport::default() };
        let took = TookPart { name: scheduler.to_owned(), ..TookPart::default() };
        BenchReport {
            cases: vec![case],
            schedulers: vec![took],
            boots: 1,
            ..BenchReport::default()
        }
    }

    #[test]
    fn reports_of_parts_make_one_of_the_whole() {
        let mut all = report("a", "default");
        all.add(report("b", "default"));
        all.add(report("a", "instep"));
        let names: Vec<&str> = all.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!((names, all.boots, all.schedulers.len()), (vec!["a", "b"], 3, 2));
        assert_eq!(all.cases[0].results.len(), 2);
        assert!(all.warnings.is_empty() && all.is_complete());
    }

    #[test]
    fn a_report_is_the_same_after_its_journey_as_json() {
        let mut report = report("a", "default");
        report.cases[0].alone = Spread::of([1.0, 2.0]);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report);
    }

    #[test]
    fn each_run_is_in_document_and_one_without_them_is_still_read() {
        let text = serde_json::to_string(&Spread::of([2.0, 1.0])).unwrap();
        assert!(text.ends_with(r#""runs":2,"samples":[2.0,1.0]}"#), "{text}");
        let old = r#"{"median":1.5,"min":1.0,"max":2.0,"runs":2}"#;
        let read: Spread = serde_json::from_str(old).unwrap();
        assert_eq!((read.median, read.samples.len()), (1.5, 0));
        assert_eq!(serde_json::to_string(&read).unwrap(), old, "none are made up");
    }
}
