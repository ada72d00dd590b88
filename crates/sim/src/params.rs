//! What the host model's numbers mean: costs, contention, profiles of work. The numbers themselves and
//! their sources are in scenarios/library. One set per machine holds for all scenarios on it
//! ([`Params::machine`]).

use crate::library;
use serde::{Deserialize, Serialize};

/// One: a speed, a slowdown or a share in 1024ths.
pub const ONE: u64 = 1024;

/// KVM's allocation period in systems.md, 5.
pub const PERIOD_NS: u64 = 24_000_000;

/// Costs in nanoseconds of what a host does beside the work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A CPU changes from one task to another.
    pub context_switch: u64,
    /// More when the task ran on another CPU of the same LLC before: L1 and L2 are refilled.
    pub migrate_llc: u64,
    /// More when it ran under another LLC.
    pub migrate_far: u64,
    /// An idle CPU begins to run what was woken for it: the interrupt, leaving a shallow sleep
    /// state.
    pub idle_exit: u64,
    /// A vCPU that sends an interrupt to a halted or preempted sibling leaves the guest for it.
    pub ipi_exit: u64,
    /// A guest CPU goes to sleep: its idle loop, the HLT exit.
    pub halt: u64,
    /// A halted guest CPU is entered again and runs its idle loop's end.
    pub resume: u64,
    /// A thread goes to sleep in its kernel, or is woken there.
    pub futex: u64,
    /// An operation on a cache line that others just wrote (barrier, lock).
    pub line: u64,
    /// A clock tick's handler, on every CPU that is not idle.
    pub tick: u64,
}

/// KVM's halt-polling (Documentation/virt/kvm/halt-polling.rst, 6.12), nanoseconds; `max` 0: none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HaltPolling {
    /// The longest poll: module parameter `halt_poll_ns`, 200,000 on x86.
    pub max: u64,
    /// The first poll when it grows from zero: `halt_poll_ns_grow_start`, 10,000.
    pub start: u64,
    /// By how much a poll grows: `halt_poll_ns_grow`, 2.
    pub grow: u64,
}

/// What a host does besides running VMs: a kernel thread bound to each CPU and a thread that roams
/// for each VM (its monitor's main loop, Xen's back ends). Without it simulated schedulers fall into step, which real
/// ones never do for long. Times are nanoseconds, each up to 90 % more or less. Source: assumed, of
/// the order of what `perf sched` shows on a quiet server: some 100 short wake-ups a second and CPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Whether there is any.
    pub on: bool,
    /// Work of a bound thread each time; one on each CPU.
    pub bound: u64,
    /// Work of a roaming thread each time; as many as VMs.
    pub roaming: u64,
    /// Time between two wake-ups of each.
    pub wait: u64,
}

/// How busy neighbours slow each other down, in 1024ths of additional time.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Two threads of one core that both live off fetch and decode alone: 1024 halves both.
    pub fetch: u64,
    /// The same for the floating-point unit.
    pub fpu: u64,
    /// The same for the second-level cache.
    pub l2: u64,
    /// What any two busy threads of a core cost each other, whatever they do.
    pub any: u64,
    /// LLC of each group that shares one, in KiB.
    #[serde(rename(deserialize = "llc"))]
    pub llc_kib: u64,
    /// Additional time of work that lives off the LLC alone when none of its data is found there.
    pub llc_miss: u64,
    /// Memory bandwidth of a node in MiB/s.
    pub node_mib_s: u64,
}

/// Latencies of memory, and what a link between two nodes carries.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryTimes {
    /// Nanoseconds of a miss of the last-level cache that memory of the own node serves, without load; 0:
    /// memory costs nothing.
    pub latency: u64,
    /// The same of memory, or of a cache, of the nearest other node; 0: by the distances that firmware states,
    /// twice as long at 20 as at 10. Firmware tends to say more than latencies measure.
    pub remote: u64,
    /// Nanoseconds for which a request holds up those behind it: the time of service of the queue.
    pub service: u64,
    /// Lines that a thread can have on their way at a time with the help of prefetching, in tenths.
    pub in_flight_tenths: u64,
    /// MiB/s from the memory of a node to the CPUs of another.
    pub link_mib_s: u64,
    /// Whether what a vCPU had in a last-level cache has to come back when it is gone (`engine/warmth.rs`). Else a migration to
    /// another cache costs `migrate_far`.
    pub warmth: bool,
}

/// Clock ticks of the kernels of guests, nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestTick {
    /// Between two; 0: none.
    pub period: u64,
    /// The exits and the handler of one.
    pub cost: u64,
}

