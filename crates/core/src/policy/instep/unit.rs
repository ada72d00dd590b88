//! What is placed as one piece: a VM, or one NUMA node of a guest too large for a host node.
//! Decides which VMs are left alone, and which spots a piece has to choose from.

use super::super::Settings;
use super::super::wish::{memory_may_move, permitted};
use super::cells::{Host, Load, Spot};
use super::spots::{Options, Spots};
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::Vm;
use crate::units::{Bytes, NodeId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The least demand a vCPU is planned with, milli: one that rests may wake up. An assumption.
const IDLE_DEMAND: u64 = 50;

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
    /// Where the memory of this part lies, if it is one and that is known.
    footprint: Option<BTreeMap<NodeId, Bytes>>,
    /// What each of them may use; a single set where all may use the same.
    may: Vec<CpuSet>,
    pub(super) load: Load,
    /// Noise of its demand, in thousandths of it.
    pub(super) noise: i64,
    /// All it may use. A vCPU there has everything it is permitted.
    pub(super) wide: Spot,
    pub(super) options: Rc<Options>,
    /// Where Instep placed it before, if that is still open to it.
    pub(super) current: Option<Spot>,
}

impl Unit {
    /// What its vCPU number `k` may use on `spot`.
    pub(super) fn cpus(&self, spots: &Spots, k: usize, spot: Spot) -> CpuSet {
        let may = self.permitted(k);
        if spot == self.wide { may.clone() } else { may.and(&spots.areas[spot].cpus) }
    }

    /// What its vCPU number `k` may use at all.
    pub(super) fn permitted(&self, k: usize) -> &CpuSet {
        self.may.get(k).unwrap_or(&self.may[0])
    }

