//! Watches what the threads of an application or a VM do, for `instep profile`.
//!
//! [`watch`] asks /proc at intervals: it works for every process, and is blurred by a tick. [`tracer`]
//! takes every context switch from the kernel's software events, where that is allowed, and finds
//! busy waiting by the code that a thread is in. Both give a
//! [`Watched`](instep_core::profile::Watched); what it means is core's.

pub mod code;
pub mod records;
pub mod spin_hints;
pub mod timeline;
pub mod tracer;
pub mod watch;

pub use spin_hints::SpinHints;
pub use tracer::Tracer;
pub use watch::{Target, ThreadWatch};
