//! One vCPU a core, while the host has a core for every vCPU; and where the emulator threads go.
//!
//! Never under overcommit: measured, pinning then costs more than it gains. A vCPU keeps the core
//! it has. Knows nothing of which cores other processes use.

use super::host::{Host, Spots};
use super::plan::Plan;
use super::unit::Unit;
use crate::idset::CpuSet;
use crate::snapshot::{Vcpu, Vm};
use crate::topology::CoreKind;
use crate::units::{Bytes, CoreId, Id};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A set of cores, as a set of the numbers that they have.
type Cores = crate::idset::IdSet<CoreId>;

/// By how much other load may exceed a whole CPU before vCPUs that have a core of their own lose
/// it, milli.
const KEEP_MARGIN: u64 = 500;

/// Cores given to units.
pub(super) struct Apart {
    /// Per unit the CPUs of each vCPU; `None` where they share the spot.
    pub(super) vcpus: Vec<Option<Vec<CpuSet>>>,
    taken: Cores,
    pub(super) before: Before,
}

impl Apart {
    /// Nothing is apart.
    pub(super) fn none(units: &[Unit], before: Before) -> Self {
        Self { vcpus: vec![None; units.len()], taken: Cores::new(), before }
    }
}

/// What is asked once before cores are given.
#[derive(Clone, Copy)]
pub(super) struct Before {
    /// Load of processes that are no VMs in whole CPUs, less [`KEEP_MARGIN`] while `held`.
    pub(super) other: u64,
    /// Load of all that cannot be placed, opaque VMs included, less the margin in any case: what
    /// emulator threads are given must not depend on whether cores are held already.
    pub(super) least_other: u64,
    /// Whether some vCPU has a core of its own from Instep now.
    pub(super) held: bool,
}

impl Before {
    pub(super) fn new(host: &Host) -> Self {
        let held = host.snapshot.vms.iter().any(|vm| holds_a_core(host, vm));
        let least_other = host.other.saturating_sub(KEEP_MARGIN) / 1000;
        let margin = if held { KEEP_MARGIN } else { 0 };
        let other = host.other_than_vms.saturating_sub(margin) / 1000;
        Self { other, least_other, held }
    }
}

/// Whether a vCPU has just one core, and not because its node and its limits leave no more.
fn holds_a_core(host: &Host, vm: &Vm) -> bool {
    let home = host.snapshot.topology.cpus_of(&vm.placed);
    let own = |vcpu: &Vcpu| {
        let within = vcpu.initial.and(&vm.cpuset).and(&host.online);
        vcpu.allowed != within
            && vcpu.allowed != within.and(&home)
            && core_of(host, &vcpu.allowed).is_some()
    };
    !vm.placed.is_empty() && vm.vcpus.iter().any(own)
}

/// Whether every vCPU and every CPU of other load can have a core.
pub(super) fn undercommitted(host: &Host, other: u64) -> bool {
    host.snapshot.vcpu_count() + other <= host.cores()
}

/// Gives each unit a core per vCPU inside its spot where all units bound there can have that. To
/// be asked only while the host is [`undercommitted`]. `left` says which VMs are left alone,
/// `before` what was asked before.
pub(super) fn apart(
    host: &Host,
    spots: &Spots,
    units: &[Unit],
    plan: &Plan,
    left: &[bool],
    before: Before,
) -> Apart {
    let mut result = Apart::none(units, before);
    result.taken = pinned_cores(host, left);
    let crowded = crowded_places(host, spots, units, plan);
    // What may float over several nodes though fewer would do is left to the kernel.
    let floats = |index: &usize| {
        let (unit, spot) = (&units[*index], plan[*index]);
        spot == unit.wide && unit.options.len() > 1
    };
    let open = |index: &usize| {
        !floats(index) && !spots.places(plan[*index]).iter().any(|place| crowded.contains(place))
    };
    let mut order: Vec<usize> = (0..units.len()).filter(open).collect();
    order.sort_by_key(|index| (spots.places(plan[*index]).len(), *index));
    let mut kept: BTreeMap<usize, Vec<Option<CoreId>>> = BTreeMap::new();
    for index in &order {
        let unit = &units[*index];
        kept.insert(*index, keep(host, spots, unit, plan[*index], &mut result.taken));
    }
    for index in &order {
        let had = kept.remove(index).unwrap_or_default();
        let spot = spots.cpus(plan[*index]);
        result.vcpus[*index] = assign(host, &units[*index], spot, had, &mut result.taken);
    }
    result
}

/// The cores that vCPUs of VMs left alone are pinned to.
fn pinned_cores(host: &Host, left: &[bool]) -> Cores {
    let vms = host.snapshot.vms.iter().zip(left).filter(|(_, left)| **left);
    vms.flat_map(|(vm, _)| &vm.vcpus).filter_map(|vcpu| core_of(host, &vcpu.initial)).collect()
}

/// Places with more vCPUs bound to them alone than cores.
fn crowded_places(host: &Host, spots: &Spots, units: &[Unit], plan: &Plan) -> Vec<usize> {
    let mut bound = vec![0; host.places.len()];
    for (unit, spot) in units.iter().zip(plan) {
        if let [place] = spots.places(*spot) {
            bound[*place] += unit.vcpus.len() as u64;
        }
    }
    (0..bound.len()).filter(|place| bound[*place] > host.places[*place].cores).collect()
}

