//! Every number of the host model that is not topology: costs, contention, profiles of work, each
//! with its source. One set per machine holds for all scenarios on it ([`Params::machine`]).
//!
//! "Assumed" means that no published figure for the machine was at hand: a round number of the usual
//! size, stated so that it can be replaced.

use serde::Serialize;

/// One: a speed, a slowdown or a share in 1024ths.
pub const ONE: u64 = 1024;

/// Costs in nanoseconds of what a host does beside the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// A CPU changes from one task to another. Source: lmbench lat_ctx on 2-3 GHz x86, 1 to 2 us.
    pub context_switch: u64,
    /// More when the task ran on another CPU of the same LLC before: L1 and L2 are refilled.
    /// Source: assumed, 256 KiB from L3 at some 20 GB/s is 13 us if all of it is used; a part is.
    pub migrate_llc: u64,
    /// More when it ran under another LLC. Source: assumed, the LLC's share is refilled.
    pub migrate_far: u64,
    /// An idle CPU begins to run what was woken for it: the interrupt, leaving a shallow sleep
    /// state. Source: Linux intel_idle tables, C1 exit latency 2 us.
    pub idle_exit: u64,
    /// A vCPU that sends an interrupt to a halted or preempted sibling leaves the guest for it.
    /// Source: KVM exits take some 1.2 us (kvm-unit-tests vmexit, ipi_halt several us).
    pub ipi_exit: u64,
    /// A guest CPU goes to sleep: its idle loop, the HLT exit. Source: as `ipi_exit`, assumed 2 us.
    pub halt: u64,
    /// A halted guest CPU is entered again and runs its idle loop's end. Source: assumed, 3 us.
    pub resume: u64,
    /// A thread goes to sleep in its kernel, or is woken there. Source: futex system calls and a
    /// switch of threads, some 1 us each (perf bench futex).
    pub futex: u64,
    /// An operation on a cache line that others just wrote (barrier, lock). Source: core-to-core
    /// latency within a socket, 50 to 100 ns.
    pub line: u64,
    /// A clock tick's handler, on every CPU that is not idle. Source: assumed, 2 us.
    pub tick: u64,
}

/// KVM's halt-polling (Documentation/virt/kvm/halt-polling.rst, 6.12), nanoseconds; `max` 0: none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    pub llc_kib: u64,
    /// Additional time of work that lives off the LLC alone when none of its data is found there.
    pub llc_miss: u64,
    /// Memory bandwidth of a node in MiB/s.
    pub node_mib_s: u64,
}

/// Everything. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Params {
    /// The name of the set.
    pub machine: &'static str,
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
    /// Additional time of a single thread for running in a VM at all, in 1024ths.
    pub virtualisation: u64,
}

/// What a thread of some work lives off: thousandths of its time alone in which it is bound by each
/// resource. The rest is bound by nothing shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Memory latency and bandwidth.
    pub memory: u32,
    /// Its working set in the LLC, in KiB.
    pub set_kib: u64,
    /// Memory bandwidth it takes when undisturbed, in MiB/s.
    pub mib_s: u64,
}

impl Profile {
    /// A profile with only these bounds.
    #[must_use]
    pub fn bound(name: &str, [fetch, fpu, l2, llc, memory]: [u32; 5]) -> Self {
        let name = name.to_owned();
        Self { name, fetch, fpu, l2, llc, memory, set_kib: 0, mib_s: 0 }
    }

    /// The profiles that scenarios may name. Sources: integer, recursive and branchy work is bound
    /// by fetch, NPB ep by floating point without communication (systems.md, 1); stream and chase
    /// by what they are made for (docs/load.md); shares are assumed.
    #[must_use]
    pub fn known() -> Vec<Self> {
        let memory = |name: &str, llc, memory, set_kib, mib_s| Self {
            llc,
            memory,
            set_kib,
            mib_s,
            ..Self::bound(name, [0; 5])
        };
        vec![
            Self::bound("plain", [0; 5]),
            Self::bound("spin", [100, 0, 0, 0, 0]),
            Self::bound("fetch", [800, 0, 0, 0, 0]),
            Self::bound("fpu", [100, 700, 0, 0, 0]),
            Self::bound("l2", [100, 100, 600, 0, 0]),
            memory("stream", 0, 900, 65_536, 8_000),
            memory("chase", 200, 800, 65_536, 600),
            memory("cache", 700, 100, 3_072, 300),
        ]
    }

