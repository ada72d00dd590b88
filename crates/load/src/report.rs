//! One line of JSON from two samples, schema `instep.load/1`. `--help` of each mode describes its fields.

use crate::clock::Usage;
use crate::error::LoadError;
use crate::frame::{COUNTERS, Mode, Plan};
use crate::histogram::Tally;
use crate::json::Object;
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
    let mut line = Object::new();
    line.text("schema", "instep.load/1").text("mode", M::NAME).truth("total", total);
    line.number("threads", plan.threads as u64).number("t_ns", now.t_ns);
    line.text("work_unit", M::WORK).number("work", work).decimal("rate_per_s", rate);
    line.numbers("work_by_thread", &now.work);
    line.number("cpu_ns", now.usage.cpu_ns);
    line.number("voluntary_switches", now.usage.voluntary);
    line.number("involuntary_switches", now.usage.involuntary);
    for (name, counter) in M::COUNTERS.iter().zip(&now.counters) {
        line.number(name, *counter);
    }
    if let Some(name) = M::LATENCY {
        // The whole run has an exact maximum, a window only its bucket's.
        let tally = if total { now.latency.clone() } else { now.latency.since(&before.latency) };
        line.object(name, latency(&tally));
    }
    line.object("options", options(mode, plan));
    line.end()
}

fn latency(tally: &Tally) -> Object {
    let mut object = Object::new();
    object.number("count", tally.count()).number("mean", tally.mean());
    for (name, percent) in [("p50", 50), ("p90", 90), ("p99", 99)] {
        object.number(name, tally.percentile(percent));
    }
    object.number("max", tally.max());
    object
}

fn options<M: Mode>(mode: &M, plan: &Plan) -> Object {
    let mut object = Object::new();
    object.truth("pinned", !plan.cpus.is_empty()).number("seed", plan.seed);
    object.decimal("unit_ns", plan.scale.unit_ns());
    mode.options(&mut object);
    object
}

/// Writes a line at once, so that lines of several programs on one console stay whole.
pub(crate) fn write(out: &mut dyn Write, mut line: String) -> Result<(), LoadError> {
    line.push('\n');
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|source| LoadError::System { what: "write to standard output".to_owned(), source })
}
