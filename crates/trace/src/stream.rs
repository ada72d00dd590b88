//! What every reader of traces gives: a header, events in order of time by the batch, and a tally
//! of what went wrong.
//!
//! Readers hold a bounded window of events to put them in order. What comes too late for it is
//! given at the time reached and counted, so time never runs backwards for who pulls.

use crate::event::Event;
use instep_core::topology::Topology;
use instep_core::units::Nanos;
use instep_core::wording::Count;
use serde::{Deserialize, Serialize};

/// Events out of one trace.
pub trait EventStream {
    /// What the file says of the host and of itself.
    fn header(&self) -> &Header;

    /// Replaces the contents of `batch` by the next events in order of time. False, and an empty
    /// batch, after the last. Damage ends the stream early; [`EventStream::tally`] counts it.
    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool;

    /// What was counted so far.
    fn tally(&self) -> &Tally;

    /// What the kernel itself counted of vCPUs' threads meanwhile; known after the last event, and of
    /// Instep's own recordings only.
    fn counters(&self) -> &[Counter] {
        &[]
    }

    /// What the CPU quotas of VMs did meanwhile; as [`EventStream::counters`].
    fn throttled(&self) -> &[Throttled] {
        &[]
    }
}

/// What a trace says of the host it was recorded on; `None` and empty where it does not say.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The format, for people: `perf.data (file)`, `trace.dat version 7, zstd`.
    pub format: String,
    /// The host's name.
    pub hostname: Option<String>,
    /// The kernel's release.
    pub release: Option<String>,
    /// Online CPUs.
    pub cpus: Option<u32>,
    /// Guests whose vCPUs' threads the recorder knew (`instep record`, trace-cmd record -A).
    pub guests: Vec<TracedGuest>,
    /// Names of the guests whose wake-ups and moves alone were recorded; empty where all were.
    pub only: Vec<String>,
    /// Cores, caches and nodes.
    pub topology: Option<Topology>,
    /// Whether `instep record` wrote it.
    pub is_own: bool,
    /// What is odd in the header.
    pub warnings: Vec<String>,
}

/// A guest that the recorder knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedGuest {
    /// Its name.
    pub name: String,
    /// Its process, where told.
    pub pid: Option<u32>,
    /// Number of vCPU and thread of the host that runs it.
    pub vcpus: Vec<(u32, u32)>,
    /// Its weight among VMs (`cpu.weight`, 100 as a rule), where the file has it.
    pub weight: Option<u32>,
}

/// /proc/TID/schedstat of a thread, later minus earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// The thread.
    pub tid: u32,
    /// From when, by the recording's clock,
    pub from_ns: u64,
    /// to when.
    pub to_ns: u64,
    /// Time it ran.
    pub run_ns: u64,
    /// Time it waited on a queue.
    pub wait_ns: u64,
}

/// What the CPU quotas of a VM's cgroups did, later minus earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttled {
    /// The VM's process.
    pub pid: u32,
    /// The least of its quotas at the end, in thousandths of a CPU.
    pub quota_milli_cpus: Option<u64>,
    /// The file that holds it.
    pub file: Option<String>,
    /// Whether that is of a cgroup above the VM's own.
    pub is_above: bool,
    /// Whether it holds for other processes than the VM's, too.
    pub is_shared: bool,
    /// Time in which it was throttled, summed over CPUs.
    pub throttled_ns: u64,
    /// How much of that cgroups counted that hold one vCPU each.
    pub vcpus_throttled_ns: u64,
    /// How often that was.
    pub times: u64,
}

/// What a reader counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that carry an event of any kind, those that Instep does not use included.
    pub records: u64,
    /// Records of tracepoints that Instep uses.
    pub used: u64,
    /// Events that the recorder says it lost.
    pub lost: u64,
    /// Places where the recorder lost events without saying how many.
    pub lost_places: u64,
    /// Events that came after a later one of the same CPU. They are put in their place by their times, which
    /// falsifies nothing where these are right, unless they are [`Tally::late`], too. In trace.dat nothing
    /// that is of one CPU can be put in another place: there such events are late only.
    pub reordered: u64,
    /// Events that came too late to be put in their place.
    pub late: u64,
    /// The most that one came too late.
    pub latest: Nanos,
    /// Records that make no sense and were passed over.
    pub damaged: u64,
    /// What was wrong with the first of them.
    pub first_damage: Option<String>,
    /// Why the trace ended before its time.
    pub cut: Option<String>,
}

impl Tally {
    /// Counts a record that makes no sense.
    pub(crate) fn damage(&mut self, what: impl FnOnce() -> String) {
        self.damaged += 1;
        if self.first_damage.is_none() {
            self.first_damage = Some(what());
        }
    }

    /// Notes why the trace ends here; the first reason stays.
    pub(crate) fn cut(&mut self, why: impl Into<String>) {
        self.cut.get_or_insert_with(|| why.into());
    }

    /// What a reader of a report must know, one sentence each.
    pub fn warnings(&self, header: &Header) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(why) = &self.cut {
            said.push(format!(
                "the trace is incomplete: {why}; the events before that are analysed"
            ));
        }
        said.extend(self.loss(header));
        if self.late > 0 {
            said.push(format!(
                "{} up to {} us too late to be put in order: the time that was reached then is taken \
                 instead, and times near there are wrong by as much; a clock that stepped back does \
                 that, and a recorder that keeps more than 2 million events before it writes them \
                 (less with a smaller perf -m)",
                counted(self.late, "event came", "events came"),
                self.latest.0 / 1000
            ));
        }
        if self.damaged > 0 {
            let first = self.first_damage.as_deref().unwrap_or("unknown");
            said.push(format!(
                "the trace is damaged: {} no sense (first: {first}); events are missing there, and \
                 times near there are wrong",
                counted(self.damaged, "record makes", "records make")
            ));
        }
        said
    }

    /// What the recorder lost, and what helps.
    fn loss(&self, header: &Header) -> Option<String> {
        let (events, places) =
            (Count(self.lost, "event").to_string(), Count(self.lost_places, "place").to_string());
        let what = match (self.lost, self.lost_places) {
            (0, 0) => return None,
            (_, 0) => events,
            (0, _) => format!("an unknown number of events at {places}"),
            _ => format!("{events}, and an unknown number at {places}"),
        };
        let option = if header.is_own { "instep record --buffer" } else { "perf -m, trace-cmd -b" };
        Some(format!(
            "the recorder lost {what}; times near there are wrong; record with larger buffers ({option})"
        ))
    }
}

/// A number with words that follow it, those for one or for any other.
pub fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_reported_with_the_recorders_option_for_it() {
        let own = Header { is_own: true, ..Header::default() };
        let said = |lost, lost_places, damaged, header: &Header| {
            let tally = Tally { lost, lost_places, damaged, ..Tally::default() };
            tally.warnings(header).join("\n")
        };
        let other = said(1, 0, 0, &Header::default());
        assert!(other.contains("lost 1 event; ") && other.contains("perf -m"), "{other}");
        let lost = said(0, 1, 0, &own);
        assert!(lost.contains("an unknown number of events at 1 place; "), "{lost}");
        assert!(lost.contains("instep record --buffer") && !lost.contains("perf"), "{lost}");
        assert!(said(2, 3, 0, &own).contains("lost 2 events, and an unknown number at 3 places"));
        let damaged = said(0, 0, 1, &own);
        assert!(damaged.contains("damaged: 1 record makes no sense"), "{damaged}");
        assert!(!damaged.contains("buffer"), "{damaged}");
    }
}
