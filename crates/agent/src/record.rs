//! What one cycle did, as one JSON line (schema `instep.record/1`).
//!
//! Durations in nanoseconds. `cpu_ns` is this process's own CPU time, so that the cost of the
//! loop can be followed from its log.

use crate::view::{self, ActionView, ConflictView, VerdictView};
use instep_core::decision::Decision;
use instep_core::policy::PolicyName;
use instep_core::snapshot::{OpaqueVm, Snapshot};
use instep_core::units::{Bytes, Nanos, VmId};
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// The outcome of an affinity that was set.
pub(crate) const DONE: &str = "done";

/// One cycle.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Record<'a> {
    /// `instep.record/1`.
    #[schemars(extend("const" = "instep.record/1"))]
    pub schema: &'static str,
    /// Cycles since the start, from 1.
    pub cycle: u64,
    /// When it began, UTC, RFC 3339.
    pub time: String,
    /// The policy.
    pub policy: PolicyName,
    /// Whether nothing was changed on purpose.
    pub dry_run: bool,
    /// The window of the loads.
    pub window_ns: Nanos,
    /// A verdict per VM.
    pub vms: Vec<VerdictView<'a>>,
    /// The VMs that are seen and not placed.
    pub left_alone: Vec<LeftAloneRecord<'a>>,
    /// What was to be changed and what came of it.
    pub actions: Vec<ActionRecord<'a>>,
    /// What is at odds.
    pub conflicts: Vec<ConflictView<'a>>,
    /// What was brought home, by VM.
    pub memory: &'a [MemoryRecord],
    /// What was wrong or could not be read.
    pub warnings: &'a [String],
    /// What the cycle itself cost.
    pub cost: Cost,
}

/// A VM that is not placed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct LeftAloneRecord<'a> {
    /// The VM's unique name.
    pub name: &'a str,
    /// Its monitor's process.
    pub pid: VmId,
    /// Why, one sentence.
    pub why: &'a str,
}

/// An action and what came of it.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ActionRecord<'a> {
    /// The action.
    #[serde(flatten)]
    pub action: ActionView<'a>,
    /// `done`, `dry run`, or what stood in the way.
    pub outcome: String,
}

/// What became of one VM's memory in one cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct MemoryRecord {
    /// The VM's unique name.
    pub vm: String,
    /// The guest's NUMA node whose memory it is, by the guest's number; null for all of it.
    pub guest_node: Option<u32>,
    /// Bytes that came home.
    pub moved_bytes: Bytes,
    /// Bytes that did not, by cause.
    pub stayed_bytes: BTreeMap<String, Bytes>,
    /// Bytes that were seen in use and not walked yet; null where nothing tells what is in use, or the order
    /// does not matter.
    pub used_left_bytes: Option<Bytes>,
    /// Whether all of it was looked at; else it goes on in the next cycle.
    pub complete: bool,
    /// What ended it early.
    pub error: Option<String>,
}

/// What a cycle cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Cost {
    /// CPU time of this process in the cycle.
    pub cpu_ns: Nanos,
    /// CPU time of this process since it started.
    pub cpu_total_ns: Nanos,
    /// Wall time of observing.
    pub observe_ns: Nanos,
    /// Wall time of deciding.
    pub decide_ns: Nanos,
    /// Wall time of applying, memory included.
    pub apply_ns: Nanos,
}

/// A cycle that was done on a host of any kind.
pub(crate) struct Cycle<'a> {
    /// Cycles since the start, this one included.
    pub(crate) count: u64,
    /// When it began.
    pub(crate) time: SystemTime,
    pub(crate) policy: PolicyName,
    pub(crate) dry_run: bool,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) decision: &'a Decision,
    /// What was wrong or could not be read.
    pub(crate) warnings: &'a [String],
    pub(crate) cost: Cost,
}

impl<'a> Cycle<'a> {
    /// Its record, with what came of each action and of memory.
    pub(crate) fn record(
        self,
        actions: Vec<ActionRecord<'a>>,
        memory: &'a [MemoryRecord],
    ) -> Record<'a> {
        let left_alone =
            |vm: &'a OpaqueVm| LeftAloneRecord { name: &vm.name, pid: vm.id, why: &vm.why };
        Record {
            schema: "instep.record/1",
            cycle: self.count,
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            policy: self.policy,
            dry_run: self.dry_run,
            window_ns: self.snapshot.window,
            vms: view::verdicts(self.snapshot, self.decision),
            left_alone: self.snapshot.opaque.iter().map(left_alone).collect(),
            actions,
            conflicts: view::conflicts(self.snapshot, &self.decision.conflicts),
            memory,
            warnings: self.warnings,
            cost: self.cost,
        }
    }
}

/// Measures what a cycle costs.
pub(crate) struct Stopwatch {
    /// When the cycle began.
    pub(crate) time: SystemTime,
    cpu: Nanos,
    began: Instant,
    observed: Instant,
    decided: Instant,
}

impl Stopwatch {
    /// The cycle begins with observing.
    pub(crate) fn start() -> Self {
        let (time, cpu, began) = (SystemTime::now(), cpu_time(), Instant::now());
        Self { time, cpu, began, observed: began, decided: began }
    }

    /// It observed, and decides now.
    pub(crate) fn note_observed(&mut self) {
        self.observed = Instant::now();
    }

    /// It decided, and applies now.
    pub(crate) fn note_decided(&mut self) {
        self.decided = Instant::now();
    }

    /// What it cost until now.
    pub(crate) fn cost(&self) -> Cost {
        let now = cpu_time();
        Cost {
            cpu_ns: now.since(self.cpu),
            cpu_total_ns: now,
            observe_ns: nanos(self.observed.duration_since(self.began)),
            decide_ns: nanos(self.decided.duration_since(self.observed)),
            apply_ns: nanos(self.decided.elapsed()),
        }
    }
}

/// CPU time of this process.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Nanos(
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
