//! What is placed as one piece: a VM, or one NUMA node of a guest too large for a host node.
//! Decides which VMs are left alone, and which spots a piece has to choose from.

use super::super::PolicySettings;
use super::super::wish::{memory_may_move, permitted, pinned_by_hand};
use super::cells::{Host, Load, Spot, planned};
use super::spots::{Options, Spots};
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::Vm;
use crate::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Noise of a VM whose loads were not compared yet, in thousandths of its demand: an assumption, used in
/// the first cycles of a VM only.
const UNKNOWN_NOISE: u64 = 50;

/// A piece to place.
pub(super) struct Unit {
    /// Position of its VM in the snapshot.
    pub(super) vm: usize,
    /// Positions of its vCPUs in the VM.
    pub(super) vcpus: Vec<usize>,
    /// The position of the guest node that it is, where it is not all of the VM.
    pub(super) guest_node: Option<usize>,
    /// Its memory by node: that of its guest node where that is known, else the VM's.
    pub(super) memory: BTreeMap<NodeId, Bytes>,
    /// What each of them may use; a single set where all may use the same.
    may: Vec<CpuSet>,
    pub(super) load: Load,
    /// Demand times the weight of the VM in thousandths of the mean, micro.
    pub(super) weighted: i64,
    /// Noise of its demand, in thousandths of it.
    pub(super) noise: i64,
    /// All it may use. A vCPU there has everything it is permitted.
    pub(super) wide: Spot,
    pub(super) options: Rc<Options>,
    /// Where Instep placed it before, if that is still open to it.
    pub(super) current: Option<Spot>,
    /// What it loses by where its memory and devices are, by number of the set of nodes.
    pub(super) near: Vec<[i64; 3]>,
}

impl Unit {
    /// What its vCPU number `k` may use on `spot`.
    pub(super) fn cpus(&self, spots: &Spots, k: usize, spot: Spot) -> CpuSet {
        let may = self.permitted(k);
        if spot == self.wide { may.clone() } else { may.and(&spots.areas[spot].cpus) }
    }

    /// Whether all its vCPUs may use the same.
    pub(super) fn is_uniform(&self) -> bool {
        self.may.len() == 1
    }

    /// What its vCPU number `k` may use at all.
    pub(super) fn permitted(&self, k: usize) -> &CpuSet {
        self.may.get(k).unwrap_or(&self.may[0])
    }

    /// The smallest of its spots that holds what its threads may use on the nodes where its VM is placed; of
    /// a guest's node, on those of them where its threads are.
    pub(super) fn spot_in_force(
        &self,
        host: &Host,
        spots: &Spots,
        placed: &NodeSet,
        all: &CpuSet,
    ) -> Option<Spot> {
        let topology = host.snapshot.topology.as_ref();
        let nodes = match self.guest_node {
            None => placed.clone(),
            Some(_) => placed.and(&topology.nodes_of(all)),
        };
        let now = all.and(&topology.cpus_of(&nodes)).minus(&host.snapshot.isolated);
        let home = spots.homes.iter().position(|home| home.nodes == nodes)?;
        let open = self.options.iter().flatten().map(|spot| (*spot, &spots.areas[*spot]));
        let holds = open.filter(|(_, area)| area.nodes == home && now.is_subset(&area.cpus));
        Some(holds.min_by_key(|(_, area)| area.cells.len())?.0)
    }

    /// Mean demand of its vCPUs, milli.
    pub(super) fn mean(&self) -> i64 {
        self.load.sum / self.vcpus.len().max(1) as i64
    }

    /// Whether nobody bound its memory to other nodes.
    pub(super) fn memory_may_move(&self, vm: &Vm, to: &NodeSet) -> bool {
        let node = self.guest_node.map(|position| &vm.guest_nodes[position]);
        memory_may_move(&[node.map_or(&None, |node| &node.bound), &vm.memory_bound], to)
    }
}

