//! Results that Instep printed, as measures of subjects: `instep.analysis/1`, `instep.bench/1`,
//! `instep.sim/1`. One file holds one run or several: documents one after another, or in an array.

use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// What is measured: the same numbers again are the same run, copied.
const MEASURED: [&str; 2] = ["instep.analysis/1", "instep.bench/1"];
const WANTED: &str =
    "wanted is what `instep analyze --json`, `instep bench --json` or `instep sim --json` prints";
/// No result is as large.
const MAX_FILE: u64 = 256 << 20;

/// Which way a measure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Higher,
    Lower,
    /// It says what happened, not how well.
    Neither,
}

/// One measure of one subject in one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// `VM db`, `host`, `case spin-100us, instep`.
    pub(super) subject: String,
    pub(super) measure: &'static str,
    pub(super) better: Better,
    pub(super) value: f64,
    /// The least and the most of the runs that `value` is the median of, where that is all the document
    /// tells of them.
    pub(super) range: Option<(f64, f64)>,
    /// Each of these runs; empty where the document does not tell.
    pub(super) samples: Vec<f64>,
    /// How many runs these were.
    pub(super) of: usize,
}

/// What one file holds.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) file: String,
    pub(super) schema: String,
    pub(super) runs: Vec<Vec<Reading>>,
    /// Analyses and benches that are there more than once, and were taken once: what is measured twice
    /// has different times, so the same numbers again are no second run.
    pub(super) repeated: usize,
    /// Subjects of which one run had several: they are numbered.
    pub(super) namesakes: BTreeSet<String>,
}

impl Input {
    /// Reads a file; `-` is no file here, for both sides would be it.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|opened| opened.take(MAX_FILE).read_to_end(&mut bytes))
            .with_context(|| format!("cannot read {file}"))?;
        let text = String::from_utf8(bytes).ok();
        let text = text.with_context(|| {
            format!("{file} is no JSON; {WANTED}: of a recording, instep analyze --json {file}")
        })?;
        Self::parse(&file, &text)
    }

    /// Reads the text of a file.
    pub(super) fn parse(file: &str, text: &str) -> anyhow::Result<Self> {
        let mut documents = Vec::new();
        for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            match document.with_context(|| format!("{file} is no JSON; {WANTED}"))? {
                Value::Array(several) => documents.extend(several),
                one => documents.push(one),
            }
        }
        let schema_of = |document: &Value| document["schema"].as_str().unwrap_or("").to_owned();
        let schema = documents.first().map(schema_of);
        let schema = schema.with_context(|| format!("{file} is empty; {WANTED}"))?;
        let (mut runs, mut repeated, mut namesakes) = (Vec::new(), 0, BTreeSet::new());
        for (number, document) in documents.iter().enumerate() {
            let own = schema_of(document);
            anyhow::ensure!(own == schema, "{file} holds both {schema} and {own}; {WANTED}");
            if MEASURED.contains(&own.as_str()) && documents[..number].contains(document) {
                repeated += 1;
                continue;
            }
            let readings = match own.as_str() {
                "instep.analysis/1" => analysis(document),
                "instep.sim/1" => sim(document),
                "instep.bench/1" => bench(document),
                _ => anyhow::bail!("{file}: its schema `{own}` cannot be compared; {WANTED}"),
            };
            runs.push(numbered(readings, &mut namesakes));
        }
        Ok(Input { file: file.to_owned(), schema, runs, repeated, namesakes })
    }
}

