//! A Xen host, seen from its control domain (dom0), to [`instep_core::snapshot::Snapshot`], and actions to the host.
//!
//! ```text
//! xl info, list, vcpu-list, ... --text--> Scan --snapshot--> Snapshot        Decision --apply--> xl vcpu-pin, libxenlight
//! DIR/xen/COMMAND (a copy) ------^                                                   (journal first)
//! ```
//!
//! What `xl` prints is parsed by pure functions, each with a fuzz target. This crate decides nothing and knows no
//! policy; it knows nothing of Linux hosts with KVM either.

pub mod apply;
pub mod copy;
pub mod detect;
pub mod error;
pub mod rates;
pub mod scan;
pub mod source;
pub mod text;

pub use error::Error;
pub use scan::{DomainKey, XenScan};
pub use source::Source;
