//! Instep's own recording (`instep record`, docs/format-record.md): blocks that stand for
//! themselves, each with a checksum; a head that tells the host and its VMs, events, an end that
//! tells what was counted.
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
pub use head::{Counter, End, Head, Lost, Throttled, VcpuHead, VmHead};
pub use reader::RecStream;
pub use writer::{Writer, framed};
