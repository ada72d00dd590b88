//! perf.data: what `perf record` and `perf sched record` write, to a file or to a pipe, compressed
//! or not.
//!
//! A file has a header, attributes, records and behind them features (host, topology, tracepoint
//! formats); a pipe has everything as records. Little-endian only. What is read: samples of
//! tracepoints, names, forks, exits, losses. What is not: call chains, maps, hardware counters.
//!
//! A file says how long it is. A pipe does not, but perf ends a round (FINISHED_ROUND) whenever it has
//! emptied its buffers, so events behind the last one mean that the rest is missing. A pipe that was cut
//! right behind a round looks like a whole one.
//!
//! Sources: tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h
//! of Linux 6.18.

mod attr;
mod features;
mod head;
mod inflate;
mod reader;
mod records;

pub use reader::PerfStream;

/// What every perf.data begins with.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";
/// The same on a machine of the other byte order.
pub(crate) const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";

/// Whether what begins so is as perf writes it to a file. In a pipe everything is a record, in order.
pub(crate) fn is_file(start: &[u8]) -> bool {
    crate::bytes::u64_at(start, 8).is_some_and(|size| size != head::PIPE_HEAD)
}
