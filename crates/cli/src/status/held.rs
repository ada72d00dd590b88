//! What Instep holds: which VMs have affinities from it, since when, what they had before; and when the
//! run that holds them acts again.

use crate::observe::Observed;
use crate::text::plural;
use instep_agent::published::{RunState, running};
use instep_core::idset::CpuSet;
use instep_core::snapshot::{Vcpu, Vm};
use instep_core::units::{Nanos, Tid};
use instep_host::apply::journal::Entry;
use instep_host::apply::{Holder, Journal, StateDir, ThreadKind};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// The run that places VMs now.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Run")]
pub(super) struct RunJson {
    pid: u32,
    policy: String,
    /// Cycles that were done, and when the last one ended, in UTC.
    cycle: u64,
    cycle_at: String,
    /// When the next one begins at the latest, in UTC.
    next_cycle_at: String,
}

/// Asks what the run that uses this state directory says of itself.
pub(super) fn run_of(state: &StateDir) -> Option<RunJson> {
    let RunState { instance, policy, cycle, cycle_at, next_cycle_at } = running(state.path())?;
    Some(RunJson { pid: instance.pid, policy, cycle, cycle_at, next_cycle_at })
}

impl RunJson {
    /// For people.
    pub(super) fn drawn(&self, now: SystemTime) -> String {
        let Self { pid, policy, cycle, next_cycle_at, .. } = self;
        let (next, done) = (moment(next_cycle_at, now), plural(*cycle as usize, "cycle"));
        format!("instep run: pid {pid}, policy {policy}, {done} done, the next one at {next}")
    }
}

/// What one VM has from Instep.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Placed")]
pub(super) struct PlacedJson {
    /// The run that placed it; null after `run --once`.
    pid: Option<u32>,
    /// Whether that runs, or nobody has to: what `run --once` placed stays.
    stands: bool,
    /// When Instep first touched one of its vCPUs, in UTC; null where the host's clock is not known, or the journal may not be read.
    since: Option<String>,
    /// CPUs that its vCPUs could use before, all together.
    was: CpuSet,
    /// Whether each of them could use all of these.
    was_alike: bool,
}

/// What a vCPU could use before Instep, if it has its affinity from it.
pub(super) fn was(vcpu: &Vcpu) -> Option<&CpuSet> {
    (vcpu.initial != vcpu.allowed).then_some(&vcpu.initial)
}

/// What a VM has from Instep; `None` when nothing.
pub(super) fn placed(observed: &Observed, vm: &Vm) -> Option<PlacedJson> {
    let (pid, stands) = match (&observed.journal, &observed.seen) {
        (Some(Journal { holder: Holder::Kept, .. }), _) => (None, true),
        (Some(journal), _) => {
            let Holder::Instance { pid, .. } = journal.holder else { return None };
            (Some(pid), !journal.is_abandoned().unwrap_or(false))
        }
        (None, Some(seen)) => (Some(seen.run.instance.pid), true),
        (None, None) => return None,
    };
    let held: Vec<&CpuSet> = vm.vcpus.iter().filter_map(was).collect();
    let first = *held.first()?;
    Some(PlacedJson {
        pid,
        stands,
        since: observed.journal.as_ref().and_then(|journal| since(observed, journal, vm)),
        was: held.iter().fold(CpuSet::new(), |all, was| all.or(was)),
        was_alike: held.iter().all(|was| *was == first),
    })
}

/// When the first of its vCPUs was touched.
fn since(observed: &Observed, journal: &Journal, vm: &Vm) -> Option<String> {
    let process = (vm.id.0, Tid(0))..=(vm.id.0, Tid(u32::MAX));
    let entries = journal.entries.range(process).map(|(_, entry)| entry);
    let is_vcpu = |entry: &&Entry| {
        entry.thread.pid_start == vm.start_ticks && matches!(entry.kind, ThreadKind::Vcpu(_))
    };
    let first = entries.filter(is_vcpu).map(|entry| entry.since).min()?;
    let boot = observed.scan.boot?;
    let then = Nanos(first.saturating_mul(1_000_000_000 / observed.scan.ticks_per_second));
    let at = SystemTime::now().checked_sub(Duration::from_nanos(boot.since(then).0))?;
    Some(humantime::format_rfc3339_seconds(at).to_string())
}

impl PlacedJson {
    /// For people.
    pub(super) fn drawn(&self, now: SystemTime) -> String {
        let by = match (self.pid, self.stands) {
            (None, _) => "`run --once`".to_owned(),
            (Some(pid), true) => format!("pid {pid}"),
            (Some(pid), false) => format!("pid {pid}, which has ended"),
        };
        let since = self.since.as_deref();
        let since = since.map_or_else(String::new, |at| format!(", since {}", moment(at, now)));
        let each = if self.was_alike { "" } else { ", not all of it for each vCPU" };
        let next = if self.stands { "" } else { "; `instep restore` puts it back" };
        format!("placed by Instep ({by}{since}; was {}{each}){next}", self.was)
    }
}

/// A moment in UTC without what is the same as now: `12:01 UTC`, or with its day.
fn moment(at: &str, now: SystemTime) -> String {
    let today = humantime::format_rfc3339_seconds(now).to_string();
    match (at.split_once('T'), today.split_once('T')) {
        (Some((day, time)), Some((today, _))) => {
            let time = time.get(..5).unwrap_or(time);
            if day == today { format!("{time} UTC") } else { format!("{day} {time} UTC") }
        }
        _ => at.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        humantime::parse_rfc3339("2026-11-25T13:30:00Z").unwrap()
    }

    #[test]
    fn placement_is_reported_with_its_run_time_and_original() {
        let mut placed = PlacedJson {
            pid: Some(4711),
            stands: true,
            since: Some("2026-11-25T12:01:59Z".to_owned()),
            was: CpuSet::parse_list("0-127").unwrap(),
            was_alike: true,
        };
        let said = placed.drawn(now());
        assert_eq!(said, "placed by Instep (pid 4711, since 12:01 UTC; was 0-127)");
        placed.since = Some("2026-11-24T12:01:59Z".to_owned());
        (placed.stands, placed.was_alike) = (false, false);
        let said = placed.drawn(now());
        assert!(
            said.contains("which has ended, since 2026-11-24 12:01 UTC; was 0-127, not all"),
            "{said}"
        );
        assert!(said.ends_with("`instep restore` puts it back"), "{said}");
        let kept = PlacedJson { pid: None, stands: true, since: None, ..placed };
        assert!(kept.drawn(now()).starts_with("placed by Instep (`run --once`; was 0-127"));
    }

    #[test]
    fn next_cycle_is_reported() {
        let at = |time: &str| format!("2026-11-25T{time}Z");
        let run = RunJson {
            pid: 7,
            policy: "instep".to_owned(),
            cycle: 12,
            cycle_at: at("13:29:05"),
            next_cycle_at: at("13:30:05"),
        };
        let said = run.drawn(now());
        assert_eq!(
            said,
            "instep run: pid 7, policy instep, 12 cycles done, the next one at 13:30 UTC"
        );
    }
}
