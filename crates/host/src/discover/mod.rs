//! The VMs of a host: which processes they are, which threads their vCPUs, what they use.
//!
//! A [`Scanner`] reads /proc, /sys/fs/cgroup and KVM's debugfs under a [`Root`](crate::Root) and
//! gives a [`Scan`]; [`snapshot`] turns one or two of them into what policies take. Parsers are
//! pure functions in modules of their own. A process or thread that ends in the middle of a scan
//! is left out of it; nothing is decided here.
//!
//! ```text
//! process --stat--> known and old? --yes--> skip (some are looked at again in turn)
//!    | no
//!    v
//! descriptors, argv[0], exe --> monitor? --> threads --> debugfs --> names --> QMP --> VmFacts
//!                                                            `-------- none fits ----> OpaqueVm
//! ```

pub mod args;
mod arrivals;
pub mod cgroup;
pub mod debugfs;
pub mod definition;
mod devices;
mod examine;
mod facts;
mod files;
mod gaps;
pub mod guest;
pub mod guest_memory;
pub mod guest_numa;
pub mod identify;
mod isolated;
pub mod memory;
pub mod names;
mod new_processes;
pub mod numa_maps;
pub mod numa_stat;
mod options;
pub mod proc_text;
pub mod process;
pub mod qmp;
pub mod quota;
mod rates;
mod rivals;
mod scan;
mod shares;
pub mod smp;
mod trust;
pub(crate) mod units;
pub mod vmm;
pub mod waits;

#[cfg(test)]
mod tests;

pub use arrivals::Arrivals;
pub use definition::{Definition, Origin};
pub use facts::{
    Accel, Debugfs, EmulatorFacts, Gaps, Manager, MemoryFacts, MemorySource, OpaqueFacts, Scan,
    ScanCost, ScanCoverage, StatGap, ThreadTime, VcpuFacts, VcpuSource, VmFacts, Vmm, Waited,
    is_called, name_uniquely, shared_name,
};
pub use gaps::load_warnings;
pub use isolated::isolated_cpus;
pub use memory::MemoryOptions;
pub use options::ScanOptions;
pub use quota::Quota;
pub use rates::snapshot;
pub use scan::Scanner;
pub use shares::{GroupWeight, shares};
pub use trust::{Owner, Trust, UserMap};
