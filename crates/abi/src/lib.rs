//! The interface of the kernel scheduler as Rust sees it: limits, mechanisms, counters and numbers of `bpf/intf.h`, made
//! from that file when this crate is built, and the settings with which the scheduler runs unless it is told others.
//!
//! The layout of structures is not here: the loader has it from the BPF object, the native harness in C.
#![forbid(unsafe_code)]

include!(concat!(env!("OUT_DIR"), "/intf.rs"));

/// All mechanisms: `INSTEP_M_ALL`.
pub const M_ALL: u32 = (1 << MECHANISMS.len()) - 1;

/// The settings of a scheduler that is told no others, times in nanoseconds (`struct instep_settings`).
pub mod defaults {
    /// How long a thread runs when others wait.
    pub const SLICE_NS: u64 = 3_000_000;
    /// Length of a gang slot.
    pub const SLOT_NS: u64 = 6_000_000;
    /// Virtual time by which a thread that wakes up must be behind what it preempts.
    pub const WAKE_SLACK_NS: u64 = 1_000_000;
    /// The most virtual time that an account may save.
    pub const LAG_NS: u64 = 48_000_000;
    /// The allocation period of a VM (docs/systems.md, 5).
    pub const PERIOD_NS: u64 = 24_000_000;
    /// Weight of the host's threads together in each domain until it is known what the tree of cgroups says.
    pub const HOST_WEIGHT: u32 = 100;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_the_header() {
        assert_eq!((MAX_CPUS, NO_SLOT, HOST), (1024, u32::MAX, 0));
        assert_eq!((M_GANG, MECHANISMS[0], WITHOUT[0]), (1, "gang", "without.gang"));
        assert_eq!((COSCHED_RELAXED, EVENT_GANG_ON, EVENT_GANG_OFF), (2, 1, 2));
        assert_eq!(COUNTERS[Counter::Switch as usize], "switches");
        assert_eq!(COUNTERS[Counter::IdleCore as usize], "idle_core");
        assert_eq!(COUNTERS[Counter::GangOff as usize], "gang_off");
    }

    #[test]
    fn no_two_counters_have_one_name() {
        let mut names = COUNTERS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS.len());
    }
}
