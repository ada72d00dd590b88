//! A Linux host to [`instep_core::snapshot::Snapshot`], and actions to the host.
//!
//! Observing reads files under an injected [`root::Root`]; every format is parsed by a pure
//! function that a fuzz target exercises. Applying journals first, then makes system calls. This
//! crate decides nothing: it knows no policy.

pub mod apply;
pub mod collect;
pub mod discover;
pub mod error;
pub mod profile;
mod records;
pub mod root;
pub mod system;
pub mod topology;

pub use error::Error;
pub use root::Root;
