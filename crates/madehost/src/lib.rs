//! Made hosts: writes the /proc and /sys of any host and VMs for tests and benchmarks.
//!
//! A [`MadeHost`] is a host's hardware ([`HostSpec`]) and its VMs ([`VmSpec`]). It writes what a
//! 6.x kernel would show of them, one copy or two taken some time apart, and says what a reader
//! must find there ([`MadeHost::snapshot`]). It holds no reader: it shares no code with the
//! parsers it tests. The same spec writes the same bytes.

mod cgroup;
mod host;
mod made;
mod memory;
mod monitor;
mod noise;
mod process;
mod procfs;
mod program;
mod random;
pub mod skip;
mod sysfs;
pub mod trace;
mod tree;
mod vm;

pub use cgroup::Cgroups;
pub use host::{HostSpec, Numbering};
pub use made::MadeHost;
pub use program::program;
pub use random::{HostSize, Random, random};
pub use tree::scratch_dir;
pub use vm::{Cgroup, GuestNodeSpec, MemPolicy, Pages, Thread, ThreadKind, VcpuSpec, VmSpec, Vmm};
