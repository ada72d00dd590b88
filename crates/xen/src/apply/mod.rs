//! Actions to a Xen host: journal first, then commands, then what came of them.
//!
//! ```text
//! Decision --Change::of_decision--> changes, one a domain
//! Applier::apply    looks again, journals what was found, sets, looks whether it is so; undoes a domain that fails
//! Applier::restore  puts back what was found, unless someone else changed it since
//! ```
//! Nothing here decides where anything should be. The caller holds the lock of the state directory.

mod access;
mod applier;
mod journal;
mod node_affinity;
mod restore;

pub use access::{HostAccess, LiveAccess, pin_arguments};
pub use applier::{Applied, Applier, DomainChange};
pub use instep_state::Holder;
pub use journal::{Held, Journal, parse};
pub use restore::DomainRestoreReport;
