//! sched_ext outside the kernel: the C of bpf/, compiled for this machine as it is, on an interface
//! with the kernel's semantics.
//!
//! [`kernel`] is the host: run queues, dispatch queues, idle masks, kicks, in the order in which the
//! kernel calls a scheduler's operations, which is checked. [`instep`] is Instep's scheduler on it.
//! Facts are those of kernel/sched/ext.c, Linux 6.12 to 7.2. It knows no time but what it is told, no
//! work, no VM's inside; nothing is shared between instances.
//!
//! Why this and no model: a model of the scheduler shows what the model does, not what the kernel does.
//! * The system's C compiler compiles the sources of bpf/ as they are. `scx/common.bpf.h` stands in the kernel's place.
//! * What kernel/sched/ext.c does is written anew from documentation and behaviour. Where releases differ
//!   (`ops.dequeue` since 7.1) both are there. A mistake for which the kernel ejects a scheduler ends the run.
//! * An instance is a value behind a thread-local pointer, so runs go side by side. Rejected: a shared object or a
//!   process for each run.
//! * Nothing unwinds through C. A kfunc notes what is wrong, and the error is raised when C has returned.
//!
//! Limits: no races between CPUs, no time of callbacks, no higher classes, no `cpu_release`, no core scheduling.

pub mod abi;
mod dsq;
mod flow;
mod idle;
mod inner;
pub mod instep;
pub mod kernel;
mod kfunc;
mod order;
mod state;
#[cfg(test)]
mod tests;

/// A hash of bpf/'s sources as they were when this was built: FNV-1a, 64 bits, hexadecimal.
pub const SOURCES: &str = env!("INSTEP_BPF_SOURCES");

pub use inner::{Machine, Release, SchedulerEvent, TaskSetup};
pub use kernel::{Kernel, Refused, Sizes, Waker};
