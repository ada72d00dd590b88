//! Recorded traces of a host's scheduler as plain facts, and the analysis of what they say of VMs.
//!
//! Readers ([`perf`], [`dat`], [`rec`]) pull [`event::Event`]s in order of time out of files that anybody
//! may have written: every length is checked, memory is bounded, and what is lost, late or cut off
//! is counted in a [`stream::Tally`]. The analysis ([`analysis`]) takes events and never looks
//! at a file. Nothing here knows this machine, draws or decides a placement.
#![forbid(unsafe_code)]

pub mod analysis;
mod bytes;
pub mod dat;
pub mod error;
pub mod event;
mod format;
pub mod live;
mod open;
mod order;
pub mod perf;
pub mod perfetto;
pub mod rec;
pub mod source;
pub mod stream;
mod threads;
mod tid_map;
pub mod topology;
mod tracepoints;
mod tracing_data;

pub use error::TraceError;
pub use open::{START, TraceFormat, is_read_at_places, open, open_stream};
pub use tracepoints::ReaderOptions;
