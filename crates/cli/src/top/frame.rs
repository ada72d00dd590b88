//! What `instep top` shows at one moment, as plain data: made of a snapshot or of a moment of the history, knows no terminal.
//!
//! The map shows where a vCPU was last seen, which is all that /proc tells: two siblings whose last
//! CPU is the same are stacked or were there one after the other. Co-run is known only of VMs that
//! somebody traces or Instep's own scheduler runs.

use instep_agent::published::{MomentVcpu, MomentVm, PublishedCycle};
use instep_core::profile::{ApplicationKind, HARDLY_ACTIVE};
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid, VmId};
use std::collections::BTreeMap;

/// A vCPU that wants less than this part of a CPU is not shown in the map.
const BUSY: u64 = 50;
/// The allocation period and share by which types are told: a slice of 12 ms.
const SLICE: Nanos = Nanos(12_000_000);

/// One moment of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// The window over which loads were measured.
    pub(super) window: Nanos,
    /// Nodes with CPUs, each with its last-level caches, their cores and the CPUs of these.
    pub(super) nodes: Vec<(NodeId, Vec<Llc>)>,
    /// Who is on each CPU: places in `vms`, one for each busy vCPU.
    pub(super) on: BTreeMap<CpuId, Vec<usize>>,
    /// Ascending by process id.
    pub(super) vms: Vec<VmRow>,
    /// VMs whose vCPUs cannot be told.
    pub(super) opaque: usize,
    /// CPU time of all else in the window, in CPUs.
    pub(super) others: Milli,
    /// What a moment of the history has besides; `None` for the present.
    pub(super) past: Option<Past>,
}

/// A moment of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Past {
    /// In milliseconds since 1970.
    pub(super) at_ms: u64,
    /// What was changed, a sentence each.
    pub(super) changes: Vec<String>,
    /// Why each of the VMs was placed so.
    pub(super) verdicts: Vec<String>,
}

/// Cores of a last-level cache.
pub(super) type Llc = Vec<Vec<CpuId>>;

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmRow {
    pub(super) id: VmId,
    pub(super) name: String,
    pub(super) vcpus: Vec<VcpuRow>,
    /// In CPUs.
    pub(super) used: Milli,
    pub(super) steal: Milli,
    /// What a quota kept from it; `None` where it has no quota.
    pub(super) throttled: Option<Milli>,
    /// Memory on the nodes of the CPUs its busy vCPUs are on; `None` when memory is not known.
    pub(super) locality: Option<Milli>,
    /// Where it is known.
    pub(super) co_run: Option<Milli>,
    pub(super) kind: Option<ApplicationKind>,
    /// CPUs with two or more of its busy vCPUs.
    pub(super) stacked: usize,
    /// Its busy vCPUs that share a core with another busy vCPU.
    pub(super) sharing: usize,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VcpuRow {
    pub(super) index: u32,
    /// Its thread; 0 where it is not known.
    pub(super) tid: Tid,
    pub(super) cpu: Option<CpuId>,
    pub(super) node: Option<NodeId>,
    pub(super) used: Milli,
    pub(super) steal: Milli,
    /// Voluntary context switches a second, in thousandths.
    pub(super) blocks: Option<u64>,
    pub(super) allowed: String,
}

/// What a snapshot does not hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Extra {
    /// Voluntary context switches in the window by thread.
    pub(super) blocks: BTreeMap<Tid, u64>,
    /// Co-run where known.
    pub(super) co_run: BTreeMap<VmId, Milli>,
}

impl Frame {
    /// The frame of a snapshot.
    pub(super) fn new(snapshot: &Snapshot, extra: &Extra) -> Self {
        let mut on: BTreeMap<CpuId, Vec<usize>> = BTreeMap::new();
        for (place, vm) in snapshot.vms.iter().enumerate() {
            for vcpu in vm.vcpus.iter().filter(|vcpu| vcpu.demand(snapshot.window).0 >= BUSY) {
                if let Some(cpu) = vcpu.cpu {
                    on.entry(cpu).or_default().push(place);
                }
            }
        }
        let cores = snapshot.topology.cores().iter().map(|core| core.iter());
        let sharing = sharing(cores, &on);
        let vms = snapshot.vms.iter().enumerate();
        Self {
            window: snapshot.window,
            nodes: nodes(snapshot),
            vms: vms
                .map(|(place, vm)| VmRow {
                    stacked: stacked(&on, place),
                    sharing: sharing.get(&place).copied().unwrap_or(0),
                    ..row(snapshot, extra, vm)
                })
                .collect(),
            on,
            opaque: snapshot.opaque.len(),
            others: snapshot.fixed_busy().milli_of(snapshot.window),
            past: None,
        }
    }

