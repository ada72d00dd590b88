//! What VMs had in each minute of the last hour, or in each ten minutes of the last day, and the changes meanwhile: a bounded
//! ring in a file that everybody may read (schema `instep.history/1`), for `instep serve`.
//!
//! ```text
//! a cycle ends --> its step is the newest? yes: mean by time   no: a new step, those that are too old go
//! ```
//! A run goes on with what the one before it left. The file is written when a step is complete or something was
//! changed, and at the end.
//! What it holds was decided elsewhere; here is only kept and cut.

use crate::metrics::{MOST_VMS, locality};
use crate::observe::Observation;
use crate::record::{DONE, Record};
use crate::state_file;
use crate::view::ActionView;
use instep_core::idset::CpuSet;
use instep_core::units::{Nanos, NodeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long a history is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Minutes of a step, which has one sample of each VM.
    step: u64,
    /// Steps that are kept.
    steps: usize,
    /// Changes that are kept.
    changes: usize,
}

const HOUR: Extent = Extent { step: 1, steps: 60, changes: 200 };
const DAY: Extent = Extent { step: 10, steps: 144, changes: 2000 };
/// The most bytes of a text in a change: reasons hold names, which are others' text.
const LONGEST: usize = 600;
const SCHEMA: &str = "instep.history/1";

/// The last hour, or the last day.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct History {
    #[schemars(extend("const" = "instep.history/1"))]
    schema: String,
    /// How many minutes a sample stands for: 1 in an hour, 10 in a day.
    #[serde(default = "minute")]
    step_minutes: u64,
    /// Minutes since 1970 at which steps with samples begin, ascending.
    minutes: Vec<u64>,
    vms: Vec<Series>,
    /// What was changed, the oldest first.
    changes: Vec<PlacementChange>,
    /// The time in the newest step that its samples stand for so far.
    #[serde(default, rename = "measured_ns")]
    measured: Nanos,
}

/// One VM in the minutes.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
struct Series {
    name: String,
    uuid: String,
    /// One for each minute, null where it was not there.
    samples: Vec<Option<Sample>>,
}

/// A minute of a VM in thousandths: of a CPU what it used, its steal and what it was throttled, then co-run and
/// locality, where they are known.
type Sample = (u64, u64, u64, Option<u64>, Option<u64>);

/// What was changed of a VM in one cycle, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PlacementChange {
    /// In UTC, such as `2026-11-23T08:11:15.000Z`.
    at: String,
    vm: String,
    uuid: String,
    /// `vcpu_affinity`, `emulator_affinity`, `soft_home`, `move_memory`.
    kind: String,
    /// Threads; 0 where it is no affinity.
    threads: usize,
    /// CPUs, nodes or bytes, in words.
    to: String,
    why: String,
    outcome: String,
}

impl History {
    /// The last hour, as an earlier run left it in this file; empty where that is nothing.
    pub(crate) fn hour(file: &Path) -> Self {
        Self::begin(file, HOUR)
    }

    /// The last day, likewise.
    pub(crate) fn day(file: &Path) -> Self {
        Self::begin(file, DAY)
    }

    fn begin(file: &Path, extent: Extent) -> Self {
        let history = state_file::read(file).and_then(|bytes| Self::parse(&bytes));
        history.filter(|it| it.step_minutes == extent.step).unwrap_or_else(|| Self::empty(extent))
    }

