//! Which reader a file needs, by its first bytes.

use crate::dat::DatStream;
use crate::error::{Fault, TraceError};
use crate::perf::{self, PerfStream};
use crate::rec::{self, RecStream};
use crate::source::{Part, ReadAt, read_up_to};
use crate::stream::EventStream;
use crate::tracepoints::Options;
use crate::tracing_data;
use std::io::{Cursor, Read};

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// perf.data, in a file or through a pipe.
    Perf,
    /// trace.dat of trace-cmd.
    Dat,
    /// What `instep record` writes.
    Rec,
}

impl Kind {
    /// By the first bytes of a file; `None` for anything else.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Kind> {
        if start.starts_with(perf::MAGIC) || start.starts_with(perf::MAGIC_SWAPPED) {
            Some(Kind::Perf)
        } else if start.starts_with(tracing_data::MAGIC) {
            Some(Kind::Dat)
        } else if start.starts_with(rec::MAGIC) {
            Some(Kind::Rec)
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
        Some(Kind::Rec) => {
            let part = Part::new(source, 0, u64::MAX);
            Ok(Box::new(RecStream::open(part, path, options)?))
        }
        None => Err(Fault::new(
            "neither perf.data nor trace.dat nor a recording of Instep; record with `instep \
             record`, `perf sched record -a` or `trace-cmd record -e sched -e kvm:kvm_entry`",
        )
        .of(path)),
    }
}

/// Opens a trace that comes through a pipe: perf's or Instep's, for trace.dat is read at many
/// places.
///
/// # Errors
/// As [`open`].
pub fn open_stream<'a>(
    mut source: impl Read + 'a,
    path: &str,
    options: Options,
) -> Result<Box<dyn EventStream + 'a>, TraceError> {
    let mut start = Vec::new();
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    source.by_ref().take(8).read_to_end(&mut start).map_err(failed)?;
    let kind = Kind::of(&start);
    let whole = Cursor::new(start).chain(source);
    match kind {
        Some(Kind::Rec) => Ok(Box::new(RecStream::open(whole, path, options)?)),
        _ => Ok(Box::new(PerfStream::pipe(whole, path, options)?)),
    }
}
