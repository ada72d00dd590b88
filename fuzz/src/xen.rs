//! What `xl` prints on Xen hosts, and the journal of such a host.

use instep_core::idset::CpuSet;
use instep_core::units::{CpuId, NodeId};
use instep_xen::apply;
use instep_xen::text::{config, cpupools, info, list, node_memory, sched, uptime, vcpu_list};
use std::path::Path;

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// `xl info -n`, and the topology that it makes.
pub(crate) fn info(data: &[u8]) {
    let Ok(info) = info::parse(&text(data)) else { return };
    assert!(!info.cpus.is_empty() && !info.version.is_empty());
    let all = info.all_cpus();
    assert!(info.cpus.keys().all(|id| all.contains(CpuId(*id))));
    if let Ok(topology) = info.topology() {
        assert_eq!(topology.cpus().len(), info.cpus.len());
    }
}

/// `xl list` with any of its columns.
pub(crate) fn list(data: &[u8]) {
    let Ok(domains) = list::parse(&text(data)).map(|table| table.rows) else { return };
    assert!(domains.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(domains.iter().all(|domain| !domain.name.is_empty()));
    for domain in &domains {
        let _ = (
            domain.is_ending(),
            domain.nodes.as_ref().map(|mask| mask.of(&[NodeId(0)].into_iter().collect())),
        );
    }
}

/// `xl vcpu-list`.
pub(crate) fn vcpu_list(data: &[u8]) {
    let Ok(vcpus) = vcpu_list::parse(&text(data)).map(|table| table.rows) else { return };
    let all = CpuSet::one(CpuId(0));
    assert!(vcpus.iter().all(|vcpu| vcpu.hard.of(&all).len() < 1 << 20 && !vcpu.name.is_empty()));
}

/// `xl sched-credit` and `xl sched-credit2`.
pub(crate) fn sched(data: &[u8]) {
    let text = text(data);
    if let Ok(shares) = sched::parse(&text) {
        assert!(shares.rows.len() <= text.lines().count());
    }
}

/// `xl cpupool-list -c`.
pub(crate) fn cpupools(data: &[u8]) {
    if let Ok(pools) = cpupools::parse(&text(data)) {
        assert!(pools.rows.keys().all(|name| !name.is_empty()));
    }
}

/// `xl uptime`.
pub(crate) fn uptime(data: &[u8]) {
    let text = text(data);
    if let Ok(times) = uptime::parse(&text) {
        assert!(times.rows.len() <= text.lines().count());
    }
}

/// `xl dmesg` after `xl debug-keys u`.
pub(crate) fn node_memory(data: &[u8]) {
    let text = text(data);
    assert!(node_memory::parse(&text).len() <= text.lines().count());
}

/// `xl list -l`.
pub(crate) fn configs(data: &[u8]) {
    if let Ok(configs) = config::parse(&text(data)) {
        assert!(configs.rows.values().all(|config| config.guest_nodes.len() <= 1024));
    }
}

/// `xen-journal.json`.
pub(crate) fn journal(data: &[u8]) {
    if let Ok(journal) = apply::parse(Path::new("xen-journal.json"), data) {
        for held in journal.domains.values() {
            let _ = held.is_empty();
        }
    }
}
