//! One line of JSON from two samples, schema `instep.load/1`. docs/load.md describes its fields.

use crate::clock::Usage;
use crate::error::LoadError;
use crate::frame::{COUNTERS, Mode, Plan};
use crate::histogram::Tally;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// All counters at one moment, since the start.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) t_ns: u64,
    pub(crate) work: Vec<u64>,
    pub(crate) counters: [u64; COUNTERS],
    pub(crate) latency: Tally,
    pub(crate) usage: Usage,
}

/// A line, apart from the mode's own counters.
#[derive(Serialize)]
struct Line<'a, O> {
    schema: &'static str,
    mode: &'static str,
    total: bool,
    threads: usize,
    t_ns: u64,
    work_unit: &'static str,
    work: u64,
    rate_per_s: f64,
    work_by_thread: &'a [u64],
    cpu_ns: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    #[serde(flatten)]
    counters: BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    latency: Option<BTreeMap<&'static str, Latency>>,
    options: Options<'a, O>,
}

#[derive(Serialize)]
struct Latency {
    count: u64,
    mean: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

#[derive(Serialize)]
struct Options<'a, O> {
    pinned: bool,
    seed: u64,
    unit_ns: f64,
    #[serde(flatten)]
    own: &'a O,
}

/// The line about the time from `before` to `now`.
pub(crate) fn line<M: Mode>(
    mode: &M,
    plan: &Plan,
    before: &Sample,
    now: &Sample,
    total: bool,
) -> String {
    let work = mode.together(&now.work);
    let seconds = now.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
    let rate = work.saturating_sub(mode.together(&before.work)) as f64 / seconds;
    // The whole run has an exact maximum, a window only its bucket's.
    let tally = if total { now.latency.clone() } else { now.latency.since(&before.latency) };
    let line = Line {
        schema: "instep.load/1",
        mode: M::NAME,
        total,
        threads: plan.threads,
        t_ns: now.t_ns,
        work_unit: M::WORK,
        work,
        rate_per_s: rounded(rate),
        work_by_thread: &now.work,
        cpu_ns: now.usage.cpu_ns,
        voluntary_switches: now.usage.voluntary,
        involuntary_switches: now.usage.involuntary,
        counters: M::COUNTERS.iter().copied().zip(now.counters).collect(),
        latency: M::LATENCY.map(|name| BTreeMap::from([(name, Latency::of(&tally))])),
        options: Options {
            pinned: !plan.cpus.is_empty(),
            seed: plan.seed,
            unit_ns: rounded(plan.scale.unit_ns()),
            own: mode.options(),
        },
    };
    // Keys are text, and numbers that are none are written as null.
    serde_json::to_string(&line).unwrap_or_default()
}

impl Latency {
    fn of(tally: &Tally) -> Self {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| tally.percentile(percent));
        Self { count: tally.count(), mean: tally.mean(), p50, p90, p99, max: tally.max() }
    }
}

/// A number of three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Writes a line at once, so that lines of several programs on one console stay whole.
pub(crate) fn write(out: &mut dyn Write, mut line: String) -> Result<(), LoadError> {
    line.push('\n');
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(LoadError::output)
}
