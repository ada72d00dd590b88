//! The kernel scheduler from user space: probe, plan, load, feed, drain.
//!
//! ```text
//! probe(host) -> Probe -> plan(mode) -> Plan::Load --load--> Loaded --feed/drain--> ...
//!                             |                       | exited: why, restart with backoff
//!                             v                       v
//!                        Plan::Stay(why)        default scheduler
//! ```
//! Without the feature `kernel` everything but loading is here, and the plan says so. It decides
//! nothing about placement and knows no file format but those of `/sys/kernel/sched_ext`.

pub mod backoff;
pub mod btf;
pub mod collect;
pub mod cookies;
pub mod exit;
pub mod plan;
pub mod probe;
pub mod settings;
#[cfg(all(test, feature = "kernel"))]
mod stack;
pub mod stats;
pub mod table;
#[cfg(feature = "kernel")]
mod verifier;
pub mod waits;

#[cfg(feature = "kernel")]
pub mod loaded;
#[cfg(not(feature = "kernel"))]
#[path = "absent.rs"]
pub mod loaded;
#[cfg(feature = "kernel")]
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/bpf_skel.rs"));
}

#[cfg(feature = "kernel")]
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod collect_skeleton {
    include!(concat!(env!("OUT_DIR"), "/collect_skel.rs"));
}

pub use plan::{LoadPlan, Mode, plan};
pub use probe::Probe;
pub use settings::{Cosched, CpuPlace, Mechanisms, SchedulerSettings};
pub use table::{Placed, TableLimits, VmEntry, VmTable};
