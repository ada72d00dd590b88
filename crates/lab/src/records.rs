//! What Instep's own records (`instep run --json`, schema `instep.record/1`) say it changed and why,
//! in few lines: for people beside the evidence, never instead of it.
//!
//! It reads what is documented of the schema and leaves out lines of any other shape.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a stretch of cycles changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleChanges {
    /// Changes of affinity, by cycle and VM.
    pub changes: Vec<CycleChange>,
    /// Memory that came home, by VM.
    pub moved: Vec<Moved>,
    /// The last cycle that was read.
    pub last: u64,
}

/// What one cycle changed for one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleChange {
    /// The cycle, from 1.
    pub cycle: u64,
    /// The VM.
    pub vm: String,
    /// Why, in Instep's words.
    pub why: String,
    /// What: `vCPU 0 to CPUs 4-5`.
    pub what: Vec<String>,
}

/// Memory of one VM that came home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The VM.
    pub vm: String,
    /// Bytes that came home.
    pub bytes: u64,
    /// In how many cycles.
    pub cycles: usize,
    /// Bytes that did not, by cause, in the last of them.
    pub stayed: BTreeMap<String, u64>,
}

impl CycleChanges {
    /// In lines for people, each without its end.
    pub fn lines(&self) -> Vec<String> {
        let change = |change: &CycleChange| {
            let CycleChange { cycle, vm, why, what } = change;
            format!("cycle {cycle}, {vm}: {}; {why}", what.join(", "))
        };
        let moved = |moved: &Moved| {
            let cycles = if moved.cycles == 1 { "cycle" } else { "cycles" };
            let mut line = format!(
                "{}: {} MiB moved home in {} {cycles}",
                moved.vm,
                moved.bytes >> 20,
                moved.cycles
            );
            for (cause, bytes) in moved.stayed.iter().filter(|(_, bytes)| **bytes >= 1 << 20) {
                line.push_str(&format!(", {} MiB not moved ({cause})", bytes >> 20));
            }
            line
        };
        self.changes.iter().map(change).chain(self.moved.iter().map(moved)).collect()
    }
}

/// Whether this is a record, or a list of them.
pub fn are_records(value: &Value) -> bool {
    each(value).next().is_some()
}

/// What the records after cycle `after` say.
pub fn tell(value: &Value, after: u64) -> CycleChanges {
    let mut told = CycleChanges { last: after, ..CycleChanges::default() };
    let mut moved: BTreeMap<&str, Moved> = BTreeMap::new();
    for record in each(value) {
        let cycle = record["cycle"].as_u64().unwrap_or(0);
        if cycle <= after {
            continue;
        }
        told.last = told.last.max(cycle);
        for verdict in list(&record["vms"]) {
            let Some(vm) = verdict["name"].as_str() else { continue };
            let what = affinities(record, vm);
            if !what.is_empty() {
                let why = verdict["why"].as_str().unwrap_or("no reason given").to_owned();
                told.changes.push(CycleChange { cycle, vm: vm.to_owned(), why, what });
            }
        }
        for memory in list(&record["memory"]) {
            let Some(vm) = memory["vm"].as_str() else { continue };
            let bytes = memory["moved_bytes"].as_u64().unwrap_or(0);
            let sum = moved.entry(vm).or_default();
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.cycles += usize::from(bytes > 0);
            let stayed = memory["stayed_bytes"].as_object().into_iter().flatten();
            sum.stayed =
                stayed.filter_map(|(cause, n)| Some((cause.clone(), n.as_u64()?))).collect();
        }
    }
    let named = |(vm, sum): (&str, Moved)| Moved { vm: vm.to_owned(), ..sum };
    told.moved = moved.into_iter().map(named).filter(|moved| moved.bytes >> 20 > 0).collect();
    told
}

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    let several = value.as_array().map(Vec::as_slice);
    several
        .unwrap_or(std::slice::from_ref(value))
        .iter()
        .filter(|record| record["schema"] == "instep.record/1")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The affinities that a record's cycle set for a VM, in words.