    /// The frame of a moment of the history. Types of VMs are not known of it.
    pub(super) fn of_moment(moment: PublishedCycle) -> Self {
        let PublishedCycle { at_ms, changes, host } = moment;
        let mut on: BTreeMap<CpuId, Vec<usize>> = BTreeMap::new();
        for (place, vm) in host.vms.iter().enumerate() {
            let demand = |vcpu: &MomentVcpu| vcpu.used_milli.0.saturating_add(vcpu.steal_milli.0);
            for vcpu in vm.vcpus.iter().filter(|vcpu| demand(vcpu) >= BUSY) {
                if let Some(cpu) = vcpu.cpu {
                    on.entry(cpu).or_default().push(place);
                }
            }
        }
        let nodes: Vec<(NodeId, Vec<Llc>)> =
            host.nodes.into_iter().map(|node| (node.id, node.llcs)).collect();
        let node_of: BTreeMap<CpuId, NodeId> = nodes
            .iter()
            .flat_map(|(id, llcs)| llcs.iter().flatten().flatten().map(|cpu| (*cpu, *id)))
            .collect();
        let cores: Vec<&Vec<CpuId>> =
            nodes.iter().flat_map(|(_, llcs)| llcs.iter().flatten()).collect();
        let sharing = sharing(cores.iter().map(|core| core.iter().copied()), &on);
        let changes = changes.into_iter().map(|change| {
            format!(
                "{}: {} {}, {}: {}",
                change.vm, change.kind, change.to, change.outcome, change.why
            )
        });
        let past = Past {
            at_ms,
            changes: changes.collect(),
            verdicts: host.vms.iter().map(|vm| vm.why.clone()).collect(),
        };
        let vms = host.vms.into_iter().enumerate();
        Self {
            window: host.window_ns,
            vms: vms
                .map(|(place, vm)| VmRow {
                    stacked: stacked(&on, place),
                    sharing: sharing.get(&place).copied().unwrap_or(0),
                    ..past_row(vm, &node_of)
                })
                .collect(),
            nodes,
            on,
            opaque: host.left_alone.len(),
            others: host.others_milli,
            past: Some(past),
        }
    }

    /// CPUs shown.
    pub(super) fn cpus(&self) -> usize {
        self.nodes.iter().flat_map(|(_, llcs)| llcs.iter().flatten()).map(Vec::len).sum()
    }

    /// Whether two busy threads are on one core, on different CPUs of it.
    pub(super) fn is_shared(&self, core: &[CpuId]) -> bool {
        core.iter().filter(|cpu| self.on.contains_key(cpu)).count() > 1
    }
}

fn nodes(snapshot: &Snapshot) -> Vec<(NodeId, Vec<Llc>)> {
    let topology = &snapshot.topology;
    let cores_of = |llc: &instep_core::idset::CpuSet| -> Llc {
        let cores = topology.cores().iter().filter(|core| core.is_subset(llc));
        cores.map(|core| core.iter().collect()).collect()
    };
    let filled = topology.nodes().iter().filter(|node| !node.cpus.is_empty());
    filled
        .map(|node| {
            let llcs = topology.llcs().iter().filter(|llc| llc.is_subset(&node.cpus));
            (node.id, llcs.map(cores_of).collect())
        })
        .collect()
}

/// CPUs with two or more busy vCPUs of the VM at this place.
fn stacked(on: &BTreeMap<CpuId, Vec<usize>>, place: usize) -> usize {
    let mine = |there: &Vec<usize>| there.iter().filter(|other| **other == place).count();
    on.values().filter(|there| mine(there) > 1).count()
}

