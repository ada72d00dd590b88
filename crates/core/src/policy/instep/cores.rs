//! A core for each vCPU of the VMs that are busy, as long as the others have enough cores beside them.
//!
//! The kernel keeps busy vCPUs on cores of their own most of the time; bound, they are there all the
//! time. Bound to one core a vCPU waits when another thread runs there, which was measured to lose 14 to
//! 26 % where CPUs are scarce. So demand decides, VM by VM: those that have cores keep them, then the
//! busiest come first. It does not know which cores other processes use.

use super::cells::Host;
use super::plan::Plan;
use super::unit::Unit;
use crate::idset::{CpuSet, IdSet};
use crate::topology::CoreKind;
use crate::units::{Bytes, CoreId, Id};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A set of cores, as a set of the numbers that they have.
type Cores = IdSet<CoreId>;

/// Mean demand of a VM's vCPUs from which a core of its own is worth something to each, milli; an
/// assumption. With half of it they keep what they have.
const BUSY: i64 = 200;

/// By how much the demand of others may exceed the other cores before vCPUs lose theirs, milli.
const KEEP_MARGIN: i64 = 500;

/// Cores given to units.
pub(super) struct Given {
    /// Per unit the CPUs of each vCPU; `None` where they share the spot.
    pub(super) vcpus: Vec<Option<Vec<CpuSet>>>,
}

impl Given {
    /// Whether each vCPU of the unit might have a core but for how little it uses.
    pub(super) fn rests(unit: &Unit) -> bool {
        unit.load.sum < BUSY * unit.vcpus.len() as i64
    }
}

/// Gives cores to the vCPUs of units. `left` says which VMs are left alone.
pub(super) fn give(plan: &Plan, left: &[bool]) -> Given {
    let (host, units) = (plan.host, plan.units);
    let mut dealer = Dealer {
        plan,
        taken: pinned_cores(host, left),
        given: vec![None; units.len()],
        rest: (0..host.places.len()).map(|place| plan.demand_on(place)).collect(),
        floating: vec![0; host.places.len()],
        used: vec![0; host.places.len()],
    };
    for unit in (0..units.len()).filter(|unit| plan.area(*unit).places.len() > 1) {
        dealer.count(unit, |dealer, place, part| {
            dealer.rest[place] -= part;
            dealer.floating[place] += part;
        });
    }
    let held: Vec<Vec<Option<CoreId>>> = units.iter().map(|unit| dealer.held(unit)).collect();
    let has = |unit: usize| held[unit].iter().all(Option::is_some);
    let slow = |unit: usize| dealer.is_too_slow(&held[unit], unit);
    let mut order: Vec<(bool, usize)> = (0..units.len()).map(|unit| (slow(unit), unit)).collect();
    // What is on slow cores though it is busier takes fast ones first; then those that have cores.
    order.sort_by_key(|(slow, unit)| {
        let demand = units[*unit].load.sum / units[*unit].vcpus.len().max(1) as i64;
        (!slow, !has(*unit), plan.area(*unit).places.len(), Reverse(demand), *unit)
    });
    for (slow, unit) in order {
        let keeps = has(unit) && !slow;
        if dealer.has_room(unit, keeps) {
            let had = if keeps { held[unit].clone() } else { vec![None; held[unit].len()] };
            dealer.deal(unit, had);
        }
    }
    Given { vcpus: dealer.given }
}

/// The cores that vCPUs of VMs left alone are pinned to.
fn pinned_cores(host: &Host, left: &[bool]) -> Cores {
    let vms = host.snapshot.vms.iter().zip(left).filter(|(_, left)| **left);
    vms.flat_map(|(vm, _)| &vm.vcpus).filter_map(|vcpu| core_of(host, &vcpu.initial)).collect()
}

/// The core that holds all of `cpus`.
fn core_of(host: &Host, cpus: &CpuSet) -> Option<CoreId> {
    let topology = &host.snapshot.topology;
    let core = topology.cpu(cpus.first()?)?.core;
    cpus.is_subset(topology.cores().get(core.0 as usize)?).then_some(core)
}

/// Whether a core is one built for efficiency.
fn is_efficient(host: &Host, core: CoreId) -> bool {
    let topology = &host.snapshot.topology;
    let first = topology.cores()[core.0 as usize].first().and_then(|cpu| topology.cpu(cpu));
    first.is_some_and(|cpu| cpu.kind == Some(CoreKind::Efficient))
}

/// Cores while they are given.
struct Dealer<'p, 'a> {
    plan: &'p Plan<'a>,
    taken: Cores,
    given: Vec<Option<Vec<CpuSet>>>,
    /// By node: demand of all that has no core of its own and may run on this node only, milli.
    rest: Vec<i64>,
    /// The same of what may run on other nodes, too.
    floating: Vec<i64>,
    /// By node: cores that are given.
    used: Vec<i64>,
}

