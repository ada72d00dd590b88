//! Records this host's scheduling: a source of events (BPF, else tracefs), the host's facts, and
//! Instep's own format, joined for a bounded time.
//!
//! ```text
//! scan VMs -> start source -> names and processes of all threads -> head
//!     -> after the first round: visit CPUs whose vCPUs no switch told of
//!     -> every tenth of a second: drain -> write           (time, size, stop)
//!     -> stop source -> drain the rest -> counters -> end
//! ```
//! It changes nothing of how threads are scheduled (but see `silent`), decides nothing and draws
//! nothing. Nothing is lost silently: what a source lost is written where it happened and summed at
//! the end.
#![forbid(unsafe_code)]

mod bpf;
mod error;
mod proc_facts;
mod session;
mod silent;
mod source;
mod tracefs;

pub use error::Error;
pub use session::{Progress, RecordOptions, Summary, record};
pub use source::Choice;