/// The pieces of one VM, or why it is left alone.
pub(super) fn units_of(
    host: &Host,
    spots: &mut Spots,
    index: usize,
    settings: &PolicySettings,
    mend: bool,
) -> Result<Vec<Unit>, Reason> {
    let vm = &host.snapshot.vms[index];
    if !settings.include_pinned && !mend {
        pinned_by_hand(vm, &host.online).map_or(Ok(()), Err)?;
    }
    let uniform = mend || vm.vcpus.windows(2).all(|pair| pair[0].initial == pair[1].initial);
    let take = if uniform { 1 } else { vm.vcpus.len() };
    let may = vm.vcpus.iter().take(take).map(|vcpu| permitted(vm, vcpu, &host.online, mend));
    let may: Vec<CpuSet> = may.collect();
    if may.is_empty() || may.iter().any(CpuSet::is_empty) {
        return Err(Reason::NothingPermitted { cpuset: vm.cpuset.clone() });
    }
    let whole = || vec![(None, (0..vm.vcpus.len()).collect(), vm.memory.clone())];
    let parts = guest_parts(host, vm).unwrap_or_else(whole);
    parts.into_iter().map(|part| unit(host, spots, index, part, &may)).collect()
}

/// A guest's node, or none where it is the whole VM; positions of the vCPUs in the VM; and their memory.
type Part = (Option<usize>, Vec<usize>, BTreeMap<NodeId, Bytes>);

/// The guest nodes of a VM with more vCPUs or memory than any host node; `None` for smaller VMs,
/// where the guest's nodes are not known, and where only the VM's memory as a whole is: its parts
/// might be placed with each other's memory then.
fn guest_parts(host: &Host, vm: &Vm) -> Option<Vec<Part>> {
    let most_threads = host.places.iter().map(|place| place.threads).max()?;
    let most_memory = host.places.iter().map(|place| place.memory).max()?;
    let fits = vm.vcpus.len() <= most_threads && vm.memory_total().0 <= most_memory;
    if fits || vm.guest_nodes.len() < 2 {
        return None;
    }
    let footprints = vm.guest_footprints();
    if footprints.is_none() && vm.memory_total() > Bytes(0) {
        return None;
    }
    let mut parts: Vec<Part> = (0..vm.guest_nodes.len())
        .zip(footprints.into_iter().flatten().chain(std::iter::repeat(BTreeMap::new())))
        .map(|(node, memory)| (Some(node), Vec::new(), memory))
        .collect();
    for (position, owner) in vm.guest_node_of_vcpus().into_iter().enumerate() {
        parts[owner].1.push(position);
    }
    parts.retain(|part| !part.1.is_empty());
    (parts.len() > 1).then_some(parts)
}

fn unit(
    host: &Host,
    spots: &mut Spots,
    index: usize,
    (guest_node, vcpus, memory): Part,
    may: &[CpuSet],
) -> Result<Unit, Reason> {
    let vm = &host.snapshot.vms[index];
    let may: Vec<CpuSet> = match may {
        [one] => vec![one.clone()],
        _ => vcpus.iter().map(|position| may[*position].clone()).collect(),
    };
    let bytes = memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
    let configured = guest_node.map_or(0, |node| vm.guest_nodes[node].memory.0);
    let needed = if bytes == 0 { configured } else { bytes };
    let options = spots.options(host, &may, vcpus.len(), needed);
    let Some(wide) = options.last().map(|wide| wide[0]) else {
        let (vcpu, cpus) = (vm.vcpus[vcpus[0]].index, may[0].clone());
        let others = may.iter().skip(1).fold(CpuSet::new(), |all, cpus| all.or(cpus));
        return Err(Reason::VcpusPinned { vcpu, cpus, others });
    };
    let noise = vm.noise.map_or(UNKNOWN_NOISE, |noise| noise.0).min(1000) as i64;
    let demands = planned(vm, host.snapshot.window);
    let one = |k: &usize| Load::of(demands[*k] as i64, host.counts[index]);
    let load = vcpus.iter().map(one).fold(Load::default(), |all, one| all.plus(&one));
    let weight = (i64::from(vm.weight) * 1000 / host.mean_weight).clamp(1, 100_000);
    let (current, near) = (None, Vec::new());
    let mut unit = Unit {
        vm: index,
        vcpus,
        guest_node,
        memory,
        may,
        load,
        weighted: load.sum * weight,
        noise,
        wide,
        options,
        current,
        near,
    };
    unit.current = current_spot(host, spots, &unit);
    Ok(unit)
}

/// Where Instep placed a unit before.
fn current_spot(host: &Host, spots: &Spots, unit: &Unit) -> Option<Spot> {
    let vm = &host.snapshot.vms[unit.vm];
    if vm.placed.is_empty() {
        return None;
    }
    let mut all = CpuSet::new();
    for allowed in unit.vcpus.iter().map(|k| &vm.vcpus[*k].allowed) {
        if !allowed.is_subset(&all) {
            all = all.or(allowed);
        }
    }
    unit.spot_in_force(host, spots, &vm.placed, &all)
}