impl Dealer<'_, '_> {
    /// The cores that vCPUs of a unit have from an earlier decision and may keep.
    fn held(&self, unit: &Unit) -> Vec<Option<CoreId>> {
        let host = self.plan.host;
        let vm = &host.snapshot.vms[unit.vm];
        let Some(spot) = unit.current else { return vec![None; unit.vcpus.len()] };
        let own = |(k, vcpu): (usize, &usize)| {
            let now = &vm.vcpus[*vcpu].allowed;
            core_of(host, now).filter(|core| {
                let all = &host.snapshot.topology.cores()[core.0 as usize];
                // One core that is all it has there anyway was not given.
                unit.permitted(k).and(all) == *now && unit.cpus(self.plan.spots, k, spot) != *now
            })
        };
        unit.vcpus.iter().enumerate().map(own).collect()
    }

    /// Whether a unit has slow cores though there are fast ones for all that demand as much.
    fn is_too_slow(&self, held: &[Option<CoreId>], unit: usize) -> bool {
        let (host, units) = (self.plan.host, self.plan.units);
        if !held.iter().flatten().any(|core| is_efficient(host, *core)) {
            return false;
        }
        let mean = |unit: &Unit| unit.load.sum / unit.vcpus.len().max(1) as i64;
        let own = mean(&units[unit]) * (1000 - 2 * units[unit].noise) / 1000;
        let rivals =
            units.iter().filter(|other| mean(other) * (1000 + 2 * other.noise) / 1000 > own);
        let fast = (0..host.snapshot.topology.cores().len() as u32).map(CoreId);
        let fast = fast.filter(|core| !is_efficient(host, *core) && !self.taken.contains(*core));
        rivals.map(|other| other.vcpus.len()).sum::<usize>() <= fast.count()
    }

    /// Whether a unit is busy, and the others find enough cores beside those that it needs.
    fn has_room(&self, unit: usize, keeps: bool) -> bool {
        let (plan, own) = (self.plan, &self.plan.units[unit]);
        let (times, margin) = if keeps { (2, KEEP_MARGIN) } else { (1, 0) };
        let area = plan.area(unit);
        let floats = plan.state.at[unit] == Some(own.wide) && own.options.all.len() > 1;
        if own.load.sum * times < BUSY * own.vcpus.len() as i64 || (floats && area.places.len() > 1)
        {
            return false;
        }
        let fits = |places: &mut dyn Iterator<Item = usize>, floating: bool| {
            let (mut cores, mut rest) = (0, -margin);
            for place in places {
                cores += plan.cores_of(place) - self.used[place];
                rest += self.rest[place] + if floating { self.floating[place] } else { 0 };
            }
            let confined = area.places.len() == 1;
            rest -= if floating || confined { own.load.sum } else { 0 };
            own.vcpus.len() as i64 + (rest.max(0) + 999) / 1000 <= cores
        };
        // What may run elsewhere finds cores there.
        fits(&mut area.places.iter().copied(), false) && fits(&mut (0..self.used.len()), true)
    }

    /// Tells the parts of a unit by node.
    fn count(&mut self, unit: usize, change: impl Fn(&mut Self, usize, i64)) {
        let plan = self.plan;
        for (cell, share) in plan.parts(unit) {
            change(self, plan.host.cells[cell].place, plan.units[unit].load.part(share).sum);
        }
    }

    /// A core for every vCPU of a unit, what it `had` first; nothing when there are too few.
    fn deal(&mut self, unit: usize, mut had: Vec<Option<CoreId>>) {
        let (plan, own) = (self.plan, &self.plan.units[unit]);
        let topology = &plan.host.snapshot.topology;
        let cpus = &plan.area(unit).cpus;
        for core in &mut had {
            let stays = |core: &CoreId| {
                topology.cores()[core.0 as usize].intersects(cpus) && !self.taken.contains(*core)
            };
            *core = core.filter(stays);
            core.inspect(|core| _ = self.taken.insert(*core));
        }
        let mut free = Ranked::new(plan.host, own, cpus, &self.taken);
        let mut complete = true;
        for (k, core) in had.iter_mut().enumerate().filter(|(_, core)| core.is_none()) {
            *core = free.take(plan.host, own.permitted(k));
            complete &= core.is_some();
            core.inspect(|core| _ = self.taken.insert(*core));
        }
        if !complete {
            had.into_iter().flatten().for_each(|core| _ = self.taken.remove(core));
            return;
        }
        let confined = plan.area(unit).places.len() == 1;
        self.count(unit, |dealer, place, part| {
            let rest = if confined { &mut dealer.rest } else { &mut dealer.floating };
            rest[place] -= part;
        });
        for core in had.iter().flatten() {
            let cell = plan.host.cells.iter();
            let cell = cell.filter(|cell| cell.cpus.intersects(&topology.cores()[core.0 as usize]));
            cell.take(1).for_each(|cell| self.used[cell.place] += 1);
        }
        let set = |(k, core): (usize, CoreId)| {
            own.permitted(k).and(&topology.cores()[core.0 as usize]).and(cpus)
        };
        self.given[unit] = Some(had.into_iter().flatten().enumerate().map(set).collect());
    }
}

/// Free cores of a spot in the order to use them: performance cores first, the node with most of
/// the unit's memory, the LLC that the unit fits into most tightly, clusters in turn, then by number.
struct Ranked(Vec<CoreId>);

/// What is asked of a core first: that it is fast, and near the VM's memory.
type Preference = (bool, Reverse<Bytes>);

impl Ranked {
    fn new(host: &Host, unit: &Unit, spot: &CpuSet, taken: &Cores) -> Self {
        let need = unit.vcpus.len();
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
