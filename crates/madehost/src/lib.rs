//! Made hosts: writes the /proc and /sys of any host and VMs for tests and benchmarks.

pub mod skip;