    fn empty(extent: Extent) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            step_minutes: extent.step,
            minutes: Vec::new(),
            vms: Vec::new(),
            changes: Vec::new(),
            measured: Nanos(0),
        }
    }

    fn extent(&self) -> Extent {
        if self.step_minutes == DAY.step { DAY } else { HOUR }
    }

    /// Reads what a run wrote; `None` where it is not that.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let history: Self = serde_json::from_slice(bytes).ok()?;
        let (minutes, extent) = (history.minutes.len(), history.extent());
        let is_fit = history.schema == SCHEMA
            && history.step_minutes == extent.step
            && minutes <= extent.steps
            && history.minutes.is_sorted_by(|a, b| a < b)
            && history.vms.len() <= MOST_VMS
            && history.vms.iter().all(|vm| vm.samples.len() == minutes)
            && history.changes.len() <= extent.changes;
        is_fit.then_some(history)
    }

    /// Adds a cycle that ended now, with co-run of VMs in it by their names.
    pub(crate) fn note_cycle(
        &mut self,
        now: SystemTime,
        observation: &Observation,
        record: &Record<'_>,
        co_run: &BTreeMap<String, u64>,
    ) -> Noted {
        let minute = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let is_complete = self.open(minute);
        let window = observation.snapshot.window;
        let homes: BTreeMap<&str, Vec<NodeId>> =
            record.vms.iter().map(|vm| (vm.name, vm.home_nodes.iter().collect())).collect();
        let mut uuids = BTreeMap::new();
        for vm in observation.snapshot.vms.iter().take(MOST_VMS) {
            let uuid = vm.uuid.as_deref().unwrap_or("");
            let home = homes.get(vm.name.as_str()).map_or(&[][..], Vec::as_slice);
            let sample: Sample = (
                vm.busy().milli_of(window).0,
                vm.steal().milli_of(window).0,
                vm.throttled.milli_of(window).0,
                co_run.get(vm.name.as_str()).copied(),
                locality(vm, home).map(|part| (part * 1000.0) as u64),
            );
            self.add((&vm.name, uuid), sample, window);
            uuids.insert(vm.name.as_str(), uuid);
        }
        self.measured.0 = self.measured.0.saturating_add(window.0);
        let changes = self.note_changes(record, &uuids);
        Noted { is_complete, changes }
    }

    /// The changes that were noted last, this many.
    pub(crate) fn last_changes(&self, count: usize) -> &[PlacementChange] {
        &self.changes[self.changes.len().saturating_sub(count)..]
    }

    /// Makes the step of this minute the newest one; whether one before it is complete. After a clock that jumped back,
    /// what is newer than now goes.
    fn open(&mut self, minute: u64) -> bool {
        let Extent { step, steps, .. } = self.extent();
        let minute = minute - minute % step;
        let is_new = self.minutes.last() != Some(&minute);
        let future = self.minutes.partition_point(|known| *known <= minute);
        self.minutes.truncate(future);
        self.vms.iter_mut().for_each(|vm| vm.samples.truncate(future));
        if self.minutes.last() != Some(&minute) {
            self.minutes.push(minute);
            self.vms.iter_mut().for_each(|vm| vm.samples.push(None));
            self.measured = Nanos(0);
        }
        let oldest = minute.saturating_sub(step * (steps as u64 - 1));
        let old = self.minutes.partition_point(|known| *known < oldest);
        self.minutes.drain(..old);
        for vm in &mut self.vms {
            vm.samples.drain(..old);
        }
        self.vms.retain(|vm| vm.samples.iter().any(Option::is_some));
        is_new
    }

    /// Adds a sample over this time to the newest step.
    fn add(&mut self, (name, uuid): (&str, &str), new: Sample, window: Nanos) {
        let known = self.vms.iter().position(|vm| vm.name == name && vm.uuid == uuid);
        let place = known.unwrap_or_else(|| {
            let samples = vec![None; self.minutes.len()];
            self.vms.push(Series { name: name.to_owned(), uuid: uuid.to_owned(), samples });
            self.vms.len() - 1
        });
        if self.vms.len() > MOST_VMS {
            self.vms.truncate(MOST_VMS);
            return;
        }
        let Some(newest) = self.vms[place].samples.last_mut() else { return };
        let (old_time, time) = (u128::from(self.measured.0), u128::from(window.0.max(1)));
        let mean = |old: u64, new: u64| {
            let sum = u128::from(old) * old_time + u128::from(new) * time;
            u64::try_from(sum / (old_time + time)).unwrap_or(u64::MAX)
        };
        let known = |old: Option<u64>, new: Option<u64>| match (old, new) {
            (Some(old), Some(new)) => Some(mean(old, new)),
            (old, new) => new.or(old),
        };
        *newest = Some(match *newest {
            None => new,
            Some(old) => (
                mean(old.0, new.0),
                mean(old.1, new.1),
                mean(old.2, new.2),
                known(old.3, new.3),
                new.4.or(old.4),
            ),
        });
    }

    /// Adds what the cycle changed of VMs with these UUIDs, by name; how many of them are new.
    fn note_changes(&mut self, record: &Record<'_>, uuids: &BTreeMap<&str, &str>) -> usize {
        let before = self.changes.len();
        let change =
            |vm: &str, kind: &str, threads, to, why: &str, outcome: &str| PlacementChange {
                at: record.time.clone(),
                vm: vm.to_owned(),
                uuid: uuids.get(vm).copied().unwrap_or_default().to_owned(),
                kind: kind.to_owned(),
                threads,
                to,
                why: cut(why),
                outcome: cut(outcome),
            };
        for done in &record.actions {
            let (kind, threads, to, why) = match &done.action {
                ActionView::VcpuAffinity { cpus, why, .. } => {
                    ("vcpu_affinity", 1, cpus.to_string(), why)
                }
                ActionView::EmulatorAffinity { cpus, why, .. } => {
                    ("emulator_affinity", 1, cpus.to_string(), why)
                }
                ActionView::SoftHome { node, why, .. } => ("soft_home", 0, node.to_string(), why),
                ActionView::SoftAffinity { soft, nodes, why, .. } => {
                    let all = soft.iter().fold(CpuSet::new(), |all, one| all.or(one.cpus));
                    let to = nodes.map_or_else(|| all.to_string(), |nodes| format!("node {nodes}"));
                    ("soft_affinity", soft.len(), to, why)
                }
                // What came of it is told below, in bytes.
                ActionView::MoveMemory { .. } => continue,
            };
            let new = change(done.action.vm(), kind, threads, to, why, &done.outcome);
            self.add_change(before, new);
        }
        for memory in record.memory.iter().filter(|memory| memory.moved_bytes.0 > 0) {
            let why = "memory is brought to the home of its VM";
            let to = memory.moved_bytes.to_string();
            self.add_change(before, change(&memory.vm, "move_memory", 0, to, why, DONE));
        }
        let new = self.changes.len() - before;
        let over = self.changes.len().saturating_sub(self.extent().changes);
        self.changes.drain(..over);
        new
    }

    /// Adds a change of the cycle whose changes begin at this place, like ones of a VM together. What is refused in each
    /// cycle is told once.
    fn add_change(&mut self, begin: usize, new: PlacementChange) {
        let is_alike = |old: &PlacementChange| {
            (&old.vm, &old.kind, &old.to, &old.outcome)
                == (&new.vm, &new.kind, &new.to, &new.outcome)
        };
        // Changes of one VM are together.
        let mut own = self.changes[begin..].iter_mut().rev().take_while(|old| old.vm == new.vm);
        if let Some(old) = own.find(|old| is_alike(old)) {
            old.threads += new.threads;
        } else if new.outcome == DONE || !self.changes[..begin].iter().any(is_alike) {
            self.changes.push(new);
        }
    }
}

