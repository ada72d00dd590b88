//! What one cell came to: one case under one scheduler in one run, as plain data.
//!
//! Cells travel as JSON lines from the machine that ran them to where they are gathered. They may
//! come from a machine that somebody else made: numbers are checked where they are gathered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name under which the work alone is measured, under the kernel's default.
pub const ALONE: &str = "alone";

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BenchCell {
    /// The case's name.
    pub case: String,
    /// The scheduler's name, or [`ALONE`].
    pub scheduler: String,
    /// Which run, from 0.
    pub run: u32,
    /// Which boot of the machine: only cells of one boot are compared with each other's `alone`.
    pub boot: u32,
    /// Work per second; none when it failed.
    pub rate: Option<f64>,
    /// What the work is counted in.
    pub unit: String,
    /// Time for which it was counted, in seconds.
    pub seconds: f64,
    /// Fraction of the traced time in which siblings of the work were runnable on one CPU.
    pub stacking: Option<f64>,
    /// Mean part of the work's runnable vCPUs that ran while one did, of the traced time.
    #[serde(default)]
    pub co_run: Option<f64>,
    /// Competing modules (systems.md, 1, in windows of 100 ms) while the work was counted.
    pub competing_modules: Option<f64>,
    /// The worst of all windows of 1 s and all that ran: |part of the CPU time / fair part - 1|.
    pub share_error: Option<f64>,
    /// The worst of its windows for each that ran, the work first.
    #[serde(default)]
    pub share_errors: Vec<f64>,
    /// CPU time of each that ran per second, the work first.
    pub cpus: Vec<f64>,
    /// A guest did nothing at all, as its emulator is gone or stands still; `failed` names it. Every cell after
    /// this one would be worth nothing, too.
    #[serde(default)]
    pub stopped: bool,
    /// How late the work woke, median and 99th percentile, in nanoseconds.
    pub late_p50_ns: Option<u64>,
    /// The 99th percentile.
    pub late_p99_ns: Option<u64>,
    /// Time in the scheduler's BPF programs per context switch of the host, in nanoseconds.
    pub bpf_ns_per_switch: Option<f64>,
    /// Time of one run of such a program, in nanoseconds: of a scheduling event.
    #[serde(default)]
    pub bpf_ns_per_call: Option<f64>,
    /// The part of the CPUs' time spent in them, 0 to 1.
    #[serde(default)]
    pub bpf_cpu: Option<f64>,
    /// Context switches of the host per second.
    pub switches_per_s: Option<f64>,
    /// The part of the time in which emulated CPUs wanted to run and the machine below had none for them, 0
    /// to 1; none without emulation.
    #[serde(default)]
    pub diluted: Option<f64>,
    /// What the kernel calls the scheduler that was in force; none for its own.
    #[serde(default)]
    pub ops: Option<String>,
    /// Why there is no rate.
    pub failed: Option<String>,
    /// What else is worth knowing.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The cells of JSON lines, and how many lines are none.
pub fn parse_lines(text: &str) -> (Vec<BenchCell>, usize) {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let cells: Vec<BenchCell> =
        lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let bad = lines().count() - cells.len();
    (cells, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_travel_as_lines_and_others_are_counted() {
        let cell = BenchCell { case: "a".to_owned(), rate: Some(1.5), ..BenchCell::default() };
        let text = format!("{}\nnoise\n\n", serde_json::to_string(&cell).unwrap());
        assert_eq!(parse_lines(&text), (vec![cell], 1));
    }
}