    /// Its memory by node: its own, or the VM's where it has none of its own.
    pub(super) fn memory<'v>(&'v self, vm: &'v Vm) -> &'v BTreeMap<NodeId, Bytes> {
        self.footprint.as_ref().unwrap_or(&vm.memory)
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
    settings: &Settings,
    mend: bool,
) -> Result<Vec<Unit>, Reason> {
    let vm = &host.snapshot.vms[index];
    if !settings.include_pinned && !mend {
        pinned_by_hand(vm, &host.online).map_or(Ok(()), Err)?;
    }
    let may = permitted_sets(vm, &host.online, mend);
    if may.is_empty() || may.iter().any(CpuSet::is_empty) {
        return Err(Reason::NothingPermitted { cpuset: vm.cpuset.clone() });
    }
    let parts = guest_parts(host, vm).unwrap_or_else(|| {
        let (vcpus, memory) = ((0..vm.vcpus.len()).collect(), vm.memory_total());
        vec![Part { vcpus, memory, footprint: None, guest_node: None }]
    });
    parts.into_iter().map(|part| unit(host, spots, index, part, &may)).collect()
}

/// vCPUs to be placed together, and their memory.
struct Part {
    /// Positions in the VM.
    vcpus: Vec<usize>,
    memory: Bytes,
    footprint: Option<BTreeMap<NodeId, Bytes>>,
    /// The position of the guest node that it is; `None` for the whole VM.
    guest_node: Option<usize>,
}

/// What each vCPU may use; a single set where all may use the same.
fn permitted_sets(vm: &Vm, online: &CpuSet, mend: bool) -> Vec<CpuSet> {
    let uniform = mend || vm.vcpus.windows(2).all(|pair| pair[0].initial == pair[1].initial);
    let take = if uniform { 1 } else { vm.vcpus.len() };
    vm.vcpus.iter().take(take).map(|vcpu| permitted(vm, vcpu, online, mend)).collect()
}

/// Why a VM counts as pinned by hand: its vCPUs differ from each other, are limited otherwise than
/// the emulator threads, or have fewer CPUs than they are although the cpuset has more. Emulator
/// threads of limited affinity beside vCPUs without limits say nothing of the vCPUs.
fn pinned_by_hand(vm: &Vm, online: &CpuSet) -> Option<Reason> {
    let first = &vm.vcpus.first()?.initial;
    if let Some(vcpu) = vm.vcpus.iter().find(|vcpu| vcpu.initial != *first) {
        let (vcpu, cpus) = (vcpu.index, vcpu.initial.clone());
        return Some(Reason::VcpusPinned { vcpu, cpus, others: first.clone() });
    }
    let before = first.and(online).and(&vm.cpuset);
    let emulators = vm.emulators.iter().fold(CpuSet::new(), |all, one| all.or(&one.initial));
    let emulators = emulators.and(online).and(&vm.cpuset);
    let limited = before.len() < vm.cpuset.and(online).len();
    if limited && !vm.emulators.is_empty() && emulators != before {
        return Some(Reason::PinnedFromEmulators { cpus: before, emulators });
    }
    let crowded = limited && before.len() < vm.vcpus.len();
    crowded.then_some(Reason::PinnedTogether { vcpus: vm.vcpus.len(), cpus: before })
}

/// The guest nodes of a VM with more vCPUs or memory than any host node; `None` for smaller VMs,
/// where the guest's nodes are not known, and where only the VM's memory as a whole is: its parts
/// might be placed with each other's memory then.
fn guest_parts(host: &Host, vm: &Vm) -> Option<Vec<Part>> {
    let most_threads = host.places.iter().map(|place| place.threads).max()?;
    let most_memory = host.places.iter().map(|place| place.memory).max()?;
    let too_much = most_memory.0 > 0 && vm.memory_total() > most_memory;
    if (vm.vcpus.len() as u64 <= most_threads && !too_much) || vm.guest_nodes.len() < 2 {
        return None;
    }
    let mut footprints = vm.guest_footprints();
    if footprints.is_none() && vm.memory_total() > Bytes(0) {
        return None;
    }
    let mut vcpus: Vec<Vec<usize>> = vec![Vec::new(); vm.guest_nodes.len()];
    for (position, owner) in vm.guest_node_of_vcpus().into_iter().enumerate() {
        vcpus[owner].push(position);
    }
    let part = |(owner, vcpus): (usize, Vec<usize>)| {
        let footprint = footprints.as_mut().map(|all| std::mem::take(&mut all[owner]));
        let sum = |all: &BTreeMap<_, Bytes>| {
            Bytes(all.values().map(|bytes| bytes.0).fold(0, u64::saturating_add))
        };
        let memory = footprint.as_ref().map_or(vm.guest_nodes[owner].memory, sum);
        Part { vcpus, memory, footprint, guest_node: Some(owner) }
    };
    let mut parts: Vec<Part> = vcpus.into_iter().enumerate().map(part).collect();
    parts.retain(|part| !part.vcpus.is_empty());
    (parts.len() > 1).then_some(parts)
}

fn unit(
    host: &Host,
    spots: &mut Spots,
    index: usize,
    part: Part,
    may: &[CpuSet],
) -> Result<Unit, Reason> {
    let vm = &host.snapshot.vms[index];
    let Part { vcpus, memory, footprint, guest_node } = part;
    let may: Vec<CpuSet> = match may {
        [one] => vec![one.clone()],
        _ => vcpus.iter().map(|position| may[*position].clone()).collect(),
    };
    let options = spots.options(host, &may, vcpus.len(), memory);
    let Some(wide) = options.all.last().copied() else {
        let (vcpu, cpus) = (vm.vcpus[vcpus[0]].index, may[0].clone());
        let others = may.iter().skip(1).fold(CpuSet::new(), |all, cpus| all.or(cpus));
        return Err(Reason::VcpusPinned { vcpu, cpus, others });
    };
    let noise = vm.noise.map_or(UNKNOWN_NOISE, |noise| noise.0).min(1000) as i64;
    let load = load_of(host, vm, &vcpus, noise);
    let mut unit = Unit {
        vm: index,
        vcpus,
        guest_node,
        footprint,
        may,
        load,
        noise,
        wide,
        options,
        current: None,
    };
    unit.current = current(host, spots, &unit);
    Ok(unit)
}

/// The smallest spot that holds what its threads may use on the nodes where Instep placed the VM; of a
/// part, on those of them where its threads are.
fn current(host: &Host, spots: &Spots, unit: &Unit) -> Option<Spot> {
    let vm = &host.snapshot.vms[unit.vm];
    let topology = host.snapshot.topology.as_ref();
    let all = unit.vcpus.iter().fold(CpuSet::new(), |all, k| all.or(&vm.vcpus[*k].allowed));
    let nodes = match unit.guest_node {
        None => vm.placed.clone(),
        Some(_) => vm.placed.and(&topology.nodes_of(&all)),
    };
    let places: Vec<usize> =
        (0..host.places.len()).filter(|place| nodes.contains(host.places[*place].id)).collect();
    if nodes.is_empty() || places.len() < nodes.len() {
        return None;
    }
    let now = all.and(&topology.cpus_of(&nodes)).minus(&host.snapshot.isolated);
    let holds = |spot: &&Spot| {
        let area = &spots.areas[**spot];
        area.places == places && now.is_subset(&area.cpus)
    };
    unit.options
        .all
        .iter()
        .filter(holds)
        .min_by_key(|spot| spots.areas[**spot].cells.len())
        .copied()
}

/// The demand of these vCPUs of a VM, without what its quota or a throttled time keeps it from.
fn load_of(host: &Host, vm: &Vm, vcpus: &[usize], noise: i64) -> Load {
    let demands = vm.demands(host.snapshot.window);
    let weight = (i64::from(vm.weight) * 1000 / host.mean_weight.max(1)).clamp(1, 100_000);
    let demands = vcpus.iter().map(|position| demands[*position].0.max(IDLE_DEMAND) as i64);
    let mut load = demands
        .map(|demand| Load::of(demand, weight))
        .fold(Load::default(), |all, one| all.plus(&one));
    load.units = load.sum * load.sum;
    load.noise = (load.sum * noise / 1000).pow(2);
    load
}
