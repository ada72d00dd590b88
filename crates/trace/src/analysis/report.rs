//! What an analysis found, as plain data. Its JSON is schema `instep.analysis/1`: times in
//! nanoseconds, fractions from 0 to 1.

use crate::stream::Tally;
use schemars::JsonSchema;
use serde::Serialize;

pub use super::findings::FindingKind;
pub use super::moves::Moves;
pub use super::waits::{Halts, Histogram, Sleeps, WaitTable};

/// Everything.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "Analysis")]
pub struct AnalysisReport {
    /// `instep.analysis/1`.
    #[schemars(extend("const" = "instep.analysis/1"))]
    pub schema: &'static str,
    /// From the first scheduling event to the last.
    pub duration_ns: u64,
    /// Records in the trace, those that are not used included.
    pub events: u64,
    /// Events that the recorder lost, as far as it says.
    pub lost: u64,
    /// What else is wrong with the trace.
    pub trace: TraceReport,
    /// The VMs, by process.
    pub vms: Vec<AnalysedVm>,
    /// What was found, the most time lost first.
    pub findings: Vec<AnalysisFinding>,
    /// The host.
    pub host: AnalysedHost,
    /// What makes the above uncertain.
    pub warnings: Vec<String>,
    /// Threads that were said to run vCPUs and that the trace does not know.
    #[serde(skip)]
    pub unseen: Vec<u32>,
    /// VMs whose weight was given and that the trace does not have.
    #[serde(skip)]
    pub strangers: Vec<String>,
}

/// What is wrong with a trace beside the events that the recorder counted as lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TraceReport {
    /// Events that came after a later one of the same CPU.
    pub reordered: u64,
    /// Events that came too late to be put in their place.
    pub late: u64,
    /// Records that make no sense.
    pub damaged: u64,
    /// Places where the recorder lost events without saying how many.
    pub lost_places: u64,
    /// 1 when the trace ends before its time, else 0.
    pub cut: u64,
}

impl From<&Tally> for TraceReport {
    fn from(tally: &Tally) -> Self {
        let Tally { reordered, late, damaged, lost_places, .. } = *tally;
        let cut = u64::from(tally.cut.is_some());
        TraceReport { reordered, late, damaged, lost_places, cut }
    }
}

/// The host and the trace.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct AnalysedHost {
    /// Its name, where the trace says.
    pub hostname: Option<String>,
    /// Its kernel.
    pub release: Option<String>,
    /// The trace's format.
    pub format: String,
    /// Online CPUs.
    pub cpus: usize,
    /// Time of the first scheduling event by the trace's clock.
    pub begin_ns: u64,
    /// The ideal scheduling interval (systems.md, 2) that vCPUs' sleeps were held against.
    pub ideal_interval_ns: u64,
    /// The allocation period (systems.md, 5).
    pub period_ns: u64,
    /// Mean of competing modules (systems.md, 1); 0 where no core has several CPUs, none where the cores
    /// are unknown.
    pub competing_modules: Option<f64>,
    /// Time in which a core was shared while another was idle; as above.
    pub avoidable_sharing_ns: Option<u64>,
    /// Whether the cores are known and none has several CPUs.
    #[serde(skip)]
    pub has_single_cores: bool,
}

/// One VM. `None` where no event tells: none of its vCPUs has one, or one that has none ran.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct AnalysedVm {
    /// Its name.
    pub name: String,
    /// Its process, where known.
    pub pid: Option<u32>,
    /// Its vCPUs by number.
    pub vcpus: Vec<AnalysedVcpu>,
    /// Fraction of the trace in which two or more siblings were runnable on one CPU.
    pub stacking: Option<f64>,
    /// Mean fraction of the runnable vCPUs that ran while at least one did; `None` if none did, too.
    pub co_run: Option<f64>,
    /// What ran while its vCPUs waited, the longest first.
    pub culprits: Vec<AnalysedCulprit>,
    /// The furthest that a waiting vCPU fell behind its siblings.
    pub max_skew_ns: Option<u64>,
    /// Time of vCPUs that ran while a sibling waited.
    pub beside_waiting_ns: Option<u64>,
    /// Time stacked, by CPU.
    pub stacked_on: Vec<OnCpu>,
    /// Sleeps by who ended them.
    pub wakeups: WaitTable,
    /// The time asleep of each vCPU by who ended it, in the order of [`AnalysedVm::vcpus`].
    pub waits_by_vcpu: Vec<AnalysedWaits>,
    /// Halts of its guest's CPUs; `None` where the trace has no kvm_vcpu_wakeup.
    pub halts: Option<Halts>,
    /// Sleeps by length, 1 us and doubling; the last entry is open.
    pub sleeps: Histogram,
    /// Waits for a CPU by length, 1 us and doubling; the last entry is open.
    pub waits: Histogram,
    /// Moves by distance.
    pub moves: Moves,
    /// When a bottleneck held it up.
    pub held_up: HeldUpReport,
    /// How it used its allocation periods.
    pub periods: PeriodReport,
    /// What its CPU quota did; `None` without one and where the trace does not tell.
    pub throttled: Option<ThrottledReport>,
}

