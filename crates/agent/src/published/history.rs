//! What VMs had in each minute of the last hour, and the last changes: a bounded ring in a file that everybody may read
//! (schema `instep.history/1`), for `instep serve`.
//!
//! ```text
//! a cycle ends --> its minute is the newest? yes: mean by time   no: a new minute, older than an hour go
//! ```
//! A run goes on with what the one before it left. The file is written when a minute is complete or something was
//! changed, and at the end.
//! What it holds was decided elsewhere; here is only kept and cut.

use crate::dispatch::in_force::InForce;
use crate::metrics::{MOST_VMS, locality};
use crate::observe::{Observation, facts_of};
use crate::published::HISTORY;
use crate::record::{DONE, Record};
use crate::state_file;
use crate::view::ActionView;
use instep_core::units::{Nanos, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Minutes that are kept.
const MINUTES: usize = 60;
/// Changes that are kept.
const CHANGES: usize = 200;
/// The most bytes of a text in a change: reasons hold names, which are others' text.
const LONGEST: usize = 600;
const SCHEMA: &str = "instep.history/1";

/// The last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    schema: String,
    /// Minutes since 1970 that have samples, ascending.
    minutes: Vec<u64>,
    vms: Vec<Series>,
    /// What was changed, the oldest first.
    changes: Vec<Change>,
    /// The time in the newest minute that its samples stand for so far.
    #[serde(skip)]
    measured: Nanos,
    /// Together and apart times of VMs when last asked, by name.
    #[serde(skip)]
    co_run: BTreeMap<String, (u64, u64)>,
}

/// One VM in the minutes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Series {
    name: String,
    uuid: String,
    /// One for each minute, null where it was not there.
    samples: Vec<Option<Sample>>,
}

/// A minute of a VM in thousandths: of a CPU what it used, its delay and what it was throttled, then co-run and
/// locality, where they are known.
type Sample = (u64, u64, u64, Option<u64>, Option<u64>);

/// What was changed of a VM in one cycle, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
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

impl Default for History {
    fn default() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            minutes: Vec::new(),
            vms: Vec::new(),
            changes: Vec::new(),
            measured: Nanos(0),
            co_run: BTreeMap::new(),
        }
    }
}

