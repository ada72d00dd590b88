//! A bounded history on disk: what a run published at one moment after the other.
//!
//! ```text
//! Writer --a line, compressed, flushed--> the newest segment   ...   the oldest segment --no room--> removed
//! Cursor --loads one segment at a time--> the moment at a time, the one before it, the one after it
//! ```
//! A directory holds segments `NUMBER-TIME.jsonl.zst`. Each is JSON lines in one zstd stream: `zstdcat` and `jq` read it.
//! A line is a moment: `{"schema":"instep.moment/1","at_ms":TIME,...}`. What else it holds is not looked at here.
//! Segments are in the order of their numbers, so a clock that jumps does not mix them up. It knows no other crate
//! of Instep, starts no thread, and never asks for the time.
//!
//! A host keeps a day of its past in bounded bytes, readable after any crash: `kill -9` loses one record and up to ten
//! minutes of the day's curves. A record is `host.json` of a cycle, so the page draws the past with the code for the present.
//! A day of 100 VMs of 8 vCPUs has 15.9 MiB, of 1,024 VMs of 16 vCPUs 294 MiB. Rejected: SQLite (1 MB of program, a file that
//! does not shrink); Parquet or Arrow (half-written files cannot be read); the systemd journal (not bounded for us); means
//! of old moments (where a vCPU ran has none).
#![forbid(unsafe_code)]

mod cursor;
mod segment;
mod writer;

pub use cursor::Cursor;
pub use segment::{Moment, Segment, opening};
pub use writer::{LEAST_SIZE, Writer};

use std::io;
use std::path::PathBuf;

/// The longest line that is written and read.
pub const MAX_LINE: usize = 16 << 20;
/// The most that the lines of a segment have together: as many as this, and one more line.
const MAX_PLAIN: usize = 32 << 20;
/// A segment with more lines than this in bytes takes no further one.
const FULL_PLAIN: usize = 16 << 20;
/// The most that is read of one file.
const MAX_PACKED: u64 = 32 << 20;
/// The most segments, however small they are: a run that is started again and again begins one each time.
const MOST_SEGMENTS: usize = 4096;

/// Why a history cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or the directory cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The moment is too large for the history.
    #[error("a record of {bytes} bytes has no room in a history of {size} bytes")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// Those that the history may have.
        size: u64,
    },
    /// Nothing in it can be read.
    #[error("{path} holds no history; name the directory in which `instep run` keeps one")]
    Empty {
        /// Where it was looked for.
        path: PathBuf,
    },
}

/// An error of a file.
fn at(path: &std::path::Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.to_owned(), source }
}
