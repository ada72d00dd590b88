//! What a trace says of its VMs: run, steal and blocked time, stacking, co-run, who ran instead,
//! who woke whom, and what to do about it.
//!
//! Events go through once, in order. A first part of the trace is held back until the VMs in it
//! are found ([`discover`]); from then on everything is incremental: memory grows with threads and
//! CPUs, not with events. One measure a module; all see the same changes of a vCPU's state
//! ([`world`]):
//!
//! ```text
//!          waking         wakeup               switch to
//!  Blocked ------> Waking ------> Waiting(cpu) ---------> Running(cpu)
//!     ^                                ^      preempted       |
//!     |                                +----------------------+
//!     +-------------------------------------------------------+  asleep
//! ```
//!
//! Waking and Waiting are steal: the vCPU could run. `perf sched timehist` counts the same when a
//! trace has sched_waking; /proc's schedstat counts from the queue on.
//!
//! What it does not know: quotas and weights of VMs that neither the trace nor the caller has, what the guest did
//! with its time, and anything before the first and after the last event.

mod co_run;
mod culprits;
pub mod discover;
mod findings;
#[cfg(test)]
mod measure_tests;
mod modules;
mod moves;
mod period;
pub mod report;
mod run;
mod stacking;
mod threshold;
mod throttle;
mod waits;
mod world;

pub use findings::time;
pub use instep_core::measure::skew::SchedState;
pub use run::{AnalysisSettings, Sink, analyze, analyze_into};
