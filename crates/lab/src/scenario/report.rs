//! The result of a run as one JSON document, schema `instep.lab/1`.

use super::check::Check;
use super::evidence::LabObservation;
use crate::host::accel::Accel;
use crate::host::machine::{Clock, HostMachine};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The result of a run.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "Lab")]
pub struct LabReport {
    /// `instep.lab/1`.
    #[schemars(extend("const" = "instep.lab/1"))]
    pub schema: &'static str,
    /// The scenario's name.
    pub scenario: String,
    /// What it shows.
    pub about: String,
    /// The host's shape.
    pub host: HostMachine,
    /// The clock, and what its results are worth.
    pub clock: ClockReport,
    /// The emulated host's kernel.
    pub kernel: String,
    /// Whether KVM runs guests in it.
    pub kvm: bool,
    /// Its accelerator: this machine's KVM or software.
    pub accel: Accel,
    /// How often the run was begun: again when it was too slow, or the host or a guest died.
    pub attempts: u32,
    /// The guests that hung at boot and were started again, and the host that died there, once for each time.
    pub restarted: Vec<String>,
    /// How the earlier attempts ended, a line each.
    pub earlier: Vec<String>,
    /// How long it took, by this machine's clock.
    pub seconds: Seconds,
    /// The steps, in order.
    pub steps: Vec<StepReport>,
    /// What was observed, by name.
    pub observations: BTreeMap<String, LabObservation>,
    /// Where the guests' memory was, at every look, in order of time.
    pub samples: Vec<LabSample>,
    /// The JSON lines that the guests' loads printed, by guest.
    pub loads: BTreeMap<String, Vec<Value>>,
    /// What had to hold.
    pub checks: Vec<Check>,
    /// Whether all of it held.
    pub held: bool,
    /// Files that were brought back or kept.
    pub files: Vec<String>,
}

/// A clock and what its results are worth.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ClockReport {
    /// `real` or `counted`.
    pub kind: Clock,
    /// What results show.
    pub shows: &'static str,
    /// What they cannot show.
    pub does_not_show: &'static str,
}

impl From<Clock> for ClockReport {
    fn from(kind: Clock) -> Self {
        Self { kind, shows: kind.shows(), does_not_show: kind.does_not_show() }
    }
}

/// Times of this machine, in seconds.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
#[schemars(rename = "LabSeconds")]
pub struct Seconds {
    /// From the start until the host was up.
    pub host_up: f64,
    /// From there until the guests were up and at their places.
    pub guests_up: f64,
    /// Everything.
    pub total: f64,
}

/// Where the guests' memory was at one look.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct LabSample {
    /// When, in seconds from the start, by this machine's clock.
    pub seconds: f64,
    /// What was seen of each guest.
    pub guests: Vec<MemorySample>,
}

/// Where one guest's memory was.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct MemorySample {
    /// The guest.
    pub name: String,
    /// Bytes of touched memory on each node.
    pub memory_bytes_by_node: Vec<u64>,
    /// The nodes whose CPUs its vCPUs might use.
    pub nodes: Vec<u32>,
    /// The part (0 to 1) of that memory on `nodes`.
    pub memory_home: f64,
}

impl LabSample {
    /// What an observation says of memory.
    pub fn of(seen: &LabObservation, seconds: f64) -> Self {
        let guests = seen.guests.iter().map(|guest| MemorySample {
            name: guest.name.clone(),
            memory_bytes_by_node: guest.memory_bytes_by_node.clone(),
            nodes: guest.nodes.clone(),
            memory_home: guest.memory_home,
        });
        Self { seconds, guests: guests.collect() }
    }
}

/// A step that was done.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StepReport {
    /// What was done.
    pub step: String,
    /// When it began, in seconds from the start.
    pub began: f64,
    /// How long it took, by this machine's clock.
    pub seconds: f64,
    /// How many of the report's checks it made, which are in the order of the steps.
    pub checks: usize,
    /// A command's exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    /// What a command printed: JSON where it was that, else text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Value>,
    /// What it printed on standard error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

/// A command's output: one JSON document, or lines that are JSON each, or else text.
pub fn as_value(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    match lines {
        Ok(lines) if !lines.is_empty() => Value::Array(lines),
        _ => Value::String(text.to_owned()),
    }
}

/// The lines of a console that are JSON objects.
pub fn json_lines(console: &str) -> Vec<Value> {
    let objects = console.lines().map(str::trim).filter(|line| line.starts_with('{'));
    objects.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn output_is_json_where_it_can_be() {
        assert_eq!(as_value("{\"a\": 1}\n"), json!({"a": 1}));
        assert_eq!(as_value("{\"a\":1}\n{\"a\":2}\n"), json!([{"a": 1}, {"a": 2}]));
        assert_eq!(as_value("plain\n"), json!("plain\n"));
        assert_eq!(as_value(""), json!(""));
    }

    #[test]
    fn a_load_s_lines_are_found_among_the_kernel_s() {
        let console = "[ 0.1] x\r\n{\"done\": 3}\r\n{broken\n{\"done\": 4}";
        assert_eq!(json_lines(console), [json!({"done": 3}), json!({"done": 4})]);
    }
}
