//! The topology of a host from sysfs: reads facts, which `instep_core` then groups and checks.
//!
//! Understands kernels from 2.6.16 (hex masks, no `online` list) to today's. A file that holds
//! something else than it should is a fact that is missing and a warning that names file and
//! value. It decides nothing: which of two tables lies is the builder's to judge.

mod cpus;
mod nodes;
pub mod parse;
mod source;

use crate::error::Error;
use crate::root::Root;
use instep_core::topology::Topology;
use source::Source;

/// Reads the topology of the host under `root`. About 17 small files for each online CPU.
///
/// # Errors
/// [`Error::Unusable`] when there is no `sys/devices/system/cpu`, or no online CPU in it.
pub fn read(root: &Root) -> Result<Topology, Error> {
    let mut source = Source::new(root);
    let cpus = cpus::read(&mut source)?;
    let online = cpus.iter().map(|cpu| instep_core::units::CpuId(cpu.id)).collect();
    let nodes = nodes::read(&mut source, &online);
    let built = Topology::build(cpus, nodes).map_err(|error| source.unusable(error.to_string()))?;
    Ok(built.with_earlier_warnings(source.into_warnings()))
}