/// The core that holds all of `cpus`.
fn core_of(host: &Host, cpus: &CpuSet) -> Option<CoreId> {
    let topology = &host.snapshot.topology;
    let core = topology.cpu(cpus.first()?)?.core;
    cpus.is_subset(topology.cores().get(core.0 as usize)?).then_some(core)
}

/// The cores that vCPUs of a unit have already and may keep.
fn keep(
    host: &Host,
    spots: &Spots,
    unit: &Unit,
    spot: usize,
    taken: &mut Cores,
) -> Vec<Option<CoreId>> {
    let vm = &host.snapshot.vms[unit.vm];
    let mut had = Vec::with_capacity(unit.vcpus.len());
    for (k, vcpu) in unit.vcpus.iter().enumerate() {
        let now = &vm.vcpus[*vcpu].allowed;
        let core = core_of(host, now).filter(|core| {
            let all = &host.snapshot.topology.cores()[core.0 as usize];
            let still = unit.permitted(k).and(all) == *now && now.is_subset(spots.cpus(spot));
            // One core that is all it has there anyway was not given; it is found again.
            still && unit.cpus(spots, k, spot) != *now && !taken.contains(*core)
        });
        core.inspect(|core| _ = taken.insert(*core));
        had.push(core);
    }
    had
}

/// A core for every vCPU of a unit; `None`, and nothing taken, when there are too few.
fn assign(
    host: &Host,
    unit: &Unit,
    spot: &CpuSet,
    mut had: Vec<Option<CoreId>>,
    taken: &mut Cores,
) -> Option<Vec<CpuSet>> {
    let topology = &host.snapshot.topology;
    let mut order = Ranked::new(host, unit, spot, taken, had.len());
    let mut complete = true;
    for (k, core) in had.iter_mut().enumerate() {
        if core.is_none() {
            *core = order.take(host, unit.permitted(k));
            complete &= core.is_some();
        }
    }
    if !complete {
        had.into_iter().flatten().for_each(|core| _ = taken.remove(core));
        return None;
    }
    taken.extend(had.iter().copied().flatten());
    let cpus =
        |(k, core): (usize, CoreId)| unit.permitted(k).and(&topology.cores()[core.0 as usize]);
    Some(had.into_iter().flatten().enumerate().map(cpus).collect())
}

/// Free cores of a spot in the order to use them: performance cores first, the node with most of
/// the unit's memory, the LLC that the unit fits into most tightly, clusters in turn, then by number.
struct Ranked(Vec<CoreId>);

/// What is asked of a core first: that it is fast, and near the VM's memory.
type Preference = (bool, Reverse<Bytes>);

impl Ranked {
    fn new(host: &Host, unit: &Unit, spot: &CpuSet, taken: &Cores, need: usize) -> Self {
        let memory = unit.memory(&host.snapshot.vms[unit.vm]);
        let topology = &host.snapshot.topology;
        let mut cores: BTreeMap<CoreId, (u32, u32, Preference)> = BTreeMap::new();
        for cpu in spot.iter().filter_map(|id| topology.cpu(id)) {
            if !taken.contains(cpu.core) {
                let efficient = cpu.kind == Some(CoreKind::Efficient);
                let preference =
                    (efficient, Reverse(memory.get(&cpu.node).copied().unwrap_or_default()));
                cores.insert(cpu.core, (cpu.llc.raw(), cpu.cluster.raw(), preference));
            }
        }
        let mut free: BTreeMap<u32, usize> = BTreeMap::new();
        cores.values().for_each(|(llc, _, _)| *free.entry(*llc).or_default() += 1);
        let mut turn: BTreeMap<u32, usize> = BTreeMap::new();
        let mut order: Vec<_> = cores
            .into_iter()
            .map(|(core, (llc, cluster, preference))| {
                let turn = turn.entry(cluster).or_default();
                *turn += 1;
                let room = free[&llc];
                let tightness = if room >= need { (0, room) } else { (1, usize::MAX - room) };
                (preference, tightness, llc, *turn, core)
            })
            .collect();
        order.sort_unstable();
        Self(order.into_iter().map(|(.., core)| core).collect())
    }

    /// The first that `permitted` reaches.
    fn take(&mut self, host: &Host, permitted: &CpuSet) -> Option<CoreId> {
        let cores = host.snapshot.topology.cores();
        let at = self.0.iter().position(|core| cores[core.0 as usize].intersects(permitted))?;
        Some(self.0.remove(at))
    }
}

/// CPUs of `spot` whose cores no vCPU has, when there is a core for the other load and one more.
pub(super) fn free_room(host: &Host, spot: &CpuSet, apart: &Apart) -> Option<CpuSet> {
    let topology = &host.snapshot.topology;
    let free: CpuSet = spot
        .iter()
        .filter(|id| topology.cpu(*id).is_some_and(|cpu| !apart.taken.contains(cpu.core)))
        .collect();
    let cores: Cores = free.iter().filter_map(|id| topology.cpu(id)).map(|cpu| cpu.core).collect();
    (cores.len() as u64 > apart.before.least_other).then_some(free)
}
