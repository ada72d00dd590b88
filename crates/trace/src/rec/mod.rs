//! Instep's own recording (`instep record`), for authors of another reader, too. A file is
//!
//! ```text
//! 89 'I' 'S' 'T' 'E' 'P' 0d 0a   version (2 bytes)   0 0      12 bytes
//! block block block ...
//! ```
//! All numbers are little-endian. Blocks (`block.rs`) stand for themselves, each with a checksum. The first is the
//! head, the last the end: JSON objects that tell the host and its VMs, and what was counted and lost (`head.rs`).
//! Between them are events (`encode.rs`). A reader refuses a version above its own ([`VERSION`]), and passes over kinds
//! of blocks, extension records and keys of JSON that it does not know.
//!
//! A file that is cut is read up to the cut; a damaged block costs itself only. The writer is
//! handed events and writes bytes; it knows neither where they come from nor what time it is.

mod block;
mod decode;
mod encode;
mod head;
mod reader;
mod writer;

pub use block::{MAGIC, VERSION};
pub use head::{End, Head, Lost, VcpuHead, VmHead};
pub use reader::RecStream;
pub use writer::{Writer, framed};