impl History {
    /// What an earlier run left in the state directory; empty where that is nothing.
    pub(crate) fn begin(state: &Path) -> Self {
        let path = state.join(HISTORY);
        let is_fit = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= state_file::MAX_FILE);
        let bytes = is_fit.then(|| std::fs::read(path).ok()).flatten();
        bytes.and_then(|bytes| Self::parse(&bytes)).unwrap_or_default()
    }

    /// Reads what a run wrote; `None` where it is not that.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let history: Self = serde_json::from_slice(bytes).ok()?;
        let minutes = history.minutes.len();
        let is_fit = history.schema == SCHEMA
            && minutes <= MINUTES
            && history.minutes.is_sorted_by(|a, b| a < b)
            && history.vms.len() <= MOST_VMS
            && history.vms.iter().all(|vm| vm.samples.len() == minutes)
            && history.changes.len() <= CHANGES;
        is_fit.then_some(history)
    }

    /// Adds a cycle that ended now. Whether that is to be written: a minute is complete, or something was changed.
    pub(crate) fn note_cycle(
        &mut self,
        now: SystemTime,
        observation: &Observation,
        record: &Record<'_>,
        in_force: Option<&InForce>,
    ) -> bool {
        let minute = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let is_complete = self.open(minute);
        let window = observation.snapshot.window;
        let co_run = self.take_co_run(in_force);
        let homes: BTreeMap<&str, Vec<NodeId>> =
            record.vms.iter().map(|vm| (vm.name, vm.home_nodes.iter().collect())).collect();
        let mut uuids = BTreeMap::new();
        for vm in observation.snapshot.vms.iter().take(MOST_VMS) {
            let facts = facts_of(&observation.scan, vm);
            let uuid = facts.and_then(|facts| facts.uuid.as_deref()).unwrap_or("");
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
        let is_changed = self.note_changes(record, &uuids);
        is_complete || is_changed
    }

    /// Makes this minute the newest one; whether one before it is complete. After a clock that jumped back, what is
    /// newer than now goes.
    fn open(&mut self, minute: u64) -> bool {
        let is_new = self.minutes.last() != Some(&minute);
        let future = self.minutes.partition_point(|known| *known <= minute);
        self.minutes.truncate(future);
        self.vms.iter_mut().for_each(|vm| vm.samples.truncate(future));
        if self.minutes.last() != Some(&minute) {
            self.minutes.push(minute);
            self.vms.iter_mut().for_each(|vm| vm.samples.push(None));
            self.measured = Nanos(0);
        }
        let oldest = minute.saturating_sub(MINUTES as u64 - 1);
        let old = self.minutes.partition_point(|known| *known < oldest);
        self.minutes.drain(..old);
        for vm in &mut self.vms {
            vm.samples.drain(..old);
        }
        self.vms.retain(|vm| vm.samples.iter().any(Option::is_some));
        is_new
    }

    /// Adds a sample over this time to the newest minute.
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

    /// Co-run of VMs since it was asked for last, in thousandths, by name.
    fn take_co_run(&mut self, in_force: Option<&InForce>) -> BTreeMap<String, u64> {
        let Some(in_force) = in_force else { return BTreeMap::new() };
        let before = std::mem::take(&mut self.co_run);
        let mut found = BTreeMap::new();
        for vm in &in_force.vms {
            let now = (vm.together_ns, vm.apart_ns);
            let then = before.get(&vm.name).copied().unwrap_or_default();
            let (together, apart) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
            if let Some(part) =
                (u128::from(together) * 1000).checked_div(u128::from(together) + u128::from(apart))
            {
                found.insert(vm.name.clone(), part as u64);
            }
            self.co_run.insert(vm.name.clone(), now);
        }
        found
    }

    /// Adds what the cycle changed of VMs with these UUIDs, by name. Whether there was any.
    fn note_changes(&mut self, record: &Record<'_>, uuids: &BTreeMap<&str, &str>) -> bool {
        let before = self.changes.len();
        let change = |vm: &str, kind: &str, threads, to, why: &str, outcome: &str| Change {
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
        let is_changed = self.changes.len() > before;
        let over = self.changes.len().saturating_sub(CHANGES);
        self.changes.drain(..over);
        is_changed
    }

    /// Adds a change of the cycle whose changes begin at this place, like ones of a VM together. What is refused in each
    /// cycle is told once.
    fn add_change(&mut self, begin: usize, new: Change) {
        let is_alike = |old: &Change| {
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

    /// Writes it down. What cannot be written is not shown, and that is all.
    pub(crate) fn publish(&self, state: &Path) {
        if let Err(error) = state_file::publish(state, HISTORY, self) {
            tracing::debug!(%error, "cannot write to {}", state.display());
        }
    }
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
        let mut history = History::default();
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
        let mut history = History::default();
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
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::default();
        assert_eq!(History::begin(dir.path()), history);
        history.open(7);
        history.add(("a", "u"), sample(9), Nanos(1));
        history.publish(dir.path());
        assert_eq!(History::begin(dir.path()), history);
        let text = serde_json::to_string(&history).unwrap();
        for (from, to) in [("/1", "/2"), ("[7]", "[7,8]"), ("[7]", "[7,7]"), ("minutes", "m")] {
            assert_ne!(text, text.replace(from, to));
            assert_eq!(History::parse(text.replace(from, to).as_bytes()), None, "{from} {to}");
        }
    }

    #[test]
    fn like_changes_of_a_cycle_are_one_and_refusals_are_told_once() {
        let change = |to: &str, outcome: &str| Change {
            at: String::new(),
            vm: "a".to_owned(),
            uuid: String::new(),
            kind: "vcpu_affinity".to_owned(),
            threads: 1,
            to: to.to_owned(),
            why: String::new(),
            outcome: outcome.to_owned(),
        };
        let mut history = History::default();
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
    fn co_run_is_that_of_the_time_between_two_cycles() {
        let vm = |together_ns, apart_ns| crate::dispatch::in_force::VmInForce {
            name: "a".to_owned(),
            together_ns,
            apart_ns,
            ..Default::default()
        };
        let mut history = History::default();
        let mut ask = |vms| history.take_co_run(Some(&InForce { vms, ..InForce::default() }));
        assert_eq!(ask(vec![vm(30, 10)]).get("a"), Some(&750));
        assert_eq!(ask(vec![vm(40, 40)]).get("a"), Some(&250));
        assert_eq!(ask(vec![vm(40, 40)]).get("a"), None, "neither ran");
    }
}