/// One vCPU. Its times are `None` where it has no event and no counter of the kernel is recorded.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct AnalysedVcpu {
    /// Its number.
    pub index: u32,
    /// Its thread.
    pub tid: u32,
    /// Time it ran.
    pub run_ns: Option<u64>,
    /// Time it could run and did not, without that in which a quota stopped it.
    pub steal_ns: Option<u64>,
    /// Time in which a quota stopped it; `None` where no quota is known.
    pub throttled_ns: Option<u64>,
    /// Time it slept.
    pub blocked_ns: Option<u64>,
    /// Moves between CPUs.
    pub migrations: u64,
}

/// Time that a vCPU slept by who ended it, as `instep sim` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct AnalysedWaits {
    /// A sibling: synchronisation.
    pub sibling_ns: u64,
    /// An interrupt: the guest's timer, or a device.
    pub timer_ns: u64,
    /// Another thread of the VM, a vhost thread or a kernel thread.
    pub io_ns: u64,
    /// Somebody else, or the trace does not say; no simulation has it.
    pub other_ns: u64,
}

impl From<&WaitTable> for AnalysedWaits {
    fn from(table: &WaitTable) -> Self {
        AnalysedWaits {
            sibling_ns: table.sibling.ns,
            timer_ns: table.timer.ns,
            io_ns: table.io.ns,
            other_ns: table.other.ns,
        }
    }
}

/// What ran while a VM waited.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct AnalysedCulprit {
    /// A VM, a thread's name, `(idle)`, or the VM itself: stacked siblings.
    pub name: String,
    /// For how long, summed over the vCPUs that waited.
    pub ns: u64,
    /// What the name stands for: threads may have any name.
    #[serde(skip)]
    pub who: Occupant,
}

/// What occupied a CPU, seen from the VM that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Its own vCPUs.
    Siblings,
    /// Nothing: the CPU idled.
    Idle,
    /// Nothing: the vCPU was on no queue yet.
    Waking,
    /// Other VMs and threads.
    Other,
}

/// A time on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OnCpu {
    /// The CPU.
    pub cpu: u32,
    /// The time.
    pub ns: u64,
}

/// Bottlenecks (systems.md, 2).
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct HeldUpReport {
    /// How often the threshold was passed.
    pub passes: u64,
    /// When, from the beginning; the first 1000.
    pub times_ns: Vec<u64>,
    /// How long the VM was held up.
    pub held_ns: u64,
}

/// What a VM's CPU quota did.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ThrottledReport {
    /// Time in which its vCPUs were runnable and stopped by it.
    pub ns: u64,
    /// How often its cgroups were throttled.
    pub times: u64,
    /// The quota, in thousandths of a CPU.
    pub quota_milli_cpus: Option<u64>,
    /// The file that holds it.
    pub file: Option<String>,
    /// Whether that is of a cgroup above the VM's own, and the quota of other VMs, too.
    pub is_above: bool,
    /// Whether it holds for other processes than the VM's, too: as it is above, or as the VM has no cgroup of its own.
    pub is_shared: bool,
}

/// Allocation periods (systems.md, 5), with a share by weight. `None` where no period is whole, and as
/// in [`AnalysedVm`].
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct PeriodReport {
    /// The VM's weight, where the trace or the user tells; 100 is taken otherwise.
    pub weight: Option<u32>,
    /// Whole periods in the trace.
    pub count: u64,
    /// The share of a period.
    pub share_ns: u64,
    /// Periods in which the share was used up.
    pub full: Option<u64>,
    /// Mean use of a period.
    pub mean_use_ns: Option<u64>,
    /// Mean of min(1, use / share).
    pub efficiency: Option<f64>,
}

/// Something found.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct AnalysisFinding {
    /// What kind.
    pub kind: FindingKind,
    /// Which VM; none for the host.
    pub vm: Option<String>,
    /// The time it cost.
    pub lost_ns: u64,
    /// What, the evidence and the remedy, in words.
    pub text: String,
}
