//! Scheduling domains: the host's CPUs in groups of at most 64 that share one clock of virtual time in the
//! kernel scheduler (bpf/state.bpf.h).
//!
//! A domain lies in one node and has cores of one kind. Its CPUs are numbered as *lanes*, those of a last-level cache
//! and of a core side by side, so that aligned sets of lanes share caches. CPUs that the host keeps from its scheduler
//! (`isolcpus=`, isolated cpuset partitions) have domains of their own. It knows nothing of what runs.

use super::{CoreKind, Cpu, Topology};
use crate::idset::CpuSet;
use crate::units::CpuId;

/// CPUs of a domain at most: a set of them is one word.
pub const LANES: usize = 64;

/// Where a CPU is among the scheduling domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Number of the domain, from 0.
    pub domain: u32,
    /// The CPU's number in the domain, from 0 to 63.
    pub lane: u32,
    /// Lanes of the CPU's core, its own included, as bits.
    pub core: u64,
    /// Whether it is the first lane of a last-level cache.
    pub first_of_cache: bool,
    /// Whether only threads run here that are bound to such CPUs.
    pub isolated: bool,
}

/// The place of each CPU, in the order of domains and lanes, on a host with these isolated CPUs.
///
/// Last-level caches of a node are joined while they have room in a domain. One with more than 64 CPUs is cut
/// into equal parts of whole cores.
pub fn lanes(topology: &Topology, isolated: &CpuSet) -> Vec<(CpuId, Lane)> {
    let mut domains: Vec<Vec<&Cpu>> = Vec::new();
    for node in topology.nodes() {
        // A gang is as fast as its slowest core.
        let group = |cpu: &Cpu| {
            (isolated.contains(cpu.id), cpu.kind.map(|kind| kind != CoreKind::Performance))
        };
        let mut cpus: Vec<&Cpu> =
            topology.cpus().iter().filter(|cpu| cpu.node == node.id).collect();
        cpus.sort_by_key(|cpu| (group(cpu), cpu.llc, cpu.core, cpu.id));
        for alike in cpus.chunk_by(|a, b| group(a) == group(b)) {
            cut(alike, &mut domains);
        }
    }
    let place = |(cpus, domain): (&Vec<&Cpu>, u32)| place(cpus, domain, isolated);
    domains.iter().zip(0..).flat_map(place).collect()
}

/// Cuts CPUs of one node, in the order of caches and cores, into domains.
fn cut<'a>(cpus: &[&'a Cpu], domains: &mut Vec<Vec<&'a Cpu>>) {
    let mut open: Vec<&Cpu> = Vec::new();
    for cache in cpus.chunk_by(|a, b| a.llc == b.llc) {
        if open.len() + cache.len() > LANES && !open.is_empty() {
            domains.push(std::mem::take(&mut open));
        }
        let parts = cache.len().div_ceil(LANES);
        // Whole cores: of 63 of them with two threads a half has 64 CPUs.
        let threads = cache.chunk_by(|a, b| a.core == b.core).map(<[_]>::len).max();
        let most = cache.len().div_ceil(parts).next_multiple_of(threads.unwrap_or(1)).min(LANES);
        for core in cache.chunk_by(|a, b| a.core == b.core) {
            if parts > 1 && open.len() + core.len() > most.max(core.len()) {
                domains.push(std::mem::take(&mut open));
            }
            open.extend(core);
        }
    }
    domains.extend((!open.is_empty()).then_some(open));
}

/// The lanes of one domain.
fn place(cpus: &[&Cpu], domain: u32, isolated: &CpuSet) -> Vec<(CpuId, Lane)> {
    let core = |core| {
        let own = cpus.iter().enumerate().filter(|(_, cpu)| cpu.core == core);
        own.fold(0u64, |set, (at, _)| set | 1 << (at % LANES))
    };
    let lane = |(at, cpu): (usize, &&Cpu)| {
        let first_of_cache = at == 0 || cpus[at - 1].llc != cpu.llc;
        let (lane, core, isolated) = (at as u32, core(cpu.core), isolated.contains(cpu.id));
        (cpu.id, Lane { domain, lane, core, first_of_cache, isolated })
    };
    cpus.iter().enumerate().map(lane).collect()
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
