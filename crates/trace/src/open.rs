//! Which reader a file needs, by its first bytes.

use crate::dat::DatStream;
use crate::error::{Fault, TraceError};
use crate::perf::{self, PerfStream};
use crate::rec::{self, RecStream};
use crate::source::{Part, ReadAt, read_up_to};
use crate::stream::EventStream;
use crate::tracepoints::ReaderOptions;
use crate::tracing_data;
use std::io::{Cursor, Read};

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// perf.data, in a file or through a pipe.
    Perf,
    /// trace.dat of trace-cmd.
    Dat,
    /// What `instep record` writes.
    Rec,
}

impl TraceFormat {
    /// By the first bytes of a file; `None` for anything else.
    pub fn of(start: &[u8]) -> Option<TraceFormat> {
        if start.starts_with(perf::MAGIC) || start.starts_with(perf::MAGIC_SWAPPED) {
            Some(TraceFormat::Perf)
        } else if start.starts_with(tracing_data::MAGIC) {
            Some(TraceFormat::Dat)
        } else if start.starts_with(rec::MAGIC) {
            Some(TraceFormat::Rec)
        } else {
            None
        }
    }
}

/// Bytes by which [`TraceFormat::of`] and [`is_read_at_places`] know a trace.
pub const START: u64 = 16;

/// Whether a trace that starts so cannot be read from its front to its back: trace.dat, and perf.data
/// that perf wrote to a file, have at their end what tells how to read the rest.
pub fn is_read_at_places(start: &[u8]) -> bool {
    match TraceFormat::of(start) {
        Some(TraceFormat::Dat) => true,
        Some(TraceFormat::Perf) => start.starts_with(perf::MAGIC) && perf::is_file(start),
        Some(TraceFormat::Rec) | None => false,
    }
}

/// What begins as no known format does.
fn unknown(start: &[u8]) -> Fault {
    Fault::new(if start.is_empty() {
        "it is empty: its recorder wrote nothing; see the recorder's messages"
    } else {
        "neither perf.data nor trace.dat nor a recording of Instep; record with `instep record`, \
         `perf sched record -a` or `trace-cmd record -e sched -e kvm:kvm_entry`"
    })
}

/// Opens a trace that can be read at any place; `path` is for messages.
///
/// # Errors
/// When it is of no known format, describes no scheduling, or its head is damaged.
pub fn open<'a>(
    source: impl ReadAt + 'a,
    path: &str,
    options: ReaderOptions,
) -> Result<Box<dyn EventStream + 'a>, TraceError> {
    let start = read_up_to(&source, 0, START)
        .map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
    match TraceFormat::of(&start) {
        Some(TraceFormat::Perf) => Ok(Box::new(PerfStream::open(source, path, options)?)),
        Some(TraceFormat::Dat) => Ok(Box::new(DatStream::open(source, path, options)?)),
        Some(TraceFormat::Rec) => {
            let part = Part::new(source, 0, u64::MAX);
            Ok(Box::new(RecStream::open(part, path, options)?))
        }
        None => Err(unknown(&start).of(path)),
    }
}

/// Opens a trace that comes through a pipe: perf's or Instep's; others [are read at many
/// places](is_read_at_places).
///
/// # Errors
/// As [`open`].
pub fn open_stream<'a>(
    mut source: impl Read + 'a,
    path: &str,
    options: ReaderOptions,
) -> Result<Box<dyn EventStream + 'a>, TraceError> {
    let mut start = Vec::new();
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    source.by_ref().take(START).read_to_end(&mut start).map_err(failed)?;
    let kind = TraceFormat::of(&start);
    let whole = Cursor::new(start.clone()).chain(source);
    match kind {
        Some(TraceFormat::Rec) => Ok(Box::new(RecStream::open(whole, path, options)?)),
        Some(TraceFormat::Perf) => Ok(Box::new(PerfStream::pipe(whole, path, options)?)),
        Some(TraceFormat::Dat) => Err(Fault::new(
            "trace.dat is read at many places, so it cannot come through a pipe; write it to a file",
        )
        .of(path)),
        None => Err(unknown(&start).of(path)),
    }
}