/// What a cycle was to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// A step before it is complete.
    pub(crate) is_complete: bool,
    /// Changes that are new.
    pub(crate) changes: usize,
}

impl Noted {
    /// Whether the history is worth writing.
    pub(crate) fn is_news(self) -> bool {
        self.is_complete || self.changes > 0
    }
}

fn minute() -> u64 {
    HOUR.step
}

/// At most so much of a text.
fn cut(text: &str) -> String {
    let end = (0..=LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(used: u64) -> Sample {
        (used, 2, 3, None, Some(500))
    }

    fn used(history: &History, name: &str) -> Vec<Option<u64>> {
        let vm = history.vms.iter().find(|vm| vm.name == name);
        vm.unwrap().samples.iter().map(|sample| sample.map(|sample| sample.0)).collect()
    }

    #[test]
    fn cycles_of_one_minute_make_one_sample() {
        let mut history = History::empty(HOUR);
        assert!(history.open(100));
        history.add(("a", ""), sample(1000), Nanos(10));
        history.measured = Nanos(10);
        assert!(!history.open(100));
        history.add(("a", ""), sample(400), Nanos(20));
        assert_eq!(used(&history, "a"), [Some(600)], "the longer time counts for more");
        assert!(history.open(101));
        assert_eq!(used(&history, "a"), [Some(600), None]);
    }

    #[test]
    fn an_hour_is_kept_and_vms_without_samples_go() {
        let mut history = History::empty(HOUR);
        for minute in 0..200 {
            history.open(minute);
            history.add(("stays", "u"), sample(minute), Nanos(1));
            if minute < 10 {
                history.add(("goes", ""), sample(1), Nanos(1));
            }
        }
        assert_eq!((history.minutes.len(), history.minutes[0], history.vms.len()), (60, 140, 1));
        assert_eq!(used(&history, "stays")[59], Some(199));
        // The clock jumps back, then far ahead.
        history.open(150);
        assert_eq!((history.minutes.len(), used(&history, "stays").len()), (11, 11));
        history.open(9000);
        assert_eq!((history.minutes.len(), history.vms.len()), (1, 0));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let file = dir.path().join("a.json");
        let mut history = History::empty(HOUR);
        assert_eq!(History::hour(&file), history);
        history.open(7);
        history.add(("a", "u"), sample(9), Nanos(1));
        std::fs::write(&file, serde_json::to_vec(&history).unwrap()).unwrap();
        assert_eq!(History::hour(&file), history);
        assert_eq!(History::day(&file), History::empty(DAY), "an hour is no day");
        let text = serde_json::to_string(&history).unwrap();
        for (from, to) in [
            ("/1", "/2"),
            ("[7]", "[7,8]"),
            ("[7]", "[7,7]"),
            ("\"minutes", "\"m"),
            ("s\":1,", "s\":2,"),
        ] {
            assert_ne!(text, text.replace(from, to));
            assert_eq!(History::parse(text.replace(from, to).as_bytes()), None, "{from} {to}");
        }
    }

    #[test]
    fn like_changes_of_cycle_are_one_and_refusals_are_reported_once() {
        let change = |to: &str, outcome: &str| PlacementChange {
            at: String::new(),
            vm: "a".to_owned(),
            uuid: String::new(),
            kind: "vcpu_affinity".to_owned(),
            threads: 1,
            to: to.to_owned(),
            why: String::new(),
            outcome: outcome.to_owned(),
        };
        let mut history = History::empty(HOUR);
        for _cycle in 0..3 {
            let begin = history.changes.len();
            for (to, outcome) in
                [("0", DONE), ("0", DONE), ("1", DONE), ("2", "refused"), ("2", "refused")]
            {
                history.add_change(begin, change(to, outcome));
            }
        }
        let told: Vec<_> = history.changes.iter().map(|it| (it.to.as_str(), it.threads)).collect();
        assert_eq!(told, [("0", 2), ("1", 1), ("2", 2), ("0", 2), ("1", 1), ("0", 2), ("1", 1)]);
    }

    #[test]
    fn day_has_a_sample_for_ten_minutes() {
        let mut history = History::empty(DAY);
        for minute in 0..3000 {
            assert_eq!(history.open(minute), minute % 10 == 0, "{minute}");
            history.add(("a", ""), sample(minute), Nanos(1));
            history.measured.0 += 1;
        }
        assert_eq!((history.minutes.len(), history.minutes[0]), (144, 1560));
        // The means of whole numbers are cut each time.
        assert!((2990..=2995).contains(&used(&history, "a")[143].unwrap()));
    }
}
