//! Which reader a file needs, by its first bytes.

use crate::dat::DatStream;
use crate::error::{Fault, TraceError};
use crate::perf::{self, PerfStream};
use crate::source::{ReadAt, read_up_to};
use crate::stream::EventStream;
use crate::tracepoints::Options;
use crate::tracing_data;
use std::io::Read;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// perf.data, in a file or through a pipe.
    Perf,
    /// trace.dat of trace-cmd.
    Dat,
}

impl Kind {
    /// By the first bytes of a file; `None` for anything else.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Kind> {
        if start.starts_with(perf::MAGIC) || start.starts_with(perf::MAGIC_SWAPPED) {
            Some(Kind::Perf)
        } else if start.starts_with(tracing_data::MAGIC) {
            Some(Kind::Dat)
        } else {
            None
        }
    }
}

/// Opens a trace that can be read at any place; `path` is for messages.
///
/// # Errors
/// When it is of no known format, describes no scheduling, or its head is damaged.
pub fn open<'a>(
    source: impl ReadAt + 'a,
    path: &str,
    options: Options,
) -> Result<Box<dyn EventStream + 'a>, TraceError> {
    let start = read_up_to(&source, 0, 16)
        .map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
    match Kind::of(&start) {
        Some(Kind::Perf) => Ok(Box::new(PerfStream::open(source, path, options)?)),
        Some(Kind::Dat) => Ok(Box::new(DatStream::open(source, path, options)?)),
        None => Err(Fault::new(
            "neither perf.data nor trace.dat; record with `perf sched record -a` or \
             `trace-cmd record -e sched -e kvm:kvm_entry`",
        )
        .of(path)),
    }
}

/// Opens a trace that comes through a pipe: perf's only, for trace.dat is read at many places.
///
/// # Errors
/// As [`open`].
pub fn open_stream<'a>(
    source: impl Read + 'a,
    path: &str,
    options: Options,
) -> Result<Box<dyn EventStream + 'a>, TraceError> {
    Ok(Box::new(PerfStream::pipe(source, path, options)?))
}
