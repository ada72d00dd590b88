//! Actions to the host: journal first, then system calls, then what came of them.
//!
//! ```text
//! StateDir --lock--> InstanceLock --Applier::open--> Applier
//!   Applier::apply    reads the affinity found, journals it, sets, reads back
//!   Applier::restore  puts back what was found, unless someone else changed it since
//!   Applier::keep     leaves the placement standing (a finished `run --once`)
//! widen               all CPUs of their cpusets, where no journal tells more
//! Damon::watch        records, then has the kernel watch which memory is in use, until dropped
//! HostLock            one instance per host, whatever its state directory
//! ```
//! Nothing here decides where anything should be.

pub mod advised;
pub mod affinity;
pub mod applier;
pub mod damon;
pub mod homecoming;
pub mod host_lock;
pub mod instance;
pub mod journal;
mod lock_file;
pub mod move_pages;
pub mod ranges;
pub mod restore;
pub mod room;
pub mod state;
pub mod thread;
pub mod widen;

#[cfg(test)]
pub(crate) mod testing;

pub use advised::{Advised, AdvisedRoom};
pub use affinity::{Affinity, KernelAffinity};
pub use applier::{AffinityChange, Applied, Applier, ChangeOutcome};
pub use damon::Damon;
pub use homecoming::{Budget, Homecoming, MoveStop, Step, Tally};
pub use host_lock::HostLock;
pub use instance::{Instance, InstanceLife};
pub use journal::{AffinityNow, Holder, Journal, ThreadKind, this_instance};
pub use move_pages::{Cause, KernelPages};
pub use restore::{LeftAlone, RestoreReport};
pub use state::{InstanceLock, StateDir};
pub use thread::ThreadKey;
pub use widen::{WidenReport, widen};