/// How many busy vCPUs of each VM share a core: two of its CPUs have one.
fn sharing(
    cores: impl Iterator<Item = impl Iterator<Item = CpuId>>,
    on: &BTreeMap<CpuId, Vec<usize>>,
) -> BTreeMap<usize, usize> {
    let mut sharing = BTreeMap::new();
    for core in cores {
        let there: Vec<&Vec<usize>> = core.filter_map(|cpu| on.get(&cpu)).collect();
        if there.len() > 1 {
            for place in there.into_iter().flatten() {
                *sharing.entry(*place).or_default() += 1;
            }
        }
    }
    sharing
}

/// A VM in a moment of the history, but for how its vCPUs lie beside others.
fn past_row(vm: MomentVm, node_of: &BTreeMap<CpuId, NodeId>) -> VmRow {
    let vcpus: Vec<VcpuRow> = vm
        .vcpus
        .into_iter()
        .map(|vcpu| VcpuRow {
            index: vcpu.index,
            tid: vcpu.tid.unwrap_or(Tid(0)),
            cpu: vcpu.cpu,
            node: vcpu.cpu.and_then(|cpu| node_of.get(&cpu)).copied(),
            used: vcpu.used_milli,
            steal: vcpu.steal_milli,
            blocks: None,
            allowed: vcpu.cpus,
        })
        .collect();
    VmRow {
        id: vm.pid,
        name: vm.name,
        used: vm.used_milli,
        steal: vm.steal_milli,
        throttled: (vm.quota_milli.is_some() || vm.throttled_milli.0 > 0)
            .then_some(vm.throttled_milli),
        locality: locality(&vm.memory_bytes_by_node, &vcpus),
        co_run: vm.co_run_milli,
        kind: None,
        stacked: 0,
        sharing: 0,
        vcpus,
    }
}

/// A VM of a snapshot, but for how its vCPUs lie beside others.
fn row(snapshot: &Snapshot, extra: &Extra, vm: &Vm) -> VmRow {
    let window = snapshot.window;
    let topology = &snapshot.topology;
    let of = |cpu: &CpuId| topology.cpu(*cpu);
    let rate = |blocks: u64| {
        let milli = u128::from(blocks) * 1_000_000_000_000 / u128::from(window.0.max(1));
        u64::try_from(milli).unwrap_or(u64::MAX)
    };
    let vcpus: Vec<VcpuRow> = vm
        .vcpus
        .iter()
        .map(|vcpu| VcpuRow {
            index: vcpu.index,
            tid: vcpu.tid,
            cpu: vcpu.cpu,
            node: vcpu.cpu.as_ref().and_then(of).map(|cpu| cpu.node),
            used: vcpu.busy.milli_of(window),
            steal: vcpu.steal.milli_of(window),
            blocks: extra.blocks.get(&vcpu.tid).copied().map(rate),
            allowed: vcpu.allowed.to_string(),
        })
        .collect();
    VmRow {
        id: vm.id,
        name: vm.name.clone(),
        used: vm.busy().milli_of(window),
        steal: Milli(vcpus.iter().map(|vcpu| vcpu.steal.0).sum()),
        throttled: (vm.quota.is_some() || vm.throttled.0 > 0)
            .then(|| vm.throttled.milli_of(window)),
        locality: locality(&vm.memory, &vcpus),
        co_run: extra.co_run.get(&vm.id).copied(),
        kind: kind(snapshot, extra, vm),
        stacked: 0,
        sharing: 0,
        vcpus,
    }
}

/// *Locality*: each vCPU's demand finds this part of the memory on its own node.
fn locality(memory: &BTreeMap<NodeId, Bytes>, vcpus: &[VcpuRow]) -> Option<Milli> {
    let all: u128 = memory.values().map(|bytes| u128::from(bytes.0)).sum();
    let (mut sum, mut weights) = (0u128, 0u128);
    for vcpu in vcpus {
        // An idle VM's vCPUs count alike.
        let weight = u128::from(vcpu.used.0.saturating_add(vcpu.steal.0)) + 1;
        let there = memory.get(&vcpu.node?).map_or(0, |bytes| bytes.0);
        sum = weight.checked_mul(u128::from(there))?.checked_add(sum)?;
        weights += weight;
    }
    let part = sum.checked_mul(1000)?.checked_div(all.checked_mul(weights)?)?;
    Some(Milli(u64::try_from(part).unwrap_or(1000)))
}

