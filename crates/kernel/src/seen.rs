//! What the loaded scheduler tells: counters, events, VMs, costs. Plain data.

use crate::settings::{Cosched, Latency};
use instep_core::units::NodeId;

/// Names of the counters, in the order of `enum instep_counter`.
pub const COUNTERS: [&str; 45] = [
    "switches",
    "idle_core",
    "idle_cpu",
    "idle_remote",
    "queued",
    "moved_apart",
    "stacked",
    "stolen",
    "pulled",
    "wake_sibling",
    "wake_timer",
    "wake_io",
    "wake_preempt",
    "tick_preempt",
    "episodes",
    "episode_kicks",
    "skew_stops",
    "holes_left",
    "boosts",
    "yields",
    "yields_missed",
    "expired",
    "clamped",
    "kthreads_first",
    "gang_on",
    "gang_off",
    "probes",
    "missed",
    "gather_trials",
    "gather_on",
    "gather_off",
    "handed_over",
    "kicks_saved",
    "holes_ended",
    "idle_home",
    "prompt_preempt",
    "rescued",
    "cores_left",
    "came_home",
    "overdue",
    "probes_kept",
    "turns",
    "stayed",
    "light_first",
    "events_lost",
];

/// Something that the scheduler found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on the monotonic clock.
    pub at_ns: u64,
    /// `enum instep_event_kind`.
    pub kind: u32,
    /// Index of the VM.
    pub vm: u32,
    /// See the kind.
    pub a: u64,
    /// See the kind.
    pub b: u64,
}

impl Event {
    /// What it says of its VM; `None` for a kind that is not known.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        let in_cpu = format!("in {} ms of CPU time", self.b / 1_000_000);
        let blocks = format!("{} blocks {in_cpu}", self.a);
        let wakes = format!("{} wake-ups by siblings {in_cpu}", self.a);
        Some(match self.kind {
            1 => format!("runs together: {blocks}"),
            2 => format!("runs apart: {blocks}"),
            3 => format!("tried together: {blocks} apart"),
            4 => format!("stays together: {blocks} in the trial"),
            5 => format!("tried on one CPU: {wakes} apart"),
            6 => format!("stays on one CPU: {wakes} in the trial"),
            7 => format!("no longer on one CPU: {wakes}"),
            _ => return None,
        })
    }
}

/// What the kernel knows of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSeen {
    /// Its name.
    pub name: String,
    /// Its weight, as the kernel has it.
    pub weight: u32,
    /// Its allocation period in nanoseconds, as the kernel has it.
    pub period_ns: u64,
    /// Its co-scheduling, as it was fed.
    pub cosched: Cosched,
    /// Its latency class, as it was fed.
    pub latency: Latency,
    /// The node that it was told to keep the VM on, if any.
    pub home: Option<NodeId>,
    /// Whether its siblings run together now.
    pub gang: bool,
    /// Whether it runs on one CPU now, as its vCPUs hand over to each other at a fine grain.
    pub gathered: bool,
    /// What the scheduler last found out of it, since it is known.
    pub found: Option<String>,
    /// CPU time of its vCPUs since it is known.
    pub cpu_ns: u64,
    /// How often a vCPU blocked since it is known.
    pub blocks: u64,
    /// Time in which more than one of its vCPUs ran.
    pub together_ns: u64,
    /// Time in which one ran while another waited for a CPU.
    pub apart_ns: u64,
    /// Its virtual time less the host's, in nanoseconds: negative when it is behind its share.
    pub lead_ns: i64,
}

/// What one BPF program cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// How long in all.
    pub ns: u64,
    /// Instructions that the verifier went through.
    pub instructions: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_says_what_was_counted() {
        let event = |kind| Event { at_ns: 0, kind, vm: 1, a: 17, b: 48_000_000 };
        for kind in 1..=7 {
            let told = event(kind).told().unwrap();
            assert!(told.contains("17 ") && told.contains("in 48 ms of CPU time"), "{told}");
        }
        assert_eq!((event(0).told(), event(8).told()), (None, None));
    }

    /// Of each header in bpf/: what its first comment says after `word` ("Flag", "Counters").
    fn named(word: &str) -> Vec<String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let head = text.split("*/").nth(1).unwrap_or_default().replace("\n * ", " ");
            let Some((_, rest)) = head.split_once(word) else { continue };
            let list = rest.trim_start_matches("s: ").trim_start_matches(": ");
            let list = list.split(['.', ';', '(']).next().unwrap();
            names.extend(list.split(", ").map(|name| name.trim().to_owned()));
        }
        names.sort();
        names
    }

    #[test]
    fn each_flag_and_each_counter_is_told_in_one_header() {
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(named("Counters"), sorted(&COUNTERS));
        let mut flags = named("Flag");
        flags.retain(|name| !name.starts_with("none"));
        flags.dedup();
        assert_eq!(flags, sorted(&crate::settings::MECHANISMS));
    }
}
