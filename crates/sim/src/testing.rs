//! Small hosts for tests and benchmarks. Not part of the product.

use crate::host::Host;
use crate::scenario::machine;

/// A host of `nodes` nodes, each with `cores` cores of `threads` threads; distance 20.
#[must_use]
pub fn host(nodes: u32, cores: u32, threads: u32) -> Host {
    Host::new(&machine::regular(nodes, nodes, cores, threads, 1 << 30))
}