fn affinities(record: &Value, vm: &str) -> Vec<String> {
    let mut what = Vec::new();
    let mut emulators = BTreeSet::new();
    for action in list(&record["actions"]).iter().filter(|action| action["vm"] == vm) {
        let cpus: Vec<u32> =
            list(&action["cpus"]).iter().filter_map(|n| n.as_u64()?.try_into().ok()).collect();
        let cpus = cpus_in_words(&cpus);
        let failed = match action["outcome"].as_str() {
            Some("done") | None => String::new(),
            Some(outcome) => format!(" ({outcome})"),
        };
        match action["kind"].as_str() {
            Some("vcpu_affinity") => {
                let vcpu = action["vcpu"].as_u64().unwrap_or(0);
                what.push(format!("vCPU {vcpu} to {cpus}{failed}"));
            }
            Some("emulator_affinity") => {
                emulators.insert(format!("emulator threads to {cpus}{failed}"));
            }
            _ => {}
        }
    }
    what.extend(emulators);
    what
}

/// `CPU 3` or `CPUs 0-1,4`; ascending input gives the shortest.
pub fn cpus_in_words(cpus: &[u32]) -> String {
    let parts = cpus.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(|part| match part {
        [one] => one.to_string(),
        _ => format!("{}-{}", part[0], part[part.len() - 1]),
    });
    let noun = if cpus.len() == 1 { "CPU" } else { "CPUs" };
    format!("{noun} {}", parts.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(cycle: u64, moved: u64) -> Value {
        json!({
            "schema": "instep.record/1", "cycle": cycle,
            "vms": [{"name": "a", "why": "to node 1, mending"}, {"name": "b", "why": "stays"}],
            "actions": [
                {"kind": "vcpu_affinity", "vm": "a", "vcpu": 0, "cpus": [4, 5], "outcome": "done"},
                {"kind": "emulator_affinity", "vm": "a", "cpus": [0, 2], "outcome": "done"},
                {"kind": "emulator_affinity", "vm": "a", "cpus": [0, 2], "outcome": "done"},
                {"kind": "move_memory", "vm": "b", "cpus": null},
            ],
            "memory": [{"vm": "b", "moved_bytes": moved, "stayed_bytes": {"busy": 2 << 20}}],
        })
    }

    #[test]
    fn changes_are_reported_by_cycle_and_vm_with_their_reason() {
        let told = tell(&json!([record(1, 3 << 20), record(2, 4 << 20)]), 0);
        assert_eq!(
            told.lines(),
            [
                "cycle 1, a: vCPU 0 to CPUs 4-5, emulator threads to CPUs 0,2; to node 1, mending",
                "cycle 2, a: vCPU 0 to CPUs 4-5, emulator threads to CPUs 0,2; to node 1, mending",
                "b: 7 MiB moved home in 2 cycles, 2 MiB not moved (busy)",
            ]
        );
        assert_eq!(told.last, 2);
    }

    #[test]
    fn cycles_reported_before_are_not_reported_again() {
        let told = tell(&json!([record(1, 1), record(2, 1)]), 1);
        assert_eq!((told.changes.len(), told.changes[0].cycle), (1, 2));
        assert_eq!(tell(&record(2, 1), 2), CycleChanges { last: 2, ..CycleChanges::default() });
    }

    #[test]
    fn rubbish_is_no_record_and_no_panic() {
        for value in [json!(null), json!("x"), json!([1]), json!({"schema": "other"})] {
            assert!(!are_records(&value) && tell(&value, 0) == CycleChanges::default());
        }
        let odd = json!({"schema": "instep.record/1", "cycle": "x", "vms": 3, "memory": [{}]});
        assert_eq!(tell(&odd, 0), CycleChanges::default());
    }
}
