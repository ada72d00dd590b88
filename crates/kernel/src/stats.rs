//! What the loaded scheduler tells: counters, events, VMs, costs. Plain data.

use crate::settings::{Cosched, Latency};
use crate::waits::WaitClasses;
pub use instep_abi::COUNTERS;
use instep_abi::{EVENT_GANG_OFF, EVENT_GANG_ON};
use instep_core::units::{NodeId, Tid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that the scheduler found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerEvent {
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

impl SchedulerEvent {
    /// What it says of its VM, in words; `None` for a kind that is not known.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let window = format!("by what it did in {} ms of CPU time", self.b / 1_000_000);
        Some(match self.kind {
            EVENT_GANG_ON => format!("gang of {} vCPUs formed {window}", self.a),
            EVENT_GANG_OFF => format!("gang dissolved {window}"),
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
    /// vCPUs of its gang; 0 while it forms none.
    pub seats: u32,
    /// CPUs of its gang set.
    pub gang_cpus: u32,
    /// Its scheduling domain; none before one of its threads woke up.
    pub domain: Option<u32>,
    /// CPUs that it is entitled to now, in 1024ths of a CPU.
    pub share: u32,
    /// What the scheduler last found out of it, since it is known.
    pub found: Option<String>,
    /// CPU time of its vCPUs since it is known.
    pub cpu_ns: u64,
    /// Time for which CPU limits of cgroups held its threads, summed over them, since it is known.
    pub held_ns: u64,
    /// How often a vCPU blocked since it is known.
    pub blocks: u64,
    /// Time in which more than one of its vCPUs ran.
    pub together_ns: u64,
    /// Time in which one ran while another waited for a CPU.
    pub apart_ns: u64,
    /// How far its virtual time is behind its domain's clock, in nanoseconds: negative when it is ahead.
    pub lag_ns: i64,
    /// Gang slots that it had since it is known.
    pub slots: u64,
    /// How often a CPU was taken from its gang in its slot.
    pub tears: u64,
    /// Its vCPUs, in their order, and how long each waited for a CPU since it is known.
    pub vcpus: Vec<(Tid, WaitClasses)>,
}

/// A scheduling domain: CPUs of a node that share one clock of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct DomainSeen {
    /// Its number.
    pub domain: u32,
    /// Its node.
    pub node: NodeId,
    /// Its CPUs.
    pub cpus: u32,
    /// Its clock: virtual time in nanoseconds since the scheduler was loaded.
    pub clock_ns: u64,
    /// VMs that compete for its CPUs.
    pub vms: u32,
    /// Of these, such as form gangs.
    pub gangs: u32,
    /// Time for which CPU limits of cgroups held threads that belong to no VM, summed over them, since the scheduler was loaded.
    #[serde(default)]
    pub host_held_ns: u64,
}

/// A CPU limit of a cgroup (`struct limit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSeen {
    /// The cgroup's inode number.
    pub group: u64,
    /// CPUs that it allows, thousandths.
    pub milli_cpus: u64,
    /// Whether its threads may not run now: nothing is left of it.
    pub is_used_up: bool,
    /// For how long it held threads, summed over them, since the scheduler knows it; such as it is the nearest limit of.
    pub held_ns: u64,
}

/// What threads of all cgroups and VMs want, as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// CPUs that it schedules.
    pub cpus: u32,
    /// Cgroups in which there were threads of late.
    pub groups: Vec<GroupSeen>,
    /// VMs, in the order of the table.
    pub vms: Vec<VmWant>,
}

/// A cgroup (`struct group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSeen {
    /// Its inode number.
    pub id: u64,
    /// That of the cgroup above it, 0 if there is none.
    pub parent: u64,
    /// Its weight as the kernel has it: 1,048,576 for a `cpu.weight` of 100.
    pub shares: u64,
    /// CPUs that its own limit allows, thousandths; 0 if it has none.
    pub most: u64,
    /// Time for which threads of the host in it were runnable, summed over them, since it is known.
    pub want_ns: u64,
}

/// What a VM wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmWant {
    /// Of the table when its entry was begun.
    pub begun: u32,
    /// Time for which its threads were runnable, summed over them, since then.
    pub wanted_ns: u64,
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
        let event = |kind| SchedulerEvent { at_ns: 0, kind, vm: 1, a: 3, b: 48_000_000 };
        let formed = event(1).describe().unwrap();
        assert_eq!(formed, "gang of 3 vCPUs formed by what it did in 48 ms of CPU time");
        let dissolved = event(2).describe().unwrap();
        assert_eq!(dissolved, "gang dissolved by what it did in 48 ms of CPU time");
        assert_eq!((event(0).describe(), event(3).describe()), (None, None));
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
        names.retain(|name| name != "none");
        names.sort();
        names
    }

    #[test]
    fn each_flag_and_counter_is_named_in_one_header() {
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(named("Counters"), sorted(&COUNTERS));
        let mut flags = named("Flag");
        flags.dedup();
        assert_eq!(flags, sorted(&crate::settings::MECHANISMS));
    }
}