/// The type (systems.md, 5) by the vCPUs' demand and blocks; `None` for idle VMs and where blocks
/// are not known.
fn kind(snapshot: &Snapshot, extra: &Extra, vm: &Vm) -> Option<ApplicationKind> {
    let demand = vm.demand(snapshot.window);
    if demand < HARDLY_ACTIVE {
        return None;
    }
    let blocks: Option<Vec<u64>> =
        vm.vcpus.iter().map(|vcpu| extra.blocks.get(&vcpu.tid).copied()).collect();
    let blocks: u64 = blocks?.iter().sum();
    let between = vm.busy().0.checked_div(blocks).map(Nanos);
    let threads = u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX);
    Some(ApplicationKind::of(demand, threads, between, SLICE))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use instep_madehost::{HostSpec, MadeHost, VcpuSpec, VmSpec, Vmm};
    use std::sync::Arc;

    /// A VM whose busy vCPUs were last on these CPUs.
    pub(in crate::top) fn vm(name: &str, node: u32, cpus: &[u32], load: u64) -> VmSpec {
        let count = cpus.len() as u32;
        let mut vm = VmSpec::new(name, Vmm::Libvirt, count, NodeId(node), Bytes::from_mib(1024));
        vm.vcpus = cpus
            .iter()
            .map(|cpu| VcpuSpec {
                load: Milli(load),
                steal: Milli((1000 - load) / 2),
                cpu: Some(CpuId(*cpu)),
                ..VcpuSpec::default()
            })
            .collect();
        vm
    }

    /// A second of a made host.
    pub(in crate::top) fn snapshot(host: HostSpec, vms: Vec<VmSpec>) -> Snapshot {
        let topology = instep_core::topology::Topology::build(host.cpu_facts(), host.node_facts());
        let mut made = MadeHost::new(host);
        vms.into_iter().for_each(|vm| _ = made.push(vm));
        made.snapshot(Arc::new(topology.unwrap()), Nanos::SECOND)
    }

    /// The frame of a made host; every vCPU of a VM blocks this often in its second.
    pub(in crate::top) fn frame(host: HostSpec, vms: Vec<VmSpec>, blocks: &[u64]) -> Frame {
        let snapshot = snapshot(host, vms);
        let mut extra = Extra::default();
        for (vm, blocks) in snapshot.vms.iter().zip(blocks) {
            extra.blocks.extend(vm.vcpus.iter().map(|vcpu| (vcpu.tid, *blocks)));
        }
        if let Some(first) = snapshot.vms.first().filter(|_| !blocks.is_empty()) {
            extra.co_run.insert(first.id, Milli(640));
        }
        Frame::new(&snapshot, &extra)
    }

    #[test]
    fn stacking_sharing_and_locality_are_seen() {
        let vms = vec![vm("a", 0, &[0, 0, 4], 600), vm("b", 1, &[1, 5], 600), vm("c", 0, &[6], 10)];
        let frame = frame(HostSpec::new(2, 2).threads(2), vms, &[]);
        let shown: Vec<_> =
            frame.vms.iter().map(|vm| (vm.stacked, vm.sharing, vm.locality)).collect();
        // a: two on CPU 0, whose sibling CPU 1 has b's; its third on node 1, whose sibling has b's.
        assert_eq!(shown[0], (1, 3, Some(Milli(666))));
        assert_eq!(shown[1], (0, 2, Some(Milli(500))));
        assert_eq!((shown[2].0, shown[2].1), (0, 0));
        let cores = &frame.nodes[0].1[0];
        assert_eq!(frame.cpus(), 8);
        assert!(frame.is_shared(&cores[0]) && !frame.is_shared(&cores[1]));
    }

    #[test]
    fn busy_vms_with_known_blocks_have_a_type() {
        let vms = || vec![vm("a", 0, &[0, 1], 1000), vm("b", 0, &[2, 3], 200)];
        let host = || HostSpec::new(1, 4);
        let kinds = |blocks: &[u64]| {
            frame(host(), vms(), blocks).vms.iter().map(|vm| vm.kind).collect::<Vec<_>>()
        };
        assert_eq!(
            kinds(&[5, 5000]),
            [Some(ApplicationKind::HighLow), Some(ApplicationKind::LowHigh)]
        );
        assert_eq!(kinds(&[]), [None, None]);
    }
}