/// A release of Xen: its credit scheduler has rules of its own (docs/models/schedulers.md). Machines
/// without Xen have 4.4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum XenRelease {
    /// 4.1.3, of August 2012.
    #[serde(rename = "4.1.3")]
    V4_1_3,
    /// 4.4.1, of September 2014.
    #[default]
    #[serde(rename = "4.4.1")]
    V4_4_1,
    /// 4.17, of December 2022; 4.17.7 was read.
    #[serde(rename = "4.17")]
    V4_17,
}

/// A release of Linux whose CFS was read: its rules differ (docs/models/schedulers.md). Other schedulers than those
/// built on CFS do not ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum LinuxRelease {
    /// 3.0, of July 2011.
    #[serde(rename = "3.0")]
    V3_0,
    /// 3.13, of January 2014.
    #[default]
    #[serde(rename = "3.13")]
    V3_13,
    /// 3.19, of February 2015.
    #[serde(rename = "3.19")]
    V3_19,
}

/// Everything. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Params {
    /// The name of the set.
    pub machine: String,
    /// The release of Xen whose rules `credit` follows there.
    pub xen: XenRelease,
    /// The release of Linux whose rules `cfs`, and what is built on it, follow there.
    pub linux: LinuxRelease,
    /// Costs.
    pub costs: Costs,
    /// Halt-polling.
    pub polling: HaltPolling,
    /// Nanoseconds of spinning with the pause instruction after which a vCPU is caught; 0: never.
    /// KVM on Intel: ple_window 4096 cycles (vmx.c, 6.12), 1.6 us at 2.5 GHz; it grows when it
    /// fires often. Spinning at user level is caught on AMD only (pause filter).
    pub ple_window: u64,
    /// Whether spinning at user level is caught, too.
    pub ple_user: bool,
    /// What the host does besides.
    pub noise: Noise,
    /// Contention.
    pub contention: Contention,
    /// Memory.
    pub memory: MemoryTimes,
    /// Additional time of a single thread for running in a VM at all, in 1024ths.
    pub virtualisation: u64,
    /// Clock ticks of guests' kernels.
    pub guest_tick: GuestTick,
}

/// What a thread of some work lives off: thousandths of its time alone in which it is bound by each
/// resource. The rest is bound by nothing shared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name in scenarios.
    pub name: String,
    /// Instruction fetch and decode.
    pub fetch: u32,
    /// Floating-point unit.
    pub fpu: u32,
    /// Second-level cache.
    pub l2: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Latency of local memory: it waits for misses.
    pub memory: u32,
    /// The same by what a machine does not change: lines that it takes from memory in a millisecond of its time
    /// alone, prefetched ones too, and how many of them overlap, in tenths: by execution out of order and by
    /// prefetching. `misses_ms * latency / mlp` of the millisecond waits for them.
    pub misses_ms: u64,
    /// See `misses_ms`.
    pub mlp_tenths: u32,
    /// Its working set in the LLC, in KiB.
    pub set_kib: u64,
    /// Memory bandwidth it takes when undisturbed, in MiB/s: all that is read, prefetched and written back.
    pub mib_s: u64,
}

impl Profile {
    /// A profile with only these bounds.
    pub fn bound(name: &str, [fetch, fpu, l2, llc, memory]: [u32; 5]) -> Self {
        let name = name.to_owned();
        let (misses_ms, mlp_tenths, set_kib, mib_s) = (0, 10, 0, 0);
        Self { name, fetch, fpu, l2, llc, memory, misses_ms, mlp_tenths, set_kib, mib_s }
    }

    /// The profiles that scenarios may name (scenarios/library/applications), in the order in which
    /// simulations number them.
    pub fn known() -> Vec<Self> {
        library::applications().into_iter().map(|one| one.profile).collect()
    }

    /// Index in [`Profile::known`] of what computes and touches nothing shared.
    pub const PLAIN: usize = 0;
    /// Index of busy waiting: the pause instruction leaves most of a core to its sibling.
    pub const SPIN: usize = 1;
}

impl Params {
    /// A set by name (scenarios/library/machines). `ideal` costs nothing anywhere: for examples that
    /// are arithmetic.
    ///
    /// # Errors
    /// When there is none of this name; the known ones are named.
    pub fn machine(name: &str) -> Result<Self, String> {
        library::machine(name)
    }

    /// A two-threads-a-core x86 server under KVM.
    pub fn generic() -> Self {
        Self::built_in("generic")
    }

    /// Nothing costs anything and nobody disturbs anybody.
    pub fn ideal() -> Self {
        Self::built_in("ideal")
    }

    /// Two 16-core Opteron 6376 under Xen 4.4 (systems.md, 1).
    pub fn opteron() -> Self {
        Self::built_in("opteron-6376")
    }

    fn built_in(name: &str) -> Self {
        library::machine(name).expect("a test reads the built-in machines")
    }
}