/// Two subjects of one name are two, and no two runs of one: from the second on they have numbers.
fn numbered(mut readings: Vec<Reading>, namesakes: &mut BTreeSet<String>) -> Vec<Reading> {
    let mut seen = BTreeMap::<(String, &'static str), usize>::new();
    for reading in &mut readings {
        let count = seen.entry((reading.subject.clone(), reading.measure)).or_default();
        *count += 1;
        if *count > 1 {
            namesakes.insert(reading.subject.clone());
            reading.subject = format!("{} ({count})", reading.subject);
        }
    }
    readings
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Appends measures that are there and finite.
fn push(
    out: &mut Vec<Reading>,
    subject: &str,
    measure: &'static str,
    better: Better,
    value: Option<f64>,
) {
    if let Some(value) = value.filter(|value| value.is_finite()) {
        let subject = subject.to_owned();
        let (range, samples) = (None, Vec::new());
        out.push(Reading { subject, measure, better, value, range, samples, of: 1 });
    }
}

fn analysis(document: &Value) -> Vec<Reading> {
    use Better::{Higher, Lower, Neither};
    let mut out = Vec::new();
    let seconds = document["duration_ns"].as_f64().map(|nanos| nanos / 1e9);
    let rate = |count: Option<f64>| Some(count? / seconds.filter(|seconds| *seconds > 0.0)?);
    for vm in list(document, "vms") {
        let subject = format!("VM {}", vm["name"].as_str().unwrap_or("?"));
        // Of a VM that is known in part nothing is compared.
        let sum = |key: &str| -> Option<f64> {
            let vcpus = list(vm, "vcpus").iter();
            vcpus.map(|vcpu| vcpu[key].as_f64()).sum::<Option<f64>>()
        };
        let times = sum("run_ns").zip(sum("steal_ns")).filter(|(run, steal)| run + steal > 0.0);
        let mut add = |measure, better, value| push(&mut out, &subject, measure, better, value);
        add("CPUs used", Neither, rate(sum("run_ns").map(|run| run / 1e9)));
        add("steal / wanted", Lower, times.map(|(run, steal)| steal / (run + steal)));
        add("stacking", Lower, vm["stacking"].as_f64());
        add("co-run", Higher, vm["co_run"].as_f64());
        add("skew up to, ms", Lower, vm["max_skew_ns"].as_f64().map(|nanos| nanos / 1e6));
        add("moves/s", Neither, rate(sum("migrations")));
        let held = vm["held_up"]["held_ns"].as_f64().map(|nanos| nanos / 1e9);
        add("held up", Lower, rate(held));
        let kinds = ["sibling", "io", "timer", "other"];
        let woken = kinds.iter().filter_map(|kind| vm["wakeups"][kind]["count"].as_f64()).sum();
        add("wake-ups/s", Neither, rate(Some(woken)));
    }
    push(
        &mut out,
        "host",
        "competing modules",
        Lower,
        document["host"]["competing_modules"].as_f64(),
    );
    out
}

fn sim(document: &Value) -> Vec<Reading> {
    use Better::{Higher, Lower, Neither};
    let mut out = Vec::new();
    for vm in list(document, "vms") {
        let subject = format!("VM {}", vm["name"].as_str().unwrap_or("?"));
        let measures = [
            ("fair-share speed", "fair_share_speed", Higher),
            ("work/s", "throughput", Higher),
            ("stacking", "stacking", Lower),
            ("co-run", "co_run", Higher),
            ("steal", "steal", Neither),
            ("spinning", "spinning", Lower),
            ("locality", "locality", Higher),
            ("moves/s", "migrations_per_s", Neither),
        ];
        for (measure, key, better) in measures {
            push(&mut out, &subject, measure, better, vm[key].as_f64());
        }
    }
    let host = &document["host"];
    push(&mut out, "host", "competing modules", Lower, host["competing_modules"].as_f64());
    push(&mut out, "host", "switches/s", Neither, host["switches_per_s"].as_f64());
    out
}

fn bench(document: &Value) -> Vec<Reading> {
    use Better::{Higher, Lower, Neither};
    let mut out = Vec::new();
    let all_runs = count(&document["runs"]);
    for case in list(document, "cases") {
        let name = case["name"].as_str().unwrap_or("?");
        for (scheduler, result) in case["results"].as_object().into_iter().flatten() {
            let subject = format!("{name}, {scheduler}");
            let measures = [
                ("fair-share speed", "fair_share_speed", Higher),
                ("work/s", "rate", Higher),
                ("stacking", "stacking", Lower),
                ("competing modules", "competing_modules", Lower),
                ("share error", "share_error", Lower),
                ("wake-up p99, ns", "wake_p99_ns", Lower),
                ("BPF ns/call", "bpf_ns_per_call", Lower),
                ("BPF CPU", "bpf_cpu", Lower),
                ("BPF ns/switch", "bpf_ns_per_switch", Lower),
                ("switches/s", "switches_per_s", Neither),
            ];
            for (measure, key, better) in measures {
                let beside = &result[format!("{key}_samples")];
                let (range, samples, of) = spread(&result[key], beside);
                let of = of.or(all_runs).unwrap_or(1);
                let value = number(&result[key]).or_else(|| number(&result[key]["median"]));
                let subject = subject.clone();
                let reading =
                    |value| Reading { subject, measure, better, value, range, samples, of };
                out.extend(value.map(reading));
            }
        }
    }
    out
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// The runs that a number with them `beside` it, or a median with them inside, is of: each, else the
/// least and the most, and how many where that is known.
fn spread(value: &Value, beside: &Value) -> (Option<(f64, f64)>, Vec<f64>, Option<usize>) {
    let each = value["samples"].as_array().or_else(|| beside.as_array());
    let samples: Vec<f64> = each.into_iter().flatten().filter_map(number).collect();
    if !samples.is_empty() {
        let of = Some(samples.len());
        return (None, samples, of);
    }
    let of = count(&value["runs"]);
    let range = number(&value["min"]).zip(number(&value["max"]));
    (range.filter(|(min, max)| of != Some(1) || min < max), samples, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIM: &str = r#"{"schema":"instep.sim/1","vms":[{"name":"a","stacking":0.5}]}"#;

    #[test]
    fn several_runs_are_one_after_another_or_in_an_array() {
        for text in [format!("{SIM}\n{SIM}"), format!("[{SIM},{SIM}]")] {
            let side = Input::parse("f", &text).unwrap();
            assert_eq!((side.runs.len(), side.schema.as_str()), (2, "instep.sim/1"));
            assert_eq!(side.runs[0], side.runs[1]);
            assert_eq!((side.runs[0][0].measure, side.runs[0][0].value), ("stacking", 0.5));
        }
    }

    #[test]
    fn a_bench_brings_each_run_or_its_ranges() {
        let text = r#"{"schema":"instep.bench/1","cases":[{"name":"c","results":{"instep":
            {"fair_share_speed":{"median":0.9,"min":0.8,"max":1.0,"runs":5},"stacking":0,
            "stacking_samples":[0,0,0.5],"bpf_ns_per_call":{"median":700.0,"min":600.0,"max":800.0,
            "runs":3,"samples":[800.0,600.0,700.0]}}}}]}"#;
        let side = Input::parse("f", text).unwrap();
        let [speed, stacking, cost] = &side.runs[0][..] else { panic!("{side:?}") };
        assert_eq!((cost.measure, cost.value, cost.range), ("BPF ns/call", 700.0, None));
        assert_eq!((&cost.samples[..], cost.of), (&[800.0, 600.0, 700.0][..], 3));
        assert_eq!((speed.value, speed.range, speed.of), (0.9, Some((0.8, 1.0)), 5));
        assert!(speed.samples.is_empty());
        assert_eq!((stacking.subject.as_str(), stacking.range), ("c, instep", None));
        assert_eq!((stacking.value, &stacking.samples[..]), (0.0, &[0.0, 0.0, 0.5][..]));
    }

    #[test]
    fn what_cannot_be_compared_names_what_is_wanted() {
        for wrong in ["", "x", "{}", r#"{"schema":"x/1"}"#, "[]", "7"] {
            let error = format!("{:#}", Input::parse("f", wrong).unwrap_err());
            assert!(error.starts_with('f') && error.contains("instep analyze --json"), "{error}");
        }
        let mixed = format!(r#"{SIM}{{"schema":"instep.bench/1"}}"#);
        assert!(Input::parse("f", &mixed).is_err());
    }
}
