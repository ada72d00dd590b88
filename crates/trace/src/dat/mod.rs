//! trace.dat: what `trace-cmd record` writes, versions 6 and 7, its parts plain or compressed
//! with zstd or zlib.
//!
//! The head and its sections describe the host and the tracepoints; the data are pages of the
//! kernel's ring buffers, CPU by CPU, which are read side by side and merged by time.
//! Little-endian only; of several trace instances the first with data is read.
//!
//! Sources: trace-cmd.dat.v6(5), trace-cmd.dat.v7(5) (section sizes are 8 bytes there in fact);
//! kernel/trace/ring_buffer.c of Linux 6.18 for pages.

mod chunks;
mod cpu;
mod head;
mod options;
pub(crate) mod pages;
mod reader;
mod sections;

pub use reader::DatStream;