    /// Index in [`Profile::known`] of what computes and touches nothing shared.
    pub const PLAIN: usize = 0;
    /// Index of busy waiting: the pause instruction leaves most of a core to its sibling.
    pub const SPIN: usize = 1;
}

impl Params {
    /// Names of the machines.
    pub const MACHINES: [&'static str; 4] = ["generic", "ideal", "opteron-6376", "xeon-ple"];

    /// A set by name. `ideal` costs nothing anywhere: for examples that are arithmetic.
    #[must_use]
    pub fn machine(name: &str) -> Option<Self> {
        Some(match name {
            "generic" => Self::generic(),
            "ideal" => Self::ideal(),
            "opteron-6376" => Self::opteron(),
            "xeon-ple" => Self { machine: "xeon-ple", ple_window: 1_600, ..Self::generic() },
            _ => return None,
        })
    }

    /// A two-threads-a-core x86 server under KVM.
    #[must_use]
    pub fn generic() -> Self {
        Self {
            machine: "generic",
            costs: Costs {
                context_switch: 1_500,
                migrate_llc: 5_000,
                migrate_far: 20_000,
                idle_exit: 2_000,
                ipi_exit: 1_200,
                halt: 2_000,
                resume: 3_000,
                futex: 1_000,
                line: 100,
                tick: 2_000,
            },
            polling: HaltPolling { max: 200_000, start: 10_000, grow: 2 },
            ple_window: 1_600,
            ple_user: false,
            noise: Noise { on: true, bound: 30_000, roaming: 100_000, wait: 10_000_000 },
            // Two hyperthreads give 1.2 to 1.3 times one (Intel, Hyper-Threading Technology Journal
            // 2002; SPECint rates since): each about 1.6 times slower when both are busy.
            contention: Contention {
                fetch: 600,
                fpu: 700,
                l2: 600,
                any: 350,
                llc_kib: 16_384,
                llc_miss: 2_048,
                node_mib_s: 30_000,
            },
            virtualisation: 20,
        }
    }

    /// Nothing costs anything and nobody disturbs anybody.
    #[must_use]
    pub fn ideal() -> Self {
        Self {
            machine: "ideal",
            costs: Costs {
                context_switch: 0,
                migrate_llc: 0,
                migrate_far: 0,
                idle_exit: 0,
                ipi_exit: 0,
                halt: 0,
                resume: 0,
                futex: 0,
                line: 0,
                tick: 0,
            },
            polling: HaltPolling { max: 0, start: 0, grow: 0 },
            ple_window: 0,
            ple_user: false,
            noise: Noise { on: false, bound: 0, roaming: 0, wait: 0 },
            contention: Contention {
                fetch: 0,
                fpu: 0,
                l2: 0,
                any: 0,
                llc_kib: u64::MAX,
                llc_miss: 0,
                node_mib_s: u64::MAX,
            },
            virtualisation: 0,
        }
    }

    /// Two 16-core Opteron 6376 under Xen 4.4 (systems.md, 1): two CPUs of a module share decoder,
    /// L2 and FPU, integer cores are their own. No halt-polling in Xen. Virtualisation overhead
    /// 24 % of a single thread is published; 6 MiB of L3 a node; bandwidth of two channels of DDR3
    /// 1600 assumed at 60 % of 25.6 GB/s.
    #[must_use]
    pub fn opteron() -> Self {
        Self {
            machine: "opteron-6376",
            polling: HaltPolling { max: 0, start: 0, grow: 0 },
            ple_window: 0,
            // Xen has no threads of its own: only dom0's back ends run beside the VMs.
            noise: Noise { on: true, bound: 0, roaming: 100_000, wait: 10_000_000 },
            contention: Contention {
                fetch: 900,
                fpu: 900,
                l2: 600,
                any: 50,
                llc_kib: 6_144,
                llc_miss: 2_048,
                node_mib_s: 15_000,
            },
            virtualisation: 246,
            ..Self::generic()
        }
    }
}
