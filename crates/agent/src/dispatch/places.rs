//! The place of each CPU for the kernel scheduler: its scheduling domain, and its lane, core and cache there.

use instep_core::idset::CpuSet;
use instep_core::topology::{LANES, Lane, Topology, lanes};
use instep_core::units::CpuId;
use instep_kernel::CpuPlace;
use instep_kernel::plan::MAX_DOMAINS;
use instep_kernel::probe::possible_cpus;
use std::collections::BTreeMap;
use std::path::Path;

/// Where each CPU is, by its number; those that are offline are in no scheduling domain. `isolated` are in domains of their own.
///
/// # Errors
/// The scheduler has no room for this host's scheduling domains, or a CPU is in none.
pub(super) fn places(topology: &Topology, isolated: &CpuSet) -> Result<Vec<CpuPlace>, String> {
    // Numbers beyond any host's are not believed.
    let possible = possible_cpus(Path::new("/"))
        .min(4096)
        .max(topology.cpus().last().map_or(0, |cpu| cpu.id.0 + 1));
    let mut places = vec![CpuPlace::OFFLINE; possible as usize];
    let lanes: BTreeMap<CpuId, Lane> = lanes(topology, isolated).into_iter().collect();
    let domains = lanes.values().map(|lane| lane.domain + 1).max().unwrap_or(0);
    if domains > MAX_DOMAINS {
        return Err(format!(
            "this host has {domains} scheduling domains (groups of at most {LANES} CPUs that lie in one node), and \
             Instep's scheduler has room for {MAX_DOMAINS}; use placement alone (--dispatch off)"
        ));
    }
    for cpu in topology.cpus() {
        let node = i32::try_from(cpu.node.0).ok();
        let lane = lanes.get(&cpu.id).filter(|lane| (lane.lane as usize) < LANES);
        let (Some(node), Some(lane)) = (node, lane) else {
            return Err(format!(
                "CPU {} of node {} is in no scheduling domain: a node or core with it has more CPUs than {LANES}, or \
                 is not listed in /sys/devices/system/node; use placement alone (--dispatch off)",
                cpu.id, cpu.node
            ));
        };
        let Lane { domain, lane, core, first_of_cache, isolated } = *lane;
        places[cpu.id.0 as usize] = CpuPlace { node, domain, lane, core, first_of_cache, isolated };
    }
    Ok(places)
}
